//! Writes the demo corpus, `datasets/demo/corpus.parquet`: the same bytes every time.
//!
//! `cargo run -p longsift-engine --example generate-demo-corpus [FILE]`
//!
//! A grammar generates every document; none contains text by other authors. Each of three sources has the same number
//! of documents of each of four kinds. The documents of a quadruple (one of each kind) have the same length, within a
//! sentence, and the same number of windows of 1,024 tokens:
//!
//! * `whole`: one coherent document with its own names, terms and subject. It states definitions and facts at the
//!   beginning and refers to them until its end.
//! * `mixture`: pieces of whole sentences, about 128 tokens each, from eight other whole documents in turn.
//! * `repeated`: one paragraph, repeated.
//! * `shuffled`: the whole document of the quadruple with its sentences and lines in random order.

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../datasets/demo")
    }

    #[test]
    fn the_committed_corpus_equals_the_generated_one() {
        let tokens = corpus::Tokens::open(&folder().join("model/tokenizer.json")).unwrap();
        let bytes = table::encode(&corpus::write(&tokens, SEED).unwrap(), SEED).unwrap();
        let committed = std::fs::read(folder().join("corpus.parquet")).unwrap();
        let stale =
            "corpus.parquet is stale: cargo run -p longsift-engine --example generate-demo-corpus";
        assert!(bytes == committed, "{stale}");
        assert!(committed.len() < 2_000_000);
    }

    #[test]
    fn documents_of_a_quadruple_have_the_same_length_and_shuffling_keeps_the_words() {
        let tokens = corpus::Tokens::open(&folder().join("model/tokenizer.json")).unwrap();
        let documents = corpus::write(&tokens, 7).unwrap();
        let words = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            words.sort_unstable();
            words
        };
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for quadruple in documents.chunks(4) {
            let [whole, mixture, repeated, shuffled] = quadruple else {
                panic!("{} documents", quadruple.len())
            };
            for (document, kind) in [
                (whole, "whole"),
                (mixture, "mixture"),
                (repeated, "repeated"),
                (shuffled, "shuffled"),
            ] {
                assert_eq!((document.source, document.kind), (whole.source, kind));
                assert!(
                    document.tokens.abs_diff(whole.tokens) <= corpus::TOLERANCE,
                    "{}",
                    document.id
                );
                assert_eq!(
                    document.tokens / corpus::WINDOW,
                    whole.tokens / corpus::WINDOW,
                    "{}",
                    document.id
                );
                *counts.entry((document.source, kind)).or_default() += 1;
            }
            assert_eq!(words(&whole.text), words(&shuffled.text));
            assert_ne!(whole.text, shuffled.text);
            let parts = mixture.parts.as_deref().unwrap_or_default();
            assert_eq!(parts.len(), 8);
            assert!(
                parts.iter().all(|part| part.from.as_ref().is_some_and(|from| *from != whole.id))
            );
        }
        assert_eq!(counts.len(), 12);
        assert!(counts.values().all(|&count| count == documents.len() / 12));
    }
}
