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
    if !permission_given() {
        return Some("Linux does not permit this process to use AMX's tiles");
    }
    self_check()
}

/// Requests the tile data from Linux for all threads of the process. Linux permits it only if it saves the tiles.
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
    let rows = |first: usize| -> Vec<f32> {
        let number = |at: usize| number(first + at / HEAD_DIM, at % HEAD_DIM);
        (0..AMX.keys * HEAD_DIM).map(number).collect()
    };
    let panels = one_panel_each(AMX, HEAD_DIM, [&rows(0), &rows(FIRST_KEY)]);
    let mut logits = [[0.0; STRIP_ROWS]; AMX.keys];
    // SAFETY: the child multiplies numbers in memory and compares them: it allocates nothing and acquires no lock. Only in the
    // child may the instructions be missing.
    let outcome = unsafe { in_child(|| is_right(&panels, &mut logits)) };
    match outcome {
        ChildOutcome::Answered(true) => None,
        ChildOutcome::Answered(false) => Some("its self-check computes a wrong product"),
        ChildOutcome::Killed => Some(
            "its instructions kill the process: the hypervisor reports AMX, which does not exist",
        ),
        ChildOutcome::NotStarted => Some("the child process of its self-check cannot be started"),
    }
}

/// Numbers of a row of the check: the depth of two tiles.
const HEAD_DIM: usize = 64;
/// Queries are the rows from 0 on, keys those from this one on.
const FIRST_KEY: usize = 40;

/// Small integers, whose products and sums are exact.
fn number(row: usize, d: usize) -> f32 {
    ((row * 7 + d * 5) % 13) as f32 - 6.0
}

/// Compares a product of packed queries and keys with plain Rust. Allocates nothing.
///
/// # Safety
/// See [`AmxTile::new`].
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn is_right([queries, keys]: &[Vec<u32>; 2], logits: &mut Logits) -> bool {
    // SAFETY: the caller's promise.
    let tile = unsafe { AmxTile::new() };
    tile.multiply(&mut tile.begin(), keys, queries, STRIP_ROWS, logits);
    (0..STRIP_ROWS).all(|row| {
        (0..AMX.keys).all(|key| {
            let product = |d| number(row, d) * number(FIRST_KEY + key, d);
            let want: f32 = (0..HEAD_DIM).map(product).sum();
            logits[key][row].to_bits() == want.to_bits()
        })
    })
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
