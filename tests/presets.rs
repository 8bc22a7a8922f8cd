//! The balanced presets: their components, missing requirements of a pipeline, and windows without one of the
//! statistics.

use std::fs;

use arrow_array::Array;
use serde_json::json;

use crate::support::tables::{corpus, read_scores, strings, table, write_parquet};
use crate::support::{Pipeline, Workspace, demo_model, read_json};

const GUARDS: &str = "{statistic: repeated_share, max: 0.7}, {statistic: digit_share, max: 0.2}, \
                      {statistic: unbroken_share, max: 0.3}";

/// Texts and token ids of the same documents, and a tokenizer.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("tokenizer")).unwrap();
    let json = demo_model().join("tokenizer.json");
    fs::copy(json, workspace.path("tokenizer/tokenizer.json")).unwrap();
    let text = |row: usize| {
        let word = |at: usize| ["river ", "stone ", "never ", "under "][(at * at + row) % 4];
        (0..150 + 60 * row).map(word).collect::<String>()
    };
    let texts = table(&[
        ("id", strings((0..6).map(|row| row.to_string()))),
        ("text", strings((0..6).map(text))),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &texts, 3);
    write_parquet(&workspace.path("tokens/a.parquet"), &corpus("a", &[300, 700, 100, 450]), 2);
    workspace
}

fn on_text(window_tokens: usize) -> Pipeline {
    Pipeline::text("", window_tokens)
        .without_model(Some("tokenizer"))
        .measure("recurrence")
        .score("formula: balanced-recurrence")
}

fn on_tokens(window_tokens: usize) -> Pipeline {
    let pipeline = Pipeline::tokens("", window_tokens);
    let input = pipeline.input.replace("path: input", "path: tokens");
    Pipeline { input, ..pipeline }.without_model(None).measure("recurrence")
}

fn plan(workspace: &Workspace, pipeline: &Pipeline) -> (String, String) {
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    (answer.stdout, answer.stderr)
}

#[test]
fn a_plan_lists_the_components_of_a_preset_by_measure() {
    let workspace = workspace();
    let filter = format!("keep_fraction: 0.5, guards: [{GUARDS}]");
    let (stdout, stderr) = plan(&workspace, &on_text(1024).measure("lexical").filter(&filter));
    assert!(!stderr.contains("balanced-recurrence"), "{stderr}");
    let of_recurrence = "from `recurrence`: far_recurrence, link_coverage, near_recurrence + 0.3, \
                         midrange_share + 0.1 (left out if null), 1.05 - periodic_share, 1.1 - repeated_share\n";
    assert!(stdout.contains(of_recurrence), "{stdout}");
    assert!(stdout.contains("from `lexical`: 1.2 - digit_share\n"), "{stdout}");
    let (stdout, _) = plan(&workspace, &on_text(1024).measure("lexical, text: false"));
    assert!(!stdout.contains("digit_share"), "{stdout}");
}

#[test]
fn an_incomplete_pipeline_gets_its_missing_stages_as_yaml() {
    let workspace = workspace();
    let old =
        on_text(1024).filter("keep_fraction: 0.5, guards: [{statistic: copy_share, max: 0.4}]");
    let (_, stderr) = plan(&workspace, &old);
    for line in [
        "warning: `balanced-recurrence` works best with settings that this pipeline lacks: `lexical` on text; \
         guards on `repeated_share`, `digit_share`, `unbroken_share`\n",
        "  - stage: lexical",
        "      - {statistic: repeated_share, max: 0.7}",
        "      - {statistic: digit_share, max: 0.2}",
        "      - {statistic: unbroken_share, max: 0.3}",
    ] {
        assert!(stderr.contains(line), "{line}: {stderr}");
    }
    let one = "keep_fraction: 0.5, guards: [{statistic: repeated_share, max: 0.6}]";
    let (_, stderr) = plan(&workspace, &on_text(1024).measure("lexical").filter(one));
    assert!(stderr.contains("{statistic: digit_share, max: 0.2}"), "{stderr}");
    assert!(
        !stderr.contains("- stage: lexical") && !stderr.contains("repeated_share, max: 0.7"),
        "{stderr}"
    );
    // Token ids have no guards on text.
    let tokens = on_tokens(64).score("formula: balanced-recurrence").filter(one);
    let (_, stderr) = plan(&workspace, &tokens);
    assert!(!stderr.contains("works best with"), "{stderr}");
    // Written-out terms keep their meaning.
    let terms = Pipeline { score: String::new(), ..on_text(1024) };
    let (_, stderr) = plan(&workspace, &terms.score("terms: [{statistic: far_recurrence}]"));
    assert!(!stderr.contains("works best with"), "{stderr}");
}

#[test]
fn a_compared_preset_without_its_stage_is_a_warning_and_needs_no_guards() {
    let workspace = workspace();
    let far = Pipeline { score: String::new(), ..on_text(1024) }.score("formula: far-recurrence");
    let compared = far.output("report_by: id, compare: [balanced-recurrence]");
    let (_, stderr) = plan(&workspace, &compared);
    assert!(
        stderr.contains("`balanced-recurrence` works best with settings that this pipeline lacks: `lexical` on text\n"),
        "{stderr}"
    );
    let (_, stderr) = plan(&workspace, &compared.measure("lexical"));
    assert!(!stderr.contains("works best with"), "{stderr}");
}

