//! Optional steps between an embedding and a logit.

use serde::Serialize;

use crate::contract::is_default;

/// Steps applied to an embedding before the norm, in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EmbeddingSteps {
    /// Multiplier of every number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
    /// Norm of the embedding itself (Bloom).
    #[serde(skip_serializing_if = "is_default")]
    pub norm: Norm,
    /// Width of an embedding that is first projected to `hidden_size` (OPT-350M).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u64>,
}

/// Norm over queries and keys: before the rotary embedding part of the table, after it applied per window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeadNorm {
    pub norm: Norm,
    /// Numbers that share a mean, and number of weights.
    pub over: NormScope,
    pub weight: bool,
    pub bias: bool,
    pub after_rope: bool,
}

impl HeadNorm {
    /// Returns a norm with weights before the rotary embedding.
    pub(crate) fn new(norm: Norm, over: NormScope) -> Self {
        Self { norm, over, weight: true, bias: false, after_rope: false }
    }
}

/// Numbers that share a mean in a norm over queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormScope {
    /// Each head; all heads share `head_dim` weights.
    Head,
    /// Each head; every head has its own weights.
    EachHead,
    /// All heads of a token together.
    AllHeads,
}

/// Multi-head latent attention (DeepSeek). A head has `head_dim - rotary_dims` numbers without position, then
/// `rotary_dims` rotating ones; all heads share a key's rotating numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latent {
    /// Rank of the queries; `None` if they are projected from the hidden state.
    pub query_rank: Option<u64>,
    pub key_rank: u64,
    pub rotary_dims: u64,
    /// `eps` of the RMS norms over the latent vectors.
    pub eps: f64,
}

/// Gated linear attention (Yang et al. 2024) in place of softmax attention. Heads of keys have `head_dim` numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GatedLinear {
    pub value_dim: u64,
    /// Whether queries and keys below 0 become 0.
    pub relu: bool,
    /// Lower bound of the log decays.
    pub min_log_decay: Option<f64>,
    /// Tokens that the convolutions of queries, keys and values read; `None` without convolutions.
    pub convolution: Option<u64>,
    /// Whether a gate multiplies the normalised output.
    pub output_gate: bool,
}

/// Factor of a query by its position `i`, counted from 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum QueryScale {
    /// `ln(i + 1) / ln(trained)`, at least 1 (Qwen).
    LogN { trained: u64 },
    /// `1 + scale · ln(1 + ⌊(i + shift) / floor⌋)` (Llama 4, Ministral 3).
    Temperature { floor: f64, scale: f64, shift: f64 },
}

impl QueryScale {
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

/// A norm. Means are over all numbers that it is applied to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Norm {
    /// `x / √(mean(x²) + eps) · (weight + offset)`.
    Rms {
        eps: f64,
        /// Added to the weight: 1 for the Gemma family, otherwise 0.
        offset: f64,
    },
    /// `(x - mean(x)) / √(variance(x) + eps) · (weight + offset) + bias`.
    Layer {
        eps: f64,
        /// Added to the weight: 1 for Nemotron, otherwise 0.
        #[serde(skip_serializing_if = "is_default")]
        offset: f64,
    },
    /// No norm: numbers are unchanged.
    #[default]
    None,
}

impl Norm {
    pub(crate) fn rms(eps: f64) -> Self {
        Self::Rms { eps, offset: 0.0 }
    }

    pub(crate) fn layer(eps: f64) -> Self {
        Self::Layer { eps, offset: 0.0 }
    }

    pub(crate) fn eps(&self) -> Option<f64> {
        match *self {
            Self::Rms { eps, .. } | Self::Layer { eps, .. } => Some(eps),
            Self::None => None,
        }
    }

    pub(crate) fn offset(&self) -> f64 {
        match *self {
            Self::Rms { offset, .. } | Self::Layer { offset, .. } => offset,
            Self::None => 0.0,
        }
    }
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
