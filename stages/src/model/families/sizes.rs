//! Sizes of a model, under the various keys that config.json uses.

use crate::model::fields::Fields;
use crate::model::spec::AttentionSpec;

/// Maximum entries along any dimension in config.json: the product of three fits in 64 bits.
pub(super) const MAX_ENTRIES: u64 = 1 << 20;
pub(super) const MAX_HEADS: u64 = 1 << 12;
pub(super) const MAX_TOKENS: u64 = 1 << 24;

/// Keys of each size in config.json, the usual one first.
pub(super) struct SizeNames {
    pub(super) hidden: &'static [&'static str],
    pub(super) layers: &'static [&'static str],
    pub(super) heads: &'static [&'static str],
    pub(super) key_heads: &'static [&'static str],
    pub(super) vocabulary: &'static [&'static str],
    pub(super) positions: &'static [&'static str],
}

pub(super) const LLAMA_NAMES: SizeNames = SizeNames {
    hidden: &["hidden_size"],
    layers: &["num_hidden_layers"],
    heads: &["num_attention_heads"],
    key_heads: &["num_key_value_heads"],
    vocabulary: &["vocab_size"],
    positions: &["max_position_embeddings"],
};

pub(super) const GPT_NAMES: SizeNames = SizeNames {
    hidden: &["n_embd", "hidden_size"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    key_heads: &[],
    vocabulary: &["vocab_size"],
    positions: &["n_positions", "max_position_embeddings"],
};

/// Defaults of sizes; a size without one is required.
#[derive(Default)]
pub(super) struct SizeDefaults {
    pub(super) hidden: Option<u64>,
    pub(super) layers: Option<u64>,
    pub(super) heads: Option<u64>,
    pub(super) vocabulary: Option<u64>,
    /// Default of the key heads; `None`: the number of query heads.
    pub(super) key_heads: Option<u64>,
    /// `None`: `hidden_size / query heads`.
    pub(super) head_dim: Option<u64>,
    pub(super) positions: Option<u64>,
}

/// Reads the sizes and checks that they agree. `null` for key heads or `head_dim` means that they are derived.
pub(super) fn sizes(
    config: &Fields<'_>,
    names: &SizeNames,
    defaults: &SizeDefaults,
) -> AttentionSpec {
    for names in [names.hidden, names.layers, names.heads, names.key_heads] {
        config.check_agreement(names, None);
    }
    let hidden_size = config.first_size(names.hidden, MAX_ENTRIES, defaults.hidden);
    let query_heads = config.first_size(names.heads, MAX_HEADS, defaults.heads);
    let written = names.key_heads.iter().any(|name| config.contains(name));
    let default_heads = defaults.key_heads.filter(|_| !written).unwrap_or(query_heads);
    let key_heads = config.first_size(names.key_heads, MAX_HEADS, Some(default_heads));
    if config.is_clean() {
        check_groups(config, "config.json", query_heads, key_heads);
    }
    let positions = names.positions.iter().find_map(|name| config.optional_size(name, 1 << 32));
    AttentionSpec {
        layers: config.first_size(names.layers, MAX_ENTRIES, defaults.layers),
        hidden_size,
        query_heads,
        key_heads,
        head_dim: head_dim(config, hidden_size, query_heads, defaults.head_dim),
        vocabulary_size: config.first_size(names.vocabulary, MAX_TOKENS, defaults.vocabulary),
        max_positions: positions.or(defaults.positions),
        ..AttentionSpec::default()
    }
}

/// Checks that each key head has the same number of query heads.
pub(super) fn check_groups(config: &Fields<'_>, location: &str, query_heads: u64, key_heads: u64) {
    if !query_heads.is_multiple_of(key_heads) {
        config.contradict(format!(
            "{location} contradicts itself: {query_heads} query heads cannot share {key_heads} key heads evenly"
        ));
    }
}

/// Returns `head_dim` for models whose heads rotate completely; refuses a `partial_rotary_factor`.
pub(super) fn whole_head(config: &Fields<'_>, head_dim: u64) -> u64 {
    if config.optional_number("partial_rotary_factor").is_some_and(|part| (part - 1.0).abs() > 1e-9)
    {
        config.refuse("`partial_rotary_factor` is not supported for this model type");
    }
    head_dim
}

pub(super) fn head_dim(
    config: &Fields<'_>,
    hidden_size: u64,
    query_heads: u64,
    default: Option<u64>,
) -> u64 {
    let default = default.filter(|_| !config.contains("head_dim"));
    if let Some(head_dim) = config.optional_size("head_dim", MAX_HEADS).or(default) {
        return head_dim;
    }
    if !config.is_clean() {
        return 2;
    }
    if !hidden_size.is_multiple_of(query_heads) || hidden_size / query_heads > MAX_HEADS {
        config.contradict(format!(
            "config.json has no `head_dim`, and `hidden_size` {hidden_size} is not a valid multiple of \
             `num_attention_heads` {query_heads}"
        ));
        return 2;
    }
    hidden_size / query_heads
}
