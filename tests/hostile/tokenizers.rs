//! Malicious `tokenizer.json` files.

use std::fs::{self, File};
use std::process::Command;

use serde_json::{Value, json};

use super::{bounded, within};
use crate::support::tables::{
    optional_integers, read_parquet, strings, table, texts, write_parquet,
};
use crate::support::{Pipeline, Workspace, demo_model, files_below, read_json};

/// The demo model with another tokenizer, over these texts.
fn workspace(texts: &[String], change: impl FnOnce(&mut Value)) -> Workspace {
    let workspace = Workspace::new();
    let model = demo_model();
    fs::create_dir(workspace.path("model")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        workspace.link(&format!("model/{name}"), &model.join(name));
    }
    let mut tokenizer = read_json(&model.join("tokenizer.json"));
    change(&mut tokenizer);
    workspace.write("model/tokenizer.json", tokenizer.to_string());
    let ids = (0..texts.len()).map(|row| row.to_string());
    let input = table(&[("id", strings(ids)), ("text", strings(texts))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 64);
    let pipeline = Pipeline::text("model", 64).input("max_quarantined_fraction: 0.5");
    workspace.write("p.yaml", pipeline.to_string());
    workspace
}

fn prose() -> String {
    "The keeper of the lamp wrote a letter every evening. ".repeat(60)
}

fn refused(workspace: &Workspace, what: &str, code: i32, words: &str) {
    let answer = bounded(workspace, what, &["run", "p.yaml", "-q"], code);
    assert!(answer.stderr.contains(words), "{what}: {}", answer.stderr);
}

#[test]
fn a_tokenizer_without_a_vocabulary_is_rejected() {
    let unusable = "is not a usable tokenizer.json";
    for (what, model) in [
        ("no model", Value::Null),
        ("no vocabulary", json!({ "type": "BPE", "merges": [] })),
        ("an empty vocabulary", json!({ "type": "BPE", "vocab": {}, "merges": [] })),
        (
            "merges of nothing",
            json!({ "type": "BPE", "vocab": { "a": 0 }, "merges": [["x", "y"]] }),
        ),
        ("negative ids", json!({ "type": "BPE", "vocab": { "a": -1 }, "merges": [] })),
        ("another kind", json!({ "type": "Nonsense", "vocab": {} })),
    ] {
        let workspace = workspace(&[prose()], |tokenizer| {
            tokenizer["model"] = model.clone();
            tokenizer["added_tokens"] = json!([]);
        });
        refused(&workspace, what, 3, unusable);
    }
    let far = workspace(&[prose()], |tokenizer| {
        tokenizer["model"]["vocab"]["zzzz"] = json!(u32::MAX);
    });
    refused(&far, "an id beyond the embedding", 2, "4294967295");
    let plain = workspace(&[prose()], |_| ());
    for (what, text) in [
        ("brackets", "[".repeat(100_000)),
        ("brackets inside", format!("{{\"version\": \"1.0\", \"model\": {}", "[".repeat(100_000))),
        ("nothing", String::new()),
        ("a null", "\u{0}".to_owned()),
    ] {
        plain.write("model/tokenizer.json", text);
        refused(&plain, what, 3, unusable);
    }
    for (text, found) in [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n",
            "it is a Git LFS pointer; fetch the actual file: `git lfs pull`",
        ),
        ("\n<!doctype html><title>Sign in</title>", "it is an HTML page; download the file itself"),
    ] {
        plain.write("model/tokenizer.json", text);
        refused(&plain, found, 3, &format!("{unusable}: {found}"));
    }
}

#[test]
fn a_tokenizer_of_absurd_or_zero_size_is_rejected() {
    let workspace = workspace(&[prose()], |_| ());
    let path = workspace.path("model/tokenizer.json");
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    within(&workspace, "a terabyte", &["run", "p.yaml", "-q"], 2, 800 << 10);
    fs::remove_file(&path).unwrap();
    Command::new("mkfifo").arg(&path).status().unwrap();
    refused(&workspace, "a pipe", 2, "not a regular file");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused(&workspace, "a folder", 2, "");
}

#[test]
fn patterns_that_do_not_compile_are_refused() {
    for (what, pattern) in [
        ("an open group", "(".to_owned()),
        ("a back reference to nothing", r"\9".to_owned()),
        ("repetitions of repetitions", r"(?:(?:(?:\p{L}{1000}){1000}){1000}){1000}".to_owned()),
        ("nested groups", "(".repeat(100_000) + "a" + &")".repeat(100_000)),
        ("nested look-aheads", "(?=".repeat(5_000) + "a" + &")".repeat(5_000)),
    ] {
        let workspace = workspace(&[prose()], |tokenizer| {
            tokenizer["pre_tokenizer"] = json!({ "type": "Split", "behavior": "Isolated", "invert": false,
                                                 "pattern": { "Regex": pattern } });
        });
        refused(&workspace, what, 3, "is not a usable tokenizer.json");
    }
}

/// The first three patterns would take hours or days for the second text: it is quarantined after a number of steps
/// that is the same on every machine, and the other rows are scored. The last two scan the rest of the text from each
/// letter, and end.
#[test]
fn patterns_that_backtrack_forever_lose_only_their_row() {
    for (pattern, bad_rows) in [
        (r"(?:a+)+(?=b)|\S|\s", &[Some(1)][..]),
        (r"(?:a|aa)+(?!a)b|\S|\s", &[Some(1)]),
        (r"(a*)*\1b|\S|\s", &[Some(1)]),
        (r"a(?=a*b)|\S|\s", &[]),
        (r"a+b|\S|\s", &[]),
    ] {
        let bad = "a".repeat(100_000);
        let workspace = workspace(&[prose(), bad, prose()], |tokenizer| {
            tokenizer["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
                { "type": "Split", "behavior": "Isolated", "invert": false, "pattern": { "Regex": pattern } },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false }] });
        });
        bounded(&workspace, pattern, &["run", "p.yaml", "-q"], 0);
        if bad_rows.is_empty() {
            assert!(files_below(&workspace.path("out.run/quarantine")).is_empty(), "{pattern}");
            continue;
        }
        let table = read_parquet(&workspace.path("out.run/quarantine"));
        assert_eq!(optional_integers(&table, "longsift_row"), bad_rows, "{pattern}");
        assert_eq!(texts(&table, "longsift_code"), ["tokenizer_failed"]);
    }
}
