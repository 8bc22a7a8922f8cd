//! Visible keys of a row, and the segments of its keys.

use std::ops::Range;

use crate::statistics::{AttentionShape, LogitRules, distance_bin};

/// Returns the visible keys of row `row`: always one contiguous range, whose ends never decrease from row to row.
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

/// Segments of a row's running sums. If the window's first keys are set apart, they are one more segment before all others, near
/// or far.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    bounds: SegmentBounds,
    /// Keys at the window's start that are set apart.
    first_keys: usize,
    /// Far segments.
    pub(crate) far: Range<usize>,
}

#[derive(Clone, Debug)]
enum SegmentBounds {
    /// At distances from the row, farthest first. Segment 0 holds the keys at distance `>= distances[0]`, segment `s` those in
    /// `[distances[s], distances[s - 1])`, and the last one, `distances.len()`, the keys after the row. The far distance and
    /// every power of two are among them, so both the far mass and the histogram are sums of whole segments.
    Distances(Vec<usize>),
    /// At the same keys in every row: segment `s` ends before key `ends[s]`.
    PackedKeys(Vec<usize>),
}

impl Segments {
    /// Key `j` is far from row `i` iff `i - j >= far_distance`.
    pub(crate) fn new(shape: &AttentionShape, far_distance: usize) -> Self {
        let powers = (0..usize::BITS).map(|bit| 1_usize << bit);
        let mut distances: Vec<usize> = [0, far_distance].into_iter().chain(powers).collect();
        distances.retain(|&distance| distance == 0 || distance < shape.tokens);
        distances.sort_unstable_by(|a, b| b.cmp(a));
        distances.dedup();
        distances.shrink_to_fit();
        let far = distances.iter().position(|&d| d == far_distance);
        let far = 0..far.map_or(0, |index| index + 1);
        Self { bounds: SegmentBounds::Distances(distances), first_keys: 0, far }
    }

    /// Moves the first keys of the window to a separate segment, which is not far: they enter the softmax but neither
    /// the far sums nor the histogram.
    pub(crate) fn without_first_keys(self, first_keys: usize) -> Self {
        if first_keys == 0 {
            return self;
        }
        Self { first_keys, far: 1..self.far.end + 1, ..self }
    }

    /// Returns the number of segments for first keys that are set apart.
    fn first_segments(&self) -> usize {
        usize::from(self.first_keys > 0)
    }

    /// Cuts segments before the keys `ends`, which ascend to the window's end; no segment is far.
    pub(crate) fn ending_at(ends: &[usize]) -> Self {
        Self { bounds: SegmentBounds::PackedKeys(ends.to_vec()), first_keys: 0, far: 0..0 }
    }

    /// Returns the end distance of each segment but the last, farthest first, descending to 0; empty if keys cut the
    /// segments.
    pub(crate) fn distances(&self) -> &[usize] {
        match &self.bounds {
            SegmentBounds::Distances(distances) => distances,
            SegmentBounds::PackedKeys(_) => &[],
        }
    }

    /// Returns the end of each segment if keys cut the segments.
    #[inline(always)]
    pub(crate) fn ends(&self) -> Option<&[usize]> {
        match &self.bounds {
            SegmentBounds::Distances(_) => None,
            SegmentBounds::PackedKeys(ends) => Some(ends),
        }
    }

    pub(crate) fn count(&self) -> usize {
        let first_segments = self.first_segments();
        match &self.bounds {
            SegmentBounds::Distances(distances) => distances.len() + 1 + first_segments,
            SegmentBounds::PackedKeys(ends) => ends.len() + first_segments,
        }
    }

    /// Returns the end of `segment` in row `row`, one past its last key; the last segment of distances has no end of
    /// its own.
    #[inline(always)]
    pub(crate) fn end(&self, segment: usize, row: usize) -> usize {
        let Some(segment) = segment.checked_sub(self.first_segments()) else {
            return self.first_keys;
        };
        match &self.bounds {
            SegmentBounds::Distances(distances) => distances
                .get(segment)
                .map_or(usize::MAX, |&distance| (row + 1).saturating_sub(distance)),
            SegmentBounds::PackedKeys(ends) => ends.get(segment).copied().unwrap_or(usize::MAX),
        }
    }

    /// Returns the segment of a key in the row at `row`.
    #[inline(always)]
    pub(crate) fn segment_of(&self, key: usize, row: usize) -> usize {
        if key < self.first_keys {
            return 0;
        }
        self.first_segments()
            + match &self.bounds {
                SegmentBounds::Distances(distances) => {
                    distances.partition_point(|distance| key + distance > row)
                }
                SegmentBounds::PackedKeys(ends) => ends.partition_point(|end| *end <= key),
            }
    }

    /// Returns the smallest distance of the keys of `segment`; `None` if its end does not depend on the row.
    #[inline(always)]
    pub(crate) fn distance(&self, segment: usize) -> Option<usize> {
        self.distances().get(segment.checked_sub(self.first_segments())?).copied()
    }

    /// Returns the histogram bin of `segment`; `None` for keys after the row, first keys that are set apart, and
    /// segments cut by keys.
    pub(crate) fn bin(&self, segment: usize) -> Option<usize> {
        let segment = segment.checked_sub(self.first_segments())?;
        self.distances().get(segment).map(|&distance| distance_bin(distance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segments(tokens: usize, distance: usize) -> Segments {
        let shape = AttentionShape { tokens, query_heads: 1, key_heads: 1, head_dim: 8 };
        Segments::new(&shape, distance)
    }

    #[test]
    fn a_far_distance_beyond_the_window_has_no_far_segment() {
        assert_eq!(segments(10, 10).far, 0..0);
        assert_eq!(segments(10, 0).far, 0..segments(10, 0).count() - 1);
    }

    #[test]
    fn key_segments_are_the_same_in_every_row() {
        let segments = Segments::ending_at(&[3, 4, 10]);
        assert_eq!((segments.count(), segments.far.clone(), segments.bin(0)), (3, 0..0, None));
        for row in [0, 5, 9] {
            assert_eq!([0, 1, 2].map(|segment| segments.end(segment, row)), [3, 4, 10]);
            assert_eq!([0, 2, 3, 4, 9].map(|key| segments.segment_of(key, row)), [0, 0, 1, 2, 2]);
        }
    }

    proptest! {
        #[test]
        fn segments_sort_every_key_by_its_distance(
            tokens in 1_usize..300, distance in 0_usize..310, row in 0_usize..300, first_keys in 0_usize..40,
        ) {
            let row = row.min(tokens - 1);
            let segments = segments(tokens, distance).without_first_keys(first_keys);
            for key in 0..tokens {
                let segment = (0..segments.count()).find(|&s| key < segments.end(s, row)).expect("the last segment has no end");
                prop_assert_eq!(segments.segment_of(key, row), segment);
                let counts = key >= first_keys;
                let bin = (counts && key <= row).then(|| distance_bin(row - key));
                prop_assert_eq!(segments.bin(segment), bin);
                prop_assert_eq!(segments.far.contains(&segment), counts && key + distance <= row);
            }
        }

        #[test]
        fn visible_keys_match_the_definition(
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
