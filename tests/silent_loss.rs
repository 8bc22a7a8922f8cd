//! Known ways in which other tools silently lose or duplicate documents, each with a test that longsift does not.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use crate::support::damage::{Raw, write_raw};
use crate::support::faults::Fault;
use crate::support::tables::{
    corpus, document, integers, optional_texts, read_parquet, read_scores, strings, table, texts,
    token_lists, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, count, demo_model, files_below};

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    workspace
}

fn all() -> Pipeline {
    Pipeline::tokens("model", 64).filter("keep_fraction: 1")
}

/// Worker pool whose results are ignored: a failed part is missing, and the exit code is 0.
#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_part_that_cannot_be_written_fails_the_run() {
    let workspace = workspace();
    for name in ["a", "b", "c"] {
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), &corpus(name, &[128]), 8);
    }
    workspace.write("pipeline.yaml", all().to_string());
    let part = "train-00001-of-00003.parquet".to_owned();
    let fault = Fault { action: "EIO", at: 1, permanent: true, matching: part };
    let answer = workspace.with_fault(&["run", "pipeline.yaml", "-q"], Some(&fault)).answer;
    assert_eq!(answer.code, 4, "{}", answer.stderr);
    assert!(!workspace.path("out.run/_SUCCESS").exists());
    assert!(files_below(&workspace.path("out/data")).is_empty(), "no part without the others");
    let summary = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!((count(&summary, "kept"), count(&summary, "windows_scored")), (6, 0));
}

/// One bad row that empties its batch of a thousand.
#[test]
fn a_bad_row_in_a_batch_of_a_thousand_costs_one_row() {
    let workspace = workspace();
    let mut documents: Vec<Vec<u32>> = (0..1500).map(|row| document(row, 64)).collect();
    documents[700][3] = 5000;
    let ids = strings((0..1500).map(|row| row.to_string()));
    let input = table(&[("id", ids), ("tokens", token_lists(&documents))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 2000);
    let summary = workspace.run(&all());
    assert_eq!((count(&summary, "quarantined"), count(&summary, "kept")), (1, 1499));
    let quarantine = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(texts(&quarantine, "id"), ["700"]);
}

/// Completion markers that depend on neither the input nor the settings: files added later shift the assignment, so
/// that a resumed run omits some and processes others twice.
#[test]
fn a_file_added_between_two_runs_is_read_once() {
    let workspace = workspace();
    for name in ["b", "d"] {
        write_parquet(
            &workspace.path(&format!("input/{name}.parquet")),
            &corpus(name, &[128, 64]),
            8,
        );
    }
    workspace.run(&all());
    for name in ["a", "c", "e"] {
        write_parquet(
            &workspace.path(&format!("input/{name}.parquet")),
            &corpus(name, &[64, 128]),
            8,
        );
    }
    let summary = workspace.run(&all());
    assert_eq!((count(&summary, "windows_scored"), count(&summary, "windows_reused")), (9, 6));
    let samples = texts(&read_parquet(&workspace.path("out/data")), "longsift_sample_id");
    assert_eq!(samples.len(), 15);
    assert_eq!(samples.iter().collect::<BTreeSet<_>>().len(), 15, "{samples:?}");
    // Markers depend on the settings as well.
    let answer = {
        workspace.write("pipeline.yaml", Pipeline::tokens("model", 32).to_string());
        workspace.longsift(&["run", "pipeline.yaml", "-q"])
    };
    assert_eq!(answer.code, 2, "{}", answer.stderr);
}

/// Ids that look like the sample ids of other documents.
#[test]
fn sample_ids_are_unique_for_any_ids() {
    let ids = ["x", "x", "x@a.parquet:1", "x@a.parquet:2", "x@a.parquet:1@a.parquet:3", "y#0", "y"];
    let lengths = [64, 64, 64, 64, 64, 20, 64];
    for more in ["", "mark_only: true"] {
        let workspace = workspace();
        let tokens: Vec<Vec<u32>> = lengths.iter().map(|length| (0..*length).collect()).collect();
        let rows = table(&[("id", strings(ids)), ("tokens", token_lists(&tokens))]);
        write_parquet(&workspace.path("input/a.parquet"), &rows, 8);
        workspace
            .write("pipeline.yaml", all().filter(&format!("keep_fraction: 1, {more}")).to_string());
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
        let samples = texts(&read_parquet(&workspace.path("out/data")), "longsift_sample_id");
        assert_eq!(samples.len(), if more.is_empty() { 6 } else { 7 }, "{samples:?}");
        assert_eq!(samples.iter().collect::<BTreeSet<_>>().len(), samples.len(), "{samples:?}");
    }
}

/// Missing texts that are warned about once and never counted; a wrong column name that gives an empty output and a
/// success.
#[test]
fn a_missing_text_is_counted_and_a_wrong_column_fails() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let text = "The archive of the valley keeps every letter. ".repeat(30);
    let values = [Some(text.as_str()), None, Some(""), None];
    let ids = strings(["a", "b", "c", "d"]);
    let input = table(&[("id", ids), ("text", crate::support::tables::labels(&values))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    let pipeline = Pipeline::text("model", 64).input("max_quarantined_fraction: 1");
    let summary = workspace.run(&pipeline);
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (4, 3));
    let quarantine = read_parquet(&workspace.path("out.run/quarantine"));
    let codes = optional_texts(&quarantine, "longsift_code");
    assert_eq!(codes.iter().flatten().filter(|code| *code == "null_text").count(), 2);
    let mut wrong = Pipeline::text("model", 64);
    wrong.input = "path: input, text_column: body".to_owned();
    wrong.output = "path: wrong".to_owned();
    workspace.write("wrong.yaml", wrong.to_string());
    let answer = workspace.longsift(&["run", "wrong.yaml", "-q"]).expect(2);
    assert!(answer.stderr.contains("column `body` does not exist"), "{}", answer.stderr);
    assert!(!workspace.path("wrong").exists());
}

/// An error in the middle of a file that is logged, after which the file counts as done.
#[test]
fn a_file_that_ends_early_is_not_done() {
    for damage in ["in the footer", "in a page"] {
        let workspace = workspace();
        let path = workspace.path("input/a.parquet");
        write_parquet(&path, &corpus("a", &[64; 40]), 8);
        let mut bytes = fs::read(&path).unwrap();
        if damage == "in the footer" {
            bytes.truncate(bytes.len() - 100);
        } else {
            let middle = bytes.len() / 3;
            bytes[middle..middle + 600].fill(0);
        }
        fs::write(&path, bytes).unwrap();
        workspace.write("pipeline.yaml", all().to_string());
        let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
        assert_eq!(answer.summary()["status"], "failed");
        assert!(answer.stderr.contains("a.parquet"), "{}", answer.stderr);
        assert!(!workspace.path("out.run/_SUCCESS").exists(), "{damage}");
    }
}

/// A long document that is scored by its beginning, without notice or a score for the rest.
#[test]
fn a_long_document_is_scored_to_its_end_or_quarantined() {
    let workspace = workspace();
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[64 * 40 + 17]), 8);
    workspace.run(&all().tokenize("short_documents: score"));
    let scores = read_scores(&workspace.path("out.run"));
    assert_eq!(integers(&scores, "tokens_total"), vec![64 * 40 + 17; scores.num_rows()]);
    assert_eq!(integers(&scores, "token_end").into_iter().max(), Some(64 * 40 + 17));
    // A short window for whole documents must not truncate the document.
    let mut whole = all().tokenize("windows: whole-document").input("max_quarantined_fraction: 1");
    whole.output = "path: whole".to_owned();
    workspace.write("whole.yaml", whole.to_string());
    let summary = workspace.longsift(&["run", "whole.yaml", "-q"]).success().summary();
    assert_eq!((count(&summary, "quarantined"), count(&summary, "kept")), (1, 0));
}

