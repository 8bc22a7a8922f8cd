//! Checks of a device's kernels, shared by emulated and real devices.
//!
//! Tolerances. Against the float64 reference *of the rounded queries and keys*, only float32 sums and exponentials
//! differ, as on the CPU: [`MASS`], [`SQUARE`] and [`ROW`] are those of its kernels. The effect of rounding to bf16
//! itself is [`BF16_MASS`].

use std::ops::Range;

use half::bf16;
use longsift_kernels::cuda::{CudaDevice, DeviceError, Driver, Operands, WindowRequest};
use longsift_kernels::{
    AttentionShape, HeadNorms, HeadSums, Kernel, LogitRules, QueryKeySource, Rotation, RowSample,
    TableView, TableWindow, histogram_bins, reference_rows,
};

use crate::common::{MASS, ROW, SQUARE, deviate, splitmix};

/// Relative tolerance of a head's far mass against unrounded queries and keys. Rounding moves each product of two
/// numbers by up to 2⁻⁸ of itself, so a logit of standard deviation 3 by about 3 · 2⁻⁸ / √3 · √2 ≈ 0.01; the mass of a
/// row is a mean of such errors.
const BF16_MASS: f64 = 1e-2;

pub(crate) const KERNELS: [Kernel; 4] =
    [Kernel::CudaF32, Kernel::CudaV1Bf16, Kernel::CudaV2Bf16, Kernel::CudaV3Bf16];

/// Normal deviates, independent of how rows are split into calls; products have the standard deviation `spread ·
/// √head_dim`.
#[derive(Clone, Copy)]
pub(crate) struct Random {
    pub(crate) head_dim: usize,
    pub(crate) seed: u64,
    pub(crate) spread: f32,
    /// Relative growth of the spread from each row to the next.
    pub(crate) growth: f32,
    /// Trailing numbers that all key heads share.
    pub(crate) shared: usize,
}

impl Random {
    fn fill(&self, kind: u64, head: usize, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            for (d, value) in out.iter_mut().enumerate() {
                let common = kind == 2 && d >= self.head_dim - self.shared;
                let head = if common { 0xFFF } else { head };
                let mut state = self.seed
                    ^ (kind << 60)
                    ^ ((head as u64) << 40)
                    ^ ((row as u64) << 12)
                    ^ d as u64;
                *value = deviate(&mut state, self.spread) * (1.0 + self.growth * row as f32);
            }
        }
    }
}

impl QueryKeySource for Random {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(1, head, rows, out);
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(2, head, rows, out);
    }
}

/// Scaled queries and keys in a kernel's element type; their products are logits in units of log2 (or of the softcap).
struct Rounded<'a> {
    source: &'a dyn QueryKeySource,
    rules: &'a LogitRules,
    kernel: Kernel,
    head_dim: usize,
}

impl Rounded<'_> {
    fn round(&self, value: f32) -> f32 {
        match self.kernel {
            Kernel::CudaF32 => value,
            _ => bf16::from_f32(value).to_f32(),
        }
    }

    fn unit(rules: &LogitRules) -> f64 {
        rules.softcap.map_or(std::f64::consts::LOG2_E, |cap| 1.0 / f64::from(cap))
    }

    /// Returns the rules that turn its products into logits.
    fn rules(rules: &LogitRules) -> LogitRules {
        LogitRules { scale: (1.0 / Self::unit(rules)) as f32, query_scale: None, ..rules.clone() }
    }
}

impl QueryKeySource for Rounded<'_> {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.source.queries(head, rows.clone(), out);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            let of_row = self.rules.query_scale.as_ref().map_or(1.0, |scale| f64::from(scale[row]));
            let factor = Self::unit(self.rules) * f64::from(self.rules.scale) * of_row;
            for value in out {
                *value = self.round((f64::from(*value) * factor) as f32);
            }
        }
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.source.keys(head, rows, out);
        for value in out {
            *value = self.round(*value);
        }
    }
}

