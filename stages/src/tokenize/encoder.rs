//! Encodes documents with the `tokenizers` crate.

use std::any::Any;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use sha2::{Digest, Sha256};
use tokenizers::models::ModelWrapper;
use tokenizers::{Model, OffsetType, PreTokenizer, Tokenizer};

use crate::contract::{hex, open_regular};

use super::SpecialTokensInText;
use super::budget::Budget;
use super::encoded::character_ends;
use super::patterns::{PieceCutter, TextCleaner};
use super::problem::Refusal;
use super::split::Splitter;

pub use super::encoded::EncodedText;
pub use super::problem::{EncodeProblem, TokenizerProblem};

/// The largest `tokenizer.json` that is read, in bytes. Those of 256,000 tokens have 35 million.
pub(crate) const MOST_TOKENIZER_BYTES: u64 = 256 << 20;

/// A `tokenizer.json`, ready to encode whole documents from any number of threads.
///
/// Truncation, padding and the post-processor (the special-token template, and offsets without blanks) are not
/// applied, and a random `dropout` or sampling is switched off: the ids of a text depend on the text alone.
pub struct Encoder {
    pub(super) tokenizer: Tokenizer,
    cleaner: TextCleaner,
    cutter: PieceCutter,
    pub(super) splitter: Result<Splitter, &'static str>,
    digest: String,
    largest_id: u32,
}

impl Encoder {
    /// Bytes of memory that encoding takes for each byte of a text that is not taken apart: 65 to 115 as measured on
    /// English books.
    pub const BYTES_PER_PART_BYTE: u64 = 120;

    /// Reads a `tokenizer.json`, the one in a folder, or the one beside a GGUF file.
    pub fn open(path: &Path, special: SpecialTokensInText) -> Result<Self, TokenizerProblem> {
        let path = if path.is_dir() {
            path.join("tokenizer.json")
        } else if is_gguf(path) {
            path.with_file_name("tokenizer.json")
        } else {
            path.to_owned()
        };
        match read_limited(&path) {
            Ok(json) => Self::from_bytes(&json, special)
                .map_err(|reason| TokenizerProblem::Invalid { path, reason }),
            Err(problem) if is_beside_gguf(&path) => {
                Err(TokenizerProblem::BesideGguf { path, problem })
            }
            Err(problem) => Err(TokenizerProblem::Unreadable { path, problem }),
        }
    }

