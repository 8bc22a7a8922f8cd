//! Guards before an expensive measure: it skips rejected windows, and nothing else changes.

use std::collections::BTreeMap;
use std::fs;

use arrow_array::{Array, RecordBatch};
use serde_json::{Value, json};

use crate::external::child::write_program;
use crate::support::tables::{
    document, floats, integers, read_parquet, read_scores, strings, table, texts, token_lists,
    write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, count, files_below, read_json};

const ATTENTION: &str = "first-layer-attention";

/// Documents of two windows; every third repeats a passage of 32 tokens, with more repetition in later ones.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let documents: Vec<Vec<u32>> = (0..12_u64)
        .map(|row| {
            let mut tokens = document(row, 256);
            if row % 3 == 0 {
                let copied = 64 + 8 * row as usize;
                (32..copied).for_each(|at| tokens[at] = tokens[at - 32]);
            }
            tokens
        })
        .collect();
    let ids = (0..documents.len()).map(|row| format!("document-{row}"));
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(&documents))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    workspace
}

fn pipeline(guard: Option<f64>) -> Pipeline {
    let guard = guard.map_or(String::new(), |most| {
        format!(", guards: [{{statistic: copy_share, max: {most}, before: {ATTENTION}}}]")
    });
    Pipeline::tokens("model", 128)
        .input("unit_bytes: 1024")
        .measure("recurrence, min_distance_tokens: 16")
        .filter(&format!("keep_fraction: 0.5{guard}"))
        .output("report: true")
}

/// Windows that a device measured.
fn on_devices(summary: &Value) -> u64 {
    let devices = summary["devices"]["list"].as_array().into_iter().flatten();
    devices.map(|device| count(device, "pieces")).sum()
}

fn scores(workspace: &Workspace) -> RecordBatch {
    read_scores(&workspace.path("out.run"))
}

/// The values of `copy_share`, ascending: bounds between them let some windows pass.
fn copy_shares(workspace: &Workspace) -> Vec<f64> {
    let mut shares = floats(&scores(workspace), "copy_share");
    shares.sort_by(f64::total_cmp);
    shares
}

/// Two bounds that reject some windows, the first more of them.
fn bounds() -> (f64, f64) {
    let workspace = workspace();
    workspace.run(&pipeline(None));
    let mut shares = copy_shares(&workspace);
    shares.retain(|share| *share > 0.0);
    shares.dedup();
    assert!(shares.len() >= 4, "{shares:?}");
    (shares[shares.len() / 2], shares[shares.len() - 2])
}

const OUTPUT: [&str; 3] = ["out/data", "out.run/dropped", "out.run/selection"];

/// Output of a pipeline, and its counts of windows, from a run in an empty folder.
fn fresh(pipeline: &Pipeline) -> (BTreeMap<String, String>, Vec<Value>) {
    let workspace = workspace();
    let summary = workspace.run(pipeline);
    (workspace.hashes(&OUTPUT), window_counts(&workspace, &summary))
}

fn window_counts(workspace: &Workspace, summary: &Value) -> Vec<Value> {
    let keys = ["windows_total", "windows_kept", "windows_dropped", "windows_not_measured", "kept"];
    let report = read_json(&workspace.path("out.run/report.json"));
    let of_report = ["groups", "lists", "kept", "dropped"].map(|key| report[key].clone());
    keys.iter().map(|key| summary[key].clone()).chain(of_report).collect()
}

/// Runs a pipeline after another one and checks that its results equal those of a fresh run. Returns the number of
/// windows that were measured at all, and on a device.
fn rerun(workspace: &Workspace, pipeline: &Pipeline, arguments: &[&str]) -> (u64, u64) {
    let summary = workspace.run_with(pipeline, arguments);
    let (output, counts) = fresh(pipeline);
    assert_eq!(workspace.hashes(&OUTPUT), output);
    assert_eq!(window_counts(workspace, &summary), counts);
    workspace.longsift(&["verify", "out.run"]).success();
    (count(&summary, "windows_scored"), on_devices(&summary))
}

