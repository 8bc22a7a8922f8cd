//! Which keys a row sees, and where its distances change.

use std::ops::Range;

use crate::statistics::{AttentionShape, LogitRules, Measure, distance_bin};

/// The keys that row `row` sees; always one contiguous range, whose ends never fall as `row` rises.
#[inline(always)]
pub(crate) fn visible_keys(rules: &LogitRules, tokens: usize, row: usize) -> Range<usize> {
    let mut start = 0;
    let mut end = if rules.causal { row + 1 } else { tokens };
    if let Some(window) = rules.window {
        start = (row + 1).saturating_sub(window);
    }
    if let Some(chunk) = rules.chunk {
        let chunk = chunk.max(1);
        let first = row / chunk * chunk;
        start = start.max(first);
        end = end.min(first.saturating_add(chunk));
    }
    start..end.max(start)
}

/// Where a row's running sums are cut into segments.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    cut: Cut,
    /// Segments `0..far_segments` are far.
    pub(crate) far_segments: usize,
}

#[derive(Clone, Debug)]
enum Cut {
    /// At distances from the row, farthest first. Segment 0 holds the keys at distance `>= distances[0]`, segment `s` those in
    /// `[distances[s], distances[s - 1])`, and the last one, `distances.len()`, the keys after the row. The far distance and
    /// every power of two are among them, so both the far mass and the histogram are sums of whole segments.
    Distances(Vec<usize>),
    /// At the same keys in every row: segment `s` ends before key `ends[s]`.
    Keys(Vec<usize>),
}

impl Segments {
    pub(crate) fn new(shape: &AttentionShape, measure: &Measure) -> Self {
        let powers = (0..usize::BITS).map(|bit| 1_usize << bit);
        let mut distances: Vec<usize> = [0, measure.distance].into_iter().chain(powers).collect();
        distances.retain(|&distance| distance == 0 || distance < shape.tokens);
        distances.sort_unstable_by(|a, b| b.cmp(a));
        distances.dedup();
        let far_segments =
            distances.iter().position(|&d| d == measure.distance).map_or(0, |index| index + 1);
        Self { cut: Cut::Distances(distances), far_segments }
    }

    /// Segments that end before the keys `ends`, ascending, the last of which is the window's end; none is far.
    pub(crate) fn ending_at(ends: &[usize]) -> Self {
        Self { cut: Cut::Keys(ends.to_vec()), far_segments: 0 }
    }

    /// Where each segment but the last ends, farthest first, falling to 0; nothing where keys cut them.
    pub(crate) fn distances(&self) -> &[usize] {
        match &self.cut {
            Cut::Distances(distances) => distances,
            Cut::Keys(_) => &[],
        }
    }

    /// How many segments a row has.
    pub(crate) fn count(&self) -> usize {
        match &self.cut {
            Cut::Distances(distances) => distances.len() + 1,
            Cut::Keys(ends) => ends.len(),
        }
    }

    /// One past the last key of `segment` in row `row`; the last segment of distances has no end of its own.
    #[inline(always)]
    pub(crate) fn end(&self, segment: usize, row: usize) -> usize {
        match &self.cut {
            Cut::Distances(distances) => distances
                .get(segment)
                .map_or(usize::MAX, |&distance| (row + 1).saturating_sub(distance)),
            Cut::Keys(ends) => ends.get(segment).copied().unwrap_or(usize::MAX),
        }
    }

    /// The histogram bin of `segment`; `None` for the keys after the row, and where keys cut the segments.
    pub(crate) fn bin(&self, segment: usize) -> Option<usize> {
        self.distances().get(segment).map(|&distance| distance_bin(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segments(tokens: usize, distance: usize) -> Segments {
        let shape = AttentionShape { tokens, query_heads: 1, key_heads: 1, head_dim: 8 };
        Segments::new(&shape, &Measure { distance, rows: false })
    }

    #[test]
    fn a_far_distance_beyond_the_window_makes_no_segment_far() {
        assert_eq!(segments(10, 10).far_segments, 0);
        assert_eq!(segments(10, 0).far_segments, segments(10, 0).count() - 1);
    }

    #[test]
    fn segments_that_keys_cut_are_the_same_in_every_row() {
        let segments = Segments::ending_at(&[3, 4, 10]);
        assert_eq!((segments.count(), segments.far_segments, segments.bin(0)), (3, 0, None));
        for row in [0, 5, 9] {
            assert_eq!([0, 1, 2].map(|segment| segments.end(segment, row)), [3, 4, 10]);
        }
    }

    proptest! {
        #[test]
        fn segments_sort_every_key_by_its_distance(tokens in 1_usize..300, distance in 0_usize..310, row in 0_usize..300) {
            let row = row.min(tokens - 1);
            let segments = segments(tokens, distance);
            for key in 0..tokens {
                let segment = (0..segments.count()).find(|&s| key < segments.end(s, row)).expect("the last has no end");
                let bin = (key <= row).then(|| distance_bin(row - key));
                prop_assert_eq!(segments.bin(segment), bin);
                prop_assert_eq!(segment < segments.far_segments, key + distance <= row);
            }
        }

        #[test]
        fn visible_keys_are_those_of_the_definition(
            tokens in 1_usize..60, window in proptest::option::of(0_usize..70),
            chunk in proptest::option::of(1_usize..70), causal: bool,
        ) {
            let rules = LogitRules { window, chunk, causal, ..LogitRules::causal(8) };
            for row in 0..tokens {
                let seen: Vec<usize> = (0..tokens).filter(|&key| {
                    (!causal || key <= row)
                        && window.is_none_or(|w| (row as i64 - key as i64) < w as i64)
                        && chunk.is_none_or(|c| row / c == key / c)
                }).collect();
                let range: Vec<usize> =
                    visible_keys(&rules, tokens, row).filter(|&key| key < tokens).collect();
                prop_assert_eq!(range, seen);
            }
        }
    }
}
