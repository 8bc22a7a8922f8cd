//! Text that repeats itself: worthless long-range dependence.

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