#[test]
fn a_measure_skips_windows_rejected_by_a_guard_before_it() {
    let (strict, _) = bounds();
    let (guarded, whole) = (workspace(), workspace());
    let all = on_devices(&whole.run(&pipeline(None)));
    let summary = guarded.run(&pipeline(Some(strict)));
    let skipped = count(&summary["windows_not_measured"], ATTENTION);
    assert!(skipped > 0 && skipped < all, "{summary}");
    assert_eq!(on_devices(&summary), all - skipped);
    assert_eq!(summary["windows_dropped"]["guard_copy_share"], skipped);
    assert_eq!(summary["windows_scored"], all, "each window has statistics of one measure");
    let (of_guarded, of_whole) = (scores(&guarded), scores(&whole));
    let copies = floats(&of_guarded, "copy_share");
    let strength = of_guarded.column_by_name("dependency_strength").unwrap();
    let (one, other) =
        (floats(&of_guarded, "dependency_strength"), floats(&of_whole, "dependency_strength"));
    for row in 0..copies.len() {
        assert_eq!(strength.is_null(row), copies[row] > strict, "row {row}");
        assert!(strength.is_null(row) || one[row].to_bits() == other[row].to_bits(), "row {row}");
    }
    let skipped_row = (0..copies.len()).find(|row| strength.is_null(*row)).unwrap();
    let [rows, windows] =
        ["input_row", "window"].map(|name| integers(&of_guarded, name)[skipped_row]);
    let sample = format!("document-{rows}#{windows}");
    let explained = guarded.longsift(&["explain", "out.run", &sample, "--format", "json"]);
    let explained: Value = serde_json::from_str(&explained.success().stdout).unwrap();
    let notes = explained["notes"].to_string();
    assert!(notes.contains("the run did not measure: ") && !notes.contains("differ"), "{notes}");
    // Scores and summaries of a group are over the samples that pass.
    let group = |workspace: &Workspace| {
        read_json(&workspace.path("out.run/calibration.json"))["groups"][0].clone()
    };
    let (of_guarded, of_whole) = (group(&guarded), group(&whole));
    assert_eq!((&of_guarded["count"], &of_whole["count"]), (&json!(all - skipped), &json!(all)));
    let passed: Vec<f64> = other
        .iter()
        .zip(&copies)
        .filter(|(_, copied)| **copied <= strict)
        .map(|(own, _)| *own)
        .collect();
    let mean = of_guarded["figures"]["dependency_strength"]["mean"].as_f64().unwrap();
    assert!((mean - passed.iter().sum::<f64>() / passed.len() as f64).abs() < 1e-12, "{mean}");
    assert_ne!(
        of_guarded["figures"]["dependency_strength"],
        of_whole["figures"]["dependency_strength"]
    );
}

#[test]
fn a_changed_guard_measures_only_windows_that_newly_pass() {
    let (strict, loose) = bounds();
    let fresh = |guard: Option<f64>| {
        let workspace = workspace();
        let summary = workspace.run(&pipeline(guard));
        (on_devices(&summary), workspace.hashes(&OUTPUT), workspace.results())
    };
    let workspace = workspace();
    let first = on_devices(&workspace.run(&pipeline(Some(strict))));
    let (on_fresh, output, results) = fresh(Some(loose));
    let loosened = workspace.run(&pipeline(Some(loose)));
    assert!(on_devices(&loosened) > 0);
    assert_eq!(
        on_devices(&loosened),
        on_fresh - first,
        "windows that passed before are not measured again"
    );
    assert_eq!((workspace.hashes(&OUTPUT), workspace.results()), (output, results));
    let statistics = workspace.hashes(&["out.run/scores"]);
    let tightened = workspace.run(&pipeline(Some(strict)));
    assert_eq!((on_devices(&tightened), &tightened["windows_scored"]), (0, &json!(0)));
    assert_eq!(
        workspace.hashes(&["out.run/scores"]),
        statistics,
        "computed statistics are retained"
    );
    assert_eq!(
        workspace.hashes(&OUTPUT),
        fresh(Some(strict)).1,
        "retained statistics do not affect the output"
    );
    let (all, output, results) = fresh(None);
    let removed = workspace.run(&pipeline(None));
    assert_eq!(on_devices(&removed), all - on_fresh);
    assert_eq!((workspace.hashes(&OUTPUT), workspace.results()), (output, results));
    let added = workspace.run(&pipeline(Some(strict)));
    assert_eq!(on_devices(&added), 0, "a guard that is added measures nothing");
    assert_eq!(workspace.hashes(&OUTPUT), fresh(Some(strict)).1);
}

