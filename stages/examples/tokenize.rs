//! Encodes the column `text` of Parquet files on one core and prints a line of JSON: bytes, tokens, seconds of the first
//! and of the second pass, and a SHA-256 of all ids.
//!
//! `cargo run --release -p longsift-stages --example tokenize -- TOKENIZER_FOLDER FILE.parquet...`

#![expect(clippy::print_stdout, reason = "the program prints a line of JSON")]

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

use longsift_stages::tokenize::{Encoder, SpecialTokensInText};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tokenizer = arguments.next().ok_or("usage: tokenize TOKENIZER_FOLDER FILE.parquet...")?;
    let mut texts = Vec::new();
    for path in arguments {
        for row in SerializedFileReader::new(File::open(path)?)?.get_row_iter(None)? {
            for (name, field) in row?.into_columns() {
                if let (true, Field::Str(text)) = (name == "text", field) {
                    texts.push(text);
                }
            }
        }
    }
    let started = Instant::now();
    let encoder = Encoder::open(Path::new(&tokenizer), SpecialTokensInText::Parse)?;
    let load = started.elapsed().as_secs_f64();
    let one_core = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let pass = || {
        let (mut tokens, mut hash, mut seconds) = (0, Sha256::new(), 0.0);
        for text in &texts {
            let started = Instant::now();
            let encoded = encoder.encode(text, Encoder::MAX_PART_BYTES)?;
            seconds += started.elapsed().as_secs_f64();
            tokens += encoded.ids.len();
            let bytes: Vec<u8> = encoded.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            hash.update(bytes);
        }
        let digest = longsift_stages::contract::hex(&hash.finalize());
        Ok::<_, longsift_stages::tokenize::EncodeProblem>((tokens, digest, seconds))
    };
    let (tokens, digest, cold) = one_core.install(pass)?;
    let (_, _, warm) = one_core.install(pass)?;
    let bytes: usize = texts.iter().map(String::len).sum();
    println!(
        r#"{{"bytes": {bytes}, "tokens": {tokens}, "load_s": {load:.3}, "cold_s": {cold:.3}, "warm_s": {warm:.3}, "ids": "{digest}"}}"#
    );
    Ok(())
}
