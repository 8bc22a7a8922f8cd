//! Gated linear attention (Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training").
//!
//! A key head keeps one matrix instead of keys and values: `S ← diag(e^g) S + kᵀ v` for each token, which then reads `q S`.
//! Rows are processed in chunks of [`CHUNK`]. With `b` the running sums of `g` in a chunk,
//!
//! ```text
//! o_i = (q_i e^b_i) S + Σ_{j ≤ i} a_ij v_j      a_ij = Σ_k q_ik k_jk e^(b_ik - b_jk)
//! S   ← diag(e^b_last) S + Σ_j (k_j e^(b_last - b_j))ᵀ v_j
//! ```
//!
//! The weights `a` are computed by halving: the queries of a right half are multiplied with the keys of the left half
//! through the border between them, so no exponent is above 0 and nothing overflows, however strong the decay.

use rayon::prelude::*;

use crate::dispatch::{FloatOp, with_floats};
use crate::kernel::Kernel;
use crate::simd::{Simd, exp2};

const CHUNK: usize = 64;
/// Channels whose running sums are held at a time.
const CHANNELS: usize = 64;
/// Columns of the matrix that one task updates: a multiple of two vectors of every kernel.
const SLICE: usize = 32;
/// Maximum lanes of a vector: a load of the last number may read this many numbers.
const PADDING: usize = 16;
/// Distance from one row of weights to the next, in numbers.
const STRIDE: usize = CHUNK + PADDING;
/// Minimum exponent of two: smaller ones are raised to it.
const FLOOR: f32 = -120.0;

/// Heads of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatedLinearShape {
    /// A multiple of `key_heads`; query head `h` reads the matrix of key head `h / (query_heads / key_heads)`.
    pub query_heads: usize,
    pub key_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Rows to process, each of all heads.
#[derive(Debug)]
pub struct GatedLinearRows<'a> {
    /// `[rows, query_heads · key_dim]`, scaled. Overwritten.
    pub queries: &'a mut [f32],
    /// `[rows, key_heads · key_dim]`. Overwritten.
    pub keys: &'a mut [f32],
    /// `[rows, key_heads · value_dim]`
    pub values: &'a [f32],
    /// `[rows, key_heads · key_dim]`, at most 0.
    pub log_decays: &'a [f32],
}

/// The matrices of a layer after some rows of a sequence.
#[derive(Clone, Debug)]
pub struct GatedLinearState {
    shape: GatedLinearShape,
    /// `[key_heads, slices, key_dim, SLICE]`, padded with zeros.
    matrices: Vec<f32>,
}

impl GatedLinearShape {
    fn group(&self) -> usize {
        self.query_heads / self.key_heads
    }

    fn slices(&self) -> usize {
        self.value_dim.div_ceil(SLICE)
    }

    fn query_width(&self) -> usize {
        self.query_heads * self.key_dim
    }

    fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    pub fn state_bytes(&self) -> u64 {
        (self.key_heads * self.slices() * self.key_dim * SLICE * size_of::<f32>()) as u64
    }

    /// Returns the heap bytes of [`GatedLinearState::advance`] for so many rows, and of each thread in addition.
    pub fn bytes(&self, rows: usize) -> (u64, u64) {
        let chunks = rows.div_ceil(CHUNK);
        let weights = chunks * (self.query_heads * CHUNK * STRIDE + self.key_width());
        let mixed = rows * self.query_heads * self.slices() * SLICE;
        let scratch = CHANNELS * CHUNK * (6 + self.group()) + 2 * PADDING;
        let numbers = size_of::<f32>();
        (((weights + mixed) * numbers) as u64, (scratch * numbers) as u64)
    }
}

impl GatedLinearState {
    pub const CHUNK: usize = CHUNK;

