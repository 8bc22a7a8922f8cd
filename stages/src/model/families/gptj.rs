//! GPT-J: adjacent rotating pairs, `rotary_dim` dimensions of each head.

use super::first_layer::FirstLayerConfig;
use super::gpt2::GPT_NAMES;
use super::llama_like::{named, plain_rope};
use super::sizes::{MAX_HEADS, SizeDefaults, sizes};
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;
use crate::model::rope::Pairing;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::Projection;

/// No biases on queries and keys.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let sizes = sizes(config, &GPT_NAMES, &defaults);
    let rotary = config.optional_size("rotary_dim", MAX_HEADS).unwrap_or(64);
    if config.is_clean() && (rotary > sizes.head_dim || !rotary.is_multiple_of(2)) {
        config.note(ModelProblem::checkpoint(format!(
            "`rotary_dim` {rotary} is not an even number up to the {} of a head",
            sizes.head_dim
        )));
    }
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let rope = plain_rope(Pairing::Interleaved, rotary, rope_theta.unwrap_or(1e4));
    let plain = AttentionSpec::plain(&sizes, Norm::Layer { eps, offset: 0.0 });
    let spec = AttentionSpec { rope: Some(rope), ..plain };
    let outputs = sizes.query_heads * sizes.head_dim;
    let projections = Projection::separate("h.0.attn", false, outputs, outputs);
    named(spec, &["transformer.", ""], ("wte", "h.0.ln_1", true), projections)
}
