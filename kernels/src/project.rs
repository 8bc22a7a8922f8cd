//! Linear projections: `x·Wᵀ + b`, for building layer-zero tables and for models that project per window.

use rayon::prelude::*;

use crate::dispatch::{FloatOp, with_floats};
use crate::kernel::Kernel;
use crate::panels::regroup;
use crate::simd::Simd;
use crate::tile::multiply;
use crate::transpose::{FourRows, WordRows};

/// Depth of one running float32 sum; the sums of such pieces are then added, so that the rounding error of a long sum grows
/// with the piece and not with the hidden size.
const DEPTH: usize = 256;
/// Rows of a thread's block; a multiple of every tile's height.
const BLOCK_ROWS: usize = 96;

/// A weight matrix, regrouped for one kernel; worth keeping for several batches of rows.
pub struct PackedWeights {
    kernel: Kernel,
    hidden: usize,
    outputs: usize,
    /// For each piece of the depth, `[⌈outputs/width⌉, depth of the piece, width]`.
    panels: Vec<f32>,
    /// `[outputs]`
    bias: Option<Vec<f32>>,
}

impl std::fmt::Debug for PackedWeights {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kernel, inputs, outputs) = (self.kernel, self.hidden, self.outputs);
        write!(formatter, "PackedWeights({}, [{outputs}, {inputs}])", kernel.name())
    }
}

impl PackedWeights {
    /// Packs `weights`, `[outputs, hidden]`, and `bias`, `[outputs]`. Holds a copy of both. Products are float32 with every
    /// kernel: see [`Kernel::for_weights`].
    ///
    /// # Panics
    /// If the lengths do not fit, or the processor lacks `kernel`.
    pub fn new(kernel: Kernel, weights: &[f32], bias: Option<&[f32]>, hidden: usize) -> Self {
        let kernel = kernel.for_weights();
        kernel.assert_supported();
        assert!(hidden > 0 && weights.len().is_multiple_of(hidden), "weights are rows of {hidden}");
        let outputs = weights.len() / hidden;
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "one bias per output");
        let width = kernel.layout().queries;
        let padded = outputs.next_multiple_of(width);
        let mut panels = vec![0.0; padded * hidden];
        for start in (0..hidden).step_by(DEPTH) {
            let depth = DEPTH.min(hidden - start);
            if outputs > 0 {
                let words = bytemuck::cast_slice(&weights[start..]);
                let panels = &mut panels[start * padded..][..depth * padded];
                regroup(
                    FourRows,
                    WordRows { words, stride: hidden, depth, count: outputs },
                    width,
                    bytemuck::cast_slice_mut(panels),
                );
            }
        }
        Self { kernel, hidden, outputs, panels, bias: bias.map(<[f32]>::to_vec) }
    }

    /// Returns the heap memory of [`Self::apply`] on each thread, in bytes.
    pub const fn scratch_bytes() -> u64 {
        (BLOCK_ROWS * DEPTH * size_of::<f32>()) as u64
    }

    /// Returns the number of floats in a row of `x`.
    pub(crate) fn inputs(&self) -> usize {
        self.hidden
    }

    /// Returns the number of floats in a row of `out`.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Computes `out[r, n] = Σ_h x[r, h] · weights[n, h] + bias[n]`. `x`: `[rows, hidden]`, `out`: `[rows, outputs]`.
    ///
    /// Parallel over blocks of rows in the current rayon pool. An element is summed over `h` in an order that depends
    /// only on `hidden`: the same bits for any number of threads and any other rows.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        assert!(x.len().is_multiple_of(self.hidden), "x holds rows of {}", self.hidden);
        assert_eq!(
            out.len(),
            x.len() / self.hidden * self.outputs,
            "out holds rows of {}",
            self.outputs
        );
        if out.is_empty() {
            return;
        }
        out.par_chunks_mut(BLOCK_ROWS * self.outputs)
            .zip(x.par_chunks(BLOCK_ROWS * self.hidden))
            .for_each_init(
                || vec![0.0; BLOCK_ROWS * DEPTH],
                |packed, (out, x)| self.block(x, packed, out),
            );
    }

    fn block(&self, x: &[f32], packed: &mut [f32], out: &mut [f32]) {
        with_floats(self.kernel, ProjectBlock { weights: self, x, packed, out: &mut *out });
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(self.outputs) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
    }

    /// Projects one block of rows: for each piece of the depth, multiplies every panel of weights with every panel of rows.
    #[inline(always)]
    fn rows<S: Simd, const HEIGHT: usize, const VECTORS: usize>(
        &self,
        simd: S,
        x: &[f32],
        packed: &mut [f32],
        out: &mut [f32],
    ) {
        let rows = x.len() / self.hidden;
        let width = VECTORS * S::LANES;
        let padded = self.outputs.next_multiple_of(width);
        out.fill(0.0);
        for start in (0..self.hidden).step_by(DEPTH) {
            let depth = DEPTH.min(self.hidden - start);
            let packed = &mut packed[..rows.next_multiple_of(HEIGHT) * depth];
            let words = bytemuck::cast_slice(&x[start..]);
            let of_piece = WordRows { words, stride: self.hidden, depth, count: rows };
            regroup(FourRows, of_piece, HEIGHT, bytemuck::cast_slice_mut(packed));
            let weights = &self.panels[start * padded..][..depth * padded];
            for (panel, weights) in weights.chunks_exact(depth * width).enumerate() {
                let columns = panel * width..self.outputs.min((panel + 1) * width);
                for (index, x) in packed.chunks_exact(depth * HEIGHT).enumerate() {
                    let tile = multiply::<S, HEIGHT, VECTORS>(simd, x, weights);
                    for (row, vectors) in (index * HEIGHT..rows).zip(&tile) {
                        let out = &mut out[row * self.outputs..][columns.clone()];
                        for (vector, out) in vectors.iter().zip(out.chunks_mut(S::LANES)) {
                            add_to(simd, *vector, out);
                        }
                    }
                }
            }
        }
    }
}

