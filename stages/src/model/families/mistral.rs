//! Mistral 7B, Nemo and Small; Ministral. The first release slides over 4,096 tokens in every layer.

use super::attention_span::{slide, slide_everywhere, sliding_window};
use super::first_layer::FirstLayerConfig;
use super::llama_like::{Bias, LLAMA, LlamaLike, llama_like};
use crate::model::fields::Fields;
use crate::model::spec::QueryScale;

pub(super) const MISTRAL: LlamaLike =
    LlamaLike { key_heads: Some(8), max_positions: 131_072, bias: Bias::Fixed(false), ..LLAMA };

/// Every layer slides over `sliding_window` tokens. As in the transformers library, `null` disables the window and a
/// missing key means 4,096.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = llama_like(config, &MISTRAL, rope_theta);
    slide_everywhere(&mut first, config, sliding_window(config, 4096));
    first
}

/// Every layer slides unless `layer_types` says otherwise.
pub(super) fn ministral(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let mut first = llama_like(config, &MISTRAL, rope_theta);
    slide(&mut first, config, sliding_window(config, 4096), |_| true);
    first
}

/// `YaRN`, and queries that are scaled with their position beyond the original training length.
pub(super) fn ministral3(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        head_dim: Some(128),
        eps: ("rms_norm_eps", 1e-5),
        max_positions: 262_144,
        ..MISTRAL
    };
    let mut first = llama_like(config, &family, rope_theta);
    let rope = config.optional_object("rope_parameters");
    let rope = rope.or_else(|| config.optional_object("rope_scaling"));
    let scale = rope.as_ref().and_then(|rope| {
        let floor = rope.optional_positive("original_max_position_embeddings")?;
        Some((floor, rope.optional_number("llama_4_scaling_beta")?))
    });
    first.spec.query_scale =
        scale.map(|(floor, scale)| QueryScale::Temperature { floor, scale, shift: 0.0 });
    let window = config.optional_size("sliding_window", 1 << 32);
    slide_everywhere(&mut first, config, window);
    first
}
