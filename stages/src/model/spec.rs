//! The layer-zero specification: a model's first layer, whatever its family.

use longsift_kernels::cuda::SourceSizes;
use longsift_kernels::{AttentionShape, LogitRules, Rotation};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::problem::ModelProblem;
use super::rope::{RopeScaling, RopeSpec};
use super::steps::is_default;
pub use super::steps::{EmbeddingSteps, HeadNorm, Latent, Norm, NormScope, QueryScale};
use crate::contract::hex;

/// Everything the table builder and the kernels need to know of a model's first layer, whatever its family.
///
/// It is a function of `config.json` (and the settings' `rope_theta`) alone and enters fingerprints as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerZeroSpec {
    /// The family, as `config.json` names it.
    pub model_type: String,
    /// Layers of the whole model.
    pub layers: u64,
    /// Numbers in one embedding.
    pub hidden_size: u64,
    /// Query heads.
    pub query_heads: u64,
    /// Key heads; a divisor of `query_heads`, query head `h` looks at key head `h / (query_heads / key_heads)`.
    pub key_heads: u64,
    /// Numbers in one query or key.
    pub head_dim: u64,
    /// Token ids run from 0 to this, exclusive.
    pub vocabulary_size: u64,
    /// The norm between the embedding and the projections.
    pub norm: Norm,
    /// Whether queries and keys have a bias.
    pub bias: bool,
    /// What `q·k` is multiplied by: `1/√head_dim` for most families.
    pub scale: f64,
    /// Logits become `c·tanh(logit / c)`.
    pub softcap: Option<f64>,
    /// Per query head, what each position of distance takes from the logit.
    pub alibi_slopes: Option<Vec<f64>>,
    /// A key is visible iff its distance is below this.
    pub window: Option<u64>,
    /// A key is visible iff it lies in the same chunk of this many positions.
    pub chunk: Option<u64>,
    /// The rotary embedding, if the first layer has one.
    pub rope: Option<RopeSpec>,
    /// `max_position_embeddings`: as written, or the default of the family's configuration class.
    pub max_positions: Option<u64>,
    /// The first layer that sees all earlier tokens, if any does. For messages.
    pub first_layer_that_sees_all: Option<u64>,
    /// What is done to an embedding before `norm`.
    #[serde(skip_serializing_if = "is_default")]
    pub embedding: EmbeddingSteps,
    /// Queries and keys are cut to ±`clip` before anything else is done to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// A norm over queries and keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_norm: Option<HeadNorm>,
    /// Multi-head latent attention: keys, and mostly queries too, come out of a low rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
    /// How many learned positions there are to be added to the embedding: no longer window has scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned_positions: Option<u64>,
    /// Whether each head has a learned logit that joins its softmax and belongs to no key.
    #[serde(skip_serializing_if = "is_default")]
    pub sinks: bool,
    /// A factor per query that grows with its position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_scale: Option<QueryScale>,
    /// Whether this family's arithmetic has never been compared with the model's own code.
    #[serde(skip_serializing_if = "is_default")]
    pub unverified: bool,
}

/// What one row of the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowContent {
    /// All query heads, then all key heads.
    Heads,
    /// The latent numbers of the queries (or the query heads), those of the keys, then the shared rotating ones.
    Latents,
    /// The embedding, to which a position must be added before anything else.
    Embedding,
}

impl LayerZeroSpec {
    /// A first layer with nothing special about it: every field that families set later has its neutral value.
    /// The model type is set last, when the family is done.
    pub(crate) fn plain(sizes: &Sizes, norm: Norm) -> Self {
        Self {
            model_type: String::new(),
            layers: sizes.layers,
            hidden_size: sizes.hidden_size,
            query_heads: sizes.query_heads,
            key_heads: sizes.key_heads,
            head_dim: sizes.head_dim,
            vocabulary_size: sizes.vocabulary_size,
            norm,
            bias: false,
            scale: 1.0 / (sizes.head_dim as f64).sqrt(),
            softcap: None,
            alibi_slopes: None,
            window: None,
            chunk: None,
            rope: None,
            max_positions: sizes.max_positions,
            first_layer_that_sees_all: Some(0),
            embedding: EmbeddingSteps::default(),
            clip: None,
            head_norm: None,
            latent: None,
            learned_positions: None,
            sinks: false,
            query_scale: None,
            unverified: false,
        }
    }

