//! Malicious names of files, columns, ids and groups: none controls the terminal or forges a line.

use std::fs;
use std::sync::Arc;

use super::{bounded, safe_to_print};
use crate::support::tables::{corpus, strings, table, token_lists, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace};

/// Clears the screen, in two ways; reorders; forges a line.
const EVIL: &str = "x\u{1b}[2J\u{9b}2J\u{202e}\nerror: forged";

/// Quotes a text for YAML.
fn quoted(text: &str) -> String {
    let letters = text.chars().map(|letter| {
        if letter.is_ascii_alphanumeric() {
            letter.to_string()
        } else {
            format!("\\u{:04x}", letter as u32)
        }
    });
    format!("\"{}\"", letters.collect::<String>())
}

/// A run over a file, columns, ids and groups of such names, with one bad row.
fn workspace() -> (Workspace, Pipeline) {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let plain = corpus("a", &[64, 64, 64]);
    let mut tokens = crate::support::tables::token_ids(&plain, "tokens");
    tokens[1][3] = 4_000;
    let ids = (0..3).map(|row| format!("{EVIL}{row}"));
    let groups = format!("group {EVIL}");
    let input = table(&[
        ("id", strings(ids)),
        ("tokens", token_lists(&tokens)),
        (&groups, strings([EVIL, EVIL, "plain"])),
        (EVIL, Arc::clone(plain.column(0))),
    ]);
    write_parquet(&workspace.path(&format!("input/{EVIL}.parquet")), &input, 8);
    let quoted = quoted(&groups);
    let pipeline = Pipeline::tokens("model", 64)
        .input("max_quarantined_fraction: 1")
        .score(&format!("within: {quoted}"))
        .output(&format!("report_by: {quoted}"));
    workspace.write("p.yaml", pipeline.to_string());
    (workspace, pipeline)
}

#[test]
fn names_of_files_columns_and_rows_are_printed_escaped() {
    let (workspace, _) = workspace();
    let again = Workspace::copy_of(&workspace);
    for (what, arguments, code) in [
        ("plan", &["plan", "p.yaml"][..], 0),
        ("plan as JSON", &["plan", "p.yaml", "--format", "json"], 0),
        ("tokens", &["tokens", "p.yaml"], 0),
        ("a run", &["run", "p.yaml", "-vv"], 0),
        ("status", &["status", "out.run"], 0),
        ("verify", &["verify", "out.run"], 0),
    ] {
        let answer = bounded(&workspace, what, arguments, code);
        let lines = answer.stdout.lines().chain(answer.stderr.lines());
        assert!(lines.clone().all(|line| !line.starts_with("error: forged")), "{what}");
    }
    let logged = bounded(
        &workspace,
        "logs",
        &["run", "p.yaml", "--fresh", "--log-format", "json", "-vv"],
        0,
    );
    let events = || logged.stderr.lines().filter(|line| line.starts_with('{'));
    assert!(events().count() > 3);
    for line in events() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    // Causes a message about each of them.
    bounded(&again, "a run", &["run", "p.yaml", "-q", "--set", "stages.filter.keep_fraction=1"], 0);
    let both = again.path("first.run");
    testkit::copy_folder(&workspace.path("out.run"), &both);
    let answer = bounded(&again, "diff", &["diff", "first.run", "out.run"], 5);
    assert!(answer.stdout.contains("\\u{1b}[2J"), "{}", answer.stdout);
    assert!(!answer.stdout.lines().any(|line| line.starts_with("error: forged")));
    fs::write(again.path(&format!("out/data/{EVIL}.parquet")), "stray").unwrap();
    let answer = bounded(&again, "verify", &["verify", "out.run"], 3);
    assert!(answer.stdout.contains("\\u{1b}[2J"), "{}", answer.stdout);
}

#[test]
fn hostile_names_in_errors_are_printed_escaped() {
    let (workspace, pipeline) = workspace();
    let file = workspace.path(&format!("input/{EVIL}.parquet"));
    let whole = fs::read(&file).unwrap();
    let expect = |what: &str, pipeline: &Pipeline, code| {
        workspace.write("p.yaml", pipeline.to_string());
        for arguments in [&["run", "p.yaml"][..], &["run", "p.yaml", "--log-format", "json"]] {
            let answer = workspace.longsift(arguments).expect(code);
            safe_to_print(what, &answer.stdout);
            safe_to_print(what, &answer.stderr);
            assert!(!answer.stderr.lines().any(|line| line.starts_with("error: forged")), "{what}");
        }
    };
    let mut other = pipeline.clone();
    other.input = "path: input, id_column: absent, tokens_column: tokens".to_owned();
    expect("a missing column", &other, 2);
    let mut fail = pipeline.clone();
    fail.input = "path: input, id_column: id, tokens_column: tokens, on_bad_row: fail".to_owned();
    expect("a bad row", &fail, 3);
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    expect("a cut file", &pipeline, 3);
    fs::write(&file, &whole).unwrap();
    let second = workspace.path("input/b.parquet");
    write_parquet(&second, &corpus("b", &[64]), 8);
    expect("files of different columns", &pipeline, 2);
    fs::remove_file(&second).unwrap();
    let model = workspace.path("model");
    let evil_model = workspace.path(&format!("model {EVIL}"));
    fs::rename(&model, &evil_model).unwrap();
    let config = serde_json::json!({ "model_type": EVIL });
    fs::write(evil_model.join("config.json"), config.to_string()).unwrap();
    let mut moved = pipeline;
    moved.model = format!("model: {}", quoted(&format!("model {EVIL}")));
    workspace.write("p.yaml", moved.to_string());
    let answer = workspace.longsift(&["run", "p.yaml"]);
    assert!([2, 3].contains(&answer.code), "{}", answer.stderr);
    safe_to_print("a model", &(answer.stdout + &answer.stderr));
    let answer = workspace.longsift(&["inspect", &format!("model {EVIL}")]);
    assert!([2, 3].contains(&answer.code), "{}", answer.stderr);
    safe_to_print("inspect", &(answer.stdout + &answer.stderr));
}
