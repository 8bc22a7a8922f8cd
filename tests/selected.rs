//! `selection/`: the decision for every sample, and its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use arrow_array::cast::AsArray;
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;

use crate::support::tables::{floats, integers, optional_texts, read_parquet, read_scores, texts};
use crate::support::{Pipeline, Workspace, count};

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64)
        .input("unit_bytes: 1024")
        .measure("recurrence")
        .score("within: group")
        .filter("keep_fraction: 0.2, guards: [{statistic: copy_share, max: 0.5}]")
}

/// The tables of a selection, in input order.
fn read_selection(workspace: &Workspace) -> RecordBatch {
    let selection = read_parquet(&workspace.path("out.run/selection"));
    let (files, rows) = (texts(&selection, "input_file"), integers(&selection, "input_row"));
    let windows = integers(&selection, "window");
    let mut order: Vec<u32> = (0..selection.num_rows() as u32).collect();
    order.sort_by_key(|row| {
        let row = *row as usize;
        (&files[row], rows[row], windows[row])
    });
    take_record_batch(&selection, &UInt32Array::from(order)).unwrap()
}

#[test]
fn every_sample_has_its_decision() {
    let workspace = Workspace::with_three_groups();
    let summary = workspace.run(&pipeline());
    let selection = read_selection(&workspace);
    assert_eq!(selection.num_rows() as u64, count(&summary, "windows_total"));
    let scores = read_scores(&workspace.path("out.run"));
    assert_eq!(texts(&selection, "id"), texts(&scores, "id"));
    for used in ["dependency_strength", "far_variance", "copy_share"] {
        assert_eq!(floats(&selection, used), floats(&scores, used), "{used}");
    }
    assert!(selection.column_by_name("far_recurrence").is_none(), "neither a term nor a guard");

    let kept = selection.column_by_name("kept").unwrap().as_boolean().clone();
    let reasons = optional_texts(&selection, "reason");
    let score = floats(&selection, "score");
    let output = read_parquet(&workspace.path("out/data"));
    let kept_scores: Vec<f64> =
        (0..score.len()).filter(|row| kept.value(*row)).map(|row| score[row]).collect();
    assert_eq!(kept_scores, floats(&output, "longsift_score"));
    let mut by_reason: BTreeMap<String, u64> = BTreeMap::new();
    for reason in reasons.iter().flatten() {
        *by_reason.entry(reason.clone()).or_default() += 1;
    }
    let counted = serde_json::to_value(&by_reason).unwrap();
    assert_eq!(counted, summary["windows_dropped"]);
    assert!(by_reason["guard_copy_share"] > 0 && by_reason["not_selected"] > 0);

    // A percentile is the share of the group's scores below, and half of the equal ones, among samples that pass;
    // 65,536 bins separate the others.
    let passes = |row: &usize| reasons[*row].as_deref() != Some("guard_copy_share");
    let groups = optional_texts(&selection, "group");
    let percentiles = floats(&selection, "percentile");
    let percentile = selection.column_by_name("percentile").unwrap();
    for row in 0..score.len() {
        assert_eq!(percentile.is_valid(row), passes(&row));
    }
    for row in (0..score.len()).filter(passes) {
        let (mut below, mut equal, mut all) = (0.0, 0.0, 0.0);
        let others = (0..score.len()).filter(passes);
        for other in others.filter(|other| groups[*other] == groups[row]) {
            all += 1.0;
            below += f64::from(score[other] < score[row]);
            equal += f64::from(score[other].to_bits() == score[row].to_bits());
        }
        let exact = (below + equal / 2.0) / all;
        assert!((percentiles[row] - exact).abs() <= 1.0 / all, "{} {exact}", percentiles[row]);
    }
    let named: Vec<&str> = groups.iter().flatten().map(String::as_str).collect();
    assert!(named.contains(&"books") && named.contains(&"code") && named.len() < groups.len());

    // The calibration of this selection gives the same decision for every sample.
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let before = workspace.hashes(&["out.run/selection"]);
    workspace.run(&pipeline().score("calibration: saved.json"));
    assert_eq!(workspace.hashes(&["out.run/selection"]), before);
    workspace.longsift(&["verify", "out.run"]).success();

    // Another selection replaces it, and a damaged table is detected.
    workspace.run(&pipeline().filter("keep_fraction: 0.3"));
    let now = read_parquet(&workspace.path("out.run/selection"));
    assert!(now.column_by_name("copy_share").is_none());
    let (path, _) = workspace.hashes(&["out.run/selection"]).pop_first().unwrap();
    fs::write(workspace.path(&path), "not a table").unwrap();
    let answer = workspace.longsift(&["verify", "out.run"]).expect(3);
    assert!(answer.stdout.contains("selection/part-"), "{}", answer.stdout);
}

