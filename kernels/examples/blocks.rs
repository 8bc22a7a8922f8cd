//! Cost of attention between blocks compared with the statistics of the same window, measured in turns on this machine.
//!
//! `cargo run --release -p longsift-kernels --example blocks -- [TOKENS [BLOCK_TOKENS [REPEATS]]]`
//!
//! Eight query heads over two key heads of width 128; two threads. Seconds are CPU time, medians.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

use longsift_kernels::bench::BenchCase;
use longsift_kernels::{AttentionShape, BlockAttention, Kernel};

fn main() -> Result<(), String> {
    let mut numbers = [8192, 128, 5];
    for (number, argument) in numbers.iter_mut().zip(std::env::args().skip(1)) {
        *number = argument.parse().map_err(|_| format!("`{argument}` is not a number"))?;
    }
    let [tokens, block_tokens, repeats] = numbers;
    println!("{tokens} tokens in blocks of {block_tokens}");
    println!(
        "{:14} {:>10} {:>10} {:>7} {:>9}",
        "kernel", "statistics", "blocks", "ratio", "memory"
    );
    for kernel in Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported()) {
        let case = BenchCase { kernel, head_dim: 128, tokens, key_heads: 2, group: 4, threads: 2 };
        let turns = (0..repeats.max(1)).map(|_| {
            let statistics = case.measure(1).processor_seconds;
            let blocks = case.measure_blocks(block_tokens, 1).processor_seconds;
            [statistics, blocks, blocks / statistics]
        });
        let turns: Vec<[f64; 3]> = turns.collect();
        let [statistics, blocks, ratio] = [0, 1, 2].map(|column| {
            let mut values: Vec<f64> = turns.iter().map(|turn| turn[column]).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        });
        let shape = AttentionShape { tokens, query_heads: 8, key_heads: 2, head_dim: 128 };
        let bytes = BlockAttention::bytes(kernel, &shape, tokens.div_ceil(block_tokens), 2);
        println!(
            "{:14} {:>8.3} s {:>8.3} s {:>7.3} {:>6.1} MB",
            kernel.name(),
            statistics,
            blocks,
            ratio,
            bytes as f64 / 1e6
        );
    }
    Ok(())
}
