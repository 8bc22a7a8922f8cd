//! Encoding of documents.

use std::any::Any;
use std::fmt;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tokenizers::{Model, OffsetType};

use crate::contract::{SIGNATURE_BYTES, Signature, hex, open_regular};
use crate::model::{ModelFiles, is_gguf_file};

use super::added::added_tokens;
use super::bpe_model::{BpeModel, BpeTokenizer};
use super::budget::PatternBudget;
use super::encoded::character_ends;
use super::gguf_tokenizer::tokenizer_json;
use super::library::Library;
use super::other_config;
use super::patterns::TokenizerSteps;
use super::problem::EncodeRefusal;
use super::settings::SpecialTokensInText;
use super::split::Splitter;
use super::token_bytes::TokenBytes;

pub use super::encoded::EncodedText;
pub use super::problem::{EncodeProblem, TokenizerProblem};

/// Maximum size of a `tokenizer.json`, in bytes. Those of 256,000 tokens have 35 million.
pub(crate) const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// Loaded `tokenizer.json` that encodes whole documents from any number of threads. Truncation, padding, the post-processor
/// and random `dropout` or sampling are not applied: the ids of a text depend only on the text.
pub struct Encoder {
    pub(super) library: Library,
    steps: TokenizerSteps,
    pub(super) splitter: Result<Splitter, &'static str>,
    digest: String,
    largest_id: u32,
    folder: PathBuf,
    /// Settings next to the tokenizer that would give other ids.
    differences: Vec<String>,
}

impl Encoder {
    /// Maximum size in bytes of a part that the tokenizer must read whole: larger than the longest books. Encoding such
    /// a part takes a gigabyte of memory. A constant, so that no setting decides which documents are quarantined.
    pub const MAX_PART_BYTES: usize = 8 << 20;

    /// Reads a `tokenizer.json`, the one in a folder, or the one next to a GGUF file; if it does not exist, the
    /// tokenizer inside the GGUF file, or inside the one of the folder.
    pub fn open(path: &Path, special: SpecialTokensInText) -> Result<Self, TokenizerProblem> {
        let json_path = if path.is_dir() {
            path.join("tokenizer.json")
        } else if is_gguf_file(path) {
            path.with_file_name("tokenizer.json")
        } else {
            path.to_owned()
        };
        let folder = json_path.parent().unwrap_or(Path::new("")).to_owned();
        let opened = match read_limited(&json_path) {
            Ok(json) => Self::from_bytes(&json, special)
                .and_then(|encoder| {
                    let differences = other_config::differences(&folder, encoder.library.steps())
                        .map_err(|problem| problem.message)?;
                    Ok(Self { differences, ..encoder }.compared_with(gguf_of(path), special))
                })
                .map_err(|reason| {
                    let found = Signature::detect(&json[..json.len().min(SIGNATURE_BYTES)]);
                    let reason = found.map_or(reason, |Signature { name, remedy }| {
                        format!("it is {name}; {remedy}")
                    });
                    TokenizerProblem::Invalid { path: json_path, reason }
                }),
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => match gguf_of(path) {
                Some(path) => Self::in_gguf(path, special),
                None => Err(TokenizerProblem::Unreadable { path: json_path, problem }),
            },
            Err(problem) => Err(TokenizerProblem::Unreadable { path: json_path, problem }),
        };
        opened.map(|encoder| Self { folder, ..encoder })
    }

