//! The kernels alone, on one thread and on all.

use std::ops::Range;
use std::time::Instant;

use longsift_kernels::{
    AttentionShape, Kernel, LogitRules, Measure, QueryKeySource, attention_statistics,
};

use super::{BenchOptions, Figure, Figures};

/// Heads of the measured window: what is a head's is paid per head, so a few stand for all.
const KEY_HEADS: usize = 2;
/// Query heads of a key head, as in LLaMA-3.1-8B.
const GROUP: usize = 4;

/// Numbers between -1 and 1 that repeat nowhere near.
struct Noise {
    head_dim: usize,
}

impl Noise {
    fn fill(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            for (dimension, value) in out.iter_mut().enumerate() {
                let mixed = (row * 7919 + dimension * 104_729 + head * 31) as u32;
                *value = (mixed.wrapping_mul(2_654_435_761) >> 16) as f32 / 32_768.0 - 1.0;
            }
        }
    }
}

impl QueryKeySource for Noise {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(head, rows, out);
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(1000 + head, rows, out);
    }
}

pub(super) fn measure(options: &BenchOptions, figures: &mut Figures<'_>) {
    let all = rayon::current_num_threads();
    for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported()) {
        for &head_dim in &options.head_dims {
            for threads in if all > 1 { vec![1, all] } else { vec![1] } {
                let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(threads).build() else {
                    continue;
                };
                for &tokens in &options.windows {
                    let seconds =
                        pool.install(|| seconds(kernel, head_dim, tokens, options.repeats));
                    let pairs =
                        (KEY_HEADS * GROUP) as f64 * tokens as f64 * (tokens + 1) as f64 / 2.0;
                    let threads = if threads == 1 {
                        "1 thread".to_owned()
                    } else {
                        format!("{threads} threads")
                    };
                    figures.add(Figure {
                        group: "kernel",
                        series: format!("{}, d={head_dim}, {threads}", kernel.name()),
                        at: tokens as f64,
                        at_unit: "tokens",
                        value: pairs / seconds,
                        unit: "pairs/s",
                    });
                }
            }
        }
    }
}

/// The median time of one window.
fn seconds(kernel: Kernel, head_dim: usize, tokens: usize, repeats: usize) -> f64 {
    let shape =
        AttentionShape { tokens, query_heads: KEY_HEADS * GROUP, key_heads: KEY_HEADS, head_dim };
    let measure = Measure { distance: tokens / 4, rows: false };
    let (rules, source) = (LogitRules::causal(head_dim), Noise { head_dim });
    let mut times: Vec<f64> = (0..repeats.max(1))
        .map(|_| {
            let start = Instant::now();
            attention_statistics(kernel, &shape, &rules, &measure, &source);
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
