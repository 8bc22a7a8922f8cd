//! The header of a GGUF file, checked against the file before anything is allocated.
//!
//! Published readers map and read whole files or trust the lengths in them; this one does neither. Layout, version 2
//! and 3, little-endian:
//!
//! ```text
//! "GGUF"  version u32  tensors u64  entries u64
//! entries: key text, type u32, value       a text is its length u64 and its bytes; a list is type, length, values
//! tensors: name text, dimensions u32, sizes u64 (the fastest first), type u32, offset u64
//! zeros to a multiple of `general.alignment`, then the tensors, each at its offset
//! ```
//!
//! Long lists and texts are skipped, except the tokenizer's if requested.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::entry::{StoredType, TensorEntry};
use super::formats::BlockType;
use crate::contract::open_regular;

/// Texts and lists longer than this are skipped.
const MAX_KEPT: u64 = 4096;
const MAX_NAME_BYTES: u64 = 1 << 16;
/// Prefix of the tokenizer's keys, and maximum length of its lists.
const TOKENIZER: &str = "tokenizer.";
const MAX_TOKENS: u64 = 1 << 21;
/// Maximum size of a header: a tokenizer of 256,000 tokens takes 20 MB.
const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Maximum number of entries; real files have a few dozen.
const MAX_ENTRIES: u64 = 1 << 14;
/// Maximum number of tensors; split files of the largest models have a few thousand in total.
const MAX_TENSORS: u64 = 1 << 17;
const MAX_DIMENSIONS: u32 = 4;
const MAX_ALIGNMENT: u64 = 1 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

#[derive(Debug)]
pub(crate) struct GgufHeader {
    pub(crate) metadata: GgufMetadata,
    pub(crate) tensors: BTreeMap<String, TensorEntry>,
    pub(crate) digest: [u8; 32],
}

/// Entries of a header that are short enough to be kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct GgufMetadata(BTreeMap<String, GgufValue>);

#[derive(Clone, Debug, PartialEq)]
enum GgufValue {
    Whole(u64),
    /// Negative, or not whole.
    Float(f64),
    Flag(bool),
    Text(String),
    List(Vec<GgufValue>),
    /// List that was too long to be kept, with its length.
    LongList(u64),
    LongText,
}

impl GgufValue {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Whole(number) => Some(*number as f64),
            _ => None,
        }
    }
}

