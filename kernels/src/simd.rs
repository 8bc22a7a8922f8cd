//! Vectors of float32: the operations that the hot loops are written in.
//!
//! A value of a type that implements [`Simd`] proves that the processor has the instructions: it can only be created in code
//! that is compiled for them. Everything that takes such a value is `#[inline(always)]`, and so is compiled with those
//! instructions inside each kernel's entry.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exponential;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operations;
mod portable;
#[cfg(any(target_arch = "aarch64", test))]
mod twice;
mod vector;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{Avx512, Degree3, Degree5, Nearest5};
pub(crate) use exponential::{exp2, tanh};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use operations::operations;
pub(crate) use portable::{Portable, PortableFused};
#[cfg(any(target_arch = "aarch64", test))]
pub(crate) use twice::Twice;
pub(crate) use vector::Simd;

/// Index of each lane of the widest vector.
pub(crate) const LANE_INDICES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
