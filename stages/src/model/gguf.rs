//! The header of a GGUF file, checked against the file before anything is allocated.
//!
//! Written here because the published readers either map and read whole files or trust their lengths. Layout, version 2
//! and 3, little-endian:
//!
//! ```text
//! "GGUF"  version u32  tensors u64  entries u64
//! entries: key text, type u32, value       a text is its length u64 and its bytes; a list is type, length, values
//! tensors: name text, dimensions u32, sizes u64 (the fastest first), type u32, offset u64
//! zeros to a multiple of `general.alignment`, then the tensors, each at its offset
//! ```
//!
//! Long lists and texts, such as the tokenizer's, are walked through and not kept.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::forms::BlockType;
use super::stored::{Entry, StoredType};

/// Texts and lists longer than this are not kept.
const MOST_KEPT: u64 = 4096;
const MOST_NAME_BYTES: u64 = 1 << 16;
const MOST_DIMENSIONS: u32 = 4;
const MOST_ALIGNMENT: u64 = 1 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// What a header says.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: BTreeMap<String, Entry>,
    /// SHA-256 of the header.
    pub(crate) digest: [u8; 32],
}

/// The entries of a header that are short enough to be kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metadata(BTreeMap<String, Value>);

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Whole(u64),
    Negative(i64),
    Float(f64),
    Flag(bool),
    Text(String),
    List(Vec<Value>),
    /// Too long to be kept.
    Long,
}

impl Metadata {
    /// A text, if the entry is one.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.0.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number, or the first of a list with one per layer.
    pub(crate) fn whole(&self, key: &str) -> Option<u64> {
        match self.0.get(key)? {
            Value::Whole(number) => Some(*number),
            Value::List(list) => match list.first()? {
                Value::Whole(number) => Some(*number),
                _ => None,
            },
            _ => None,
        }
    }

    /// A number. Single-precision ones are the shortest decimal number that is stored so: 1e-5, not 9.99999974e-6.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        match self.0.get(key)? {
            Value::Float(number) => Some(*number),
            Value::Whole(number) => Some(*number as f64),
            Value::Negative(number) => Some(*number as f64),
            _ => None,
        }
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.0.get(key)? {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }
}

/// Reads the header of a file of `file_bytes` bytes.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(file: &File, file_bytes: u64) -> Result<Header, String> {
    let mut source = Source {
        reader: BufReader::with_capacity(1 << 16, file),
        left: file_bytes,
        read: 0,
        hash: Sha256::new(),
    };
    if source.bytes::<4>()? != *b"GGUF" {
        return Err("it does not begin with `GGUF`".to_owned());
    }
    let version = source.u32()?;
    if !(2..=3).contains(&version) {
        let order =
            if version.swap_bytes() <= 3 { " (written by a big-endian machine?)" } else { "" };
        return Err(format!("it has version {version}{order}; 2 and 3 are supported"));
    }
    let (tensors, entries) = (source.u64()?, source.u64()?);
    let mut metadata = Metadata::default();
    for _ in 0..entries {
        let key = source.name()?;
        let kind = source.u32()?;
        let value = source.value(kind, 0)?;
        metadata.0.insert(key, value);
    }
    let alignment = metadata.whole("general.alignment").unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MOST_ALIGNMENT {
        return Err(format!("its alignment is {alignment}"));
    }
    let mut found = BTreeMap::new();
    for _ in 0..tensors {
        let (name, tensor) = source.tensor()?;
        if found.insert(name.clone(), tensor).is_some() {
            return Err(format!("tensor `{}` is in it twice", name.escape_debug()));
        }
    }
    let start = source.read.next_multiple_of(alignment);
    let tensors = placed(found, start, file_bytes, alignment)?;
    Ok(Header { metadata, tensors, digest: source.hash.finalize().into() })
}

/// A tensor's line in the header, with an offset from the first tensor's place.
struct Line {
    dtype: StoredType,
    shape: Vec<u64>,
    bytes: u64,
    offset: u64,
}

/// The tensors' places in the file: inside it, aligned, without overlaps.
fn placed(
    lines: BTreeMap<String, Line>,
    start: u64,
    file_bytes: u64,
    alignment: u64,
) -> Result<BTreeMap<String, Entry>, String> {
    let mut entries = BTreeMap::new();
    let mut places = Vec::new();
    for (name, line) in lines {
        let shown = name.escape_debug();
        let first = start.checked_add(line.offset);
        let range = first.and_then(|first| Some(first..first.checked_add(line.bytes)?));
        let Some(bytes) = range.filter(|range| range.end <= file_bytes) else {
            return Err(format!(
                "tensor `{shown}` has {} bytes from {start} + {} on; the file has {file_bytes}",
                line.bytes, line.offset
            ));
        };
        if !line.offset.is_multiple_of(alignment) {
            return Err(format!("tensor `{shown}` is not at a multiple of {alignment} bytes"));
        }
        places.push((bytes.start, bytes.end, name.clone()));
        entries.insert(name, Entry { dtype: line.dtype, shape: line.shape, bytes });
    }
    places.retain(|(start, end, _)| start < end);
    places.sort();
    match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => {
            let [one, other] = [&pair[0].2, &pair[1].2].map(|name| name.escape_debug());
            Err(format!("tensors `{one}` and `{other}` overlap"))
        }
        None => Ok(entries),
    }
}