    /// Creates the state before the first row: zeros.
    ///
    /// # Panics
    /// If `key_heads` is 0 or does not divide `query_heads`.
    pub fn new(shape: GatedLinearShape) -> Self {
        assert!(
            shape.key_heads > 0 && shape.query_heads.is_multiple_of(shape.key_heads),
            "key heads divide query heads"
        );
        assert!(shape.key_dim > 0 && shape.value_dim > 0, "heads have keys and values");
        let numbers = shape.state_bytes() as usize / size_of::<f32>();
        Self { shape, matrices: vec![0.0; numbers] }
    }

    /// Processes the next rows of the sequence: `out`, `[rows, query_heads · value_dim]`, receives `q S` of each.
    ///
    /// Runs in the current rayon pool, with the same bits for any number of threads. So does a sequence in several calls, if
    /// all but the last have a multiple of [`Self::CHUNK`] rows.
    ///
    /// # Panics
    /// If lengths do not fit, or the processor lacks the kernel.
    pub fn advance(&mut self, kernel: Kernel, rows: GatedLinearRows<'_>, out: &mut [f32]) {
        let kernel = kernel.for_values();
        let GatedLinearRows { queries, keys, values, log_decays } = rows;
        let shape = &self.shape;
        let (query_width, key_width) = (shape.query_width(), shape.key_width());
        let count = keys.len() / key_width;
        assert_eq!(queries.len(), count * query_width, "queries of these rows");
        assert_eq!(keys.len(), count * key_width, "keys of these rows");
        assert_eq!(values.len(), count * shape.key_heads * shape.value_dim, "values of these rows");
        assert_eq!(log_decays.len(), keys.len(), "a decay for each number of a key");
        assert_eq!(out.len(), count * shape.query_heads * shape.value_dim, "results of these rows");
        let chunks = count.div_ceil(CHUNK);
        let mut weights = vec![0.0; chunks * shape.query_heads * CHUNK * STRIDE];
        let mut decays = vec![0.0; chunks * key_width];
        let of_chunks = queries.par_chunks_mut(CHUNK * query_width);
        let of_chunks = of_chunks.zip(keys.par_chunks_mut(CHUNK * key_width));
        let of_chunks = of_chunks.zip(log_decays.par_chunks(CHUNK * key_width));
        let of_chunks = of_chunks.zip(weights.par_chunks_mut(shape.query_heads * CHUNK * STRIDE));
        let of_chunks = of_chunks.zip(decays.par_chunks_mut(key_width));
        of_chunks.for_each_init(
            || Scratch::new(shape),
            |scratch, ((((queries, keys), log_decays), weights), decays)| {
                let chunk =
                    ChunkFactors { shape, queries, keys, log_decays, weights, decays, scratch };
                with_floats(kernel, chunk);
            },
        );
        let (queries, keys) = (&*queries, &*keys);
        let group = shape.group();
        let mut mixed = vec![0.0; count * shape.query_heads * shape.slices() * SLICE];
        let slices = self.matrices.par_chunks_mut(shape.key_dim * SLICE);
        let slices = slices.zip(mixed.par_chunks_mut((count * group * SLICE).max(1)));
        slices.enumerate().for_each(|(index, (matrix, out))| {
            let (head, slice) = (index / shape.slices(), index % shape.slices());
            let inputs = (queries, keys, values);
            let (weights, decays) = (&*weights, &*decays);
            let slice = MatrixColumns { shape, head, slice, inputs, weights, decays, matrix, out };
            with_floats(kernel, slice);
        });
        out.par_chunks_mut(shape.query_heads * shape.value_dim).enumerate().for_each(
            |(row, out)| {
                for (query, out) in out.chunks_exact_mut(shape.value_dim).enumerate() {
                    let (head, query) = (query / group, query % group);
                    for (slice, out) in out.chunks_mut(SLICE).enumerate() {
                        let of_slice = (head * shape.slices() + slice) * count;
                        let start = ((of_slice + row) * group + query) * SLICE;
                        out.copy_from_slice(&mixed[start..start + out.len()]);
                    }
                }
            },
        );
    }
}

