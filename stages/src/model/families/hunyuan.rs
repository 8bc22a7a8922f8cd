//! Hunyuan, dense and with experts: an RMS norm over each head after the rotary embedding.

use super::first_layer::FirstLayerConfig;
use super::llama_like::{LLAMA, LlamaLike, head_norm, llama_like};
use crate::model::fields::Fields;
use crate::model::spec::{HeadNorm, NormScope};

/// Every layer sees all tokens. `dynamic` rope scaling by `alpha` changes the base once, for windows of any length.
pub(super) fn first_layer(config: &Fields<'_>, rope_theta: Option<f64>) -> FirstLayerConfig {
    let family = LlamaLike { eps: ("rms_norm_eps", 1e-5), alpha: true, ..LLAMA };
    let mut first = llama_like(config, &family, rope_theta);
    let norm = HeadNorm::new(first.spec.norm.clone(), NormScope::Head);
    let norm = HeadNorm { after_rope: true, ..norm };
    let names = ["layers.0.self_attn.query_layernorm", "layers.0.self_attn.key_layernorm"];
    head_norm(&mut first, norm, names[0], names[1]);
    first
}
