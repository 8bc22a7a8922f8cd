//! Settings for reading the first-layer tensors of a checkpoint into the layer-zero table.

use crate::contract::Location;
use longsift_kernels::ElementType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reads the first-layer tensors of a checkpoint (embedding, first norm, query and key projections) and computes the
/// layer-zero table: one row per vocabulary entry with its queries and keys before the rotary embedding. The rest of
/// the checkpoint is not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadPartialModel {
    /// Folder of the checkpoint in the Hugging Face layout: `config.json` and one or more `.safetensors` files, plain
    /// or quantised (GPTQ, AWQ, bitsandbytes, fp8, compressed-tensors, MLX). Or a `.gguf` file, or a folder with one;
    /// its tokenizer is the `tokenizer.json` next to it, if present. Relative to the pipeline file's folder. In
    /// builds with the feature `cloud` also a model of the Hugging Face hub, `hf://owner/name@commit`, or a folder
    /// with safetensors files at an `s3://`, `gs://`, `az://`, `http://` or `https://` address; only layer 0 of these
    /// is downloaded.
    #[schemars(extend("x-schemes" = ["hf", "s3", "gs", "az", "http", "https"]))]
    pub model: Location,
    /// Number format of queries and keys. `f32` (default) is exact and works on every device. `bf16` halves the table:
    /// queries and keys keep 8 significant bits, so a logit is off by 2.3e-3 of the logits' standard deviation. It is
    /// computed on GPUs and on processors with AMX; other processors compute in float32, and `longsift plan` prints the
    /// kernel. `int16` rounds queries and keys to 16-bit integers, each vector with its own scale; the table stays as
    /// large as with `f32`. A logit is off by 1e-4 of the logits' standard deviation (heads of 128), and products take
    /// half as long on processors with VNNI. It requires an `x86_64` processor with AVX2; other processors require
    /// `--kernel portable-int16`, which is slow. GPUs do not support it.
    #[serde(default)]
    pub precision: Precision,
    /// Rotary base frequency (`rope_theta`) to use instead of the checkpoint's; frequency scaling is unchanged.
    /// Default: the checkpoint's, which the model was trained with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0))]
    pub rope_theta: Option<f64>,
    /// Folder where computed tables are stored and shared between runs, relative to the pipeline file's folder.
    /// Default: `longsift` in the user's cache folder (`$XDG_CACHE_HOME`, else `~/.cache`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = []))]
    pub cache_folder: Option<Location>,
    /// Whether a window longer than the model's trained context is an error. Default false, which warns: such scores
    /// are defined, but the model was not trained for these distances.
    #[serde(default)]
    pub strict_positions: bool,
}

/// Number format in which queries and keys are stored and multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats: exact for every checkpoint format.
    #[default]
    F32,
    /// bfloat16: half the memory, 8 significant bits.
    Bf16,
    /// 16-bit integers, each query and key with its own scale; converted from the `f32` table when a window is
    /// measured.
    Int16,
}

impl Precision {
    /// Returns the bytes of one number of the table.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::Int16 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Returns the number type that kernels multiply.
    pub fn element_type(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::Bf16 => ElementType::Bf16,
            Self::Int16 => ElementType::Int16,
        }
    }

    /// Returns the precision of the table that is read: integers are quantised from float32 numbers after rotation.
    #[must_use]
    pub fn table_precision(self) -> Self {
        match self {
            Self::F32 | Self::Int16 => Self::F32,
            Self::Bf16 => Self::Bf16,
        }
    }

    /// Returns the name used in pipelines.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int16 => "int16",
        }
    }
}