/// Returns the sums of some rows in float64.
fn reference(
    shape: &AttentionShape,
    rules: &LogitRules,
    distance: usize,
    source: &dyn QueryKeySource,
    sample: Option<&RowSample>,
) -> HeadSums {
    let bins = histogram_bins(shape.tokens);
    let sampled = sample.map_or(0, |sample| sample.positions.len());
    let mut heads = HeadSums {
        far_mass: vec![0.0; shape.query_heads],
        far_square: vec![0.0; shape.query_heads],
        histograms: vec![0.0; shape.key_heads * bins],
        row_far_mass: vec![0.0; shape.key_heads * sampled],
        row_far_square: vec![0.0; shape.key_heads * sampled],
    };
    reference_rows(shape, rules, source, |head, row, probabilities| {
        let index = |sample: &RowSample| sample.positions.binary_search(&row).ok();
        let Some(index) = sample.map_or(Some(row), index) else { return };
        let weight = sample.map_or(1.0, |sample| sample.weights[index]);
        let key_head = head / shape.group();
        for (key, &p) in probabilities[..=row].iter().enumerate() {
            let bin = (usize::BITS - (row - key).leading_zeros()) as usize;
            heads.histograms[key_head * bins + bin] += p * weight;
            if row - key >= distance {
                heads.far_mass[head] += p * weight;
                heads.far_square[head] += p * p * weight;
                if sample.is_some() {
                    heads.row_far_mass[key_head * sampled + index] += p;
                    heads.row_far_square[key_head * sampled + index] += p * p;
                }
            }
        }
    });
    heads
}

/// Returns the largest relative error above `floor`.
fn worst(got: &[f64], want: &[f64], floor: f64) -> f64 {
    assert_eq!(got.len(), want.len());
    let error = |(got, want): (&f64, &f64)| {
        let error = ((got - want).abs() - floor) / want.abs().max(f64::MIN_POSITIVE);
        if error.is_nan() { f64::INFINITY } else { error.max(0.0) }
    };
    got.iter().zip(want).map(error).fold(0.0, f64::max)
}

/// One window of random queries and keys.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) shape: AttentionShape,
    pub(crate) rules: LogitRules,
    pub(crate) distance: usize,
    pub(crate) random: Random,
    pub(crate) sample: Option<RowSample>,
    /// Factor of the tolerances.
    pub(crate) slack: f64,
}

impl Case {
    pub(crate) fn new(
        tokens: usize,
        heads: (usize, usize),
        head_dim: usize,
        distance: usize,
    ) -> Self {
        let shape = AttentionShape { tokens, query_heads: heads.0, key_heads: heads.1, head_dim };
        let random = Random {
            head_dim,
            seed: (tokens * 31 + head_dim) as u64,
            spread: 3.0,
            growth: 0.0,
            shared: 0,
        };
        let rules = LogitRules::causal(head_dim);
        Self { shape, rules, distance, random, sample: None, slack: 1.0 }
    }

