//! The stages of a pipeline: their settings, their contracts and their arithmetic.
//!
//! One file per stage. A stage file has its settings (the doc comments are the manual: the JSON Schema and the
//! reference page come from them), what it reads and writes, and the functions that do the work, which know
//! neither files nor threads. Reading, scheduling and committing belong to the engine.

pub mod contract;
pub mod filter;
pub mod first_layer_attention;
pub mod load_partial_model;
pub mod model;
pub mod score;
pub mod shard_across_devices;
pub mod tokenize;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use contract::Stage;
pub use filter::Filter;
pub use first_layer_attention::FirstLayerAttention;
pub use load_partial_model::LoadPartialModel;
pub use score::Score;
pub use shard_across_devices::ShardAcrossDevices;
pub use tokenize::Tokenize;

/// One stage of a pipeline, named by its `stage` key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "stage", rename_all = "kebab-case")]
pub enum StageSettings {
    /// Reads the first-layer tensors of a checkpoint and turns them into the layer-zero table.
    LoadPartialModel(LoadPartialModel),
    /// Turns documents into token windows.
    Tokenize(Tokenize),
    /// Chooses the devices that score windows, and how much of their memory may be used.
    ShardAcrossDevices(ShardAcrossDevices),
    /// Measures, per window, how much the tokens of the first layer attend to far-away tokens.
    FirstLayerAttention(FirstLayerAttention),
    /// Turns the raw statistics of all windows into one comparable number each.
    Score(Score),
    /// Keeps the best samples.
    Filter(Filter),
}

/// The names of all stages, in the order a pipeline lists them.
pub const STAGE_NAMES: [&str; 6] = [
    "load-partial-model",
    "tokenize",
    "shard-across-devices",
    "first-layer-attention",
    "score",
    "filter",
];

impl StageSettings {
    /// The stage behind the settings, for what all stages have in common.
    pub fn stage(&self) -> &dyn Stage {
        match self {
            Self::LoadPartialModel(stage) => stage,
            Self::Tokenize(stage) => stage,
            Self::ShardAcrossDevices(stage) => stage,
            Self::FirstLayerAttention(stage) => stage,
            Self::Score(stage) => stage,
            Self::Filter(stage) => stage,
        }
    }
}
