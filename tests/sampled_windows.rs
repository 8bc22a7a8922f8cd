//! `sample_fraction`: a whole model measures a share of the windows that does not depend on their partition, and the
//! filter has a setting for the others.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::Array;
use serde_json::{Value, json};

use crate::support::tables::{
    document, floats, integers, read_parquet, read_scores, strings, table, texts, token_lists,
    write_parquet,
};
use crate::support::{Pipeline, Workspace, count, demo_model};

const MODEL: &str = "language-model";
const ALL: u64 = 48;

/// Twelve documents of four windows, `per_file` in a file.
fn workspace(per_file: usize, reversed: bool) -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let mut rows: Vec<u64> = (0..12).collect();
    if reversed {
        rows.reverse();
    }
    for (file, rows) in rows.chunks(per_file).enumerate() {
        let documents: Vec<Vec<u32>> = rows.iter().map(|row| document(*row, 128)).collect();
        let ids = rows.iter().map(|row| format!("document-{row}"));
        let input = table(&[("id", strings(ids)), ("tokens", token_lists(&documents))]);
        write_parquet(&workspace.path(&format!("input/{file}.parquet")), &input, 2);
    }
    workspace
}

fn pipeline(settings: &str) -> Pipeline {
    Pipeline::tokens("", 32)
        .without_model(None)
        .measure(&format!("language-model, model: model, short_context_tokens: 0{settings}"))
        .score("terms: [{statistic: mean_loss, weight: -1}]")
        .filter("keep_fraction: 0.25")
}

type Window = (String, i64);

/// The losses of measured windows, bit for bit.
fn losses(workspace: &Workspace) -> BTreeMap<Window, u64> {
    let scores = read_scores(&workspace.path("out.run"));
    let column = scores.column_by_name("mean_loss").expect("the column of losses");
    let windows = texts(&scores, "id").into_iter().zip(integers(&scores, "window"));
    let measured = windows.enumerate().filter(|(row, _)| column.is_valid(*row));
    measured
        .map(|(row, window)| (window, floats(&scores.slice(row, 1), "mean_loss")[0].to_bits()))
        .collect()
}

/// The windows of the output, and whether each has a score.
fn kept(workspace: &Workspace) -> BTreeMap<Window, bool> {
    let data = read_parquet(&workspace.path("out/data"));
    let scores = data.column_by_name("longsift_score").expect("every output has it");
    let windows = texts(&data, "id").into_iter().zip(integers(&data, "longsift_window"));
    windows.enumerate().map(|(row, window)| (window, scores.is_valid(row))).collect()
}

const SAMPLE: &str = ", sample_fraction: 0.4, sample_seed: 5";

#[test]
fn the_sample_does_not_depend_on_the_partition() {
    let whole = workspace(12, false);
    whole.run(&pipeline(""));
    let all = losses(&whole);
    assert_eq!(all.len() as u64, ALL);
    let one = workspace(12, false);
    let summary = one.run(&pipeline(SAMPLE).input("unit_bytes: 1024"));
    let sampled = losses(&one);
    let share = sampled.len() as f64 / ALL as f64;
    assert!((0.2..0.6).contains(&share), "{share}");
    assert!(sampled.iter().all(|(window, loss)| all[window] == *loss));
    let documents: BTreeSet<&String> = sampled.keys().map(|(id, _)| id).collect();
    assert!(documents.len() < sampled.len(), "windows are chosen, not documents");
    let left_out = ALL - sampled.len() as u64;
    assert_eq!(summary["windows_not_sampled"], json!({ MODEL: left_out }));
    assert_eq!(
        (&summary["windows_scored"], summary.get("windows_not_measured")),
        (&json!(ALL), None)
    );
    let many = workspace(5, true);
    many.run(&pipeline(SAMPLE));
    assert_eq!(losses(&many), sampled);
    let shards = workspace(4, true);
    shards.write("pipeline.yaml", pipeline(SAMPLE).to_string());
    for shard in ["2/3", "0/3", "1/3"] {
        let arguments = ["run", "pipeline.yaml", "--phase", "score", "--shard", shard, "-q"];
        shards.longsift(&arguments).success();
    }
    shards.longsift(&["run", "pipeline.yaml", "--phase", "select", "-q"]).success();
    assert_eq!(losses(&shards), sampled);
    let other = workspace(12, false);
    other.run(&pipeline(&SAMPLE.replace('5', "6")));
    assert_ne!(
        losses(&other).into_keys().collect::<Vec<_>>(),
        sampled.into_keys().collect::<Vec<_>>()
    );
}

#[test]
fn windows_that_are_not_measured_are_dropped_or_kept() {
    let workspace = workspace(5, false);
    let dropped = workspace.run(&pipeline(SAMPLE));
    let measured = losses(&workspace);
    let left_out = ALL - measured.len() as u64;
    assert_eq!(count(&dropped["windows_dropped"], "not_measured"), left_out);
    assert_eq!(count(&dropped, "kept"), ALL / 4, "a share of all samples, not of the measured");
    let best = kept(&workspace);
    assert!(best.values().all(|scored| *scored));
    let answer =
        ["whatif", "out.run", "--format", "json", "--set", "stages.filter.not_measured=keep"];
    let foreseen = workspace.longsift(&answer).success().stdout;
    let foreseen: Value = serde_json::from_str(&foreseen).unwrap();
    assert_eq!(count(&foreseen["total"]["then"], "samples"), ALL / 4 + left_out);
    let keeping = pipeline(SAMPLE).filter("keep_fraction: 0.25, not_measured: keep");
    let summary = workspace.run(&keeping);
    assert_eq!(summary["windows_reused"], json!(ALL), "the filter measures nothing");
    assert_eq!(count(&summary, "kept"), ALL / 4 + left_out);
    assert_eq!(count(&summary, "windows_kept_not_measured"), left_out);
    assert_eq!(summary["windows_dropped"].get("not_measured"), None);
    let both = kept(&workspace);
    let scored: BTreeMap<_, _> = both.iter().filter(|(_, scored)| **scored).collect();
    assert_eq!(scored.into_keys().collect::<Vec<_>>(), best.keys().collect::<Vec<_>>());
    assert!(both.iter().all(|(window, scored)| *scored || !measured.contains_key(window)));
    workspace.longsift(&["verify", "out.run"]).success();
    workspace.longsift(&["report", "out.run", "--html", "page.html"]).success();
    let page = std::fs::read_to_string(workspace.path("page.html")).unwrap();
    assert!(page.contains("kept, not measured"));
    assert!(page.contains(&format!("{left_out} windows are not in the sample of {MODEL}")));
}

