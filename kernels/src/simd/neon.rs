//! 128-bit vectors of ARM.

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vaddq_s32, vandq_u32, vbslq_f32, vcgeq_s32, vcgtq_f32, vcleq_f32,
    vcltq_f32, vcltq_s32, vdivq_f32, vdupq_n_f32, vdupq_n_s32, vfmaq_f32, vgetq_lane_f32,
    vld1q_f32, vld1q_s32, vmaxvq_u32, vmulq_f32, vreinterpretq_f32_s32, vreinterpretq_s32_f32,
    vshlq_n_s32, vst1q_f32, vsubq_f32,
};
use std::ops::Range;

use super::exponential::{AROUND_ZERO, ROUND, horner};
use super::operations::operations;
use super::vector::Simd;

/// NEON, which every processor of the target has.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

impl Simd for Neon {
    type Vector = float32x4_t;
    const LANES: usize = 4;

    operations! {
        load: vld1q_f32 -> float32x4_t, store: vst1q_f32;
        fn splat(self, value: f32) -> float32x4_t { vdupq_n_f32(value) }
        fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
        fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
        fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmaq_f32(c, a, b) }
        // The minimum and maximum instructions are not used, because they treat `NaN` differently.
        fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(vcgtq_f32(a, b), a, b) }
        fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(vcltq_f32(a, b), a, b) }
        fn select(self, lanes: Range<usize>, vector: float32x4_t, otherwise: float32x4_t) -> float32x4_t {
            let index = vld1q_s32([0, 1, 2, 3].as_ptr());
            let from_start = vcgeq_s32(index, vdupq_n_s32(lanes.start as i32));
            let to_end = vcltq_s32(index, vdupq_n_s32(lanes.end as i32));
            vbslq_f32(vandq_u32(from_start, to_end), vector, otherwise)
        }
        fn between(self, from: float32x4_t, at: float32x4_t, to: float32x4_t, vector: float32x4_t, otherwise: float32x4_t) -> float32x4_t {
            vbslq_f32(vandq_u32(vcleq_f32(from, at), vcltq_f32(at, to)), vector, otherwise)
        }
        fn any_above(self, a: float32x4_t, b: float32x4_t) -> bool { vmaxvq_u32(vcgtq_f32(a, b)) != 0 }
        fn exp2(self, x: float32x4_t) -> float32x4_t {
            let shifted = vaddq_f32(x, vdupq_n_f32(ROUND));
            let fraction = vsubq_f32(x, vsubq_f32(shifted, vdupq_n_f32(ROUND)));
            let value = horner(self, &AROUND_ZERO, fraction);
            // The integer part goes straight into the exponent's bits.
            let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(shifted));
            vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(value), exponent))
        }
        fn sum(self, vector: float32x4_t) -> f32 {
            let (even, odd) = (
                vgetq_lane_f32::<0>(vector) + vgetq_lane_f32::<2>(vector),
                vgetq_lane_f32::<1>(vector) + vgetq_lane_f32::<3>(vector),
            );
            even + odd
        }
        fn largest(self, vector: float32x4_t) -> f32 {
            let mut lanes = [0.0; 4];
            vst1q_f32(lanes.as_mut_ptr(), vector);
            lanes.into_iter().fold(f32::NEG_INFINITY, |most, lane| if most > lane { most } else { lane })
        }
    }
}
