//! Malicious GGUF files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::bounded;
use crate::support::tables::{corpus, write_parquet};
use crate::support::{Pipeline, Workspace};

/// Start of a header that claims so many tensors and entries.
fn header(tensors: u64, entries: u64) -> Vec<u8> {
    [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()]
        .concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Entry: its key, the number of its type, its value.
fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [text(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
}

/// List that claims `length` values of a type, with the bytes of those present.
fn list(kind: u32, length: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), length.to_le_bytes().as_slice(), values].concat()
}

/// Tensor of that shape at that offset.
fn tensor(name: &str, shape: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let sizes = shape.iter().flat_map(|size| size.to_le_bytes());
    let shape = (shape.len() as u32).to_le_bytes().into_iter().chain(sizes);
    let location = kind.to_le_bytes().into_iter().chain(offset.to_le_bytes());
    text(name).into_iter().chain(shape).chain(location).collect()
}

/// Checks that a file of these bytes, extended by a hole, is rejected with these words.
fn refused(what: &str, bytes: &[u8], length: u64, words: &str) {
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("model")).unwrap();
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[64, 64]), 8);
    workspace.write("p.yaml", Pipeline::tokens("model", 64).to_string());
    write(&workspace.path("model/a.gguf"), bytes, length);
    let answer = bounded(&workspace, what, &["run", "p.yaml", "-q"], 3);
    assert!(answer.stderr.contains(words), "{what}: {}", answer.stderr);
    bounded(&workspace, what, &["inspect", "model"], 3);
}

fn write(path: &Path, bytes: &[u8], length: u64) {
    let file = File::create(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_len(length.max(bytes.len() as u64)).unwrap();
}

#[test]
fn headers_that_claim_too_much_are_refused() {
    let far = 1 << 40;
    for (what, tensors, entries) in
        [("tensors", u64::MAX, 0), ("entries", 0, u64::MAX), ("both", 1 << 40, 1 << 40)]
    {
        refused(what, &header(tensors, entries), far, "it claims");
    }
    let long = [header(0, 1), u64::MAX.to_le_bytes().to_vec()].concat();
    refused("the length of a name", &long, far, "header has more than");
    let long = [header(0, 1), (1_u64 << 39).to_le_bytes().to_vec()].concat();
    refused("a name of half a terabyte", &long, far, "more than");
    for (what, value) in [
        ("a text of half a terabyte", (1_u64 << 39).to_le_bytes().to_vec()),
        ("a text of all bytes there are", u64::MAX.to_le_bytes().to_vec()),
    ] {
        refused(
            what,
            &[header(0, 1), entry("k", 8, &value)].concat(),
            far,
            "more than 67108864 bytes",
        );
    }
    for kind in [0, 7, 8, 9, 12] {
        for length in [u64::MAX, 1 << 39, 1 << 26] {
            let bytes = [header(0, 1), entry("k", 9, &list(kind, length, &[]))].concat();
            refused(
                &format!("a list of {length} of type {kind}"),
                &bytes,
                far,
                "header has more than",
            );
        }
    }
}

#[test]
fn entries_of_odd_types_and_depths_are_refused() {
    let nested = list(9, 1, &list(9, 1, &list(9, 1, &list(9, 1, &[]))));
    refused(
        "lists of lists",
        &[header(0, 1), entry("k", 9, &nested)].concat(),
        0,
        "lists of lists",
    );
    refused("an unknown type", &[header(0, 1), entry("k", 77, &[])].concat(), 0, "unknown type");
    for alignment in [0_u32, 3, 1 << 30] {
        let bytes =
            [header(0, 1), entry("general.alignment", 4, &alignment.to_le_bytes())].concat();
        refused("an alignment", &bytes, 0, "its alignment is");
    }
    refused(
        "another version",
        &[b"GGUF".as_slice(), &[9, 0, 0, 0], &[0; 16]].concat(),
        0,
        "version",
    );
    refused("nothing", b"", 0, "ends early");
    refused("half a header", &header(1, 1)[..20], 0, "ends early");
}

#[test]
fn overlapping_overflowing_and_misplaced_tensors_are_rejected() {
    let file = |tensors: &[Vec<u8>]| [header(tensors.len() as u64, 0), tensors.concat()].concat();
    for (what, tensors, words) in [
        ("sizes that overflow", vec![tensor("a", &[1 << 40, 1 << 40], 0, 0)], "more numbers"),
        ("bytes that overflow", vec![tensor("a", &[1 << 62], 0, 0)], "more bytes"),
        ("beyond the end", vec![tensor("a", &[1 << 30], 0, 0)], "the file has"),
        ("an offset that overflows", vec![tensor("a", &[4], 0, u64::MAX - 31)], "the file has"),
        ("an odd offset", vec![tensor("a", &[4], 0, 1)], "multiple of"),
        ("many dimensions", vec![tensor("a", &[1; 9], 0, 0)], "9 dimensions"),
        ("overlap", vec![tensor("a", &[64], 0, 0), tensor("b", &[64], 0, 32)], "overlap"),
        ("one name twice", vec![tensor("a", &[1], 0, 0), tensor("a", &[1], 0, 0)], "twice"),
        ("rows that are no blocks", vec![tensor("a", &[33], 8, 0)], "whole blocks"),
        ("a name to be printed", vec![tensor("\u{1b}[2J\n", &[1 << 30], 0, 0)], "\\u{1b}"),
    ] {
        refused(what, &file(&tensors), 4096, words);
    }
}

#[test]
fn very_many_entries_and_tensors_take_bounded_memory() {
    let entries: Vec<u8> = (0..16_384_u32)
        .flat_map(|key| entry(&key.to_string(), 8, &text(&"v".repeat(3_000))))
        .collect();
    refused("entries", &[header(0, 16_384), entries].concat(), 0, "general.architecture");
    let tensors: Vec<u8> =
        (0..131_072_u64).flat_map(|name| tensor(&name.to_string(), &[8], 0, 32 * name)).collect();
    refused("tensors", &[header(131_072, 0), tensors].concat(), 64 << 20, "general.architecture");
}
