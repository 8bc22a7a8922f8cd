//! Stages of a pipeline: settings, contracts and arithmetic.
//!
//! One file per stage, with its settings, its inputs and outputs, and the functions that do the work without files or
//! threads. The doc comments of settings are the manual: the JSON Schema and the reference page are generated from
//! them. Reading, scheduling and committing belong to the engine.

pub mod contract;
pub mod filter;
pub mod first_layer_attention;
pub mod load_partial_model;
pub mod measures;
pub mod model;
pub mod score;
pub mod shard_across_devices;
pub mod tokenize;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use contract::Measure;
pub use filter::Filter;
pub use first_layer_attention::FirstLayerAttention;
pub use load_partial_model::LoadPartialModel;
pub use measures::external::Reads;
pub use measures::{Compression, External, LanguageModel, Lexical, Recurrence};
pub use score::Score;
pub use shard_across_devices::ShardAcrossDevices;
pub use tokenize::Tokenize;

/// One stage of a pipeline, named by its `stage` key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "stage", rename_all = "kebab-case")]
pub enum StageSettings {
    /// Reads the first-layer tensors of a checkpoint and computes the layer-zero table.
    LoadPartialModel(LoadPartialModel),
    /// Converts documents to token windows.
    Tokenize(Tokenize),
    /// Selects the devices that measure windows, and how much of their memory may be used.
    ShardAcrossDevices(ShardAcrossDevices),
    /// Measures how much the tokens of a window attend to far-away tokens in the first layer.
    FirstLayerAttention(FirstLayerAttention),
    /// Measures how much text of a window recurs far back, from token ids alone.
    Recurrence(Recurrence),
    /// Measures how well gzip compresses the text of a window: a baseline, and a guard.
    Compression(Compression),
    /// Measures signs of junk: few distinct tokens, many digits, long strings without a blank.
    Lexical(Lexical),
    /// Measures a window with a whole language model: losses, the gain from a long context, attention of any layer.
    LanguageModel(LanguageModel),
    /// Runs a program of your own that measures windows, or that measures and drops documents.
    External(External),
    /// Combines the statistics of each window into one comparable score.
    Score(Score),
    /// Keeps the best samples.
    Filter(Filter),
}

/// Role of a stage. Required stages, their number and their order follow from it.
#[derive(Clone, Copy, Debug)]
pub enum Role<'a> {
    /// First layer of a model.
    Model(&'a LoadPartialModel),
    /// Windows of documents.
    Windows(&'a Tokenize),
    /// Filter of whole documents, before they are cut into windows.
    Rows(&'a External),
    /// Devices that compute evidence.
    Devices(&'a ShardAcrossDevices),
    /// Statistics of windows.
    Measure(&'a dyn Measure),
    /// One number per sample.
    Score(&'a Score),
    /// Selection of samples.
    Filter(&'a Filter),
}

impl StageSettings {
    pub fn role(&self) -> Role<'_> {
        match self {
            Self::LoadPartialModel(stage) => Role::Model(stage),
            Self::Tokenize(stage) => Role::Windows(stage),
            Self::ShardAcrossDevices(stage) => Role::Devices(stage),
            Self::FirstLayerAttention(stage) => Role::Measure(stage),
            Self::Recurrence(stage) => Role::Measure(stage),
            Self::Compression(stage) => Role::Measure(stage),
            Self::Lexical(stage) => Role::Measure(stage),
            Self::LanguageModel(stage) => Role::Measure(stage),
            Self::External(stage) if stage.reads == Reads::Document => Role::Rows(stage),
            Self::External(stage) => Role::Measure(stage),
            Self::Score(stage) => Role::Score(stage),
            Self::Filter(stage) => Role::Filter(stage),
        }
    }

    /// Returns the value of the `stage` key.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LoadPartialModel(_) => "load-partial-model",
            Self::Tokenize(_) => "tokenize",
            Self::ShardAcrossDevices(_) => "shard-across-devices",
            Self::FirstLayerAttention(_) => "first-layer-attention",
            Self::Recurrence(_) => "recurrence",
            Self::Compression(_) => "compression",
            Self::Lexical(_) => "lexical",
            Self::LanguageModel(_) => "language-model",
            Self::External(_) => "external",
            Self::Score(_) => "score",
            Self::Filter(_) => "filter",
        }
    }
}
