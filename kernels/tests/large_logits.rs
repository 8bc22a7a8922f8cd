//! Logits that would overflow a naive softmax, and numbers that are not finite.

mod common;

use std::ops::Range;

use common::{Random, check, supported};
use longsift_kernels::{
    AttentionShape, ElementType, LogitRules, QueryKeySource, attention_statistics,
};

/// Change of a row.
type Change = Box<dyn Fn(usize, &mut [f32]) + Sync>;

/// Changes the queries and keys of a random source, row by row.
struct Changed {
    random: Random,
    query: Change,
    key: Change,
}

impl Changed {
    fn keys(random: Random, change: impl Fn(usize, &mut [f32]) + Sync + 'static) -> Self {
        Self { random, query: Box::new(|_, _| {}), key: Box::new(change) }
    }

    fn queries(random: Random, change: impl Fn(usize, &mut [f32]) + Sync + 'static) -> Self {
        Self { random, query: Box::new(change), key: Box::new(|_, _| {}) }
    }
}

impl QueryKeySource for Changed {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.random.queries(head, rows.clone(), out);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.random.head_dim)) {
            (self.query)(row, out);
        }
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.random.keys(head, rows.clone(), out);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.random.head_dim)) {
            (self.key)(row, out);
        }
    }
}

/// Returns the largest logit of the last row.
fn largest(source: &dyn QueryKeySource, tokens: usize, head_dim: usize) -> f32 {
    let (mut query, mut keys) = (vec![0.0; head_dim], vec![0.0; head_dim * tokens]);
    source.keys(0, 0..tokens, &mut keys);
    source.queries(0, tokens - 1..tokens, &mut query);
    let product = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
    let products = keys.chunks_exact(head_dim).map(product);
    products.fold(f32::NEG_INFINITY, f32::max) / (head_dim as f32).sqrt()
}

#[test]
fn logits_beyond_a_hundred_and_beyond_a_thousand_agree_with_float64() {
    let shape = AttentionShape { tokens: 600, query_heads: 3, key_heads: 1, head_dim: 64 };
    for (spread, beyond) in [(60.0, 100.0), (500.0, 1000.0)] {
        let source = Random { head_dim: 64, seed: 5, spread };
        let largest = largest(&source, 600, 64);
        assert!(largest > beyond, "the case needs large logits, has {largest}");
        // One float32 step of a logit of 200 is 1.5e-5, so the tolerance grows with the logits.
        for causal in [true, false] {
            let rules = LogitRules { causal, ..LogitRules::causal(64) };
            for distance in [0, 1, 150, 599] {
                check(&shape, &rules, distance, &source, f64::from(spread));
            }
        }
    }
}

/// A key bias as large as Qwen2's moves every logit of a row by hundreds, up or down, and must cancel.
#[test]
fn a_large_common_offset_cancels() {
    for bias in [40.0_f32, 250.0] {
        let random = Random { head_dim: 32, seed: 3, spread: 3.0 };
        let source = Changed::keys(random, move |_, out| {
            for value in out {
                *value += bias;
            }
        });
        let shape = AttentionShape { tokens: 400, query_heads: 2, key_heads: 1, head_dim: 32 };
        check(&shape, &LogitRules::causal(32), 100, &source, 2.5 * f64::from(bias));
    }
}

/// The bound on a row's logits holds for the first tiles of keys, not for later ones, and again for the last.
#[test]
fn rows_switch_between_bounded_and_unbounded_tiles() {
    let random = Random { head_dim: 64, seed: 8, spread: 3.0 };
    let source = Changed::keys(random, |row, out| {
        let factor = if (300..700).contains(&row) { 1.0 + (row - 300) as f32 / 20.0 } else { 1.0 };
        for value in out {
            *value *= factor;
        }
    });
    let shape = AttentionShape { tokens: 1100, query_heads: 2, key_heads: 1, head_dim: 64 };
    for causal in [true, false] {
        let rules = LogitRules { causal, ..LogitRules::causal(64) };
        check(&shape, &rules, 250, &source, 60.0);
    }
}

