//! The kernels there are.

use serde::{Deserialize, Serialize};

/// One compiled form of the hot loops. Each gives its own bits, the same on every machine that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kernel {
    /// Plain float32, multiply then add; runs everywhere.
    #[serde(rename = "portable-f32")]
    PortableF32,
    /// Float32 with 256-bit vectors and fused multiply-add; `x86_64` with AVX2 and FMA.
    #[serde(rename = "avx2-f32")]
    Avx2F32,
    /// Float32 with 512-bit vectors; `x86_64` with AVX-512 F and DQ.
    #[serde(rename = "avx512-f32")]
    Avx512F32,
    /// Float32 with 128-bit vectors and fused multiply-add, the bits of [`Self::Avx2F32`]; every `aarch64`.
    #[serde(rename = "neon-f32")]
    NeonF32,
    /// Pairs of bf16 with 512-bit vectors; `x86_64` with AVX-512 F, DQ and BF16.
    #[serde(rename = "avx512-bf16")]
    Avx512Bf16,
    /// Tiles of bf16; `x86_64` with AMX-TILE and AMX-BF16 beside AVX-512, on Linux.
    #[serde(rename = "amx-bf16")]
    AmxBf16,
    /// As [`Self::AmxBf16`], each number as the sum of two bf16, three products instead of one: a logit is off by about 4e-6 of
    /// the logits' standard deviation. Taken only where it is asked for by name.
    #[serde(rename = "amx-bf16x3")]
    AmxBf16x3,
    /// As [`Self::Avx512Int16`], in plain Rust: the same bits, slowly; runs everywhere.
    #[serde(rename = "portable-int16")]
    PortableInt16,
    /// As [`Self::Avx512Int16`], the same bits; `x86_64` with AVX2 and FMA.
    #[serde(rename = "avx2-int16")]
    Avx2Int16,
    /// Pairs of 16-bit integers with 512-bit vectors: a logit is off by about 1e-4 of the logits' standard deviation
    /// (heads of 128); `x86_64` with AVX-512 F, DQ and VNNI.
    #[serde(rename = "avx512-int16")]
    Avx512Int16,
    /// As [`Self::Avx512Int16`], the same bits; every `aarch64`.
    #[serde(rename = "neon-int16")]
    NeonInt16,
    /// Float32 on a GPU, without tensor cores.
    #[serde(rename = "cuda-f32")]
    CudaF32,
    /// Bf16 on the tensor cores of a GPU of compute capability 8.0 or later.
    #[serde(rename = "cuda-v1-bf16")]
    CudaV1Bf16,
    /// As `cuda-v1-bf16`, rounded to f16 instead: more digits, a smaller range.
    #[serde(rename = "cuda-v1-f16")]
    CudaV1F16,
    /// Bf16 with the instructions of compute capability 9.0 (Hopper).
    #[serde(rename = "cuda-v2-bf16")]
    CudaV2Bf16,
    /// As `cuda-v2-bf16` with fewer instructions; taken where it is asked for by name until it has run on silicon.
    #[serde(rename = "cuda-v3-bf16")]
    CudaV3Bf16,
}

/// The numbers that queries and keys are multiplied in. Sums and exponentials are float32, sums of sums float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// Queries (scaled) and keys are rounded to 16 bits once, after the rotation: to bf16, or to what the kernel's name
    /// says.
    Bf16,
    /// Queries and keys (scaled) become sums of two bf16 each once, after the rotation, to 17 bits; the products of the small
    /// parts are left out.
    Bf16x3,
    /// Queries and keys (scaled) are rounded to 16-bit integers once, after the rotation, each row by a scale of its own
    /// that makes it as long as products below 2^31 allow. Products and their sums are exact.
    Int16,
}

impl Kernel {
    /// Every kernel there is: those of processors, then those of GPUs.
    pub const ALL: &[Self] = &[
        Self::PortableF32,
        Self::Avx2F32,
        Self::Avx512F32,
        Self::NeonF32,
        Self::Avx512Bf16,
        Self::AmxBf16,
        Self::AmxBf16x3,
        Self::PortableInt16,
        Self::Avx2Int16,
        Self::Avx512Int16,
        Self::NeonInt16,
        Self::CudaF32,
        Self::CudaV1Bf16,
        Self::CudaV1F16,
        Self::CudaV2Bf16,
        Self::CudaV3Bf16,
    ];

    /// The name used in settings, locks and fingerprints.
    pub fn name(self) -> &'static str {
        match self {
            Self::PortableF32 => "portable-f32",
            Self::Avx2F32 => "avx2-f32",
            Self::Avx512F32 => "avx512-f32",
            Self::NeonF32 => "neon-f32",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::AmxBf16 => "amx-bf16",
            Self::AmxBf16x3 => "amx-bf16x3",
            Self::PortableInt16 => "portable-int16",
            Self::Avx2Int16 => "avx2-int16",
            Self::Avx512Int16 => "avx512-int16",
            Self::NeonInt16 => "neon-int16",
            Self::CudaF32 => "cuda-f32",
            Self::CudaV1Bf16 => "cuda-v1-bf16",
            Self::CudaV1F16 => "cuda-v1-f16",
            Self::CudaV2Bf16 => "cuda-v2-bf16",
            Self::CudaV3Bf16 => "cuda-v3-bf16",
        }
    }

    /// The kernel called `name`, whether or not this processor has it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kernel| kernel.name() == name)
    }

    /// Whether the kernel runs on GPUs: [`crate::cuda`] launches it, not [`crate::attention_statistics`].
    pub fn is_cuda(self) -> bool {
        matches!(
            self,
            Self::CudaF32
                | Self::CudaV1Bf16
                | Self::CudaV1F16
                | Self::CudaV2Bf16
                | Self::CudaV3Bf16
        )
    }

    /// The numbers that the kernel multiplies.
    pub fn element_type(self) -> ElementType {
        match self {
            Self::PortableF32 | Self::Avx2F32 | Self::Avx512F32 | Self::NeonF32 | Self::CudaF32 => {
                ElementType::F32
            }
            Self::Avx512Bf16
            | Self::AmxBf16
            | Self::CudaV1Bf16
            | Self::CudaV1F16
            | Self::CudaV2Bf16
            | Self::CudaV3Bf16 => ElementType::Bf16,
            Self::AmxBf16x3 => ElementType::Bf16x3,
            Self::PortableInt16 | Self::Avx2Int16 | Self::Avx512Int16 | Self::NeonInt16 => {
                ElementType::Int16
            }
        }
    }

    /// Whether the kernel may measure windows where `numbers` were asked for: one that rounds to 16 bits is for those alone that
    /// it rounds to. A float32 kernel widens a table of bf16 and rounds nothing more, one of sums of two bf16 may be named in the
    /// place of either; integers are multiplied everywhere.
    pub fn is_for(self, numbers: ElementType) -> bool {
        let floats = match self.element_type() {
            ElementType::F32 | ElementType::Bf16x3 => numbers != ElementType::Int16,
            ElementType::Bf16 | ElementType::Int16 => false,
        };
        floats || self.element_type() == numbers
    }
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
    fn a_kernel_rounds_only_to_the_numbers_that_were_asked_for() {
        for &kernel in Kernel::ALL {
            let (floats, integers) = (
                kernel.name().ends_with("-f32") || kernel.name().ends_with("-bf16x3"),
                kernel.name().ends_with("-int16"),
            );
            assert_eq!(kernel.is_for(ElementType::F32), floats);
            assert_eq!(kernel.is_for(ElementType::Int16), integers);
            assert_eq!(kernel.is_for(ElementType::Bf16), !integers);
        }
    }
}
