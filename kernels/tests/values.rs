//! Attention with values against dense float64: any shape, any rules, any float32 kernel, any partition of the rows.

mod common;

use std::ops::Range;

use common::{Random, deviate, supported};
use longsift_kernels::{
    AttendScratch, AttentionShape, ElementType, Kernel, KeyValues, LogitRules, QueryBlock,
    QueryKeySource, reference_rows,
};
use proptest::prelude::*;

/// Absolute tolerance of a mean of values of standard deviation 1, with logits of standard deviation 3. A logit's
/// relative error of about 1e-7 becomes a weight's relative error.
const MEAN: f64 = 5e-6;

struct Window {
    shape: AttentionShape,
    rules: LogitRules,
    source: Random,
    /// `[tokens, key_heads · head_dim]`
    values: Vec<f32>,
}

impl Window {
    fn new(shape: AttentionShape, rules: LogitRules) -> Self {
        let spread =
            3.0 / (shape.head_dim as f32).sqrt() / (rules.scale * (shape.head_dim as f32).sqrt());
        let source = Random { head_dim: shape.head_dim, seed: 7, spread };
        let mut state = 3;
        let count = shape.tokens * shape.key_heads * shape.head_dim;
        let values = (0..count).map(|_| deviate(&mut state, 1.0)).collect();
        Self { shape, rules, source, values }
    }

    /// Concatenates rows of all heads, `[rows, heads · head_dim]`.
    fn joined(
        &self,
        heads: usize,
        rows: &Range<usize>,
        read: impl Fn(usize, &mut [f32]),
    ) -> Vec<f32> {
        let head_dim = self.shape.head_dim;
        let (mut one, mut all) =
            (vec![0.0; rows.len() * head_dim], vec![0.0; rows.len() * heads * head_dim]);
        for head in 0..heads {
            read(head, &mut one);
            for (row, values) in one.chunks_exact(head_dim).enumerate() {
                all[(row * heads + head) * head_dim..][..head_dim].copy_from_slice(values);
            }
        }
        all
    }

    fn packed(&self, kernel: Kernel) -> KeyValues {
        let mut packed = KeyValues::new(kernel, &self.shape);
        let width = self.shape.key_heads * self.shape.head_dim;
        packed.fill(|rows, keys, values| {
            let read = |head, out: &mut [f32]| self.source.keys(head, rows.clone(), out);
            keys.copy_from_slice(&self.joined(self.shape.key_heads, &rows, read));
            values.copy_from_slice(&self.values[rows.start * width..rows.end * width]);
        });
        packed
    }

    /// Computes the result in blocks of `rows` rows.
    fn attended(&self, packed: &KeyValues, rows: usize) -> Vec<f32> {
        let (width, mut out) = (self.shape.query_heads * self.shape.head_dim, Vec::new());
        let mut scratch = AttendScratch::default();
        for start in (0..self.shape.tokens).step_by(rows) {
            let rows = start..self.shape.tokens.min(start + rows);
            let read = |head, out: &mut [f32]| self.source.queries(head, rows.clone(), out);
            let queries = self.joined(self.shape.query_heads, &rows, read);
            let mut block = vec![0.0; rows.len() * width];
            let query_block = QueryBlock { rows, queries: &queries };
            packed.attend(&self.rules, &query_block, &mut scratch, &mut block);
            out.extend(block);
        }
        out
    }

    /// Computes the result in float64, row by row, from complete rows of probabilities.
    fn dense(&self) -> Vec<f64> {
        let AttentionShape { tokens, query_heads, key_heads, head_dim } = self.shape;
        let mut out = vec![0.0; tokens * query_heads * head_dim];
        reference_rows(&self.shape, &self.rules, &self.source, |head, row, probabilities| {
            let to = &mut out[(row * query_heads + head) * head_dim..][..head_dim];
            for (key, probability) in probabilities.iter().enumerate() {
                let from = (key * key_heads + head / self.shape.group()) * head_dim;
                for (to, value) in to.iter_mut().zip(&self.values[from..from + head_dim]) {
                    *to += probability * f64::from(*value);
                }
            }
        });
        out
    }
}