/// Unreadable lines that are skipped and never counted.
#[test]
fn an_unreadable_row_is_counted_and_quarantined() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let good = "The archive of the valley keeps every letter. ".repeat(30).into_bytes();
    let mut bad = good.clone();
    bad[200] = 0xfe;
    let column = ("text", vec![good.as_slice(), bad.as_slice(), good.as_slice()]);
    write_raw(&workspace.path("input/a.parquet"), &[column], Raw::plain());
    let mut pipeline = Pipeline::text("model", 64);
    pipeline.input = "path: input, max_quarantined_fraction: 0.5".to_owned();
    let summary = workspace.run(&pipeline);
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (3, 1));
    assert_eq!(integers(&read_parquet(&workspace.path("out.run/quarantine")), "longsift_row"), [1]);
}

/// A success without results, because every file raised an exception.
#[test]
fn a_run_in_which_every_file_fails_is_a_failure() {
    for (on_bad_file, status) in [("fail", "failed"), ("quarantine", "failed")] {
        let workspace = workspace();
        workspace.write("input/a.parquet", "no Parquet");
        workspace.write("input/b.parquet", "");
        let pipeline = all().input(&format!("on_bad_file: {on_bad_file}"));
        workspace.write("pipeline.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
        assert_eq!(answer.summary()["status"], json!(status));
        for name in ["a.parquet", "b.parquet"] {
            assert!(answer.stderr.contains(name), "{}", answer.stderr);
        }
    }
}

/// A directory walk that treats an unreadable folder as missing, and its files as absent.
#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_unreadable_folder_fails_the_run() {
    let workspace = workspace();
    for name in ["a", "below/b"] {
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), &corpus(name, &[128]), 8);
    }
    workspace.write("pipeline.yaml", all().to_string());
    for (action, code) in [("EIO", 4), ("EACCES", 3)] {
        for matching in ["stat input/below", "list input/below"] {
            let fault = Fault { action, at: 1, permanent: true, matching: matching.to_owned() };
            let answer = workspace.with_fault(&["run", "pipeline.yaml", "-q"], Some(&fault)).answer;
            let answer = answer.expect(code);
            assert!(answer.stderr.contains("input/below`"), "{}", answer.stderr);
        }
    }
    assert_eq!(count(&workspace.run(&all()), "rows_in"), 2);
}

/// A second run that appends to the output of the first.
#[test]
fn a_second_run_duplicates_nothing() {
    let workspace = workspace();
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[128, 192]), 8);
    workspace.run(&all());
    let once = workspace.results();
    assert_eq!(workspace.run(&all())["status"], "nothing_to_do");
    assert_eq!(workspace.results(), once);
    workspace.run_with(&all(), &["--fresh"]);
    assert_eq!(workspace.results(), once);
    let samples = texts(&read_parquet(&workspace.path("out/data")), "longsift_sample_id");
    assert_eq!(samples.iter().collect::<BTreeSet<_>>().len(), samples.len());
}
