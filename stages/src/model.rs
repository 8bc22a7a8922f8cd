//! Model folders: from a checkpoint of any size to the layer-zero table.
//!
//! Before the rotary embedding, the queries and keys of a model's first layer depend on the token id alone. The table
//! holds them for every id. The table and the [`AttentionSpec`] capture all differences between families:
//!
//! ```text
//! config.json ──▶ ModelConfig ──▶ ModelFolder ──▶ LayerZeroTable
//!                 the first        headers         weights read, table
//!                 layer            checked         built, cached, mapped
//! ```
//!
//! A family is one short file in `families/`, a format of packed weights one in `formats/`.
//!
//! ```no_run
//! # use std::path::Path;
//! # use longsift_kernels::{ElementType, Kernel};
//! # use longsift_stages::load_partial_model::Precision;
//! # use longsift_stages::model::{LayerZeroTable, ModelFolder};
//! let model = ModelFolder::open(Path::new("models/Llama-3.1-8B"), None).map_err(|mut all| all.remove(0))?;
//! let (kernel, cache) = (Kernel::detect(ElementType::Bf16), Path::new("cache"));
//! let opened = LayerZeroTable::open_or_build(&model, kernel, Precision::Bf16, cache, &|_, _| {})?;
//! assert_eq!(opened.table.row_width(), (32 + 8) * 128);
//! # Ok::<(), longsift_stages::model::ModelProblem>(())
//! ```

mod aux_tensors;
mod bos;
mod build;
mod cache;
mod catalogue;
mod checkpoint;
mod config;
mod decoder;
mod entry;
mod families;
mod fields;
pub(crate) mod folder_files;
mod formats;
mod gguf;
mod gguf_config;
mod model_files;
mod norms;
mod problem;
mod remote;
mod rope;
mod rope_config;
mod row_steps;
mod shard;
mod spec;
mod steps;
mod stored;
mod table;
mod tensors;
mod unread;
mod weights;
mod whole;
mod window_source;

#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod conformance_tests;
#[cfg(test)]
mod folder_tests;
#[cfg(test)]
mod format_refusal_tests;
#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod gguf_tests;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod remote_tests;
#[cfg(test)]
#[cfg(feature = "candle")]
mod whole_candle_tests;
#[cfg(test)]
mod whole_family_tests;
#[cfg(test)]
mod whole_gla_tests;
#[cfg(test)]
mod whole_tests;

pub use build::TABLE_VERSION;
pub use cache::{OpenedTable, known_digest, known_weights_digest};
pub use checkpoint::ModelFolder;
pub use config::ModelConfig;
#[cfg(test)]
pub(crate) use families::known_model_types;
pub(crate) use folder_files::is_gguf_file;
pub(crate) use gguf::{GgufMetadata, tokenizer_metadata};
pub(crate) use model_files::ModelFiles;
pub(crate) use problem::listed;
pub use problem::{ModelProblem, ProblemKind};
pub use remote::{SlicePlan, SlicedFile, slice};
pub use rope::{RopeScaling, RopeSpec};
pub use shard::RemoteWeights;
pub use spec::{AttentionSpec, EmbeddingSteps, HeadNorm, Latent, Norm, NormScope, QueryScale};
pub use table::LayerZeroTable;
pub(crate) use tensors::TensorRole;
pub use whole::{
    BackendName, FORWARD_VERSION, ForwardMemory, ForwardOperations, ForwardOutput, ShortWindow,
    WholeModel, has_gpu, short_windows,
};
pub(crate) use window_source::{PackedProjections, WindowParts};
