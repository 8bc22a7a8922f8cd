//! The shared test body: every kernel of this machine against the float64 reference.
//!
//! Tolerances. A float32 logit of size `l` carries an error of about `l · 1e-7`, which a probability shows as a
//! relative error; averaged over the far rows and keys of random input it stays below [`MASS`] for logits of a few
//! units. The square of a probability has twice the error and is dominated by fewer keys: [`SQUARE`]. If only a few
//! rows have far keys, there is little to average: [`few_rows`].
//!
//! The bf16 kernels round scaled queries and keys to bf16. The reference uses the same rounded numbers ([`Rounded`]),
//! so that only the kernels' arithmetic is compared. It differs from float32's by the shorter exponential, at most
//! 7.5e-5 either way, so a share is off by 1.5e-4 at most and its square by 3e-4: [`EXPONENTIAL`]. The int16 kernels
//! round each row to integers with its own scale; they sum exactly, and their exponential is as exact as float32's, so
//! the float32 tolerances apply against the reference of the same integers. The effect of the rounding itself on scores
//! is tested in `rounding.rs`.
#![allow(dead_code, reason = "every test file uses a part")]

use std::ops::Range;

use half::bf16;
use longsift_kernels::{
    AttentionShape, ElementType, Kernel, LogitRules, QueryKeySource, attention_statistics,
    reference_statistics,
};

/// Relative tolerance of a head's far mass, for logits of standard deviation 3.
pub(crate) const MASS: f64 = 1e-6;
/// Relative tolerance of a head's far sum of squares, for logits of standard deviation 3.
pub(crate) const SQUARE: f64 = 1e-5;
/// Relative tolerance of one row's far mass, or of a histogram bin, which may hold the far end of a few rows, so errors
/// do not average out.
pub(crate) const ROW: f64 = 1e-5;
/// Relative tolerance added by the bf16 kernels' exponential to that of a share.
pub(crate) const EXPONENTIAL: f64 = 1.5e-4;

/// Factor of the tolerances if only `rows` rows have far keys, because few errors average out less.
fn few_rows(rows: usize) -> f64 {
    1.0 + 6.0 / (rows.max(1) as f64).sqrt()
}

/// Random queries and keys whose products have the standard deviation `spread · √head_dim`.
pub(crate) struct Random {
    pub(crate) head_dim: usize,
    pub(crate) seed: u64,
    pub(crate) spread: f32,
}

impl Random {
    /// Fills one normal deviate per (kind, head, row, dimension), independent of how the rows are split into calls.
    fn fill(&self, kind: u64, head: usize, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            let mut state = self.seed ^ (kind << 60) ^ ((head as u64) << 40) ^ ((row as u64) << 12);
            for value in out {
                *value = deviate(&mut state, self.spread);
            }
        }
    }
}

/// Returns an approximately normal number; products of such numbers have the standard deviation `spread`.
pub(crate) fn deviate(state: &mut u64, spread: f32) -> f32 {
    let uniform = (0..4).map(|_| (splitmix(state) >> 40) as f32 / (1 << 24) as f32).sum::<f32>();
    (uniform - 2.0) * 3.0_f32.sqrt() * spread.sqrt()
}

pub(crate) fn splitmix(state: &mut u64) -> u64 {
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

/// Queries and keys of a source, computed once.
pub(crate) struct Stored {
    head_dim: usize,
    tokens: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,
}

impl Stored {
    pub(crate) fn from_source(source: &dyn QueryKeySource, shape: &AttentionShape) -> Self {
        let &AttentionShape { tokens, query_heads, key_heads, head_dim } = shape;
        let mut stored = Self {
            head_dim,
            tokens,
            queries: vec![0.0; query_heads * tokens * head_dim],
            keys: vec![0.0; key_heads * tokens * head_dim],
        };
        for head in 0..query_heads {
            source.queries(
                head,
                0..tokens,
                &mut stored.queries[head * tokens * head_dim..][..tokens * head_dim],
            );
        }
        for head in 0..key_heads {
            source.keys(
                head,
                0..tokens,
                &mut stored.keys[head * tokens * head_dim..][..tokens * head_dim],
            );
        }
        stored
    }

    fn copy(&self, numbers: &[f32], head: usize, rows: Range<usize>, out: &mut [f32]) {
        let first = (head * self.tokens + rows.start) * self.head_dim;
        out.copy_from_slice(&numbers[first..][..rows.len() * self.head_dim]);
    }
}

impl QueryKeySource for Stored {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.copy(&self.queries, head, rows, out);
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.copy(&self.keys, head, rows, out);
    }
}

