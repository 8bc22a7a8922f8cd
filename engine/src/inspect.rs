//! `longsift inspect`: what of a checkpoint is read, and what it takes.

use std::fmt;
use std::path::Path;

use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{LayerZeroSpec, ModelFolder};
use serde::Serialize;

use crate::error::Result;
use crate::report::{bytes, count};

/// Window lengths that memory is shown for, in tokens.
const WINDOWS: [usize; 5] = [4_096, 8_192, 32_768, 131_072, 1_048_576];

/// What there is to know about a checkpoint before it is used.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// The first layer.
    pub layer: LayerZeroSpec,
    /// Bytes of the whole checkpoint.
    pub checkpoint_bytes: u64,
    /// Bytes that are read of it.
    pub bytes_to_read: u64,
    /// Bytes of the layer-zero table, by precision.
    pub table_bytes: Vec<(&'static str, u64)>,
    /// Bytes of memory that one window takes on the CPU, by its length in tokens.
    pub window_bytes: Vec<(usize, u64)>,
    /// The BOS token, if the model has one.
    pub bos_token_id: Option<u32>,
}

/// Looks at a model folder; reads no weights.
pub fn inspect(folder: &Path) -> Result<Page> {
    let model = ModelFolder::open(folder, None)?;
    let threads = rayon::current_num_threads();
    let window = |tokens: usize| {
        (tokens, longsift_kernels::window_bytes(&model.spec().attention_shape(tokens), threads))
    };
    Ok(Page {
        layer: model.spec().clone(),
        checkpoint_bytes: model.checkpoint_bytes(),
        bytes_to_read: model.bytes_to_read(),
        table_bytes: [Precision::F32, Precision::Bf16]
            .map(|precision| (precision.name(), model.table_bytes(precision)))
            .to_vec(),
        window_bytes: WINDOWS.map(window).to_vec(),
        bos_token_id: model.bos_token_id(),
    })
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = &self.layer;
        writeln!(
            f,
            "{}, {} layers, hidden size {}",
            layer.model_type,
            layer.layers,
            count(layer.hidden_size)
        )?;
        let mut line = |name: &str, value: String| writeln!(f, "  {name:<16} {value}");
        line(
            "layer 0",
            format!(
                "{} query heads, {} key heads of {}",
                layer.query_heads, layer.key_heads, layer.head_dim
            ),
        )?;
        line(
            "it sees",
            layer.visible_distances().map_or("the whole window".to_owned(), |sight| {
                format!("{} tokens back: the far distance must be below that", count(sight))
            }),
        )?;
        line(
            "positions",
            layer
                .trained_positions()
                .map_or("not stated".to_owned(), |tokens| format!("{} trained", count(tokens))),
        )?;
        line("vocabulary", format!("{} entries", count(layer.vocabulary_size)))?;
        line(
            "BOS",
            self.bos_token_id
                .map_or("none: `bos: 0`".to_owned(), |id| format!("token {id}: `bos: 1`")),
        )?;
        line(
            "reads",
            format!(
                "{} of {} of the checkpoint",
                bytes(self.bytes_to_read),
                bytes(self.checkpoint_bytes)
            ),
        )?;
        for (precision, size) in &self.table_bytes {
            line("table", format!("{} in {precision}", bytes(*size)))?;
        }
        for (tokens, size) in &self.window_bytes {
            line(
                "one window",
                format!("{} for {} tokens, besides the table", bytes(*size), count(*tokens as u64)),
            )?;
        }
        Ok(())
    }
}