#[test]
fn a_statistic_of_two_terms_has_two_columns_of_different_names() {
    let workspace = Workspace::with_three_groups();
    let twice = "{statistic: far_recurrence}, \
                 {statistic: far_recurrence, standardise: percentile, weight: -1}";
    workspace.run(&pipeline().score(&format!("combine: least, terms: [{twice}]")));
    let selection = read_selection(&workspace);
    let schema = selection.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let different: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(different.len(), names.len(), "{names:?}");
    assert_eq!(floats(&selection, "far_recurrence"), floats(&selection, "far_recurrence (2)"));
    workspace.longsift(&["report", "out.run"]).success();
    let whatif = ["whatif", "out.run", "--set", "stages.filter.keep_fraction=0.3"];
    workspace.longsift(&whatif).success();
}

#[test]
fn an_impossible_comparison_is_rejected() {
    let workspace = Workspace::with_three_groups();
    let refused = |pipeline: &Pipeline, what: &str| {
        workspace.write("pipeline.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
        assert!(answer.stderr.contains(what), "{}", answer.stderr);
    };
    let by_group = pipeline().output("report_by: group");
    refused(
        &pipeline().output("compare: [longattn]"),
        "`output.compare` requires `output.report_by`",
    );
    let calibrated = by_group.clone().output("compare: [longattn]");
    refused(&calibrated.score("calibration: saved.json"), "a calibration has no thresholds");
    let cascade = "keep_fraction: 0.2, guards: [{statistic: copy_share, max: 0.5, before: first-layer-attention}]";
    let spared = by_group.clone().output("compare: [far-recurrence, longattn]").filter(cascade);
    refused(
        &spared,
        "`longattn` requires `dependency_strength`, which is not measured for windows",
    );
    let mut unmeasured = by_group.output("compare: [far-recurrence]").filter("keep_fraction: 0.2");
    unmeasured.measures.clear();
    refused(&unmeasured, "no measure of the pipeline computes the statistic `far_recurrence`");
}

#[test]
fn impossible_selections_are_rejected_at_their_setting() {
    let workspace = Workspace::with_three_groups();
    let terms =
        "{statistic: copy_shares}, {statistic: recurrence_histogram}, {statistic: gzip_ratio}";
    let guards = "{statistic: copy_share, min: 0.5, max: 0.4}, {statistic: far_variance, min_quantile: 0.9, max_quantile: 0.1}, \
                  {statistic: nothing, max: 1}";
    let pipeline = pipeline()
        .score(&format!("terms: [{terms}], alpha: 2"))
        .filter(&format!("keep_fraction: 0.5, guards: [{guards}]"));
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));

    let weightless =
        "terms: [{statistic: copy_share, weight: 0}, {statistic: far_variance, weight: 0}]";
    let pipeline = Pipeline::tokens("model", 64).measure("recurrence").score(weightless);
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("all weights are 0"), "{}", answer.stderr);
    let quantile =
        pipeline.filter("keep_fraction: 1, guards: [{statistic: copy_share, max_quantile: 1.5}]");
    workspace.write("pipeline.yaml", quantile.to_string());
    let answer = workspace.longsift(&["validate", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("above its maximum 1"), "{}", answer.stderr);
}
