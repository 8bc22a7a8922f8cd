//! Constructed windows of an evaluation, made of whole windows, which a score should rank lower.
//!
//! A construction is a [`WindowKind`] in [`KINDS`]: a function of the base window, the other sampled documents of its category,
//! and random numbers, which are drawn in the order of the code.

mod copies;
mod jittered;
mod kind;
mod pieces;
mod plant;
mod shuffles;

pub(crate) use kind::{Base, KindRole, Pool, WindowKind};

/// All kinds, in the order in which the windows of a base are built.
pub(crate) const KINDS: [WindowKind; 18] = [
    WHOLE,
    pieces::TWO,
    pieces::FOUR,
    pieces::EIGHT,
    shuffles::PERMUTED,
    shuffles::SWAPPED,
    plant::PLANTED,
    plant::TWIN,
    shuffles::CHUNKS,
    shuffles::TOKENS,
    copies::DUPLICATED,
    copies::REPEATED,
    copies::FAR,
    copies::NEAR,
    copies::HEADER,
    jittered::BOILERPLATE,
    jittered::HEADER,
    jittered::DUPLICATED,
];

const WHOLE: WindowKind = WindowKind {
    name: "whole",
    role: KindRole::Whole,
    pools: &[Pool::Fixed, Pool::Jittered],
    doc: "a window of one document",
    construct: |base, _| Some(base.window.to_vec()),
};
