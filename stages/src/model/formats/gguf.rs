//! GGUF's tensor names, and reversal of llama.cpp's conversion.
//!
//! For `llama`, the rows of a query or key head are reordered so that the two halves of each rotated pair are adjacent;
//! norms of Gemma are stored with 1 added. Tensors are plain or made of [`blocks`](super::blocks).

use std::ops::Range;

use super::architecture::Architecture;
use super::blocks::BlockMatrix;
use super::finder::{FLOATS, Finder, StoredMatrix};
use super::format::{ByteSlice, StorageFormat};
use super::plain;
use crate::model::entry::StoredType;
use crate::model::problem::ModelProblem;
use crate::model::stored::StoredTensor;
use crate::model::tensors::{NeededTensor, TensorRole};

/// Returns GGUF's name of a tensor, for models built like Llama.
pub(super) fn gguf_name(name: &str) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    match name {
        "embed_tokens.weight" => return Some("token_embd.weight".to_owned()),
        "norm.weight" => return Some("output_norm.weight".to_owned()),
        "lm_head.weight" => return Some("output.weight".to_owned()),
        _ => {}
    }
    let (layer, name) = name.strip_prefix("layers.")?.split_once('.')?;
    let (module, part) = name.rsplit_once('.')?;
    let module = match module {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.qkv_proj" => "attn_qkv",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{module}.{part}"))
}

/// Finds a tensor under its GGUF name and restores the order of the model's own code.
pub(super) fn find(
    finder: &mut Finder<'_>,
    name: &str,
    needed: &NeededTensor,
    architecture: &Architecture,
    head_dim: u64,
) -> Option<StoredMatrix> {
    let stored = finder.stored(name)?;
    let format = format(finder, &stored, needed)?;
    let of_heads = needed.role.is_in(&[TensorRole::QUERY, TensorRole::KEY]);
    let norms = [
        TensorRole::NormWeight,
        TensorRole::QueryNormWeight,
        TensorRole::KeyNormWeight,
        TensorRole::FeedForwardNormWeight,
        TensorRole::LastNormWeight,
    ];
    let format: Box<dyn StorageFormat> = if architecture.adjacent_pairs && of_heads {
        Box::new(Neighbours { format, head_dim })
    } else if architecture.norms_plus_one && norms.contains(&needed.role) {
        Box::new(PlusOne { format })
    } else {
        format
    };
    Some(StoredMatrix { format, stored: vec![stored] })
}

fn format(
    finder: &mut Finder<'_>,
    stored: &StoredTensor,
    needed: &NeededTensor,
) -> Option<Box<dyn StorageFormat>> {
    if stored.entry.shape != needed.shape {
        finder.wrong_shape(stored, &format!("{:?}", needed.shape));
        return None;
    }
    match stored.entry.dtype {
        StoredType::Numbers(dtype) if FLOATS.contains(&dtype) => {
            Some(Box::new(plain::Plain::new(dtype, needed)))
        }
        StoredType::Blocks(kind) => {
            Some(Box::new(BlockMatrix { kind, columns: needed.row_width() }))
        }
        other => {
            let message =
                format!("`{}` has blocks of type {other}, which is not supported", stored.name);
            finder.problems.push(ModelProblem::settings(message).with_hint(
                "use a GGUF file of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or q2_k to q6_k, or the checkpoint in safetensors",
            ));
            None
        }
    }
}

/// Rows of heads in which row `2 · j + p` is row `p · head_dim / 2 + j` of the model.
#[derive(Debug)]
struct Neighbours {
    format: Box<dyn StorageFormat>,
    head_dim: u64,
}

impl StorageFormat for Neighbours {
    fn name(&self) -> String {
        format!("{}, pairs of {} are neighbours", self.format.name(), self.head_dim)
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        self.format.slice(index, rows)
    }

    fn row_step(&self) -> u64 {
        self.head_dim
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let width = rows.end.saturating_sub(rows.start).max(1) as usize;
        let floats = self.format.floats(rows, stored)?;
        let (width, head_dim) = (floats.len() / width, self.head_dim as usize);
        let row = |head: usize, index: usize| {
            let from = head + index % (head_dim / 2) * 2 + index / (head_dim / 2);
            floats[from * width..][..width].iter().copied()
        };
        let heads = (0..floats.len() / width.max(1)).step_by(head_dim);
        Ok(heads.flat_map(|head| (0..head_dim).flat_map(move |index| row(head, index))).collect())
    }
}

/// Weights of a norm with 1 added to each.
#[derive(Debug)]
struct PlusOne {
    format: Box<dyn StorageFormat>,
}

impl StorageFormat for PlusOne {
    fn name(&self) -> String {
        format!("{}, plus 1", self.format.name())
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        self.format.slice(index, rows)
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let floats = self.format.floats(rows, stored)?;
        Ok(floats.into_iter().map(|number| number - 1.0).collect())
    }
}
