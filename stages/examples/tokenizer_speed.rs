//! Tokenization speed of one core, beside the `tokenizers` crate on the same texts in the same minutes.
//!
//! ```sh
//! cargo run --release -p longsift-stages --example tokenizer_speed -- TOKENIZER.json TEXT_OR_PARQUET...
//! cargo run --release -p longsift-stages --example tokenizer_speed -- --check TOKENIZER.json TEXT_OR_PARQUET...
//! ```
//!
//! A Parquet file gives the texts of its column `text`, any other file is one text. With `--check`, every id and every
//! end of every text is compared with the crate's, text by text, and nothing is timed.
#![expect(clippy::print_stdout, reason = "the table is what the program is for")]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_cast::cast;
use arrow_schema::DataType;
use longsift_stages::tokenize::{Encoder, SpecialTokensInText};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tokenizers::{PostProcessorWrapper, Tokenizer};

/// As much text is enough for a steady figure of the crate, which is slow.
const BYTES_FOR_CRATE: usize = 4 << 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = arguments.first().is_some_and(|argument| argument == "--check");
    arguments.drain(..usize::from(check));
    let done = match arguments.as_slice() {
        [tokenizer, texts @ ..] if !texts.is_empty() => run(check, tokenizer, texts),
        _ => Err("give a tokenizer.json and at least one text or Parquet file".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(check: bool, tokenizer: &str, files: &[String]) -> Outcome<()> {
    let encoder = Encoder::open(&PathBuf::from(tokenizer), SpecialTokensInText::Parse)?;
    let mut alone = Tokenizer::from_file(tokenizer)?;
    alone.with_post_processor(None::<PostProcessorWrapper>);
    println!("{tokenizer}");
    if let Some(why) = encoder.unsplittable_reason() {
        println!("texts are encoded whole: {why}");
    }
    if !check {
        println!("MB/s of one core (crate on the first {} MB)", BYTES_FOR_CRATE >> 20);
        println!(
            "| file | texts | MB | longsift, first pass | longsift | tokenizers crate | ratio |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    let one_core = ThreadPoolBuilder::new().num_threads(1).build()?;
    for file in files {
        let texts = texts(file)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        if check {
            compare(&encoder, &alone, name, &texts)?;
        } else {
            time(&one_core, &encoder, &alone, name, &texts)?;
        }
    }
    Ok(())
}

fn time(
    one_core: &ThreadPool,
    encoder: &Encoder,
    alone: &Tokenizer,
    name: &str,
    texts: &[String],
) -> Outcome<()> {
    let bytes: usize = texts.iter().map(String::len).sum();
    let ours = || -> Outcome<f64> {
        let start = processor_seconds();
        for text in texts {
            encoder.encode(text, usize::MAX)?;
        }
        Ok(bytes as f64 / 1e6 / (processor_seconds() - start))
    };
    let first = one_core.install(ours)?;
    let again = one_core.install(ours)?;
    let crate_alone = one_core.install(|| -> Outcome<f64> {
        let start = processor_seconds();
        let mut done = 0;
        for text in texts {
            let text = &text[..text.floor_char_boundary(BYTES_FOR_CRATE - done)];
            alone.encode(text, false)?;
            done += text.len();
        }
        Ok(done as f64 / 1e6 / (processor_seconds() - start))
    })?;
    println!(
        "| {name} | {} | {:.1} | {first:.1} | {again:.1} | {crate_alone:.2} | {:.0} |",
        texts.len(),
        bytes as f64 / 1e6,
        again / crate_alone
    );
    Ok(())
}

/// Compares ids and ends with those of the crate.
fn compare(encoder: &Encoder, alone: &Tokenizer, name: &str, texts: &[String]) -> Outcome<()> {
    let mut tokens = 0;
    for (row, text) in texts.iter().enumerate() {
        let ours = encoder.encode(text, usize::MAX)?;
        let theirs = alone.encode(text.as_str(), false)?;
        if ours.ids != theirs.get_ids() {
            return Err(format!("{name}, text {row}: other ids than the crate").into());
        }
        let mut reached = 0;
        for ((_, end), ours) in theirs.get_offsets().iter().zip(&ours.ends) {
            reached = text.ceil_char_boundary(*end).max(reached);
            if *ours as usize != reached {
                return Err(format!(
                    "{name}, text {row}: a token ends at {ours}, {reached} in the crate"
                )
                .into());
            }
        }
        tokens += ours.ids.len();
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    println!(
        "{name}: {} texts, {bytes} bytes, {tokens} tokens: all ids and ends are the crate's",
        texts.len()
    );
    Ok(())
}

fn texts(file: &str) -> Outcome<Vec<String>> {
    if !file.ends_with(".parquet") {
        return Ok(vec![fs::read_to_string(file)?]);
    }
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?;
    let column = reader.schema().index_of("text")?;
    let mask = ProjectionMask::roots(reader.parquet_schema(), [column]);
    let mut texts = Vec::new();
    for batch in reader.with_projection(mask).build()? {
        let column = cast(batch?.column(0), &DataType::LargeUtf8)?;
        texts.extend(column.as_string::<i64>().iter().flatten().map(str::to_owned));
    }
    Ok(texts)
}

/// Processor time of this thread where Linux tells it, else the clock.
fn processor_seconds() -> f64 {
    thread_local!(static START: Instant = Instant::now());
    let from_linux = fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    from_linux.map_or_else(|| START.with(|start| start.elapsed().as_secs_f64()), |ns| ns / 1e9)
}
