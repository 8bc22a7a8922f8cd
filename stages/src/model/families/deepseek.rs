//! `DeepSeek` V2, V3 and R1, Kimi K2, `MiniCPM3`: multi-head latent attention.

use longsift_kernels::RopeStyle;

use super::first_layer::FirstLayerConfig;
use super::llama_like::named;
use super::sizes::{LLAMA_NAMES, MAX_ENTRIES, SizeDefaults, sizes};
use crate::model::fields::Fields;
use crate::model::rope::RopeScaling;
use crate::model::rope_config::{self, RopeDefaults};
use crate::model::spec::{AttentionSpec, Latent, Norm};
use crate::model::tensors::{Projection, TensorRole};

/// Differences between the families with latent attention: defaults of their configuration classes.
struct LatentLike {
    max_positions: u64,
    eps: f64,
    pairing: RopeStyle,
    ranks: (u64, u64),
    /// Dimensions per head: without position, rotating, of a value.
    dims: (u64, u64, Option<u64>),
    /// Key of the embedding multiplier, and its default.
    multiplier: Option<(&'static str, f64)>,
}

const V2: LatentLike = LatentLike {
    max_positions: 2048,
    eps: 1e-6,
    pairing: RopeStyle::Interleaved,
    ranks: (1536, 512),
    dims: (128, 64, Some(128)),
    multiplier: None,
};

/// V2 and V2-Lite, which has no low rank for queries.
pub(super) fn v2(config: &Fields<'_>) -> FirstLayerConfig {
    latent_like(config, &V2)
}

/// V3, R1 and Kimi K2.
pub(super) fn v3(config: &Fields<'_>) -> FirstLayerConfig {
    let interleaved = config.flag("rope_interleave", true);
    let pairing = if interleaved { RopeStyle::Interleaved } else { RopeStyle::Half };
    latent_like(config, &LatentLike { max_positions: 4096, pairing, ..V2 })
}

/// `MiniCPM3`: rotating pairs half a head apart, a scaled embedding.
pub(super) fn minicpm3(config: &Fields<'_>) -> FirstLayerConfig {
    let family = LatentLike {
        max_positions: 32_768,
        eps: 1e-5,
        pairing: RopeStyle::Half,
        ranks: (768, 256),
        dims: (64, 32, None),
        multiplier: Some(("scale_emb", 12.0)),
    };
    latent_like(config, &family)
}

fn latent_like(config: &Fields<'_>, family: &LatentLike) -> FirstLayerConfig {
    let (own, rotary, value) = family.dims;
    let size = |name, default| config.optional_size(name, MAX_ENTRIES).unwrap_or(default);
    let own = size("qk_nope_head_dim", own);
    let rotary = size("qk_rope_head_dim", rotary);
    let defaults = SizeDefaults {
        head_dim: Some(own + rotary),
        positions: Some(family.max_positions),
        ..SizeDefaults::default()
    };
    let mut sizes = sizes(config, &LLAMA_NAMES, &defaults);
    // `head_dim` of these configurations is the rotating part, if it is present at all; every head has its own keys.
    (sizes.head_dim, sizes.key_heads) = (own + rotary, sizes.query_heads);
    let value = size("v_head_dim", value.unwrap_or(sizes.hidden_size / sizes.query_heads));
    let written = config.optional_size("q_lora_rank", MAX_ENTRIES);
    let query_rank = written.or((!config.contains("q_lora_rank")).then_some(family.ranks.0));
    let key_rank = size("kv_lora_rank", family.ranks.1);
    let eps = config.optional_positive("rms_norm_eps").unwrap_or(family.eps);
    let positions = sizes.max_positions.unwrap_or(family.max_positions);
    let rope = RopeDefaults::new(family.pairing, 1e4, rotary, positions);
    let rope = rope_config::read(config, &rope);
    let plain = AttentionSpec::plain(&sizes, Norm::rms(eps));
    let mut spec = AttentionSpec {
        scale: plain.scale * mscale(config, &rope.scaling).powi(2),
        // The norms of the latent vectors use the library's default, regardless of config.json.
        latent: Some(Latent { query_rank, key_rank, rotary_dims: rotary, eps: 1e-6 }),
        rope: Some(rope),
        ..plain
    };
    if let Some((name, default)) = family.multiplier {
        spec.embedding.multiplier = Some(config.optional_positive(name).unwrap_or(default));
    }
    let names = ("embed_tokens", "layers.0.input_layernorm", false);
    let (query, key) = up_projections(&spec, own, value);
    let mut first = named(spec, &["model.", ""], names, (query, key));
    down_projections(&mut first, config);
    first.tensors.absent_key = (!config.contains("q_lora_rank")).then_some("q_lora_rank");
    if sizes.query_heads * (own + value) > MAX_ENTRIES {
        config.contradict(format!(
            "{} heads of {own} + {value} numbers exceed {MAX_ENTRIES}",
            sizes.query_heads
        ));
    }
    first
}

/// Returns the projections to the heads, from the latent vectors or, for queries without a low rank, the hidden state.
fn up_projections(spec: &AttentionSpec, own: u64, value: u64) -> (Projection, Projection) {
    let latent = spec.latent.as_ref().expect("latent attention has latent numbers");
    let name = if latent.query_rank.is_some() { "q_b_proj" } else { "q_proj" };
    let queries = spec.query_heads * spec.head_dim;
    let mut query = Projection::whole(&format!("layers.0.self_attn.{name}"), false, queries);
    query.inputs = latent.query_rank;
    let head = own + value;
    let rows = (0..spec.query_heads).map(|index| index * head..index * head + own);
    let outputs = spec.query_heads * head;
    let mut key = Projection::part("layers.0.self_attn.kv_b_proj", false, outputs, rows);
    key.inputs = Some(latent.key_rank);
    (query, key)
}

/// Adds the projections from the hidden state to the latent vectors, with their norms.
fn down_projections(first: &mut FirstLayerConfig, config: &Fields<'_>) {
    let bias = config.flag("attention_bias", false);
    let (hidden, latent) = (first.spec.hidden_size, first.spec.latent.clone());
    let latent = latent.expect("latent attention has latent numbers");
    let mut down = |roles: [TensorRole; 3], names: [&str; 2], outputs: u64, rank: u64| {
        let [projection, norm] = names.map(|name| format!("layers.0.self_attn.{name}"));
        first.tensors.need(roles[0], &format!("{projection}.weight"), &[outputs, hidden]);
        if bias {
            first.tensors.need(roles[1], &format!("{projection}.bias"), &[outputs]);
        }
        first.tensors.need(roles[2], &format!("{norm}.weight"), &[rank]);
    };
    if let Some(rank) = latent.query_rank {
        let roles =
            [TensorRole::QueryDownWeight, TensorRole::QueryDownBias, TensorRole::QueryDownNorm];
        down(roles, ["q_a_proj", "q_a_layernorm"], rank, rank);
    }
    let roles = [TensorRole::KeyDownWeight, TensorRole::KeyDownBias, TensorRole::KeyDownNorm];
    let rank = latent.key_rank;
    down(roles, ["kv_a_proj_with_mqa", "kv_a_layernorm"], rank + latent.rotary_dims, rank);
}

/// Returns the multiplier of logits, which is squared, if `mscale_all_dim` of the rope scaling is set.
fn mscale(config: &Fields<'_>, scaling: &RopeScaling) -> f64 {
    let nested = rope_config::nested(config, None);
    let scale = nested.as_ref().and_then(|rope| rope.optional_number("mscale_all_dim"));
    let factor = match scaling {
        RopeScaling::Yarn { factor, .. } => Some(*factor),
        RopeScaling::Default => None,
        _ => nested.as_ref().and_then(|rope| rope.optional_positive("factor")),
    };
    match (scale, factor) {
        (Some(scale), Some(factor)) if scale != 0.0 && factor > 1.0 => {
            0.1 * scale * libm::log(factor) + 1.0
        }
        _ => 1.0,
    }
}
