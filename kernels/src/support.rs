//! What this machine lacks for a kernel.

use std::sync::OnceLock;

use crate::kernel::Kernel;

/// Why this machine does not run `kernel`; `None` where it does.
pub(crate) fn missing(kernel: Kernel) -> Option<&'static str> {
    match kernel {
        Kernel::PortableF32 => None,
        gpu if gpu.is_cuda() => Some("it runs on GPUs"),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2F32 => (!(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")))
            .then_some("the processor has no AVX2 with FMA"),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512F32 => missing_avx512(),
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512Bf16 => missing_avx512().or_else(|| {
            (!is_x86_feature_detected!("avx512bf16")).then_some("the processor has no AVX-512 BF16")
        }),
        #[cfg(target_arch = "x86_64")]
        Kernel::AmxBf16 => {
            static MISSING: OnceLock<Option<&str>> = OnceLock::new();
            *MISSING.get_or_init(amx::missing)
        }
        _ => Some("it is for x86_64 processors"),
    }
}

#[cfg(target_arch = "x86_64")]
fn missing_avx512() -> Option<&'static str> {
    (!(is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq")))
        .then_some("the processor has no AVX-512 F and DQ")
}

/// Whether `vdpbf16ps` is worth having where AVX-512 is there anyway. On Intel's processors (measured: Emerald Rapids)
/// it takes four times as long as a float32 multiply-add, for twice as many products; on AMD's it takes as long.
pub(crate) fn has_fast_bf16_pairs() -> bool {
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
    pub(super) fn missing() -> Option<&'static str> {
        if let Some(missing) = super::missing_avx512() {
            return Some(missing);
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
