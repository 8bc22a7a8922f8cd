//! Description of a whole model: the parts of its layers other than queries and keys, and the head. Tensor names are
//! those of layer 0; [`at_layer`] converts them to another layer's.

use serde::Serialize;

use super::rope::RopeSpec;
use super::spec::Norm;
use super::tensors::Projection;

/// Properties of a model that its [`AttentionSpec`](super::AttentionSpec) does not describe.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Decoder {
    pub(crate) order: Order,
    /// Rotary embedding of each layer; `None` if all layers use the first layer's.
    pub(crate) ropes: Option<Vec<Option<RopeSpec>>>,
    /// Whether layer `i` divides its logits by `i + 1` (an option of GPT-2).
    pub(crate) scale_by_depth: bool,
    pub(crate) value: Projection,
    pub(crate) output: Projection,
    pub(crate) after_attention: NamedNorm,
    pub(crate) before_feed_forward: NamedNorm,
    pub(crate) feed_forward: FeedForward,
    pub(crate) after_feed_forward: NamedNorm,
    /// Multiplier of both outputs before they are added to the residual stream.
    pub(crate) residual_multiplier: f64,
    pub(crate) last_norm: NamedNorm,
    pub(crate) head: Head,
}

/// Order in which attention and the feed-forward part are added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Order {
    Sequential,
    /// Both read the layer's input. Without a separate norm, they share attention's.
    Parallel,
    /// One after the other; the norms are applied to the sums (OPT-350M).
    NormalisedSums,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct NamedNorm {
    pub(crate) norm: Norm,
    pub(crate) weight: Option<String>,
    pub(crate) bias: Option<String>,
}

impl NamedNorm {
    /// Creates a norm with the weight `{name}.weight` and an optional bias.
    pub(crate) fn new(norm: Norm, name: &str, bias: bool) -> Self {
        Self {
            norm,
            weight: Some(format!("{name}.weight")),
            bias: bias.then(|| format!("{name}.bias")),
        }
    }

    /// Creates a norm without tensors.
    pub(crate) fn bare(norm: Norm) -> Self {
        Self { norm, weight: None, bias: None }
    }
}

/// The feed-forward part of a layer, applied to each token separately.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum FeedForward {
    Dense(Perceptron),
    /// A router selects `chosen` experts per token, weighted by the softmax over their router logits.
    Experts {
        router: Projection,
        chosen: u64,
        experts: Vec<Perceptron>,
    },
}

impl FeedForward {
    /// Returns the single perceptron, or the experts in order.
    pub(crate) fn perceptrons(&self) -> &[Perceptron] {
        match self {
            Self::Dense(part) => std::slice::from_ref(part),
            Self::Experts { experts, .. } => experts,
        }
    }
}

/// Computes `down(activation(up x))`, or with a gate `down(activation(gate x) · up x)`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Perceptron {
    pub(crate) gate: Option<Projection>,
    pub(crate) up: Projection,
    pub(crate) down: Projection,
    pub(crate) activation: Activation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Activation {
    Silu,
    /// Exact GELU, by the error function.
    Gelu,
    GeluTanh,
    Relu,
    ReluSquared,
}

impl Activation {
    /// Parses an activation's name in `config.json`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "silu" | "swish" => Some(Self::Silu),
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Self::GeluTanh),
            "relu" => Some(Self::Relu),
            "relu2" => Some(Self::ReluSquared),
            _ => None,
        }
    }
}

/// Projection of the last hidden state to logits.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Head {
    /// Name of the weight tensor; `None` if the embedding is used.
    pub(crate) weight: Option<String>,
    pub(crate) bias: Option<String>,
    /// Projection applied to the hidden state first (OPT-350M).
    pub(crate) projection: Option<Projection>,
    pub(crate) multiplier: f64,
    pub(crate) softcap: Option<f64>,
}

/// Converts the name of a tensor of layer 0 to that of another layer.
pub(crate) fn at_layer(name: &str, layer: u64) -> String {
    name.replacen(".0.", &format!(".{layer}."), 1)
}
