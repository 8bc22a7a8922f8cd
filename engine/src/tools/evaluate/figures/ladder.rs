//! The ladder: how often a whole window ranks above a window of pieces of the same category.

use super::{DocumentCounts, Values, same_rank};
use crate::tools::evaluate::windows::WindowOrigin;

/// Whole and mixed windows by category, sorted by ascending value once for all replicates.
#[derive(Clone, Debug)]
pub(crate) struct Ladder {
    categories: Vec<Vec<LadderEntry>>,
}

#[derive(Clone, Copy, Debug)]
struct LadderEntry {
    value: f64,
    whole: bool,
    origin: WindowOrigin,
}

impl Ladder {
    /// Compares whole windows with those for which `mixed` returns `true`.
    pub(crate) fn new(
        origins: &[WindowOrigin],
        values: &Values,
        categories: usize,
        mixed: impl Fn(&WindowOrigin) -> bool,
    ) -> Self {
        let mut sorted = vec![Vec::new(); categories];
        for (origin, value) in origins.iter().zip(values) {
            let whole = origin.is_whole();
            if let Some(value) = value.filter(|_| whole || mixed(origin)) {
                sorted[origin.category].push(LadderEntry { value, whole, origin: *origin });
            }
        }
        for entries in &mut sorted {
            entries.sort_by(|a: &LadderEntry, b| a.value.total_cmp(&b.value));
        }
        Self { categories: sorted }
    }

    /// Returns the AUROC over the pairs of all categories.
    pub(crate) fn pooled(&self, counts: &DocumentCounts) -> Option<f64> {
        let sum = |(a, b): (u64, u64), (wins, pairs): (u64, u64)| (a + wins, b + pairs);
        share(self.categories.iter().map(|of| pairs(of, counts)).fold((0, 0), sum))
    }

    /// Returns the AUROC inside one category.
    pub(crate) fn in_category(&self, category: usize, counts: &DocumentCounts) -> Option<f64> {
        share(pairs(&self.categories[category], counts))
    }
}

fn share((wins_doubled, pairs): (u64, u64)) -> Option<f64> {
    (pairs > 0).then(|| wins_doubled as f64 / (2 * pairs) as f64)
}

/// Returns twice the pairs that the whole window wins, and all pairs. The weight of a pair is the product of its
/// documents' counts.
fn pairs(sorted: &[LadderEntry], counts: &DocumentCounts) -> (u64, u64) {
    let (mut wins_doubled, mut whole, mut mixed) = (0, 0, 0);
    for equal in sorted.chunk_by(|a, b| same_rank(a.value, b.value)) {
        let side = |whole: bool| -> u64 {
            equal
                .iter()
                .filter(|entry| entry.whole == whole)
                .map(|entry| counts.count(&entry.origin))
                .sum()
        };
        let (whole_here, mixed_here) = (side(true), side(false));
        wins_doubled += whole_here * (2 * mixed + mixed_here);
        whole += whole_here;
        mixed += mixed_here;
    }
    (wins_doubled, whole * mixed)
}