    /// Returns the folder of the file; empty if the tokenizer was not read from a file.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn in_gguf(path: PathBuf, special: SpecialTokensInText) -> Result<Self, TokenizerProblem> {
        let encoder = tokenizer_json(&path).and_then(|json| Self::from_bytes(&json, special));
        encoder.map_err(|reason| TokenizerProblem::InGguf { path, reason })
    }

    /// Records differences from the tokenizer inside a GGUF file, as far as that can be read.
    fn compared_with(mut self, gguf: Option<PathBuf>, special: SpecialTokensInText) -> Self {
        let difference = gguf.and_then(|path| {
            let inside = Self::in_gguf(path.clone(), special).ok()?;
            inside.token_bytes().and(self.token_bytes())?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let difference = inside.difference(&self)?;
            Some(format!(
                "`tokenizer.json` is used, although it differs from the tokenizer inside `{name}`: {difference}"
            ))
        });
        self.differences.extend(difference);
        self
    }

    pub(super) fn from_bytes(json: &[u8], special: SpecialTokensInText) -> Result<Self, String> {
        let read = without_panic(|| {
            let parsed = BpeTokenizer::from_json(json);
            let library =
                parsed.as_ref().and_then(|parsed| Library::without_model(json, parsed, special));
            let model = parsed.map(|parsed| parsed.model);
            if let Some(library) = library {
                let encoder = Self::new(json, library, model.as_ref());
                if let Some(encoder) = encoder.ok().filter(|one| one.library_reason().is_none()) {
                    return Ok(encoder);
                }
            }
            Ok(Self::new(json, Library::open(json, special)?, model.as_ref())?)
        });
        read.map_err(|problem| match problem {
            EncodeRefusal::Failed(reason) => reason,
            EncodeRefusal::TooLarge(_) | EncodeRefusal::TimedOut => {
                unreachable!("no text is encoded here")
            }
        })
    }

    fn new(
        json: &[u8],
        library: Library,
        model: Option<&BpeModel<'_>>,
    ) -> tokenizers::Result<Self> {
        let tokenizer = library.steps();
        let largest_of_model = match model {
            Some(model) => model.vocab.values().copied().max(),
            None => library.model()?.get_vocab().into_values().max(),
        };
        let added = tokenizer.get_added_tokens_decoder().into_keys().max();
        let largest_id = largest_of_model.max(added).ok_or("the vocabulary is empty")?;
        let steps = TokenizerSteps::new(tokenizer)?;
        let added = added_tokens(tokenizer, &steps)?;
        Ok(Self {
            splitter: Splitter::new(tokenizer, model, &steps, added)?,
            steps,
            library,
            digest: hex(&Sha256::digest(json)),
            largest_id,
            folder: PathBuf::new(),
            differences: Vec::new(),
        })
    }

    /// Returns the SHA-256 of the `tokenizer.json` or its equivalent, in lower-case hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the largest id of the vocabulary and the added tokens: the model must have a row for it.
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// Returns the bytes of each token; `None` if tokens do not determine them, as in vocabularies of words.
    pub fn token_bytes(&self) -> Option<TokenBytes> {
        TokenBytes::new(&self.library)
    }

    /// Describes the first id of this tokenizer that has other bytes in another one.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let (Some(own), Some(others)) = (self.token_bytes(), other.token_bytes()) else {
            let same = self.digest() == other.digest();
            return (!same)
                .then(|| "vocabularies of words can only be compared as a whole".to_owned());
        };
        let differs = |id: &u32| own.bytes_of(*id) != others.bytes_of(*id);
        let id = (0..=self.largest_id()).find(differs)?;
        let shown = |bytes: &TokenBytes| match bytes.bytes_of(id) {
            [] => "no token".to_owned(),
            bytes => format!("{:?}", String::from_utf8_lossy(bytes)),
        };
        Some(format!("id {id} is {} there and {} here", shown(&own), shown(&others)))
    }

    /// Limits all threads' caches of encoded parts to `bytes`, by default 40 MiB per thread. Ids do not depend on it.
    pub fn limit_caches(&mut self, bytes: u64) {
        if let Ok(splitter) = &mut self.splitter {
            let per_thread = bytes / rayon::current_num_threads() as u64;
            splitter.cache_bytes = usize::try_from(per_thread).unwrap_or(usize::MAX);
        }
    }

    /// Returns the reason why long texts are not split, if so: such a tokenizer is slow and needs much memory.
    pub fn unsplittable_reason(&self) -> Option<&'static str> {
        self.splitter.as_ref().err().copied()
    }

    /// Returns the reason why texts are encoded by the `tokenizers` library instead of the fast path, if so.
    pub fn library_reason(&self) -> Option<&'static str> {
        match &self.splitter {
            Ok(splitter) => splitter.fast.as_ref().err().copied(),
            Err(reason) => Some(reason),
        }
    }

    /// Describes where ids may differ from those of the Python packages.
    pub fn warnings(&self) -> Vec<String> {
        let pattern = self.steps.differing_pattern().map(|(pattern, construct)| {
            format!(
                "the tokenizer's pattern `{pattern}` has `{construct}`, which longsift and Hugging Face's package may match \
                 differently: the ids of some texts may differ"
            )
        });
        pattern.into_iter().chain(self.differences.iter().cloned()).collect()
    }

    /// Encodes a whole document without special tokens. Fails if the tokenizer cannot encode the whole text; returned
    /// ids always cover the whole text.
    ///
    /// A text is split where its tokens cannot depend on each other, and several threads encode a long one. Memory:
    /// eight bytes for each token, and for each thread 65 to 115 for each byte of a part, usually a word. Long parts are
    /// merged in chunks of 64 KiB if merges alone decide the tokens; otherwise a part of more than `largest_part` bytes is
    /// rejected.
    pub fn encode(&self, text: &str, largest_part: usize) -> Result<EncodedText, EncodeProblem> {
        let encoded = without_panic(|| match &self.splitter {
            _ if u32::try_from(text.len()).is_err() => {
                Err(EncodeRefusal::Failed("texts of 4 GiB and more are not supported".to_owned()))
            }
            Ok(splitter) => splitter.encode(&self.library, text, largest_part),
            Err(_) if text.len() > largest_part => Err(EncodeRefusal::TooLarge(text.len())),
            Err(_) => self.encode_whole(text),
        });
        let text_bytes = text.len();
        encoded.map_err(|problem| match problem {
            EncodeRefusal::Failed(reason) => EncodeProblem::Failed { text_bytes, reason },
            EncodeRefusal::TimedOut => EncodeProblem::TimedOut { text_bytes },
            EncodeRefusal::TooLarge(part_bytes) => {
                EncodeProblem::TooLarge { text_bytes, part_bytes, largest_part }
            }
        })
    }

    pub(super) fn encode_whole(&self, text: &str) -> Result<EncodedText, EncodeRefusal> {
        let _budget = PatternBudget::start(text.len());
        let normalizer = self.steps.watched_normalizer();
        let added = self.library.steps().get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(Some(&normalizer), text);
        if let Some(problem) = normalizer.into_problem() {
            return Err(problem);
        }
        self.steps.pre_tokenize(&mut pieces)?;
        self.library.model()?.tokenize_in_pretokenized(&mut pieces, None)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::Byte)?;
        let ends = character_ends(text, encoding.get_offsets());
        Ok(EncodedText { ids: encoding.get_ids().to_vec(), ends })
    }
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let (_, file) = open_regular(path)?;
    let mut json = Vec::new();
    file.take(MAX_TOKENIZER_BYTES + 1).read_to_end(&mut json)?;
    if json.len() as u64 > MAX_TOKENIZER_BYTES {
        let why = format!("it has more than {MAX_TOKENIZER_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(json)
}

/// Returns the GGUF file at `path`, or in that folder: of a split file the first part, which has the tokenizer.
fn gguf_of(path: &Path) -> Option<PathBuf> {
    let ModelFiles { folder, gguf } = ModelFiles::find(path).ok()?;
    Some(folder.join(gguf.first()?))
}

impl fmt::Debug for Encoder {
    /// Omits the vocabulary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut encoder = f.debug_struct("Encoder");
        encoder
            .field("digest", &self.digest)
            .field("largest_id", &self.largest_id)
            .finish_non_exhaustive()
    }
}

