//! Settings of `language-model`, the model request they imply, and their constraints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ladm::Ladm;
use crate::contract::{
    BrokenRule, Decimal, FarDistance, ForwardRequest, LayersRequest, Location, Measure, is_default,
};

/// Default tokens of a short window: the shorter context that `LongFilter` and `LongPPL` were published with.
const SHORT_CONTEXT_TOKENS: u32 = 4096;
/// Default number of leading keys that count as near. In the small models measured, the window's first tokens attract
/// attention that carries no information about the text; with them the layers do not separate texts.
const SINK_TOKENS: u32 = 16;

/// Measures a window with a whole language model: its losses, how much the whole window lowers them compared with
/// short windows, and the attention of any layers to far-away tokens. With a small model it costs 60 to 300 times as much as
/// the first layer: put it after guards (`before: language-model`). Weights are read layer by layer, once for many
/// windows; memory does not grow with the number of layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LanguageModel {
    /// Distinguishes this stage from another `language-model` of the pipeline: its statistics become `NAME_long_gain`
    /// and so on. Lower case letters, digits and `_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z][a-z0-9_]{0,31}$"))]
    pub name: Option<String>,
    /// Model: a folder with `config.json` and all weights, or a `.gguf` file, on this machine. Default: the model of
    /// `load-partial-model`. It must have the vocabulary of the pipeline's tokenizer. Without `load-partial-model`,
    /// `tokenize` uses the tokenizer and the BOS token of this model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-schemes" = []))]
    pub model: Option<Location>,
    /// Whether to compute losses. Default true. If false, only the layers up to the highest of `attention_layers` are
    /// read and computed.
    #[serde(default = "default_true")]
    pub losses: bool,
    /// Length of the short context in tokens, 2 or more. The loss of a token with the whole window before it is
    /// compared with its loss in a short window of this length. Short windows overlap by half, so that every token
    /// after the first short window has at least half of this length as context. Windows must be longer. 0 disables
    /// short windows, and `long_gain`, `longfilter`, `key_share` and `longppl` with them. Default 4096, as published
    /// for `LongFilter` and `LongPPL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16_777_215))]
    pub short_context_tokens: Option<u32>,
    /// Layers, counted from 0, whose attention is measured: a number for all heads of a layer, `{layer: 19, heads: [1,
    /// 2]}` for some. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention_layers: Vec<AttentionLayer>,
    /// Number of tokens at the start of the window, BOS included, that never count as far. Many models attend to them
    /// regardless of the text, which would hide the attention that depends on it. They stay in the softmax. Default 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16_777_215))]
    pub sink_tokens: Option<u32>,
    /// Distance from which tokens count as far, as a share f of the window, above 0 and below 1: `k = ⌈f·S⌉` in a
    /// window of S tokens. Default 0.25, as in `first-layer-attention`, with `k = S - 3·⌊S/4⌋`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 0.999_999))]
    pub min_distance_fraction: Option<Decimal>,
    /// Distance `k` from which tokens count as far, in tokens, instead of `min_distance_fraction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub min_distance_tokens: Option<u32>,
    /// Settings of LADM's score of each of `attention_layers`: how much spans of the window depend on spans far before
    /// them. Default: not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ladm: Option<Ladm>,
    /// Share of the windows to measure, above 0 and up to 1. Windows are chosen by a hash of the document's id, the
    /// window's index and `sample_seed`, so a larger share contains all windows of a smaller one. Statistics of the
    /// others are null; if the score needs them, `filter.not_measured` decides about these samples. Default 1: a score
    /// that uses this measure needs it for every sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 1.0))]
    pub sample_fraction: Option<Decimal>,
    /// Seed of the sample of `sample_fraction`: another seed chooses other windows. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    pub sample_seed: Option<u64>,
    /// Whether a window longer than the model's trained context is an error. Default false, which warns: such losses
    /// are defined, but the model was not trained for these distances.
    #[serde(default)]
    pub strict_positions: bool,
    /// Number format of the factors of all matrix products: `f32` (default, the more accurate), or `bf16`, which is
    /// faster on GPUs and requires a build with the backend candle.
    #[serde(default, skip_serializing_if = "is_default")]
    pub precision: ProductPrecision,
}

