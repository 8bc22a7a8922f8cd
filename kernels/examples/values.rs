//! Attention with values compared with the limit of the processor's multiply-adds: `cargo run --release -p longsift-kernels --example values`.
//!
//! The last blocks of a causal window of 8,192 tokens, one thread; multiply-adds of both products over the visible pairs
//! are counted, nothing else.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

use std::time::Instant;

mod limits;

use limits::Limits;
use longsift_kernels::{
    AttendScratch, AttentionShape, ElementType, Kernel, KeyValues, LogitRules, QueryBlock,
};

const TOKENS: usize = 8192;
const ROWS: usize = 96;
const KEY_HEADS: usize = 2;
const GROUP: usize = 4;
/// Number of blocks that are timed, spread over the window.
const BLOCKS: usize = 8;
const REPEATS: usize = 5;

fn main() {
    for head_dim in [64, 128] {
        let floats =
            |kernel: &&Kernel| kernel.is_supported() && kernel.element_type() == ElementType::F32;
        for kernel in Kernel::ALL.iter().filter(floats) {
            let (rate, share) = measure(*kernel, head_dim);
            println!(
                "{:<13} {TOKENS} tokens, heads of {head_dim}: {:.1} G multiply-adds/s on one thread, {:.0} % of the limit",
                kernel.name(),
                rate / 1e9,
                100.0 * share
            );
        }
    }
}

/// Returns the multiply-adds per second and their fraction of the limit, medians over repeats between measurements of
/// the limit.
fn measure(kernel: Kernel, head_dim: usize) -> (f64, f64) {
    let shape = AttentionShape {
        tokens: TOKENS,
        query_heads: KEY_HEADS * GROUP,
        key_heads: KEY_HEADS,
        head_dim,
    };
    let mut packed = KeyValues::new(kernel, &shape);
    packed.fill(|rows, keys, values| {
        for (index, (key, value)) in keys.iter_mut().zip(values).enumerate() {
            *key = noise(rows.start * 7919 + index);
            *value = noise(rows.start * 104_729 + index);
        }
    });
    let queries: Vec<f32> = (0..ROWS * shape.query_heads * head_dim).map(noise).collect();
    let (rules, mut scratch) = (LogitRules::causal(head_dim), AttendScratch::default());
    let mut out = vec![0.0; queries.len()];
    let starts = (0..BLOCKS).map(|block| (block * TOKENS / BLOCKS) / ROWS * ROWS);
    let starts: Vec<usize> = starts.collect();
    let pairs: usize = starts.iter().map(|start| ROWS * start + ROWS * (ROWS + 1) / 2).sum();
    let work = (2 * pairs * shape.query_heads * head_dim) as f64;
    let mut runs: Vec<(f64, f64)> = (0..REPEATS)
        .map(|_| {
            let before = multiply_limit(kernel);
            let clock = Instant::now();
            for start in &starts {
                let block = QueryBlock { rows: *start..start + ROWS, queries: &queries };
                packed.attend(&rules, &block, &mut scratch, &mut out);
            }
            let rate = work / clock.elapsed().as_secs_f64();
            let limit = f64::midpoint(before, multiply_limit(kernel));
            (rate, rate / limit)
        })
        .collect();
    runs.sort_by(|one, other| one.1.total_cmp(&other.1));
    runs[REPEATS / 2]
}

fn multiply_limit(kernel: Kernel) -> f64 {
    Limits::measure(kernel).map_or(f64::NAN, |limits| limits.multiply_adds)
}

/// Returns pseudo-random numbers between -1 and 1.
fn noise(index: usize) -> f32 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32 / (1 << 23) as f32
        - 1.0
}
