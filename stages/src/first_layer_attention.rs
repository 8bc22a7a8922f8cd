//! Measures, per window, how much the tokens of the first layer attend to far-away tokens.

pub mod sampling;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use longsift_kernels::{
    AttentionShape, HeadSums, Kernel, LogitRules, QueryKeySource, Rope, head_statistics,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::{Decimal, Stage};
use crate::model::{LayerZeroSpec, LayerZeroTable, Prepared, RoundedAlibi, SideArray, WindowParts};

/// Measures, per window and head, how much the tokens of the first layer attend to tokens at least `k` positions
/// before them: the dependency strength (mean far mass of a row), the variance of the far-masked attention matrix,
/// and a histogram of distances. One streaming pass, no S×S matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirstLayerAttention {
    /// The far distance `k` as a share of the window, above 0 and below 1. Default 0.25, which is
    /// `S - 3·⌊S/4⌋` for a window of S tokens, as published; any other fraction f is `⌈f·S⌉`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 0.999_999))]
    pub min_distance_fraction: Option<Decimal>,
    /// The far distance `k` in tokens, instead of a share of the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub min_distance_tokens: Option<u32>,
    /// Which keys a token's attention is spread over. `causal` (default) is the paper and the model.
    #[serde(default)]
    pub mask: Mask,
}

/// Which keys a token's attention is spread over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mask {
    /// The token itself and those before it.
    #[default]
    Causal,
    /// All tokens of the window, later ones too; the far region stays the same. What the published script computes
    /// on full windows.
    Unmasked,
}

impl FirstLayerAttention {
    /// The far distance `k` for a window of `tokens` tokens.
    pub fn distance(&self, tokens: u64) -> u64 {
        match (self.min_distance_tokens, self.min_distance_fraction) {
            (Some(distance), _) => u64::from(distance),
            (None, None | Some(Decimal(0.25))) => tokens - 3 * (tokens / 4),
            (None, Some(fraction)) => fraction.ceil_of(tokens),
        }
    }
}

impl Stage for FirstLayerAttention {
    fn name(&self) -> &'static str {
        "first-layer-attention"
    }
    fn reads(&self) -> &'static [&'static str] {
        &["layer-zero table", "windows"]
    }
    fn writes(&self) -> &'static [&'static str] {
        &["statistics"]
    }
}

/// One window to measure.
#[derive(Clone, Debug)]
pub struct WindowTokens {
    /// Token ids, BOS included: `[tokens]`, each below the vocabulary size.
    pub ids: Vec<u32>,
    /// The far distance `k`, in tokens, below the number of ids.
    pub distance: u64,
}

/// What one pass over a window yields. Unitless; per-head figures are `[query_heads]`.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowStatistics {
    /// Mean over rows of the attention to keys at least `distance` before them.
    pub dependency_strength_by_head: Vec<f64>,
    /// Unbiased variance of the far-masked attention matrix over all S² entries.
    pub far_variance_by_head: Vec<f64>,
    /// Share of attention per distance: bin 0 is distance 0, bin b is `[2^(b-1), 2^b)`. Sums to 1.
    pub distance_histogram: Vec<f64>,
}

impl WindowStatistics {
    /// The figures of a window of `tokens` tokens, from the sums of all its heads.
    pub fn new(sums: HeadSums, tokens: usize) -> Self {
        let sums = sums.window_sums(tokens);
        Self {
            dependency_strength_by_head: sums.dependency_strength(tokens),
            far_variance_by_head: sums.far_variance(tokens),
            distance_histogram: sums.histogram,
        }
    }

    /// The mean dependency strength over heads.
    pub fn dependency_strength(&self) -> f64 {
        mean(&self.dependency_strength_by_head)
    }

    /// The mean far variance over heads.
    pub fn far_variance(&self) -> f64 {
        mean(&self.far_variance_by_head)
    }

    /// Whether every figure is a finite number. A NaN or an infinity comes from a damaged checkpoint.
    pub fn is_finite(&self) -> bool {
        self.dependency_strength_by_head
            .iter()
            .chain(&self.far_variance_by_head)
            .all(|figure| figure.is_finite())
    }
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// The first layer of a model, ready to measure windows: the table, its rules, and rotary tables computed so far.
#[derive(Debug)]
pub struct FirstLayer {
    spec: LayerZeroSpec,
    table: LayerZeroTable,
    mask: Mask,
    /// The longest window expected: the rotary table is computed for it at once.
    longest_window: usize,
    /// The rotary tables in use, by the number of tokens they are for.
    rotary: Mutex<Vec<(usize, Arc<Rope>)>>,
    /// Weights that are applied per window, packed for the kernels that asked for them.
    prepared: Mutex<Vec<(Kernel, Arc<Prepared>)>>,
    /// A bit per token id: whether a window had it.
    ids_met: Vec<AtomicU64>,
}

/// Rotary tables that are kept: more than one only where frequencies depend on the length of the window.
const ROTARY_TABLES: usize = 4;

impl FirstLayer {
    /// A layer that measures windows of up to `longest_window` tokens without recomputing its rotary table; longer
    /// ones work too.
    pub fn new(
        spec: LayerZeroSpec,
        table: LayerZeroTable,
        mask: Mask,
        longest_window: usize,
    ) -> Self {
        let (rotary, prepared) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let words = (spec.vocabulary_size as usize).div_ceil(64);
        let ids_met = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { spec, table, mask, longest_window, rotary, prepared, ids_met }
    }

