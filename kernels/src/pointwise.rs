//! Activations of whole models, and log-sum-exp over a vocabulary.
//!
//! Float32, in the vectors of a kernel; sums over a vocabulary are float64 from piece to piece.

use crate::dispatch::{FloatOp, with_floats};
use crate::kernel::Kernel;
use crate::simd::{Simd, tanh};

/// Minimum exponent: smaller ones are raised to it, since their power is negligible compared with 1.
const FLOOR: f32 = -120.0;

/// Function of each number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pointwise {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`: GELU as in GPT-2.
    GeluTanh,
    /// `cap · tanh(x / cap)`.
    Softcap(f32),
}

impl Pointwise {
    /// Applies it in place.
    ///
    /// # Panics
    /// If the processor lacks the kernel.
    pub fn apply(self, kernel: Kernel, numbers: &mut [f32]) {
        with_floats(kernel.for_values(), PointwiseTask::Pointwise(self, numbers));
    }
}

/// Running log-sum-exp of the logits of some rows, over pieces of the vocabulary.
#[derive(Clone, Debug)]
pub struct LogSumExp {
    largest: Vec<f32>,
    /// Relative to `largest`.
    sums: Vec<f64>,
}

impl LogSumExp {
    /// Starts with `rows` rows without logits.
    pub fn new(rows: usize) -> Self {
        Self { largest: vec![f32::NEG_INFINITY; rows], sums: vec![0.0; rows] }
    }

    /// Adds the next logits of every row, `[rows, logits.len() / rows]`.
    ///
    /// # Panics
    /// If the processor lacks the kernel.
    pub fn absorb(&mut self, kernel: Kernel, logits: &[f32]) {
        with_floats(kernel.for_values(), PointwiseTask::Absorb(self, logits));
    }

    /// Returns `ln Σ e^logit` of each row; `NaN` if one of its logits is `NaN`.
    pub fn finish(&self) -> impl Iterator<Item = f64> + '_ {
        let rows = self.largest.iter().zip(&self.sums);
        rows.map(|(largest, sum)| f64::from(*largest) + sum.ln())
    }
}

/// A pass over numbers.
enum PointwiseTask<'a> {
    Pointwise(Pointwise, &'a mut [f32]),
    Absorb(&'a mut LogSumExp, &'a [f32]),
}

impl FloatOp for PointwiseTask<'_> {
    type Result = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const VECTORS: usize>(self, simd: S) {
        match self {
            Self::Pointwise(function, numbers) => function.apply_to_each(simd, numbers),
            Self::Absorb(sums, logits) => absorb(simd, sums, logits),
        }
    }
}

// Functions that are called for every vector must be inlined: a closure, or a function passed as an argument, is compiled without
// the kernel's instructions and passes every vector through memory.

impl Pointwise {
    /// Applies it to every number; the last few are padded to a vector.
    #[inline(always)]
    fn apply_to_each<S: Simd>(self, simd: S, numbers: &mut [f32]) {
        let mut vectors = numbers.chunks_exact_mut(S::LANES);
        for vector in &mut vectors {
            simd.store(self.apply_to_vector(simd, simd.load(vector)), vector);
        }
        let rest = vectors.into_remainder();
        let mut padded = [0.0; 16];
        padded[..rest.len()].copy_from_slice(rest);
        let result = self.apply_to_vector(simd, simd.load(&padded));
        simd.store(result, &mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }

    #[inline(always)]
    fn apply_to_vector<S: Simd>(self, simd: S, x: S::Vector) -> S::Vector {
        match self {
            Self::Silu => silu(simd, x),
            Self::GeluTanh => gelu_tanh(simd, x),
            Self::Softcap(cap) => {
                let bounded = tanh(simd, simd.mul(x, simd.splat(1.0 / cap)));
                simd.mul(simd.splat(cap), bounded)
            }
        }
    }
}

#[inline(always)]
fn silu<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    gated(simd, x, x)
}

/// Computes `(1 + tanh y) / 2` as the logistic function of `2y`, which loses no digits where it is small.
#[inline(always)]
fn gelu_tanh<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    const FACTOR: f32 = 2.0 * 0.797_884_6; // 2 · √(2/π)
    let cubic = simd.mul(simd.mul(x, x), simd.mul(x, simd.splat(0.044_715)));
    gated(simd, x, simd.mul(simd.splat(FACTOR), simd.add(x, cubic)))
}

