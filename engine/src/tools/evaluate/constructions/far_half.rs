//! The second half of the window without the first half on which it could depend.

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
