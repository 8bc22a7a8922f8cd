//! The kernels there are, and which of them this processor has.

use serde::{Deserialize, Serialize};

use crate::panels::Layout;
use crate::support::{has_fast_bf16_pairs, missing};
use crate::tile;

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
    /// Pairs of bf16 with 512-bit vectors; `x86_64` with AVX-512 F, DQ and BF16.
    #[serde(rename = "avx512-bf16")]
    Avx512Bf16,
    /// Tiles of bf16; `x86_64` with AMX-TILE and AMX-BF16 beside AVX-512, on Linux.
    #[serde(rename = "amx-bf16")]
    AmxBf16,
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
}

/// The numbers that queries and keys are multiplied in. Sums and exponentials are float32, sums of sums float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// 32-bit floats.
    F32,
    /// Queries (scaled) and keys are rounded to 16 bits once, after the rotation: to bf16, or to what the kernel's name
    /// says.
    Bf16,
}

impl Kernel {
    /// Every kernel there is: those of processors, then those of GPUs.
    pub const ALL: &[Self] = &[
        Self::PortableF32,
        Self::Avx2F32,
        Self::Avx512F32,
        Self::Avx512Bf16,
        Self::AmxBf16,
        Self::CudaF32,
        Self::CudaV1Bf16,
        Self::CudaV1F16,
        Self::CudaV2Bf16,
    ];

    /// The kernels for a table of float32, fastest first.
    const FOR_F32: &[Self] = &[Self::Avx512F32, Self::Avx2F32, Self::PortableF32];

    /// The name used in settings, locks and fingerprints.
    pub fn name(self) -> &'static str {
        match self {
            Self::PortableF32 => "portable-f32",
            Self::Avx2F32 => "avx2-f32",
            Self::Avx512F32 => "avx512-f32",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::AmxBf16 => "amx-bf16",
            Self::CudaF32 => "cuda-f32",
            Self::CudaV1Bf16 => "cuda-v1-bf16",
            Self::CudaV1F16 => "cuda-v1-f16",
            Self::CudaV2Bf16 => "cuda-v2-bf16",
        }
    }

    /// The kernel called `name`, whether or not this processor has it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kernel| kernel.name() == name)
    }

    /// Whether the kernel runs on GPUs: [`crate::cuda`] launches it, not [`crate::attention_statistics`].
    pub fn is_cuda(self) -> bool {
        matches!(self, Self::CudaF32 | Self::CudaV1Bf16 | Self::CudaV1F16 | Self::CudaV2Bf16)
    }

    /// The numbers that the kernel multiplies.
    pub fn numbers(self) -> Numbers {
        match self {
            Self::PortableF32 | Self::Avx2F32 | Self::Avx512F32 | Self::CudaF32 => Numbers::F32,
            Self::Avx512Bf16
            | Self::AmxBf16
            | Self::CudaV1Bf16
            | Self::CudaV1F16
            | Self::CudaV2Bf16 => Numbers::Bf16,
        }
    }

    /// Whether the kernel may measure windows of a table of `table` numbers: one that rounds to bf16 is not for a
    /// table of float32. A float32 kernel widens a table of bf16 and rounds nothing more.
    pub fn is_for(self, table: Numbers) -> bool {
        self.numbers() == Numbers::F32 || table == Numbers::Bf16
    }

    /// Why this machine's processor cannot run the kernel; `None` where it can. The first call for `amx-bf16` asks Linux for the
    /// tile registers and checks a small product.
    pub fn missing(self) -> Option<&'static str> {
        missing(self)
    }

    /// Whether this machine can run the kernel.
    pub fn is_supported(self) -> bool {
        self.missing().is_none()
    }

    /// The fastest kernel of this machine for a table of `table` numbers. For bf16 that is a float32 kernel where the
    /// processor's own bf16 product is slower (Intel's without AMX).
    pub fn detect(table: Numbers) -> Self {
        let for_bf16: &[Self] = match table {
            Numbers::F32 => &[],
            Numbers::Bf16 if has_fast_bf16_pairs() => &[Self::AmxBf16, Self::Avx512Bf16],
            Numbers::Bf16 => &[Self::AmxBf16],
        };
        for_bf16
            .iter()
            .chain(Self::FOR_F32)
            .copied()
            .find(|kernel| kernel.is_supported())
            .unwrap_or(Self::PortableF32)
    }

    /// The kernel that multiplies weights where this one measures windows: weights are float32, whatever a window's
    /// numbers are, so kernels that round to bf16 leave them to `avx512-f32`, and those of GPUs to `avx2-f32` (to
    /// `portable-f32` beside a processor without it).
    #[must_use]
    pub fn for_weights(self) -> Self {
        match self {
            Self::Avx512Bf16 | Self::AmxBf16 => Self::Avx512F32,
            gpu if gpu.is_cuda() && Self::Avx2F32.is_supported() => Self::Avx2F32,
            gpu if gpu.is_cuda() => Self::PortableF32,
            float => float,
        }
    }

    /// How the kernel wants queries and keys.
    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Avx2F32 => tile::AVX2,
            Self::Avx512F32 => tile::AVX512,
            Self::Avx512Bf16 => tile::PAIRS,
            Self::AmxBf16 => tile::AMX,
            _ => tile::PORTABLE,
        }
    }

    /// Stops a caller that would run instructions the processor lacks.
    pub(crate) fn assert_supported(self) {
        if let Some(why) = self.missing() {
            panic!("this machine does not run the kernel `{}`: {why}", self.name());
        }
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
    fn the_detected_kernel_is_supported_and_fits_the_table() {
        for table in [Numbers::F32, Numbers::Bf16] {
            let kernel = Kernel::detect(table);
            assert!(kernel.is_supported() && kernel.is_for(table), "{kernel:?}");
        }
        assert!(Kernel::PortableF32.is_supported());
    }

    #[test]
    fn only_a_bf16_table_may_be_rounded_to_bf16() {
        for &kernel in Kernel::ALL {
            assert!(kernel.is_for(Numbers::Bf16));
            assert_eq!(kernel.is_for(Numbers::F32), kernel.name().ends_with("-f32"));
        }
    }
}
