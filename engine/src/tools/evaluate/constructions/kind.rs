//! What a kind of window is.

use crate::tools::evaluate::random::Rng;

/// What a construction works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base<'a> {
    /// The whole window: `[tokens]`.
    pub(crate) window: &'a [u32],
    /// The category's other sampled documents in sample order; none is shorter than the window.
    pub(crate) others: &'a [&'a [u32]],
}

impl Base<'_> {
    /// A random stretch of the document `other`.
    pub(super) fn span(&self, other: usize, length: usize, rng: &mut Rng) -> &[u32] {
        let document = self.others[other];
        let start = rng.below(document.len() - length + 1);
        &document[start..start + length]
    }
}

/// A kind of window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// `pieces_8`, as in tables and files.
    pub(crate) name: &'static str,
    /// What its random numbers are drawn for: the name, but for twins that differ in their last step alone.
    pub(crate) key: &'static str,
    /// What it is compared with, and what that says.
    pub(crate) role: Role,
    /// Its pools of one real to five other windows, of which the top fifth is taken.
    pub(crate) pools: &'static [Pool],
    /// What it is, in one clause: `eight pieces of as many documents`.
    pub(crate) doc: &'static str,
    /// The window's ids, as many as the base has; none where the category has too few documents or the window is too short.
    pub(crate) construct: fn(&Base<'_>, &mut Rng) -> Option<Vec<u32>>,
}

/// A pool of whole windows and five other kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// Copies and boilerplate at fixed distances.
    Fixed,
    /// Copies and boilerplate at distances that vary.
    Jittered,
}

/// What a kind is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The window of the corpus itself.
    Whole,
    /// All whole windows of a category against all of these: the ladder.
    Ladder,
    /// A whole window against the one made of it: what it depends on far away is gone.
    Dependence,
    /// Built of far dependence; compared with its twin, which has the same tokens and none.
    Planted,
    /// The twin of a planted window.
    PlantedTwin,
    /// A whole window against the one made of it: junk that must not win.
    Junk,
    /// A whole window against the one made of it, for information: never a target.
    Information,
    /// Only correlated with the whole window: what a score sees of the tokens alone.
    Tokens,
}
