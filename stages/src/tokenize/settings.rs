//! Settings of the stage.

use crate::contract::Location;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Turns documents into token windows. Text is tokenised once, whole, with a `tokenizer.json`, the model's own by default; windows
/// are cut from the token ids, never re-tokenised. With `input.tokens_column` documents arrive as ids and this stage
/// only cuts windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokenize {
    /// Tokens of a scored sequence, BOS included (2 to 16,777,216). With `whole-document` it is the longest document
    /// that is scored. No default: it is the one number every score depends on.
    #[schemars(range(min = 2, max = 16_777_216))]
    pub window_tokens: u32,
    /// How a document is cut into windows. `disjoint` (default) uses every token at most once.
    #[serde(default)]
    pub windows: Windows,
    /// What happens to a document shorter than a window, and with `disjoint` to the tail behind the last full
    /// window. `drop` (default) because scores of different lengths are not comparable.
    #[serde(default)]
    pub short_documents: ShortDocuments,
    /// How many BOS tokens stand before each window: 0, 1 or 2 (2 is what the published script produces). They count
    /// towards `window_tokens`. Default: 1 where the model has a BOS token, else 0. A pipeline without a model has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2))]
    pub bos: Option<u8>,
    /// A `tokenizer.json`, or a folder that has one, relative to the pipeline file's folder; or an address as of a
    /// model, `hf://owner/name@commit` for one. Default: the model's. Text needs one in a pipeline without a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = ["hf", "s3", "gs", "az", "http", "https"]))]
    pub tokenizer: Option<Location>,
    /// What the text of a special token (`<|endoftext|>`) inside a document means. `parse` (default) makes it the
    /// special token, as Hugging Face does; `as-text` encodes its characters.
    #[serde(default)]
    pub special_tokens_in_text: SpecialTokensInText,
}

/// How a document is cut into windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Windows {
    /// Windows from the front and the back of a document in turn, and from the middle of what is left (`LongAttn`,
    /// appendix A). The last ones may overlap, so a token may be kept twice. A document of exactly one window is
    /// that window (the published script drops it).
    BothEnds,
    /// Consecutive windows that do not overlap.
    #[default]
    Disjoint,
    /// One window per document, as long as the document; a document longer than `window_tokens` is quarantined.
    WholeDocument,
}

/// What happens to a document (or a tail) shorter than a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShortDocuments {
    /// It is dropped, and counted as `short_document`.
    #[default]
    Drop,
    /// It is one window of its own length.
    Score,
}

/// What the text of a special token inside a document means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SpecialTokensInText {
    /// It is the special token, as Hugging Face does.
    #[default]
    Parse,
    /// It is encoded like any other text. Added tokens that the tokenizer does not flag as special (`<tool_call>` in
    /// Qwen2.5) are ordinary vocabulary and stay tokens.
    AsText,
}
