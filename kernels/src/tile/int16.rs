//! Register tiles of 16-bit integers: two products a lane and instruction, summed exactly in 32 bits.
//!
//! A panel of queries or keys ends with a row of factors ([`crate::int16`]); a logit is its sum of products times both.
//! The kernels differ in the instruction alone: sums are exact, and their softmax has 16 lanes and fused multiply-adds
//! on every processor, so all of them give the same bits.

use super::{LOGIT_STRIDE, Tile, integers};
use crate::panels::Layout;
use crate::simd::{PortableFused, Simd, Twice};

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

/// How a processor multiplies pairs of 16-bit integers.
pub(crate) trait Products: Copy {
    /// The vectors that the softmax of the products is done in: 16 lanes.
    type Simd: Simd;
    /// A word in every lane: a pair of integers.
    type Words: Copy;
    /// Sums of 32 bits, which in the end are one for each word.
    type Sums: Copy;
    /// Words in a vector.
    const LANES: usize;

    /// Proof of the softmax's vectors.
    fn simd(self) -> Self::Simd;
    /// `word` in every lane.
    fn splat(self, word: u32) -> Self::Words;
    /// The first [`Self::LANES`] words of `from`.
    fn load(self, from: &[u32]) -> Self::Words;
    /// Sums of nothing.
    fn zero(self) -> Self::Sums;
    /// `sums + Σ a·b` of the two integers in each lane's word, modulo 2^32.
    fn multiply_add(self, a: Self::Words, b: Self::Words, sums: Self::Sums) -> Self::Sums;
    /// Writes `sums · keys · query` to the start of `to`, rounded to float32 after each step.
    fn store(self, sums: Self::Sums, keys: &[f32], query: f32, to: &mut [f32]);
}

/// A register tile of `ROWS · VECTORS` vectors of sums.
#[derive(Clone, Copy)]
pub(crate) struct Int16Tile<P, const ROWS: usize, const VECTORS: usize>(P);

impl<P: Products, const ROWS: usize, const VECTORS: usize> Int16Tile<P, ROWS, VECTORS> {
    /// What the tile multiplies with.
    pub(crate) fn products(self) -> P {
        self.0
    }
}

impl<P: Products, const ROWS: usize, const VECTORS: usize> Tile for Int16Tile<P, ROWS, VECTORS> {
    type Simd = P::Simd;
    type Session = ();
    const STRIP_ROWS: usize = 24;

    #[inline(always)]
    fn simd(self) -> P::Simd {
        self.0.simd()
    }

    #[inline(always)]
    fn layout(self) -> Layout {
        integers(ROWS, VECTORS * P::LANES)
    }

    #[inline(always)]
    fn begin(self) {}

    #[inline(always)]
    fn multiply(self, (): &mut (), queries: &[u32], keys: &[u32], rows: usize, logits: &mut [f32]) {
        let width = VECTORS * P::LANES;
        let depth = keys.len() / width;
        let (keys, key_factors) = keys.split_at((depth - 1) * width);
        let key_factors: &[f32] = bytemuck::cast_slice(key_factors);
        let panels = queries.chunks_exact(ROWS * depth).take(rows.div_ceil(ROWS));
        for (queries, logits) in panels.zip(logits.chunks_mut(ROWS * LOGIT_STRIDE)) {
            let (queries, query_factors) = queries.split_at((depth - 1) * ROWS);
            let mut sums = [[self.0.zero(); VECTORS]; ROWS];
            let queries = queries.as_chunks::<ROWS>().0;
            for (queries, keys) in queries.iter().zip(keys.chunks_exact(width)) {
                let mut columns = [self.0.splat(0); VECTORS];
                for (index, column) in columns.iter_mut().enumerate() {
                    *column = self.0.load(&keys[index * P::LANES..]);
                }
                for (query, sums) in queries.iter().zip(&mut sums) {
                    let query = self.0.splat(*query);
                    for (column, sum) in columns.iter().zip(sums) {
                        *sum = self.0.multiply_add(query, *column, *sum);
                    }
                }
            }
            // Known to be as long as this, they are written from registers.
            let logits = &mut logits[..(ROWS - 1) * LOGIT_STRIDE + width];
            let (key_factors, query_factors) = (&key_factors[..width], &query_factors[..ROWS]);
            for (row, sums) in sums.iter().enumerate() {
                let query_factor = f32::from_bits(query_factors[row]);
                for (index, sums) in sums.iter().enumerate() {
                    let at = index * P::LANES;
                    let logits = &mut logits[row * LOGIT_STRIDE + at..];
                    self.0.store(*sums, &key_factors[at..], query_factor, logits);
                }
            }
        }
    }
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct PortableProducts;

/// Words of the portable vector.
const PORTABLE_LANES: usize = 8;

/// The portable tile: 8 accumulators of the 16 registers that every `x86_64` has.
pub(crate) type PortableInt16Tile = Int16Tile<PortableProducts, 4, 1>;

impl PortableInt16Tile {
    pub(crate) fn portable() -> Self {
        Self(PortableProducts)
    }
}

impl Products for PortableProducts {
    type Simd = Twice<PortableFused>;
    type Words = [u32; PORTABLE_LANES];
    type Sums = [u32; PORTABLE_LANES];
    const LANES: usize = PORTABLE_LANES;

    #[inline(always)]
    fn simd(self) -> Self::Simd {
        Twice::new(PortableFused)
    }
    #[inline(always)]
    fn splat(self, word: u32) -> Self::Words {
        [word; PORTABLE_LANES]
    }
    #[inline(always)]
    fn load(self, from: &[u32]) -> Self::Words {
        let mut words = [0; PORTABLE_LANES];
        words.copy_from_slice(&from[..PORTABLE_LANES]);
        words
    }
    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [0; PORTABLE_LANES]
    }
    #[inline(always)]
    fn multiply_add(self, a: Self::Words, b: Self::Words, mut sum: Self::Sums) -> Self::Sums {
        let product = |a: u32, b: u32| i32::from(a as i16).wrapping_mul(i32::from(b as i16));
        for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
            let both = product(a, b).wrapping_add(product(a >> 16, b >> 16));
            *sum = sum.wrapping_add(both.cast_unsigned());
        }
        sum
    }
    #[inline(always)]
    fn store(self, sums: Self::Sums, keys: &[f32], query: f32, to: &mut [f32]) {
        let keys = &keys[..PORTABLE_LANES];
        for ((to, sum), key) in to[..PORTABLE_LANES].iter_mut().zip(sums).zip(keys) {
            *to = sum.cast_signed() as f32 * key * query;
        }
    }
}
