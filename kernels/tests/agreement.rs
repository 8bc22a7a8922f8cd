//! Every kernel this processor has against the float64 reference: one body, any shape, any hook.
//!
//! Tolerances. A float32 logit of size `l` carries an error of about `l · 1e-7`, which a probability shows as a
//! relative error; averaged over the far rows and keys of random input it stays below [`MASS`] for logits of a few units.
//! The square of a probability has twice the error and is dominated by fewer keys: [`SQUARE`]. Where only a handful of
//! rows have far keys there is little to average: [`few_rows`].

use std::ops::Range;

use longsift_kernels::{
    AttentionShape, HeadSums, Kernel, LogitRules, Measure, QueryKeySource, RowSample, WindowSums,
    attention_statistics, head_statistics, reference_rows, reference_statistics,
};
use proptest::prelude::*;

/// Relative, of a head's far mass, logits of standard deviation 3.
const MASS: f64 = 1e-6;
/// Relative, of a head's far sum of squares, logits of standard deviation 3.
const SQUARE: f64 = 1e-5;

/// Relative, of one row's far mass or of a histogram bin, which may hold the far end of a few rows: no averaging helps.
const ROW: f64 = 1e-5;

/// Factor of the tolerances where `rows` rows have far keys: an average of few errors is not much smaller than one.
fn few_rows(rows: usize) -> f64 {
    1.0 + 6.0 / (rows.max(1) as f64).sqrt()
}

/// Random queries and keys whose products have the standard deviation `spread · √head_dim`.
struct Random {
    head_dim: usize,
    seed: u64,
    spread: f32,
}

impl Random {
    /// One normal deviate per (kind, head, row, dimension), the same in whatever pieces they are read.
    fn fill(&self, kind: u64, head: usize, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            let mut state = self.seed ^ (kind << 60) ^ ((head as u64) << 40) ^ ((row as u64) << 12);
            for value in out {
                let uniform = (0..4)
                    .map(|_| (splitmix(&mut state) >> 40) as f32 / (1 << 24) as f32)
                    .sum::<f32>();
                *value = (uniform - 2.0) * 3.0_f32.sqrt() * self.spread.sqrt();
            }
        }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl QueryKeySource for Random {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(1, head, rows, out);
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(2, head, rows, out);
    }
}

fn supported() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported())
}

