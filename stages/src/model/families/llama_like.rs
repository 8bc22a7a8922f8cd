//! Parts shared by most families: a norm, separate query and key projections, a rotary embedding, norms over heads.

use longsift_kernels::RopeStyle;

use super::first_layer::FirstLayerConfig;
use super::sizes::{LLAMA_NAMES, SizeDefaults, sizes, whole_head};
use crate::model::fields::Fields;
use crate::model::rope::{RopeScaling, RopeSpec};
use crate::model::rope_config::{self, RopeDefaults};
use crate::model::spec::{AttentionSpec, HeadNorm, Norm, NormScope};
use crate::model::tensors::{LayerZeroTensors, Projection, TensorRole};

/// Differences between the families built like Llama.
pub(super) struct LlamaLike {
    /// Default of `num_key_value_heads`; `None`: the number of query heads.
    pub(super) key_heads: Option<u64>,
    /// Default of `head_dim`; `None`: `hidden_size / num_attention_heads`.
    pub(super) head_dim: Option<u64>,
    /// Creates the norm from its `eps`.
    pub(super) norm: fn(f64) -> Norm,
    pub(super) norm_bias: bool,
    /// Key of the norm's `eps`, and its default.
    pub(super) eps: (&'static str, f64),
    pub(super) rope_theta: f64,
    pub(super) max_positions: u64,
    pub(super) bias: Bias,
    pub(super) pairing: RopeStyle,
    /// Default of `partial_rotary_factor`; `None` if the key is not allowed.
    pub(super) partial_rotary: Option<f64>,
    /// Default of the original training length, if it is read next to the rope scaling.
    pub(super) original_positions: Option<u64>,
    /// Whether `dynamic` rope scaling may be given by `alpha`.
    pub(super) alpha: bool,
    /// Applies the differences that are not constants.
    pub(super) adjust: fn(&Fields<'_>, &mut FirstLayerConfig),
}

/// Llama itself: the defaults of the other families.
pub(super) const LLAMA: LlamaLike = LlamaLike {
    key_heads: None,
    head_dim: None,
    norm: Norm::rms,
    norm_bias: false,
    eps: ("rms_norm_eps", 1e-6),
    rope_theta: 1e4,
    max_positions: 2048,
    bias: Bias::Flag("attention_bias", false),
    pairing: RopeStyle::Half,
    partial_rotary: None,
    original_positions: None,
    alpha: false,
    adjust: |_, _| {},
};

/// Whether queries and keys have a bias.
#[derive(Clone, Copy)]
pub(super) enum Bias {
    Fixed(bool),
    /// A key of config.json decides; with its default.
    Flag(&'static str, bool),
}

/// Describes a first layer as in Llama. Defaults are those of the transformers library's configuration classes; as there,
/// `null` for `num_key_value_heads` and `head_dim` means that they are derived.
pub(super) fn llama_like(config: &Fields<'_>, family: &LlamaLike) -> FirstLayerConfig {
    llama_like_with(config, family, &SizeDefaults::default())
}

/// Like [`llama_like`], with defaults for sizes that config.json may omit.
pub(super) fn llama_like_with(
    config: &Fields<'_>,
    family: &LlamaLike,
    defaults: &SizeDefaults,
) -> FirstLayerConfig {
    let bias = match family.bias {
        Bias::Fixed(bias) => bias,
        Bias::Flag(name, default) => config.flag(name, default),
    };
    let defaults = SizeDefaults {
        key_heads: family.key_heads,
        head_dim: family.head_dim,
        positions: Some(family.max_positions),
        ..*defaults
    };
    let sizes = sizes(config, &LLAMA_NAMES, &defaults);
    let rotary_dims = match family.partial_rotary {
        Some(default) => rope_config::rotary_dims(config, sizes.head_dim, default),
        None => whole_head(config, sizes.head_dim),
    };
    let rope = RopeDefaults {
        pairing: family.pairing,
        theta: family.rope_theta,
        rotary_dims,
        max_positions: sizes.max_positions.unwrap_or(family.max_positions),
        original_positions: family.original_positions,
        alpha: family.alpha,
    };
    let norm = (family.norm)(config.optional_positive(family.eps.0).unwrap_or(family.eps.1));
    let spec = AttentionSpec {
        bias,
        rope: Some(rope_config::read(config, &rope)),
        ..AttentionSpec::plain(&sizes, norm)
    };
    let (queries, keys) = (sizes.query_heads * sizes.head_dim, sizes.key_heads * sizes.head_dim);
    let projections = Projection::separate("layers.0.self_attn", bias, queries, keys);
    let names = ("embed_tokens", "layers.0.input_layernorm", family.norm_bias);
    let mut first = named(spec, &["model.", ""], names, projections);
    (family.adjust)(config, &mut first);
    first
}

/// Creates a first layer with its own tensor names. `norm_bias`: whether the norm has a bias.
pub(super) fn named(
    spec: AttentionSpec,
    prefixes: &'static [&'static str],
    (embedding, norm, norm_bias): (&str, &str, bool),
    (query, key): (Projection, Projection),
) -> FirstLayerConfig {
    let tensors = LayerZeroTensors {
        prefixes,
        embedding: format!("{embedding}.weight"),
        norm_weight: (spec.norm != Norm::None).then(|| format!("{norm}.weight")),
        norm_bias: (norm_bias && spec.norm != Norm::None).then(|| format!("{norm}.bias")),
        query,
        key,
        more: Vec::new(),
        absent_key: None,
    };
    FirstLayerConfig { spec, tensors, sliding: None, softmax: Vec::new() }
}

/// Returns an unscaled rotary embedding, for families that read the base themselves.
pub(super) fn plain_rope(pairing: RopeStyle, rotary_dims: u64, theta: f64) -> RopeSpec {
    RopeSpec { pairing, rotary_dims, theta, scaling: RopeScaling::Default }
}

/// Adds a norm over queries and keys, with weights `{query}.weight` and `{key}.weight`.
pub(super) fn head_norm(first: &mut FirstLayerConfig, norm: HeadNorm, query: &str, key: &str) {
    let spec = &first.spec;
    let projections = [
        (query, spec.query_heads, TensorRole::QueryNormWeight, TensorRole::QueryNormBias),
        (key, spec.key_heads, TensorRole::KeyNormWeight, TensorRole::KeyNormBias),
    ];
    let head_dim = spec.head_dim;
    for (name, heads, weight, bias) in projections {
        let shape = match norm.over {
            NormScope::Head => vec![head_dim],
            NormScope::EachHead => vec![heads, head_dim],
            NormScope::AllHeads => vec![heads * head_dim],
        };
        if norm.weight {
            first.tensors.need(weight, &format!("{name}.weight"), &shape);
        }
        if norm.bias {
            first.tensors.need(bias, &format!("{name}.bias"), &shape);
        }
    }
    first.spec.head_norm = Some(norm);
}

/// Adds an RMS norm of each head before the rotary embedding: `q_norm` and `k_norm` (Qwen3, Gemma 3).
pub(super) fn rms_head_norm(first: &mut FirstLayerConfig, eps: f64, offset: f64, over: NormScope) {
    let norm = HeadNorm::new(Norm::Rms { eps, offset }, over);
    head_norm(first, norm, "layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm");
}

/// Adds a layer norm of each head before the rotary embedding, with a bias (Phi, Persimmon).
pub(super) fn layer_head_norm(first: &mut FirstLayerConfig) {
    let norm = HeadNorm::new(first.spec.norm.clone(), NormScope::Head);
    let norm = HeadNorm { bias: true, ..norm };
    let names = ["layers.0.self_attn.q_layernorm", "layers.0.self_attn.k_layernorm"];
    head_norm(first, norm, names[0], names[1]);
}

/// Returns the first norm's `eps`, which many families use for their other norms as well.
pub(super) fn eps(norm: &Norm) -> f64 {
    norm.eps().unwrap_or(1e-6)
}