/// What is left of a file, read in order.
struct Source<'a> {
    reader: BufReader<&'a File>,
    left: u64,
    read: u64,
    hash: Sha256,
}

impl Source<'_> {
    fn take(&mut self, bytes: u64) -> Result<(), String> {
        self.left = self.left.checked_sub(bytes).ok_or("its header ends early")?;
        self.read += bytes;
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        self.take(buffer.len() as u64)?;
        self.reader.read_exact(buffer).map_err(|error| error.to_string())?;
        self.hash.update(&*buffer);
        Ok(())
    }

    fn bytes<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], String> {
        let mut bytes = [0; COUNT];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// Reads bytes and keeps nothing of them.
    fn skip(&mut self, mut bytes: u64) -> Result<(), String> {
        if bytes > self.left {
            return Err("its header ends early".to_owned());
        }
        let mut buffer = [0; 4096];
        while bytes > 0 {
            let now = bytes.min(buffer.len() as u64);
            self.fill(&mut buffer[..now as usize])?;
            bytes -= now;
        }
        Ok(())
    }

    /// A text of at most `most` bytes; a longer one is `None`.
    fn text(&mut self, most: u64) -> Result<Option<String>, String> {
        let length = self.u64()?;
        if length > most {
            self.skip(length)?;
            return Ok(None);
        }
        let mut bytes = vec![0; length.min(self.left) as usize];
        self.fill(&mut bytes)?;
        if length > bytes.len() as u64 {
            return Err("its header ends early".to_owned());
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn name(&mut self) -> Result<String, String> {
        self.text(MOST_NAME_BYTES)?
            .ok_or_else(|| format!("a name has more than {MOST_NAME_BYTES} bytes"))
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Whole(self.bytes::<1>()?[0].into()),
            1 => signed(self.bytes::<1>()?[0].cast_signed().into()),
            2 => Value::Whole(u16::from_le_bytes(self.bytes()?).into()),
            3 => signed(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Whole(self.u32()?.into()),
            5 => signed(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(shortest(f32::from_le_bytes(self.bytes()?))),
            7 => Value::Flag(self.bytes::<1>()?[0] != 0),
            8 => self.text(MOST_KEPT)?.map_or(Value::Long, Value::Text),
            9 => self.list(depth)?,
            10 => Value::Whole(self.u64()?),
            11 => signed(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(format!("an entry has the unknown type {kind}")),
        })
    }

    fn list(&mut self, depth: u32) -> Result<Value, String> {
        if depth > 2 {
            return Err("an entry has lists of lists of lists".to_owned());
        }
        let (kind, length) = (self.u32()?, self.u64()?);
        // Every value takes at least a byte.
        if length > self.left {
            return Err("its header ends early".to_owned());
        }
        let mut list = Vec::new();
        for _ in 0..length {
            let value = self.value(kind, depth + 1)?;
            if length <= MOST_KEPT && kind < 8 {
                list.push(value);
            }
        }
        Ok(if list.len() as u64 == length { Value::List(list) } else { Value::Long })
    }

    fn tensor(&mut self) -> Result<(String, Line), String> {
        let name = self.name()?;
        let dimensions = self.u32()?;
        let wrong = |why: &str| format!("tensor `{}` {why}", name.escape_debug());
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(wrong(&format!("has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64()?);
        }
        let (kind, offset) = (self.u32()?, self.u64()?);
        let numbers = shape.iter().try_fold(1u64, |numbers, size| numbers.checked_mul(*size));
        let numbers = numbers.ok_or_else(|| wrong("has more numbers than a file can hold"))?;
        let dtype = stored_type(kind);
        let bytes = match dtype {
            StoredType::Numbers(dtype) => numbers.checked_mul(dtype.bitsize() as u64 / 8),
            StoredType::Blocks(blocks) if shape[0].is_multiple_of(blocks.numbers()) => {
                (numbers / blocks.numbers()).checked_mul(blocks.bytes())
            }
            StoredType::Blocks(_) => return Err(wrong("has rows that are not whole blocks")),
            StoredType::Unknown(_) => Some(0),
        };
        let bytes = bytes.ok_or_else(|| wrong("has more bytes than a file can hold"))?;
        shape.reverse();
        Ok((name, Line { dtype, shape, bytes, offset }))
    }
}

fn signed(number: i64) -> Value {
    u64::try_from(number).map_or(Value::Negative(number), Value::Whole)
}

/// The shortest decimal number that this is the nearest single-precision one to.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| number.into())
}

fn stored_type(kind: u32) -> StoredType {
    let number = match kind {
        0 => Some(Dtype::F32),
        1 => Some(Dtype::F16),
        24 => Some(Dtype::I8),
        25 => Some(Dtype::I16),
        26 => Some(Dtype::I32),
        27 => Some(Dtype::I64),
        28 => Some(Dtype::F64),
        30 => Some(Dtype::BF16),
        _ => None,
    };
    let blocks = || BlockType::of(kind).map(StoredType::Blocks);
    number.map(StoredType::Numbers).or_else(blocks).unwrap_or(StoredType::Unknown(kind))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    fn start(tensors: u64, entries: u64) -> Vec<u8> {
        [b"GGUF".as_slice(), &3u32.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()]
            .concat()
    }

    /// A tensor's line: sizes, type, offset.
    fn line(name: &str, sizes: &[u64], kind: u32, offset: u64) -> Vec<u8> {
        let mut bytes = [text(name), (sizes.len() as u32).to_le_bytes().to_vec()].concat();
        bytes.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        [bytes, kind.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat()
    }

    fn header(bytes: &[u8]) -> Result<Header, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        fs::write(&path, bytes).unwrap();
        read(&File::open(path).unwrap(), bytes.len() as u64)
    }

    /// The lines of some tensors and room for `data` bytes.
    fn of_lines(lines: &[Vec<u8>], data: usize) -> Result<Header, String> {
        let mut bytes = [start(lines.len() as u64, 0), lines.concat()].concat();
        bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
        header(&bytes)
    }

    #[test]
    fn sizes_are_turned_round_and_tensors_lie_where_their_lines_say() {
        let lines = [line("a", &[64, 3], 8, 0), line("b", &[5], 0, 224)];
        let header = of_lines(&lines, 244).unwrap();
        let a = &header.tensors["a"];
        assert_eq!((a.shape.as_slice(), a.byte_length()), ([3, 64].as_slice(), 3 * 2 * 34));
        assert_eq!(a.dtype.to_string(), "q8_0");
        assert_eq!(header.tensors["b"].bytes.start - a.bytes.start, 224);
    }

    #[test]
    fn entries_are_kept_where_they_are_short() {
        let float =
            [text("eps"), 6u32.to_le_bytes().to_vec(), 1e-5f32.to_le_bytes().to_vec()].concat();
        let heads = [text("heads"), 9u32.to_le_bytes().to_vec(), 5u32.to_le_bytes().to_vec()];
        let heads =
            [heads.concat(), 2u64.to_le_bytes().to_vec(), 7i32.to_le_bytes().to_vec(), vec![0; 4]]
                .concat();
        let long =
            [text("template"), 8u32.to_le_bytes().to_vec(), text(&"x".repeat(5000))].concat();
        let header = header(&[start(0, 3), float, heads, long].concat()).unwrap();
        assert_eq!(header.metadata.number("eps").map(f64::to_bits), Some(1e-5f64.to_bits()));
        assert_eq!(header.metadata.whole("heads"), Some(7));
        assert_eq!((header.metadata.text("template"), header.metadata.whole("none")), (None, None));
    }

    #[test]
    fn hostile_headers_are_refused_with_the_reason() {
        let lines = |lines: &[Vec<u8>]| of_lines(lines, 256).unwrap_err();
        let kind = |kind: u32, rest: &[u8]| {
            header(&[start(0, 1), text("key"), kind.to_le_bytes().to_vec(), rest.to_vec()].concat())
                .unwrap_err()
        };
        let list = |kind: u32, length: u64| {
            [kind.to_le_bytes().as_slice(), &length.to_le_bytes()].concat()
        };
        for (reason, found) in [
            ("has 272 bytes from 64 + 0 on; the file has 320", lines(&[line("a", &[256], 8, 0)])),
            ("has 4 bytes from", lines(&[line("a", &[1], 0, u64::MAX - 3)])),
            ("is not at a multiple of 32 bytes", lines(&[line("a", &[1], 0, 4)])),
            (
                "tensors `a` and `b` overlap",
                lines(&[line("a", &[16], 0, 0), line("b", &[2], 0, 32)]),
            ),
            ("tensor `a` is in it twice", lines(&[line("a", &[1], 0, 0), line("a", &[1], 0, 32)])),
            ("has more numbers than a file can hold", lines(&[line("a", &[u64::MAX, 2], 0, 0)])),
            ("has more bytes than a file can hold", lines(&[line("a", &[1 << 63], 0, 0)])),
            ("has rows that are not whole blocks", lines(&[line("a", &[33, 32], 2, 0)])),
            ("has 5 dimensions", lines(&[line("a", &[1; 5], 0, 0)])),
            ("has 0 dimensions", lines(&[line("a", &[], 0, 0)])),
            ("ends early", header(&start(u64::MAX, 0)).unwrap_err()),
            ("ends early", header(&start(0, u64::MAX)).unwrap_err()),
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
            for (place, byte) in changes {
                bytes[place] = byte;
            }
            bytes.truncate(cut.unwrap_or(usize::MAX));
            if let Ok(header) = header(&bytes) {
                prop_assert!(header.tensors.values().all(|entry| entry.bytes.end <= bytes.len() as u64));
            }
        }
    }
}
