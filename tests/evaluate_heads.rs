//! `longsift evaluate` of a whole model: its statistics, and with `--heads` each of its heads.

use serde_json::{Value, json};

use crate::evaluate::{evaluated, pipeline, small_workspace};

const ONLY: [&str; 6] = [
    "--windows",
    "128",
    "--only",
    "pieces_2,pieces_8,far_permute",
    "--documents-per-category",
    "9",
];

fn measures(layers: &str) -> String {
    format!(
        "  - {{stage: tokenize, tokenizer: model, window_tokens: 128}}\n  - {{stage: recurrence, min_distance_tokens: 16}}\n  \
         - {{stage: language-model, model: model, short_context_tokens: 32{layers}}}\n"
    )
}

fn language_model(layers: &str, guard: &str) -> String {
    let filter = format!("keep_fraction: 0.2{guard}");
    pipeline(&measures(layers), "terms: [{statistic: long_gain}]", &filter)
}

const LAYERS: &str = ", attention_layers: [1, {layer: 0, heads: [2]}]";
const GUARD: &str = ", guards: [{statistic: copy_share, max: 0.4, before: language-model}]";

fn value(values: &Value, kind: &str) -> Value {
    let of_ladder = &values["ladder"][kind];
    if of_ladder.is_null() { values["paired"][kind].clone() } else { of_ladder.clone() }
}

#[test]
fn heads_match_statistics_of_single_heads() {
    let workspace = small_workspace();
    let got =
        evaluated(&workspace, &language_model(LAYERS, ""), &[&ONLY[..], &["--heads"]].concat());
    let got = &got["S128"];
    assert_eq!(got["heads"][0]["measure"], "language-model");
    let heads = got["heads"][0]["heads"].as_array().unwrap();
    let indices: Vec<(u64, u64)> = heads
        .iter()
        .map(|head| (head["layer"].as_u64().unwrap(), head["head"].as_u64().unwrap()))
        .collect();
    assert_eq!(indices, [(0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]);
    let separate = &got["reports"]["dependency_strength_layer_0_heads_2"];
    for kind in ["pieces_2", "pieces_8", "far_permute"] {
        assert!(heads[0][kind][0].is_number(), "{kind}: {}", heads[0]);
        assert_eq!(heads[0][kind], value(separate, kind), "{kind}");
        assert!(heads.iter().any(|head| head[kind] != heads[0][kind]), "{kind}");
    }
    // The same head, requested in another way.
    let single = language_model(", attention_layers: [{layer: 1, heads: [3]}]", "");
    let single = evaluated(&workspace, &single, &[&ONLY[..], &["--out", "single"]].concat());
    let single = &single["S128"];
    let report = &single["reports"]["dependency_strength_layer_1_heads_3"];
    assert_eq!(heads[4]["pieces_8"], value(report, "pieces_8"));
    assert_eq!(single.get("heads"), None, "only with `--heads`");
}

#[test]
fn a_guard_before_the_model_changes_no_result() {
    let workspace = small_workspace();
    let free = evaluated(&workspace, &language_model(LAYERS, ""), &ONLY);
    let guarded = evaluated(&workspace, &language_model(LAYERS, GUARD), &ONLY);
    for name in
        ["long_gain", "longfilter", "dependency_strength_layer_1", "mean_loss_negated", "score"]
    {
        let report = &free["S128"]["reports"][name];
        for kind in ["pieces_2", "pieces_8", "far_permute"] {
            assert!(value(report, kind)[0].is_number(), "{name}, {kind}: {report}");
        }
        assert_eq!(guarded["S128"]["reports"][name], *report, "{name}");
    }
    // The score ranks by the gain.
    let gain = &free["S128"]["reports"]["long_gain"];
    assert_eq!(free["S128"]["reports"]["score"]["paired"], gain["paired"]);
}

#[test]
fn heads_are_shown_as_tables_and_a_map() {
    let workspace = small_workspace();
    workspace.write("pipeline.yaml", language_model(LAYERS, ""));
    let arguments = ["evaluate", "pipeline.yaml", "-q", "--heads", "--html", "page.html"];
    let text = workspace.longsift(&[&arguments[..], &ONLY].concat()).success().stdout;
    let title = "Heads of language-model: AUROC of whole windows against windows of eight pieces";
    let mut lines = text.lines().skip_while(|line| *line != title).skip(1);
    let header: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["0", "1", "2", "3"]);
    let first: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!((&first[..4], first[5]), (&["layer", "0", "–", "–"][..], "–"), "{first:?}");
    assert!(lines.next().unwrap().trim_start().starts_with("layer 1"));
    assert!(text.contains("Heads of language-model that separate joined windows best"));
    let page = std::fs::read_to_string(workspace.path("page.html")).unwrap();
    assert!(page.contains("<h2 id=\"heads128\">") && page.contains("layer 1, 3: "));
    workspace.write("pipeline.yaml", language_model("", ""));
    let refused = workspace.longsift(&["evaluate", "pipeline.yaml", "--heads"]).expect(2).stderr;
    assert!(refused.contains("no measure of the pipeline reports heads"), "{refused}");
    let found = workspace
        .longsift(&[&["evaluate", "pipeline.yaml", "-q", "--format", "json"], &ONLY[..]].concat());
    let found: Value = serde_json::from_str(&found.success().stdout).unwrap();
    assert_eq!(found["S128"]["documents"], json!({ "a": 9, "b": 3 }));
}
