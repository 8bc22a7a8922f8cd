//! Columns of the output about its rows, and the summary of kept samples.

use std::fs;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use serde_json::json;

use crate::support::tables::{
    corpus, document, footer_value, integers, labels, optional_texts, read_parquet, read_scores,
    strings, table, texts, token_lists, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, count, files_below};

fn workspace(input: &[(&str, RecordBatch)]) -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for (name, table) in input {
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), table, 2);
    }
    workspace
}

fn sorted_parts(workspace: &Workspace) -> RecordBatch {
    read_parquet(&workspace.path("out/data"))
}

#[test]
fn the_output_is_in_the_order_of_file_row_and_window() {
    let names = ["b/z", "a", "B", "a-", "a.b"];
    let tables = names.map(|name| (name, corpus(name, &[64, 200, 130, 90])));
    let workspace = workspace(&tables);
    let pipeline = Pipeline::tokens("model", 32)
        .input("unit_bytes: 1024")
        .tokenize("windows: both-ends")
        .filter("keep_fraction: 0.8");
    let summary = workspace.run(&pipeline);
    let output = sorted_parts(&workspace);
    let samples = texts(&output, "longsift_sample_id");
    let windows = integers(&output, "longsift_window");
    let ids = texts(&output, "id");
    // In byte order of the paths: upper case before lower case, `-` before `.` before `/`.
    let order = ["B", "a-", "a.b", "a", "b/z"];
    let mut expected: Vec<(usize, usize, i64)> = Vec::new();
    for ((sample, id), window) in samples.iter().zip(&ids).zip(&windows) {
        assert_eq!(*sample, format!("{id}#{window}"));
        let (name, row) = id.rsplit_once('-').unwrap();
        let file = order.iter().position(|other| *other == name).unwrap();
        expected.push((file, row.parse().unwrap(), *window));
    }
    assert!(expected.windows(2).all(|pair| pair[0] < pair[1]), "{samples:?}");
    assert_eq!(count(&summary, "kept"), samples.len() as u64);
    let counts = integers(&output, "longsift_windows");
    assert!(windows.iter().zip(counts).all(|(window, windows)| *window < windows));
}

#[test]
fn repeated_ids_give_separate_samples_and_a_warning() {
    let lists = token_lists(&[document(1, 64), document(2, 64), document(3, 64)]);
    let twice = table(&[("id", strings(["x", "x", "y"])), ("tokens", Arc::clone(&lists))]);
    let again = table(&[("id", strings(["z", "y", "w"])), ("tokens", lists)]);
    let workspace = workspace(&[("a", twice), ("b", again)]);
    let pipeline = Pipeline::tokens("model", 64).filter("keep_fraction: 1");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert!(answer.stderr.contains("2 ids occur more than once"), "{}", answer.stderr);
    let output = sorted_parts(&workspace);
    let mut samples = texts(&output, "longsift_sample_id");
    assert!(samples.contains(&"z#0".to_owned()) && samples.contains(&"w#0".to_owned()));
    samples.sort();
    samples.dedup();
    assert_eq!(samples.len(), 6, "{samples:?}");
    for sample in &samples {
        workspace.longsift(&["explain", "out.run", sample]).success();
    }
    assert_eq!(texts(&output, "id"), ["x", "x", "y", "z", "y", "w"], "the column is unchanged");
}

#[test]
fn a_document_without_an_id_is_named_by_file_and_row() {
    let documents = token_lists(&[document(1, 64), document(2, 64)]);
    let workspace = workspace(&[("deep/er", table(&[("tokens", documents)]))]);
    let mut pipeline = Pipeline::tokens("model", 64).filter("keep_fraction: 1");
    pipeline.input = "path: input, tokens_column: tokens".to_owned();
    workspace.run(&pipeline);
    let expected = ["deep/er.parquet:0#0", "deep/er.parquet:1#0"];
    assert_eq!(texts(&sorted_parts(&workspace), "longsift_sample_id"), expected);
}

#[test]
fn kept_shares_are_printed_per_label() {
    let plain = corpus("a", &[64; 10]);
    let names: Vec<Option<&str>> =
        (0..10).map(|row| [Some("prose"), Some("lists"), None][row % 3]).collect();
    let input = table(&[
        ("id", Arc::clone(plain.column(0))),
        ("tokens", Arc::clone(plain.column(1))),
        ("kind", labels(&names)),
    ]);
    let workspace = workspace(&[("a", input)]);
    let pipeline =
        Pipeline::tokens("model", 64).filter("keep_fraction: 0.5").output("report_by: kind");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    let kept = optional_texts(&sorted_parts(&workspace), "kind");
    for (label, all) in [("prose", 4), ("lists", 3), ("(null)", 3)] {
        let line = answer.stderr.lines().find(|line| line.trim_start().starts_with(label));
        let fields: Vec<&str> = line.unwrap().split_whitespace().collect();
        let name = Some(label).filter(|label| *label != "(null)");
        let number = kept.iter().filter(|kind| kind.as_deref() == name).count();
        assert_eq!(fields[1..3], [all.to_string(), number.to_string()], "{line:?}");
    }
    assert!(answer.stderr.contains("compared with 50.0 % overall"), "{}", answer.stderr);
}