    /// How many rows of the table the windows measured so far had ids of: only these are in memory, because the table
    /// is mapped.
    pub fn rows_used(&self) -> u64 {
        self.ids_met.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }

    /// The table.
    pub fn table(&self) -> &LayerZeroTable {
        &self.table
    }

    /// Notes the ids of a window that is measured somewhere else than in [`FirstLayer::measure_heads`].
    pub fn meet(&self, ids: &[u32]) {
        for id in ids {
            let (word, bit) = (&self.ids_met[*id as usize / 64], 1 << (id % 64));
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
    }

    /// What the first layer computes.
    pub fn spec(&self) -> &LayerZeroSpec {
        &self.spec
    }

    /// Measures one window on the CPU. Cost: `query_heads · tokens² / 2` pairs.
    pub fn measure(&self, kernel: Kernel, window: &WindowTokens) -> WindowStatistics {
        let key_heads = 0..self.spec.key_heads as usize;
        WindowStatistics::new(self.measure_heads(kernel, window, key_heads), window.ids.len())
    }

    /// Measures the query heads of some key heads of a window on the CPU. The parts of a window, appended in the order of
    /// its heads, give the bits of the whole.
    pub fn measure_heads(
        &self,
        kernel: Kernel,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> HeadSums {
        self.meet(&window.ids);
        let distance = window.distance as usize;
        self.with_source(kernel, &window.ids, |shape, rules, source| {
            // Where every query head has keys of its own, a key head of the model is as many of the kernel's.
            let finer = shape.key_heads / self.spec.key_heads as usize;
            let heads = key_heads.start * finer..key_heads.end * finer;
            head_statistics(kernel, shape, rules, distance, source, heads)
        })
    }

    /// Hands shape, rules and rotated queries and keys of a window to `measure`: for figures that
    /// [`FirstLayer::measure`] does not give. `ids`: each below the vocabulary size.
    pub fn with_source<T>(
        &self,
        kernel: Kernel,
        ids: &[u32],
        measure: impl FnOnce(&AttentionShape, &LogitRules, &dyn QueryKeySource) -> T,
    ) -> T {
        let shape = self.spec.attention_shape(ids.len());
        let mut rules = self.spec.logit_rules(self.mask == Mask::Causal);
        rules.sinks = self.table.side(SideArray::Sinks).map(<[f32]>::to_vec);
        rules.query_scale = self.spec.query_scales(ids.len());
        let (rope, prepared) = (self.rope(ids.len()), self.prepared(kernel));
        let (spec, table, rope) = (&self.spec, &self.table, rope.as_deref());
        let parts = WindowParts { spec, table, prepared: &prepared, rope, shape: &shape, ids };
        parts.with_source(|source| match RoundedAlibi::new(spec, &shape, source) {
            Some((source, shape)) => measure(&shape, &rules, &source),
            None => measure(&shape, &rules, source),
        })
    }

    fn prepared(&self, kernel: Kernel) -> Arc<Prepared> {
        let mut all = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, prepared)) = all.iter().find(|(of, _)| *of == kernel) {
            return Arc::clone(prepared);
        }
        let prepared = Arc::new(Prepared::new(&self.spec, &self.table, kernel));
        all.push((kernel, Arc::clone(&prepared)));
        prepared
    }

    /// The rotary table for windows of `tokens` tokens: a prefix of a longer one wherever the frequencies do not
    /// depend on the window's length.
    fn rope(&self, tokens: usize) -> Option<Arc<Rope>> {
        let exact = self.spec.rope.as_ref()?.depends_on_tokens();
        let mut tables = self.rotary.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |length: usize| if exact { length == tokens } else { length >= tokens };
        if let Some((_, rope)) = tables.iter().find(|(length, _)| fits(*length)) {
            return Some(Arc::clone(rope));
        }
        let length = if exact { tokens } else { tokens.max(self.longest_window) };
        let rope = Arc::new(self.spec.rope(length)?);
        if tables.len() == ROTARY_TABLES {
            tables.remove(0);
        }
        tables.push((length, Arc::clone(&rope)));
        Some(rope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_distance_is_the_published_one_and_other_fractions_round_up() {
        let default = FirstLayerAttention::default();
        assert_eq!(
            (default.distance(10), default.distance(96), default.distance(257)),
            (4, 24, 65)
        );
        let third = FirstLayerAttention { min_distance_fraction: Some(Decimal(0.3)), ..default };
        assert_eq!((third.distance(10), third.distance(11)), (3, 4));
        let tokens = FirstLayerAttention { min_distance_tokens: Some(7), ..default };
        assert_eq!(tokens.distance(10), 7);
    }
}