#[test]
fn another_fraction_is_rejected_until_measured_again() {
    let workspace = workspace(12, false);
    workspace.run(&pipeline(SAMPLE));
    let before = losses(&workspace);
    let results = workspace.results();
    workspace.write("pipeline.yaml", pipeline(&SAMPLE.replace("0.4", "0.7")).to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2).stderr;
    let lines = ["sample_fraction: 0.7, was 0.4", "--remeasure language-model"];
    assert!(lines.iter().all(|line| answer.contains(line)), "{answer}");
    assert_eq!(workspace.results(), results);
    let again = ["run", "pipeline.yaml", "-q", "--remeasure", MODEL];
    workspace.longsift(&again).success();
    let more = losses(&workspace);
    assert!(before.len() < more.len());
    assert!(
        before.iter().all(|(window, loss)| more[window] == *loss),
        "a larger share contains the smaller one"
    );
}

#[test]
fn windows_rejected_by_a_guard_are_counted_by_the_guard() {
    let whole = workspace(12, false);
    whole.run(&pipeline(SAMPLE).measure("lexical"));
    let mut shares = floats(&read_scores(&whole.path("out.run")), "unique_token_share");
    shares.sort_by(f64::total_cmp);
    let min_share = shares[shares.len() / 2];
    let guard =
        format!("guards: [{{statistic: unique_token_share, min: {min_share}, before: {MODEL}}}]");
    let filter = |more: &str| format!("keep_fraction: 0.25, {guard}{more}");
    let workspace = workspace(12, false);
    let guarded = pipeline(SAMPLE).measure("lexical").filter(&filter(", not_measured: keep"));
    let summary = workspace.run(&guarded);
    let scores = read_scores(&workspace.path("out.run"));
    let shares = floats(&scores, "unique_token_share");
    let refused = shares.iter().filter(|share| **share < min_share).count() as u64;
    assert!(0 < refused && refused < ALL, "{shares:?}");
    assert_eq!(count(&summary["windows_dropped"], "guard_unique_token_share"), refused);
    let measured = losses(&workspace).len() as u64;
    let (spared, left_out) = (
        count(&summary["windows_not_measured"], MODEL),
        count(&summary["windows_not_sampled"], MODEL),
    );
    assert_eq!(measured + spared + left_out, ALL, "{summary}");
    assert!(spared < refused, "a window outside of the sample is not spared by a guard");
    let unknown = ALL - refused - measured;
    assert_eq!(count(&summary, "windows_kept_not_measured"), unknown);
    let dropped = workspace.run(&pipeline(SAMPLE).measure("lexical").filter(&filter("")));
    assert_eq!(count(&dropped["windows_dropped"], "not_measured"), unknown);
    assert_eq!(count(&dropped["windows_dropped"], "guard_unique_token_share"), refused);
}

#[test]
fn a_document_is_scored_by_its_measured_windows() {
    let workspace = workspace(12, false);
    let sample = ", sample_fraction: 0.2, sample_seed: 1";
    let summary =
        workspace.run(&pipeline(sample).output("samples: documents").filter("min_score: -100"));
    let measured = losses(&workspace);
    let documents: BTreeSet<&String> = measured.keys().map(|(id, _)| id).collect();
    assert!(documents.len() < 12 && documents.len() < measured.len(), "{measured:?}");
    assert_eq!(count(&summary, "kept"), documents.len() as u64);
    assert_eq!(count(&summary["rows_dropped"], "not_measured"), 12 - documents.len() as u64);
    let data = read_parquet(&workspace.path("out/data"));
    for (id, loss) in texts(&data, "id").into_iter().zip(floats(&data, "longsift_mean_loss")) {
        let own = measured.iter().filter(|((document, _), _)| *document == id);
        let own: Vec<f64> = own.map(|(_, loss)| f64::from_bits(*loss)).collect();
        // Windows of one length: the mean over tokens is that of the windows.
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        assert!((loss - mean).abs() < 1e-12, "{id}: {loss} for {mean}");
    }
}

#[test]
fn a_plan_shows_the_fraction_and_rejects_a_seed_without_one() {
    let workspace = workspace(12, false);
    workspace.write("pipeline.yaml", pipeline(SAMPLE).to_string());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).success().stdout;
    let line = answer.lines().find(|line| line.contains(MODEL)).unwrap();
    assert!(line.contains("for 40 % of all windows"), "{line}");
    workspace.write("pipeline.yaml", pipeline(", sample_seed: 5").to_string());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    assert!(answer.contains("`sample_seed` has no effect: all windows are measured"), "{answer}");
}
