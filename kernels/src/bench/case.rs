//! One measurement: a window, timed between measurements of the limits.

use std::hint::black_box;
use std::time::Instant;

use half::bf16;

use super::clock::Clock;
use super::limits::Limits;
use crate::block_attention::BlockAttention;
use crate::gather::{TableView, TableWindow};
use crate::kernel::{ElementType, Kernel};
use crate::rope::{Rope, RopeStyle};
use crate::statistics::{AttentionShape, LogitRules, Measure, QueryKeySource};
use crate::stream::attention_statistics;
use crate::words::Words;

/// Rows of the table that windows are gathered from.
const TABLE_ROWS: usize = 997;

/// Pairs that a measurement has at least, windows one after the other as in a run: what waking sleeping threads takes is then
/// little beside them.
const LEAST_PAIRS: f64 = 5e7;

/// One measurement: a causal window of `key_heads · group` query heads, gathered from a table and rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The kernel.
    pub kernel: Kernel,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens of the window.
    pub tokens: usize,
    /// Key heads.
    pub key_heads: usize,
    /// Query heads that share a key head: 4 as in Llama 3.1 8B, 1 where every query head has keys of its own.
    pub group: usize,
    /// Threads of the pool that the window runs in.
    pub threads: usize,
}

/// What a case gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds that one window takes on the wall's clock, median.
    pub seconds: f64,
    /// Seconds of processor time that it takes, of all threads together, median.
    pub processor_seconds: f64,
    /// Causal (query, key) pairs a second and thread, median; by processor time where it is known.
    pub pairs: f64,
    /// The limits, median over repeats.
    pub limits: Limits,
    /// Share of the limit that is reached, median over repeats: multiply-adds of queries and keys (nothing else counts)
    /// of the multiply limit for float32; for shorter numbers pairs of the slower of the two limits.
    pub share: f64,
}

impl Case {
    /// Causal pairs of the case's window.
    pub fn pairs(&self) -> f64 {
        let pairs = self.tokens as f64 * (self.tokens as f64 + 1.0) / 2.0;
        pairs * (self.key_heads * self.group) as f64
    }

    /// Pairs a second that `limits` allow: for float32 the multiply-adds alone count.
    fn pairs_within(&self, limits: &Limits) -> f64 {
        let multiply = limits.multiply / self.head_dim as f64;
        match self.kernel.element_type() {
            ElementType::F32 => multiply,
            ElementType::Bf16 | ElementType::Bf16x3 | ElementType::Int16 => {
                multiply.min(limits.exponential)
            }
        }
    }

    /// Runs the case `repeats` times, at least once, each time between measurements of the limits.
    ///
    /// # Panics
    /// If the processor lacks the kernel or no pool of threads can be started.
    pub fn measure(&self, repeats: usize) -> Speed {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .build()
            .expect("a pool of threads starts");
        let window = OwnWindow::new(self);
        let windows = (LEAST_PAIRS / self.pairs()).ceil() as u32;
        let mut runs: Vec<(f64, f64, Limits, f64)> = Vec::new();
        let mut before = pool.install(|| Limits::measure(self.kernel));
        for _ in 0..repeats.max(1) {
            let wall = Instant::now();
            let clocks = pool.broadcast(|_| Clock::start());
            pool.install(|| (0..windows).for_each(|_| window.run(self)));
            let busy = pool.broadcast(|context| clocks[context.index()].seconds());
            let wall = wall.elapsed().as_secs_f64() / f64::from(windows);
            let after = pool.install(|| Limits::measure(self.kernel));
            let limits = before.mean(&after);
            let pairs = self.pairs() * f64::from(windows) / busy.iter().sum::<f64>();
            runs.push((wall, pairs, limits, pairs / self.pairs_within(&limits)));
            before = after;
        }
        Speed {
            seconds: median(runs.iter().map(|run| run.0)),
            processor_seconds: median(runs.iter().map(|run| self.pairs() / run.1)),
            pairs: median(runs.iter().map(|run| run.1)),
            limits: Limits {
                multiply: median(runs.iter().map(|run| run.2.multiply)),
                exponential: median(runs.iter().map(|run| run.2.exponential)),
            },
            share: median(runs.iter().map(|run| run.3)),
        }
    }
}

/// What attention between blocks costs beside the statistics of the same window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockCost {
    /// Seconds of processor time of the statistics, median.
    pub statistics_seconds: f64,
    /// Seconds of processor time of the attention between blocks, median.
    pub blocks_seconds: f64,
    /// The one divided by the other in each repeat, which measures both: the median.
    pub ratio: f64,
}

