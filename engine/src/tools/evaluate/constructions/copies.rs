//! Text that repeats itself, worthless long-range dependence: copies, and boilerplate at a fixed period between text, like page
//! headers, licences and menus.

use super::kind::{KindRole, Pool, WindowKind};

pub(super) const DUPLICATED: WindowKind = WindowKind {
    name: "dup",
    role: KindRole::Junk,
    pools: &[Pool::Fixed],
    doc: "its first half twice, one token in twenty changed in the copy",
    construct: |base, rng| {
        let (tokens, half) = (base.window.len(), base.window.len() / 2);
        let mut window = base.window.to_vec();
        window.copy_within(..half, half);
        for id in &mut window[half..2 * half] {
            if rng.below(20) == 0 {
                *id = base.window[rng.below(tokens)];
            }
        }
        Some(window)
    },
};

pub(super) const REPEATED: WindowKind = WindowKind {
    name: "rep",
    pools: &[Pool::Fixed, Pool::Jittered],
    doc: "its first 256 tokens repeated",
    construct: |base, _| {
        let period = (base.window.len() / 4).clamp(1, 256);
        Some((0..base.window.len()).map(|place| base.window[place % period]).collect())
    },
    ..DUPLICATED
};

pub(super) const FAR: WindowKind = WindowKind {
    name: "boil_far",
    role: KindRole::Junk,
    pools: &[Pool::Fixed],
    doc: "its first sixteenth repeated far apart between its text",
    construct: |base, _| interleave(base.window, base.window.len() / 16, 3 * base.window.len() / 8),
};

pub(super) const NEAR: WindowKind = WindowKind {
    name: "boil_near",
    pools: &[],
    doc: "its first block repeated eight times between its text",
    construct: |base, _| interleave(base.window, base.window.len() / 32, base.window.len() / 8),
    ..FAR
};

pub(super) const HEADER: WindowKind = WindowKind {
    name: "header",
    doc: "its first sixteen tokens repeated eight times between its text",
    construct: |base, _| {
        interleave(base.window, (base.window.len() / 32).min(16), base.window.len() / 8)
    },
    ..FAR
};

/// Repeats the first `block` tokens every `period` tokens, with the rest of the window in between, cut to its length.
fn interleave(window: &[u32], block: usize, period: usize) -> Option<Vec<u32>> {
    let from = |place: usize| match (place / period, place % period) {
        (_, inside) if inside < block => window[inside],
        (round, inside) => window[round * (period - block) + inside],
    };
    (block > 0).then(|| (0..window.len()).map(from).collect())
}
