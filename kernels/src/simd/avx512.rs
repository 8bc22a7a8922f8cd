//! 512-bit vectors.

use std::arch::x86_64::{
    __m512, _CMP_GT_OQ, _CMP_LE_OQ, _CMP_LT_OQ, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_div_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_cmp_ps_mask, _mm512_mask_mov_ps,
    _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_reduce_add_ps,
    _mm512_reduce_max_ps, _mm512_reduce_ps, _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_ps,
    _mm512_storeu_ps, _mm512_sub_ps,
};
use std::marker::PhantomData;
use std::ops::Range;

use super::exponential::{ABOVE_FLOOR_3, ABOVE_FLOOR_5, AROUND_ZERO, horner};
use super::operations::operations;
use super::vector::Simd;

/// Polynomial of an exponential.
pub(crate) trait Polynomial: Copy {
    /// Coefficients of `2^f`, highest power first: for `f` in [0, 1], or in [-1/2, 1/2] if [`Self::NEAREST`].
    const COEFFICIENTS: &[f32];
    /// Whether the integer part is rounded to nearest instead of down. That leaves an exact fraction, so that every processor
    /// has the same bits, and costs one more instruction.
    const NEAREST: bool = false;
}

/// Relative error 9e-8: as exact as float32.
#[derive(Clone, Copy)]
pub(crate) struct Degree5;

impl Polynomial for Degree5 {
    const COEFFICIENTS: &[f32] = &ABOVE_FLOOR_5;
}

/// Relative error 7.5e-5, of alternating sign: a fiftieth of what rounding one number to bf16 does.
#[derive(Clone, Copy)]
pub(crate) struct Degree3;

impl Polynomial for Degree3 {
    const COEFFICIENTS: &[f32] = &ABOVE_FLOOR_3;
}

/// Relative error 1.6e-7: the exponentials of [`Avx2`](super::Avx2), bit for bit.
#[derive(Clone, Copy)]
pub(crate) struct Nearest5;

impl Polynomial for Nearest5 {
    const COEFFICIENTS: &[f32] = &AROUND_ZERO;
    const NEAREST: bool = true;
}

/// AVX-512 F and DQ, with exponentials by the polynomial `P`.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<P>(PhantomData<P>);

impl<P: Polynomial> Avx512<P> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

/// Rounds down, and reports no inexact result: the operand of `vreduceps`.
const FLOOR: i32 = 0b1001;
/// Rounds to nearest, ties to even, likewise.
const TO_NEAREST: i32 = 0b1000;

impl<P: Polynomial> Simd for Avx512<P> {
    type Vector = __m512;
    const LANES: usize = 16;

    operations! {
        load: _mm512_loadu_ps -> __m512, store: _mm512_storeu_ps;
        fn splat(self, value: f32) -> __m512 { _mm512_set1_ps(value) }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn select(self, lanes: Range<usize>, vector: __m512, otherwise: __m512) -> __m512 {
            let kept = (1_u32 << lanes.end) - (1_u32 << lanes.start);
            _mm512_mask_mov_ps(otherwise, kept as u16, vector)
        }
        fn between(self, from: __m512, at: __m512, to: __m512, vector: __m512, otherwise: __m512) -> __m512 {
            let kept = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(from, at);
            let kept = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(kept, at, to);
            _mm512_mask_mov_ps(otherwise, kept, vector)
        }
        fn split(self, at: __m512, to: __m512, vector: __m512) -> (__m512, __m512) {
            let before = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(at, to);
            (_mm512_maskz_mov_ps(before, vector), _mm512_maskz_mov_ps(!before, vector))
        }
        fn any_above(self, a: __m512, b: __m512) -> bool {
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) != 0
        }
        // Two instructions take the integer part off and put it back; one with no integer part left is 2^0 = 1.
        fn exp2(self, x: __m512) -> __m512 {
            if P::NEAREST {
                let integer = _mm512_roundscale_ps::<TO_NEAREST>(x);
                let value = horner(self, P::COEFFICIENTS, _mm512_sub_ps(x, integer));
                return _mm512_scalef_ps(value, integer);
            }
            let fraction = _mm512_reduce_ps::<FLOOR>(x);
            _mm512_scalef_ps(horner(self, P::COEFFICIENTS, fraction), x)
        }
        fn sum(self, vector: __m512) -> f32 { _mm512_reduce_add_ps(vector) }
        fn largest(self, vector: __m512) -> f32 { _mm512_reduce_max_ps(vector) }
    }
}