/// Computes `x / (1 + e^-y)`, with `y` limited to ±83.
#[inline(always)]
fn gated<S: Simd>(simd: S, x: S::Vector, y: S::Vector) -> S::Vector {
    let exponent = simd.mul(y, simd.splat(-std::f32::consts::LOG2_E));
    let exponent = simd.min(simd.splat(-FLOOR), simd.max(simd.splat(FLOOR), exponent));
    simd.div(x, simd.add(simd.splat(1.0), simd.exp2(exponent)))
}

/// Computes `e^(x - largest)`.
#[inline(always)]
fn relative_exp<S: Simd>(simd: S, x: S::Vector, largest: f32) -> S::Vector {
    let exponent = simd.sub(x, simd.splat(largest));
    let exponent = simd.mul(exponent, simd.splat(std::f32::consts::LOG2_E));
    simd.exp2(simd.max(simd.splat(FLOOR), exponent))
}

#[inline(always)]
fn absorb<S: Simd>(simd: S, sums: &mut LogSumExp, logits: &[f32]) {
    let width = logits.len() / sums.largest.len().max(1);
    if width == 0 {
        return;
    }
    let rows = sums.largest.iter_mut().zip(&mut sums.sums).zip(logits.chunks_exact(width));
    for ((largest, sum), logits) in rows {
        let (vectors, rest) = logits.split_at(width - width % S::LANES);
        let mut top = simd.splat(*largest);
        for vector in vectors.chunks_exact(S::LANES) {
            top = simd.max(top, simd.load(vector));
        }
        let mut found = simd.largest(top);
        for x in rest {
            found = if found > *x { found } else { *x };
        }
        let mut total = simd.splat(0.0);
        for vector in vectors.chunks_exact(S::LANES) {
            total = simd.add(total, relative_exp(simd, simd.load(vector), found));
        }
        let mut padded = [f32::MIN; 16];
        padded[..rest.len()].copy_from_slice(rest);
        let last = simd.select(
            0..rest.len(),
            relative_exp(simd, simd.load(&padded), found),
            simd.splat(0.0),
        );
        let moved = (f64::from(*largest) - f64::from(found)).exp();
        *sum = *sum * moved + f64::from(simd.sum(simd.add(total, last)));
        *largest = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::supported_float_kernels;

    #[test]
    fn activations_match_float64_over_their_whole_range() {
        let numbers: Vec<f32> = (-4000..4003).map(|step| step as f32 * 0.025).collect();
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let gelu = |x: f64| {
            x / 2.0
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
        };
        for kernel in supported_float_kernels() {
            for (kind, want) in
                [(Pointwise::Silu, &silu as &dyn Fn(f64) -> f64), (Pointwise::GeluTanh, &gelu)]
            {
                let mut got = numbers.clone();
                kind.apply(kernel, &mut got);
                for (x, got) in numbers.iter().zip(&got) {
                    let want = want(f64::from(*x));
                    let off = (f64::from(*got) - want).abs();
                    assert!(
                        off <= 5e-7 * (1.0 + want.abs()),
                        "{kind:?} of {x} is {got}, {}",
                        kernel.name()
                    );
                }
            }
        }
    }

    #[test]
    fn a_log_sum_exp_in_pieces_equals_the_whole() {
        let logits: Vec<f32> =
            (0..3 * 1000).map(|index| ((index * 7919) % 4001) as f32 * 0.02 - 60.0).collect();
        for kernel in supported_float_kernels() {
            let mut sums = LogSumExp::new(3);
            for piece in [0..37, 37..64, 64..1000] {
                let rows: Vec<f32> =
                    logits.chunks(1000).flat_map(|row| row[piece.clone()].to_vec()).collect();
                sums.absorb(kernel, &rows);
            }
            for (got, row) in sums.finish().zip(logits.chunks(1000)) {
                let want = row.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
                assert!((got - want).abs() < 1e-6, "{got} for {want}, {}", kernel.name());
            }
        }
    }

    #[test]
    fn a_nan_logit_affects_only_its_row() {
        for kernel in supported_float_kernels() {
            let mut logits = vec![1.0; 2 * 40];
            logits[7] = f32::NAN;
            let mut sums = LogSumExp::new(2);
            sums.absorb(kernel, &logits);
            let done: Vec<f64> = sums.finish().collect();
            assert!(done[0].is_nan() && (done[1] - (1.0 + 40_f64.ln())).abs() < 1e-6, "{done:?}");
        }
    }
}
