//! The C library's treatment of freed memory.

/// Makes glibc return arrays of 1 MiB and more to the system as soon as they are freed. Otherwise it keeps them in pieces that the
/// next layer of a model does not fit, and the process grows to nearly twice the computed size.
///
/// Programs with many small windows should not call it: they take about 8 % more processor time. It does nothing with other C
/// libraries.
pub fn return_freed_arrays() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: a setting of the allocator, which it changes under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}
