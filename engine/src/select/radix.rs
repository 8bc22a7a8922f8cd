//! Order statistics of many values in few passes: each pass determines sixteen bits of the searched value.

/// Number of passes: 64 bits, sixteen at a time.
pub(super) const PASSES: u32 = 4;

const BITS: u32 = u64::BITS / PASSES;

/// Maps a float to an integer with the same order; -0 and 0 map to the same key. Not for `NaN`.
pub(super) fn key(value: f64) -> u64 {
    // Adding 0 turns -0 into 0.
    let bits = (value + 0.0).to_bits();
    bits ^ ((((bits as i64) >> 63) as u64) | (1 << 63))
}

/// Inverse of [`key`].
pub(super) fn value(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key ^ (1 << 63) } else { !key })
}

/// Up to this many keys are sorted instead.
const MAX_SORTED_KEYS: u64 = 4096;

/// Search for the least key K such that the keys up to K have at least the wanted weight. Memory: 512 KiB while it runs.
#[derive(Clone, Debug)]
pub(super) enum Search {
    /// All keys with their weights.
    Few(Vec<(u64, u64)>),
    /// Weights by the next bits of the keys.
    Many(Narrowing),
    /// Finished. `None` if all keys together have less than the wanted weight.
    Finished(Option<SearchResult>),
}

/// Search of which some bits are determined.
#[derive(Clone, Debug)]
pub(super) struct Narrowing {
    /// First bits of the key, and the number of passes that determined them.
    decided: u64,
    passes: u32,
    /// Weight of the keys below those that begin with these bits.
    below: u64,
    /// Weights of the keys that begin with these bits, by the next bits.
    weights: Vec<u64>,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SearchResult {
    pub(super) key: u64,
    /// Weight of the keys below.
    pub(super) below: u64,
    /// Weight of this key.
    pub(super) own: u64,
}

impl Search {
    /// Starts a search among at most `keys` keys.
    pub(super) fn among(keys: u64) -> Self {
        if keys <= MAX_SORTED_KEYS {
            return Self::Few(Vec::new());
        }
        let weights = vec![0; 1 << BITS];
        Self::Many(Narrowing { decided: 0, passes: 0, below: 0, weights })
    }

    /// Adds a key in the current pass. Every pass must have the same keys with the same weights, in any order.
    pub(super) fn add(&mut self, key: u64, weight: u64) {
        match self {
            Self::Few(keys) => keys.push((key, weight)),
            Self::Many(narrowing) => narrowing.add(key, weight),
            Self::Finished(_) => {}
        }
    }

    /// Ends a pass. `wanted`, above 0, must be the same after every pass.
    pub(super) fn end_pass(&mut self, wanted: u64) {
        *self = match std::mem::replace(self, Self::Finished(None)) {
            Self::Few(keys) => Self::Finished(among_few(keys, wanted)),
            Self::Many(narrowing) => narrowing.narrowed(wanted),
            over @ Self::Finished(_) => over,
        };
    }

    /// Returns the result; the search has ended after [`PASSES`] passes.
    pub(super) fn found(&self) -> Option<SearchResult> {
        match self {
            Self::Finished(found) => *found,
            Self::Few(_) | Self::Many(_) => None,
        }
    }

    /// Whether no further pass is needed.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self, Self::Finished(_))
    }
}

fn among_few(mut keys: Vec<(u64, u64)>, wanted: u64) -> Option<SearchResult> {
    keys.sort_unstable();
    let mut below = 0_u64;
    for equal in keys.chunk_by(|(one, _), (other, _)| one == other) {
        let own = equal.iter().fold(0_u64, |sum, (_, weight)| sum.saturating_add(*weight));
        let sum = below.saturating_add(own);
        if sum >= wanted {
            return Some(SearchResult { key: equal[0].0, below, own });
        }
        below = sum;
    }
    None
}

impl Narrowing {
    fn add(&mut self, key: u64, weight: u64) {
        let open = u64::BITS - BITS * self.passes;
        if self.passes == 0 || key >> open == self.decided {
            let next = (key >> (open - BITS)) as usize % (1 << BITS);
            self.weights[next] = self.weights[next].saturating_add(weight);
        }
    }

    fn narrowed(mut self, wanted: u64) -> Search {
        for bits in 0..self.weights.len() {
            let own = self.weights[bits];
            let sum = self.below.saturating_add(own);
            if sum < wanted {
                self.below = sum;
                continue;
            }
            self.decided = self.decided << BITS | bits as u64;
            self.passes += 1;
            if self.passes == PASSES {
                return Search::Finished(Some(SearchResult {
                    key: self.decided,
                    below: self.below,
                    own,
                }));
            }
            self.weights.fill(0);
            return Search::Many(self);
        }
        Search::Finished(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn search(samples: &[(u64, u64)], wanted: u64) -> Option<SearchResult> {
        let both = [0, MAX_SORTED_KEYS + 1].map(|keys| {
            let mut search = Search::among(keys);
            for _ in 0..PASSES {
                for (key, weight) in samples {
                    search.add(*key, *weight);
                }
                search.end_pass(wanted);
            }
            assert!(search.is_finished());
            search.found()
        });
        assert_eq!(both[0], both[1], "few keys and many are searched to the same end");
        both[0]
    }

    /// Keys that share more or fewer of their first bits.
    fn any_key() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            (0_u64..4).prop_map(|low| 0xABCD_0000_0000_0000 | low),
            (0_u64..4).prop_map(|middle| 0xABCD_0000_0000_0001 | middle << 20),
        ]
    }

    proptest! {
        #[test]
        fn a_search_finds_what_sorting_finds(
            mut samples in prop::collection::vec((any_key(), 0_u64..9), 0..60), wanted in 1_u64..300,
        ) {
            let got = search(&samples, wanted);
            samples.sort_unstable();
            let weight = |inside: &dyn Fn(u64) -> bool| -> u64 {
                samples.iter().filter(|(key, _)| inside(*key)).map(|(_, weight)| weight).sum()
            };
            let expected = samples.iter().map(|(key, _)| *key).find(|own| weight(&|key| key <= *own) >= wanted);
            let expected = expected.map(|own| SearchResult {
                key: own, below: weight(&|key| key < own), own: weight(&|key| key == own),
            });
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn keys_order_as_their_floats(one in any::<f64>(), other in any::<f64>()) {
            prop_assume!(!one.is_nan() && !other.is_nan());
            prop_assert_eq!(Some(key(one).cmp(&key(other))), one.partial_cmp(&other));
            prop_assert_eq!(value(key(one)).to_bits(), (one + 0.0).to_bits());
        }
    }

    #[test]
    fn weights_beyond_all_numbers_are_never_reached() {
        let samples = [(1, u64::MAX), (2, u64::MAX), (3, 1)];
        assert_eq!(search(&samples, u64::MAX).map(|found| found.key), Some(1));
        assert_eq!(search(&[(1, 5), (2, 6)], 12), None);
        assert_eq!(search(&[], 1), None);
        assert_eq!(key(-0.0), key(0.0));
    }
}
