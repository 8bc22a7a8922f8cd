//! The steps between an embedding and a logit that some families have, as the specification names them.

use serde::Serialize;

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What is done to an embedding before the norm, in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EmbeddingSteps {
    /// Every number is multiplied by this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
    /// A norm of the embedding itself (Bloom).
    #[serde(skip_serializing_if = "is_default")]
    pub norm: Norm,
    /// Numbers of an embedding that is projected to `hidden_size` first (OPT-350M).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u64>,
}

/// A norm over queries and keys: before the rotary embedding it ends in the table, after it in the hot path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeadNorm {
    /// Its kind.
    pub norm: Norm,
    /// What one mean is taken over, and how many weights there are.
    pub over: NormScope,
    /// Whether there are weights.
    pub weight: bool,
    /// Whether there are biases.
    pub bias: bool,
    /// Whether it comes after the rotary embedding.
    pub after_rope: bool,
}

/// What a norm over queries and keys takes its mean over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormScope {
    /// Each head; all heads share `head_dim` weights.
    Head,
    /// Each head; every head has weights of its own.
    EachHead,
    /// All heads of a token together.
    AllHeads,
}

/// Multi-head latent attention (DeepSeek): a head is `head_dim - rotary_dims` numbers of its own, then `rotary_dims`
/// that rotate; those of a key are the same for all heads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latent {
    /// Numbers that the queries come out of; `None`: they are projected from the hidden state directly.
    pub query_rank: Option<u64>,
    /// Numbers that the keys come out of.
    pub key_rank: u64,
    /// Numbers of a head that rotate.
    pub rotary_dims: u64,
    /// `eps` of the RMS norms over the latent numbers.
    pub eps: f64,
}

/// A factor per query, by its position `i` from 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum QueryScale {
    /// `ln(i + 1) / ln(trained)`, at least 1 (Qwen).
    LogN {
        /// The window length of the training.
        trained: u64,
    },
    /// `1 + scale · ln(1 + ⌊(i + shift) / floor⌋)` (Llama 4, Ministral 3).
    Temperature {
        /// Positions before the factor grows.
        floor: f64,
        /// How fast it grows.
        scale: f64,
        /// Added to the position.
        shift: f64,
    },
}

impl QueryScale {
    /// The factors of a window of `tokens` tokens.
    pub(crate) fn factors(&self, tokens: usize) -> Vec<f32> {
        let factor = |position: usize| match *self {
            Self::LogN { trained } => {
                (libm::log((position + 1) as f64) / libm::log(trained as f64)).max(1.0)
            }
            Self::Temperature { floor, scale, shift } => {
                1.0 + scale * libm::log1p(((position as f64 + shift) / floor).floor())
            }
        };
        (0..tokens).map(|position| factor(position) as f32).collect()
    }
}

/// A norm. Means are taken over all numbers it is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Norm {
    /// `x / √(mean(x²) + eps) · (weight + offset)`.
    Rms {
        /// Added to the mean square.
        eps: f64,
        /// Added to the weight: 1 for the Gemma family, else 0.
        offset: f64,
    },
    /// `(x - mean(x)) / √(variance(x) + eps) · (weight + offset) + bias`.
    Layer {
        /// Added to the variance.
        eps: f64,
        /// Added to the weight: 1 for Nemotron, else 0.
        #[serde(skip_serializing_if = "is_default")]
        offset: f64,
    },
    /// None: the numbers stay as they are.
    #[default]
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_scale_is_one_up_to_its_threshold_and_grows_beyond() {
        let logn = QueryScale::LogN { trained: 4 }.factors(17);
        assert_eq!(logn[..4], [1.0; 4]);
        assert!((logn[15] - 2.0).abs() < 1e-6 && logn[4] > 1.0);
        let tuned = QueryScale::Temperature { floor: 4.0, scale: 0.5, shift: 1.0 }.factors(8);
        assert_eq!(tuned[..3], [1.0; 3]);
        assert!((f64::from(tuned[3]) - (1.0 + 0.5 * 2f64.ln())).abs() < 1e-6);
        assert!(tuned[6].to_bits() == tuned[3].to_bits() && tuned[7] > tuned[6]);
    }
}
