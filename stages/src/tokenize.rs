//! Turns documents into token windows.

mod added;
mod budget;
mod chat_json;
pub mod chat_template;
mod compose;
mod encoded;
pub mod encoder;
#[cfg(test)]
pub(crate) mod fixtures;
mod gguf_steps;
mod gguf_tokenizer;
#[cfg(test)]
mod gguf_tokenizer_tests;
mod long_parts;
mod matcher;
mod memo;
mod other_config;
mod pairs;
mod parts;
mod patterns;
mod problem;
mod settings;
mod split;
#[cfg(test)]
mod split_tests;
mod token_bytes;
pub mod windows;

pub use encoded::EncodedText;
pub use encoder::Encoder;
pub use problem::{EncodeProblem, TokenizerProblem};
pub use settings::{ShortDocuments, SpecialTokensInText, Tokenize, Windows};
pub use token_bytes::TokenBytes;
pub use windows::{Cut, TokenWindow};
