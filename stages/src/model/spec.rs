//! Specification of one layer of attention, independent of its family. That of layer 0 describes the whole first layer.

use longsift_kernels::cuda::SourceSizes;
use longsift_kernels::{AttentionShape, GatedLinearShape, LogitRules, Rotation};
use serde::Serialize;

use super::problem::ModelProblem;
use super::rope::{RopeScaling, RopeSpec};
pub use super::steps::{
    EmbeddingSteps, GatedLinear, HeadNorm, Latent, Norm, NormScope, QueryScale,
};
use crate::contract::{is_default, sha256};

/// Properties of a model's first layer. Depends on `config.json` and `rope_theta` only, and enters fingerprints as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AttentionSpec {
    /// Model type in `config.json`.
    pub model_type: String,
    pub layers: u64,
    pub hidden_size: u64,
    pub query_heads: u64,
    /// Key heads; a divisor of `query_heads`. Query head `h` attends to key head `h / (query_heads / key_heads)`.
    pub key_heads: u64,
    pub head_dim: u64,
    pub vocabulary_size: u64,
    /// Norm between the embedding and the projections.
    pub norm: Norm,
    /// Whether queries and keys have a bias.
    pub bias: bool,
    /// Multiplier of `q·k`: `1/√head_dim` for most families.
    pub scale: f64,
    /// Bound `c` of the logits, which become `c·tanh(logit / c)`.
    pub softcap: Option<f64>,
    /// Reduction of the logit per position of distance, for each query head.
    pub alibi_slopes: Option<Vec<f64>>,
    /// Sliding window: keys at this distance or more are hidden.
    pub window: Option<u64>,
    /// Positions in a chunk: keys in other chunks are hidden.
    pub chunk: Option<u64>,
    /// Rotary embedding; `None` if the first layer does not rotate.
    pub rope: Option<RopeSpec>,
    /// `max_position_embeddings`, as stated or the default of the family's configuration class.
    pub max_positions: Option<u64>,
    /// First layer that sees all earlier tokens, if any; for messages.
    pub first_full_attention_layer: Option<u64>,
    /// Steps applied to an embedding before `norm`.
    #[serde(skip_serializing_if = "is_default")]
    pub embedding: EmbeddingSteps,
    /// Bound of queries and keys: they are clipped to ±`clip` first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_norm: Option<HeadNorm>,
    /// Multi-head latent attention: keys, and usually queries, are computed from a low rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
    /// Number of learned positions, which are added to the embedding. Longer windows cannot be scored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned_positions: Option<u64>,
    /// Whether each head has a learned logit that is added to its softmax and belongs to no key.
    #[serde(skip_serializing_if = "is_default")]
    pub sinks: bool,
    /// Factor per query that grows with its position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_scale: Option<QueryScale>,
    /// Gated linear attention in place of softmax attention: whole models only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gated_linear: Option<GatedLinear>,
    /// Whether this family's arithmetic has not been compared with the model's own code.
    #[serde(skip_serializing_if = "is_default")]
    pub unverified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowContent {
    /// All query heads, then all key heads.
    Heads,
    /// The latent vector of the queries (or the query heads), that of the keys, then the shared rotating numbers.
    Latents,
    /// The embedding, to which a position must be added first.
    Embedding,
}

impl AttentionSpec {
    /// Completes a specification that has only sizes: every optional field has its neutral value. Without the model type.
    pub(crate) fn plain(sizes: &Self, norm: Norm) -> Self {
        Self {
            norm,
            scale: 1.0 / (sizes.head_dim as f64).sqrt(),
            first_full_attention_layer: Some(0),
            ..sizes.clone()
        }
    }

    /// Returns the SHA-256 of the first layer's computation, including the setting `rope_theta`. Two models with the
    /// same weights and digest have the same scores.
    pub fn digest(&self) -> String {
        // Verification of a family does not change scores.
        let spec = Self { unverified: false, ..self.clone() };
        let json = serde_json::to_vec(&spec).expect("a specification is plain data");
        sha256(&json)
    }

    /// Returns the width of a table row, in numbers: a token's queries, then its keys. Fewer if these are
    /// computed from a low rank; the embedding if positions are learned.
    pub fn row_width(&self) -> u64 {
        match (&self.latent, self.row_content()) {
            (Some(latent), RowContent::Latents) => {
                self.latent_query_width(latent) + latent.key_rank + latent.rotary_dims
            }
            (_, RowContent::Embedding) => self.hidden_size,
            _ => (self.query_heads + self.key_heads) * self.head_dim,
        }
    }

    /// Returns the width of the part of a row from which the queries are computed.
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

    /// Returns the width of an embedding in the checkpoint.
    pub(crate) fn embedding_width(&self) -> u64 {
        self.embedding.width.unwrap_or(self.hidden_size)
    }

    /// Returns the kernels' shape of a window of `tokens` tokens.
    pub fn attention_shape(&self, tokens: usize) -> AttentionShape {
        AttentionShape {
            tokens,
            query_heads: self.query_heads as usize,
            key_heads: self.key_heads as usize,
            head_dim: self.head_dim as usize,
        }
    }

    /// Returns the heads of a layer with gated linear attention, for the kernels.
    pub(crate) fn gated_linear_shape(&self) -> Option<GatedLinearShape> {
        Some(GatedLinearShape {
            query_heads: self.query_heads as usize,
            key_heads: self.key_heads as usize,
            key_dim: self.head_dim as usize,
            value_dim: self.gated_linear.as_ref()?.value_dim as usize,
        })
    }

