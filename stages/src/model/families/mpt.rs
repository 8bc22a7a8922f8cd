//! MPT: linear biases, or learned positions without them.

use super::alibi::mpt_slopes;
use super::first_layer::FirstLayerConfig;
use super::llama_like::named;
use super::sizes::{SizeDefaults, SizeNames, sizes};
use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::{Projection, TensorRole};

const NAMES: SizeNames = SizeNames {
    hidden: &["d_model", "hidden_size"],
    layers: &["n_layers", "num_hidden_layers"],
    heads: &["n_heads", "num_attention_heads"],
    key_heads: &[],
    vocabulary: &["vocab_size"],
    positions: &["max_seq_len"],
};

/// One tensor of queries, keys and values, clipped if `clip_qkv` is set. No biases.
pub(super) fn first_layer(config: &Fields<'_>, _: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let sizes = sizes(config, &NAMES, &defaults);
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let mut spec = AttentionSpec::plain(&sizes, Norm::Layer { eps, offset: 0.0 });
    let attention = config.optional_object("attn_config");
    let mut alibi = true;
    if let Some(attention) = &attention {
        spec.clip = attention.optional_positive("clip_qkv");
        spec.scale = attention.optional_positive("softmax_scale").unwrap_or(spec.scale);
        alibi = attention.flag("alibi", true);
        refuse_unknown_settings(attention);
    }
    if alibi {
        let max = attention.and_then(|attention| attention.optional_positive("alibi_bias_max"));
        spec.alibi_slopes = Some(mpt_slopes(sizes.query_heads, max.unwrap_or(8.0)));
    } else {
        // The transformers library supports MPT with linear biases only.
        spec.unverified = true;
        if config.flag("learned_pos_emb", true) {
            spec.learned_positions = sizes.max_positions;
        }
    }
    let hidden = sizes.hidden_size;
    let projections = Projection::stacked("blocks.0.attn.Wqkv", false, hidden, hidden);
    let positions = spec.learned_positions;
    let names = ("wte", "blocks.0.norm_1", false);
    let mut first = named(spec, &["transformer.", ""], names, projections);
    if let Some(positions) = positions {
        first.tensors.need(TensorRole::Positions, "wpe.weight", &[positions, hidden]);
    }
    first
}

fn refuse_unknown_settings(attention: &Fields<'_>) {
    let kind = attention.optional_text("attn_type").unwrap_or("multihead_attention");
    if kind != "multihead_attention" {
        attention.note(ModelProblem::settings(format!("`attn_type` `{kind}` is not supported")));
    }
    for name in ["qk_ln", "prefix_lm", "rope"] {
        if attention.flag(name, false) {
            let message = format!("`{name}` of {} is not supported", attention.location());
            attention.note(ModelProblem::settings(message));
        }
    }
}
