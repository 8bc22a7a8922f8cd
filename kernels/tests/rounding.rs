//! What rounding queries and keys to bf16 does to the figures: the price of the bf16 kernels.
//!
//! A product `q·k` of rounded numbers is off by `Σ q_d·k_d·(ε_d + ε'_d)`, each `ε` at most 2^-9 and as often up as down:
//! never more than `2^-8·Σ|q_d·k_d| <= 2^-8·‖q‖·‖k‖`, and for heads of many dimensions about
//! `2^-9·√(2/3)·√(Σ q_d²k_d²)`, which is 1.6e-3 of the standard deviation of the logits. A probability is off by as much,
//! relatively, in either direction: with logits of standard deviation `s`, one by about `1.6e-3·s`, a mean over many rows
//! and keys by far less.

mod common;

use common::{Random, supported};
use longsift_kernels::{
    AttentionShape, ElementType, LogitRules, Measure, attention_statistics, reference_statistics,
};

/// Relative error of a head's far mass and sum of squares for logits of standard deviation 3: half of one
/// probability's.
const MASS: f64 = 0.5 * 1.6e-3 * 3.0;
/// Relative error of a single row's far mass, that of a few probabilities at the worst.
const ROW: f64 = 4.0 * 1.6e-3 * 3.0;

#[test]
fn rounding_to_bf16_costs_what_it_must_and_no_more() {
    for (head_dim, seed) in [(64, 1), (128, 2), (128, 3), (256, 4)] {
        let shape = AttentionShape { tokens: 700, query_heads: 4, key_heads: 2, head_dim };
        let source = Random { head_dim, seed, spread: 3.0 };
        let (rules, measure) =
            (LogitRules::causal(head_dim), Measure { distance: 175, rows: true });
        let want = reference_statistics(&shape, &rules, &measure, &source);
        for kernel in supported().filter(|kernel| kernel.element_type() == ElementType::Bf16) {
            let got = attention_statistics(kernel, &shape, &rules, &measure, &source);
            common::close(&got.far_mass, &want.far_mass, MASS, 0.0, kernel.name());
            common::close(&got.far_square, &want.far_square, 2.0 * MASS, 0.0, kernel.name());
            let rows =
                [got.row_far_mass, want.row_far_mass.clone()].map(|rows| rows.expect("asked for"));
            common::close(&rows[0], &rows[1], ROW, 1e-9, kernel.name());
            // It is rounding: a float32 kernel is a hundred times closer.
            let error = (got.far_mass[0] / want.far_mass[0] - 1.0).abs();
            assert!(error > 1e-6, "{}: {error:e}", kernel.name());
        }
    }
}
