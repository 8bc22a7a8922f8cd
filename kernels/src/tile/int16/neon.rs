//! `smlal`: 64 bits of 16-bit integers multiplied and added to sums of 32 bits.

use std::arch::aarch64::{
    int16x8_t, int32x4_t, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u32, vget_low_s16,
    vld1q_f32, vld1q_u32, vmlal_high_s16, vmlal_s16, vmulq_f32, vpaddq_s32, vreinterpretq_s16_u32,
    vst1q_f32,
};

use super::{Int16Tile, Products};
use crate::simd::{Neon, Twice};

/// NEON, which every processor of the target has.
#[derive(Clone, Copy)]
pub(crate) struct NeonProducts;

/// The NEON tile: 24 accumulators of its 32 registers.
pub(crate) type NeonInt16Tile = Int16Tile<NeonProducts, 6, 2>;

impl NeonInt16Tile {
    pub(crate) fn neon() -> Self {
        Self(NeonProducts)
    }
}

#[allow(unused_unsafe, reason = "newer compilers call most of these functions safe")]
impl Products for NeonProducts {
    type Simd = Twice<Neon>;
    type Words = int16x8_t;
    /// Products of the first two words, and of the last two, each with itself beside its neighbour: a word's two are added
    /// at the end.
    type Sums = [int32x4_t; 2];
    const LANES: usize = 4;

    #[inline(always)]
    fn simd(self) -> Self::Simd {
        Twice::new(Neon)
    }
    #[inline(always)]
    fn splat(self, word: u32) -> int16x8_t {
        // SAFETY: the target has NEON.
        unsafe { vreinterpretq_s16_u32(vdupq_n_u32(word)) }
    }
    #[inline(always)]
    fn load(self, from: &[u32]) -> int16x8_t {
        let from = &from[..Self::LANES];
        // SAFETY: four words are there, and the target has NEON.
        unsafe { vreinterpretq_s16_u32(vld1q_u32(from.as_ptr())) }
    }
    #[inline(always)]
    fn zero(self) -> Self::Sums {
        // SAFETY: the target has NEON.
        unsafe { [vdupq_n_s32(0); 2] }
    }
    #[inline(always)]
    fn multiply_add(self, a: int16x8_t, b: int16x8_t, sums: Self::Sums) -> Self::Sums {
        // SAFETY: the target has NEON.
        unsafe {
            [vmlal_s16(sums[0], vget_low_s16(a), vget_low_s16(b)), vmlal_high_s16(sums[1], a, b)]
        }
    }
    #[inline(always)]
    fn store(self, sums: Self::Sums, queries: &[f32], key: f32, to: &mut [f32]) {
        let (queries, to) = (&queries[..Self::LANES], &mut to[..Self::LANES]);
        // SAFETY: four floats are at both places, and the target has NEON.
        unsafe {
            let sums = vcvtq_f32_s32(vpaddq_s32(sums[0], sums[1]));
            let products = vmulq_f32(sums, vld1q_f32(queries.as_ptr()));
            vst1q_f32(to.as_mut_ptr(), vmulq_f32(products, vdupq_n_f32(key)));
        }
    }
}
