//! Effect of rounding queries and keys in the bf16 and int16 kernels on the statistics.
//!
//! A product `q·k` of rounded numbers is off by `Σ q_d·k_d·(ε_d + ε'_d)`, each `ε` at most 2^-8, with random sign:
//! never more than `2^-7·Σ|q_d·k_d| <= 2^-7·‖q‖·‖k‖`, and for heads of many dimensions, on numbers about normal, 2.3e-3
//! of the standard deviation of the logits. A probability is off by as much, relatively, in either direction: with
//! logits of standard deviation `s`, one by about `2.3e-3·s`, a mean over many rows and keys by far less.
//!
//! Integers of rows scaled to the length `L = 46,340` are each off by half a unit at most, with a standard deviation of
//! 0.29: a product by `0.29·√2·L`, which is `0.41·√d/L` of the standard deviation `L²/√d` that products have: 1.0e-4
//! for heads of 128.

mod common;

use common::{Random, supported};
use longsift_kernels::{
    AttentionShape, ElementType, LogitRules, attention_statistics, reference_statistics,
};

/// Standard deviation of the logits.
const SPREAD: f64 = 3.0;

/// Error of a logit relative to the logits' standard deviation.
fn error(numbers: ElementType, head_dim: usize) -> f64 {
    match numbers {
        ElementType::F32 => 0.0,
        ElementType::Bf16 => 2.3e-3,
        ElementType::Int16 => 0.41 * (head_dim as f64).sqrt() / 46_340.0,
    }
}

#[test]
fn rounding_errors_have_the_expected_size() {
    for (head_dim, seed) in [(64, 1), (128, 2), (128, 3), (256, 4)] {
        let shape = AttentionShape { tokens: 700, query_heads: 4, key_heads: 2, head_dim };
        let source = Random { head_dim, seed, spread: SPREAD as f32 };
        let (rules, distance) = (LogitRules::causal(head_dim), 175);
        let want = reference_statistics(&shape, &rules, distance, &source);
        for kernel in supported().filter(|kernel| kernel.element_type() != ElementType::F32) {
            // A head's far mass and sum of squares are off by a third of one probability's error; a single row's far
            // mass, at worst, by that of a few.
            let probability = error(kernel.element_type(), head_dim) * SPREAD;
            let (mass, row) = (0.34 * probability, 2.75 * probability);
            let got = attention_statistics(kernel, &shape, &rules, distance, &source);
            common::close(&got.far_mass, &want.far_mass, mass, 0.0, kernel.name());
            common::close(&got.far_square, &want.far_square, 2.0 * mass, 0.0, kernel.name());
            let rows = [&got.row_far_mass, &want.row_far_mass];
            common::close(rows[0], rows[1], row, 1e-9, kernel.name());
            // The difference is due to rounding: a float32 kernel is much closer.
            let off = rows[0].iter().zip(rows[1]).map(|(got, want)| (got / want - 1.0).abs());
            let largest = off.filter(|off| off.is_finite()).fold(0.0, f64::max);
            eprintln!("{}, heads of {head_dim}: rows off by {largest:.1e} at most", kernel.name());
            assert!(largest > 0.1 * probability, "{}: {largest:e}", kernel.name());
        }
    }
}