    pub(crate) fn changed(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn measure<D: Driver>(
        &self,
        device: &CudaDevice<D>,
        key_heads: Range<usize>,
    ) -> Result<HeadSums, DeviceError> {
        device.measure(&WindowRequest {
            shape: &self.shape,
            rules: &self.rules,
            distance: self.distance,
            operands: Operands::Source { source: &self.random, shared: self.random.shared },
            sample: self.sample.as_ref(),
            key_heads,
        })
    }

    /// Compares all heads with the float64 reference of the kernel's own queries and keys.
    pub(crate) fn check<D: Driver>(&self, device: &CudaDevice<D>) {
        let kernel = device.kernel();
        let got = self.measure(device, 0..self.shape.key_heads).expect("the device measures it");
        let (source, rules) = (
            Rounded {
                source: &self.random,
                rules: &self.rules,
                kernel,
                head_dim: self.shape.head_dim,
            },
            Rounded::rules(&self.rules),
        );
        let want = reference(&self.shape, &rules, self.distance, &source, self.sample.as_ref());
        let far_rows = self.shape.tokens.saturating_sub(self.distance).max(1) as f64;
        compare(
            &got,
            &want,
            self.slack * (1.0 + 6.0 / far_rows.sqrt()),
            &format!(
                "{} {:?} distance {} {:?}",
                kernel.name(),
                self.shape,
                self.distance,
                self.rules
            ),
        );
    }
}

fn compare(got: &HeadSums, want: &HeadSums, slack: f64, context: &str) {
    let errors = [
        (worst(&got.far_mass, &want.far_mass, 1e-9), MASS),
        (worst(&got.far_square, &want.far_square, 1e-10), SQUARE),
        (worst(&got.histograms, &want.histograms, 1e-9), ROW),
        (worst(&got.row_far_mass, &want.row_far_mass, 1e-9), ROW),
        (worst(&got.row_far_square, &want.row_far_square, 1e-10), SQUARE),
    ];
    for (index, (error, tolerance)) in errors.into_iter().enumerate() {
        let what = ["far mass", "far squares", "histograms", "rows", "squares of rows"][index];
        assert!(
            error <= tolerance * slack,
            "{what}: {error:e} beyond {:e}; {context}",
            tolerance * slack
        );
    }
}

/// Sizes at and next to the edges of blocks and tiles, every width, GQA from 1 to 8.
pub(crate) fn shapes() -> Vec<Case> {
    vec![
        Case::new(1, (1, 1), 8, 1),
        Case::new(17, (2, 1), 24, 4),
        Case::new(64, (2, 2), 32, 16),
        Case::new(65, (3, 1), 64, 17),
        Case::new(127, (2, 1), 80, 64),
        Case::new(128, (1, 1), 96, 63),
        Case::new(129, (2, 1), 128, 65),
        Case::new(193, (1, 1), 192, 49),
        Case::new(150, (1, 1), 256, 128),
        Case::new(200, (8, 1), 16, 50),
        Case::new(331, (2, 2), 64, 84),
        Case::new(520, (1, 1), 32, 130),
        Case::new(300, (1, 1), 65, 0),
        Case::new(257, (1, 1), 100, 300),
    ]
}

/// Creates a sample whose rows stand for different numbers of rows.
fn sample(rows: impl IntoIterator<Item = usize>) -> RowSample {
    let positions: Vec<usize> = rows.into_iter().collect();
    let weights = positions.iter().map(|row| 1.0 + (row % 3) as f64).collect();
    RowSample { positions, weights }
}

/// Each hook separately, then all together.
pub(crate) fn hooks() -> Vec<Case> {
    let base = || Case::new(300, (4, 2), 64, 75).changed(|case| case.slack = 20.0);
    let slopes = |case: &mut Case| case.rules.alibi_slopes = Some(vec![0.25, 0.12, 0.06, 0.0]);
    let sinks = |case: &mut Case| case.rules.sinks = Some(vec![4.0, 0.0, -3.0, 200.0]);
    let scale = |case: &mut Case| {
        case.rules.query_scale =
            Some((0..300).map(|row| 1.0 + (row as f32).ln_1p() / 9.0).collect());
    };
    vec![
        base().changed(|case| case.rules.softcap = Some(20.0)),
        base().changed(slopes),
        base().changed(sinks),
        base().changed(scale),
        base().changed(|case| case.rules.window = Some(100)),
        base().changed(|case| case.rules.window = Some(0)),
        base().changed(|case| case.rules.chunk = Some(77)),
        base().changed(|case| case.rules.causal = false),
        base().changed(|case| (case.rules.causal, case.rules.chunk) = (false, Some(130))),
        base().changed(|case| (case.rules.causal, case.rules.window) = (false, Some(90))),
        base().changed(slopes).changed(sinks).changed(scale).changed(|case| {
            (case.rules.softcap, case.rules.window, case.rules.chunk) =
                (Some(15.0), Some(200), Some(256));
        }),
        base().changed(slopes).changed(|case| case.rules.causal = false),
        base().changed(|case| {
            case.sample = Some(sample([0, 3, 63, 64, 100, 101, 200, 255, 256, 299]));
        }),
        base().changed(scale).changed(|case| {
            case.sample = Some(sample((150..300).step_by(2)));
            case.rules.chunk = Some(160);
        }),
        // Logits of hundreds, whose offset moves within a row.
        base().changed(|case| (case.random.spread, case.slack) = (60.0, 200.0)),
        base().changed(|case| {
            (case.random.spread, case.slack) = (60.0, 200.0);
            case.rules.causal = false;
        }),
    ]
}

/// Windows of many whole tiles whose logits are bounded, not bounded, or bounded in the first tiles only; rows of one
/// and of two heads in a block.
pub(crate) fn bounds() -> Vec<Case> {
    let base = |heads| Case::new(900, (heads, 1), 64, 225).changed(|case| case.slack = 20.0);
    vec![
        base(2).changed(|case| case.random.spread = 0.5),
        base(2).changed(|case| case.random.spread = 12.0),
        base(2).changed(|case| (case.random.spread, case.random.growth) = (0.7, 0.01)),
        base(3).changed(|case| (case.random.spread, case.random.growth) = (0.7, 0.01)),
    ]
}

/// Properties of any single device.
pub(crate) fn heads_in_any_grouping_give_the_same_bits<D: Driver>(device: &CudaDevice<D>) {
    let case = Case::new(220, (6, 3), 64, 55);
    let whole = case.measure(device, 0..3).expect("the device measures it");
    for split in [1, 2] {
        let (a, b) = (case.measure(device, 0..split), case.measure(device, split..3));
        let (mut a, b) = (a.expect("it fits"), b.expect("it fits"));
        a.append(&b);
        assert_eq!(a, whole, "{}", device.kernel().name());
    }
}

/// A shared tail of the keys, stored once, gives the same result as the tail in every head.
pub(crate) fn a_shared_tail_of_the_keys_changes_no_bit<D: Driver>(device: &CudaDevice<D>) {
    for (head_dim, shared) in [(96, 32), (128, 64), (192, 64), (72, 8)] {
        let shared =
            Case::new(150, (2, 2), head_dim, 40).changed(|case| case.random.shared = shared);
        let got = shared.measure(device, 0..2).expect("it fits");
        let expanded = device.measure(&WindowRequest {
            shape: &shared.shape,
            rules: &shared.rules,
            distance: shared.distance,
            operands: Operands::Source { source: &shared.random, shared: 0 },
            sample: None,
            key_heads: 0..2,
        });
        assert_eq!(got, expanded.expect("it fits"), "{} {head_dim}", device.kernel().name());
        shared.check(device);
    }
}

/// A `NaN` anywhere makes the sums of its head `NaN`, never a plausible number.
pub(crate) fn a_nan_shows_in_the_sums<D: Driver>(device: &CudaDevice<D>) {
    struct Broken(Random, usize);
    impl QueryKeySource for Broken {
        fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
            self.0.queries(head, rows.clone(), out);
            for (row, out) in rows.zip(out.chunks_exact_mut(32)) {
                if row == self.1 {
                    out[5] = f32::NAN;
                }
            }
        }
        fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
            self.0.keys(head, rows, out);
        }
    }
    for row in [40, 100] {
        let case = Case::new(130, (1, 1), 32, 30);
        let all = RowSample { positions: (0..130).collect(), weights: vec![1.0; 130] };
        let sums = device.measure(&WindowRequest {
            shape: &case.shape,
            rules: &case.rules,
            distance: 30,
            operands: Operands::Source { source: &Broken(case.random, row), shared: 0 },
            sample: Some(&all),
            key_heads: 0..1,
        });
        let sums = sums.expect("it fits");
        assert!(sums.far_mass[0].is_nan() && sums.far_square[0].is_nan());
        let rows = sums.row_far_mass;
        assert!(rows.iter().enumerate().all(|(at, mass)| mass.is_nan() == (at == row)), "{rows:?}");
    }
}