/// Buffers of one thread. A row of them has the numbers of a channel, token by token.
struct Scratch {
    /// `[CHANNELS, CHUNK]`: running sums of log decays.
    sums: Vec<f64>,
    /// `[CHANNELS, CHUNK]`
    keys: Vec<f32>,
    /// `[group, CHANNELS, CHUNK]`
    queries: Vec<f32>,
    factors: Vec<f32>,
    /// Keys and queries times factors.
    decayed_keys: Vec<f32>,
    decayed_queries: Vec<f32>,
}

impl Scratch {
    fn new(shape: &GatedLinearShape) -> Self {
        let numbers = CHANNELS * CHUNK;
        Self {
            sums: vec![0.0; numbers],
            keys: vec![0.0; numbers],
            queries: vec![0.0; shape.group() * numbers],
            factors: vec![0.0; numbers],
            decayed_keys: vec![0.0; numbers + PADDING],
            decayed_queries: vec![0.0; numbers + PADDING],
        }
    }
}

/// Factors of a chunk that do not depend on the matrices: weights, queries times their decay since the chunk's start,
/// keys times their decay to its end.
struct ChunkFactors<'a> {
    shape: &'a GatedLinearShape,
    queries: &'a mut [f32],
    keys: &'a mut [f32],
    log_decays: &'a [f32],
    /// `[query_heads, CHUNK, STRIDE]`: zeros.
    weights: &'a mut [f32],
    /// `[key_heads · key_dim]`: over the whole chunk.
    decays: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl FloatOp for ChunkFactors<'_> {
    type Result = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const VECTORS: usize>(mut self, simd: S) {
        for head in 0..self.shape.key_heads {
            for first in (0..self.shape.key_dim).step_by(CHANNELS) {
                let channels = CHANNELS.min(self.shape.key_dim - first);
                self.channels(simd, head, first, channels);
            }
        }
    }
}

