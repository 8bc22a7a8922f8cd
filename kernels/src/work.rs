//! Passes over rows or ids, compiled for the processors that there are: what needs no kernel's own vectors, since the same
//! operations in any order of lanes give the same bits.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

#[cfg(target_arch = "x86_64")]
use crate::transpose::SixteenRows;
use crate::transpose::{FourRows, Registers};

/// A pass. Everything that [`Work::run`] calls for every number must be inlined into it: that is how it gets the instructions.
pub(crate) trait Work {
    /// What it finds.
    type Found;

    /// `registers`: what makes rows columns.
    fn run(self, registers: impl Registers) -> Self::Found;
}

/// Runs a pass with the instructions for vectors and bits that the processor has.
pub(crate) fn run<W: Work>(work: W) -> W::Found {
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
            // SAFETY: the lines above saw the features.
            return unsafe { run_avx512(work) };
        }
        // SAFETY: the lines above saw the features.
        return unsafe { run_avx2(work) };
    }
    work.run(FourRows)
}

/// Nothing here fuses a product and a sum, which would round differently.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx512<W: Work>(work: W) -> W::Found {
    work.run(SixteenRows::new())
}

/// As [`run_avx512`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<W: Work>(work: W) -> W::Found {
    work.run(FourRows)
}

/// Has the cache lines of `values` brought into the second-level cache, and waits for none: on Zen 4 the first takes in too few at
/// a time. Where `values` begin inside a line the last one may be left out.
#[inline(always)]
pub(crate) fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of_val(values).div_ceil(64) {
        let line = values.as_ptr().cast::<i8>().wrapping_add(64 * line);
        // SAFETY: every x86-64 processor has the instruction, which reads nothing that the program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}