/// A layer-zero table with rotary embeddings of all kinds, compared with the CPU's gathering and the float64 reference.
pub(crate) struct TableCase {
    pub(crate) rotation: Option<Rotation>,
    pub(crate) norms: Option<HeadNorms>,
    pub(crate) query_scale: bool,
}

pub(crate) const TABLE_SHAPE: AttentionShape =
    AttentionShape { tokens: 140, query_heads: 4, key_heads: 2, head_dim: 48 };

pub(crate) fn table_cases() -> Vec<TableCase> {
    use longsift_kernels::RopeStyle::{Half, Interleaved};
    let rotation = |style, pairs: usize, attention_factor| {
        let frequency = |pair: usize| 10_000.0_f32.powf(-(pair as f32) / pairs as f32);
        let inverse_frequencies = (0..pairs).map(frequency).collect();
        Some(Rotation { style, inverse_frequencies, attention_factor })
    };
    let weight = |seed: u64| {
        (0..48).map(|d| 0.5 + (splitmix(&mut (seed + d)) >> 40) as f32 / (1 << 24) as f32).collect()
    };
    let norms = HeadNorms { epsilon: 1e-5, query_weight: weight(1), key_weight: weight(2) };
    let plain = |rotation| TableCase { rotation, norms: None, query_scale: false };
    vec![
        plain(None),
        plain(rotation(Half, 24, 1.0)),
        plain(rotation(Interleaved, 24, 1.0)),
        plain(rotation(Half, 8, 1.3)),
        TableCase { query_scale: true, ..plain(rotation(Interleaved, 16, 0.8)) },
        TableCase { norms: Some(norms), ..plain(rotation(Half, 24, 1.0)) },
    ]
}

