//! Pairs of windows made of the same base: how often the first ranks higher.

use super::{Counts, Values, wins_doubled};
use crate::tools::evaluate::windows::Place;

/// By pair, twice the wins of the first window, and its location.
#[derive(Clone, Debug)]
pub(crate) struct Paired(Vec<(u64, Place)>);

impl Paired {
    /// Pairs the windows of kind `first` with those of kind `second` of the same base, if both have a value.
    pub(crate) fn new(places: &[Place], values: &Values, first: &str, second: &str) -> Self {
        // Windows of the same base are consecutive.
        let mut windows = places.iter().zip(values).collect::<Vec<_>>();
        let mut pairs = Vec::new();
        for base in windows.chunk_by_mut(|(a, _), (b, _)| a.same_base(b)) {
            let of = |name: &str| {
                base.iter()
                    .find(|(place, _)| place.kind().name == name)
                    .and_then(|(place, value)| Some((**place, (**value)?)))
            };
            if let (Some((place, a)), Some((_, b))) = (of(first), of(second)) {
                pairs.push((wins_doubled(a, b), place));
            }
        }
        Self(pairs)
    }

    /// Returns the share of pairs that the first wins; draws count half, and pairs are weighted by their document's
    /// count.
    pub(crate) fn share(&self, counts: &Counts) -> Option<f64> {
        let add = |(wins, pairs), (won, place): &(u64, Place)| {
            let count = counts.of(place);
            (wins + won * count, pairs + count)
        };
        let (wins, pairs) = self.0.iter().fold((0, 0), add);
        (pairs > 0).then(|| wins as f64 / (2 * pairs) as f64)
    }
}
