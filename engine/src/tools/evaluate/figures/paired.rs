//! Pairs of windows that were made of the same one: how often the first is worth more.

use super::{Counts, Values, wins_doubled};
use crate::tools::evaluate::windows::Place;

/// All pairs: twice the wins of the first, and its place.
#[derive(Clone, Debug)]
pub(crate) struct Paired(Vec<(u64, Place)>);

impl Paired {
    /// Of the windows of kind `first` with those of kind `second` of the same base; both have their figure.
    pub(crate) fn new(places: &[Place], values: &Values, first: &str, second: &str) -> Self {
        // The windows of a base stand together.
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

    /// The share of pairs that the first wins, a draw as half a win; a pair counts as often as its document.
    pub(crate) fn share(&self, counts: &Counts) -> Option<f64> {
        let add = |(wins, pairs), (won, place): &(u64, Place)| {
            let count = counts.of(place);
            (wins + won * count, pairs + count)
        };
        let (wins, pairs) = self.0.iter().fold((0, 0), add);
        (pairs > 0).then(|| wins as f64 / (2 * pairs) as f64)
    }
}