/// Converts a panic to an error: a malformed `tokenizer.json` can violate assertions of the crate.
fn without_panic<T>(work: impl FnOnce() -> Result<T, EncodeRefusal>) -> Result<T, EncodeRefusal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic_message(panic.as_ref());
        Err(EncodeRefusal::Failed(format!("the tokenizer panicked: {message}")))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        assert_eq!(as_text.largest_id(), 257);
    }

    #[test]
    fn missing_and_broken_files_are_reported() {
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
    fn added_tokens_that_are_equal_after_normalization_are_refused() {
        let with = |normalizer: &str, normalized: bool| {
            let bytes = bytes_with(|form| {
                let token = |id: u32, content: &str| {
                    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": normalized, "special": false})
                };
                form["normalizer"] = json!({ "type": normalizer });
                form["added_tokens"] = json!([token(257, "<USER>"), token(258, "<user>")]);
            });
            Encoder::from_bytes(&bytes, SpecialTokensInText::Parse)
        };
        let reason = with("Lowercase", true).err().unwrap();
        assert!(
            reason.contains("`<USER>` (257) and `<user>` (258) are equal after normalization"),
            "{reason}"
        );
        assert!(with("Lowercase", false).is_ok() && with("NFC", true).is_ok());
        let emptied = bytes_with(|form| {
            form["normalizer"] = json!({"type": "Strip", "strip_left": true, "strip_right": true});
            form["added_tokens"][0]["content"] = json!("  ");
            form["added_tokens"][0]["normalized"] = json!(true);
        });
        let reason = Encoder::from_bytes(&emptied, SpecialTokensInText::Parse).err().unwrap();
        assert_eq!(reason, "the added token `  ` (257) is empty after normalization");
    }

    #[test]
    fn added_tokens_are_searched_in_composed_text() {
        let composed = "\u{105}";
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "decoder": null,
            "added_tokens": [{"id": 1, "content": "a", "single_word": false, "lstrip": false, "rstrip": false,
                              "normalized": true, "special": false}],
            "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "BPE", "vocab": {"u": 0, "a": 1, "b": 2, composed: 3}, "merges": [], "unk_token": "u"}
        });
        let bytes = serde_json::to_vec(&json).unwrap();
        let encoder = Encoder::from_bytes(&bytes, SpecialTokensInText::Parse).unwrap();
        let ids = |text: &str| encoder.encode(text, usize::MAX).unwrap().ids;
        assert_eq!(ids("b a\u{328} a b"), [2, 3, 1, 2]);
    }

    #[test]
    fn the_digest_is_of_the_file() {
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