/// Number format of the factors of all matrix products of a whole model. Sums, norms and the softmax always use float32
/// or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProductPrecision {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16, with the backend candle. With SmolLM2-135M and 8 windows of 2,048 tokens, the loss of a token changed
    /// by at most 0.31 nats (median 0.0082), the mean loss of a window by 0.0019 and `long_gain` by 0.0019; the rank
    /// correlation of windows by `long_gain` was 1.00000. `cargo run --release -p longsift-stages --features candle
    /// --example backends` prints the errors of another model.
    Bf16,
}

impl ProductPrecision {
    /// Returns the name of the precision in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

fn default_true() -> bool {
    true
}

impl Default for LanguageModel {
    fn default() -> Self {
        serde_json::from_str("{}").expect("every setting has a default")
    }
}

/// Layer whose attention is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AttentionLayer {
    /// All heads.
    Whole(u32),
    /// Some heads.
    Heads(LayerHeads),
}

/// Some heads of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerHeads {
    /// Layer, counted from 0.
    pub layer: u32,
    /// Query heads, counted from 0, each once.
    #[schemars(length(min = 1, max = 1024))]
    pub heads: Vec<u32>,
}

impl AttentionLayer {
    pub fn layer(&self) -> u32 {
        match self {
            Self::Whole(layer) | Self::Heads(LayerHeads { layer, .. }) => *layer,
        }
    }

    /// Returns the heads; `None` for all.
    pub fn heads(&self) -> Option<&[u32]> {
        match self {
            Self::Whole(_) => None,
            Self::Heads(some) => Some(&some.heads),
        }
    }

    /// Returns the name of the layer in its statistics: `layer_19_heads_1_2`.
    pub fn label(&self) -> String {
        match self {
            Self::Whole(layer) => format!("layer_{layer}"),
            Self::Heads(LayerHeads { layer, heads }) => {
                let heads: Vec<String> = heads.iter().map(u32::to_string).collect();
                format!("layer_{layer}_heads_{}", heads.join("_"))
            }
        }
    }
}

impl LanguageModel {
    /// Returns the minimum distance of a far key.
    pub fn distance(&self) -> FarDistance {
        FarDistance::from_settings(self.min_distance_tokens, self.min_distance_fraction)
    }

    /// Returns the tokens of a short window; `None` if losses of short windows are not requested.
    pub fn short_context(&self) -> Option<u32> {
        let tokens = self.short_context_tokens.unwrap_or(SHORT_CONTEXT_TOKENS);
        (self.losses && tokens > 0).then_some(tokens)
    }

