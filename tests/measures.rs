//! Several measures in one pipeline: the columns of each, and what a run measures when one is added, removed or
//! changed.

use std::fs;

use arrow_array::Array;
use serde_json::Value;

use crate::support::tables::{floats, read_parquet, read_scores, strings, table, write_parquet};
use crate::support::{Pipeline, Workspace, count, demo_model};

const ATTENTION: &str = "first-layer-attention";

/// Two files of three documents.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    for (file, first) in [("a", 0), ("b", 3)] {
        let documents = first..first + 3;
        let columns = [
            ("id", strings(documents.clone().map(|document| format!("document-{document}")))),
            ("text", strings(documents.map(|document| text(document, 80 + 40 * document)))),
        ];
        write_parquet(&workspace.path(&format!("input/{file}.parquet")), &table(&columns), 3);
    }
    workspace
}

fn text(seed: usize, words: usize) -> String {
    const WORDS: [&str; 9] =
        ["the", "river", "house", "before", "answer", "garden", "morning", "letter", "old"];
    let word = |index: usize| WORDS[(index * index + 5 * seed + index / 7) % WORDS.len()];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

fn pipeline(measures: &[&str]) -> String {
    let measures: Vec<String> =
        measures.iter().map(|measure| format!("  - {{stage: {measure}}}\n")).collect();
    format!(
        "version: 1\nname: test\ninput: {{path: input, id_column: id, text_column: text}}\nstages:\n  \
         - {{stage: load-partial-model, model: model}}\n  - {{stage: tokenize, window_tokens: 48, bos: 1}}\n{}  \
         - {{stage: score}}\n  - {{stage: filter, keep_fraction: 0.5}}\noutput: {{path: out}}\n",
        measures.concat()
    )
}

fn run(workspace: &Workspace, measures: &[&str], arguments: &[&str]) -> Value {
    workspace.write("pipeline.yaml", pipeline(measures));
    let arguments = [&["run", "pipeline.yaml", "-q"], arguments].concat();
    workspace.longsift(&arguments).success().summary()
}

/// Windows that a device measured.
fn on_devices(summary: &Value) -> u64 {
    let devices = summary["devices"]["list"].as_array().into_iter().flatten();
    devices.map(|device| device["pieces"].as_u64().unwrap()).sum()
}

#[test]
fn scores_of_another_run_must_have_every_measure() {
    let workspace = workspace();
    run(&workspace, &[ATTENTION], &[]);
    let wider = pipeline(&[ATTENTION, "lexical"]).replace("path: out", "path: wider");
    workspace.write("wider.yaml", wider);
    let arguments = ["run", "wider.yaml", "-q", "--scores-from", "out.run"];
    let refused = workspace.longsift(&arguments).expect(2);
    let expected = "out.run` did not measure `lexical`";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    run(&workspace, &[ATTENTION, "lexical"], &[]);
    workspace.longsift(&arguments).success();
}

#[test]
fn other_measures_do_not_change_attention() {
    let attention_only = workspace();
    run(&attention_only, &[ATTENTION], &[]);
    let several = workspace();
    let measures = [
        "recurrence",
        ATTENTION,
        "recurrence, name: near, min_distance_tokens: 3",
        "compression, scope: document",
        "lexical",
    ];
    let summary = run(&several, &measures, &[]);
    let (one, other) =
        (read_scores(&attention_only.path("out.run")), read_scores(&several.path("out.run")));
    for column in ["dependency_strength", "far_variance"] {
        let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(floats(&other, column)), bits(floats(&one, column)), "{column}");
    }
    // The output has the columns of all measures, and the same windows.
    let [one, kept] =
        [&attention_only, &several].map(|workspace| read_parquet(&workspace.path("out/data")));
    for field in one.schema().fields() {
        let name = field.name();
        assert_eq!(kept.column_by_name(name), one.column_by_name(name), "{name}");
    }
    let added = ["far_recurrence", "near_copy_share", "gzip_ratio", "unique_token_share"];
    for name in added.map(|name| format!("longsift_{name}")) {
        assert!(kept.column_by_name(&name).is_some() && one.column_by_name(&name).is_none());
    }
    let absent = ["recurrence_distance", "recurrence_histogram", "dependency_strength_se"];
    for name in absent.map(|name| format!("longsift_{name}")) {
        assert_eq!(kept.column_by_name(&name), None, "a count, a list or an error: {name}");
    }
    let schema = other.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let index = |name: &str| names.iter().position(|known| *known == name).expect(name);
    let order = [
        "content_hash",
        "far_recurrence",
        "dependency_strength",
        "near_far_recurrence",
        "gzip_ratio",
        "unique_token_share",
    ];
    assert!(order.map(index).is_sorted(), "{names:?}");
    let field = schema.field_with_name("near_far_recurrence").unwrap();
    assert_eq!(field.metadata()["measure"], "near");
    assert!(field.metadata()["doc"].contains("copied passages excluded"));
    let ratio = floats(&other, "gzip_ratio");
    assert!(ratio.iter().all(|ratio| *ratio > 0.0 && *ratio < 1.0), "{ratio:?}");
    // Statistics of the document are the same in all of its windows.
    let ids = other.column_by_name("id").unwrap();
    for row in 1..ratio.len() {
        if ids.slice(row, 1) == ids.slice(row - 1, 1) {
            assert_eq!(ratio[row].to_bits(), ratio[row - 1].to_bits());
        }
    }
    assert_eq!(summary["windows_scored"], summary["windows_total"]);
}

