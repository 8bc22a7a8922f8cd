//! Errors of tokenizers, and of texts that cannot be encoded.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::budget::BudgetExceeded;

/// Reason why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerProblem {
    #[error("cannot read the tokenizer `{}`: {problem}", path.display())]
    Unreadable { path: PathBuf, problem: io::Error },
    /// `tokenizer.json` is missing, and the tokenizer inside the GGUF file cannot be used.
    #[error("the tokenizer inside `{}` cannot be used: {reason}", path.display())]
    InGguf { path: PathBuf, reason: String },
    #[error("`{}` is not a usable tokenizer.json: {reason}", path.display())]
    Invalid { path: PathBuf, reason: String },
}

impl TokenizerProblem {
    pub fn hint(&self) -> String {
        let hint = match self {
            Self::Unreadable { path, .. } => match conversion(path) {
                Some(hint) => return hint,
                None => {
                    "point `tokenizer` at a tokenizer.json or its folder; a tokenizer.model becomes one with transformers' \
                     `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
                }
            },
            Self::InGguf { .. } => {
                "put the tokenizer.json of the original model next to it, or set `tokenizer` to one"
            }
            Self::Invalid { .. } => {
                "save it again with a current transformers: `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
            }
        };
        hint.to_owned()
    }
}

/// Describes the conversion of a tokenizer in another format in the folder of the missing `tokenizer.json`: many
/// checkpoints have no other. The library converts ranks of tiktoken only if it is given the pattern.
fn conversion(path: &Path) -> Option<String> {
    let folder = path.parent()?;
    let entries = fs::read_dir(folder).ok()?;
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let folder = folder.display();
    let is_tiktoken =
        |name: &&String| name.ends_with(".tiktoken") || name.as_str() == "tiktoken.model";
    if let Some(name) = names.iter().find(is_tiktoken) {
        return Some(format!(
            "`{name}` in the same folder is not supported; convert it to a tokenizer.json once in Python, \
             with the tiktoken.Encoding of the model's own tokenizer class: transformers.integrations.tiktoken.convert_tiktoken_to_fast(encoding, \
             '{folder}')"
        ));
    }
    let known = ["tokenizer.model", "spiece.model", "vocab.json"];
    let name = known.into_iter().find(|known| names.iter().any(|name| name == known))?;
    Some(format!(
        "`{name}` in the same folder is not supported; convert it to a tokenizer.json once: \
         python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')\""
    ))
}

/// Reason why a text has no token ids: its row is quarantined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeProblem {
    /// The tokenizer failed.
    #[error("the tokenizer cannot encode the text of {text_bytes} bytes: {reason}")]
    Failed { text_bytes: usize, reason: String },
    /// The tokenizer's patterns exceed a time that no published tokenizer needs. Another machine may be fast enough:
    /// see [`EncodeProblem::is_tokenizer_fault`].
    #[error(
        "the tokenizer's patterns exceed the time limit on a text of {text_bytes} bytes: a minute plus 200 seconds per MiB"
    )]
    TimedOut { text_bytes: usize },
    /// The tokenizer must read more bytes at once than allowed.
    #[error(
        "the text of {text_bytes} bytes has a part of {part_bytes} bytes that the tokenizer must read at once; at most \
         {largest_part} are supported"
    )]
    TooLarge {
        text_bytes: usize,
        /// Length of the longest part found that cannot be split.
        part_bytes: usize,
        largest_part: usize,
    },
}

impl EncodeProblem {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Failed { .. } | Self::TimedOut { .. } => "tokenizer_failed",
            Self::TooLarge { .. } => "document_too_large",
        }
    }

    /// Returns whether the tokenizer is at fault: the outcome of this text would depend on the machine, so the run
    /// ends instead of quarantining it.
    pub fn is_tokenizer_fault(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}

/// [`EncodeProblem`] without the text that it is about.
#[derive(Debug)]
pub(super) enum EncodeRefusal {
    /// The tokenizer failed.
    Failed(String),
    /// A part of this many bytes is too large.
    TooLarge(usize),
    /// The patterns exceed their time.
    TimedOut,
}

impl From<BudgetExceeded> for EncodeRefusal {
    fn from(_: BudgetExceeded) -> Self {
        Self::TimedOut
    }
}

impl From<tokenizers::Error> for EncodeRefusal {
    fn from(problem: tokenizers::Error) -> Self {
        Self::from_crate_error(&problem)
    }
}

impl EncodeRefusal {
    /// Classifies an error of the crate, or of the patterns inside it.
    pub(super) fn from_crate_error(problem: &tokenizers::Error) -> Self {
        if problem.is::<BudgetExceeded>() {
            Self::TimedOut
        } else {
            Self::Failed(problem.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_tokenizer_format_is_named_with_a_conversion() {
        let folder = tempfile::tempdir().unwrap();
        let problem = io::Error::from(io::ErrorKind::NotFound);
        let path = folder.path().join("tokenizer.json");
        let problem = TokenizerProblem::Unreadable { path, problem };
        assert!(problem.hint().starts_with("point `tokenizer` at"));
        fs::write(folder.path().join("tokenizer.model"), "").unwrap();
        let hint = problem.hint();
        let converts = format!("save_pretrained('{}')", folder.path().display());
        assert!(
            hint.starts_with("`tokenizer.model` in the same folder is not supported")
                && hint.contains(&converts)
        );
        fs::write(folder.path().join("qwen.tiktoken"), "").unwrap();
        let hint = problem.hint();
        assert!(
            hint.contains("`qwen.tiktoken`") && hint.contains("convert_tiktoken_to_fast"),
            "{hint}"
        );
    }
}