    /// Returns the request to the whole model.
    pub fn request(&self) -> ForwardRequest {
        let mut layers: Vec<u32> =
            self.attention_layers.iter().map(AttentionLayer::layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let attention = LayersRequest {
            distance: self.distance(),
            sink_tokens: self.sink_tokens.unwrap_or(SINK_TOKENS),
            ladm: self.ladm.clone(),
            layers,
        };
        ForwardRequest {
            model: self.model.clone(),
            losses: self.losses,
            short_context: self.short_context(),
            attention: (!attention.layers.is_empty()).then_some(attention),
            strict_positions: self.strict_positions,
        }
    }

    /// Returns the constraints that the settings violate, for windows of up to `window_tokens` tokens.
    pub fn broken_rules(&self, window_tokens: u32) -> Vec<BrokenRule> {
        let mut broken = Vec::new();
        let mut refuse = |setting: &str, message: &str, hint: &str| {
            broken.push(BrokenRule::new(setting, message, hint));
        };
        let window = u64::from(window_tokens);
        let layers = &self.attention_layers;
        if !self.losses && layers.is_empty() {
            refuse(
                "losses",
                "nothing to measure: `losses` is false and `attention_layers` is empty",
                "list `attention_layers`, or remove `losses: false`",
            );
        }
        match (self.short_context_tokens, self.short_context()) {
            (Some(1), _) => refuse(
                "short_context_tokens",
                "a short window of 1 token has no loss",
                "set at least 2, or 0 to disable short windows",
            ),
            (Some(tokens), None) if tokens > 0 => refuse(
                "short_context_tokens",
                "short windows need losses, which are disabled",
                "remove it, or `losses: false`",
            ),
            (_, Some(short)) if short >= window_tokens => refuse(
                if self.short_context_tokens.is_some() { "short_context_tokens" } else { "" },
                &format!(
                    "windows have at most {window} tokens, short windows {short}: no token has a longer context in a whole window"
                ),
                "raise `tokenize.window_tokens`, or lower `short_context_tokens` (0: no short windows)",
            ),
            _ => {}
        }
        let of_layers = [
            ("sink_tokens", self.sink_tokens.is_some()),
            ("min_distance_fraction", self.min_distance_fraction.is_some()),
            ("min_distance_tokens", self.min_distance_tokens.is_some()),
            ("ladm", self.ladm.is_some()),
        ];
        for (setting, _) in of_layers.iter().filter(|(_, set)| *set && layers.is_empty()) {
            let message = format!("`{setting}` needs `attention_layers`, which is empty");
            refuse(setting, &message, "list layers in `attention_layers`, or remove it");
        }
        if self.sample_seed.is_some() && self.sample().is_none() {
            refuse(
                "sample_seed",
                "`sample_seed` has no effect: all windows are measured",
                "add a `sample_fraction` below 1, or remove it",
            );
        }
        let distance = self.distance().in_window(window);
        if !layers.is_empty() && distance >= window {
            let message = format!(
                "the far distance is {distance} tokens, but a window has at most {window}: no token is that far away"
            );
            refuse("attention_layers", &message, "lower the distance, or raise `window_tokens`");
        }
        for (index, layer) in layers.iter().enumerate() {
            let setting = format!("attention_layers.{index}");
            if layers[..index].iter().any(|other| other.label() == layer.label()) {
                let message = format!("`{}` is listed twice", layer.label());
                refuse(&setting, &message, "remove one of the two");
            }
            let heads = layer.heads().unwrap_or_default();
            let twice = heads.iter().enumerate().find(|(at, head)| heads[..*at].contains(head));
            if let Some((_, head)) = twice {
                refuse(&setting, &format!("head {head} is listed twice"), "name each head once");
            }
        }
        if let Some(ladm) = self.ladm.as_ref().filter(|ladm| ladm.spans(window as usize).is_empty())
        {
            let message = format!(
                "windows of {window} tokens are too short for {ladm}: no span has enough tokens before it"
            );
            refuse("ladm", &message, "lower `span_tokens` or `d_afs`, or raise `window_tokens`");
        }
        broken
    }

    /// Returns the layers and heads that a model of `layers` layers with `heads` query heads each does not have.
    pub fn unknown_layers(&self, layers: u64, heads: u64) -> Vec<BrokenRule> {
        let mut broken = Vec::new();
        for (index, asked) in self.attention_layers.iter().enumerate() {
            let setting = format!("attention_layers.{index}");
            if u64::from(asked.layer()) >= layers {
                let message = format!(
                    "layer {} does not exist: the model has {layers} layers",
                    asked.layer()
                );
                let hint = format!("name layers from 0 to {}", layers.saturating_sub(1));
                broken.push(BrokenRule::new(&setting, message, hint));
            }
            let beyond =
                asked.heads().into_iter().flatten().find(|head| u64::from(**head) >= heads);
            if let Some(head) = beyond {
                let message = format!(
                    "head {head} does not exist: a layer of the model has {heads} query heads"
                );
                let hint = format!("name heads from 0 to {}", heads.saturating_sub(1));
                broken.push(BrokenRule::new(&setting, message, hint));
            }
        }
        broken
    }
}
