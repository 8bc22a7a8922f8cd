//! `vpmaddwd`: pairs multiplied and added, then added to the sums; `vpdpwssd` does so in one instruction.

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_storeu_ps,
    _mm512_cvtepi32_ps, _mm512_dpwssd_epi32, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_storeu_ps,
};

use super::{Int16Tile, Products};
use crate::simd::{Avx2, Avx512, Nearest5, operations};

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
    type Words = __m256i;
    const LANES: usize = 8;

    operations! {
        fn simd(self) -> Avx2 { self.0 }
        fn splat(self, word: u32) -> __m256i { _mm256_set1_epi32(word.cast_signed()) }
        fn load(self, from: &[u32]) -> __m256i { _mm256_loadu_si256(from[..Self::LANES].as_ptr().cast()) }
        fn multiply_add(self, a: __m256i, b: __m256i, sums: __m256i) -> __m256i {
            _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
        }
        fn store(self, sums: __m256i, queries: &[f32], key: f32, to: &mut [f32]) {
            let (queries, to) = (&queries[..Self::LANES], &mut to[..Self::LANES]);
            let products = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_loadu_ps(queries.as_ptr()));
            _mm256_storeu_ps(to.as_mut_ptr(), _mm256_mul_ps(products, _mm256_set1_ps(key)));
        }
    }
}

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
    type Words = __m512i;
    const LANES: usize = 16;

    operations! {
        fn simd(self) -> Avx512<Nearest5> { self.0 }
        fn splat(self, word: u32) -> __m512i { _mm512_set1_epi32(word.cast_signed()) }
        fn load(self, from: &[u32]) -> __m512i { _mm512_loadu_si512(from[..Self::LANES].as_ptr().cast()) }
        fn multiply_add(self, a: __m512i, b: __m512i, sums: __m512i) -> __m512i { _mm512_dpwssd_epi32(sums, a, b) }
        fn store(self, sums: __m512i, queries: &[f32], key: f32, to: &mut [f32]) {
            let (queries, to) = (&queries[..Self::LANES], &mut to[..Self::LANES]);
            let products = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(queries.as_ptr()));
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_mul_ps(products, _mm512_set1_ps(key)));
        }
    }
}
