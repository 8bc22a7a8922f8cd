//! Measures the speed of the kernels on this machine, in CPU time of the threads.
//!
//! The example `pairs` compares it with the CPU's limits.

use std::hint::black_box;
use std::time::{Duration, Instant};

use half::bf16;
use rustix::time::{ClockId, clock_gettime};

use crate::gather::{TableView, TableWindow};
use crate::kernel::Kernel;
use crate::panels::ElementType;
use crate::rope::{Rope, RopeStyle, Rotation};
use crate::statistics::{AttentionShape, LogitRules};
use crate::stream::attention_statistics;
use crate::words::AlignedWords;

const TABLE_ROWS: usize = 997;

/// Minimum pairs per measurement. Windows run one after another, as in a run, so that waking threads takes little of
/// the time.
const MIN_PAIRS: f64 = 5e7;

/// One measurement: a causal window of `key_heads · group` query heads, gathered from a table and rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchCase {
    pub kernel: Kernel,
    pub head_dim: usize,
    pub tokens: usize,
    pub key_heads: usize,
    /// Query heads that share a key head: 4 as in Llama 3.1 8B, 1 if every query head has its own keys.
    pub group: usize,
    /// Threads of the pool that the window runs in.
    pub threads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BenchSpeed {
    /// Wall-clock seconds of one window, median.
    pub seconds: f64,
    /// Causal (query, key) pairs per second of CPU time, median.
    pub pairs: f64,
}

impl BenchCase {
    /// Counts the causal pairs of the case's window.
    pub fn pairs(&self) -> f64 {
        let pairs = self.tokens as f64 * (self.tokens as f64 + 1.0) / 2.0;
        pairs * (self.key_heads * self.group) as f64
    }

    /// Runs the case `repeats` times, at least once.
    ///
    /// # Panics
    /// If the processor lacks the kernel or no pool of threads can be started.
    pub fn measure(&self, repeats: usize) -> BenchSpeed {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build();
        let pool = pool.expect("a pool of threads starts");
        let window = OwnWindow::new(self);
        let windows = (MIN_PAIRS / self.pairs()).ceil() as u32;
        let mut runs: Vec<(f64, f64)> = Vec::new();
        for _ in 0..repeats.max(1) {
            let wall = Instant::now();
            let clocks = pool.broadcast(|_| Clock::start());
            pool.install(|| (0..windows).for_each(|_| window.run(self)));
            let busy = pool.broadcast(|context| clocks[context.index()].seconds());
            let wall = wall.elapsed().as_secs_f64() / f64::from(windows);
            runs.push((wall, self.pairs() * f64::from(windows) / busy.iter().sum::<f64>()));
        }
        BenchSpeed {
            seconds: median(runs.iter().map(|run| run.0)),
            pairs: median(runs.iter().map(|run| run.1)),
        }
    }
}

/// A window and the table it is gathered from.
struct OwnWindow {
    /// Starts on a cache line, as the rows of a table file do.
    table: AlignedWords,
    ids: Vec<u32>,
    rope: Rope,
}

impl OwnWindow {
    fn new(case: &BenchCase) -> Self {
        let width = case.key_heads * (case.group + 1) * case.head_dim;
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let floats = (0..TABLE_ROWS * width).map(|_| 2.5 * next());
        let mut table = AlignedWords::new(TABLE_ROWS * width);
        match case.kernel.element_type() {
            ElementType::F32 | ElementType::Int16 => {
                table.floats_mut().iter_mut().zip(floats).for_each(|(to, value)| *to = value);
            }
            ElementType::Bf16 => {
                let rounded: &mut [bf16] = bytemuck::cast_slice_mut(&mut table);
                rounded.iter_mut().zip(floats).for_each(|(to, value)| *to = bf16::from_f32(value));
            }
        }
        let pairs = case.head_dim / 2;
        let frequency = |pair| 5e5_f32.powf(-(pair as f32) / pairs as f32);
        let rotation = Rotation {
            style: RopeStyle::Half,
            inverse_frequencies: (0..pairs).map(frequency).collect(),
            attention_factor: 1.0,
        };
        let ids = (0..case.tokens).map(|token| (token * 389 % TABLE_ROWS) as u32).collect();
        Self { table, ids, rope: rotation.table(case.tokens) }
    }

    fn run(&self, case: &BenchCase) {
        let &BenchCase { kernel, head_dim, tokens, key_heads, group, .. } = case;
        let shape = AttentionShape { tokens, query_heads: key_heads * group, key_heads, head_dim };
        let width = key_heads * (group + 1) * head_dim;
        let table = match kernel.element_type() {
            ElementType::F32 | ElementType::Int16 => TableView::F32(self.table.floats()),
            ElementType::Bf16 => {
                TableView::Bf16(&bytemuck::cast_slice(&self.table)[..TABLE_ROWS * width])
            }
        };
        let source = TableWindow::new(table, width, &self.ids, &shape, Some(&self.rope), None);
        let rules = LogitRules::causal(head_dim);
        let distance = tokens - 3 * (tokens / 4);
        black_box(attention_statistics(kernel, &shape, &rules, distance, &source));
    }
}

/// A stopwatch of this thread's CPU time, which other programs on the machine disturb less than wall-clock time.
#[derive(Clone, Copy)]
pub struct Clock(Duration);

impl Clock {
    pub fn start() -> Self {
        Self(thread_time())
    }

    /// Returns the seconds since the start. Call it on the thread that started the clock.
    pub fn seconds(&self) -> f64 {
        thread_time().saturating_sub(self.0).as_secs_f64()
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.try_into().expect("CPU time is never negative")
}

/// Returns the median; for an even number of values, the mean of the two in the middle.
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
    fn every_kernel_can_be_measured() {
        for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported()) {
            let case =
                BenchCase { kernel, head_dim: 32, tokens: 300, key_heads: 1, group: 4, threads: 2 };
            let speed = case.measure(3);
            assert!(speed.pairs > 0.0 && speed.seconds > 0.0, "{speed:?}");
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "these values are exact")]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }
}
