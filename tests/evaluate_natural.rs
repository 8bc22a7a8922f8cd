//! The named selection keeps the same natural documents, and windows built of them, as the reference.

use serde_json::Value;

use crate::evaluate::{corpora, evaluated};
use crate::support::{Workspace, shared};

/// The guards of the starter.
const GUARDS: &str = "guards: [{statistic: repeated_share, max: 0.7}, {statistic: digit_share, max: 0.2}, \
                      {statistic: unbroken_share, max: 0.3}], ";

fn pipeline(input: &str, within: &str) -> String {
    format!(
        "version: 1\nname: natural\ninput: {input}\nstages:\n  \
         - {{stage: tokenize, tokenizer: model, window_tokens: 2048}}\n  - {{stage: recurrence}}\n  - {{stage: lexical}}\n  \
         - {{stage: score, {within}formula: balanced-recurrence}}\n  - {{stage: filter, {GUARDS}keep_fraction: 0.25}}\n\
         output: {{path: out}}\n"
    )
}

/// The natural documents with a tokenizer.
fn natural(tokenizer: &str) -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &shared(tokenizer));
    std::fs::create_dir_all(workspace.path("input")).unwrap();
    workspace.link("input/natural.parquet", &shared("corpora/natural.parquet"));
    workspace
}

const LABELS: [&str; 7] = ["--labels", "kind", "--good", "books", "papers", "code", "docs"];

/// The real share of the kept quarter by a score, with the guards.
fn kept_quarter(report: &Value, score: &str) -> f64 {
    let kept = &report["reports"][score]["guarded"][1];
    assert_eq!(kept["fraction"], serde_json::json!(0.25));
    kept["real_share"][0].as_f64().unwrap()
}

fn close(got: f64, expected: f64, within: f64, what: &str) {
    println!("{what}: {got:.3}, expected {expected:.3}");
    assert!((got - expected).abs() <= within, "{what}: {got:.4}, expected {expected:.3}");
}

#[test]
#[ignore = "takes minutes: .ci/nightly runs it"]
fn the_named_selection_keeps_as_much_real_text_as_the_reference() {
    for (tokenizer, within, expected) in [
        ("models/mini", "", [0.906, 0.962]),
        ("models/mini", "within: source, ", [0.867, 0.877]),
        ("tokenizers/qwen2.5", "", [0.902, 0.947]),
        ("tokenizers/qwen2.5", "within: source, ", [0.843, 0.868]),
    ] {
        let workspace = natural(tokenizer);
        let yaml = pipeline("{path: input, id_column: id, text_column: text}", within);
        let more = ["--documents-per-category", "100", "--windows", "2048,8192"];
        let got = evaluated(&workspace, &yaml, &[&LABELS[..], &more].concat());
        for (length, expected) in ["S2048", "S8192"].into_iter().zip(expected) {
            let kept = kept_quarter(&got["labels"][length], "score");
            close(kept, expected, 0.015, &format!("{tokenizer}, {within}{length}"));
        }
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn the_named_selection_beats_chance() {
    let workspace = natural("models/mini");
    let yaml = pipeline("{path: input, id_column: id, text_column: text}", "");
    let more = ["--documents-per-category", "6", "--windows", "2048"];
    let got = evaluated(&workspace, &yaml, &[&LABELS[..], &more].concat());
    let report = &got["labels"]["S2048"];
    let (score, random) = (kept_quarter(report, "score"), kept_quarter(report, "random"));
    assert!(score > 0.85, "{score}");
    assert!((0.35..0.65).contains(&random), "{random}");
}

/// Checks pieces of 2, 4 and 8, the guarded top fifth, and the jittered one.
fn check_constructed(lengths: &str, expected: &[(&str, [f64; 3], f64, f64)]) {
    let workspace = corpora();
    let input = "{path: input, id_column: id, text_column: text}";
    let yaml = pipeline(input, "within: category, ");
    let got = evaluated(&workspace, &yaml, &["--windows", lengths]);
    for (length, pieces, top, jittered) in expected {
        let report = &got[length]["reports"]["score"];
        for (kind, expected) in ["pieces_2", "pieces_4", "pieces_8"].into_iter().zip(pieces) {
            let value = report["ladder"][kind][0].as_f64().unwrap();
            close(value, *expected, 0.01, &format!("{length}, {kind}"));
        }
        for (pool, expected) in
            [("top_fifth_real_share", top), ("top_fifth_jittered_real_share", jittered)]
        {
            let value = report[pool]["guarded"][0].as_f64().unwrap();
            close(value, *expected, 0.01, &format!("{length}, {pool}"));
        }
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn the_named_selection_ranks_constructed_windows_like_the_reference() {
    check_constructed("2048", &[("S2048", [0.686, 0.869, 0.899], 0.68, 0.57)]);
}

#[test]
#[ignore = "takes minutes: .ci/nightly runs it"]
fn the_named_selection_ranks_long_constructed_windows_like_the_reference() {
    check_constructed("8192", &[("S8192", [0.790, 0.913, 0.906], 0.60, 0.56)]);
}
