//! Pieces of several documents joined to one window, as packing and faulty extraction produce them.

use super::kind::{Base, KindRole, Pool, WindowKind};
use crate::base::random::Rng;

pub(super) const TWO: WindowKind = WindowKind {
    name: "pieces_2",
    role: KindRole::Ladder,
    pools: &[],
    doc: "pieces of two documents",
    construct: |base, rng| join(base, 2, rng),
};

pub(super) const FOUR: WindowKind = WindowKind {
    name: "pieces_4",
    doc: "pieces of four documents",
    construct: |base, rng| join(base, 4, rng),
    ..TWO
};

pub(super) const EIGHT: WindowKind = WindowKind {
    name: "pieces_8",
    pools: &[Pool::Fixed, Pool::Jittered],
    doc: "pieces of eight documents",
    construct: |base, rng| join(base, 8, rng),
    ..TWO
};

/// Keeps one piece of the base in place and takes the others from other documents; cuts are offset randomly from equal
/// parts.
fn join(base: &Base<'_>, pieces: usize, rng: &mut Rng) -> Option<Vec<u32>> {
    let tokens = base.window.len();
    let length = tokens / pieces;
    if base.others.len() < pieces - 1 || length < 2 {
        return None;
    }
    let step = rng.below(length);
    let cut = |piece: usize| match piece {
        0 => 0,
        _ if piece == pieces => tokens,
        _ => piece * length + step - length / 2,
    };
    let mut order = rng.permutation(base.others.len()).into_iter();
    let own = rng.below(pieces);
    let mut window = base.window.to_vec();
    for piece in (0..pieces).filter(|piece| *piece != own) {
        let (start, end) = (cut(piece), cut(piece + 1));
        let other = order.next().expect("there are enough documents");
        window[start..end].copy_from_slice(base.span(other, end - start, rng));
    }
    Some(window)
}