impl ChunkFactors<'_> {
    /// Adds the share of some channels to the weights of a key head.
    #[inline(always)]
    fn channels<S: Simd>(&mut self, simd: S, head: usize, first: usize, channels: usize) {
        let (group, width) = (self.shape.group(), self.shape.query_width());
        let rows = self.queries.len() / width;
        self.gather(head, first, channels);
        let scratch = &mut *self.scratch;
        let numbers = channels * CHUNK;
        let mut half = CHUNK / 2;
        while half > 0 {
            for (sums, factors) in rows_of(&scratch.sums, &mut scratch.factors, channels) {
                for start in (0..CHUNK).step_by(2 * half) {
                    let border = sums[start + half - 1];
                    for token in start..start + 2 * half {
                        factors[token] = exponent(-(sums[token] - border).abs());
                    }
                }
            }
            powers(simd, &mut scratch.factors[..numbers]);
            let factors = &scratch.factors[..numbers];
            multiply(simd, &scratch.keys, factors, &mut scratch.decayed_keys);
            for query in 0..group {
                let queries = &scratch.queries[query * CHANNELS * CHUNK..];
                multiply(simd, queries, factors, &mut scratch.decayed_queries);
                let start = (head * group + query) * CHUNK * STRIDE;
                let weights = &mut self.weights[start..start + CHUNK * STRIDE];
                for start in (0..rows.saturating_sub(half)).step_by(2 * half) {
                    let right = start + half;
                    let size = (half.min(rows - right), channels, half);
                    let queries =
                        Strided { numbers: &scratch.decayed_queries[right..], row: 1, step: CHUNK };
                    let keys = (&scratch.decayed_keys[start..], CHUNK);
                    let weights = (&mut weights[right * STRIDE + start..], STRIDE);
                    add_product::<S, 1>(simd, size, &queries, keys, weights);
                }
            }
            half /= 2;
        }
        self.diagonal(simd, head, channels);
        self.scatter(simd, head, first, channels);
    }

    /// Fills sums, keys and queries of the scratch; rows after the last are zeros without decay.
    #[inline(always)]
    fn gather(&mut self, head: usize, first: usize, channels: usize) {
        let Self { shape, queries, keys, log_decays, decays, scratch, .. } = self;
        let (group, query_width, key_width) =
            (shape.group(), shape.query_width(), shape.key_width());
        let rows = queries.len() / query_width;
        for channel in 0..channels {
            let column = head * shape.key_dim + first + channel;
            let mut sum = 0.0;
            for token in 0..CHUNK {
                let at = channel * CHUNK + token;
                if token < rows {
                    sum += f64::from(log_decays[token * key_width + column]);
                    scratch.keys[at] = keys[token * key_width + column];
                } else {
                    scratch.keys[at] = 0.0;
                }
                scratch.sums[at] = sum;
            }
            decays[column] = exp2(sum * std::f64::consts::LOG2_E) as f32;
            for query in 0..group {
                let column = (head * group + query) * shape.key_dim + first + channel;
                let to = &mut scratch.queries[(query * CHANNELS + channel) * CHUNK..][..CHUNK];
                for (token, to) in to.iter_mut().enumerate() {
                    *to = if token < rows { queries[token * query_width + column] } else { 0.0 };
                }
            }
        }
    }

    /// Adds the weights of tokens for themselves.
    #[inline(always)]
    fn diagonal<S: Simd>(&mut self, simd: S, head: usize, channels: usize) {
        let group = self.shape.group();
        for query in 0..group {
            let mut sums = [0.0; CHUNK];
            for channel in 0..channels {
                let keys = &self.scratch.keys[channel * CHUNK..][..CHUNK];
                let queries =
                    &self.scratch.queries[(query * CHANNELS + channel) * CHUNK..][..CHUNK];
                for start in (0..CHUNK).step_by(S::LANES) {
                    let (key, sum) = (simd.load(&keys[start..]), simd.load(&sums[start..]));
                    let sum = simd.mul_add(simd.load(&queries[start..]), key, sum);
                    simd.store(sum, &mut sums[start..]);
                }
            }
            let weights = &mut self.weights[(head * group + query) * CHUNK * STRIDE..];
            for (token, sum) in sums.iter().enumerate() {
                weights[token * (STRIDE + 1)] += sum;
            }
        }
    }

    /// Writes queries times their decay since the chunk's start, and keys times theirs to its end.
    #[inline(always)]
    fn scatter<S: Simd>(&mut self, simd: S, head: usize, first: usize, channels: usize) {
        let Self { shape, queries, keys, scratch, .. } = self;
        let (group, query_width, key_width) =
            (shape.group(), shape.query_width(), shape.key_width());
        let (rows, numbers) = (queries.len() / query_width, channels * CHUNK);
        for (sums, factors) in rows_of(&scratch.sums, &mut scratch.factors, channels) {
            for (factor, sum) in factors.iter_mut().zip(sums) {
                *factor = exponent(*sum);
            }
        }
        powers(simd, &mut scratch.factors[..numbers]);
        for query in 0..group {
            let column = (head * group + query) * shape.key_dim + first;
            for channel in 0..channels {
                let factors = &scratch.factors[channel * CHUNK..];
                for token in 0..rows {
                    queries[token * query_width + column + channel] *= factors[token];
                }
            }
        }
        for (sums, factors) in rows_of(&scratch.sums, &mut scratch.factors, channels) {
            let last = sums[CHUNK - 1];
            for (factor, sum) in factors.iter_mut().zip(sums) {
                *factor = exponent(last - sum);
            }
        }
        powers(simd, &mut scratch.factors[..numbers]);
        let column = head * shape.key_dim + first;
        for channel in 0..channels {
            let factors = &scratch.factors[channel * CHUNK..];
            for token in 0..rows {
                keys[token * key_width + column + channel] *= factors[token];
            }
        }
    }
}

/// Some columns of the matrix of a key head, updated chunk by chunk.
struct MatrixColumns<'a> {
    shape: &'a GatedLinearShape,
    head: usize,
    slice: usize,
    /// Queries, keys and values of all chunks.
    inputs: (&'a [f32], &'a [f32], &'a [f32]),
    weights: &'a [f32],
    decays: &'a [f32],
    /// `[key_dim, SLICE]`
    matrix: &'a mut [f32],
    /// `[rows, group, SLICE]`
    out: &'a mut [f32],
}

