//! Mixtral: Mistral's attention followed by a mixture of experts.

use super::attention_span::slide_everywhere;
use super::first_layer::FirstLayerConfig;
use super::llama_like::{LlamaLike, llama_like};
use super::mistral::MISTRAL;
use super::rest::{plain_llama_decoder, sized};
use super::sizes::MAX_ENTRIES;
use crate::model::decoder::{Decoder, FeedForward, Perceptron};
use crate::model::fields::Fields;

/// Every layer slides over `sliding_window` tokens if it is given; by default, none does.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike { eps: ("rms_norm_eps", 1e-5), rope_theta: 1e6, ..MISTRAL };
    let mut first = llama_like(config, &family, rope_theta);
    let window = config.optional_size("sliding_window", 1 << 32);
    slide_everywhere(&mut first, config, window);
    first
}

/// A router chooses `num_experts_per_tok` of `num_local_experts` gated experts.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
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
