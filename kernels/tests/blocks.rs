//! Attention between blocks against the float64 reference: any shape, any rules, boundaries anywhere.

mod common;

use std::collections::HashMap;
use std::ops::Range;

use common::{EXPONENTIAL, Random, Rounded, Stored, supported};
use longsift_kernels::{
    AttentionShape, BlockAttention, ElementType, Kernel, LogitRules, MAX_BLOCKS, OneHead,
    QueryKeySource, RowSample, reference_rows,
};
use proptest::prelude::*;

/// Absolute tolerance of a share of a block's attention, as in the conformance cases.
const SHARE: f64 = 2e-6;

fn shapes() -> impl Strategy<Value = AttentionShape> {
    let head_dim = prop_oneof![Just(8_usize), Just(32), Just(64), Just(80), Just(128)];
    (1_usize..420, 1_usize..=5, 1_usize..=2, head_dim).prop_map(
        |(tokens, group, key_heads, head_dim)| AttentionShape {
            tokens,
            query_heads: group * key_heads,
            key_heads,
            head_dim,
        },
    )
}

/// All kinds of rules; the shape uses as many of the slopes and sinks as it has heads.
fn rules() -> impl Strategy<Value = LogitRules> {
    let length = || proptest::option::of(1_usize..300);
    let some = |flag: bool, from: f32| {
        flag.then(|| (0..10).map(|head| from / (head + 1) as f32).collect::<Vec<f32>>())
    };
    (proptest::option::of(5.0_f32..60.0), any::<[bool; 3]>(), length(), length()).prop_map(
        move |(softcap, [alibi, sinks, causal], window, chunk)| LogitRules {
            softcap,
            alibi_slopes: some(alibi, 0.25),
            sinks: some(sinks, 4.0),
            window,
            chunk,
            causal,
            ..LogitRules::causal(8)
        },
    )
}

fn fitted(rules: &LogitRules, shape: &AttentionShape) -> LogitRules {
    let cut = |values: &Option<Vec<f32>>| values.as_ref().map(|v| v[..shape.query_heads].to_vec());
    LogitRules {
        alibi_slopes: cut(&rules.alibi_slopes),
        sinks: cut(&rules.sinks),
        scale: LogitRules::causal(shape.head_dim).scale,
        ..rules.clone()
    }
}

/// Ends of blocks of a window: some of its tokens, and its end.
fn ends(tokens: usize, cuts: &[prop::sample::Index]) -> Vec<usize> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| 1 + cut.index(tokens)).collect();
    ends.push(tokens);
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Attention of every row of every query head to each block, in float64.
struct Reference<'a> {
    shape: &'a AttentionShape,
    ends: &'a [usize],
    /// `[query_heads, tokens, blocks]`
    masses: Vec<f64>,
}

impl<'a> Reference<'a> {
    fn new(
        shape: &'a AttentionShape,
        rules: &LogitRules,
        ends: &'a [usize],
        source: &dyn QueryKeySource,
    ) -> Self {
        let blocks: Vec<usize> = blocks(ends);
        let mut masses = vec![0.0; shape.query_heads * shape.tokens * ends.len()];
        reference_rows(shape, rules, source, |head, row, probabilities| {
            let masses = &mut masses[(head * shape.tokens + row) * ends.len()..][..ends.len()];
            for (block, probability) in blocks.iter().zip(probabilities) {
                masses[*block] += probability;
            }
        });
        Self { shape, ends, masses }
    }

    /// Computes the reference for a source in the element type of `kernel`.
    fn rounded(
        kernel: Kernel,
        shape: &'a AttentionShape,
        rules: &LogitRules,
        ends: &'a [usize],
        source: &dyn QueryKeySource,
    ) -> Self {
        let (head_dim, numbers) = (shape.head_dim, kernel.element_type());
        let rounded = Rounded { source, rules, head_dim, numbers };
        Self::new(shape, rules, ends, &Stored::from_source(&rounded, shape))
    }

    /// Returns the shares of some heads, each row weighted by `weight`.
    fn shares(&self, heads: Range<usize>, weight: impl Fn(usize) -> f64) -> Vec<Option<f64>> {
        let (tokens, count) = (self.shape.tokens, self.ends.len());
        let (mut masses, mut rows) = (vec![0.0; count * count], vec![0.0; count]);
        for (row, block) in blocks(self.ends).into_iter().enumerate() {
            let weight = weight(row);
            rows[block] += weight;
            for head in heads.clone() {
                let of_row = &self.masses[(head * tokens + row) * count..][..count];
                let masses = &mut masses[block * count..][..count];
                masses.iter_mut().zip(of_row).for_each(|(sum, mass)| *sum += weight * mass);
            }
        }
        let share = |(cell, mass): (usize, f64)| {
            let rows = rows[cell / count];
            (rows > 0.0).then(|| mass / (rows * heads.len() as f64))
        };
        masses.into_iter().enumerate().map(share).collect()
    }
}

/// Returns the block of every token.
fn blocks(ends: &[usize]) -> Vec<usize> {
    let tokens = 0..*ends.last().expect("a window has a block");
    tokens.map(|token| ends.partition_point(|end| *end <= token)).collect()
}

