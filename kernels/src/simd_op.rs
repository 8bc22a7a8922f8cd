//! Passes over rows or ids, compiled for several processors. They do not use a kernel's vectors, because their results
//! have the same bits for any order of lanes.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

#[cfg(target_arch = "x86_64")]
use crate::transpose::SixteenRows;
use crate::transpose::{FourRows, Transpose};

/// A pass. Everything that [`SimdOp::run`] calls for every number must be inlined into it to be compiled with the instructions.
pub(crate) trait SimdOp {
    type Result;

    fn run(self, transpose: impl Transpose) -> Self::Result;
}

/// Runs a pass with the processor's instructions for vectors and bits.
pub(crate) fn run<O: SimdOp>(operation: O) -> O::Result {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the lines above detected the features.
            return unsafe { run_avx512(operation) };
        }
        // SAFETY: the lines above detected the features.
        return unsafe { run_avx2(operation) };
    }
    operation.run(FourRows)
}

/// Runs a pass with AVX-512, but without fused multiply-add, which would round differently.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx512<O: SimdOp>(operation: O) -> O::Result {
    operation.run(SixteenRows::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<O: SimdOp>(operation: O) -> O::Result {
    operation.run(FourRows)
}

/// Requests the cache lines of `values` for the second-level cache without waiting; on Zen 4 the first level accepts too few at
/// a time. If `values` begin inside a line, the last line may be left out.
#[inline(always)]
pub(crate) fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of_val(values).div_ceil(64) {
        let line = values.as_ptr().cast::<i8>().wrapping_add(64 * line);
        // SAFETY: every x86-64 processor has the instruction, which has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}