/// [`pipeline`] with other guards.
fn guarded(guards: &str) -> Pipeline {
    pipeline(None).filter(&format!("keep_fraction: 0.5, guards: [{guards}]"))
}

/// A bound within the unique token shares of windows whose copy share is at most `max`.
fn middle_of_unique_shares(max: f64) -> f64 {
    let workspace = workspace();
    workspace.run(&pipeline(None).measure("lexical"));
    let scores = scores(&workspace);
    let both = floats(&scores, "unique_token_share").into_iter().zip(floats(&scores, "copy_share"));
    let mut shares: Vec<f64> =
        both.filter(|(_, copied)| *copied <= max).map(|(share, _)| share).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    shares[shares.len() / 2]
}

#[test]
fn tightening_the_first_of_several_guards_loses_no_statistics() {
    let (strict, loose) = bounds();
    let min_share = middle_of_unique_shares(strict);
    let chained = |max: f64| {
        guarded(&format!(
            "{{statistic: copy_share, max: {max}, before: lexical}}, \
             {{statistic: unique_token_share, min: {min_share}, before: {ATTENTION}}}"
        ))
        .measure("lexical")
    };
    let workspace = workspace();
    let first = workspace.run(&chained(loose));
    let skipped = |measure: &str| count(&first["windows_not_measured"], measure);
    assert!(skipped("lexical") > 0 && skipped("lexical") < skipped(ATTENTION), "{first}");
    let statistics = workspace.hashes(&["out.run/scores"]);
    assert_eq!(rerun(&workspace, &chained(strict), &[]), (0, 0));
    assert_eq!(workspace.hashes(&["out.run/scores"]), statistics, "no score file was rewritten");
    assert_eq!(rerun(&workspace, &chained(loose), &[]), (0, 0));
}

#[test]
fn tightening_a_guard_and_adding_a_measure_loses_no_statistics() {
    let (strict, loose) = bounds();
    let workspace = workspace();
    let all = count(&workspace.run(&pipeline(Some(loose))), "windows_total");
    assert_eq!(rerun(&workspace, &pipeline(Some(strict)).measure("lexical"), &[]), (all, 0));
    assert_eq!(
        rerun(&workspace, &pipeline(Some(loose)).measure("lexical"), &[]),
        (0, 0),
        "and back"
    );
    assert_eq!(rerun(&workspace, &pipeline(Some(loose)), &[]), (0, 0));
}

#[test]
fn adding_a_guard_and_changing_a_measure_loses_no_statistics() {
    let (strict, _) = bounds();
    let changed = |guards: &str| {
        let mut changed = guarded(guards);
        changed.measures[0] = "recurrence, min_distance_tokens: 24".to_owned();
        changed
    };
    let workspace = workspace();
    let all = count(&workspace.run(&guarded("")), "windows_total");
    let guard = format!("{{statistic: copy_share, max: {strict}, before: {ATTENTION}}}");
    let again = ["--remeasure", "recurrence"];
    assert_eq!(rerun(&workspace, &changed(&guard), &again), (all, 0));
    assert_eq!(rerun(&workspace, &changed(""), &[]), (0, 0), "attention has measured all windows");
}

#[test]
fn statistics_survive_a_change_to_documents_and_back() {
    let (strict, _) = bounds();
    let (windows, documents) =
        (pipeline(Some(strict)), pipeline(Some(strict)).output("samples: documents"));
    let workspace = workspace();
    let first = on_devices(&workspace.run(&windows));
    let newly = rerun(&workspace, &documents, &[]).1;
    assert!(newly > 0, "documents pass although one of their windows did not");
    let all = on_devices(&self::workspace().run(&pipeline(None)));
    assert!(first + newly < all);
    assert_eq!(rerun(&workspace, &windows, &[]), (0, 0));
    assert_eq!(rerun(&workspace, &documents, &[]), (0, 0));
    let skipped = all - first - newly;
    assert_eq!(rerun(&workspace, &pipeline(None), &[]).1, skipped, "no window is measured twice");
}

