//! Register tiles of 16-bit integers: two products per lane and instruction, summed exactly in 32 bits.
//!
//! A panel of queries or keys ends with a row of factors ([`crate::int16`]); a logit is its sum of products times both.
//! The kernels differ only in the instruction: sums are exact, and their softmax has fused multiply-adds on every
//! processor, so all of them have the same bits.

use super::Tile;
use crate::online_softmax::{Logits, STRIP_ROWS};
use crate::panels::{Layout, integers};
use crate::simd::{PortableFused, Simd, operations};

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2Int16Tile, Avx512Int16Tile};

/// Products of pairs of 16-bit integers on one kind of processor.
pub(crate) trait Products: Copy {
    /// Vectors of the softmax.
    type Simd: Simd;
    /// A word in every lane: a pair of integers, or a sum of 32 bits.
    type Words: Copy;
    /// Words in a vector.
    const LANES: usize;

    fn simd(self) -> Self::Simd;
    fn splat(self, word: u32) -> Self::Words;
    fn load(self, from: &[u32]) -> Self::Words;
    /// Returns `sums + Σ a·b` of the two integers in each lane's word, modulo 2^32.
    fn multiply_add(self, a: Self::Words, b: Self::Words, sums: Self::Words) -> Self::Words;
    /// Writes `sums · queries · key` to the start of `to`, rounded to float32 after each step.
    fn store(self, sums: Self::Words, queries: &[f32], key: f32, to: &mut [f32]);
}

/// A register tile of `ROWS · VECTORS` vectors of sums.
#[derive(Clone, Copy)]
pub(crate) struct Int16Tile<P, const ROWS: usize, const VECTORS: usize>(P);

impl<P: Products, const ROWS: usize, const VECTORS: usize> Tile for Int16Tile<P, ROWS, VECTORS> {
    type Simd = P::Simd;
    type Session = ();
    const CHUNK_KEYS: usize = 24;
    const GROUP_ROWS: usize = STRIP_ROWS;

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
    fn multiply(
        self,
        (): &mut (),
        keys: &[u32],
        queries: &[u32],
        rows: usize,
        logits: &mut Logits,
    ) {
        let width = VECTORS * P::LANES;
        let depth = keys.len() / ROWS;
        let (keys, key_factors) = keys.split_at((depth - 1) * ROWS);
        let (keys, key_factors) = (keys.as_chunks::<ROWS>().0, &key_factors[..ROWS]);
        let panels = queries.chunks_exact(depth * width).take(rows.div_ceil(width));
        // With a known length, they are written from registers.
        let logits = &mut logits[..ROWS];
        for (panel, queries) in panels.enumerate() {
            let (queries, query_factors) = queries.split_at((depth - 1) * width);
            let query_factors: &[f32] = bytemuck::cast_slice(query_factors);
            let mut sums = [[self.0.splat(0); VECTORS]; ROWS];
            for (keys, queries) in keys.iter().zip(queries.chunks_exact(width)) {
                let mut columns = [self.0.splat(0); VECTORS];
                for (index, column) in columns.iter_mut().enumerate() {
                    *column = self.0.load(&queries[index * P::LANES..]);
                }
                for (key, sums) in keys.iter().zip(&mut sums) {
                    let key = self.0.splat(*key);
                    for (column, sum) in columns.iter().zip(sums) {
                        *sum = self.0.multiply_add(key, *column, *sum);
                    }
                }
            }
            let query_factors = &query_factors[..width];
            for ((logits, sums), key_factor) in logits.iter_mut().zip(&sums).zip(key_factors) {
                let logits = &mut logits[panel * width..][..width];
                let key_factor = f32::from_bits(*key_factor);
                for (index, sums) in sums.iter().enumerate() {
                    let at = index * P::LANES;
                    self.0.store(*sums, &query_factors[at..], key_factor, &mut logits[at..]);
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

type PortableWords = [u32; PORTABLE_LANES];

impl Products for PortableProducts {
    type Simd = PortableFused;
    type Words = PortableWords;
    const LANES: usize = PORTABLE_LANES;

    operations! {
        fn simd(self) -> PortableFused { PortableFused }
        fn splat(self, word: u32) -> PortableWords { [word; PORTABLE_LANES] }
        fn load(self, from: &[u32]) -> PortableWords {
            let mut words = [0; PORTABLE_LANES];
            words.copy_from_slice(&from[..PORTABLE_LANES]);
            words
        }
        fn multiply_add(self, a: PortableWords, b: PortableWords, sums: PortableWords) -> PortableWords {
            let product = |a: u32, b: u32| i32::from(a as i16).wrapping_mul(i32::from(b as i16));
            let mut sums = sums;
            for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                let both = product(a, b).wrapping_add(product(a >> 16, b >> 16));
                *sum = sum.wrapping_add(both.cast_unsigned());
            }
            sums
        }
        fn store(self, sums: PortableWords, queries: &[f32], key: f32, to: &mut [f32]) {
            let queries = &queries[..PORTABLE_LANES];
            for ((to, sum), query) in to[..PORTABLE_LANES].iter_mut().zip(sums).zip(queries) {
                *to = sum.cast_signed() as f32 * query * key;
            }
        }
    }
}
