//! Pairs of windows made of the same base: how often the first ranks higher.

use super::{DocumentCounts, Values, wins_doubled};
use crate::tools::evaluate::windows::WindowOrigin;

/// By pair, twice the wins of the first window, and its location.
#[derive(Clone, Debug)]
pub(crate) struct PairWins(Vec<(u64, WindowOrigin)>);

impl PairWins {
    /// Pairs the windows of kind `first` with those of kind `second` of the same base, if both have a value.
    pub(crate) fn new(
        origins: &[WindowOrigin],
        values: &Values,
        first: &str,
        second: &str,
    ) -> Self {
        // Windows of the same base are consecutive.
        let mut windows = origins.iter().zip(values).collect::<Vec<_>>();
        let mut pairs = Vec::new();
        for base in windows.chunk_by_mut(|(a, _), (b, _)| a.same_base(b)) {
            let of = |name: &str| {
                base.iter()
                    .find(|(origin, _)| origin.kind().name == name)
                    .and_then(|(origin, value)| Some((**origin, (**value)?)))
            };
            if let (Some((origin, a)), Some((_, b))) = (of(first), of(second)) {
                pairs.push((wins_doubled(a, b), origin));
            }
        }
        Self(pairs)
    }

    /// Returns the share of pairs that the first wins; draws count half, and pairs are weighted by their document's
    /// count.
    pub(crate) fn share(&self, counts: &DocumentCounts) -> Option<f64> {
        let add = |(wins, pairs), (won, origin): &(u64, WindowOrigin)| {
            let count = counts.count(origin);
            (wins + won * count, pairs + count)
        };
        let (wins, pairs) = self.0.iter().fold((0, 0), add);
        (pairs > 0).then(|| wins as f64 / (2 * pairs) as f64)
    }
}
