//! `vpmaddwd`: 256 bits of pairs multiplied and added, then added to the sums.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_storeu_ps,
};

use super::{Int16Tile, Products};
use crate::simd::Avx2;

/// AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Products(Avx2);

/// The AVX2 tile: 12 accumulators, two columns, one row value and one product fill its 16 registers.
pub(crate) type Avx2Int16Tile = Int16Tile<Avx2Products, 6, 2>;

impl Avx2Int16Tile {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(crate) fn avx2() -> Self {
        Self(Avx2Products(Avx2::new()))
    }
}

impl Products for Avx2Products {
    type Simd = Avx2;
    type AlignedWords = __m256i;
    type Sums = __m256i;
    const LANES: usize = 8;

    #[inline(always)]
    fn simd(self) -> Self::Simd {
        self.0
    }
    #[inline(always)]
    fn splat(self, word: u32) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_set1_epi32(word.cast_signed()) }
    }
    #[inline(always)]
    fn load(self, from: &[u32]) -> __m256i {
        let from = &from[..Self::LANES];
        // SAFETY: the slice has eight words; AVX2 as above.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn zero(self) -> __m256i {
        self.splat(0)
    }
    #[inline(always)]
    fn multiply_add(self, a: __m256i, b: __m256i, sum: __m256i) -> __m256i {
        // SAFETY: AVX2 as above.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)) }
    }
    #[inline(always)]
    fn store(self, sums: __m256i, queries: &[f32], key: f32, to: &mut [f32]) {
        let (queries, to) = (&queries[..Self::LANES], &mut to[..Self::LANES]);
        // SAFETY: both slices have eight floats; AVX2 as above.
        unsafe {
            let products =
                _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_loadu_ps(queries.as_ptr()));
            _mm256_storeu_ps(to.as_mut_ptr(), _mm256_mul_ps(products, _mm256_set1_ps(key)));
        }
    }
}
