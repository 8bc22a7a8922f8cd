//! OPT: learned positions, so each window is projected separately.

use super::decoders::{head, output, plain, two_projections};
use super::first_layer::FirstLayerConfig;
use super::llama_like::named;
use super::sizes::{LLAMA_NAMES, MAX_ENTRIES, SizeDefaults, SizeNames, sizes};
use crate::model::decoder::{Decoder, NamedNorm, Order};
use crate::model::fields::Fields;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::{NeededTensor, Projection, TensorRole};

/// First row of the position tensor that is used.
const OFFSET: u64 = 2;

/// OPT-350M has its norms after attention, so layer 0 reads the embedding; narrower embeddings are projected first.
pub(super) fn first_layer(config: &Fields<'_>, _: Option<f64>) -> FirstLayerConfig {
    let defaults = SizeDefaults { positions: Some(2048), ..SizeDefaults::default() };
    let names = SizeNames { key_heads: &[], ..LLAMA_NAMES };
    let sizes = sizes(config, &names, &defaults);
    let (hidden, positions) = (sizes.hidden_size, sizes.max_positions.unwrap_or(2048));
    let before = config.flag("do_layer_norm_before", true);
    // `eps` is fixed in the library: config.json has no key for it.
    let norm = if before { Norm::Layer { eps: 1e-5, offset: 0.0 } } else { Norm::None };
    let bias = config.flag("enable_bias", true);
    let mut spec = AttentionSpec {
        bias,
        learned_positions: Some(positions),
        ..AttentionSpec::plain(&sizes, norm)
    };
    let width = config.optional_size("word_embed_proj_dim", MAX_ENTRIES);
    spec.embedding.width = width.filter(|width| *width != hidden);
    let width = spec.embedding.width;
    let projections = Projection::separate("layers.0.self_attn", bias, hidden, hidden);
    let names = ("embed_tokens", "layers.0.self_attn_layer_norm", true);
    let prefixes = &["model.decoder.", "decoder.", "model.", ""];
    let mut first = named(spec, prefixes, names, projections);
    if !config.flag("layer_norm_elementwise_affine", true) {
        (first.tensors.norm_weight, first.tensors.norm_bias) = (None, None);
    }
    if let Some(width) = width {
        first.tensors.need(TensorRole::EmbeddingProjection, "project_in.weight", &[hidden, width]);
    }
    let shape = vec![positions + OFFSET, hidden];
    let name = "embed_positions.weight".to_owned();
    first.tensors.more.push(NeededTensor {
        rows: std::iter::once(OFFSET..positions + OFFSET).collect(),
        ..NeededTensor::whole(TensorRole::Positions, name, shape)
    });
    first
}

/// With `do_layer_norm_before: false`, norms are applied to the sums, and the last layer is not followed by one.
pub(super) fn decoder(config: &Fields<'_>, first: &FirstLayerConfig) -> Decoder {
    let spec = &first.spec;
    let before = config.flag("do_layer_norm_before", true);
    let bias = config.flag("enable_bias", true);
    let names = ("layers.0.fc1", "layers.0.fc2");
    let (width, activation) = (("ffn_dim", None), ("activation_function", "relu"));
    let feed_forward = two_projections((config, first), names, bias, width, activation);
    let norm = Norm::Layer { eps: 1e-5, offset: 0.0 };
    let affine = config.flag("layer_norm_elementwise_affine", true);
    let named = |name: &str| {
        if affine {
            NamedNorm::new(norm.clone(), name, true)
        } else {
            NamedNorm::bare(norm.clone())
        }
    };
    let names = ["layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"];
    let output = output(first, "layers.0.self_attn.out_proj", bias);
    let mut head = head(config, true);
    let out = spec.embedding.width;
    head.projection = out.map(|width| Projection::whole("project_out", false, width));
    if !before {
        let norms = (NamedNorm::default(), NamedNorm::default());
        let mut decoder = plain(first, output, norms, feed_forward, head);
        decoder.order = Order::NormalisedSums;
        (decoder.after_attention, decoder.after_feed_forward) = (named(names[0]), named(names[1]));
        return decoder;
    }
    let removed = config.flag("_remove_final_layer_norm", false);
    let last = if removed { NamedNorm::default() } else { named("final_layer_norm") };
    plain(first, output, (named(names[1]), last), feed_forward, head)
}
