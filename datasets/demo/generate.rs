//! Writes the demo corpus, `datasets/demo/corpus.parquet`: the same bytes every time.
//!
//! `cargo run -p longsift-engine --example generate-demo-corpus [FILE]`
//!
//! Every document is invented by a grammar; no text of others is in it. Three sources have the same number of documents
//! of each of four kinds, and the documents of a quadruple (one of each kind) have the same length, within a sentence,
//! and the same number of windows of 1,024 tokens:
//!
//! * `whole`: one coherent document with its own names, terms and subject. It fixes definitions and facts in the
//!   beginning and comes back to them until its end.
//! * `mixture`: pieces of about 128 tokens from eight other whole documents of the source, in turn.
//! * `repeated`: one paragraph again and again.
//! * `shuffled`: the whole document of the quadruple, its sentences and lines in random order: the same words.

#[path = "generate/author.rs"]
mod author;
#[path = "generate/chronicle.rs"]
mod chronicle;
#[path = "generate/corpus.rs"]
mod corpus;
#[path = "generate/grammar.rs"]
mod grammar;
#[path = "generate/lexicon.rs"]
mod lexicon;
#[path = "generate/manual.rs"]
mod manual;
#[path = "generate/names.rs"]
mod names;
#[path = "generate/random.rs"]
mod random;
#[path = "generate/register.rs"]
mod register;
#[path = "generate/table.rs"]
mod table;
#[path = "generate/text.rs"]
mod text;

use std::{io::Write, path::PathBuf};

use anyhow::{Context, Result};

/// Seed of the committed corpus.
const SEED: u64 = 20_261_120;

fn main() -> Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../datasets/demo");
    let file =
        std::env::args_os().nth(1).map_or_else(|| folder.join("corpus.parquet"), PathBuf::from);
    let tokens = corpus::Tokens::open(&folder.join("model/tokenizer.json"))?;
    let documents = corpus::write(&tokens, SEED)?;
    let bytes = table::encode(&documents, SEED)?;
    std::fs::write(&file, &bytes).with_context(|| format!("cannot write {}", file.display()))?;
    let total: usize = documents.iter().map(|document| document.tokens).sum();
    let (count, size) = (documents.len(), bytes.len());
    writeln!(
        std::io::stdout(),
        "{count} documents, {total} tokens, {size} bytes: {}",
        file.display()
    )?;
    Ok(())
}