#[test]
fn a_guard_that_few_windows_pass_is_a_warning() {
    let workspace = workspace();
    let rejecting = "keep_fraction: 1, guards: [{statistic: copy_share, min: 0.9}]";
    // Windows of 16 tokens have too few repeated ids for this statistic.
    let missing = "keep_fraction: 1, guards: [{statistic: midrange_share, min: 0}]";
    for (filter, expected) in [
        (rejecting, "the guard `copy_share` at least 0.9 rejects 95 of 95 (100 %) windows"),
        (
            missing,
            "the guard `midrange_share` at least 0 rejects 0 of 95 (0 %) windows; also rejected, for a missing statistic: 95",
        ),
    ] {
        let pipeline = Pipeline { score: String::new(), ..on_tokens(16) };
        let pipeline = pipeline.score("formula: far-recurrence").filter(filter);
        workspace.write("pipeline.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["run", "pipeline.yaml", "--fresh"]);
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    }
}

#[test]
fn untested_window_lengths_are_a_warning() {
    let workspace = workspace();
    let filter = format!("keep_fraction: 0.5, guards: [{GUARDS}]");
    let warnings_for = |pipeline: Pipeline| {
        let (_, stderr) = plan(&workspace, &pipeline.measure("lexical").filter(&filter));
        stderr
    };
    let warning = "`repeated_share` depends on the length of a window, and its bounds were tested from 1,024 to 32,768 tokens: \
                   a window has ";
    for (pipeline, has) in [
        (on_text(512), "512 tokens"),
        (on_text(65_536), "65,536 tokens"),
        (
            on_text(2048).tokenize("short_documents: score"),
            "up to 2,048 tokens, where short documents are scored",
        ),
        (
            on_text(2048).tokenize("windows: whole-document"),
            "up to 2,048 tokens, as long as its document",
        ),
    ] {
        let stderr = warnings_for(pipeline);
        assert!(stderr.contains(&format!("{warning}{has}")), "{has}: {stderr}");
    }
    for tokens in [1024, 32_768] {
        let stderr = warnings_for(on_text(tokens));
        assert!(!stderr.contains("depends on the length"), "{stderr}");
    }
}

#[test]
fn text_statistics_need_a_measure_of_text() {
    let workspace = workspace();
    let guard = "keep_fraction: 0.5, guards: [{statistic: digit_share, max: 0.2}]";
    let refused = |pipeline: &Pipeline| {
        workspace.write("pipeline.yaml", pipeline.to_string());
        workspace.longsift(&["plan", "pipeline.yaml", "-q"]).expect(2).stderr
    };
    let far = "formula: far-recurrence";
    let tokens = on_tokens(64).score(far);
    for lexical in [None, Some("lexical")] {
        let pipeline = lexical.into_iter().fold(tokens.clone(), Pipeline::measure).filter(guard);
        let stderr = refused(&pipeline);
        assert!(
            stderr.contains("`digit_share` is measured on text, and the input contains token ids"),
            "{stderr}"
        );
        assert!(
            stderr.contains("`input.text_column`") && stderr.contains("`frequent_token_share`"),
            "{stderr}"
        );
    }
    let stderr = refused(&tokens.clone().measure("lexical, text: true"));
    assert!(
        stderr.contains("`lexical` measures text, but the input contains token ids"),
        "{stderr}"
    );
    assert!(stderr.contains("remove `text: true`"), "{stderr}");
    let text = Pipeline { score: String::new(), ..on_text(64) }.score(far).filter(guard);
    let stderr = refused(&text.clone().measure("lexical, text: false"));
    assert!(
        stderr.contains("`digit_share` is measured on text, and `lexical` has `text: false`"),
        "{stderr}"
    );
    assert!(refused(&text).contains("add `- stage: lexical`, which computes it"));
    let terms = "terms: [{statistic: unbroken_share, weight: -1}]";
    let stderr =
        refused(&Pipeline { score: String::new(), ..tokens }.measure("lexical").score(terms));
    assert!(
        stderr.contains("`unbroken_share` is measured on text, and the input contains token ids"),
        "{stderr}"
    );
}

#[test]
fn the_resolved_pipeline_has_the_default_of_lexical() {
    let workspace = workspace();
    let far = "formula: far-recurrence";
    let text = Pipeline { score: String::new(), ..on_text(64) }.score(far);
    for (pipeline, expected) in [(text, true), (on_tokens(64).score(far), false)] {
        workspace.write("pipeline.yaml", pipeline.measure("lexical").to_string());
        let plan = workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).success();
        let plan: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
        let stages = plan["settings"]["stages"].as_array().unwrap();
        let lexical = stages.iter().find(|stage| stage["stage"] == "lexical").unwrap();
        assert_eq!(lexical["text"], json!(expected));
    }
}

#[test]
fn a_window_without_midrange_share_is_scored_by_the_other_components() {
    let workspace = workspace();
    let pipeline = on_tokens(64).score("formula: balanced-recurrence").filter("keep_fraction: 1");
    let summary = workspace.run(&pipeline);
    let scores = read_scores(&workspace.path("out.run"));
    let nulls = scores.column_by_name("midrange_share").unwrap().null_count() as u64;
    assert!(nulls > 0, "windows of 64 tokens have few pairs");
    assert_eq!(summary["windows_kept"], summary["windows_scored"], "{summary}");
    let facts = read_json(&workspace.path("out.run/manifest.json")).to_string();
    assert!(facts.contains("\"score.formula_version\":2"), "{facts}");

    let guards = "keep_fraction: 1, guards: [{statistic: midrange_share, min: 0}]";
    let guarded = workspace.run(&pipeline.filter(guards));
    assert_eq!(guarded["windows_dropped"]["no_midrange_share"], json!(nulls), "a guard needs it");
    let terms = "terms: [{statistic: midrange_share}]";
    let written = workspace.run(&on_tokens(64).score(terms).filter("keep_fraction: 1"));
    assert_eq!(written["windows_dropped"]["no_midrange_share"], json!(nulls), "and so does a term");
    let facts = read_json(&workspace.path("out.run/manifest.json")).to_string();
    assert!(!facts.contains("formula_version"), "{facts}");
}
