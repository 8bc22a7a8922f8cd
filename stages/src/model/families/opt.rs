//! OPT: learned positions that begin with the third row, so each window is projected on its own.

use super::first_layer::FirstLayer;
use super::llama_like::named;
use super::sizes::{LLAMA_NAMES, MOST_ENTRIES, SizeDefaults, SizeNames, sizes};
use crate::model::fields::Fields;
use crate::model::spec::{LayerZeroSpec, Norm};
use crate::model::tensors::{Projection, Role, WholeTensor};

/// Rows of the positions that stand for no position.
const OFFSET: u64 = 2;

/// OPT-350M has its norms after attention, so that layer 0 reads the embedding, and projects narrower embeddings first.
pub(super) fn first_layer(config: &Fields<'_>, _: Option<f64>) -> FirstLayer {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let names = SizeNames { key_heads: &[], ..LLAMA_NAMES };
    let sizes = sizes(config, &names, &defaults);
    let (hidden, positions) = (sizes.hidden_size, sizes.max_positions.unwrap_or(2048));
    let before = config.flag("do_layer_norm_before", true);
    // The `eps` is the library's own: config.json has none.
    let norm = if before { Norm::Layer { eps: 1e-5, offset: 0.0 } } else { Norm::None };
    let bias = config.flag("enable_bias", true);
    let mut spec = LayerZeroSpec {
        bias,
        learned_positions: Some(positions),
        ..LayerZeroSpec::plain(&sizes, norm)
    };
    let width = config.optional_size("word_embed_proj_dim", MOST_ENTRIES);
    spec.embedding.width = width.filter(|width| *width != hidden);
    let width = spec.embedding.width;
    let projection =
        |name: &str| Projection::whole(&format!("layers.0.self_attn.{name}"), bias, hidden);
    let projections = (projection("q_proj"), projection("k_proj"));
    let names = ("embed_tokens", "layers.0.self_attn_layer_norm", true);
    let prefixes = &["model.decoder.", "decoder.", "model.", ""];
    let mut first = named(spec, prefixes, names, projections);
    if !config.flag("layer_norm_elementwise_affine", true) {
        (first.tensors.norm_weight, first.tensors.norm_bias) = (None, None);
    }
    if let Some(width) = width {
        first.tensors.need(Role::EmbeddingProjection, "project_in.weight", &[hidden, width]);
    }
    first.tensors.more.push(WholeTensor {
        role: Role::Positions,
        name: "embed_positions.weight".to_owned(),
        shape: vec![positions + OFFSET, hidden],
        first: OFFSET,
    });
    first
}
