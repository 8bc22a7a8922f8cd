//! Which kernels this machine has, and why not the others.

use std::sync::OnceLock;

use crate::kernel::{ElementType, Kernel};

/// The kernels for a table of float32, fastest first.
const FOR_F32: &[Kernel] = &[Kernel::Avx512F32, Kernel::Avx2F32, Kernel::PortableF32];
/// Those that multiply integers, fastest first.
const FOR_INT16: &[Kernel] = &[Kernel::Avx512Int16, Kernel::Avx2Int16, Kernel::PortableInt16];

impl Kernel {
    /// Why this machine's processor cannot run the kernel; `None` where it can. The first call for `amx-bf16` asks Linux for the
    /// tile registers and checks a small product.
    pub fn unsupported_reason(self) -> Option<&'static str> {
        match self {
            Self::PortableF32 | Self::PortableInt16 => None,
            gpu if gpu.is_cuda() => Some("it runs on GPUs"),
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
            Self::AmxBf16 => {
                static REASON: OnceLock<Option<&str>> = OnceLock::new();
                *REASON.get_or_init(amx::unsupported_reason)
            }
            _ => Some("it is for x86_64 processors"),
        }
    }

    /// Whether this machine can run the kernel.
    pub fn is_supported(self) -> bool {
        self.unsupported_reason().is_none()
    }

    /// The fastest kernel of this machine for `numbers`. For bf16 that is a float32 kernel where the processor's own bf16
    /// product is slower (Intel's without AMX).
    pub fn detect(numbers: ElementType) -> Self {
        let (rounding, others): (&[Self], &[Self]) = match numbers {
            ElementType::F32 => (&[], FOR_F32),
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
            Self::Avx512Bf16 | Self::AmxBf16 | Self::Avx512Int16 => Self::Avx512F32,
            Self::Avx2Int16 => Self::Avx2F32,
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

#[cfg(target_arch = "x86_64")]
mod amx {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    use crate::tile::amx::AmxTile;
    use crate::tile::{AMX, LOGIT_STRIDE, Tile};

    /// What stands against AMX: the processor, the system, or a product that comes out wrong.
    pub(super) fn unsupported_reason() -> Option<&'static str> {
        if let Some(reason) = super::avx512_unsupported_reason() {
            return Some(reason);
        }
        // Intel's manual, volume 2, CPUID: leaf 7, EDX bits 22 (AMX-BF16) and 24 (AMX-TILE).
        let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 };
        if features >> 22 & 0b101 != 0b101 {
            return Some("the processor has no AMX with bf16, or the hypervisor hides it");
        }
        if !tiles_are_saved() {
            return Some("the operating system does not save AMX's tiles");
        }
        if !permission_given() {
            return Some("Linux does not permit this process to use AMX's tiles");
        }
        // SAFETY: AVX-512 F and DQ, AMX-TILE and AMX-BF16 were seen and the permission was given.
        let right = unsafe { product_is_right() };
        (!right).then_some("its self-check gives a wrong product")
    }

    /// Whether XCR0 has the bits of the tile configuration (17) and the tile data (18).
    fn tiles_are_saved() -> bool {
        if !is_x86_feature_detected!("xsave") {
            return false;
        }
        // SAFETY: `xsave` means that the system has switched XGETBV on.
        let enabled = unsafe { xcr0() };
        enabled >> 17 & 0b11 == 0b11
    }

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: register 0 always exists.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }

    /// Asks Linux for the tile data, for all threads of the process: a kernel grants them only when asked.
    fn permission_given() -> bool {
        #[cfg(target_os = "linux")]
        {
            const ARCH_PRCTL: i64 = 158;
            const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
            const TILE_DATA: u64 = 18;
            let mut result = ARCH_PRCTL;
            // SAFETY: this call takes two numbers and touches no memory of ours.
            unsafe {
                std::arch::asm!("syscall", inout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM,
                    in("rsi") TILE_DATA, out("rcx") _, out("r11") _, options(nostack));
            }
            result == 0
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    /// One product of two tiles' depth against plain Rust, exact because all numbers are small integers.
    ///
    /// # Safety
    /// As for [`AmxTile::new`].
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn product_is_right() -> bool {
        const DEPTH: usize = 32;
        let number = |row: usize, d: usize| ((row * 7 + d * 5) % 13) as f32 - 6.0;
        let mut queries = vec![0; AMX.keys * DEPTH];
        let mut rows = vec![0; AMX.keys * DEPTH];
        let mut keys = vec![0; AMX.keys * DEPTH];
        for row in 0..AMX.keys {
            let values = |shift: usize| -> Vec<f32> {
                (0..2 * DEPTH).map(|d| number(row + shift, d)).collect()
            };
            let words = row * DEPTH..(row + 1) * DEPTH;
            AMX.convert(&mut values(0), None, &mut queries[words.clone()]);
            AMX.convert(&mut values(40), None, &mut rows[words]);
        }
        crate::panels::regroup(&rows, DEPTH, AMX.keys, &mut keys);
        let mut logits = vec![0.0; AMX.keys * LOGIT_STRIDE];
        // SAFETY: the caller's promise.
        let tile = unsafe { AmxTile::new() };
        let session = tile.begin();
        tile.multiply(&queries, &keys, AMX.keys, &mut logits);
        drop(session);
        (0..AMX.keys).all(|row| {
            (0..AMX.keys).all(|key| {
                let product = |d| number(row, d) * number(key + 40, d);
                let want: f32 = (0..2 * DEPTH).map(product).sum();
                logits[row * LOGIT_STRIDE + key].to_bits() == want.to_bits()
            })
        })
    }
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
