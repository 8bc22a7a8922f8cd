//! The layer-zero specification: a model's first layer, whatever its family.

use longsift_kernels::{AttentionShape, LogitRules, Rope};
use serde::Serialize;

use super::problem::ModelProblem;
use super::rope::{RopeScaling, RopeSpec};

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
}

/// The norm between the embedding and the projections. Means are taken over `hidden_size`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Norm {
    /// `x / √(mean(x²) + eps) · (weight + offset)`.
    Rms {
        /// Added to the mean square.
        eps: f64,
        /// Added to the weight: 1 for the Gemma family, else 0.
        offset: f64,
    },
    /// `(x - mean(x)) / √(variance(x) + eps) · weight + bias`.
    Layer {
        /// Added to the variance.
        eps: f64,
    },
    /// None: the projections read the embedding.
    None,
}

impl LayerZeroSpec {
    /// Numbers in one row of the table: all queries of a token, then all its keys.
    pub fn row_width(&self) -> u64 {
        (self.query_heads + self.key_heads) * self.head_dim
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
    pub fn logit_rules(&self, causal: bool) -> LogitRules {
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

    /// The rotation of a window of `tokens` tokens, or `None` where the first layer has no rotary embedding.
    ///
    /// Windows of different lengths share one (built for the longest) unless [`RopeSpec::depends_on_tokens`].
    pub fn rope(&self, tokens: usize) -> Option<Rope> {
        let rope = self.rope.as_ref()?;
        let frequencies = rope.inverse_frequencies(tokens as u64);
        Some(Rope::new(rope.pairing.into(), &frequencies, rope.attention_factor(), tokens))
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

#[cfg(test)]
mod tests {
    use super::super::rope::Pairing;
    use super::*;

    fn spec(window: Option<u64>, scaling: RopeScaling) -> LayerZeroSpec {
        LayerZeroSpec {
            model_type: "llama".to_owned(),
            layers: 2,
            hidden_size: 64,
            query_heads: 4,
            key_heads: 2,
            head_dim: 16,
            vocabulary_size: 512,
            norm: Norm::Rms { eps: 1e-6, offset: 0.0 },
            bias: false,
            scale: 0.25,
            softcap: None,
            alibi_slopes: None,
            window,
            chunk: None,
            rope: Some(RopeSpec { pairing: Pairing::Half, rotary_dims: 16, theta: 1e4, scaling }),
            max_positions: Some(1024),
            first_layer_that_sees_all: None,
        }
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
