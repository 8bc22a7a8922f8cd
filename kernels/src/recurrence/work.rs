//! Passes over a window, compiled for the processors that there are.

/// A pass. Everything that [`Work::run`] calls for every token must be inlined into it: that is how it gets the instructions.
pub(super) trait Work {
    fn run(self);
}

/// Runs a pass with the instructions for vectors and bits that the processor has.
pub(super) fn run(work: impl Work) {
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
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2(work: impl Work) {
    work.run();
}