impl GgufMetadata {
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.text()
    }

    /// Returns a whole number, or the first of a list with one per layer.
    pub(crate) fn whole(&self, key: &str) -> Option<u64> {
        match self.0.get(key)? {
            GgufValue::Whole(number) => Some(*number),
            GgufValue::List(list) => match list.first()? {
                GgufValue::Whole(number) => Some(*number),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns a number; of single precision the shortest decimal with the same rounding.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key)?.number()
    }

    /// Whether an entry exists, but is neither a number nor a list.
    pub(crate) fn is_no_number(&self, key: &str) -> bool {
        use GgufValue::{Flag, LongText, Text};
        self.0.get(key).is_some_and(|value| matches!(value, Flag(_) | Text(_) | LongText))
    }

    pub(crate) fn is_no_text(&self, key: &str) -> bool {
        self.0.contains_key(key) && self.text(key).is_none()
    }

    pub(crate) fn texts(&self, key: &str) -> Option<Vec<&str>> {
        self.list(key, GgufValue::text)
    }

    pub(crate) fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        self.list(key, GgufValue::number)
    }

    fn list<'a, T>(
        &'a self,
        key: &str,
        convert: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Option<Vec<T>> {
        match self.0.get(key)? {
            GgufValue::List(list) => list.iter().map(convert).collect(),
            _ => None,
        }
    }

    /// Returns the length of a list, whether or not it was kept.
    pub(crate) fn list_length(&self, key: &str) -> Option<u64> {
        match self.0.get(key)? {
            GgufValue::List(list) => Some(list.len() as u64),
            GgufValue::LongList(length) => Some(*length),
            _ => None,
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn is_false_or_zero(&self, key: &str) -> bool {
        self.flag(key) == Some(false) || self.number(key) == Some(0.0)
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.0.get(key)? {
            GgufValue::Flag(flag) => Some(*flag),
            _ => None,
        }
    }
}

/// Reads a file's entries about its model and its tokenizer, including the tokenizer's long lists.
pub(crate) fn tokenizer_metadata(path: &Path) -> Result<GgufMetadata, String> {
    let (metadata, file) = open_regular(path).map_err(|error| error.to_string())?;
    Ok(read(&file, metadata.len(), Some(TOKENIZER))?.metadata)
}

/// Reads the header of a file of `file_bytes` bytes. `kept`: prefix of the keys whose long values are kept.
pub(crate) fn read(file: &File, file_bytes: u64, kept: Option<&str>) -> Result<GgufHeader, String> {
    let mut source = HeaderReader {
        reader: BufReader::with_capacity(1 << 16, file),
        left: file_bytes.min(MAX_HEADER_BYTES),
        read: 0,
        early: if file_bytes > MAX_HEADER_BYTES {
            format!("its header has more than {MAX_HEADER_BYTES} bytes")
        } else {
            "its header ends early".to_owned()
        },
        hash: Sha256::new(),
        keeps_long: false,
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
    if tensors > MAX_TENSORS || entries > MAX_ENTRIES {
        return Err(format!(
            "it claims {tensors} tensors and {entries} entries; at most {MAX_TENSORS} and {MAX_ENTRIES} are read"
        ));
    }
    let mut metadata = GgufMetadata::default();
    for _ in 0..entries {
        let key = source.name()?;
        source.keeps_long = kept.is_some_and(|kept| key.starts_with(kept));
        let kind = source.u32()?;
        let value = source.value(kind, 0)?;
        if metadata.0.insert(key.clone(), value).is_some() {
            return Err(format!("entry `{}` is listed twice", key.escape_debug()));
        }
    }
    let alignment = metadata.whole("general.alignment").unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(format!("its alignment is {alignment}"));
    }
    let mut found = BTreeMap::new();
    for _ in 0..tensors {
        let (name, tensor) = source.tensor()?;
        if found.insert(name.clone(), tensor).is_some() {
            return Err(format!("tensor `{}` is listed twice", name.escape_debug()));
        }
    }
    let start = source.read.next_multiple_of(alignment);
    let tensors = locate_tensors(found, start, file_bytes, alignment)?;
    Ok(GgufHeader { metadata, tensors, digest: source.hash.finalize().into() })
}

/// Returns the tensors' ranges in the file, after checking that they are inside it, aligned and without overlaps.
fn locate_tensors(
    found: BTreeMap<String, (TensorEntry, u64)>,
    start: u64,
    file_bytes: u64,
    alignment: u64,
) -> Result<BTreeMap<String, TensorEntry>, String> {
    let mut entries = BTreeMap::new();
    let mut ranges = Vec::new();
    for (name, (entry, offset)) in found {
        let (shown, length) = (name.escape_debug(), entry.byte_length());
        let first = start.checked_add(offset);
        let range = first.and_then(|first| Some(first..first.checked_add(length)?));
        let Some(bytes) = range.filter(|range| range.end <= file_bytes) else {
            return Err(format!(
                "tensor `{shown}` has {length} bytes from {start} + {offset} on; the file has {file_bytes}"
            ));
        };
        if !offset.is_multiple_of(alignment) {
            return Err(format!("tensor `{shown}` is not at a multiple of {alignment} bytes"));
        }
        ranges.push((bytes.start, bytes.end, name.clone()));
        entries.insert(name, TensorEntry { bytes, ..entry });
    }
    ranges.retain(|(start, end, _)| start < end);
    ranges.sort();
    match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => {
            let [one, other] = [&pair[0].2, &pair[1].2].map(|name| name.escape_debug());
            Err(format!("tensors `{one}` and `{other}` overlap"))
        }
        None => Ok(entries),
    }
}

/// Sequential reader of the remaining file.
struct HeaderReader<'a> {
    reader: BufReader<&'a File>,
    left: u64,
    read: u64,
    early: String,
    hash: Sha256,
    keeps_long: bool,
}

