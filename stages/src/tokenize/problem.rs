//! What goes wrong with a tokenizer, and with a text.

use std::io;
use std::path::PathBuf;

use super::budget::Spent;

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerProblem {
    /// The file is not there or cannot be read.
    #[error("cannot read the tokenizer `{}`: {problem}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        problem: io::Error,
    },
    /// The file is not there or cannot be read, and would lie beside a GGUF file.
    #[error("cannot read the tokenizer `{}` beside the GGUF file: {problem}", path.display())]
    BesideGguf {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        problem: io::Error,
    },
    /// The file is not a usable `tokenizer.json`.
    #[error("`{}` is not a usable tokenizer.json: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl TokenizerProblem {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => {
                "point `tokenizer` at a tokenizer.json or its folder; a tokenizer.model becomes one with transformers' \
                 `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
            }
            Self::BesideGguf { .. } => {
                "the tokenizer inside a GGUF file is not read: put the tokenizer.json of the model that it was made from \
                 beside it, or point `tokenizer` at one"
            }
            Self::Invalid { .. } => {
                "save it again with a current transformers: `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
            }
        }
    }
}

/// Why a text has no token ids: its row is quarantined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeProblem {
    /// The tokenizer gives up.
    #[error("the tokenizer cannot encode the text of {text_bytes} bytes: {reason}")]
    Failed {
        /// The length of the text.
        text_bytes: usize,
        /// What the tokenizer says.
        reason: String,
    },
    /// The tokenizer must see more bytes at once than memory allows.
    #[error(
        "the text of {text_bytes} bytes has a stretch of {part_bytes} bytes that the tokenizer must see at once; within \
         `memory_limit_bytes` it can be at most {largest_part}"
    )]
    TooLarge {
        /// The length of the text.
        text_bytes: usize,
        /// The length of the longest part found that cannot be taken apart.
        part_bytes: usize,
        /// How long it may be.
        largest_part: usize,
    },
}

impl EncodeProblem {
    /// The reason code of the quarantine.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Failed { .. } => "tokenizer_failed",
            Self::TooLarge { .. } => "document_too_large",
        }
    }
}

/// An [`EncodeProblem`] before it is known which text it is about.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The tokenizer gives up.
    Failed(String),
    /// A part of this many bytes is too large.
    TooLarge(usize),
}

impl From<Spent> for Refusal {
    fn from(spent: Spent) -> Self {
        Self::Failed(spent.to_string())
    }
}

impl From<tokenizers::Error> for Refusal {
    fn from(problem: tokenizers::Error) -> Self {
        Self::Failed(problem.to_string())
    }
}