/// The first tile of keys needs no offset, although all its logits are far below zero; later tiles, further below, must
/// not be computed relative to zero.
#[test]
fn keys_far_below_a_negative_first_tile_keep_their_weight() {
    let (head_dim, tokens) = (32, 900);
    let unit = std::f64::consts::LOG2_E / (head_dim as f64).sqrt();
    let source = Changed {
        random: Random { head_dim, seed: 6, spread: 0.01 },
        query: Box::new(|_, out| out[0] += 8.0),
        // In powers of two: about -52, within the bound of 56, then -75.
        key: Box::new(move |row, out| {
            let logit = if row < 256 { -52.0 } else { -75.0 };
            out[0] += (logit / (8.0 * unit)) as f32;
        }),
    };
    let shape = AttentionShape { tokens, query_heads: 2, key_heads: 1, head_dim };
    for causal in [true, false] {
        check(&shape, &LogitRules { causal, ..LogitRules::causal(head_dim) }, 100, &source, 30.0);
    }
}

/// A key that a row does not see must not set the row's offset.
#[test]
fn a_giant_key_after_the_row_or_outside_its_window_changes_nothing() {
    let random = || Random { head_dim: 32, seed: 4, spread: 3.0 };
    let source = Changed::keys(random(), |row, out| {
        if row == 120 {
            for value in out {
                *value *= 1000.0;
            }
        }
    });
    let shape = AttentionShape { tokens: 300, query_heads: 1, key_heads: 1, head_dim: 32 };
    let rules = LogitRules { window: Some(40), ..LogitRules::causal(32) };
    for kernel in supported() {
        let rows = |source| attention_statistics(kernel, &shape, &rules, 20, source).row_far_mass;
        let (got, want) = (rows(&source as &dyn QueryKeySource), rows(&random()));
        for row in (0..120).chain(160..300) {
            let error = (got[row] - want[row]).abs();
            assert!(error <= 2e-4 * want[row], "{} row {row}: {error:e}", kernel.name());
        }
        // From that key on, a row gives it all attention or none.
        assert!(got[145] < 1e-6 || got[145] > 1.0 - 1e-6);
    }
}

/// In a strip with fewer rows than lanes, the unused lanes have queries of zeros, whose products with such a key are
/// `NaN`.
#[test]
fn an_infinite_key_affects_neither_rows_nor_unused_lanes() {
    let random = || Random { head_dim: 16, seed: 4, spread: 2.0 };
    let source = Changed {
        random: random(),
        query: Box::new(|_, row| row[3] = 1.0),
        key: Box::new(|position, row| row[3] = if position == 2 { f32::NEG_INFINITY } else { 0.0 }),
    };
    let rules = LogitRules::causal(16);
    for (tokens, query_heads) in [(5, 4), (21, 4), (5, 1), (99, 7)] {
        let shape = AttentionShape { tokens, query_heads, key_heads: 1, head_dim: 16 };
        for kernel in supported().filter(|kernel| kernel.element_type() == ElementType::F32) {
            let sums = attention_statistics(kernel, &shape, &rules, 1, &source);
            let far = sums.dependency_strength(tokens);
            assert!(far.iter().all(|far| (0.1..1.0).contains(far)), "{} {far:?}", kernel.name());
            let all: f64 = sums.histogram.iter().sum();
            assert!((all - 1.0).abs() < 1e-5, "{}: {all}", kernel.name());
        }
    }
}

#[test]
fn a_query_or_key_that_is_not_a_number_shows_in_the_sums() {
    let shape = AttentionShape { tokens: 100, query_heads: 1, key_heads: 1, head_dim: 8 };
    let break_at = |at: usize, value: f32| {
        move |row: usize, out: &mut [f32]| {
            if row == at {
                out[3] = value;
            }
        }
    };
    let random = || Random { head_dim: 8, seed: 2, spread: 3.0 };
    for kernel in supported() {
        let run = |source: &dyn QueryKeySource| {
            let rules = LogitRules::causal(8);
            attention_statistics(kernel, &shape, &rules, 25, source)
        };
        let query = run(&Changed::queries(random(), break_at(70, f32::NAN)));
        assert!(query.far_mass[0].is_nan() && query.far_square[0].is_nan(), "{}", kernel.name());
        let rows = query.row_far_mass;
        assert!(rows.iter().enumerate().all(|(row, mass)| mass.is_nan() == (row == 70)));
        for broken in [f32::NAN, f32::INFINITY] {
            let key = run(&Changed::keys(random(), break_at(30, broken)));
            assert!(key.far_mass[0].is_nan(), "{} {broken}", kernel.name());
            let rows = key.row_far_mass;
            assert!(rows[..30].iter().all(|mass| mass.is_finite()), "{}", kernel.name());
        }
    }
}
