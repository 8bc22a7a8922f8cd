//! Kinds of constructed windows.

use crate::base::random::Rng;

/// Input of a construction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base<'a> {
    /// Whole window: `[tokens]`.
    pub(crate) window: &'a [u32],
    /// Other sampled documents of the category in sample order, each at least as long as the window.
    pub(crate) others: &'a [&'a [u32]],
}

impl Base<'_> {
    /// Returns a random range of the document `other`.
    pub(super) fn span(&self, other: usize, length: usize, rng: &mut Rng) -> &[u32] {
        let document = self.others[other];
        let start = rng.below(document.len() - length + 1);
        &document[start..start + length]
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowKind {
    /// Name in tables and files: `pieces_8`.
    pub(crate) name: &'static str,
    pub(crate) role: KindRole,
    /// Pools of one real to five other windows for the top-fifth test.
    pub(crate) pools: &'static [Pool],
    /// Description as a noun phrase: `pieces of eight documents`.
    pub(crate) doc: &'static str,
    /// Returns as many ids as the base has; `None` if the category has too few documents or the window is too short.
    pub(crate) construct: fn(&Base<'_>, &mut Rng) -> Option<Vec<u32>>,
}

impl WindowKind {
    /// Returns the key of its random numbers: the name, except for twins that differ only in their last step.
    pub(crate) fn key(&self) -> &'static str {
        self.name.trim_end_matches("_twin")
    }
}

/// A pool of whole windows and five other kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    Fixed,
    /// Copies and boilerplate at varying distances.
    Jittered,
}

/// Comparison in which a kind is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindRole {
    /// A window of the corpus itself.
    Whole,
    /// Compared with all whole windows of the category: the ladder.
    Ladder,
    /// Compared with the whole window it was made of: its long-range dependence is removed.
    Dependence,
    /// Contains inserted long-range dependence; compared with its twin, which has the same tokens without it.
    Planted,
    PlantedTwin,
    /// Junk, compared with the whole window it was made of, which should rank higher.
    Junk,
    /// Compared with the whole window it was made of, for information only.
    Information,
    /// Only correlated with the whole window: shows how much of a score depends on the tokens alone.
    Tokens,
}
