//! A whole model as one description: what its layers compute besides queries and keys, and what comes after the last.
//!
//! Names are those of layer 0; [`at_layer`] makes another layer's of them.

use serde::Serialize;

use super::rope::RopeSpec;
use super::spec::Norm;
use super::tensors::Projection;

/// Everything about a model that its [`LayerZeroSpec`](super::LayerZeroSpec) does not say.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Decoder {
    pub(crate) order: Order,
    /// The rotary embedding of each layer; `None`: that of the first.
    pub(crate) ropes: Option<Vec<Option<RopeSpec>>>,
    /// Whether layer `i` divides its logits by `i + 1` (GPT-2 on request).
    pub(crate) scale_by_depth: bool,
    pub(crate) value: Projection,
    pub(crate) output: Projection,
    /// Of what attention gives.
    pub(crate) after_attention: NamedNorm,
    /// Of what the feed-forward part reads.
    pub(crate) before_feed_forward: NamedNorm,
    pub(crate) feed_forward: FeedForward,
    /// Of what the feed-forward part gives.
    pub(crate) after_feed_forward: NamedNorm,
    /// What both are multiplied by before they join the residual stream.
    pub(crate) residual_multiplier: f64,
    pub(crate) last_norm: NamedNorm,
    pub(crate) head: Head,
}

/// How attention and the feed-forward part join the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Order {
    /// One after the other.
    Sequential,
    /// Both read the layer's input; without a norm of its own the feed-forward part reads what attention reads.
    Parallel,
    /// One after the other; the norms after them are of the sums (OPT-350M).
    NormalisedSums,
}

/// A norm and its tensors.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct NamedNorm {
    pub(crate) norm: Norm,
    pub(crate) weight: Option<String>,
    pub(crate) bias: Option<String>,
}

impl NamedNorm {
    /// With a weight, `{name}.weight`, and perhaps a bias.
    pub(crate) fn new(norm: Norm, name: &str, bias: bool) -> Self {
        Self {
            norm,
            weight: Some(format!("{name}.weight")),
            bias: bias.then(|| format!("{name}.bias")),
        }
    }

    /// Without tensors.
    pub(crate) fn bare(norm: Norm) -> Self {
        Self { norm, weight: None, bias: None }
    }
}

/// What a layer does to each token by itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum FeedForward {
    Dense(Perceptron),
    /// A router chooses some experts a token; their weights are the softmax over the chosen.
    Experts {
        router: Projection,
        chosen: u64,
        experts: Vec<Perceptron>,
    },
}

impl FeedForward {
    /// Its perceptrons: one, or the experts in order.
    pub(crate) fn perceptrons(&self) -> &[Perceptron] {
        match self {
            Self::Dense(part) => std::slice::from_ref(part),
            Self::Experts { experts, .. } => experts,
        }
    }
}

/// `down(activation(up x))`, or with a gate `down(activation(gate x) · up x)`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Perceptron {
    pub(crate) gate: Option<Projection>,
    pub(crate) up: Projection,
    pub(crate) down: Projection,
    pub(crate) activation: Activation,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Activation {
    Silu,
    /// By the error function.
    Gelu,
    GeluTanh,
    Relu,
    ReluSquared,
}

impl Activation {
    /// As `config.json` names it.
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

/// From the last hidden state to logits.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Head {
    /// The tensor; `None`: the embedding.
    pub(crate) weight: Option<String>,
    pub(crate) bias: Option<String>,
    /// What the hidden state is projected by first (OPT-350M).
    pub(crate) projection: Option<Projection>,
    pub(crate) multiplier: f64,
    pub(crate) softcap: Option<f64>,
}

/// The name that a tensor of layer 0 has in another layer.
pub(crate) fn at_layer(name: &str, layer: u64) -> String {
    name.replacen(".0.", &format!(".{layer}."), 1)
}

/// A projection of another layer.
pub(crate) fn projection_at(projection: &Projection, layer: u64) -> Projection {
    Projection {
        weight: at_layer(&projection.weight, layer),
        bias: projection.bias.as_ref().map(|bias| at_layer(bias, layer)),
        ..projection.clone()
    }
}
