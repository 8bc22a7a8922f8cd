//! Documents of the shared folder next to the repository, and the bytes of their tokens.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use longsift_stages::tokenize::{Encoder, SpecialTokensInText};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use serde_json::Value;

use super::Outcome;

/// Returns a path in the shared folder.
pub(super) fn shared(path: &str) -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    std::env::var_os("LONGSIFT_SHARED").map_or_else(default, PathBuf::from).join(path)
}

/// Reads the texts of a shared corpus, by `data_id`.
pub(super) fn texts(file: &str) -> Outcome<BTreeMap<String, String>> {
    let reader = SerializedFileReader::new(File::open(shared("corpora").join(file))?)?;
    let fields = reader.metadata().file_metadata().schema().get_fields();
    let column = |name| fields.iter().position(|field| field.name() == name).ok_or(name);
    let (ids, texts) = (column("data_id")?, column("text")?);
    let document = |row: parquet::errors::Result<parquet::record::Row>| {
        let row = row?;
        Ok((row.get_string(ids)?.clone(), row.get_string(texts)?.clone()))
    };
    reader.get_row_iter(None)?.map(document).collect()
}

/// Opens the tokenizer of a shared folder such as `models/mini`.
pub(super) fn tokenizer(folder: &str) -> Outcome<Encoder> {
    let path = shared(folder).join("tokenizer.json");
    Ok(Encoder::open(&path, SpecialTokensInText::Parse)?)
}

/// Returns the bytes of each token of a byte-level tokenizer, by id.
pub(super) fn token_bytes(folder: &str) -> Outcome<Vec<Vec<u8>>> {
    let tokenizer = fs::read(shared(folder).join("tokenizer.json"))?;
    let tokenizer: Value = serde_json::from_slice(&tokenizer)?;
    let vocabulary = tokenizer["model"]["vocab"].as_object().ok_or("no vocabulary")?;
    // The published alphabet: printable bytes map to themselves, the others to the letters from 256 on, in order.
    let printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let bytes = (0..=255).filter(printable).chain((0..=255).filter(|byte| !printable(byte)));
    let letters = (0..=255_u8).filter(printable).map(char::from).chain('\u{100}'..);
    let alphabet: BTreeMap<char, u8> = letters.zip(bytes).collect();
    let mut all = vec![Vec::new(); vocabulary.len()];
    for (token, id) in vocabulary {
        let id = usize::try_from(id.as_u64().ok_or("an id is not a number")?)?;
        let bytes = token.chars().filter_map(|letter| alphabet.get(&letter)).copied();
        *all.get_mut(id).ok_or("ids have holes")? = bytes.collect();
    }
    Ok(all)
}
