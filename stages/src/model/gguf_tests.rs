//! Headers of GGUF files: valid, hostile and random ones.

use std::fs::{self, File};
use std::path::Path;

use proptest::prelude::*;

use super::gguf::*;
use super::gguf_config;
use super::shard::WeightShard;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn start(tensors: u64, entries: u64) -> Vec<u8> {
    [b"GGUF".as_slice(), &3u32.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()]
        .concat()
}

/// Returns a tensor's header entry: sizes, type, offset.
fn line(name: &str, sizes: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = [text(name), (sizes.len() as u32).to_le_bytes().to_vec()].concat();
    bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
    [bytes, kind.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat()
}

fn header(bytes: &[u8]) -> Result<GgufHeader, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    fs::write(&path, bytes).unwrap();
    read(&File::open(path).unwrap(), bytes.len() as u64, None)
}

/// Parses a header with some tensor entries and room for `data` bytes.
fn header_with(lines: &[Vec<u8>], data: usize) -> Result<GgufHeader, String> {
    let mut bytes = [start(lines.len() as u64, 0), lines.concat()].concat();
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    header(&bytes)
}

#[test]
fn sizes_are_reversed_and_tensors_are_located() {
    let lines = [line("a", &[64, 3], 8, 0), line("b", &[5], 0, 224)];
    let header = header_with(&lines, 244).unwrap();
    let a = &header.tensors["a"];
    assert_eq!((a.shape.as_slice(), a.byte_length()), ([3, 64].as_slice(), 3 * 2 * 34));
    assert_eq!(a.dtype.to_string(), "q8_0");
    assert_eq!(header.tensors["b"].bytes.start - a.bytes.start, 224);
}

#[test]
fn a_part_under_another_name_is_refused_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let word = |key: &str, value: u16| {
        [text(key), 2u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat()
    };
    let bytes = [start(0, 2), word("split.count", 3), word("split.no", 1)].concat();
    fs::write(folder.path().join("renamed.gguf"), bytes).unwrap();
    let shard = WeightShard::open(folder.path(), "renamed.gguf").unwrap();
    let refused = gguf_config::architecture(&shard).unwrap_err().message;
    assert!(refused.contains("is part number 2 of a model in 3 files"), "{refused}");
}

#[test]
fn short_entries_are_kept() {
    let float = [text("eps"), 6u32.to_le_bytes().to_vec(), 1e-5f32.to_le_bytes().to_vec()].concat();
    let heads = [text("heads"), 9u32.to_le_bytes().to_vec(), 5u32.to_le_bytes().to_vec()];
    let heads =
        [heads.concat(), 2u64.to_le_bytes().to_vec(), 7i32.to_le_bytes().to_vec(), vec![0; 4]]
            .concat();
    let long = [text("template"), 8u32.to_le_bytes().to_vec(), text(&"x".repeat(5000))].concat();
    let header = header(&[start(0, 3), float, heads, long].concat()).unwrap();
    assert_eq!(header.metadata.number("eps").map(f64::to_bits), Some(1e-5f64.to_bits()));
    assert_eq!(header.metadata.whole("heads"), Some(7));
    assert_eq!((header.metadata.text("template"), header.metadata.whole("none")), (None, None));
}

#[test]
fn hostile_headers_are_refused_with_the_reason() {
    let lines = |lines: &[Vec<u8>]| header_with(lines, 256).unwrap_err();
    let kind = |kind: u32, rest: &[u8]| {
        header(&[start(0, 1), text("key"), kind.to_le_bytes().to_vec(), rest.to_vec()].concat())
            .unwrap_err()
    };
    let list =
        |kind: u32, length: u64| [kind.to_le_bytes().as_slice(), &length.to_le_bytes()].concat();
    for (reason, found) in [
        ("has 272 bytes from 64 + 0 on; the file has 320", lines(&[line("a", &[256], 8, 0)])),
        ("has 4 bytes from", lines(&[line("a", &[1], 0, u64::MAX - 3)])),
        ("is not at a multiple of 32 bytes", lines(&[line("a", &[1], 0, 4)])),
        ("tensors `a` and `b` overlap", lines(&[line("a", &[16], 0, 0), line("b", &[2], 0, 32)])),
        ("tensor `a` is listed twice", lines(&[line("a", &[1], 0, 0), line("a", &[1], 0, 32)])),
        ("has more numbers than a file can hold", lines(&[line("a", &[u64::MAX, 2], 0, 0)])),
        ("has more bytes than a file can hold", lines(&[line("a", &[1 << 63], 0, 0)])),
        ("has rows that are not whole blocks", lines(&[line("a", &[33, 32], 2, 0)])),
        ("has 5 dimensions", lines(&[line("a", &[1; 5], 0, 0)])),
        ("has 0 dimensions", lines(&[line("a", &[], 0, 0)])),
        ("it claims 18446744073709551615 tensors", header(&start(u64::MAX, 0)).unwrap_err()),
        ("and 18446744073709551615 entries", header(&start(0, u64::MAX)).unwrap_err()),
        ("ends early", kind(8, &u64::MAX.to_le_bytes())),
        ("ends early", kind(8, &4000u64.to_le_bytes())),
        ("ends early", kind(9, &list(0, u64::MAX))),
        (
            "lists of lists of lists",
            kind(9, &[list(9, 1), list(9, 1), list(9, 1), vec![0; 9]].concat()),
        ),
        ("unknown type 13", kind(13, &[0; 8])),
        (
            "a name has more than",
            header(&[start(0, 1), text(&"k".repeat(70_000))].concat()).unwrap_err(),
        ),
        ("does not begin with", header(b"GGML0000").unwrap_err()),
        ("ends early", header(b"GG").unwrap_err()),
        (
            "has version 50331648 (written by",
            header(&[b"GGUF".as_slice(), &[0, 0, 0, 3]].concat()).unwrap_err(),
        ),
    ] {
        assert!(found.contains(reason), "{reason}: {found}");
    }
    let alignment =
        [text("general.alignment"), 4u32.to_le_bytes().to_vec(), 12u32.to_le_bytes().to_vec()];
    assert_eq!(
        header(&[start(0, 1), alignment.concat()].concat()).unwrap_err(),
        "its alignment is 12"
    );
}

fn case() -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forms/gguf_f16");
    fs::read(folder.join("model.gguf")).unwrap()
}

proptest! {
    #[test]
    fn random_bytes_never_panic(rest in prop::collection::vec(any::<u8>(), 0..300), tensors in 0u64..4, entries in 0u64..4) {
        let _ = header(&[start(tensors, entries), rest].concat());
    }

    #[test]
    fn a_changed_header_never_panics_and_names_only_bytes_of_the_file(
        changes in prop::collection::vec((0usize..6000, any::<u8>()), 1..12),
        cut in prop::option::of(0usize..6000),
    ) {
        let mut bytes = case();
        for (index, byte) in changes {
            bytes[index] = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        if let Ok(header) = header(&bytes) {
            prop_assert!(header.tensors.values().all(|entry| entry.bytes.end <= bytes.len() as u64));
        }
    }
}