/// Projection of one block of rows.
struct ProjectBlock<'a> {
    weights: &'a PackedWeights,
    x: &'a [f32],
    packed: &'a mut [f32],
    out: &'a mut [f32],
}

impl FloatOp for ProjectBlock<'_> {
    type Result = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const VECTORS: usize>(self, simd: S) {
        self.weights.rows::<S, ROWS, VECTORS>(simd, self.x, self.packed, self.out);
    }
}

/// Adds as many lanes as `out` is long.
#[inline(always)]
fn add_to<S: Simd>(simd: S, vector: S::Vector, out: &mut [f32]) {
    if out.len() == S::LANES {
        simd.store(simd.add(simd.load(out), vector), out);
    } else {
        let mut lanes = [0.0; 16];
        simd.store(vector, &mut lanes);
        out.iter_mut().zip(lanes).for_each(|(out, value)| *out += value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|index| ((index as f32 + seed) * 12.9898).sin()).collect()
    }

    fn check(kernel: Kernel, rows: usize, hidden: usize, outputs: usize, with_bias: bool) {
        let (x, weights) = (values(rows * hidden, 0.3), values(outputs * hidden, 0.7));
        let bias = with_bias.then(|| values(outputs, 0.1));
        let mut out = vec![f32::NAN; rows * outputs];
        PackedWeights::new(kernel, &weights, bias.as_deref(), hidden).apply(&x, &mut out);
        for row in 0..rows {
            for output in 0..outputs {
                let terms = (0..hidden).map(|h| {
                    f64::from(x[row * hidden + h]) * f64::from(weights[output * hidden + h])
                });
                let size = terms.clone().map(f64::abs).sum::<f64>();
                let want =
                    terms.sum::<f64>() + bias.as_ref().map_or(0.0, |bias| f64::from(bias[output]));
                let error = (f64::from(out[row * outputs + output]) - want).abs();
                assert!(
                    error <= 2e-6 * (1.0 + size),
                    "{} {row},{output}: {error:e}",
                    kernel.name()
                );
            }
        }
    }

    fn supported() -> impl Iterator<Item = Kernel> {
        Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_shape_agrees_with_float64(
            rows in 0_usize..130, hidden in 1_usize..600, outputs in 0_usize..40, with_bias: bool,
        ) {
            supported().for_each(|kernel| check(kernel, rows, hidden, outputs, with_bias));
        }
    }

    #[test]
    fn bits_do_not_depend_on_batch_or_threads() {
        let (rows, hidden, outputs) = (500, 700, 70);
        let (x, weights) = (values(rows * hidden, 0.3), values(outputs * hidden, 0.7));
        for kernel in supported() {
            let packed = PackedWeights::new(kernel, &weights, None, hidden);
            let mut all = vec![0.0; rows * outputs];
            packed.apply(&x, &mut all);
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(3)
                .build()
                .expect("a pool of three starts");
            let mut again = vec![0.0; rows * outputs];
            pool.install(|| packed.apply(&x, &mut again));
            assert!(all == again);
            for row in [0, 95, 96, 499] {
                let mut one = vec![0.0; outputs];
                packed.apply(&x[row * hidden..][..hidden], &mut one);
                assert!(one == all[row * outputs..][..outputs], "{} row {row}", kernel.name());
            }
        }
    }
}
