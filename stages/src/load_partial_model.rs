//! Reads the first-layer tensors of a checkpoint and turns them into the layer-zero table.
//!
//! What differs between model families lives in [`crate::model`]; this file has the settings.

use crate::contract::Location;
use longsift_kernels::ElementType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reads the first-layer tensors of a checkpoint (embedding, first norm, query and key projections) and turns them
/// into the layer-zero table: one row per vocabulary entry with its queries and keys before the rotary embedding.
/// Nothing else of the checkpoint is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadPartialModel {
    /// Folder of the checkpoint in the Hugging Face layout: `config.json` and one or more `.safetensors` files, plain or
    /// quantised (GPTQ, AWQ, bitsandbytes, fp8, compressed-tensors, MLX). Or a `.gguf` file, or a folder with one; the
    /// tokenizer is the `tokenizer.json` beside it. Relative to the pipeline file's folder. Or, in builds with the feature
    /// `cloud`, a model of the Hugging Face hub, `hf://owner/name@commit`, or a folder with safetensors files of `s3://`,
    /// `gs://`, `az://`, `http://` or `https://`; of these layer 0 alone is fetched.
    #[schemars(extend("x-schemes" = ["hf", "s3", "gs", "az", "http", "https"]))]
    pub model: Location,
    /// The number format of the layer-zero table. `f32` (default) is exact; `bf16` halves the table and rounds each
    /// query and key to 8 significant bits (relative error 2^-9 per entry). Where the processor multiplies bf16 faster
    /// (AMX; AVX-512 BF16 on AMD's), its kernel rounds both once more after the rotation; `--kernel` chooses another.
    #[serde(default)]
    pub precision: Precision,
    /// Replaces the checkpoint's rotary base frequency (`rope_theta`); its frequency scaling stays as it is. Leave it
    /// out (the default) to use what the model was trained with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0))]
    pub rope_theta: Option<f64>,
    /// Folder where built tables are kept and shared between runs, relative to the pipeline file's folder. By
    /// default `longsift` in the user's cache folder (`$XDG_CACHE_HOME`, else `~/.cache`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = []))]
    pub cache_folder: Option<Location>,
    /// Whether a window longer than the positions the model was trained for is an error. The default `false` warns:
    /// the scores are defined, but no one has trained the model to see that far.
    #[serde(default)]
    pub strict_positions: bool,
}

/// The number format of the layer-zero table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats: exact for every checkpoint format.
    #[default]
    F32,
    /// 16-bit brain floats: half the memory, 8 significant bits.
    Bf16,
}

impl Precision {
    /// Bytes of one number.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The numbers that kernels read from such a table.
    pub fn element_type(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::Bf16 => ElementType::Bf16,
        }
    }

    /// The name as written in a pipeline.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}