fn assert_close(kernel: Kernel, got: &[Option<f64>], want: &[Option<f64>]) {
    assert_eq!(got.len(), want.len());
    let relative = match kernel.element_type() {
        ElementType::Bf16 => EXPONENTIAL,
        ElementType::F32 | ElementType::Int16 => 0.0,
    };
    for (cell, (got, want)) in got.iter().zip(want).enumerate() {
        match (got, want) {
            (Some(got), Some(want)) => {
                // Logits of a hundred carry errors of 1e-5, and a block may consist of one row.
                let tolerance = 10.0 * SHARE + relative * want;
                assert!((got - want).abs() <= tolerance, "{} {cell}: {got} {want}", kernel.name());
            }
            (got, want) => assert_eq!(got, want, "{} {cell}", kernel.name()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn shares_of_any_blocks_agree_with_float64(
        shape in shapes(), rules in rules(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..90),
        seed: u64, head in any::<prop::sample::Index>(), every in 1_usize..5,
    ) {
        let source = Stored::from_source(&Random { head_dim: shape.head_dim, seed, spread: 3.0 }, &shape);
        let (rules, ends) = (fitted(&rules, &shape), ends(shape.tokens, &cuts));
        let head = head.index(shape.query_heads);
        let positions: Vec<usize> =
            (0..shape.tokens).filter(|row| (row * 7 + seed as usize % 11).is_multiple_of(every)).collect();
        let weights = positions.iter().map(|row| 1.0 + (row % 3) as f64).collect();
        let sample = (!positions.is_empty()).then_some(RowSample { positions, weights });
        let weight = |row: usize| sample.as_ref().map_or(1.0, |sample| {
            sample.positions.binary_search(&row).map_or(0.0, |index| sample.weights[index])
        });
        let mut references = HashMap::new();
        for kernel in supported() {
            let want = references.entry(kernel.element_type()).or_insert_with(|| {
                let reference = Reference::rounded(kernel, &shape, &rules, &ends, &source);
                let heads = 0..shape.query_heads;
                [
                    reference.shares(heads.clone(), |_| 1.0),
                    reference.shares(heads, weight),
                    reference.shares(head..head + 1, |_| 1.0),
                ]
            });
            let whole = 0..shape.key_heads;
            let mut all = BlockAttention::new(&ends, None);
            all.add_heads(kernel, &shape, &rules, &source, whole.clone());
            assert_close(kernel, &all.shares(), &want[0]);

            let mut drawn = BlockAttention::new(&ends, sample.clone());
            drawn.add_heads(kernel, &shape, &rules, &source, whole);
            assert_close(kernel, &drawn.shares(), &want[1]);

            let (of_head, rules_of_head, one) = OneHead::new(&shape, &rules, &source, head);
            let mut single = BlockAttention::new(&ends, None);
            single.add_heads(kernel, &of_head, &rules_of_head, &one, 0..1);
            assert_close(kernel, &single.shares(), &want[2]);
        }
    }

    #[test]
    fn neither_threads_nor_groups_of_heads_change_a_bit(
        shape in shapes(), rules in rules(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30), seed: u64,
    ) {
        let source = Stored::from_source(&Random { head_dim: shape.head_dim, seed, spread: 3.0 }, &shape);
        let (rules, ends) = (fitted(&rules, &shape), ends(shape.tokens, &cuts));
        for kernel in supported() {
            let taken = |threads: usize, together: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool starts");
                let mut all = BlockAttention::new(&ends, None);
                for first in (0..shape.key_heads).step_by(together) {
                    let heads = first..shape.key_heads.min(first + together);
                    pool.install(|| all.add_heads(kernel, &shape, &rules, &source, heads));
                }
                all.shares().into_iter().map(|share| share.map(f64::to_bits)).collect::<Vec<_>>()
            };
            let first = taken(1, 2);
            prop_assert_eq!(&taken(3, 2), &first, "{}", kernel.name());
            prop_assert_eq!(&taken(2, 1), &first, "{}", kernel.name());
        }
    }

    #[test]
    fn uniform_shares_match_equal_keys(
        shape in shapes(), rules in rules(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..90),
    ) {
        let alike = LogitRules { softcap: None, alibi_slopes: None, sinks: None, ..fitted(&rules, &shape) };
        let ends = ends(shape.tokens, &cuts);
        let source = Random { head_dim: shape.head_dim, seed: 1, spread: 0.0 };
        let want = Reference::new(&shape, &alike, &ends, &source).shares(0..shape.query_heads, |_| 1.0);
        let got = BlockAttention::new(&ends, None).uniform_shares(&alike);
        assert_close(Kernel::PortableF32, &got, &want);
    }
}

#[test]
fn a_thousand_blocks_of_long_rows_keep_their_shares() {
    // Thousands of segments, logits that exceed the bound, and rows whose offset moves.
    let shape = AttentionShape { tokens: 2100, query_heads: 2, key_heads: 1, head_dim: 16 };
    let source = Stored::from_source(&Random { head_dim: 16, seed: 5, spread: 30.0 }, &shape);
    let rules = LogitRules::causal(16);
    let mut ends: Vec<usize> = (1..MAX_BLOCKS).map(|end| 2 * end).collect();
    ends.push(shape.tokens);
    let mut references = HashMap::new();
    for kernel in supported() {
        let want = references.entry(kernel.element_type()).or_insert_with(|| {
            Reference::rounded(kernel, &shape, &rules, &ends, &source).shares(0..2, |_| 1.0)
        });
        let mut all = BlockAttention::new(&ends, None);
        all.add_heads(kernel, &shape, &rules, &source, 0..1);
        let shares = all.shares();
        assert_close(kernel, &shares, want);
        for row in shares.chunks_exact(ends.len()) {
            let sum: f64 = row.iter().flatten().sum();
            assert!((sum - 1.0).abs() < 1e-12, "{}: {sum}", kernel.name());
        }
    }
}