#[test]
fn adding_a_measure_measures_only_it_and_removing_one_nothing() {
    let workspace = workspace();
    let first = run(&workspace, &[ATTENTION], &[]);
    assert!(on_devices(&first) > 0);
    let both = [ATTENTION, "recurrence"];
    let added = run(&workspace, &both, &[]);
    assert_eq!(on_devices(&added), 0, "attention is not measured again");
    assert_eq!(added["windows_scored"], first["windows_scored"], "each window has new statistics");
    let fresh = self::workspace();
    run(&fresh, &both, &[]);
    assert_eq!(workspace.results(), fresh.results());
    let scores = workspace.hashes(&["out.run/scores"]);
    let removed = run(&workspace, &[ATTENTION], &[]);
    assert_eq!((on_devices(&removed), &removed["windows_scored"]), (0, &0.into()));
    assert_eq!(workspace.hashes(&["out.run/scores"]), scores, "computed statistics are retained");
    let again = run(&workspace, &both, &[]);
    assert_eq!(again["windows_scored"], 0);
}

#[test]
fn statistics_of_a_removed_measure_survive_added_measures() {
    let workspace = workspace();
    run(&workspace, &[ATTENTION, "recurrence"], &[]);
    let bits = |workspace: &Workspace, statistic: &str| -> Vec<u64> {
        let scores = read_scores(&workspace.path("out.run"));
        floats(&scores, statistic).into_iter().map(f64::to_bits).collect()
    };
    let before = bits(&workspace, "link_coverage");
    let other = run(&workspace, &[ATTENTION, "lexical"], &[]);
    assert!(count(&other, "windows_scored") > 0);
    run(&workspace, &["compression", ATTENTION], &[]);
    assert_eq!(
        bits(&workspace, "link_coverage"),
        before,
        "statistics of a removed measure are retained"
    );
    assert!(!bits(&workspace, "unique_token_share").is_empty());
    let fresh = self::workspace();
    run(&fresh, &["compression", ATTENTION], &[]);
    let output = ["out/data", "out.run/dropped"];
    assert_eq!(
        workspace.hashes(&output),
        fresh.hashes(&output),
        "retained statistics do not affect the output"
    );
    let all = [ATTENTION, "recurrence", "lexical", "compression"];
    let back = run(&workspace, &all, &[]);
    assert_eq!((on_devices(&back), &back["windows_scored"]), (0, &0.into()));
    assert_eq!(back["status"], "done", "the output has other columns");
    let fresh = self::workspace();
    run(&fresh, &all, &[]);
    assert_eq!(workspace.hashes(&output), fresh.hashes(&output));
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn attention_survives_a_pipeline_without_a_model() {
    let workspace = workspace();
    let with_model = Pipeline::text("model", 48).measure("recurrence");
    let first = workspace.run(&with_model);
    assert!(on_devices(&first) > 0);
    let without_model = Pipeline::text("", 48).without_model(Some("model")).measure("lexical");
    let ranked = "terms: [{statistic: unique_token_share, weight: -1}]";
    assert!(count(&workspace.run(&without_model.score(ranked)), "windows_scored") > 0);
    let back = workspace.run(&with_model);
    assert_eq!((on_devices(&back), &back["windows_scored"]), (0, &0.into()));
}

#[test]
fn a_changed_measure_is_rejected_until_measured_again() {
    let workspace = workspace();
    run(&workspace, &[ATTENTION, "recurrence"], &[]);
    let before = workspace.results();
    let changed = [ATTENTION, "recurrence, min_distance_tokens: 3"];
    workspace.write("pipeline.yaml", pipeline(&changed));
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
    assert!(answer.stderr.contains("note: recurrence: min_distance: "), "{}", answer.stderr);
    assert!(answer.stderr.contains("--remeasure recurrence"), "{}", answer.stderr);
    let unknown = ["run", "pipeline.yaml", "-q", "--remeasure", "recurence"];
    let answer = workspace.longsift(&unknown).expect(2);
    assert!(answer.stderr.contains("no measure `recurence`"), "{}", answer.stderr);
    assert_eq!(workspace.results(), before);
    let summary = run(&workspace, &changed, &["--remeasure", "recurrence"]);
    assert_eq!(on_devices(&summary), 0, "attention is not measured again");
    let fresh = self::workspace();
    run(&fresh, &changed, &[]);
    assert_eq!(workspace.results(), fresh.results());
}

#[test]
fn invalid_measures_are_rejected_at_their_position() {
    let workspace = workspace();
    let refused = |measures: &[&str], why: &str| {
        workspace.write("pipeline.yaml", pipeline(measures));
        let answer = workspace.longsift(&["plan", "pipeline.yaml", "-q"]).expect(2);
        assert!(answer.stderr.contains(why), "{why}: {}", answer.stderr);
    };
    refused(&[ATTENTION, "recurrence", "recurrence"], "stage `recurrence` is listed twice");
    refused(
        &[ATTENTION, "recurrence", "compression, name: recurrence"],
        "two measures or statistics are named `recurrence`",
    );
    refused(
        &[ATTENTION, "recurrence, min_distance_tokens: 48"],
        "`recurrence` requires windows of 49 tokens, but they have at most 48",
    );
    let late = pipeline(&[ATTENTION])
        .replace("  - {stage: filter", "  - {stage: lexical}\n  - {stage: filter");
    workspace.write("pipeline.yaml", late);
    let answer = workspace.longsift(&["validate", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("stage `lexical` comes too late"), "{}", answer.stderr);
    let tokens =
        pipeline(&[ATTENTION, "compression"]).replace("text_column: text", "tokens_column: text");
    fs::write(workspace.path("pipeline.yaml"), tokens).unwrap();
    let answer = workspace.longsift(&["plan", "pipeline.yaml", "-q"]).expect(2);
    assert!(answer.stderr.contains("`compression` measures text"), "{}", answer.stderr);
}
