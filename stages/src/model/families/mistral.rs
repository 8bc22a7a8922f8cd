//! Mistral 7B, Nemo and Small; Ministral. The first release slides over 4,096 tokens in every layer.
//! Mixtral follows the attention with a mixture of experts.

use super::decoders::{plain_llama_decoder, sized};
use super::first_layer::{
    FirstLayerConfig, slide, slide_everywhere, slide_if_given, sliding_window,
};
use super::llama_like::{Bias, LLAMA, LlamaLike};
use super::sizes::MAX_ENTRIES;
use crate::model::decoder::{Decoder, FeedForward, Perceptron};
use crate::model::fields::Fields;
use crate::model::rope::{RopeScaling, yarn_attention_factor};
use crate::model::rope_config::{nested, original_positions};
use crate::model::spec::QueryScale;

/// Every layer slides, over 4,096 tokens if the key is missing; `null` disables the window.
pub(super) const MISTRAL: LlamaLike = LlamaLike {
    key_heads: Some(8),
    max_positions: 131_072,
    bias: Bias::Fixed(false),
    adjust: |config, first| slide_everywhere(first, config, sliding_window(config, 4096)),
    ..LLAMA
};

/// Every layer slides unless `layer_types` says otherwise.
pub(super) const MINISTRAL: LlamaLike = LlamaLike {
    adjust: |config, first| slide(first, config, sliding_window(config, 4096), |_| true),
    ..MISTRAL
};

/// `YaRN`, and queries that are scaled with their position beyond the original training length.
pub(super) const MINISTRAL3: LlamaLike = LlamaLike {
    head_dim: Some(128),
    eps: ("rms_norm_eps", 1e-5),
    max_positions: 262_144,
    adjust: ministral3,
    ..MISTRAL
};

fn ministral3(config: &Fields<'_>, first: &mut FirstLayerConfig) {
    slide_if_given(config, first);
    let scaled =
        ["rope_scaling", "rope_parameters"].iter().any(|name| config.value(name).is_some());
    if let (false, Some(rope)) = (scaled, &mut first.spec.rope) {
        // Defaults of `Ministral3Config`, which ignore `rope_theta`.
        let original_positions = original_positions(config).unwrap_or(16_384);
        rope.theta = 1e6;
        rope.scaling = RopeScaling::Yarn {
            factor: 16.0,
            original_positions,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: yarn_attention_factor(16.0, Some(1.0), Some(1.0)),
        };
        first.spec.query_scale = Some(QueryScale::Temperature {
            floor: original_positions as f64,
            scale: 0.1,
            shift: 0.0,
        });
        return;
    }
    let rope = nested(config, None);
    let scale = rope.as_ref().and_then(|rope| {
        let floor = match first.spec.rope.as_ref().map(|rope| &rope.scaling) {
            Some(
                RopeScaling::Yarn { original_positions, .. }
                | RopeScaling::LongRope { original_positions, .. }
                | RopeScaling::Llama3 { original_positions, .. },
            ) => *original_positions as f64,
            _ => rope.optional_positive("original_max_position_embeddings")?,
        };
        Some((floor, rope.optional_number("llama_4_scaling_beta")?))
    });
    first.spec.query_scale =
        scale.map(|(floor, scale)| QueryScale::Temperature { floor, scale, shift: 0.0 });
}

/// Mixtral: every layer slides over `sliding_window` tokens if it is given; by default, none does.
pub(super) const MIXTRAL: LlamaLike =
    LlamaLike { eps: ("rms_norm_eps", 1e-5), rope_theta: 1e6, adjust: slide_if_given, ..MISTRAL };

/// A router chooses `num_experts_per_tok` of `num_local_experts` gated experts.
pub(super) fn mixtral_decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let mut decoder = plain_llama_decoder(config, first);
    let FeedForward::Dense(Perceptron { activation, .. }) = decoder.feed_forward else {
        return decoder;
    };
    let hidden = first.spec.hidden_size;
    let count = config.optional_size("num_local_experts", MAX_EXPERTS).unwrap_or(8);
    let chosen = config.optional_size("num_experts_per_tok", count).unwrap_or(2);
    let width = config.size("intermediate_size", MAX_ENTRIES);
    let block = "layers.0.block_sparse_moe";
    let expert = |expert: u64| {
        let name = |part: &str| format!("{block}.experts.{expert}.{part}");
        Perceptron {
            gate: Some(sized(&name("w1"), false, width, hidden)),
            up: sized(&name("w3"), false, width, hidden),
            down: sized(&name("w2"), false, hidden, width),
            activation,
        }
    };
    let router = sized(&format!("{block}.gate"), false, count, hidden);
    let experts = (0..count).map(expert).collect();
    decoder.feed_forward = FeedForward::Experts { router, chosen, experts };
    decoder
}

const MAX_EXPERTS: u64 = 1 << 10;