    pub(super) fn from_bytes(json: &[u8], special: SpecialTokensInText) -> Result<Self, String> {
        let read = without_panic(|| {
            let mut tokenizer = Tokenizer::from_bytes(json)?;
            if let Some(model) = without_randomness(tokenizer.get_model()) {
                tokenizer.with_model(model);
            }
            tokenizer.set_encode_special_tokens(special == SpecialTokensInText::AsText);
            let largest_id = tokenizer
                .get_vocab(true)
                .into_values()
                .max()
                .ok_or("the vocabulary is empty")
                .map_err(tokenizers::Error::from)?;
            let cleaner = TextCleaner::new(tokenizer.get_normalizer())?;
            let cutter = PieceCutter::new(tokenizer.get_pre_tokenizer())?;
            Ok(Self {
                splitter: Splitter::new(&tokenizer, json, &cleaner, &cutter)?,
                cleaner,
                cutter,
                tokenizer,
                digest: hex(&Sha256::digest(json)),
                largest_id,
            })
        });
        read.map_err(|problem| match problem {
            Refusal::Failed(reason) => reason,
            Refusal::TooLarge(_) => unreachable!("no text is encoded here"),
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

    /// Why long texts are not taken apart, where they are not: such a tokenizer is slow and needs much memory.
    pub fn whole_texts_because(&self) -> Option<&'static str> {
        self.splitter.as_ref().err().copied()
    }

    /// Encodes a whole document; no special token is added. An error when the tokenizer gives up on the text; ids that
    /// come back are those of the whole text.
    ///
    /// A text is taken apart where its tokens cannot depend on each other, and a long one is encoded by several threads.
    /// Memory while it runs: eight bytes for each token, and [`Self::BYTES_PER_PART_BYTE`] for each byte of a part that
    /// cannot be taken apart, a word as a rule. A part of more than `largest_part` bytes is refused.
    pub fn encode(&self, text: &str, largest_part: usize) -> Result<EncodedText, EncodeProblem> {
        let encoded = without_panic(|| match &self.splitter {
            _ if u32::try_from(text.len()).is_err() => {
                Err(Refusal::Failed("texts of 4 GiB and more are not supported".to_owned()))
            }
            Ok(splitter) => splitter.encode(&self.tokenizer, text, largest_part),
            Err(_) if text.len() > largest_part => Err(Refusal::TooLarge(text.len())),
            Err(_) => self.encode_whole(text),
        });
        let text_bytes = text.len();
        encoded.map_err(|problem| match problem {
            Refusal::Failed(reason) => EncodeProblem::Failed { text_bytes, reason },
            Refusal::TooLarge(part_bytes) => {
                EncodeProblem::TooLarge { text_bytes, part_bytes, largest_part }
            }
        })
    }

    /// Encodes a text without taking it apart.
    pub(super) fn encode_whole(&self, text: &str) -> Result<EncodedText, Refusal> {
        let _budget = Budget::start(text.len());
        let cleaner = self.cleaner.watched();
        let mut pieces =
            self.tokenizer.get_added_vocabulary().extract_and_normalize(Some(&cleaner), text);
        if let Some(problem) = cleaner.into_problem() {
            return Err(Refusal::Failed(problem));
        }
        self.cutter.pre_tokenize(&mut pieces)?;
        self.tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::Byte)?;
        let ends = character_ends(text, encoding.get_offsets());
        Ok(EncodedText { ids: encoding.get_ids().to_vec(), ends })
    }
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let (_, file) = open_regular(path)?;
    let mut json = Vec::new();
    file.take(MOST_TOKENIZER_BYTES + 1).read_to_end(&mut json)?;
    if json.len() as u64 > MOST_TOKENIZER_BYTES {
        let why = format!("it has more than {MOST_TOKENIZER_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(json)
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Whether there is a GGUF file in the folder of `path`.
fn is_beside_gguf(path: &Path) -> bool {
    let entries = path.parent().and_then(|folder| fs::read_dir(folder).ok());
    entries.is_some_and(|entries| entries.flatten().any(|entry| is_gguf(&entry.path())))
}

impl fmt::Debug for Encoder {
    /// Without the vocabulary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut encoder = f.debug_struct("Encoder");
        encoder
            .field("digest", &self.digest)
            .field("largest_id", &self.largest_id)
            .finish_non_exhaustive()
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
        ModelWrapper::Unigram(unigram)
            if unigram.alpha.is_some() || unigram.nbest_size.is_some() =>
        {
            let mut unigram = unigram.clone();
            (unigram.alpha, unigram.nbest_size) = (None, None);
            Some(unigram.into())
        }
        _ => None,
    }
}

/// Runs `work` and makes a panic inside it an error, because the crate has asserts that a strange `tokenizer.json` can
/// reach (a `FixedLength` of 0 panics on the first text).
fn without_panic<T>(work: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic_message(panic.as_ref());
        Err(Refusal::Failed(format!("the tokenizer panicked: {message}")))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tokenize::fixtures::{bytes_with, encoder_with};

    #[test]
    fn a_panic_in_the_crate_is_an_error() {
        let encoder = encoder_with(|form| {
            form["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0});
        });
        let problem = encoder.encode("hello", usize::MAX).unwrap_err();
        assert!(problem.to_string().contains("the tokenizer panicked: "), "{problem}");
    }

    #[test]
    fn truncation_padding_template_and_dropout_are_switched_off() {
        let plain = encoder_with(|_| ()).encode("hello there", usize::MAX).unwrap();
        assert_eq!(plain.ids.len(), 9);
        let changed = encoder_with(|form| {
            form["truncation"] = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
            form["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                                     "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
            form["post_processor"] = json!({"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}});
            form["model"]["dropout"] = json!(0.9);
        });
        for _ in 0..20 {
            assert_eq!(changed.encode("hello there", usize::MAX).unwrap(), plain);
        }
    }

    #[test]
    fn special_tokens_are_parsed_or_encoded_as_text() {
        let as_text =
            Encoder::from_bytes(&bytes_with(|_| ()), SpecialTokensInText::AsText).unwrap();
        let parsed = encoder_with(|_| ());
        assert_eq!(parsed.encode("a<s>b", usize::MAX).unwrap().ids[1], 257);
        assert_eq!(as_text.encode("a<s>b", usize::MAX).unwrap().ids.len(), 5);
        assert_eq!(
            (as_text.token_id("<s>"), as_text.token_id("</s>"), as_text.largest_id()),
            (Some(257), None, 257)
        );
    }

    #[test]
    fn a_missing_or_broken_file_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let open =
            || Encoder::open(folder.path(), SpecialTokensInText::Parse).map(|_| ()).unwrap_err();
        assert!(
            matches!(open(), TokenizerProblem::Unreadable { path, .. } if path.ends_with("tokenizer.json"))
        );
        for (content, reason) in
            [("{\"version\"", "EOF"), ("{}", "Model missing"), ("\u{0}", "expected value")]
        {
            fs::write(folder.path().join("tokenizer.json"), content).unwrap();
            let problem = open().to_string();
            assert!(
                problem.contains("is not a usable tokenizer.json") && problem.contains(reason),
                "{problem}"
            );
        }
        let empty = bytes_with(|form| {
            form["model"] = json!({"type": "BPE", "vocab": {}, "merges": []});
            form["added_tokens"] = json!([]);
        });
        assert_eq!(
            Encoder::from_bytes(&empty, SpecialTokensInText::Parse).err().unwrap(),
            "the vocabulary is empty"
        );
    }

    #[test]
    fn the_digest_is_that_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let json = bytes_with(|_| ());
        fs::write(folder.path().join("tokenizer.json"), &json).unwrap();
        let encoder =
            Encoder::open(&folder.path().join("tokenizer.json"), SpecialTokensInText::Parse)
                .unwrap();
        assert_eq!(encoder.digest(), hex(&Sha256::digest(&json)));
        assert_eq!(encoder.digest().len(), 64);
        assert!(format!("{encoder:?}").len() < 200, "the vocabulary is not printed");
    }
}
