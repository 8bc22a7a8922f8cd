//! `formula: random`: scores that depend only on ids and windows.

use std::collections::BTreeMap;
use std::fs;

use crate::support::tables::{
    document, floats, labels, optional_integers, read_parquet, strings, table, texts, token_lists,
    write_parquet,
};
use crate::support::{Pipeline, Workspace};

fn write(workspace: &Workspace, file: &str, ids: &[&str]) {
    let documents: Vec<Vec<u32>> = (0..).take(ids.len()).map(|row| document(row, 160)).collect();
    let input = table(&[
        ("id", strings(ids)),
        ("source", strings(ids.iter().map(|id| if *id < "m" { "low" } else { "high" }))),
        ("tokens", token_lists(&documents)),
    ]);
    write_parquet(&workspace.path(file), &input, 2);
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("", 64)
        .without_model(None)
        .measure("lexical")
        .score("formula: random")
        .filter("keep_fraction: 1")
}

type Key = (String, Option<i64>);

/// The scores of the last run, by id and window.
fn scores(workspace: &Workspace) -> BTreeMap<Key, u64> {
    let data = read_parquet(&workspace.path("out/data"));
    let keys = texts(&data, "id").into_iter().zip(optional_integers(&data, "longsift_window"));
    keys.zip(floats(&data, "longsift_score").into_iter().map(f64::to_bits)).collect()
}

/// The definition of `evaluate.md`, written again.
fn random(seed: u64, parts: &[&str]) -> f64 {
    let mut bytes = seed.to_le_bytes().to_vec();
    for part in parts {
        bytes.push(0x1F);
        bytes.extend(part.as_bytes());
    }
    let mut z = bytes.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[test]
fn random_scores_do_not_depend_on_the_order_of_rows_and_files() {
    let workspace = Workspace::new();
    write(&workspace, "input/x.parquet", &["a", "b", "n", "z"]);
    workspace.run(&pipeline());
    let found = scores(&workspace);
    assert_eq!(found.len(), 8);
    assert_eq!(found[&("a".to_owned(), Some(0))], 0.518_477_379_214_840_3_f64.to_bits());
    assert_eq!(found[&("z".to_owned(), Some(1))], random(1, &["random", "z", "1"]).to_bits());
    let lock = fs::read_to_string(workspace.path("out.run/pipeline.lock")).unwrap();
    assert!(
        lock.replace(' ', "").contains("\"seed\":1"),
        "the default stands in the resolved pipeline: {lock}"
    );
    let other = Workspace::new();
    write(&other, "input/2.parquet", &["z", "a"]);
    write(&other, "input/1.parquet", &["n", "b"]);
    other.run(&pipeline());
    assert_eq!(scores(&other), found);
    workspace.run(&pipeline().output("samples: documents"));
    assert_eq!(scores(&workspace)[&("a".to_owned(), None)], 0.861_500_186_574_210_3_f64.to_bits());
    workspace.run(&pipeline().score("seed: 9"));
    assert_eq!(
        scores(&workspace)[&("n".to_owned(), Some(0))],
        random(9, &["random", "n", "0"]).to_bits()
    );
}

#[test]
fn without_ids_documents_are_identified_by_file_and_row() {
    let workspace = Workspace::new();
    write(&workspace, "input/deep/x.parquet", &["a", "b"]);
    let nameless = Pipeline { input: "path: input, tokens_column: tokens".into(), ..pipeline() };
    workspace.write("pipeline.yaml", nameless.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    assert!(answer.stderr.contains("random scores depend on the files"), "{}", answer.stderr);
    let row = random(1, &["random", "deep/x.parquet", "1", "0"]);
    assert_eq!(scores(&workspace)[&("b".to_owned(), Some(0))], row.to_bits());
}

#[test]
fn a_document_with_a_null_id_is_drawn_by_its_file_and_row_and_counted() {
    let workspace = Workspace::new();
    let documents: Vec<Vec<u32>> = (0..4).map(|row| document(row, 160)).collect();
    let input = table(&[
        ("id", labels(&[Some("a"), None, Some("c"), None])),
        ("tokens", token_lists(&documents)),
    ]);
    write_parquet(&workspace.path("input/x.parquet"), &input, 2);
    workspace.write("pipeline.yaml", pipeline().to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    assert!(answer.stderr.contains("2 documents have no id in `id`"), "{}", answer.stderr);
    let data = read_parquet(&workspace.path("out/data"));
    let scores: Vec<u64> = floats(&data, "longsift_score").into_iter().map(f64::to_bits).collect();
    let expected = [
        &["random", "a", "0"][..],
        &["random", "a", "1"],
        &["random", "x.parquet", "1", "0"],
        &["random", "x.parquet", "1", "1"],
    ];
    let expected: Vec<u64> = expected.map(|parts| random(1, parts).to_bits()).to_vec();
    assert_eq!(scores[..4], expected);
}

#[test]
fn documents_that_share_an_id_share_their_scores_and_are_counted() {
    let workspace = Workspace::new();
    write(&workspace, "input/x.parquet", &["a", "b", "a", "c", "b", "a"]);
    workspace.write("pipeline.yaml", pipeline().to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    assert!(answer.stderr.contains("5 documents share 2 ids"), "{}", answer.stderr);
    let data = read_parquet(&workspace.path("out/data"));
    let of_a = texts(&data, "id").into_iter().zip(floats(&data, "longsift_score"));
    let of_a: Vec<u64> =
        of_a.filter(|(id, _)| id == "a").map(|(_, score)| score.to_bits()).collect();
    assert_eq!(of_a.len(), 6);
    assert!(of_a.chunks(2).all(|windows| windows == &of_a[..2]));
}

#[test]
fn a_comparison_with_random_uses_seed_1() {
    let workspace = Workspace::new();
    let ids: Vec<String> = (0..40).map(|id| format!("{id:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    write(&workspace, "input/x.parquet", &ids);
    let half = || pipeline().filter("keep_fraction: 0.5");
    workspace.run(&half());
    let kept = scores(&workspace);
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let min_score = kept.values().map(|bits| f64::from_bits(*bits)).fold(1.0, f64::min);
    write(&workspace, "input/x.parquet", &ids[..20]);
    workspace.run(&half().score("calibration: saved.json"));
    assert!(scores(&workspace).iter().all(|(key, score)| kept[key] == *score));
    let expected = kept.keys().filter(|(id, _)| id.as_str() < "20").count();
    assert_eq!(scores(&workspace).len(), expected, "those from {min_score} up");
    workspace.write("pipeline.yaml", half().score("calibration: saved.json, seed: 2").to_string());
    let refused = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).to_text();
    assert!(refused.contains("score.seed: 2, was 1"), "{refused}");
    // Compared with another score.
    let compared = Pipeline { score: "terms: [{statistic: unique_token_share}]".into(), ..half() };
    let compared = compared.output("report_by: source, compare: [random]");
    workspace.write("pipeline.yaml", compared.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    assert!(answer.to_text().contains("random"), "{}", answer.to_text());
}

#[test]
fn a_seed_needs_a_random_score() {
    let workspace = Workspace::new();
    write(&workspace, "input/x.parquet", &["a"]);
    let wrong = Pipeline {
        score: "terms: [{statistic: unique_token_share}], seed: 3".into(),
        ..pipeline()
    };
    workspace.write("pipeline.yaml", wrong.to_string());
    let refused = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).to_text();
    assert!(refused.contains("`seed` has no effect without `formula: random`"), "{refused}");
}
