//! Every kernel of this machine against the float64 reference: one test body for any shape and any hook.

mod common;

use common::{EXPONENTIAL, ROW, Random, Rounded, Stored, check, close, supported};
use longsift_kernels::{
    AttentionShape, ElementType, HeadSums, Kernel, LogitRules, QueryKeySource, RowSample,
    STATISTICS_VERSION, WindowSums, attention_statistics, head_statistics, reference_rows,
};
use proptest::prelude::*;

fn shapes() -> impl Strategy<Value = AttentionShape> {
    let head_dim = prop_oneof![
        Just(8_usize),
        Just(24),
        Just(32),
        Just(64),
        Just(80),
        Just(96),
        Just(128),
        Just(192),
        Just(256)
    ];
    let group = prop_oneof![1_usize..=8, Just(16_usize)];
    (1_usize..420, group, 1_usize..=2, head_dim).prop_map(|(tokens, group, key_heads, head_dim)| {
        AttentionShape { tokens, query_heads: group * key_heads, key_heads, head_dim }
    })
}

/// Far distances at and next to the edges of blocks and tiles, and beyond the window.
fn distances() -> impl Strategy<Value = usize> {
    prop_oneof![
        0_usize..450,
        prop_oneof![
            Just(1_usize),
            Just(23),
            Just(24),
            Just(31),
            Just(32),
            Just(33),
            Just(95),
            Just(96),
            Just(97),
            Just(255),
            Just(256),
            Just(257),
            Just(287),
            Just(288),
            Just(289)
        ]
    ]
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "the hooks are independent")]
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
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

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
        // A window, a chunk or a steep slope concentrates far mass on few pairs, so errors do not average out; slopes
        // and query scales produce logits of up to a hundred.
        check(&shape, &rules(&hooks, &shape), distance, &source, 20.0);
    }

    #[test]
    fn the_number_of_threads_never_changes_a_bit(
        shape in shapes(), distance in distances(), seed: u64, hooks in hooks(),
    ) {
        let source = Stored::from_source(&Random { head_dim: shape.head_dim, seed, spread: 3.0 }, &shape);
        let rules = rules(&hooks, &shape);
        for kernel in supported() {
            let mut runs = [1, 2, 5].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool starts");
                bits(&pool.install(|| attention_statistics(kernel, &shape, &rules, distance, &source)))
            }).into_iter();
            let first = runs.next().expect("three runs");
            prop_assert!(runs.all(|run| run == first), "{}", kernel.name());
        }
    }

    #[test]
    fn grouping_of_heads_never_changes_a_bit(
        shape in shapes(), distance in distances(), seed: u64, hooks in hooks(), cut in any::<prop::sample::Index>(),
    ) {
        let source = Stored::from_source(&Random { head_dim: shape.head_dim, seed, spread: 3.0 }, &shape);
        let rules = rules(&hooks, &shape);
        let cut = cut.index(shape.key_heads + 1);
        for kernel in supported() {
            let whole = attention_statistics(kernel, &shape, &rules, distance, &source);
            let whole = WindowSums { row_far_mass: Vec::new(), ..whole };
            let mut parts = HeadSums::default();
            for heads in [0..cut, cut..shape.key_heads] {
                parts.append(&head_statistics(kernel, &shape, &rules, distance, &source, heads, None));
            }
            prop_assert_eq!(bits(&parts.window_sums(shape.tokens)), bits(&whole), "{}", kernel.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn integers_give_the_same_bits_on_every_processor(
        shape in shapes(), distance in distances(), seed: u64, hooks in hooks(), spread in 0.1_f32..200.0,
    ) {
        let source = Stored::from_source(&Random { head_dim: shape.head_dim, seed, spread }, &shape);
        let rules = rules(&hooks, &shape);
        let sums = |kernel| bits(&attention_statistics(kernel, &shape, &rules, distance, &source));
        let portable = sums(Kernel::PortableInt16);
        for kernel in [Kernel::Avx2Int16, Kernel::Avx512Int16] {
            if kernel.is_supported() {
                prop_assert_eq!(&sums(kernel), &portable, "{}", kernel.name());
            }
        }
    }
}

/// Results must agree not only between kernels of one machine, but also between machines.
#[test]
fn a_window_has_the_same_bits_on_every_machine() {
    let shape = AttentionShape { tokens: 401, query_heads: 6, key_heads: 2, head_dim: 80 };
    let source = Random { head_dim: 80, seed: 17, spread: 3.0 };
    let hooks = Hooks {
        softcap: Some(30.0),
        alibi: true,
        sinks: true,
        window: None,
        chunk: None,
        query_scale: false,
        causal: true,
    };
    let digests = |kernel: Kernel| {
        [LogitRules::causal(80), rules(&hooks, &shape)].map(|rules| {
            let sums = attention_statistics(kernel, &shape, &rules, 101, &source);
            let fold = |digest: u64, bits: u64| (digest ^ bits).wrapping_mul(0x0100_0000_01B3);
            bits(&sums).into_iter().fold(0xCBF2_9CE4_8422_2325, fold)
        })
    };
    for kernel in supported() {
        let want = match kernel.element_type() {
            ElementType::Int16 => INT16_BITS,
            _ if matches!(kernel, Kernel::Avx2F32 | Kernel::NeonF32) => F32_BITS,
            _ => continue,
        };
        let hint = "raise STATISTICS_VERSION: sums differ from those of this version";
        assert_eq!((STATISTICS_VERSION, digests(kernel)), (5, want), "{}: {hint}", kernel.name());
    }
}

/// Expected hashes of the window above, without hooks and with them, for `avx2-f32` and `neon-f32`; measured by the
/// former.
const F32_BITS: [u64; 2] = [14_011_111_900_873_234_489, 14_362_757_137_662_205_188];
/// Expected hashes for the integer kernels, measured by the portable one.
const INT16_BITS: [u64; 2] = [13_152_722_873_398_584_432, 4_096_809_094_865_782_337];

fn bits(sums: &WindowSums) -> Vec<u64> {
    let rows = &sums.row_far_mass;
    let all = sums.far_mass.iter().chain(&sums.far_square).chain(&sums.histogram).chain(rows);
    all.map(|value| value.to_bits()).collect()
}

/// The tests of this file use every kernel that the machine supports; these tests show which ones are skipped.
macro_rules! tested_here {
    ($($name:ident: $kernel:ident, $cfg:ident, $needs:literal;)*) => {$(
        #[test]
        #[cfg_attr(not($cfg), ignore = $needs)]
        fn $name() {
            assert!(supported().any(|kernel| kernel == Kernel::$kernel));
        }
    )*};
}

tested_here! {
    avx2_f32_is_tested_here: Avx2F32, longsift_avx2, "needs a processor with AVX2 and FMA";
    avx512_f32_is_tested_here: Avx512F32, longsift_avx512, "needs a processor with AVX-512";
    avx512_int16_is_tested_here: Avx512Int16, longsift_avx512_vnni, "needs a processor with AVX-512 VNNI";
    amx_bf16_is_tested_here: AmxBf16, longsift_amx, "needs a processor with AMX";
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
fn everything_visible_is_far_when_the_distance_is_zero() {
    let shape = AttentionShape { tokens: 130, query_heads: 2, key_heads: 2, head_dim: 24 };
    let source = Random { head_dim: 24, seed: 9, spread: 3.0 };
    for kernel in supported() {
        let sums = attention_statistics(kernel, &shape, &LogitRules::causal(24), 0, &source);
        assert!(sums.far_mass.iter().all(|mass| (mass - 130.0).abs() < 1e-9), "{sums:?}");
        assert!(sums.row_far_mass.iter().all(|mass| (mass - 1.0).abs() < 1e-12));
    }
}

#[test]
fn nothing_is_far_beyond_the_window_and_an_empty_window_gives_zeros() {
    let source = Random { head_dim: 8, seed: 9, spread: 3.0 };
    for kernel in supported() {
        let shape = AttentionShape { tokens: 50, query_heads: 2, key_heads: 1, head_dim: 8 };
        let sums = attention_statistics(kernel, &shape, &LogitRules::causal(8), 50, &source);
        assert_eq!((sums.far_mass, sums.far_square), (vec![0.0; 2], vec![0.0; 2]));
        let empty = AttentionShape { tokens: 0, ..shape };
        let sums = attention_statistics(kernel, &empty, &LogitRules::causal(8), 1, &source);
        assert_eq!((sums.far_mass, sums.histogram), (vec![0.0; 2], vec![0.0]));
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

/// `[query_heads, tokens]`: far mass and far sum of squares of every row, in float64.
fn reference_by_row(
    shape: &AttentionShape,
    rules: &LogitRules,
    distance: usize,
    source: &dyn QueryKeySource,
) -> [Vec<Vec<f64>>; 2] {
    let mut mass = vec![vec![0.0; shape.tokens]; shape.query_heads];
    let mut square = mass.clone();
    reference_rows(shape, rules, source, |head, row, probabilities| {
        for far in &probabilities[..(row + 1).saturating_sub(distance)] {
            mass[head][row] += far;
            square[head][row] += far * far;
        }
    });
    [mass, square]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn sampled_rows_are_rows_of_the_whole_and_their_weights_count(
        shape in shapes(), distance in distances(), hooks in hooks(), seed: u64, every in 1_usize..9,
    ) {
        let rules = rules(&hooks, &shape);
        let source = Stored::from_source(&Random { head_dim: shape.head_dim, seed, spread: 3.0 }, &shape);
        let positions: Vec<usize> = (0..shape.tokens)
            .filter(|row| (row * 7 + seed as usize % 11).is_multiple_of(every))
            .collect();
        prop_assume!(!positions.is_empty());
        let weights: Vec<f64> = positions.iter().map(|row| 1.0 + (row % 3) as f64).collect();
        let sample = RowSample { positions, weights };
        let exact = reference_by_row(&shape, &rules, distance, &source);
        let [bf16, int16] = [ElementType::Bf16, ElementType::Int16].map(|numbers| {
            let head_dim = shape.head_dim;
            let rounded = Rounded { source: &source, rules: &rules, head_dim, numbers };
            reference_by_row(&shape, &rules, distance, &Stored::from_source(&rounded, &shape))
        });
        let weighted = |rows: &[Vec<f64>]| -> Vec<f64> {
            let weighted_sum = |row: &Vec<f64>| {
                let pairs = sample.positions.iter().zip(&sample.weights);
                pairs.map(|(position, weight)| weight * row[*position]).sum()
            };
            rows.iter().map(weighted_sum).collect()
        };
        let by_row = |rows: &[Vec<f64>]| -> Vec<f64> {
            let groups = rows.chunks(shape.group()).flat_map(|heads| {
                let sum = |row: &usize| heads.iter().map(|head| head[*row]).sum::<f64>();
                sample.positions.iter().map(sum).collect::<Vec<f64>>()
            });
            groups.collect()
        };
        // A weighted sum may consist of one row, so a row's tolerance applies.
        for kernel in supported() {
            let heads = 0..shape.key_heads;
            let got =
                head_statistics(kernel, &shape, &rules, distance, &source, heads, Some(&sample));
            let ([mass, square], more) = match kernel.element_type() {
                ElementType::F32 => (&exact, 0.0),
                ElementType::Bf16 => (&bf16, EXPONENTIAL),
                ElementType::Int16 => (&int16, 0.0),
            };
            let context = format!("{} {shape:?} distance {distance} {rules:?}", kernel.name());
            close(&got.far_mass, &weighted(mass), ROW + more, 1e-9, &context);
            close(&got.far_square, &weighted(square), 2.0 * (ROW + more), 1e-9, &context);
            close(&got.row_far_mass, &by_row(mass), ROW + more, 1e-9, &context);
            close(&got.row_far_square, &by_row(square), 2.0 * (ROW + more), 1e-9, &context);
        }
    }
}