#[test]
fn statistics_in_journals_survive_pipelines_without_their_measure() {
    let (strict, loose) = bounds();
    let workspace = workspace();
    let summary = workspace.run(&pipeline(Some(loose)));
    let (first, all) = (on_devices(&summary), count(&summary, "windows_total"));
    // A program that ends and cannot be started again leaves units open, with their statistics in journals.
    let fails = "external, name: own, command: [./child.sh, starts-once], version: \"1\", reads: ids, \
                 statistics: [{name: bytes, unit: bytes, doc: length}, \
                 {name: letters, kind: count, unit: letters, doc: letters}]";
    write_program(&workspace);
    workspace.write("pipeline.yaml", pipeline(Some(strict)).measure(fails).to_string());
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(4);
    assert!(!files_below(&workspace.path("out.run/journal")).is_empty(), "a unit is open");
    let ranked = "terms: [{statistic: unique_token_share}]";
    let without_model = Pipeline::tokens("", 128)
        .without_model(None)
        .input("unit_bytes: 1024")
        .measure("lexical")
        .score(ranked)
        .output("report: true");
    assert_eq!(rerun(&workspace, &without_model, &[]), (all, 0));
    assert_eq!(rerun(&workspace, &pipeline(Some(loose)), &[]), (0, 0));
    let whole = on_devices(&self::workspace().run(&pipeline(None)));
    assert_eq!(rerun(&workspace, &pipeline(None), &[]).1, whole - first);
}

#[test]
fn a_row_quarantined_by_a_measure_does_not_affect_its_unit() {
    let workspace = workspace();
    let mut strange = document(3, 256);
    strange[200] = 2_000_000_000;
    let columns = [
        ("id", strings((0..2).map(|row| format!("more-{row}")))),
        ("tokens", token_lists(&[document(20, 256), strange])),
    ];
    write_parquet(&workspace.path("input/b.parquet"), &table(&columns), 4);
    let both = pipeline(None).input("max_quarantined_fraction: 0.5");
    let summary = workspace.run(&both);
    assert_eq!(count(&summary, "quarantined"), 1, "{summary}");
    let ranked = "terms: [{statistic: unique_token_share}]";
    let without_model = Pipeline {
        input: both.input.clone(),
        ..Pipeline::tokens("", 128).without_model(None).measure("lexical").score(ranked)
    };
    assert_eq!(count(&workspace.run(&without_model), "quarantined"), 0);
    let back = workspace.run(&both);
    assert_eq!((count(&back, "quarantined"), on_devices(&back)), (1, 0), "{back}");
}

#[test]
fn a_guard_applies_to_documents_if_they_are_the_samples() {
    let (strict, _) = bounds();
    let workspace = workspace();
    let summary = workspace.run(&pipeline(Some(strict)).output("samples: documents"));
    let skipped = count(&summary["windows_not_measured"], ATTENTION);
    assert!(skipped > 0, "{summary}");
    assert_eq!(summary["windows_dropped"]["guard_copy_share"], skipped);
    let scores = scores(&workspace);
    let (rows, copies) =
        (crate::support::tables::integers(&scores, "input_row"), floats(&scores, "copy_share"));
    let strength = scores.column_by_name("dependency_strength").unwrap();
    for row in 0..copies.len() {
        let own = (0..copies.len()).filter(|other| rows[*other] == rows[row]);
        let of_document: Vec<f64> = own.map(|window| copies[window]).collect();
        let mean = of_document.iter().sum::<f64>() / of_document.len() as f64;
        assert_eq!(strength.is_null(row), mean > strict, "row {row}: {of_document:?}");
    }
}

#[test]
fn windows_skipped_by_a_measure_are_skipped_by_dependent_measures() {
    let (strict, _) = bounds();
    let workspace = workspace();
    let guards = format!(
        "keep_fraction: 0.5, guards: [{{statistic: copy_share, max: {strict}, before: lexical}}, \
         {{statistic: unique_token_share, min: 0, before: {ATTENTION}}}]"
    );
    let summary = workspace.run(&pipeline(None).measure("lexical").filter(&guards));
    let skipped = &summary["windows_not_measured"];
    assert!(count(skipped, "lexical") > 0, "{summary}");
    assert_eq!(skipped["lexical"], skipped[ATTENTION]);
    let scores = scores(&workspace);
    for statistic in ["unique_token_share", "dependency_strength"] {
        let column = scores.column_by_name(statistic).unwrap();
        assert_eq!(column.null_count() as u64, count(skipped, "lexical"), "{statistic}");
    }
}

