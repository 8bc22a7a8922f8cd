//! Windows in another order, or without the first half on which the second half could depend.

use super::kind::{Base, KindRole, WindowKind};

pub(super) const PERMUTED: WindowKind = WindowKind {
    name: "far_permute",
    role: KindRole::Dependence,
    pools: &[],
    doc: "its first half in random order",
    construct: |base, rng| {
        let order = rng.permutation(base.window.len() / 2);
        let mut window = base.window.to_vec();
        window.iter_mut().zip(order).for_each(|(id, from)| *id = base.window[from]);
        Some(window)
    },
};

pub(super) const SWAPPED: WindowKind = WindowKind {
    name: "far_swap",
    doc: "its first half from another document",
    construct: |base: &Base<'_>, rng| {
        let half = base.window.len() / 2;
        let other = (!base.others.is_empty()).then(|| rng.below(base.others.len()))?;
        let mut window = base.window.to_vec();
        window[..half].copy_from_slice(base.span(other, half, rng));
        Some(window)
    },
    ..PERMUTED
};

pub(super) const CHUNKS: WindowKind = WindowKind {
    name: "chunk_shuffle",
    role: KindRole::Information,
    pools: &[],
    doc: "its sixteen chunks in random order (turns near links into far ones)",
    construct: |base, rng| {
        let length = (base.window.len() / 16).max(1);
        let order = rng.permutation(base.window.len() / length);
        let mut window = base.window.to_vec();
        for (chunk, from) in window.chunks_exact_mut(length).zip(order) {
            chunk.copy_from_slice(&base.window[from * length..][..length]);
        }
        Some(window)
    },
};

pub(super) const TOKENS: WindowKind = WindowKind {
    name: "token_shuffle",
    role: KindRole::Tokens,
    doc: "its tokens in random order",
    construct: |base, rng| {
        let order = rng.permutation(base.window.len());
        Some(order.into_iter().map(|from| base.window[from]).collect())
    },
    ..CHUNKS
};
