//! Speed of recurrence on one core, beside zlib at level 6 on the same text in the same seconds.
//!
//! ```sh
//! cargo run --release -p longsift-stages --example recurrence_speed
//! cargo run --release -p longsift-stages --example recurrence_speed -- TOKENIZER.json TEXT_OR_PARQUET...
//! ```
//!
//! A Parquet file gives the texts of its column `text`, any other file is one text. Without arguments it is the demo's
//! corpus and tokenizer. Documents are joined, so that there are windows of every length.
#![expect(clippy::print_stdout, reason = "the table is what the program is for")]

use std::fs::{self, File};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_cast::cast;
use arrow_schema::DataType;
use longsift_stages::measures::speed::recurrence_speed;
use longsift_stages::tokenize::{EncodedText, Encoder, SpecialTokensInText};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// Windows whose speed is printed, in tokens, and how many times as fast as zlib recurrence is meant to be.
const WINDOWS: [(usize, Option<f64>); 3] = [(2048, None), (8192, Some(6.0)), (32_768, Some(4.0))];
/// As much text is enough for a steady figure.
const MOST_BYTES: usize = 16 << 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/demo");
    let demo = |path: &str| demo.join(path).display().to_string();
    let done = match arguments.as_slice() {
        [] => run(&demo("model/tokenizer.json"), &[demo("corpus.parquet")]),
        [tokenizer, files @ ..] if !files.is_empty() => run(tokenizer, files),
        _ => Err("give a tokenizer.json and at least one text or Parquet file, or nothing".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(tokenizer: &str, files: &[String]) -> Outcome<()> {
    let encoder = Encoder::open(Path::new(tokenizer), SpecialTokensInText::Parse)?;
    println!("a second of processor time, one core; zlib: level 6, a stream for each window");
    println!(
        "| file | window | windows | million tokens | MB of text | zlib MB | times zlib | at least |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for file in files {
        let text = text(file)?;
        let encoded = encoder.encode(&text, usize::MAX)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        for (tokens, wanted) in WINDOWS {
            line(name, &text, &encoded, tokens, wanted);
        }
    }
    Ok(())
}

fn line(name: &str, text: &str, encoded: &EncodedText, tokens: usize, wanted: Option<f64>) {
    let windows: Vec<(&[u32], &[u8])> = (0..encoded.ids.len() / tokens)
        .map(|window| {
            let (start, end) = (window * tokens, (window + 1) * tokens);
            let bytes = encoded.byte_range(start, end, text.len());
            (&encoded.ids[start..end], &text.as_bytes()[bytes])
        })
        .collect();
    if windows.is_empty() {
        return println!("| {name} | {tokens} | 0 | | | | | |");
    }
    let speed = recurrence_speed(&windows, Duration::from_secs(2));
    println!(
        "| {name} | {tokens} | {} | {:.1} | {:.1} | {:.1} | {:.2} | {} |",
        windows.len(),
        speed.tokens / 1e6,
        speed.text / 1e6,
        speed.zlib / 1e6,
        speed.text / speed.zlib,
        wanted.map_or(String::new(), |wanted| format!("{wanted}")),
    );
}

/// The texts of a file, joined.
fn text(file: &str) -> Outcome<String> {
    let mut text =
        if file.ends_with(".parquet") { column(file)? } else { fs::read_to_string(file)? };
    text.truncate(text.floor_char_boundary(MOST_BYTES));
    Ok(text)
}

fn column(file: &str) -> Outcome<String> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?;
    let column = reader.schema().index_of("text")?;
    let mask = ProjectionMask::roots(reader.parquet_schema(), [column]);
    let mut joined = String::new();
    for batch in reader.with_projection(mask).build()? {
        let column = cast(batch?.column(0), &DataType::LargeUtf8)?;
        joined.extend(column.as_string::<i64>().iter().flatten());
    }
    Ok(joined)
}