fn float_kernels() -> Vec<Kernel> {
    supported().filter(|kernel| kernel.element_type() == ElementType::F32).collect()
}

fn furthest(got: &[f32], want: &[f64]) -> f64 {
    got.iter()
        .zip(want)
        .map(|(got, want)| (f64::from(*got) - want).abs())
        .fold(0.0, |most, off| if off.is_nan() { f64::INFINITY } else { most.max(off) })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_kernel_agrees_with_dense_float64_however_the_rows_are_cut(
        tokens in 1_usize..420,
        group in 1_usize..=4,
        key_heads in 1_usize..=2,
        head_dim in prop_oneof![Just(8_usize), Just(14), Just(64), Just(80), Just(128)],
        softcap in prop::option::of(2_f32..20.0),
        alibi in any::<bool>(),
        window in prop::option::of(1_usize..300),
        causal in prop::bool::weighted(0.8),
        rows in prop_oneof![Just(1_usize), Just(40), Just(96), Just(500)],
    ) {
        let shape = AttentionShape { tokens, query_heads: group * key_heads, key_heads, head_dim };
        let slopes = (0..shape.query_heads).map(|head| 0.5 / (head + 1) as f32).collect();
        let rules = LogitRules {
            softcap,
            // Biases that grow towards later keys would make logits, and errors, unboundedly large.
            alibi_slopes: (alibi && causal).then_some(slopes),
            window,
            causal,
            ..LogitRules::causal(head_dim)
        };
        let window = Window::new(shape, rules);
        let want = window.dense();
        for kernel in float_kernels() {
            let packed = window.packed(kernel);
            let got = window.attended(&packed, 96);
            let off = furthest(&got, &want);
            prop_assert!(off <= MEAN, "{} is off by {off:e}", kernel.name());
            prop_assert_eq!(bits(&got), bits(&window.attended(&packed, rows)), "{}", kernel.name());
        }
    }
}

#[test]
fn a_long_row_keeps_its_digits_and_a_far_larger_last_logit_takes_over() {
    let shape = AttentionShape { tokens: 5000, query_heads: 1, key_heads: 1, head_dim: 64 };
    let sharp = LogitRules { scale: 40.0, ..LogitRules::causal(64) };
    for (rules, tolerance) in [(LogitRules::causal(64), MEAN), (sharp, 2e-3)] {
        let mut window = Window::new(shape.clone(), LogitRules::causal(64));
        window.rules = rules;
        let want = window.dense();
        for kernel in float_kernels() {
            let off = furthest(&window.attended(&window.packed(kernel), 96), &want);
            println!("{} with the scale {}: {off:e}", kernel.name(), window.rules.scale);
            assert!(off <= tolerance, "{} is off by {off:e}", kernel.name());
        }
    }
}

#[test]
fn any_number_of_threads_packs_the_same_keys_and_values() {
    let shape = AttentionShape { tokens: 700, query_heads: 4, key_heads: 2, head_dim: 24 };
    let window = Window::new(shape, LogitRules::causal(24));
    for kernel in float_kernels() {
        let attended_on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| bits(&window.attended(&window.packed(kernel), 96)))
        };
        assert_eq!(attended_on(1), attended_on(5), "{}", kernel.name());
    }
}

#[test]
fn a_nan_value_reaches_every_row_that_sees_it() {
    let shape = AttentionShape { tokens: 400, query_heads: 1, key_heads: 1, head_dim: 8 };
    let mut window = Window::new(shape, LogitRules::causal(8));
    window.values[20 * 8] = f32::NAN;
    for kernel in float_kernels() {
        let got = window.attended(&window.packed(kernel), 96);
        assert!((20..400).all(|row| got[row * 8].is_nan()), "{}", kernel.name());
    }
}