/// A table `[50, (4 + 2) · 48]`, and some of its ids.
pub(crate) fn random_table() -> (Vec<f32>, Vec<u32>) {
    let mut table = vec![0.0; 50 * 288];
    Random { head_dim: 288, seed: 77, spread: 1.5, growth: 0.0, shared: 0 }.keys(
        0,
        0..50,
        &mut table,
    );
    let ids = (0..140_u64).map(|at| (splitmix(&mut (at + 5)) % 50) as u32).collect();
    (table, ids)
}

impl TableCase {
    fn rules(&self) -> LogitRules {
        let scales = (0..140).map(|row| 1.0 + row as f32 / 140.0).collect();
        LogitRules { query_scale: self.query_scale.then_some(scales), ..LogitRules::causal(48) }
    }

    /// `table` is read by the CPU; the device holds the same.
    pub(crate) fn check<D: Driver>(
        &self,
        device: &CudaDevice<D>,
        table: TableView<'_>,
        ids: &[u32],
    ) -> f64 {
        let (rules, kernel) = (self.rules(), device.kernel());
        let got = device.measure(&WindowRequest {
            shape: &TABLE_SHAPE,
            rules: &rules,
            distance: 35,
            operands: Operands::Table {
                ids,
                rotation: self.rotation.as_ref(),
                norms: self.norms.as_ref(),
            },
            sample: None,
            key_heads: 0..2,
        });
        let got = got.expect("the device measures it");
        let rope = self.rotation.as_ref().map(|rotation| rotation.table(140));
        let (rope, norms) = (rope.as_ref(), self.norms.as_ref());
        let window = TableWindow::new(table, 288, ids, &TABLE_SHAPE, rope, norms);
        let rounded = Rounded { source: &window, rules: &rules, kernel, head_dim: 48 };
        let want = reference(&TABLE_SHAPE, &Rounded::rules(&rules), 35, &rounded, None);
        // With norms, the last bit before rounding may differ, which can become a whole bf16 step.
        let slack = if self.norms.is_some() { 200.0 } else { 4.0 };
        compare(&got, &want, slack, &format!("{} {:?}", kernel.name(), self.rotation));
        let exact = reference(&TABLE_SHAPE, &rules, 35, &window, None);
        let error = worst(&got.far_mass, &exact.far_mass, 0.0);
        assert!(error < BF16_MASS, "{}: {error:e}", kernel.name());
        error
    }
}
