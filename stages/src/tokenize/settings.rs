//! Settings of the stage.

use crate::contract::Location;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Converts documents to token windows. Each document is tokenized once, as a whole, with a `tokenizer.json`, by
/// default that of the model; windows are cut from the token ids and never tokenized again. With
/// `input.tokens_column` documents already consist of ids, and this stage only cuts windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokenize {
    /// Length of a window in tokens, BOS included (2 to 16,777,216). With `windows: whole-document` it is the maximum
    /// length of a document. Required, since every score depends on it.
    #[schemars(range(min = 2, max = 16_777_216))]
    pub window_tokens: u32,
    /// Division of a document into windows. `disjoint` (default) uses every token at most once.
    #[serde(default)]
    pub windows: Windows,
    /// Treatment of a document shorter than a window, and with `disjoint` of the tail after the last full window.
    /// Default `drop`, since scores of different lengths are not comparable.
    #[serde(default)]
    pub short_documents: ShortDocuments,
    /// Number of BOS tokens before each window: 0, 1 or 2 (the published LongAttn script produces 2). They count
    /// towards `window_tokens`. Default: 1 if the model has a BOS token, else 0. Always 0 without a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2))]
    pub bos: Option<u8>,
    /// A `tokenizer.json`, or a folder with one, relative to the pipeline file's folder; or an address like that of a
    /// model, such as `hf://owner/name@commit`. Default: the model's tokenizer. Required for text in a pipeline without
    /// a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = ["hf", "s3", "gs", "az", "http", "https"]))]
    pub tokenizer: Option<Location>,
    /// Treatment of the text of a special token (`<|endoftext|>`) inside a document. `parse` (default) makes it the
    /// special token, as Hugging Face does; `as-text` encodes its characters.
    #[serde(default)]
    pub special_tokens_in_text: SpecialTokensInText,
}

/// Cutting of a document into windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Windows {
    /// Windows from the front and the back of a document in turn, then from the middle of the rest (`LongAttn`,
    /// appendix A). The last ones may overlap, so a token may be kept twice. A document of exactly one window is that
    /// window (the published script drops it).
    BothEnds,
    /// Consecutive windows that do not overlap.
    #[default]
    Disjoint,
    /// One window per document, as long as the document; a document longer than `window_tokens` is quarantined.
    WholeDocument,
}

/// Treatment of a document (or a tail) shorter than a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShortDocuments {
    /// Drops it. A document is counted as `short_document`; a tail is not counted, and only missing in
    /// `tokens_scored`.
    #[default]
    Drop,
    /// Scores it as one window of its own length.
    Score,
}

/// Treatment of the text of a special token inside a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SpecialTokensInText {
    /// Makes it the special token, as Hugging Face does.
    #[default]
    Parse,
    /// Encodes it like other text. Added tokens that the tokenizer does not flag as special (`<tool_call>` in
    /// Qwen2.5) are ordinary vocabulary and stay tokens.
    AsText,
}
