//! Tokenization of documents, and their windows.

mod added;
mod ascii_block;
mod bpe_model;
mod budget;
mod chat_json;
pub mod chat_template;
mod classes;
mod compose;
mod dialect;
mod encoded;
pub mod encoder;
mod fast;
#[cfg(test)]
mod fast_tests;
#[cfg(test)]
#[path = "tokenize/tests/fixtures.rs"]
pub(crate) mod fixtures;
mod gguf_steps;
mod gguf_tokenizer;
#[cfg(test)]
mod gguf_tokenizer_tests;
mod joins;
mod library;
mod long_parts;
mod matcher;
mod memo;
mod merges;
mod other_config;
mod pairs;
mod part_cache;
mod parts;
mod patterns;
mod problem;
mod random_table;
mod scan;
mod settings;
mod split;
#[cfg(test)]
mod split_tests;
mod token_bytes;
mod unigram;
pub mod windows;

pub use encoded::EncodedText;
pub use encoder::Encoder;
pub use problem::{EncodeProblem, TokenizerProblem};
pub use settings::{ShortDocuments, SpecialTokensInText, Tokenize, Windows};
pub use token_bytes::TokenBytes;
pub use windows::{Cut, TokenWindow, WINDOWS_VERSION};