    /// SHA-256 of what the first layer computes, `rope_theta` of the settings included: two models of the same weights
    /// and the same digest here have the same scores.
    pub fn digest(&self) -> String {
        // Whether somebody has verified the family changes no score.
        let spec = Self { unverified: false, ..self.clone() };
        let json = serde_json::to_vec(&spec).expect("a specification is plain data");
        hex(&Sha256::digest(&json))
    }

    /// Numbers in one row of the table: all queries of a token, then all its keys; fewer where these come out of a low
    /// rank, and the embedding itself where positions are learned.
    pub fn row_width(&self) -> u64 {
        match (&self.latent, self.row_content()) {
            (Some(latent), RowContent::Latents) => {
                self.latent_query_width(latent) + latent.key_rank + latent.rotary_dims
            }
            (_, RowContent::Embedding) => self.hidden_size,
            _ => (self.query_heads + self.key_heads) * self.head_dim,
        }
    }

    /// Numbers of a row that the queries come from.
    pub(crate) fn latent_query_width(&self, latent: &Latent) -> u64 {
        latent.query_rank.unwrap_or(self.query_heads * self.head_dim)
    }

    pub(crate) fn row_content(&self) -> RowContent {
        if self.learned_positions.is_some() {
            RowContent::Embedding
        } else if self.latent.is_some() {
            RowContent::Latents
        } else {
            RowContent::Heads
        }
    }

    /// Numbers in one embedding as it lies in the checkpoint.
    pub(crate) fn embedding_width(&self) -> u64 {
        self.embedding.width.unwrap_or(self.hidden_size)
    }

    /// The shape of a window of `tokens` tokens, for the kernels.
    pub fn attention_shape(&self, tokens: usize) -> AttentionShape {
        AttentionShape {
            tokens,
            query_heads: self.query_heads as usize,
            key_heads: self.key_heads as usize,
            head_dim: self.head_dim as usize,
        }
    }

    /// How logits come from `q·k`, for the kernels. `causal: false` is the published script's softmax over all keys.
    pub(crate) fn logit_rules(&self, causal: bool) -> LogitRules {
        LogitRules {
            scale: self.scale as f32,
            softcap: self.softcap.map(|cap| cap as f32),
            alibi_slopes: self
                .alibi_slopes
                .as_ref()
                .map(|slopes| slopes.iter().map(|slope| *slope as f32).collect()),
            sinks: None,
            window: self.window.map(|window| window as usize),
            chunk: self.chunk.map(|chunk| chunk as usize),
            query_scale: None,
            causal,
        }
    }

    /// The factor of each query of a window of `tokens` tokens, where there is one.
    pub(crate) fn query_scales(&self, tokens: usize) -> Option<Vec<f32>> {
        self.query_scale.as_ref().map(|scale| scale.factors(tokens))
    }

    /// Memory that a window of `tokens` tokens takes for its queries and keys before they are asked for, in bytes: 0 but
    /// for learned positions.
    pub fn source_bytes(&self, tokens: u64) -> u64 {
        if self.learned_positions.is_some() { tokens * self.hidden_size * 4 } else { 0 }
    }

    /// Why windows of `window_tokens` tokens cannot be scored at all: a learned position has no continuation.
    pub fn window_problem(&self, window_tokens: u64) -> Option<ModelProblem> {
        let positions = self.learned_positions.filter(|positions| window_tokens > *positions)?;
        let message = format!(
            "windows of {window_tokens} tokens are longer than the {positions} learned positions of this {} model",
            self.model_type
        );
        Some(ModelProblem::settings(message).with_hint(format!(
            "set `window_tokens` to {positions} or less, or choose a model with rotary positions"
        )))
    }

