//! First-layer attention: how much the tokens of a window attend to far-away tokens.

mod rotary_tables;
mod sampling;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use longsift_kernels::cuda::Operands;
use longsift_kernels::{
    AttentionShape, BlockAttention, BlockShares, HeadSums, Kernel, LogitRules, QueryKeySource,
    Rope, Rotation, WindowSums, attention_statistics, head_statistics,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rotary_tables::RotaryTables;
pub use sampling::SampledRows;

use crate::contract::Decimal;
use crate::model::{AttentionSpec, LayerZeroTable, PackedProjections, TensorRole, WindowParts};

/// Measures how much the tokens of a window attend, in the first layer and by head, to tokens at least `k` positions
/// before them: the dependency strength (mean far mass of a row), the variance of the far-masked attention matrix,
/// and a histogram of distances. One streaming pass, no S×S matrix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FirstLayerAttention {
    /// Distance from which tokens count as far, as a share f of the window, above 0 and below 1: `k = ⌈f·S⌉` in a
    /// window of S tokens. Default 0.25, as published, with `k = S - 3·⌊S/4⌋`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 0.999_999))]
    pub min_distance_fraction: Option<Decimal>,
    /// Distance `k` from which tokens count as far, in tokens, instead of `min_distance_fraction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub min_distance_tokens: Option<u32>,
    /// Keys that a token attends to. Default `causal`, as in the model and the paper.
    #[serde(default)]
    pub mask: Mask,
    /// Rows of the attention matrix to measure: `all` (default, exact), or `{per_window: 512, seed: 1}` for a random
    /// sample of this many rows, in pairs, from equal strata of positions. Keys are never sampled. Statistics of
    /// sampled rows have standard errors (`dependency_strength_se`, `far_variance_se`) and no distance histogram.
    /// Windows with at most `per_window` rows are measured exactly. Use `all` for windows below 8,192 tokens: they take
    /// little time, and sampling changes their ranking.
    #[serde(default)]
    pub rows: Rows,
}

/// Rows of the attention matrix to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Rows {
    /// `all`.
    All(AllRows),
    /// Random sample.
    Sampled(RowsSampled),
}

impl Default for Rows {
    fn default() -> Self {
        Self::All(AllRows::All)
    }
}

/// All rows of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AllRows {
    /// Exact.
    All,
}

/// Random sample of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowsSampled {
    /// Number of rows of each window, rounded up to pairs. More rows preserve more of the ranking: in windows of 2,048
    /// tokens, 512 rows have a rank correlation of 0.98 with all rows, 128 rows of 0.90.
    #[schemars(range(min = 32, max = 16_777_215))]
    pub per_window: u32,
    /// Seed of the sample, together with the window's tokens: the same text and seed give the same rows.
    pub seed: u64,
}

/// Keys that a token attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mask {
    /// The token itself and earlier tokens.
    #[default]
    Causal,
    /// All tokens of the window, later ones included; the far region stays the same. The published script computes
    /// this on full windows.
    Unmasked,
}

#[derive(Clone, Debug)]
pub struct WindowTokens {
    /// Token ids, BOS included: `[tokens]`, each below the vocabulary size.
    pub ids: Vec<u32>,
    /// Far distance `k`, in tokens, below the number of ids.
    pub distance: u64,
    /// Sampled rows; `None` for all.
    pub sampled: Option<SampledRows>,
}

/// Results of one pass over a window. Unitless; statistics by head are `[query_heads]`.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowStatistics {
    /// Mean over rows of the attention to keys at least `distance` before them.
    pub dependency_strength_by_head: Vec<f64>,
    /// Unbiased variance of the far-masked attention matrix over all S² entries.
    pub far_variance_by_head: Vec<f64>,
    /// Share of attention per distance: bin b is `[2^(b-1), 2^b)`, bin 0 is 0. Sums to 1. Empty if rows were sampled.
    pub distance_histogram: Vec<f64>,
    /// Standard errors of the means over heads; `None` if all rows were measured.
    pub standard_errors: Option<StandardErrors>,
}

/// Standard errors of sampled statistics (means over heads).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandardErrors {
    pub dependency_strength: f64,
    pub far_variance: f64,
}