impl FloatOp for MatrixColumns<'_> {
    type Result = ();

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const VECTORS: usize>(self, simd: S) {
        let Self { shape, head, slice, inputs, weights, decays, matrix, out } = self;
        let (queries, keys, all_values) = inputs;
        let (group, key_dim) = (shape.group(), shape.key_dim);
        let (query_width, key_width) = (shape.query_width(), shape.key_width());
        let value_width = shape.key_heads * shape.value_dim;
        let columns = SLICE.min(shape.value_dim - slice * SLICE);
        let column = head * shape.value_dim + slice * SLICE;
        let count = keys.len() / key_width;
        let mut values = [0.0; CHUNK * SLICE];
        for (chunk, first) in (0..count).step_by(CHUNK).enumerate() {
            let rows = CHUNK.min(count - first);
            for (row, values) in values.chunks_exact_mut(SLICE).take(rows).enumerate() {
                let from = &all_values[(first + row) * value_width + column..][..columns];
                values[..columns].copy_from_slice(from);
            }
            for query in 0..group {
                let head = head * group + query;
                let out = &mut out[(first * group + query) * SLICE..];
                let decayed = &queries[first * query_width + head * key_dim..];
                let decayed = Strided { numbers: decayed, row: query_width, step: 1 };
                let size = (rows, key_dim, SLICE);
                add_product::<S, 2>(
                    simd,
                    size,
                    &decayed,
                    (matrix, SLICE),
                    (&mut *out, group * SLICE),
                );
                let weights = &weights[(chunk * shape.query_heads + head) * CHUNK * STRIDE..];
                for row in (0..rows).step_by(TILE) {
                    // Weights of later tokens are zeros.
                    let size = (TILE.min(rows - row), rows.min(row + TILE), SLICE);
                    let weights =
                        Strided { numbers: &weights[row * STRIDE..], row: STRIDE, step: 1 };
                    let out = (&mut out[row * group * SLICE..], group * SLICE);
                    add_product::<S, 2>(simd, size, &weights, (&values, SLICE), out);
                }
            }
            let decays = &decays[chunk * key_width + head * key_dim..][..key_dim];
            for (row, decay) in matrix.chunks_exact_mut(SLICE).zip(decays) {
                for x in row {
                    *x *= decay;
                }
            }
            let keys = &keys[first * key_width + head * key_dim..];
            let keys = Strided { numbers: keys, row: 1, step: key_width };
            add_product::<S, 2>(
                simd,
                (key_dim, rows, SLICE),
                &keys,
                (&values, SLICE),
                (&mut *matrix, SLICE),
            );
        }
    }
}

/// Returns the numbers of each channel in two arrays.
fn rows_of<'a>(
    sums: &'a [f64],
    factors: &'a mut [f32],
    channels: usize,
) -> impl Iterator<Item = (&'a [f64], &'a mut [f32])> {
    sums.chunks_exact(CHUNK).zip(factors.chunks_exact_mut(CHUNK)).take(channels)
}

/// Returns the exponent `y` with `2^y = e^x`.
#[inline(always)]
fn exponent(x: f64) -> f32 {
    (x * std::f64::consts::LOG2_E) as f32
}

/// Replaces each number `x` by `2^x`.
#[inline(always)]
fn powers<S: Simd>(simd: S, numbers: &mut [f32]) {
    for numbers in numbers.chunks_exact_mut(S::LANES) {
        let exponents = simd.max(simd.splat(FLOOR), simd.load(numbers));
        simd.store(simd.exp2(exponents), numbers);
    }
}

#[inline(always)]
fn multiply<S: Simd>(simd: S, numbers: &[f32], factors: &[f32], out: &mut [f32]) {
    let vectors = numbers.chunks_exact(S::LANES).zip(factors.chunks_exact(S::LANES));
    for ((numbers, factors), out) in vectors.zip(out.chunks_exact_mut(S::LANES)) {
        simd.store(simd.mul(simd.load(numbers), simd.load(factors)), out);
    }
}