impl Case {
    /// Measures a window by blocks of `block_tokens` tokens and by its statistics, in turns.
    ///
    /// # Panics
    /// If the blocks are more than a window may have.
    pub fn measure_blocks(&self, block_tokens: usize, repeats: usize) -> BlockCost {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .build()
            .expect("a pool of threads starts");
        let window = OwnWindow::new(self);
        let ends: Vec<usize> = (1..=self.tokens.div_ceil(block_tokens))
            .map(|end| self.tokens.min(end * block_tokens))
            .collect();
        let busy = |work: &(dyn Fn() + Sync)| {
            let clocks = pool.broadcast(|_| Clock::start());
            pool.install(work);
            pool.broadcast(|context| clocks[context.index()].seconds()).iter().sum::<f64>()
        };
        let mut runs: Vec<(f64, f64)> = Vec::new();
        for _ in 0..repeats.max(1) {
            let statistics = busy(&|| window.run(self));
            runs.push((statistics, busy(&|| window.run_blocks(self, &ends))));
        }
        BlockCost {
            statistics_seconds: median(runs.iter().map(|run| run.0)),
            blocks_seconds: median(runs.iter().map(|run| run.1)),
            ratio: median(runs.iter().map(|run| run.1 / run.0)),
        }
    }
}

/// A window and the table it is gathered from.
struct OwnWindow {
    /// From the start of a cache line on, as the rows of a table file are.
    table: Words,
    ids: Vec<u32>,
    rope: Rope,
}

impl OwnWindow {
    fn new(case: &Case) -> Self {
        let width = case.key_heads * (case.group + 1) * case.head_dim;
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let floats = (0..TABLE_ROWS * width).map(|_| 2.5 * next());
        let mut table = Words::new(TABLE_ROWS * width);
        match case.kernel.element_type() {
            ElementType::F32 | ElementType::Bf16x3 | ElementType::Int16 => {
                table.floats_mut().iter_mut().zip(floats).for_each(|(to, value)| *to = value);
            }
            ElementType::Bf16 => {
                let rounded: &mut [bf16] = bytemuck::cast_slice_mut(&mut table);
                rounded.iter_mut().zip(floats).for_each(|(to, value)| *to = bf16::from_f32(value));
            }
        }
        let pairs = case.head_dim / 2;
        let frequencies: Vec<f32> =
            (0..pairs).map(|pair| 5e5_f32.powf(-(pair as f32) / pairs as f32)).collect();
        let ids = (0..case.tokens).map(|token| (token * 389 % TABLE_ROWS) as u32).collect();
        Self { table, ids, rope: Rope::new(RopeStyle::Half, &frequencies, 1.0, case.tokens) }
    }

    fn run(&self, case: &Case) {
        let tokens = case.tokens;
        let measure = Measure { distance: tokens - 3 * (tokens / 4), rows: false };
        self.with_source(case, |shape, rules, source| {
            black_box(attention_statistics(case.kernel, shape, rules, &measure, source));
        });
    }

    fn run_blocks(&self, case: &Case, ends: &[usize]) {
        self.with_source(case, |shape, rules, source| {
            let mut blocks = BlockAttention::new(ends, None);
            blocks.add_heads(case.kernel, shape, rules, source, 0..shape.key_heads);
            black_box(blocks.shares());
        });
    }

    fn with_source(
        &self,
        case: &Case,
        work: impl FnOnce(&AttentionShape, &LogitRules, &dyn QueryKeySource),
    ) {
        let &Case { kernel, head_dim, tokens, key_heads, group, .. } = case;
        let shape = AttentionShape { tokens, query_heads: key_heads * group, key_heads, head_dim };
        let width = key_heads * (group + 1) * head_dim;
        let table = match kernel.element_type() {
            ElementType::F32 | ElementType::Bf16x3 | ElementType::Int16 => {
                TableView::F32(self.table.floats())
            }
            ElementType::Bf16 => {
                TableView::Bf16(&bytemuck::cast_slice(&self.table)[..TABLE_ROWS * width])
            }
        };
        let source = TableWindow::new(table, width, &self.ids, &shape, Some(&self.rope))
            .expect("table, ids and rotations were made for the case");
        work(&shape, &LogitRules::causal(head_dim), &source);
    }
}

/// The middle value; of an even number, the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_can_be_measured_and_no_share_is_beyond_reason() {
        for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported()) {
            let case =
                Case { kernel, head_dim: 32, tokens: 300, key_heads: 1, group: 4, threads: 2 };
            let speed = case.measure(3);
            assert!(speed.pairs > 0.0 && speed.seconds > 0.0, "{speed:?}");
            assert!(speed.share > 0.0 && speed.share < 2.0, "{speed:?}");
            let cost = case.measure_blocks(64, 1);
            assert!(cost.statistics_seconds > 0.0 && cost.ratio > 0.0, "{cost:?}");
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "these values are exact")]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }
}
