//! Inputs and settings at the limits of what is allowed.

use std::fs;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int64Array};
use serde_json::json;

use crate::support::tables::{
    corpus, integers, read_parquet, read_scores, strings, table, texts, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, count, demo_model, read_json, repository};

/// A corpus of two groups, named by a column of any type.
fn grouped(column: ArrayRef) -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let plain = corpus("a", &[64; 6]);
    let input = table(&[
        ("id", Arc::clone(plain.column(0))),
        ("tokens", Arc::clone(plain.column(1))),
        ("group", column),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    workspace
}

#[test]
fn groups_may_be_numbers_or_truth_values() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![7, 8, 7, 8, 7, 8]));
    let truths: ArrayRef =
        Arc::new(BooleanArray::from(vec![true, false, true, false, true, false]));
    for (column, names) in [(numbers, ["7", "8"]), (truths, ["false", "true"])] {
        let workspace = grouped(column);
        let summary = workspace.run(
            &Pipeline::tokens("model", 64)
                .score("within: group")
                .filter(&format!("keep_tokens: {{'{}': 64, '{}': 128}}", names[0], names[1])),
        );
        assert_eq!(summary["kept"], 3);
        let calibration = read_json(&workspace.path("out.run/calibration.json"));
        let values: Vec<&str> = calibration["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| group["value"].as_str().unwrap())
            .collect();
        assert_eq!(values, names);
    }
}

#[test]
fn a_budget_for_an_unknown_group_is_named() {
    let workspace = grouped(strings(["a", "b", "a", "b", "a", "b"]));
    for amount in [
        "keep_tokens: {a: 64, bb: 64}",
        "budgets: [{group: a, keep_tokens: 64}, {group: bb, keep_tokens: 64}]",
    ] {
        let pipeline = Pipeline::tokens("model", 64).score("within: group").filter(amount);
        workspace.write("pipeline.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["run", "pipeline.yaml", "--fresh"]).success();
        let expected = "the filter names `bb`, but no sample has this group";
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
        assert_eq!(answer.summary()["kept"], 1);
    }
}

#[test]
fn a_checkpoint_of_nan_is_reported_and_gives_no_score() {
    let workspace = grouped(strings(["a"; 6]));
    let path = workspace.path("model/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for row in 0..97 {
        let offset = 8 + header + row * 64;
        bytes[offset..offset + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    fs::write(&path, bytes).unwrap();
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
}

#[test]
fn an_output_inside_the_input_is_rejected() {
    for (input, output, refused) in [
        ("input", "input/kept", true),
        ("input", "input", true),
        (".", "out", true),
        ("**/*.parquet", "out", true),
        ("input/*.parquet", "input/kept", false),
        ("input/a.parquet", "input", false),
    ] {
        let workspace = grouped(strings(["a"; 6]));
        let mut pipeline = Pipeline::tokens("model", 64);
        pipeline.input = pipeline.input.replace("path: input", &format!("path: '{input}'"));
        pipeline.output = format!("path: {output}");
        workspace.write("pipeline.yaml", pipeline.to_string());
        if refused {
            let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
            assert!(answer.stderr.contains("error: the output "), "{}", answer.stderr);
            assert!(!workspace.path(output).join("data").exists(), "nothing was written");
            continue;
        }
        workspace.run(&pipeline);
        assert_eq!(workspace.run(&pipeline)["status"], "nothing_to_do", "{input} and {output}");
    }
}

#[test]
fn whole_documents_keep_every_byte() {
    let texts_in = [
        "  \n The lamp was lit at dusk.\u{301} \t\n ".to_owned(),
        "日本語の文書、終わり。\u{3000}".to_owned(),
        "<bos>a special token spelled out<eos>".to_owned(),
    ];
    for samples in ["windows", "documents"] {
        let workspace = Workspace::new();
        workspace.link("model", &demo_model());
        let input = table(&[("id", strings(["0", "1", "2"])), ("text", strings(&texts_in))]);
        write_parquet(&workspace.path("input/a.parquet"), &input, 2);
        let pipeline = Pipeline::text("model", 512)
            .tokenize("windows: whole-document")
            .attention("min_distance_tokens: 2")
            .filter("keep_fraction: 1")
            .output(&format!("samples: {samples}"));
        workspace.run(&pipeline);
        assert_eq!(texts(&read_parquet(&workspace.path("out/data")), "text"), texts_in);
    }
}

#[test]
fn special_tokens_in_a_text_follow_the_setting() {
    let text = "<bos>one<eos>two<pad>".repeat(4);
    let tokens = |how: &str| {
        let workspace = Workspace::new();
        workspace.link("model", &demo_model());
        let input = table(&[("id", strings(["0"])), ("text", strings([&text]))]);
        write_parquet(&workspace.path("input/a.parquet"), &input, 1);
        let pipeline = Pipeline::text("model", 4).tokenize(how);
        workspace.write("pipeline.yaml", pipeline.to_string());
        let lines =
            workspace.longsift(&["tokens", "pipeline.yaml", "--ids", "-q"]).success().json_lines();
        lines.iter().flat_map(|line| line["ids"].as_array().unwrap().clone()).collect::<Vec<_>>()
    };
    let parsed = tokens("special_tokens_in_text: parse");
    assert_eq!(parsed[0], 0, "<bos> is token 0 of this tokenizer");
    assert_eq!(parsed, tokens("windows: disjoint"), "that is the default");
    let spelled = tokens("special_tokens_in_text: as-text");
    assert!(spelled.len() > parsed.len());
    assert!(!spelled.contains(&json!(0)) && !spelled.contains(&json!(1)));
}

#[test]
fn a_limit_beyond_the_input_is_the_whole_input() {
    let workspace = grouped(strings(["a"; 6]));
    let pipeline = Pipeline::tokens("model", 64);
    let summary = workspace.run_with(&pipeline, &["--limit", "1000"]);
    assert_eq!(count(&summary, "rows_in"), 6);
    workspace.run(&pipeline);
    let data = |folder: &str| workspace.hashes(&[folder]).into_values().collect::<Vec<_>>();
    assert_eq!(data("out.limit-1000/data"), data("out/data"));
}

#[test]
fn a_single_window_is_kept_or_dropped_by_the_rule() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[64]), 1);
    for (filter, kept) in [
        ("keep_fraction: 0.99", 0),
        ("keep_fraction: 1", 1),
        ("min_score: 0", 1),
        ("min_score: 0.1", 0),
    ] {
        let summary = workspace.run(&Pipeline::tokens("model", 64).filter(filter));
        assert_eq!(summary["kept"], kept, "{filter}");
    }
    let scores = read_scores(&workspace.path("out.run"));
    assert_eq!(integers(&scores, "distance"), [16]);
}