    /// What the rotation of a window of `tokens` tokens is computed from, or `None` where the first layer has no rotary
    /// embedding.
    pub fn rotation(&self, tokens: usize) -> Option<Rotation> {
        Some(self.rope.as_ref()?.rotation(tokens))
    }

    /// Whether a device makes queries and keys of its own copy of the table; otherwise the processor computes them for
    /// each window and sends them.
    pub fn gathers_on_device(&self) -> bool {
        self.row_content() == RowContent::Heads
    }

    /// The shape of a window of `tokens` tokens as devices measure it, and what its memory there depends on.
    pub fn device_window(&self, tokens: usize) -> (AttentionShape, SourceSizes) {
        let shape = self.attention_shape(tokens);
        if !self.gathers_on_device() {
            let sizes = SourceSizes { shared: self.shared_key_width(), ..SourceSizes::default() };
            return (shape, sizes);
        }
        let sizes = SourceSizes {
            table: true,
            rotary_pairs: self.rotation(tokens).map_or(0, |rope| rope.inverse_frequencies.len()),
            head_norms: self.head_norm.as_ref().is_some_and(|norm| norm.after_rope),
            ..SourceSizes::default()
        };
        (shape, sizes)
    }

    /// Numbers that the keys of all heads end with.
    pub(crate) fn shared_key_width(&self) -> usize {
        self.latent.as_ref().map_or(0, |latent| latent.rotary_dims as usize)
    }

    /// Distances below this are visible somewhere; `None` where all are.
    pub fn visible_distances(&self) -> Option<u64> {
        match (self.window, self.chunk) {
            (Some(window), Some(chunk)) => Some(window.min(chunk)),
            (window, chunk) => window.or(chunk),
        }
    }

    /// Why the first layer can say nothing about keys at `distance` or more, or `None` if it can.
    ///
    /// `distance` is k for windows of the full length. Everything far would be masked, and every score 0.
    pub fn distance_problem(&self, distance: u64) -> Option<ModelProblem> {
        let visible = self.visible_distances().filter(|visible| distance >= *visible)?;
        let kind =
            if self.window == Some(visible) { "slides over" } else { "is cut into chunks of" };
        let message = format!(
            "the first layer of this {} model {kind} {visible} tokens and cannot see keys at distance {distance} or more",
            self.model_type
        );
        let first = match self.first_layer_that_sees_all {
            Some(layer) => format!(
                "the first layer that sees all tokens is layer {layer}; only layer 0 can be scored"
            ),
            None => "no layer of this model sees all tokens".to_owned(),
        };
        Some(ModelProblem::settings(message).with_hint(format!(
            "choose a distance below {visible} (`min_distance_tokens`, or a smaller window), or another model: {first}"
        )))
    }

    /// How many positions the model was trained for, as far as `config.json` tells.
    ///
    /// `max_position_embeddings`, except for `YaRN`, where configurations differ in whether it is the length before
    /// or after the stretch: there the larger of it and `factor · original_max_position_embeddings`. Linear and
    /// dynamic scaling count as written: the library's documentation asks not to raise it for them.
    pub fn trained_positions(&self) -> Option<u64> {
        let written = self.max_positions?;
        match self.rope.as_ref().map(|rope| &rope.scaling) {
            Some(RopeScaling::Yarn { factor, original_positions, .. }) => {
                Some(written.max((factor * *original_positions as f64) as u64))
            }
            _ => Some(written),
        }
    }

    /// A warning if windows of `window_tokens` tokens go beyond the positions the model was trained for.
    pub fn positions_warning(&self, window_tokens: u64) -> Option<String> {
        let trained = self.trained_positions().filter(|trained| window_tokens > *trained)?;
        Some(format!(
            "windows of {window_tokens} tokens go beyond the {trained} positions that this {} model was trained for",
            self.model_type
        ))
    }
}

