//! The kernels, one row of a table each.

use serde::{Deserialize, Serialize};

use crate::panels::{AMX, AVX2, AVX512, ElementType, Layout, PORTABLE, integers};

/// Hardware that a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requirement {
    Nothing,
    Avx2,
    Avx512,
    Avx512Vnni,
    Amx,
    Neon,
    Gpu,
}

/// One row of the table of kernels.
#[derive(Clone, Copy)]
pub(crate) struct KernelInfo {
    name: &'static str,
    element: ElementType,
    pub(crate) requires: Requirement,
    /// Layout of packed queries and keys; `None` for GPUs.
    layout: Option<Layout>,
    /// The float32 kernel that multiplies weights for this one; `None` for GPUs, whose host decides.
    pub(crate) weights: Option<Kernel>,
    /// The float32 kernel that computes attention with values and activations for this one.
    pub(crate) values: Option<Kernel>,
}

macro_rules! kernels {
    ($($(#[$documentation:meta])*
    $kernel:ident $name:literal, $element:ident, $requires:ident, $layout:expr, $weights:expr, $values:expr;)*) => {
        /// One compiled variant of the hot loops. Results have the same bits on every machine; those of different
        /// kernels may differ in their last bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kernel {
            $($(#[$documentation])* #[serde(rename = $name)] $kernel,)*
        }

        impl Kernel {
            /// Every kernel: those of processors, then those of GPUs.
            pub const ALL: &[Self] = &[$(Self::$kernel),*];

            pub(crate) const fn info(self) -> KernelInfo {
                match self {
                    $(Self::$kernel => KernelInfo {
                        name: $name,
                        element: ElementType::$element,
                        requires: Requirement::$requires,
                        layout: $layout,
                        weights: $weights,
                        values: $values,
                    },)*
                }
            }
        }
    };
}

use Kernel::{Avx2F32, Avx512F32, NeonF32, PortableF32};

// Columns: name, element type, required hardware, layout, float32 kernel for weights, float32 kernel for values.
kernels! {
    /// Plain float32, multiply then add; runs everywhere.
    PortableF32 "portable-f32", F32, Nothing, Some(PORTABLE), Some(PortableF32), Some(PortableF32);
    /// Float32 with 256-bit vectors and fused multiply-add; `x86_64` with AVX2 and FMA.
    Avx2F32 "avx2-f32", F32, Avx2, Some(AVX2), Some(Avx2F32), Some(Avx2F32);
    /// Float32 with 512-bit vectors; `x86_64` with AVX-512 F and DQ.
    Avx512F32 "avx512-f32", F32, Avx512, Some(AVX512), Some(Avx512F32), Some(Avx512F32);
    /// Float32 with 128-bit vectors and fused multiply-add, the bits of [`Self::Avx2F32`]; every `aarch64`. Values and
    /// activations take portable code.
    NeonF32 "neon-f32", F32, Neon, Some(AVX2), Some(NeonF32), Some(PortableF32);
    /// Tiles of bf16; `x86_64` with AMX-TILE and AMX-BF16 in addition to AVX-512, on Linux.
    AmxBf16 "amx-bf16", Bf16, Amx, Some(AMX), Some(Avx512F32), Some(Avx512F32);
    /// Same bits as [`Self::Avx512Int16`] in plain Rust: the tests' reference, too slow for runs.
    PortableInt16 "portable-int16", Int16, Nothing, Some(integers(4, 8)), Some(PortableF32), Some(PortableF32);
    /// Same bits as [`Self::Avx512Int16`]; `x86_64` with AVX2 and FMA.
    Avx2Int16 "avx2-int16", Int16, Avx2, Some(integers(6, 16)), Some(Avx2F32), Some(Avx2F32);
    /// Pairs of 16-bit integers with 512-bit vectors: a logit is off by about 1e-4 of the logits' standard deviation
    /// (heads of 128); `x86_64` with AVX-512 F, DQ and VNNI.
    Avx512Int16 "avx512-int16", Int16, Avx512Vnni, Some(integers(12, 32)), Some(Avx512F32), Some(Avx512F32);
    /// Float32 on a GPU, without tensor cores.
    CudaF32 "cuda-f32", F32, Gpu, None, None, None;
    /// Bf16 on the tensor cores of a GPU of compute capability 8.0 or later.
    CudaV1Bf16 "cuda-v1-bf16", Bf16, Gpu, None, None, None;
    /// Bf16 with the instructions of compute capability 9.0 (Hopper).
    CudaV2Bf16 "cuda-v2-bf16", Bf16, Gpu, None, None, None;
    /// Fewer instructions than `cuda-v2-bf16`; never chosen automatically, because it has not run on silicon yet.
    CudaV3Bf16 "cuda-v3-bf16", Bf16, Gpu, None, None, None;
}

/// Kernels of earlier versions, each with the kernel that replaces it for the same `precision`.
const REMOVED: [(&str, Kernel); 4] = [
    ("avx512-bf16", Kernel::Avx512F32),
    ("amx-bf16x3", Kernel::Avx512F32),
    ("neon-int16", Kernel::PortableInt16),
    ("cuda-v1-f16", Kernel::CudaV1Bf16),
];

impl Kernel {
    /// Returns the name used in settings, locks and fingerprints.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// Returns the kernel called `name`, whether or not this processor runs it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kernel| kernel.name() == name)
    }

    /// Returns the kernel that replaces one of an earlier version; `None` if no version had a kernel called `name`.
    pub fn replacement_of(name: &str) -> Option<Self> {
        REMOVED.iter().find(|(removed, _)| *removed == name).map(|(_, kernel)| *kernel)
    }

    /// Whether the kernel runs on GPUs: [`crate::cuda`] launches it, not [`crate::attention_statistics`].
    pub fn is_cuda(self) -> bool {
        self.info().requires == Requirement::Gpu
    }

    pub const fn element_type(self) -> ElementType {
        self.info().element
    }

    /// Whether the kernel may measure windows when `numbers` are requested. A kernel that rounds to 16 bits serves only the
    /// type that it rounds to; a float32 kernel widens a table of bf16 and rounds nothing more.
    pub fn is_for(self, numbers: ElementType) -> bool {
        let own = self.element_type();
        own == numbers || (own == ElementType::F32 && numbers == ElementType::Bf16)
    }

    /// Returns the layout of packed queries and keys.
    pub(crate) fn layout(self) -> Layout {
        self.info().layout.expect("kernels of GPUs pack nothing on the processor")
    }
}

/// Returns the float32 kernels that this processor has.
#[cfg(test)]
pub(crate) fn supported_float_kernels() -> impl Iterator<Item = Kernel> {
    let is_float =
        |kernel: &Kernel| kernel.is_supported() && kernel.element_type() == ElementType::F32;
    Kernel::ALL.iter().copied().filter(is_float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_found_by_its_name() {
        for &kernel in Kernel::ALL {
            assert_eq!(Kernel::from_name(kernel.name()), Some(kernel));
        }
        assert_eq!(Kernel::from_name("avx3"), None);
    }

    #[test]
    fn kernels_round_only_to_the_requested_type() {
        for &kernel in Kernel::ALL {
            let floats = kernel.name().ends_with("-f32");
            let integers = kernel.name().ends_with("-int16");
            assert_eq!(kernel.is_for(ElementType::F32), floats);
            assert_eq!(kernel.is_for(ElementType::Int16), integers);
            assert_eq!(kernel.is_for(ElementType::Bf16), !integers);
        }
    }

    #[test]
    fn removed_kernels_have_replacements() {
        for (name, replacement) in REMOVED {
            assert_eq!(Kernel::from_name(name), None);
            assert_eq!(Kernel::replacement_of(name), Some(replacement));
        }
        assert_eq!(Kernel::replacement_of("avx3"), None);
    }
}
