//! Kernels that this machine supports, and why it does not support the others.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
mod amx;

use crate::kernel::{Kernel, Requirement};
use crate::panels::ElementType;

/// Float32 kernels, fastest first.
const FOR_F32: &[Kernel] =
    &[Kernel::Avx512F32, Kernel::Avx2F32, Kernel::NeonF32, Kernel::PortableF32];
/// Integer kernels, fastest first.
const FOR_INT16: &[Kernel] = &[Kernel::Avx512Int16, Kernel::Avx2Int16, Kernel::PortableInt16];

impl Kernel {
    /// Returns the reason why this machine's processor cannot run the kernel; `None` if it can. The first call for an
    /// AMX kernel requests the tile registers from Linux and has a child process check a small product.
    pub fn unsupported_reason(self) -> Option<&'static str> {
        match self.info().requires {
            Requirement::Nothing => None,
            Requirement::Gpu => Some("it runs on GPUs"),
            Requirement::Neon => {
                (!cfg!(target_arch = "aarch64")).then_some("it requires a 64-bit ARM processor")
            }
            #[cfg(target_arch = "x86_64")]
            Requirement::Avx2 => (!(is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")))
            .then_some("the processor has no AVX2 with FMA"),
            #[cfg(target_arch = "x86_64")]
            Requirement::Avx512 => avx512_unsupported_reason(),
            #[cfg(target_arch = "x86_64")]
            Requirement::Avx512Vnni => avx512_unsupported_reason().or_else(|| {
                (!is_x86_feature_detected!("avx512vnni"))
                    .then_some("the processor has no AVX-512 VNNI")
            }),
            #[cfg(target_arch = "x86_64")]
            Requirement::Amx => {
                static REASON: OnceLock<Option<&str>> = OnceLock::new();
                *REASON.get_or_init(|| avx512_unsupported_reason().or_else(amx::unsupported_reason))
            }
            #[cfg(not(target_arch = "x86_64"))]
            Requirement::Avx2
            | Requirement::Avx512
            | Requirement::Avx512Vnni
            | Requirement::Amx => Some("it requires an x86_64 processor"),
        }
    }

    /// Whether this machine can run the kernel.
    pub fn is_supported(self) -> bool {
        self.unsupported_reason().is_none()
    }

    /// Returns the fastest kernel of this machine for `numbers`. For bf16 that is a float32 kernel unless the processor
    /// has AMX. For integers it may be [`Self::PortableInt16`], which is too slow for runs.
    pub fn detect(numbers: ElementType) -> Self {
        let (rounding, others): (&[Self], &[Self]) = match numbers {
            ElementType::F32 => (&[], FOR_F32),
            ElementType::Bf16 => (&[Self::AmxBf16], FOR_F32),
            ElementType::Int16 => (FOR_INT16, &[]),
        };
        let mut kernels = rounding.iter().chain(others).copied();
        kernels.find(|kernel| kernel.is_supported()).expect("portable kernels run everywhere")
    }

    /// Returns the kernel that multiplies weights in a run whose windows this kernel measures. Weights are float32 for
    /// any element type. For a GPU it is `avx2-f32`, or `portable-f32` if the host's processor lacks AVX2.
    ///
    /// It determines the bits of a table, and of queries and keys that are projected per window. The name of a GPU
    /// kernel does not imply it, so the fingerprint includes both.
    #[must_use]
    pub fn for_weights(self) -> Self {
        self.info().weights.unwrap_or(if Self::Avx2F32.is_supported() {
            Self::Avx2F32
        } else {
            Self::PortableF32
        })
    }

    /// Returns the float32 kernel that computes attention with values and activations for this one.
    pub(crate) fn for_values(self) -> Self {
        self.info().values.expect("kernels of GPUs compute no values")
    }

    /// Panics if the processor lacks the kernel's instructions.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detected_kernel_is_supported_and_fits_the_table() {
        for numbers in [ElementType::F32, ElementType::Bf16, ElementType::Int16] {
            let kernel = Kernel::detect(numbers);
            assert!(kernel.is_supported() && kernel.is_for(numbers), "{kernel:?}");
        }
        assert!(Kernel::PortableF32.is_supported());
    }

    #[test]
    fn weights_use_a_supported_float32_kernel() {
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
