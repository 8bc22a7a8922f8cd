//! Checks that this machine may use AMX tiles and computes right products.

use std::arch::x86_64::{__cpuid, __cpuid_count};

use crate::child::{ChildOutcome, in_child};
use crate::online_softmax::{Logits, STRIP_ROWS};
use crate::panels::{AMX, one_panel_each};
use crate::tile::Tile;
use crate::tile::amx::AmxTile;

/// Returns the reason why AMX cannot be used on a processor with AVX-512 F and DQ: the processor, the system, or a
/// wrong product.
pub(super) fn unsupported_reason() -> Option<&'static str> {
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
    self_check()
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

/// Requests the tile data from Linux for all threads of the process.
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

/// Checks a product of tiles in a child process: a hypervisor may report AMX that does not exist, and then the first
/// tile instruction ends the process that runs it. Requires AVX-512 F and DQ.
fn self_check() -> Option<&'static str> {
    let check = ProductCheck::new();
    let mut logits = [[0.0; STRIP_ROWS]; AMX.keys];
    // SAFETY: the child multiplies numbers in memory and compares them: it allocates nothing and acquires no lock. Only in the
    // child may the instructions be missing.
    let outcome = unsafe { in_child(|| check.is_right(&mut logits)) };
    match outcome {
        ChildOutcome::Answered(true) => None,
        ChildOutcome::Answered(false) => Some("its self-check computes a wrong product"),
        ChildOutcome::Killed => Some(
            "its instructions kill the process: the hypervisor reports AMX, which does not exist",
        ),
        ChildOutcome::Unknown => {
            Some("its self-check timed out, or its child process could not be started")
        }
    }
}

/// One product of two tiles' depth against plain Rust, exact because all numbers are small integers.
struct ProductCheck {
    queries: Vec<u32>,
    keys: Vec<u32>,
}

impl ProductCheck {
    const DEPTH: usize = 32;
    /// The keys are the rows from this one on.
    const KEYS: usize = 40;

    fn number(row: usize, d: usize) -> f32 {
        ((row * 7 + d * 5) % 13) as f32 - 6.0
    }

    fn new() -> Self {
        let head_dim = 2 * Self::DEPTH;
        let rows = |first: usize| -> Vec<f32> {
            let number = |at: usize| Self::number(first + at / head_dim, at % head_dim);
            (0..AMX.keys * head_dim).map(number).collect()
        };
        let [queries, keys] = one_panel_each(AMX, head_dim, [&rows(0), &rows(Self::KEYS)]);
        Self { queries, keys }
    }

    /// Allocates nothing.
    ///
    /// # Safety
    /// See [`AmxTile::new`].
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn is_right(&self, logits: &mut Logits) -> bool {
        // SAFETY: the caller's promise.
        let tile = unsafe { AmxTile::new() };
        let mut session = tile.begin();
        tile.multiply(&mut session, &self.keys, &self.queries, STRIP_ROWS, logits);
        drop(session);
        (0..STRIP_ROWS).all(|row| {
            (0..AMX.keys).all(|key| {
                let product = |d| Self::number(row, d) * Self::number(Self::KEYS + key, d);
                let want: f32 = (0..2 * Self::DEPTH).map(product).sum();
                logits[key][row].to_bits() == want.to_bits()
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a hypervisor that reports AMX wrongly: CPUID is not checked.
    #[test]
    #[cfg_attr(not(longsift_avx512), ignore = "needs a processor with AVX-512")]
    fn missing_tile_instructions_end_a_child_process_only() {
        // First, because it requests the tiles from Linux: without permission they end a child as well.
        let supported = unsupported_reason().is_none();
        let reason = self_check();
        if supported {
            assert_eq!(reason, None);
        } else {
            let message = reason.expect("without AMX no product is right");
            assert!(message.starts_with("its instructions kill the process"), "{message}");
        }
    }
}