impl WindowStatistics {
    /// Computes the statistics of a window from the sums of all its heads.
    pub fn new(sums: HeadSums, window: &WindowTokens) -> Self {
        let tokens = window.ids.len();
        let errors = window.sampled.as_ref().map(|rows| StandardErrors::new(&sums, rows, tokens));
        let sums = sums.window_sums(tokens);
        Self {
            dependency_strength_by_head: sums.dependency_strength(tokens),
            far_variance_by_head: sums.far_variance(tokens),
            distance_histogram: if errors.is_some() { Vec::new() } else { sums.histogram },
            standard_errors: errors,
        }
    }

    pub fn dependency_strength(&self) -> f64 {
        mean(&self.dependency_strength_by_head)
    }

    pub fn far_variance(&self) -> f64 {
        mean(&self.far_variance_by_head)
    }
}

impl StandardErrors {
    /// The error of the variance ignores `(Σp)²/S²`: it is some thousandths of `Σp²` in any window long enough to be
    /// sampled.
    fn new(sums: &HeadSums, rows: &SampledRows, tokens: usize) -> Self {
        let mean_over_heads = |by_key_head: &[f64]| {
            let mut mean = vec![0.0; rows.positions.len()];
            for of_head in by_key_head.chunks_exact(mean.len()) {
                mean.iter_mut().zip(of_head).for_each(|(sum, value)| *sum += value);
            }
            for sum in &mut mean {
                *sum /= sums.far_mass.len() as f64;
            }
            mean
        };
        let error = |by_key_head: &[f64]| rows.standard_error(&mean_over_heads(by_key_head));
        let tokens = tokens as f64;
        Self {
            dependency_strength: error(&sums.row_far_mass) / tokens,
            far_variance: error(&sums.row_far_square) / (tokens * tokens - 1.0),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// First layer of a model, ready to measure windows: the table, its specification and cached rotary tables.
#[derive(Debug)]
pub struct FirstLayer {
    spec: AttentionSpec,
    table: LayerZeroTable,
    mask: Mask,
    /// Longest expected window: the rotary table is computed once for this length.
    longest_window: usize,
    rotary: RotaryTables,
    /// Weights applied per window, packed for the kernels that requested them.
    projections: Mutex<Vec<(Kernel, Arc<PackedProjections>)>>,
    /// One bit per token id: whether it has occurred in a window.
    ids_seen: Vec<AtomicU64>,
}

impl FirstLayer {
    /// Creates a layer. Only windows of more than `longest_window` tokens recompute its rotary table.
    pub fn new(
        spec: AttentionSpec,
        table: LayerZeroTable,
        mask: Mask,
        longest_window: usize,
    ) -> Self {
        let (rotary, projections) = (RotaryTables::default(), Mutex::new(Vec::new()));
        let words = (spec.vocabulary_size as usize).div_ceil(64);
        let ids_seen = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { spec, table, mask, longest_window, rotary, projections, ids_seen }
    }

    /// Returns the number of table rows in use so far. Only these are in memory, because the table is mapped.
    pub fn rows_used(&self) -> u64 {
        self.ids_seen.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }

    pub fn table(&self) -> &LayerZeroTable {
        &self.table
    }

    /// Records the ids of a window that is measured by other means than [`FirstLayer::measure_heads`].
    pub fn mark_ids_seen(&self, ids: &[u32]) {
        for id in ids {
            let (word, bit) = (&self.ids_seen[*id as usize / 64], 1 << (id % 64));
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
    }

    pub fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    /// Measures one window on the CPU. Cost: `query_heads · tokens² / 2` pairs.
    pub fn measure(&self, kernel: Kernel, window: &WindowTokens) -> WindowStatistics {
        let key_heads = 0..self.spec.key_heads as usize;
        WindowStatistics::new(self.measure_heads(kernel, window, key_heads), window)
    }

    /// Measures the query heads of some key heads on the CPU. Parts, concatenated in order, have the bits of the whole.
    pub fn measure_heads(
        &self,
        kernel: Kernel,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> HeadSums {
        self.mark_ids_seen(&window.ids);
        let distance = window.distance as usize;
        let sample = window.sampled.as_ref().map(SampledRows::sample);
        self.with_source(kernel, &window.ids, |shape, rules, source| {
            head_statistics(kernel, shape, rules, distance, source, key_heads, sample.as_ref())
        })
    }

    /// Measures a window on the CPU, with the far mass of every row in addition to the sums.
    pub fn measure_rows(&self, kernel: Kernel, ids: &[u32], distance: u64) -> WindowSums {
        self.with_source(kernel, ids, |shape, rules, source| {
            attention_statistics(kernel, shape, rules, distance as usize, source)
        })
    }

    /// Computes the attention between the blocks of a window on the CPU: mean over heads, or of one query head.
    /// `ends`: end of each block, in tokens. `sampled`: restricts the rows. See [`BlockShares::for_window`].
    pub fn block_attention(
        &self,
        kernel: Kernel,
        ids: &[u32],
        ends: &[usize],
        head: Option<usize>,
        sampled: Option<&SampledRows>,
    ) -> BlockShares {
        self.mark_ids_seen(ids);
        self.with_source(kernel, ids, |shape, rules, source| {
            let blocks = BlockAttention::new(ends, sampled.map(SampledRows::sample));
            BlockShares::for_window(kernel, shape, rules, source, blocks, head)
        })
    }

    /// Returns an upper bound of the memory for [`FirstLayer::block_attention`], without the mapped table.
    pub fn block_attention_bytes(
        spec: &AttentionSpec,
        kernel: Kernel,
        tokens: usize,
        blocks: usize,
        threads: usize,
    ) -> u64 {
        let shape = spec.attention_shape(tokens);
        BlockAttention::bytes(kernel, &shape, blocks, threads) + spec.source_bytes(tokens as u64)
    }

    /// Passes the rotated queries and keys of a window to `measure`. `ids`: each below the vocabulary size.
    pub(crate) fn with_source<T>(
        &self,
        kernel: Kernel,
        ids: &[u32],
        measure: impl FnOnce(&AttentionShape, &LogitRules, &dyn QueryKeySource) -> T,
    ) -> T {
        let (shape, rules) = self.shape_and_rules(ids.len());
        let (rope, projections) = (self.rope(ids.len()), self.projections(kernel));
        let (spec, table, rope) = (&self.spec, &self.table, rope.as_deref());
        let parts =
            WindowParts { spec, table, projections: &projections, rope, shape: &shape, ids };
        parts.with_source(|source| measure(&shape, &rules, source))
    }

    /// Like `FirstLayer::with_source`, for a device: passes only the ids if the device computes queries and keys from its copy
    /// of the table. `heads`: key heads of the model, passed as those of the shape.
    pub fn with_operands<T>(
        &self,
        kernel: Kernel,
        ids: &[u32],
        heads: Range<usize>,
        measure: impl FnOnce(&AttentionShape, &LogitRules, Operands<'_>, Range<usize>) -> T,
    ) -> T {
        if !self.spec.gathers_on_device() {
            return self.with_source(kernel, ids, |shape, rules, source| {
                let shared = self.spec.shared_key_width();
                measure(shape, rules, Operands::Source { source, shared }, heads)
            });
        }
        let (shape, rules) = self.shape_and_rules(ids.len());
        let (rotation, projections) = (self.spec.rotation(ids.len()), self.projections(kernel));
        let (rotation, norms) = (rotation.as_ref(), projections.head_norms.as_ref());
        measure(&shape, &rules, Operands::Table { ids, rotation, norms }, heads)
    }

    fn shape_and_rules(&self, tokens: usize) -> (AttentionShape, LogitRules) {
        let mut rules = self.spec.logit_rules(self.mask == Mask::Causal);
        rules.sinks = self.table.aux(TensorRole::Sinks).map(<[f32]>::to_vec);
        rules.query_scale = self.spec.query_scales(tokens);
        (self.spec.attention_shape(tokens), rules)
    }

    fn projections(&self, kernel: Kernel) -> Arc<PackedProjections> {
        let mut all = self.projections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, projections)) = all.iter().find(|(owner, _)| *owner == kernel) {
            return Arc::clone(projections);
        }
        let projections = Arc::new(PackedProjections::new(&self.spec, &self.table, kernel));
        all.push((kernel, Arc::clone(&projections)));
        projections
    }

    /// Returns the rotary table, computed for the longest window with the same frequencies.
    fn rope(&self, tokens: usize) -> Option<Arc<Rope>> {
        let rotation = self.spec.rotation(tokens)?;
        let alike = self.spec.rope.as_ref()?.same_frequencies_up_to(tokens as u64);
        let longest = self.longest_window.min(usize::try_from(alike).unwrap_or(usize::MAX));
        Some(self.rotary.get(&rotation, tokens, longest, Rotation::table))
    }
}