#[test]
fn mixed_lengths_and_overlapping_windows_cause_warnings() {
    let workspace = workspace(&[("a", corpus("a", &[100, 64, 90]))]);
    let both = Pipeline::tokens("model", 32).tokenize("windows: both-ends");
    workspace.write("pipeline.yaml", both.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    insta::assert_snapshot!("windows_that_overlap", workspace.filtered(&answer.stderr));
    let short = Pipeline::tokens("model", 32).tokenize("short_documents: score");
    workspace.write("pipeline.yaml", short.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "--fresh", "-q"]).success();
    insta::assert_snapshot!("windows_of_several_lengths", workspace.filtered(&answer.stderr));
}

#[test]
fn every_compression_holds_the_same_rows() {
    let workspace = workspace(&[("a", corpus("a", &[256; 12]))]);
    let mut sizes = Vec::new();
    let mut rows = Vec::new();
    for compression in ["zstd", "snappy", "lz4", "none"] {
        let output = format!("compression: {compression}");
        workspace.run(&Pipeline::tokens("model", 128).output(&output));
        rows.push(sorted_parts(&workspace));
        let data = files_below(&workspace.path("out/data"));
        sizes.push(data.iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>());
    }
    assert!(rows.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(sizes[0] < sizes[3], "{sizes:?}");
}

#[test]
fn an_empty_selection_is_an_empty_file_with_all_columns() {
    let workspace = workspace(&[("a", corpus("a", &[64, 64]))]);
    let summary = workspace.run(&Pipeline::tokens("model", 64).filter("keep_fraction: 0.49"));
    assert_eq!((count(&summary, "kept"), count(&summary, "rows_kept")), (0, 0));
    assert_eq!(summary["rows_dropped"], json!({ "not_selected": 2 }));
    let output = sorted_parts(&workspace);
    assert_eq!((output.num_rows(), output.num_columns()), (0, 13));
    let dropped = read_parquet(&workspace.path("out.run/dropped"));
    assert_eq!(texts(&dropped, "reason"), ["not_selected", "not_selected"]);
    assert_eq!(dropped.column_by_name("score").unwrap().null_count(), 0);
}

#[test]
fn windows_too_short_for_the_distance_are_counted_separately() {
    let workspace = workspace(&[("a", corpus("a", &[140, 64, 10, 128]))]);
    let pipeline = Pipeline::tokens("model", 64)
        .tokenize("short_documents: score")
        .attention("min_distance_tokens: 20")
        .filter("keep_fraction: 1");
    let summary = workspace.run(&pipeline);
    assert_eq!(summary["windows_dropped"], json!({ "too_short": 2 }), "tails of 12 and 10");
    assert_eq!(summary["rows_dropped"], json!({ "too_short": 1 }));
    assert_eq!((count(&summary, "windows_total"), count(&summary, "kept")), (7, 5));
}

#[test]
fn a_large_value_is_copied_to_many_windows_in_bounded_memory() {
    // 150 windows of a document, each with a copy of a 16 MB column: more than 32-bit offsets can address.
    let large = "<p>".repeat(5 << 20);
    let input = table(&[
        ("id", strings(["a", "b"])),
        ("tokens", token_lists(&[document(1, 1200), document(2, 8)])),
        ("html", strings([large.as_str(), "small"])),
    ]);
    let workspace = workspace(&[("a", input)]);
    let summary = workspace.run(&Pipeline::tokens("model", 8).filter("keep_fraction: 1"));
    assert_eq!(count(&summary, "kept"), 151);
    assert!(count(&summary, "peak_memory_bytes") < 1 << 30, "{summary}");
}

#[test]
fn score_files_explain_their_statistics() {
    let workspace = workspace(&[("a", corpus("a", &[64]))]);
    workspace.run(&Pipeline::tokens("model", 64).filter("keep_fraction: 1"));
    let file = &files_below(&workspace.path("out.run/scores"))[0];
    let measures = footer_value(file, "longsift.measures").unwrap();
    assert!(measures.starts_with(r#"{"first-layer-attention":""#), "{measures}");
    let scores = read_scores(&workspace.path("out.run"));
    let schema = scores.schema();
    let metadata = schema.field_with_name("distance_histogram").unwrap().metadata();
    assert!(metadata["doc"].contains("bin 0 is distance 0"), "{metadata:?}");
    assert_eq!(metadata["measure"], "first-layer-attention");
    assert_eq!(texts(&scores, "input_file"), ["a.parquet"]);
}

#[test]
fn empty_and_foreign_files_are_ignored() {
    let some = corpus("a", &[64, 128]);
    let none = concat_batches(&some.schema(), [&some.slice(0, 0)]).unwrap();
    let workspace = workspace(&[("a", none.clone()), ("b", some), ("c", none)]);
    workspace.write("input/README.md", "not Parquet");
    workspace.write("input/_SUCCESS", "");
    let summary = workspace.run(&Pipeline::tokens("model", 64).filter("keep_fraction: 1"));
    assert_eq!((count(&summary, "rows_in"), count(&summary, "kept")), (2, 3));
    let summary = workspace.run(&Pipeline::tokens("model", 64).filter("keep_fraction: 1"));
    assert_eq!(summary["status"], "nothing_to_do");
}
