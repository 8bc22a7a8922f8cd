//! What a tokenizer says about its BOS token.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::problem::TokenizerProblem;

/// The `bos_token` of a `tokenizer_config.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeclaredBos {
    /// The content of the token, `<s>`.
    Token(String),
    /// An explicit null: there is none.
    None,
    /// The file or the key is absent.
    Unsaid,
}

impl DeclaredBos {
    /// What the `tokenizer_config.json` beside a `tokenizer.json` says. An error where it is there but no JSON.
    pub(super) fn beside(tokenizer: &Path) -> Result<Self, TokenizerProblem> {
        let path = tokenizer.with_file_name("tokenizer_config.json");
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(Self::Unsaid),
            Err(problem) => return Err(TokenizerProblem::Unreadable { path, problem }),
        };
        match serde_json::from_slice::<Value>(&json) {
            Ok(config) => Ok(Self::of(&config)),
            Err(problem) => Err(TokenizerProblem::Invalid { path, reason: problem.to_string() }),
        }
    }

    /// A token is written as its content, or as an object that has it.
    fn of(config: &Value) -> Self {
        match config.get("bos_token") {
            Some(Value::Null) => Self::None,
            Some(Value::String(content)) => Self::Token(content.clone()),
            Some(token) => token["content"]
                .as_str()
                .map_or(Self::Unsaid, |content| Self::Token(content.to_owned())),
            None => Self::Unsaid,
        }
    }
}
