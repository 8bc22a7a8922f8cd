//! The tokens of the window in another order.

use super::kind::{KindRole, WindowKind};

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
