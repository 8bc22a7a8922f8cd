//! The kernels there are, and which of them this processor has.

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
}

impl Kernel {
    /// Every kernel of this build, slowest first.
    pub const ALL: &[Self] = &[Self::PortableF32, Self::Avx2F32];

    /// The name used in settings, locks and fingerprints.
    pub fn name(self) -> &'static str {
        match self {
            Self::PortableF32 => "portable-f32",
            Self::Avx2F32 => "avx2-f32",
        }
    }

    /// The kernel called `name`, whether or not this processor has it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kernel| kernel.name() == name)
    }

    /// Whether this processor can run the kernel.
    pub fn is_supported(self) -> bool {
        match self {
            Self::PortableF32 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2F32 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2F32 => false,
        }
    }

    /// The fastest kernel that this processor has.
    pub fn detect() -> Self {
        Self::ALL
            .iter()
            .rev()
            .copied()
            .find(|kernel| kernel.is_supported())
            .unwrap_or(Self::PortableF32)
    }

    /// Keys (or outputs) that one packed panel holds: the width of the kernel's register tile.
    pub(crate) fn panel_width(self) -> usize {
        match self {
            Self::PortableF32 => crate::tile::PORTABLE_COLUMNS,
            Self::Avx2F32 => crate::tile::AVX2_COLUMNS,
        }
    }

    /// Rows of one packed panel: the height of the kernel's register tile.
    pub(crate) fn panel_height(self) -> usize {
        match self {
            Self::PortableF32 => crate::tile::PORTABLE_ROWS,
            Self::Avx2F32 => crate::tile::AVX2_ROWS,
        }
    }

    /// Stops a caller that would run instructions the processor lacks.
    pub(crate) fn assert_supported(self) {
        assert!(
            self.is_supported(),
            "kernel `{}` needs processor features that this machine lacks",
            self.name()
        );
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
    fn the_detected_kernel_is_supported_and_the_portable_one_always_is() {
        assert!(Kernel::detect().is_supported());
        assert!(Kernel::PortableF32.is_supported());
    }
}
