//! Llama 4: most layers see one chunk of tokens and rotate, the others see all and have no positions.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{LLAMA, LlamaLike, eps, head_norm, llama_like};
use super::smollm3::rotating_layers;
use crate::model::fields::Fields;
use crate::model::rope::Pairing;
use crate::model::spec::{HeadNorm, Norm, NormScope, QueryScale};

/// Layers that rotate normalise each head afterwards, without weights; the others scale queries by position.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike {
        key_heads: Some(8),
        head_dim: Some(128),
        eps: ("rms_norm_eps", 1e-5),
        rope_theta: 5e5,
        max_positions: 131_072,
        pairing: Pairing::Interleaved,
        ..LLAMA
    };
    let mut first = llama_like(config, &family, rope_theta);
    let rotates = rotating_layers(config);
    if rotates(0) {
        if config.flag("use_qk_norm", true) {
            let norm = Norm::Rms { eps: eps(&first.spec.norm), offset: 0.0 };
            let over = NormScope::Head;
            let norm = HeadNorm { norm, over, weight: false, bias: false, after_rope: true };
            head_norm(&mut first, norm, "", "");
        }
    } else {
        first.spec.rope = None;
        if config.flag("attn_temperature_tuning", true) {
            first.spec.query_scale = Some(QueryScale::Temperature {
                floor: config.optional_positive("floor_scale").unwrap_or(8192.0),
                scale: config.optional_number("attn_scale").unwrap_or(0.1),
                shift: 1.0,
            });
        }
    }
    chunk(&mut first, config, rotates);
    first
}

fn chunk(first: &mut FirstLayerConfig, config: &Fields<'_>, rotates: impl Fn(u64) -> bool) {
    let default = (!config.contains("attention_chunk_size")).then_some(8192);
    let Some(chunk) = config.optional_size("attention_chunk_size", 1 << 32).or(default) else {
        return;
    };
    let types = config.optional_texts("layer_types");
    let chunked = |layer: u64| match types.as_ref().and_then(|types| types.get(layer as usize)) {
        Some(kind) => *kind == "chunked_attention",
        None => rotates(layer),
    };
    if chunked(0) {
        first.spec.chunk = Some(chunk);
        first.spec.first_full_attention_layer =
            (0..first.spec.layers).find(|layer| !chunked(*layer));
    }
}
