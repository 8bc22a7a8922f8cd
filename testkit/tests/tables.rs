//! Tables are read back as they were written, and documents are the same on every machine.
#![allow(clippy::unwrap_used, reason = "tests panic if their setup fails")]

use testkit::tables::{
    corpus, count_rows, document, footer_value, integers, optional_integers, read_parquet, strings,
    table, texts, token_ids, token_lists, write_parquet, write_parquet_with,
};
use testkit::{Pipeline, hex};

use arrow_array::{ArrayRef, Int64Array};
use sha2::{Digest, Sha256};
use std::sync::Arc;

#[test]
fn a_table_round_trips_in_row_order() {
    let folder = tempfile::tempdir().unwrap();
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let written = table(&[
        ("id", strings(["a", "b", "c"])),
        ("tokens", token_lists(&[vec![1, 2], vec![], vec![3]])),
        ("number", numbers),
    ]);
    for (name, rows_per_group) in [("x/1.parquet", 2), ("x/2.parquet", 9)] {
        write_parquet(&folder.path().join(name), &written, rows_per_group);
    }
    let read = read_parquet(&folder.path().join("x"));
    assert_eq!(texts(&read, "id"), ["a", "b", "c", "a", "b", "c"]);
    assert_eq!(token_ids(&read, "tokens")[..3], [vec![1, 2], vec![], vec![3]]);
    assert_eq!(optional_integers(&read, "number")[1], None);
    assert_eq!(count_rows(&folder.path().join("x/1.parquet")), 3);
    let with_key = folder.path().join("y.parquet");
    write_parquet_with(&with_key, &written.slice(0, 1), 1, &[("key", "value")]);
    assert_eq!(footer_value(&with_key, "key"), Some("value".to_owned()));
    assert_eq!(footer_value(&with_key, "another"), None);
    assert_eq!(integers(&read_parquet(&with_key), "number"), [1]);
}

#[test]
fn a_document_is_reproducible_and_repeats_itself() {
    let tokens = document(7, 600);
    assert_eq!(tokens.len(), 600);
    assert!(tokens.iter().all(|token| (2..97).contains(token)));
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    assert_eq!(hex(&Sha256::digest(&bytes)), KNOWN);
    let recurs =
        |from: usize| tokens[from + 64..].windows(8).any(|later| later == &tokens[from..from + 8]);
    assert!((0..400).filter(|from| recurs(*from)).count() > 40, "passages recur far back");
    let names = texts(&corpus("x", &[3, 5]), "id");
    assert_eq!(names, ["x-0", "x-1"]);
    assert_eq!(
        token_ids(&corpus("x", &[3, 5]), "tokens"),
        token_ids(&corpus("x", &[3, 5]), "tokens")
    );
    assert_ne!(token_ids(&corpus("x", &[9]), "tokens"), token_ids(&corpus("y", &[9]), "tokens"));
}

/// Hash of the tokens of `document(7, 600)`: results of whole runs depend on them.
const KNOWN: &str = "56371fdde4deb8aaffa6daf8ca72f499ab92374150aed2382f9a5837db4947e0";

#[test]
fn a_pipeline_is_written_section_by_section() {
    let text = Pipeline::tokens("m", 64)
        .input("unit_bytes: 1")
        .score("alpha: 0")
        .filter("min_score: 1")
        .to_string();
    let expected = "version: 1\nname: test\n\
        input: {path: input, id_column: id, tokens_column: tokens, unit_bytes: 1}\nstages:\n  \
        - {stage: load-partial-model, model: m}\n  - {stage: tokenize, window_tokens: 64, bos: 0}\n  \
        - {stage: first-layer-attention}\n  - {stage: score, alpha: 0}\n  - {stage: filter, min_score: 1}\n\
        output: {path: out, part_bytes: 0}\n";
    assert_eq!(text, expected);
}
