//! Passes over rows or ids, compiled for the processors that there are: what needs no kernel's own vectors, since the same
//! operations in any order of lanes give the same bits.

/// A pass. Everything that [`Work::run`] calls for every number must be inlined into it: that is how it gets the instructions.
pub(crate) trait Work {
    /// What it finds.
    type Found;

    fn run(self) -> Self::Found;
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
        // SAFETY: the lines above saw the features.
        return unsafe { run_avx2(work) };
    }
    work.run()
}

/// Without fused multiply-adds, which round differently.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<W: Work>(work: W) -> W::Found {
    work.run()
}