/// Rows of a register tile.
const TILE: usize = 4;

/// A matrix in any order.
struct Strided<'a> {
    numbers: &'a [f32],
    /// Distance from one row to the next, in numbers.
    row: usize,
    /// Distance from one column to the next, in numbers.
    step: usize,
}

/// Adds `a b` to `out`, each element a sum in the order of the depth. `b` and `out` have rows of a given stride.
#[inline(always)]
fn add_product<S: Simd, const VECTORS: usize>(
    simd: S,
    (rows, depth, width): (usize, usize, usize),
    a: &Strided<'_>,
    b: (&[f32], usize),
    (out, stride): (&mut [f32], usize),
) {
    let mut row = 0;
    while row < rows {
        let rest = Strided { numbers: &a.numbers[row * a.row..], ..*a };
        let out = (&mut out[row * stride..], stride);
        if rows - row >= TILE {
            add_tiles::<S, TILE, VECTORS>(simd, (depth, width), &rest, b, out);
            row += TILE;
        } else {
            add_tiles::<S, 1, VECTORS>(simd, (depth, width), &rest, b, out);
            row += 1;
        }
    }
}

/// Adds `ROWS` rows of the product.
#[inline(always)]
fn add_tiles<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    (depth, width): (usize, usize),
    a: &Strided<'_>,
    (b, b_stride): (&[f32], usize),
    (out, stride): (&mut [f32], usize),
) {
    for column in (0..width).step_by(VECTORS * S::LANES) {
        let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
        for step in 0..depth {
            let b = &b[step * b_stride + column..][..VECTORS * S::LANES];
            let mut vectors = [simd.splat(0.0); VECTORS];
            for (vector, b) in vectors.iter_mut().zip(b.chunks_exact(S::LANES)) {
                *vector = simd.load(b);
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let a = simd.splat(a.numbers[row * a.row + step * a.step]);
                for (sum, vector) in sums.iter_mut().zip(&vectors) {
                    *sum = simd.mul_add(a, *vector, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                let column = column + vector * S::LANES;
                let kept = simd.select(0..S::LANES.min(width - column), *sum, simd.splat(0.0));
                let out = &mut out[row * stride + column..][..S::LANES];
                simd.store(simd.add(simd.load(out), kept), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::supported_float_kernels;
    use crate::reference::reference_gated_linear;

    /// Returns `count` numbers between -1 and 1.
    fn noise(count: usize, seed: usize) -> Vec<f32> {
        let number = |index: usize| {
            let hash = (index + seed * 7919 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((hash >> 40) as f32 / (1 << 23) as f32) - 1.0
        };
        (0..count).map(number).collect()
    }

    /// Log decay of a number between 0 and 1.
    type Decay = fn(f32) -> f32;

    struct Case {
        shape: GatedLinearShape,
        queries: Vec<f32>,
        keys: Vec<f32>,
        values: Vec<f32>,
        log_decays: Vec<f32>,
    }

    /// `decay`: the log decay of a number between 0 and 1.
    fn case(shape: GatedLinearShape, rows: usize, decay: impl Fn(f32) -> f32) -> Case {
        let numbers = |width: usize, seed| noise(rows * width, seed);
        let decays = numbers(shape.key_width(), 4);
        Case {
            queries: numbers(shape.query_width(), 1),
            keys: numbers(shape.key_width(), 2),
            values: numbers(shape.key_heads * shape.value_dim, 3),
            log_decays: decays.iter().map(|x| decay((x + 1.0) / 2.0)).collect(),
            shape,
        }
    }

    /// Returns the results of a kernel in calls of so many rows, and the state after them.
    fn computed(case: &Case, kernel: Kernel, rows: usize) -> (Vec<f32>, Vec<f32>) {
        let Case { shape, values, log_decays, .. } = case;
        let (mut queries, mut keys) = (case.queries.clone(), case.keys.clone());
        let mut state = GatedLinearState::new(shape.clone());
        let (width, wide) = (shape.key_width(), shape.key_heads * shape.value_dim);
        let mut out = vec![0.0; log_decays.len() / width * shape.query_heads * shape.value_dim];
        let queries = queries.chunks_mut(rows * shape.query_width());
        let pieces = queries.zip(keys.chunks_mut(rows * width)).zip(values.chunks(rows * wide));
        let pieces = pieces.zip(log_decays.chunks(rows * width));
        let outs = out.chunks_mut(rows * shape.query_heads * shape.value_dim);
        for ((((queries, keys), values), log_decays), out) in pieces.zip(outs) {
            state.advance(kernel, GatedLinearRows { queries, keys, values, log_decays }, out);
        }
        (out, state.matrices)
    }

    fn recurrence(case: &Case) -> Vec<f64> {
        let exact =
            |numbers: &[f32]| -> Vec<f64> { numbers.iter().copied().map(f64::from).collect() };
        let [queries, keys, values, log_decays] =
            [&case.queries, &case.keys, &case.values, &case.log_decays].map(|data| exact(data));
        reference_gated_linear(&case.shape, &queries, &keys, &values, &log_decays)
    }

    const SHAPE: GatedLinearShape =
        GatedLinearShape { query_heads: 6, key_heads: 3, key_dim: 70, value_dim: 40 };

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    #[test]
    fn results_match_the_float64_recurrence_for_any_decay() {
        let tiny = GatedLinearShape { query_heads: 2, key_heads: 1, key_dim: 6, value_dim: 3 };
        let decays: [(&str, Decay); 4] = [
            ("moderate", |x| -0.1 * x),
            ("strong", |x| if x > 0.9 { -30.0 } else { -3.0 * x }),
            ("long", |x| -1e-4 * x),
            ("none", |_| 0.0),
        ];
        for shape in [SHAPE, tiny] {
            for (name, decay) in decays {
                for rows in [1, 63, 64, 65, 200] {
                    let case = case(shape.clone(), rows, decay);
                    let want = recurrence(&case);
                    let size = want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64;
                    for kernel in supported_float_kernels() {
                        let (got, _) = computed(&case, kernel, rows);
                        let off = got.iter().zip(&want).map(|(got, want)| f64::from(*got) - want);
                        let off = off.map(f64::abs).fold(0.0, f64::max) / size.sqrt();
                        assert!(off < 4e-6, "{name}, {rows} rows, {}: {off:e}", kernel.name());
                    }
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_pieces_or_threads() {
        let case = case(SHAPE, 330, |x| -0.2 * x * x);
        for kernel in supported_float_kernels() {
            let computed_on = |threads, rows| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let (out, state) = pool.install(|| computed(&case, kernel, rows));
                (bits(&out), bits(&state))
            };
            let whole = computed_on(1, 330);
            for (threads, rows) in [(3, 330), (1, CHUNK), (2, 2 * CHUNK), (5, 3 * CHUNK)] {
                assert!(
                    computed_on(threads, rows) == whole,
                    "{threads} threads, {rows} rows at a time"
                );
            }
        }
    }

    #[test]
    fn later_rows_do_not_change_earlier_ones() {
        let long = case(SHAPE, 150, |x| -x);
        for kernel in supported_float_kernels() {
            let (whole, _) = computed(&long, kernel, 150);
            for rows in [1, 2, 31, 33, 64, 100] {
                let cut = |numbers: &[f32]| numbers[..numbers.len() / 150 * rows].to_vec();
                let short = Case {
                    shape: SHAPE,
                    queries: cut(&long.queries),
                    keys: cut(&long.keys),
                    values: cut(&long.values),
                    log_decays: cut(&long.log_decays),
                };
                let (got, _) = computed(&short, kernel, rows);
                assert!(bits(&got) == bits(&whole[..got.len()]), "{rows} rows");
            }
        }
    }
}