#[test]
fn a_selection_names_missing_statistics_after_a_guard_is_loosened() {
    let (strict, loose) = bounds();
    let workspace = workspace();
    let summary = workspace.run(&pipeline(Some(strict)));
    let skipped = count(&summary["windows_not_measured"], ATTENTION);
    workspace.write("pipeline.yaml", pipeline(Some(loose)).measure("lexical").to_string());
    let select = ["run", "pipeline.yaml", "-q", "--phase", "select"];
    let refused = workspace.longsift(&select).expect(4).stderr;
    assert!(
        refused.contains("work units in") && refused.contains("lack statistics of a measure"),
        "{refused}"
    );
    let missing_attention = format!("`{ATTENTION}` is missing for up to {skipped} windows");
    let missing_lexical =
        format!("`lexical` is missing for up to {} windows", count(&summary, "windows_total"));
    assert!(
        refused.contains(&missing_attention) && refused.contains(&missing_lexical),
        "{refused}"
    );
    assert!(refused.contains("score them first: `--phase score --shard i/n`"), "{refused}");
}

#[test]
fn a_plan_lists_measures_in_the_order_of_the_pipeline() {
    let workspace = workspace();
    let text = pipeline(None).to_string();
    let attention = "  - {stage: first-layer-attention}\n";
    assert!(text.contains(attention), "{text}");
    let moved = text
        .replace(attention, "")
        .replace("  - {stage: score", &format!("{attention}  - {{stage: score"));
    workspace.write("pipeline.yaml", moved);
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    let line =
        |name: &str| answer.stdout.lines().position(|line| line.trim_start().starts_with(name));
    let order = ["tokenize", "shard-across-devices", "recurrence", ATTENTION, "score"].map(line);
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{}", answer.stdout);
}

#[test]
fn a_plan_shows_the_order_of_measures_which_changes_no_score() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline(Some(0.4)).to_string());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    let line = answer.stdout.lines().find(|line| line.contains(ATTENTION)).unwrap();
    assert!(line.ends_with(", only for windows with copy_share at most 0.4"), "{line}");
    // Scales are those of the samples that pass in either case.
    let (bound, _) = bounds();
    let scored = |guarded: &Pipeline| {
        workspace.run(guarded);
        let data = read_parquet(&workspace.path("out/data"));
        (texts(&data, "id"), floats(&data, "longsift_score"))
    };
    let early = pipeline(Some(bound));
    let late = Pipeline {
        filter: early.filter.replace(&format!(", before: {ATTENTION}"), ""),
        ..early.clone()
    };
    assert_ne!(early.filter, late.filter);
    assert_eq!(scored(&early), scored(&late));
    let refused = |guards: &str, why: &str| {
        let guards = format!("keep_fraction: 0.5, guards: [{guards}]");
        let pipeline = pipeline(None).measure("lexical").filter(&guards);
        fs::write(workspace.path("pipeline.yaml"), pipeline.to_string()).unwrap();
        let answer = workspace.longsift(&["plan", "pipeline.yaml", "-q"]).expect(2);
        assert!(answer.stderr.contains(why), "{why}: {}", answer.stderr);
    };
    refused(
        "{statistic: dependency_strength, min: 0.1, before: recurrence}",
        "`before` is not possible for a guard on `dependency_strength`, which is measured on devices",
    );
    refused(
        "{statistic: copy_share, max: 0.1, before: lexical}, {statistic: unique_token_share, min: 0.1, before: recurrence}",
        "the guards form a cycle",
    );
    refused(
        &format!("{{statistic: copy_share, max_quantile: 0.5, before: {ATTENTION}}}"),
        "a quantile cannot be applied before",
    );
    refused("{statistic: copy_share, max: 0.5, before: attention}", "no measure `attention`");
}
