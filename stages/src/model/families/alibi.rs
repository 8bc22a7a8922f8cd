//! Linear biases (`ALiBi`) instead of positions: Bloom, MPT and Baichuan 13B.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, named};
use super::sizes::{GPT_NAMES, SizeDefaults, SizeNames, sizes};
use crate::model::fields::Fields;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::{Projection, TensorRole};

/// Returns the slopes of the `ALiBi` paper's code: powers of `2^(-8/n)`. If the number of heads is not a power of two, those
/// of the next lower power are followed by every other slope of the next higher one.
fn slopes(heads: u64) -> Vec<f64> {
    let below = 1 << heads.max(1).ilog2();
    let powers = |count: u64, step: usize| {
        let base = libm::exp2(-8.0 / count as f64);
        (1..=count).step_by(step).map(move |power| libm::pow(base, power as f64))
    };
    powers(below, 1).chain(powers(2 * below, 2)).take(heads as usize).collect()
}

/// Returns MPT's slopes: powers of `2^(-max/n)`, where `n` is the number of heads rounded up to a power of two. If
/// that rounds up, slopes at odd positions come first.
fn mpt_slopes(heads: u64, max: f64) -> Vec<f64> {
    let above = heads.next_power_of_two();
    let slope = |power: u64| libm::exp2(-max * power as f64 / above as f64);
    if above == heads {
        return (1..=heads).map(slope).collect();
    }
    let (odd, even) = ((2..=above).step_by(2), (1..=above).step_by(2));
    odd.chain(even).take(heads as usize).map(slope).collect()
}

const BLOOM_NAMES: SizeNames =
    SizeNames { hidden: &["n_embed", "hidden_size"], positions: &["seq_length"], ..GPT_NAMES };

/// Bloom: one tensor of queries, keys and values, head by head; a layer norm over the embedding itself.
pub(super) fn bloom(config: &Fields<'_>) -> FirstLayerConfig {
    let sizes = sizes(config, &BLOOM_NAMES, &SizeDefaults::default());
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let norm = Norm::layer(eps);
    let mut spec = AttentionSpec {
        bias: true,
        alibi_slopes: Some(slopes(sizes.query_heads)),
        ..AttentionSpec::plain(&sizes, norm.clone())
    };
    spec.embedding.norm = norm;
    let name = "h.0.self_attention.query_key_value";
    let projections = Projection::grouped(name, true, sizes.query_heads, 1, sizes.head_dim);
    let names = ("word_embeddings", "h.0.input_layernorm", true);
    let mut first = named(spec, &["transformer.", ""], names, projections);
    let norm = "word_embeddings_layernorm";
    let shape = [sizes.hidden_size];
    first.tensors.need(TensorRole::EmbeddingNormWeight, &format!("{norm}.weight"), &shape);
    first.tensors.need(TensorRole::EmbeddingNormBias, &format!("{norm}.bias"), &shape);
    first
}

const MPT_NAMES: SizeNames = SizeNames {
    hidden: &["d_model", "hidden_size"],
    layers: &["n_layers", "num_hidden_layers"],
    heads: &["n_heads", "num_attention_heads"],
    positions: &["max_seq_len"],
    ..GPT_NAMES
};

/// MPT: one tensor of queries, keys and values, clipped if `clip_qkv` is set. No biases.
pub(super) fn mpt(config: &Fields<'_>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let sizes = sizes(config, &MPT_NAMES, &defaults);
    let eps = config.optional_positive("layer_norm_epsilon").unwrap_or(1e-5);
    let mut spec = AttentionSpec::plain(&sizes, Norm::layer(eps));
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
        attention.refuse(format!("`attn_type` `{kind}` is not supported"));
    }
    for name in ["qk_ln", "prefix_lm", "rope"] {
        if attention.flag(name, false) {
            attention.refuse(format!("`{name}` of {} is not supported", attention.location));
        }
    }
}

/// Baichuan and Baichuan 2: Llama with one tensor of queries, keys and values. The 13B models have linear biases, and
/// no `max_position_embeddings`.
pub(super) const BAICHUAN: LlamaLike =
    LlamaLike { max_positions: 4096, bias: Bias::Fixed(false), adjust: baichuan, ..LLAMA };

fn baichuan(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    let width = first.spec.query_heads * first.spec.head_dim;
    (first.tensors.query, first.tensors.key) =
        Projection::stacked("layers.0.self_attn.W_pack", false, width, width);
    if config.value("max_position_embeddings").is_none() {
        first.spec.rope = None;
        first.spec.alibi_slopes = Some(slopes(first.spec.query_heads));
        first.spec.max_positions = config.optional_size("model_max_length", 1 << 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: &[f64], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-12), "{got:?}");
    }

    #[test]
    fn slopes_of_a_power_of_two_halve_evenly() {
        near(
            &slopes(8),
            &[0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015_625, 0.007_812_5, 0.003_906_25],
        );
        near(&slopes(4), &[0.25, 0.0625, 0.015_625, 0.003_906_25]);
        near(&mpt_slopes(4, 8.0), &slopes(4));
    }

    #[test]
    fn further_heads_take_every_other_slope_of_the_next_power() {
        near(&slopes(6), &[0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        near(&mpt_slopes(6, 8.0), &[0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        near(&mpt_slopes(3, 8.0), &[0.0625, 0.003_906_25, 0.25]);
    }
}
