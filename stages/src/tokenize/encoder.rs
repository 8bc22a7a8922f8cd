//! Text to token ids, and which bytes of the text each token ends at.

use std::any::Any;
use std::fs;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokenizers::models::ModelWrapper;
use tokenizers::{Model, OffsetType, PreTokenizer, Tokenizer};

use super::SpecialTokensInText;
use super::patterns::{PieceCutter, TextCleaner};

/// A `tokenizer.json`, ready to encode whole documents from any number of threads.
///
/// Truncation, padding and the post-processor (the special-token template, and offsets without blanks) are not
/// applied, and a random `dropout` or sampling is switched off: the ids of a text depend on the text alone.
pub struct Encoder {
    tokenizer: Tokenizer,
    cleaner: TextCleaner,
    cutter: PieceCutter,
    digest: String,
    largest_id: u32,
}

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
            Self::Invalid { .. } => {
                "save it again with a current transformers: `AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`"
            }
        }
    }
}

/// Why a text has no token ids: its row is quarantined as `tokenizer_failed`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer cannot encode the text of {text_bytes} bytes: {reason}")]
pub struct EncodeProblem {
    /// The length of the text.
    pub text_bytes: usize,
    /// What the tokenizer says.
    pub reason: String,
}

impl EncodeProblem {
    /// The reason code of the quarantine.
    pub const CODE: &'static str = "tokenizer_failed";
}

/// A text as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedText {
    /// The token ids: `[tokens]`.
    pub ids: Vec<u32>,
    /// Per token the byte of the text behind its last character: `[tokens]`, never descending, each on a character
    /// boundary. A token that ends inside a character (byte-level and byte-fallback tokens) has the character's end,
    /// as have the tokens that complete it. Text that the normaliser drops belongs to the token behind it.
    pub ends: Vec<u64>,
}

impl EncodedText {
    /// The bytes of the text that belong to the tokens `token_start..token_end`: from the end of the token before (0 for
    /// the first token) to the end of the last (`text_len` for the text's last token). Windows that follow each other
    /// therefore tile the text. Positions behind the last token mean the end of the text.
    pub fn byte_range(&self, token_start: usize, token_end: usize, text_len: usize) -> Range<usize> {
        let end_of = |tokens: usize| match tokens {
            0 => 0,
            _ if tokens >= self.ends.len() => text_len,
            _ => usize::try_from(self.ends[tokens - 1]).unwrap_or(usize::MAX).min(text_len),
        };
        // A range of no tokens has no bytes, at the end of the text as well.
        let start = end_of(token_start);
        start..end_of(token_end).max(start)
    }
}

impl Encoder {
    /// Reads a `tokenizer.json`, or the one in a folder.
    pub fn open(path: &Path, special: SpecialTokensInText) -> Result<Self, TokenizerProblem> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        match fs::read(&path) {
            Ok(bytes) => Self::from_bytes(&bytes, special).map_err(|reason| TokenizerProblem::Invalid { path, reason }),
            Err(problem) => Err(TokenizerProblem::Unreadable { path, problem }),
        }
    }

    fn from_bytes(json: &[u8], special: SpecialTokensInText) -> Result<Self, String> {
        without_panic(|| {
            let mut tokenizer = Tokenizer::from_bytes(json)?;
            if let Some(model) = without_randomness(tokenizer.get_model()) {
                tokenizer.with_model(model);
            }
            tokenizer.set_encode_special_tokens(special == SpecialTokensInText::AsText);
            let largest_id = tokenizer.get_vocab(true).into_values().max().ok_or("the vocabulary is empty")?;
            Ok(Self {
                cleaner: TextCleaner::new(tokenizer.get_normalizer())?,
                cutter: PieceCutter::new(tokenizer.get_pre_tokenizer())?,
                tokenizer,
                digest: hexadecimal(&Sha256::digest(json)),
                largest_id,
            })
        })
    }

    /// The SHA-256 of the `tokenizer.json`, in lower-case hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The largest id of the vocabulary and the added tokens: the model must have a row for it.
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// The id of a token by its content, `<s>`, among the added tokens and the vocabulary.
    pub fn token_id(&self, content: &str) -> Option<u32> {
        self.tokenizer.token_to_id(content)
    }

    /// Encodes a whole document; no special token is added.
    ///
    /// Memory: about 60 bytes for each byte of `text` while it runs. An error when the tokenizer gives up on the text;
    /// ids that come back are those of the whole text.
    pub fn encode(&self, text: &str) -> Result<EncodedText, EncodeProblem> {
        without_panic(|| {
            let cleaner = self.cleaner.watched();
            let mut pieces = self.tokenizer.get_added_vocabulary().extract_and_normalize(Some(&cleaner), text);
            if let Some(problem) = cleaner.into_problem() {
                return Err(problem.into());
            }
            self.cutter.pre_tokenize(&mut pieces)?;
            self.tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
            let encoding = pieces.into_encoding(None, 0, OffsetType::Byte)?;
            let ends = character_ends(text, encoding.get_offsets());
            Ok(EncodedText { ids: encoding.get_ids().to_vec(), ends })
        })
        .map_err(|reason| EncodeProblem { text_bytes: text.len(), reason })
    }
}

/// The same model without dropout and sampling; `None` for one that has neither.
fn without_randomness(model: &ModelWrapper) -> Option<ModelWrapper> {
    match model {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_some() => {
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            Some(bpe.into())
        }
        ModelWrapper::Unigram(unigram) if unigram.alpha.is_some() || unigram.nbest_size.is_some() => {
            let mut unigram = unigram.clone();
            (unigram.alpha, unigram.nbest_size) = (None, None);
            Some(unigram.into())
        }
        _ => None,
    }
}

/// The ends of `offsets`, in bytes of `text`, moved up to the end of their character and never descending.
fn character_ends(text: &str, offsets: &[(usize, usize)]) -> Vec<u64> {
    let completed = offsets.iter().scan(0, |reached, &(_, end)| {
        *reached = text.ceil_char_boundary(end).max(*reached);
        Some(*reached as u64)
    });
    completed.collect()
}

/// Runs `work` and makes a panic inside it an error, because the crate has asserts that a strange `tokenizer.json` can
/// reach (a `FixedLength` of 0 panics on the first text).
fn without_panic<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(|problem| problem.to_string()),
        Err(panic) => Err(format!("the tokenizer panicked: {}", panic_message(panic.as_ref()))),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