    /// Returns the problem if the attention of no layer can be measured.
    pub fn attention_problem(&self) -> Option<ModelProblem> {
        self.gated_linear.as_ref()?;
        let message = format!(
            "a `{}` model has gated linear attention: its weights are signed and not normalised, so the share of attention to far tokens is not defined",
            self.model_type
        );
        Some(ModelProblem::settings(message).with_hint(
            "measure its losses and `long_gain`, or the attention of a model with softmax attention",
        ))
    }

    /// Returns the rules for computing logits from `q·k`. `causal: false` is the published script's softmax.
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

    pub(crate) fn query_scales(&self, tokens: usize) -> Option<Vec<f32>> {
        self.query_scale.as_ref().map(|scale| scale.factors(tokens))
    }

    /// Returns the bytes that a window's queries and keys take before they are used: 0 except for learned positions.
    pub fn source_bytes(&self, tokens: u64) -> u64 {
        if self.learned_positions.is_some() { tokens * self.hidden_size * 4 } else { 0 }
    }

    /// Returns the problem if windows of `window_tokens` tokens cannot be scored: learned positions end.
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

    /// Returns the parameters of the rotation of a window, if the first layer rotates.
    pub fn rotation(&self, tokens: usize) -> Option<Rotation> {
        Some(self.rope.as_ref()?.rotation(tokens))
    }

    /// Whether a device computes queries and keys from its own copy of the table; otherwise the CPU sends them.
    pub fn gathers_on_device(&self) -> bool {
        self.row_content() == RowContent::Heads
    }

    /// Returns a window's shape on devices, and the sizes that determine its memory there.
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

    /// Returns the number of trailing numbers of a key that all heads share.
    pub(crate) fn shared_key_width(&self) -> usize {
        self.latent.as_ref().map_or(0, |latent| latent.rotary_dims as usize)
    }

    /// Distances below this are visible to some query; `None` if all are.
    pub fn visible_distances(&self) -> Option<u64> {
        match (self.window, self.chunk) {
            (Some(window), Some(chunk)) => Some(window.min(chunk)),
            (window, chunk) => window.or(chunk),
        }
    }

    /// Returns the problem if the first layer masks all keys at `distance` or more: every score would be 0.
    pub fn distance_problem(&self, distance: u64) -> Option<ModelProblem> {
        let visible = self.visible_distances().filter(|visible| distance >= *visible)?;
        let reach = if self.window == Some(visible) { "to the last" } else { "within chunks of" };
        let message = format!(
            "the first layer of this {} model attends {reach} {visible} tokens only: no key is at distance {distance} or more",
            self.model_type
        );
        let first = match self.first_full_attention_layer {
            Some(layer) => format!(
                "the first layer that attends to all tokens is layer {layer}; only layer 0 can be scored"
            ),
            None => "no layer of this model attends to all tokens".to_owned(),
        };
        Some(ModelProblem::settings(message).with_hint(format!(
            "choose a distance below {visible} (`min_distance_tokens`, or a smaller window), or another model: {first}"
        )))
    }

    /// Returns the number of positions the model was trained for: `max_position_embeddings`, or for `YaRN` the larger of
    /// that and `factor · original_max_position_embeddings`, since configurations differ in whether the former is the
    /// length before or after scaling. With linear and dynamic scaling, the library's documentation advises against raising it.
    pub fn trained_positions(&self) -> Option<u64> {
        let written = self.max_positions?;
        match self.rope.as_ref().map(|rope| &rope.scaling) {
            Some(RopeScaling::Yarn { factor, original_positions, .. }) => {
                Some(written.max((factor * *original_positions as f64) as u64))
            }
            _ => Some(written),
        }
    }

    /// Returns a warning if windows of `window_tokens` tokens exceed the positions the model was trained for.
    pub fn positions_warning(&self, window_tokens: u64) -> Option<String> {
        let trained = self.trained_positions().filter(|trained| window_tokens > *trained)?;
        Some(format!(
            "windows of {window_tokens} tokens go beyond the {trained} positions that this {} model was trained for",
            self.model_type
        ))
    }
}

#[cfg(test)]
mod tests {
    use longsift_kernels::RopeStyle;

    use super::*;

    fn spec(window: Option<u64>, scaling: RopeScaling) -> AttentionSpec {
        let rope = RopeSpec { pairing: RopeStyle::Half, rotary_dims: 16, theta: 1e4, scaling };
        let sizes = AttentionSpec {
            layers: 2,
            hidden_size: 64,
            query_heads: 4,
            key_heads: 2,
            head_dim: 16,
            vocabulary_size: 512,
            max_positions: Some(1024),
            ..AttentionSpec::default()
        };
        AttentionSpec {
            window,
            rope: Some(rope),
            first_full_attention_layer: None,
            model_type: "llama".to_owned(),
            ..AttentionSpec::plain(&sizes, Norm::Rms { eps: 1e-6, offset: 0.0 })
        }
    }

    #[test]
    fn unset_fields_are_not_in_the_fingerprint() {
        let json = serde_json::to_value(spec(None, RopeScaling::Default)).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names.len(), 17, "{names:?}");
    }

    #[test]
    fn the_digest_does_not_depend_on_verification() {
        let plain = spec(None, RopeScaling::Default);
        let verified = AttentionSpec { unverified: true, ..plain.clone() };
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
    fn distances_below_the_window_are_visible() {
        let sliding = spec(Some(16), RopeScaling::Default);
        assert!(sliding.distance_problem(15).is_none());
        let problem = sliding.distance_problem(16).unwrap();
        assert_eq!(
            problem.message,
            "the first layer of this llama model attends to the last 16 tokens only: no key is at distance 16 or more"
        );
        assert!(problem.hint.unwrap().ends_with("no layer of this model attends to all tokens"));
        assert!(spec(None, RopeScaling::Default).distance_problem(1 << 40).is_none());
    }

    #[test]
    fn yarn_scales_the_trained_positions_and_linear_does_not() {
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