/// A source as the kernels for `numbers` see it: rows are rounded after scaling, and the scale is then divided out.
/// Queries carry the factors of their positions and, in bf16, the common scale of all logits, which otherwise keys
/// carry.
pub(crate) struct Rounded<'a> {
    pub(crate) source: &'a dyn QueryKeySource,
    pub(crate) rules: &'a LogitRules,
    pub(crate) head_dim: usize,
    pub(crate) numbers: ElementType,
}

impl Rounded<'_> {
    /// Scales of queries and keys before rounding.
    fn scales(&self) -> (f64, f64) {
        let unit = self.rules.softcap.map_or(std::f64::consts::LOG2_E, |cap| 1.0 / f64::from(cap));
        let scale = unit * f64::from(self.rules.scale);
        if self.numbers == ElementType::Bf16 { (scale, 1.0) } else { (1.0, scale) }
    }

    fn round(&self, row: &mut [f32], factor: f64) {
        for value in &mut *row {
            *value = (f64::from(*value) * factor) as f32;
        }
        match self.numbers {
            ElementType::F32 => {}
            ElementType::Bf16 => {
                for value in &mut *row {
                    *value = bf16::from_f32(*value).to_f32();
                }
            }
            ElementType::Int16 => round_to_integers(row),
        }
        for value in row {
            *value = (f64::from(*value) / factor) as f32;
        }
    }
}

/// Rounds a row to the values of its integers: as long as products below 2^31 allow, with no number beyond 16 bits.
fn round_to_integers(row: &mut [f32]) {
    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let largest = row.iter().fold(0.0_f64, |largest, value| largest.max(f64::from(value.abs())));
    let longest = 46_340.0 - (row.len() as f64).sqrt() / 2.0;
    let scale = (longest / length).min(32_767.0 / largest);
    if length > 0.0 {
        for value in row {
            *value = ((f64::from(*value) * scale).round_ties_even() / scale) as f32;
        }
    }
}

impl QueryKeySource for Rounded<'_> {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.source.queries(head, rows.clone(), out);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            let scale = self.rules.query_scale.as_ref();
            self.round(out, self.scales().0 * scale.map_or(1.0, |scale| f64::from(scale[row])));
        }
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.source.keys(head, rows, out);
        let (_, factor) = self.scales();
        out.chunks_exact_mut(self.head_dim).for_each(|row| self.round(row, factor));
    }
}

pub(crate) fn supported() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported())
}

/// Checks every kernel. `slack` multiplies the tolerances, for large logits.
pub(crate) fn check(
    shape: &AttentionShape,
    rules: &LogitRules,
    distance: usize,
    source: &dyn QueryKeySource,
    slack: f64,
) {
    let slack = slack * few_rows(shape.tokens.saturating_sub(distance));
    let source = &Stored::from_source(source, shape);
    let exact = reference_statistics(shape, rules, distance, source);
    let rounded = |numbers| {
        let source = Rounded { source, rules, head_dim: shape.head_dim, numbers };
        reference_statistics(shape, rules, distance, &Stored::from_source(&source, shape))
    };
    let bf16 = supported()
        .any(|kernel| kernel.element_type() == ElementType::Bf16)
        .then(|| rounded(ElementType::Bf16));
    let int16 = rounded(ElementType::Int16);
    for kernel in supported() {
        let (want, more) = match kernel.element_type() {
            ElementType::F32 => (&exact, 0.0),
            ElementType::Bf16 => (bf16.as_ref().expect("made above"), EXPONENTIAL),
            ElementType::Int16 => (&int16, 0.0),
        };
        let got = attention_statistics(kernel, shape, rules, distance, source);
        let context = format!("{} {shape:?} distance {distance} {rules:?}", kernel.name());
        close(&got.far_mass, &want.far_mass, MASS * slack + more, 1e-9, &context);
        close(&got.far_square, &want.far_square, SQUARE * slack + 2.0 * more, 1e-10, &context);
        close(&got.histogram, &want.histogram, ROW * slack + more, 1e-9, &context);
        close(&got.row_far_mass, &want.row_far_mass, ROW * slack + more, 1e-9, &context);
        assert!((got.histogram.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{context}");
    }
}

pub(crate) fn close(got: &[f64], want: &[f64], relative: f64, absolute: f64, context: &str) {
    assert_eq!(got.len(), want.len(), "{context}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs();
        assert!(
            error <= relative * want.abs() + absolute,
            "[{index}] {got:e} for {want:e}: {error:e} off; {context}"
        );
    }
}
