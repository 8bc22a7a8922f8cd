//! Which kernels this machine has, and why not the others.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
mod amx;

use crate::kernel::{ElementType, Kernel};

/// The kernels for a table of float32, fastest first.
const FOR_F32: &[Kernel] =
    &[Kernel::Avx512F32, Kernel::Avx2F32, Kernel::NeonF32, Kernel::PortableF32];
/// Those that multiply integers, fastest first.
const FOR_INT16: &[Kernel] =
    &[Kernel::Avx512Int16, Kernel::Avx2Int16, Kernel::NeonInt16, Kernel::PortableInt16];

impl Kernel {
    /// Why this machine's processor cannot run the kernel; `None` where it can. The first call for an AMX kernel asks Linux for the
    /// tile registers and has a child process check a small product.
    pub fn unsupported_reason(self) -> Option<&'static str> {
        match self {
            Self::PortableF32 | Self::PortableInt16 => None,
            gpu if gpu.is_cuda() => Some("it runs on GPUs"),
            Self::NeonF32 | Self::NeonInt16 => {
                (!cfg!(target_arch = "aarch64")).then_some("it is for ARM processors of 64 bits")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2F32 | Self::Avx2Int16 => (!(is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")))
            .then_some("the processor has no AVX2 with FMA"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512F32 => avx512_unsupported_reason(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => avx512_unsupported_reason().or_else(|| {
                (!is_x86_feature_detected!("avx512bf16"))
                    .then_some("the processor has no AVX-512 BF16")
            }),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Int16 => avx512_unsupported_reason().or_else(|| {
                (!is_x86_feature_detected!("avx512vnni"))
                    .then_some("the processor has no AVX-512 VNNI")
            }),
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16 | Self::AmxBf16x3 => {
                static REASON: OnceLock<Option<&str>> = OnceLock::new();
                *REASON.get_or_init(|| avx512_unsupported_reason().or_else(amx::unsupported_reason))
            }
            _ => Some("it is for x86_64 processors"),
        }
    }

    /// Whether this machine can run the kernel.
    pub fn is_supported(self) -> bool {
        self.unsupported_reason().is_none()
    }

    /// The fastest kernel of this machine for `numbers`. For bf16 that is a float32 kernel where the processor has no AMX and
    /// its own bf16 product is slower (Intel's).
    pub fn detect(numbers: ElementType) -> Self {
        let (rounding, others): (&[Self], &[Self]) = match numbers {
            // What sums of two bf16 stand in for; their own kernel is taken only where it is named.
            ElementType::F32 | ElementType::Bf16x3 => (&[], FOR_F32),
            ElementType::Bf16 if has_fast_bf16_dot() => {
                (&[Self::AmxBf16, Self::Avx512Bf16], FOR_F32)
            }
            ElementType::Bf16 => (&[Self::AmxBf16], FOR_F32),
            ElementType::Int16 => (FOR_INT16, &[]),
        };
        let mut kernels = rounding.iter().chain(others).copied();
        kernels.find(|kernel| kernel.is_supported()).expect("the portable ones run everywhere")
    }

    /// The kernel that multiplies weights where this one measures windows: weights are float32, whatever a window's
    /// elements are, so kernels that round leave them to the float32 kernel of their vectors, and those of GPUs to `avx2-f32` (to
    /// `portable-f32` beside a processor without it).
    ///
    /// The bits of a table, and of queries and keys that are projected per window, are this kernel's. For a GPU's it is
    /// not implied by the kernel's own name: what scores may be reused for has to state both.
    #[must_use]
    pub fn for_weights(self) -> Self {
        match self {
            Self::Avx512Bf16 | Self::AmxBf16 | Self::AmxBf16x3 | Self::Avx512Int16 => {
                Self::Avx512F32
            }
            Self::Avx2Int16 => Self::Avx2F32,
            Self::NeonInt16 => Self::NeonF32,
            Self::PortableInt16 => Self::PortableF32,
            gpu if gpu.is_cuda() && Self::Avx2F32.is_supported() => Self::Avx2F32,
            gpu if gpu.is_cuda() => Self::PortableF32,
            float => float,
        }
    }

    /// Stops a caller that would run instructions the processor lacks.
    pub(crate) fn assert_supported(self) {
        if let Some(why) = self.unsupported_reason() {
            panic!("this machine does not run the kernel `{}`: {why}", self.name());
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx512_unsupported_reason() -> Option<&'static str> {
    (!(is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq")))
        .then_some("the processor has no AVX-512 F and DQ")
}

/// Whether `vdpbf16ps` is worth having where AVX-512 is there anyway. On Intel's processors (measured: Emerald Rapids)
/// it takes four times as long as a float32 multiply-add, for twice as many products; on AMD's it takes as long.
pub(crate) fn has_fast_bf16_dot() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_kernel_is_supported_and_fits_the_table() {
        for numbers in
            [ElementType::F32, ElementType::Bf16, ElementType::Bf16x3, ElementType::Int16]
        {
            let kernel = Kernel::detect(numbers);
            assert!(kernel.is_supported() && kernel.is_for(numbers), "{kernel:?}");
            assert_ne!(kernel, Kernel::AmxBf16x3, "it is taken only where it is named");
        }
        assert!(Kernel::PortableF32.is_supported());
    }

    #[test]
    fn weights_are_multiplied_in_float32_by_a_kernel_that_the_same_machine_has() {
        for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported() || kernel.is_cuda())
        {
            let weights = kernel.for_weights();
            assert_eq!(weights.element_type(), ElementType::F32);
            assert!(weights.is_supported() && weights.for_weights() == weights, "{kernel:?}");
            let implied = weights == kernel || kernel.element_type() != ElementType::F32;
            assert!(implied || kernel.is_cuda(), "{kernel:?}");
        }
    }
}