/// The shared test body. `slack` multiplies the tolerances where logits are large.
fn check(
    shape: &AttentionShape,
    rules: &LogitRules,
    distance: usize,
    source: &dyn QueryKeySource,
    slack: f64,
) {
    let measure = Measure { distance, rows: true };
    let slack = slack * few_rows(shape.tokens.saturating_sub(distance));
    let want = reference_statistics(shape, rules, &measure, source);
    for kernel in supported() {
        let got = attention_statistics(kernel, shape, rules, &measure, source);
        let context = format!("{} {shape:?} distance {distance} {rules:?}", kernel.name());
        close(&got.far_mass, &want.far_mass, MASS * slack, 1e-9, &context);
        close(&got.far_square, &want.far_square, SQUARE * slack, 1e-10, &context);
        close(&got.histogram, &want.histogram, ROW * slack, 1e-9, &context);
        let rows = |sums: &WindowSums| sums.row_far_mass.clone().expect("asked for");
        close(&rows(&got), &rows(&want), ROW * slack, 1e-9, &context);
        assert!((got.histogram.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{context}");
    }
}

fn close(got: &[f64], want: &[f64], relative: f64, absolute: f64, context: &str) {
    assert_eq!(got.len(), want.len(), "{context}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs();
        assert!(
            error <= relative * want.abs() + absolute,
            "[{index}] {got:e} for {want:e}: {error:e} off; {context}"
        );
    }
}

fn shapes() -> impl Strategy<Value = AttentionShape> {
    let head_dim = prop_oneof![
        Just(8_usize),
        Just(24),
        Just(32),
        Just(64),
        Just(80),
        Just(128),
        Just(192),
        Just(256)
    ];
    (1_usize..420, 1_usize..=8, 1_usize..=3, head_dim).prop_map(
        |(tokens, group, key_heads, head_dim)| AttentionShape {
            tokens,
            query_heads: group * key_heads,
            key_heads,
            head_dim,
        },
    )
}

/// Far distances on and beside the edges of blocks and tiles, and beyond the window.
fn distances() -> impl Strategy<Value = usize> {
    prop_oneof![
        0_usize..450,
        prop_oneof![Just(1_usize), Just(47), Just(48), Just(49), Just(255), Just(256), Just(257)]
    ]
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each hook is on or off by itself")]
struct Hooks {
    softcap: Option<f32>,
    alibi: bool,
    sinks: bool,
    window: Option<usize>,
    chunk: Option<usize>,
    query_scale: bool,
    causal: bool,
}

fn hooks() -> impl Strategy<Value = Hooks> {
    let length = || proptest::option::of(1_usize..300);
    (
        proptest::option::of(1.0_f32..60.0),
        any::<bool>(),
        any::<bool>(),
        length(),
        length(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(softcap, alibi, sinks, window, chunk, query_scale, causal)| Hooks {
            softcap,
            alibi,
            sinks,
            window,
            chunk,
            query_scale,
            causal,
        })
}

fn rules(hooks: &Hooks, shape: &AttentionShape) -> LogitRules {
    let per_head =
        |from: f32| (0..shape.query_heads).map(|head| from / (head + 1) as f32).collect();
    LogitRules {
        softcap: hooks.softcap,
        alibi_slopes: hooks.alibi.then(|| per_head(0.25)),
        sinks: hooks.sinks.then(|| per_head(4.0)),
        window: hooks.window,
        chunk: hooks.chunk,
        query_scale: hooks
            .query_scale
            .then(|| (0..shape.tokens).map(|row| 1.0 + (row as f32).ln_1p() / 9.0).collect()),
        causal: hooks.causal,
        ..LogitRules::causal(shape.head_dim)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn any_shape_agrees_with_float64(shape in shapes(), distance in distances(), seed: u64, causal: bool) {
        let source = Random { head_dim: shape.head_dim, seed, spread: 3.0 };
        let rules = LogitRules { causal, ..LogitRules::causal(shape.head_dim) };
        check(&shape, &rules, distance, &source, 1.0);
    }

    #[test]
    fn any_combination_of_hooks_agrees_with_float64(
        shape in shapes(), distance in distances(), seed: u64, hooks in hooks(),
    ) {
        let source = Random { head_dim: shape.head_dim, seed, spread: 3.0 };
        // A window, a chunk or a steep slope leaves far mass to a few pairs, so nothing averages their errors out; slopes
        // and query scales make logits of up to a hundred.
        check(&shape, &rules(&hooks, &shape), distance, &source, 20.0);
    }

    #[test]
    fn the_number_of_threads_never_changes_a_bit(
        shape in shapes(), distance in distances(), seed: u64, hooks in hooks(),
    ) {
        let source = Random { head_dim: shape.head_dim, seed, spread: 3.0 };
        let (rules, measure) = (rules(&hooks, &shape), Measure { distance, rows: true });
        for kernel in supported() {
            let mut runs = [1, 2, 5].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool starts");
                bits(&pool.install(|| attention_statistics(kernel, &shape, &rules, &measure, &source)))
            }).into_iter();
            let first = runs.next().expect("three runs");
            prop_assert!(runs.all(|run| run == first), "{}", kernel.name());
        }
    }

    #[test]
    fn how_the_heads_are_grouped_never_changes_a_bit(
        shape in shapes(), distance in distances(), seed: u64, hooks in hooks(), cut in any::<prop::sample::Index>(),
    ) {
        let source = Random { head_dim: shape.head_dim, seed, spread: 3.0 };
        let (rules, measure) = (rules(&hooks, &shape), Measure { distance, rows: false });
        let cut = cut.index(shape.key_heads + 1);
        for kernel in supported() {
            let whole = attention_statistics(kernel, &shape, &rules, &measure, &source);
            let mut parts = HeadSums::default();
            for heads in [0..cut, cut..shape.key_heads] {
                parts.append(&head_statistics(kernel, &shape, &rules, distance, &source, heads, None));
            }
            prop_assert_eq!(bits(&parts.window_sums(shape.tokens)), bits(&whole), "{}", kernel.name());
        }
    }
}

fn bits(sums: &WindowSums) -> Vec<u64> {
    let rows = sums.row_far_mass.iter().flatten();
    let all = sums.far_mass.iter().chain(&sums.far_square).chain(&sums.histogram).chain(rows);
    all.map(|value| value.to_bits()).collect()
}

#[test]
fn a_window_of_a_thousand_tokens_agrees_with_float64() {
    for (tokens, head_dim) in [(1000, 128), (961, 64), (1009, 80)] {
        let shape = AttentionShape { tokens, query_heads: 4, key_heads: 2, head_dim };
        let source = Random { head_dim, seed: 11, spread: 3.0 };
        check(&shape, &LogitRules::causal(head_dim), tokens - 3 * (tokens / 4), &source, 1.0);
    }
}

#[test]
fn logits_beyond_a_hundred_agree_with_float64() {
    let shape = AttentionShape { tokens: 600, query_heads: 3, key_heads: 1, head_dim: 64 };
    let source = Random { head_dim: 64, seed: 5, spread: 60.0 };
    let mut largest = 0.0_f32;
    let (mut query, mut key) = (vec![0.0; 64], vec![0.0; 64 * 600]);
    source.keys(0, 0..600, &mut key);
    source.queries(0, 599..600, &mut query);
    for key in key.chunks_exact(64) {
        largest = largest.max(query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() / 8.0);
    }
    assert!(largest > 100.0, "the case needs large logits, has {largest}");
    // One float32 step of a logit of 200 is 1.5e-5: the tolerance grows with the logits.
    for causal in [true, false] {
        let rules = LogitRules { causal, ..LogitRules::causal(64) };
        for distance in [0, 1, 150, 599] {
            check(&shape, &rules, distance, &source, 60.0);
        }
    }
}

/// A key bias as large as Qwen2's moves every logit of a row by hundreds and must cancel.
#[test]
fn a_large_common_offset_cancels() {
    struct Biased(Random);
    impl QueryKeySource for Biased {
        fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
            self.0.queries(head, rows, out);
        }
        fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
            self.0.keys(head, rows, out);
            for value in out {
                *value += 40.0;
            }
        }
    }
    let shape = AttentionShape { tokens: 400, query_heads: 2, key_heads: 1, head_dim: 32 };
    let source = Biased(Random { head_dim: 32, seed: 3, spread: 3.0 });
    check(&shape, &LogitRules::causal(32), 100, &source, 100.0);
}

#[test]
fn everything_visible_is_far_when_the_distance_is_zero() {
    let shape = AttentionShape { tokens: 130, query_heads: 2, key_heads: 2, head_dim: 24 };
    let source = Random { head_dim: 24, seed: 9, spread: 3.0 };
    for kernel in supported() {
        let measure = Measure { distance: 0, rows: true };
        let sums = attention_statistics(kernel, &shape, &LogitRules::causal(24), &measure, &source);
        assert!(sums.far_mass.iter().all(|mass| (mass - 130.0).abs() < 1e-9), "{sums:?}");
        assert!(
            sums.row_far_mass.expect("asked for").iter().all(|mass| (mass - 1.0).abs() < 1e-12)
        );
    }
}

#[test]
fn nothing_is_far_beyond_the_window_and_an_empty_window_gives_zeros() {
    let source = Random { head_dim: 8, seed: 9, spread: 3.0 };
    for kernel in supported() {
        let shape = AttentionShape { tokens: 50, query_heads: 2, key_heads: 1, head_dim: 8 };
        let sums = attention_statistics(
            kernel,
            &shape,
            &LogitRules::causal(8),
            &Measure { distance: 50, rows: false },
            &source,
        );
        assert_eq!((sums.far_mass, sums.far_square), (vec![0.0; 2], vec![0.0; 2]));
        let empty = AttentionShape { tokens: 0, ..shape };
        let sums = attention_statistics(
            kernel,
            &empty,
            &LogitRules::causal(8),
            &Measure { distance: 1, rows: true },
            &source,
        );
        assert_eq!((sums.far_mass, sums.histogram), (vec![0.0; 2], vec![0.0]));
    }
}

#[test]
fn a_query_that_is_not_a_number_shows_in_the_sums() {
    struct Broken;
    impl QueryKeySource for Broken {
        fn queries(&self, _: usize, rows: Range<usize>, out: &mut [f32]) {
            out.fill(if rows.contains(&70) { f32::NAN } else { 1.0 });
        }
        fn keys(&self, _: usize, _: Range<usize>, out: &mut [f32]) {
            out.fill(1.0);
        }
    }
    let shape = AttentionShape { tokens: 100, query_heads: 1, key_heads: 1, head_dim: 8 };
    for kernel in supported() {
        let measure = Measure { distance: 25, rows: false };
        let sums = attention_statistics(kernel, &shape, &LogitRules::causal(8), &measure, &Broken);
        assert!(sums.far_mass[0].is_nan() && sums.far_square[0].is_nan());
    }
}

#[test]
fn reference_rows_are_probabilities_over_the_visible_keys() {
    let shape = AttentionShape { tokens: 40, query_heads: 2, key_heads: 1, head_dim: 8 };
    let source = Random { head_dim: 8, seed: 1, spread: 3.0 };
    let mut seen = Vec::new();
    let rules = LogitRules { window: Some(7), ..LogitRules::causal(8) };
    reference_rows(&shape, &rules, &source, |head, row, probabilities| {
        seen.push((head, row));
        assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let visible =
            probabilities.iter().enumerate().filter(|(_, p)| **p > 0.0).map(|(key, _)| key);
        assert!(visible.eq(row.saturating_sub(6)..=row));
    });
    assert!(seen.into_iter().eq((0..2).flat_map(|head| (0..40).map(move |row| (head, row)))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn sampled_rows_are_rows_of_the_whole_and_their_weights_count(
        shape in shapes(), distance in distances(), hooks in hooks(), seed: u64, every in 1_usize..9,
    ) {
        let source = Random { head_dim: shape.head_dim, seed, spread: 3.0 };
        let rules = rules(&hooks, &shape);
        let positions: Vec<usize> =
            (0..shape.tokens).filter(|row| (row * 7 + seed as usize % 11).is_multiple_of(every)).collect();
        prop_assume!(!positions.is_empty());
        let weights: Vec<f64> = positions.iter().map(|row| 1.0 + (row % 3) as f64).collect();
        let sample = RowSample { positions, weights };
        let mut mass = vec![vec![0.0; shape.tokens]; shape.query_heads];
        let mut square = mass.clone();
        reference_rows(&shape, &rules, &source, |head, row, probabilities| {
            for far in &probabilities[..(row + 1).saturating_sub(distance)] {
                mass[head][row] += far;
                square[head][row] += far * far;
            }
        });
        let slack = few_rows(sample.positions.len());
        for kernel in supported() {
            let heads = 0..shape.key_heads;
            let got =
                head_statistics(kernel, &shape, &rules, distance, &source, heads, Some(&sample));
            let context = format!("{} {shape:?} distance {distance} {rules:?}", kernel.name());
            let weighted = |rows: &[Vec<f64>]| -> Vec<f64> {
                let of = |row: &Vec<f64>| {
                    let pairs = sample.positions.iter().zip(&sample.weights);
                    pairs.map(|(position, weight)| weight * row[*position]).sum()
                };
                rows.iter().map(of).collect()
            };
            let by_row = |rows: &[Vec<f64>]| -> Vec<f64> {
                let groups = rows.chunks(shape.group()).flat_map(|heads| {
                    let of = |row: &usize| heads.iter().map(|head| head[*row]).sum::<f64>();
                    sample.positions.iter().map(of).collect::<Vec<f64>>()
                });
                groups.collect()
            };
            close(&got.far_mass, &weighted(&mass), MASS * slack, 1e-9, &context);
            close(&got.far_square, &weighted(&square), SQUARE * slack, 1e-10, &context);
            close(&got.row_far_mass, &by_row(&mass), ROW * slack, 1e-9, &context);
            close(&got.row_far_square, &by_row(&square), ROW * slack, 1e-9, &context);
        }
    }
}
