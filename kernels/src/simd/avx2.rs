//! 256-bit vectors with fused multiply-add.

use std::arch::x86_64::{
    __m256, _CMP_GT_OQ, _CMP_LE_OQ, _CMP_LT_OQ, _mm_add_ps, _mm_cvtss_f32, _mm_max_ps,
    _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps,
    _mm256_and_si256, _mm256_andnot_ps, _mm256_blendv_ps, _mm256_castps_si256,
    _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cmpgt_epi32, _mm256_div_ps,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps,
    _mm256_movemask_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};
use std::ops::Range;

use super::exponential::{AROUND_ZERO, ROUND, horner};
use super::operations::operations;
use super::vector::Simd;

/// AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl Simd for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;

    operations! {
        load: _mm256_loadu_ps -> __m256, store: _mm256_storeu_ps;
        fn splat(self, value: f32) -> __m256 { _mm256_set1_ps(value) }
        fn add(self, a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn sub(self, a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn mul(self, a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn div(self, a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn min(self, a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn max(self, a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn select(self, lanes: Range<usize>, vector: __m256, otherwise: __m256) -> __m256 {
            let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let from_start = _mm256_cmpgt_epi32(index, _mm256_set1_epi32(lanes.start as i32 - 1));
            let to_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes.end as i32), index);
            let kept = _mm256_castsi256_ps(_mm256_and_si256(from_start, to_end));
            _mm256_blendv_ps(otherwise, vector, kept)
        }
        fn between(self, from: __m256, at: __m256, to: __m256, vector: __m256, otherwise: __m256) -> __m256 {
            let kept = _mm256_and_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(from, at), _mm256_cmp_ps::<_CMP_LT_OQ>(at, to));
            _mm256_blendv_ps(otherwise, vector, kept)
        }
        fn split(self, at: __m256, to: __m256, vector: __m256) -> (__m256, __m256) {
            let before = _mm256_cmp_ps::<_CMP_LT_OQ>(at, to);
            (_mm256_and_ps(before, vector), _mm256_andnot_ps(before, vector))
        }
        fn any_above(self, a: __m256, b: __m256) -> bool {
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) != 0
        }
        fn exp2(self, x: __m256) -> __m256 {
            let shifted = _mm256_add_ps(x, _mm256_set1_ps(ROUND));
            let fraction = _mm256_sub_ps(x, _mm256_sub_ps(shifted, _mm256_set1_ps(ROUND)));
            let value = horner(self, &AROUND_ZERO, fraction);
            // The integer part goes straight into the exponent's bits.
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), exponent))
        }
        fn sum(self, vector: __m256) -> f32 {
            let four = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ps(two, _mm_shuffle_ps::<1>(two, two)))
        }
        fn largest(self, vector: __m256) -> f32 {
            let four = _mm_max_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ps(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}