#[test]
fn distances_follow_the_window_and_the_written_decimal() {
    let distances = |attention: &str| {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[100, 30, 7]), 1);
        let pipeline = Pipeline::tokens("model", 100)
            .tokenize("windows: whole-document")
            .attention(attention)
            .filter("keep_fraction: 1");
        workspace.run(&pipeline);
        integers(&read_scores(&workspace.path("out.run")), "distance")
    };
    // S - 3·⌊S/4⌋ by default, the ceiling of the fraction otherwise: 0.29 · 100 is 29, not 30.
    assert_eq!(distances("min_distance_fraction: 0.25"), [25, 9, 4]);
    assert_eq!(distances("min_distance_fraction: 0.29"), [29, 9, 3]);
    assert_eq!(distances("min_distance_tokens: 20"), [20, 20]);
}

#[test]
fn an_input_column_that_differs_from_an_output_column_only_by_case_is_rejected() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let plain = corpus("a", &[64; 3]);
    for name in ["Longsift_Score", "LONGSIFT_FAR_RECURRENCE", "longsift_score"] {
        let input = table(&[
            ("id", Arc::clone(plain.column(0))),
            ("tokens", Arc::clone(plain.column(1))),
            (name, strings(["x", "y", "z"])),
        ]);
        write_parquet(&workspace.path("input/a.parquet"), &input, 4);
        let pipeline = Pipeline::tokens("model", 64).measure("recurrence");
        workspace.write("pipeline.yaml", pipeline.to_string());
        let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
        assert!(
            answer.stderr.contains(&format!("already has the columns `{name}`")),
            "{}",
            answer.stderr
        );
    }
}