impl HeaderReader<'_> {
    fn take(&mut self, bytes: u64) -> Result<(), String> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| self.early.clone())?;
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

    fn skip(&mut self, mut bytes: u64) -> Result<(), String> {
        if bytes > self.left {
            return Err(self.early.clone());
        }
        let mut buffer = [0; 4096];
        while bytes > 0 {
            let length = bytes.min(buffer.len() as u64);
            self.fill(&mut buffer[..length as usize])?;
            bytes -= length;
        }
        Ok(())
    }

    /// Reads a text of at most `max` bytes; `None` if it is longer.
    fn text(&mut self, max: u64) -> Result<Option<String>, String> {
        let length = self.u64()?;
        if length > max {
            self.skip(length)?;
            return Ok(None);
        }
        let mut bytes = vec![0; length.min(self.left) as usize];
        self.fill(&mut bytes)?;
        if length > bytes.len() as u64 {
            return Err(self.early.clone());
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn name(&mut self) -> Result<String, String> {
        self.text(MAX_NAME_BYTES)?
            .ok_or_else(|| format!("a name has more than {MAX_NAME_BYTES} bytes"))
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<GgufValue, String> {
        Ok(match kind {
            0 => GgufValue::Whole(self.bytes::<1>()?[0].into()),
            1 => signed(self.bytes::<1>()?[0].cast_signed().into()),
            2 => GgufValue::Whole(u16::from_le_bytes(self.bytes()?).into()),
            3 => signed(i16::from_le_bytes(self.bytes()?).into()),
            4 => GgufValue::Whole(self.u32()?.into()),
            5 => signed(i32::from_le_bytes(self.bytes()?).into()),
            6 => GgufValue::Float(shortest(f32::from_le_bytes(self.bytes()?))),
            7 => GgufValue::Flag(self.bytes::<1>()?[0] != 0),
            8 => {
                let max = if self.keeps_long { MAX_NAME_BYTES } else { MAX_KEPT };
                self.text(max)?.map_or(GgufValue::LongText, GgufValue::Text)
            }
            9 => self.list(depth)?,
            10 => GgufValue::Whole(self.u64()?),
            11 => signed(i64::from_le_bytes(self.bytes()?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(format!("an entry has the unknown type {kind}")),
        })
    }

    fn list(&mut self, depth: u32) -> Result<GgufValue, String> {
        if depth > 2 {
            return Err("an entry has lists of lists of lists".to_owned());
        }
        let (kind, length) = (self.u32()?, self.u64()?);
        // Every value takes at least one byte.
        if length > self.left {
            return Err(self.early.clone());
        }
        let max = if self.keeps_long { MAX_TOKENS } else { MAX_KEPT };
        if let Some(width) = width(kind).filter(|_| length > max) {
            self.skip(length.saturating_mul(width))?;
            return Ok(GgufValue::LongList(length));
        }
        let mut list = Vec::new();
        for _ in 0..length {
            let value = self.value(kind, depth + 1)?;
            if length <= max && (kind < 8 || self.keeps_long && kind == 8) {
                list.push(value);
            }
        }
        let is_complete = list.len() as u64 == length;
        Ok(if is_complete { GgufValue::List(list) } else { GgufValue::LongList(length) })
    }

    fn tensor(&mut self) -> Result<(String, (TensorEntry, u64)), String> {
        let name = self.name()?;
        let dimensions = self.u32()?;
        let wrong = |why: &str| format!("tensor `{}` {why}", name.escape_debug());
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
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
        Ok((name, (TensorEntry { dtype, shape, bytes: 0..bytes }, offset)))
    }
}

/// Returns the size of a value in bytes, for types of fixed size.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn signed(number: i64) -> GgufValue {
    u64::try_from(number).map_or(GgufValue::Float(number as f64), GgufValue::Whole)
}

/// Returns the shortest decimal number that rounds to this single-precision number.
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
    let blocks = || BlockType::from_number(kind).map(StoredType::Blocks);
    number.map(StoredType::Numbers).or_else(blocks).unwrap_or(StoredType::Unknown(kind))
}
