//! `vpdpwssd`: 512 bits of pairs multiplied and added to the sums in one instruction.

use std::arch::x86_64::{
    __m512i, _mm512_cvtepi32_ps, _mm512_dpwssd_epi32, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_storeu_ps,
};

use super::{Int16Tile, Products};
use crate::simd::{Avx512, Nearest5};

/// AVX-512 F, DQ and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Products(Avx512<Nearest5>);

/// The AVX-512 tile: 24 accumulators of its 32 registers.
pub(crate) type Avx512Int16Tile = Int16Tile<Avx512Products, 12, 2>;

impl Avx512Int16Tile {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512vnni")]
    pub(crate) fn avx512() -> Self {
        Self(Avx512Products(Avx512::new()))
    }
}

impl Products for Avx512Products {
    type Simd = Avx512<Nearest5>;
    type AlignedWords = __m512i;
    type Sums = __m512i;
    const LANES: usize = 16;

    #[inline(always)]
    fn simd(self) -> Self::Simd {
        self.0
    }
    #[inline(always)]
    fn splat(self, word: u32) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_set1_epi32(word.cast_signed()) }
    }
    #[inline(always)]
    fn load(self, from: &[u32]) -> __m512i {
        let from = &from[..Self::LANES];
        // SAFETY: the slice has sixteen words; AVX-512 as above.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn zero(self) -> __m512i {
        self.splat(0)
    }
    #[inline(always)]
    fn multiply_add(self, a: __m512i, b: __m512i, sum: __m512i) -> __m512i {
        // SAFETY: `Avx512Int16Tile::avx512` is compiled for AVX-512 VNNI, and this value comes from it.
        unsafe { _mm512_dpwssd_epi32(sum, a, b) }
    }
    #[inline(always)]
    fn store(self, sums: __m512i, queries: &[f32], key: f32, to: &mut [f32]) {
        let (queries, to) = (&queries[..Self::LANES], &mut to[..Self::LANES]);
        // SAFETY: both slices have sixteen floats; AVX-512 as above.
        unsafe {
            let products =
                _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(queries.as_ptr()));
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_mul_ps(products, _mm512_set1_ps(key)));
        }
    }
}