/// The sizes that config.json states.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) layers: u64,
    pub(crate) hidden_size: u64,
    pub(crate) query_heads: u64,
    pub(crate) key_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) vocabulary_size: u64,
    pub(crate) max_positions: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::super::rope::Pairing;
    use super::*;

    const SIZES: Sizes = Sizes {
        layers: 2,
        hidden_size: 64,
        query_heads: 4,
        key_heads: 2,
        head_dim: 16,
        vocabulary_size: 512,
        max_positions: Some(1024),
    };

    fn spec(window: Option<u64>, scaling: RopeScaling) -> LayerZeroSpec {
        let rope = RopeSpec { pairing: Pairing::Half, rotary_dims: 16, theta: 1e4, scaling };
        LayerZeroSpec {
            window,
            rope: Some(rope),
            first_layer_that_sees_all: None,
            model_type: "llama".to_owned(),
            ..LayerZeroSpec::plain(&SIZES, Norm::Rms { eps: 1e-6, offset: 0.0 })
        }
    }

    #[test]
    fn fields_that_a_family_does_not_set_are_not_in_the_fingerprint() {
        let json = serde_json::to_value(spec(None, RopeScaling::Default)).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names.len(), 17, "{names:?}");
    }

    #[test]
    fn the_digest_is_what_the_layer_computes_and_not_whether_somebody_has_verified_it() {
        let plain = spec(None, RopeScaling::Default);
        let verified = LayerZeroSpec { unverified: true, ..plain.clone() };
        assert_eq!(verified.digest(), plain.digest());
        let mut other = plain.clone();
        other.rope.as_mut().unwrap().theta = 5e5;
        assert_ne!(other.digest(), plain.digest());
        let mut corrected = plain.clone();
        corrected.scale *= 2.0;
        assert_ne!(corrected.digest(), plain.digest());
    }

    #[test]
    fn latents_and_embeddings_are_narrower_than_heads() {
        let mut spec = spec(None, RopeScaling::Default);
        assert_eq!(spec.row_width(), 6 * 16);
        spec.latent = Some(Latent { query_rank: Some(10), key_rank: 5, rotary_dims: 4, eps: 1e-6 });
        assert_eq!(spec.row_width(), 10 + 5 + 4);
        spec.learned_positions = Some(100);
        assert_eq!(spec.row_width(), 64);
        assert!(spec.window_problem(100).is_none());
        assert_eq!(
            spec.window_problem(101).unwrap().message,
            "windows of 101 tokens are longer than the 100 learned positions of this llama model"
        );
    }

    #[test]
    fn a_distance_equal_to_the_window_cannot_be_seen_and_one_less_can() {
        let sliding = spec(Some(16), RopeScaling::Default);
        assert!(sliding.distance_problem(15).is_none());
        let problem = sliding.distance_problem(16).unwrap();
        assert_eq!(
            problem.message,
            "the first layer of this llama model slides over 16 tokens and cannot see keys at distance 16 or more"
        );
        assert!(problem.hint.unwrap().ends_with("no layer of this model sees all tokens"));
        assert!(spec(None, RopeScaling::Default).distance_problem(1 << 40).is_none());
    }

    #[test]
    fn yarn_counts_the_stretched_positions_and_linear_does_not() {
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            original_positions: 1024,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: 1.0,
        };
        assert_eq!(spec(None, yarn).trained_positions(), Some(4096));
        let linear = spec(None, RopeScaling::Linear { factor: 4.0 });
        assert_eq!(linear.trained_positions(), Some(1024));
        assert!(linear.positions_warning(1024).is_none());
        assert_eq!(
            linear.positions_warning(1025).unwrap(),
            "windows of 1025 tokens go beyond the 1024 positions that this llama model was trained for"
        );
    }
}