#[test]
fn long_ids_are_refused_by_the_plan_or_quarantined() {
    let long = |row: usize| "i".repeat(1 << 20) + &row.to_string();
    let workspace = |ids: Vec<String>| {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        let tokens = corpus("a", &vec![64; ids.len()]);
        let tokens = Arc::clone(tokens.column_by_name("tokens").expect("the tokens"));
        let input = table(&[("id", strings(ids)), ("tokens", tokens)]);
        write_parquet(&workspace.path("input/a.parquet"), &input, 16);
        workspace
    };
    let pipeline = Pipeline::tokens("model", 64).filter("keep_fraction: 1");
    // A column of texts that was taken for ids.
    let all_long = workspace((0..4).map(long).collect());
    all_long.write("pipeline.yaml", pipeline.to_string());
    for command in ["plan", "run"] {
        let stderr = all_long.longsift(&[command, "pipeline.yaml", "-q"]).expect(2).stderr;
        assert!(stderr.contains("column `id` has values of 1048"), "{stderr}");
        assert!(stderr.contains("on average; ids have at most 16384"), "{stderr}");
        assert!(stderr.contains("remove `id_column`"), "{stderr}");
    }
    let without = pipeline.to_string().replace("id_column: id, ", "");
    all_long.write("pipeline.yaml", without);
    let summary = all_long.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!(count(&summary, "kept"), 4);
    // One long id among many, and ids at the limit.
    let mut ids: Vec<String> = (0..200).map(|row| row.to_string()).collect();
    (ids[70], ids[80], ids[90]) = (long(70), "a".repeat(16384), "b".repeat(16385));
    let one_long = workspace(ids.clone());
    let summary = one_long.run(&pipeline.input("max_quarantined_fraction: 0.5"));
    assert_eq!((count(&summary, "quarantined"), count(&summary, "kept")), (2, 198));
    let bad = read_parquet(&one_long.path("out.run/quarantine"));
    assert_eq!(texts(&bad, "longsift_code"), ["id_too_long"; 2]);
    assert_eq!(integers(&bad, "longsift_row"), [70, 90]);
    assert_eq!(
        texts(&bad, "id"),
        [ids[70].as_str(), ids[90].as_str()],
        "the quarantine has the original rows"
    );
    assert!(texts(&read_scores(&one_long.path("out.run")), "id").contains(&ids[80]));
    one_long.longsift(&["verify", "out.run"]).success();
}

#[test]
fn an_output_linked_into_the_input_is_rejected() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("in/a.parquet"), &corpus("a", &[64; 3]), 4);
    workspace.link("link", &workspace.path("in"));
    for (input, output) in [
        ("in", "link/out"),
        ("in/**/*.parquet", "link/out"),
        ("link", "in/out"),
        ("link/**/*.parquet", "in/out"),
        ("link/**/*.parquet", "./link/x/../out"),
    ] {
        let pipeline = Pipeline::tokens("model", 64).to_string();
        let pipeline = pipeline.replace("path: input", &format!("path: '{input}'"));
        workspace.write("pipeline.yaml", pipeline.replace("path: out", &format!("path: {output}")));
        let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
        assert!(
            answer.stderr.contains("the output is inside the input"),
            "{input}: {}",
            answer.stderr
        );
    }
}

/// An allocation failure anywhere ends the run with exit code 4; with enough memory the run succeeds.
#[test]
fn running_out_of_memory_has_exit_code_4() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[64; 3]), 4);
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    let limited = |kib: u64, arguments: &[&str]| {
        let mut command = workspace.command_after(&format!("ulimit -v {kib} && exec"), arguments);
        let answer = command.output().unwrap();
        (answer.status.code(), String::from_utf8_lossy(&answer.stderr).into_owned())
    };
    let run = |kib: u64| limited(kib, &["run", "pipeline.yaml", "-q", "--fresh", "--threads", "2"]);
    let check = |limits: &mut dyn Iterator<Item = u64>| {
        let (code, stderr) = run(2_000_000);
        assert_eq!(code, Some(0), "{stderr}");
        let mut codes = Vec::new();
        for kib in limits {
            // With less, the system cannot load the program.
            if !matches!(limited(kib, &["--version"]).0, Some(0 | 4)) {
                break;
            }
            let (code, stderr) = run(kib);
            assert!(matches!(code, Some(0 | 4)), "{kib}: {code:?} {stderr}");
            codes.push(code);
        }
        assert!(codes.contains(&Some(4)), "{codes:?}");
    };
    check(&mut (20_000..140_000).rev().step_by(5_000));
    // The tables of a tokenizer are the largest allocations.
    let mut pipeline = Pipeline::text(demo_model().to_str().unwrap(), 512);
    pipeline.input = format!(
        "path: '{}', text_column: text",
        repository().join("datasets/demo/corpus.parquet").display()
    );
    workspace.write("pipeline.yaml", pipeline.to_string());
    check(&mut (100_000..500_000).rev().step_by(40_000));
}
