//! Passages of a window that a guard's statistic counts: the text for which the window was rejected.

use std::ops::Range;

use longsift_stages::contract::{Passages, Window};
use serde::Serialize;

use crate::base::text::count;
use crate::plan::Plan;

const MAX_PASSAGES: usize = 3;
/// Size of a passage in tokens or bytes.
const PASSAGE_TOKENS: usize = 24;
const PASSAGE_BYTES: usize = 120;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Passage {
    /// Unit of `start`, `end` and `counted`: `tokens` of the window, BOS included, or `bytes` of its text.
    unit: &'static str,
    start: usize,
    end: usize,
    /// Number of its tokens or bytes that the statistic counts.
    counted: usize,
    /// Text, or token ids if documents are token ids.
    pub(crate) text: String,
}

impl Passage {
    pub(crate) fn in_words(&self) -> String {
        let numbers = [self.counted, self.end - self.start, self.start];
        let [counted, all, start] = numbers.map(|number| count(number as u64));
        format!("{counted} of {all} {} counted, starting at {start}", self.unit)
    }
}

/// Returns the passages of a window with the highest counts, in order; empty if the measure does not support passages. `ids`:
/// token ids as scored, BOS included; `text_of`: returns the text of a range of them.
pub(crate) fn find_passages(
    plan: &Plan,
    statistic: &str,
    ids: &[u32],
    text: Option<&str>,
    text_of: &dyn Fn(Range<usize>) -> String,
) -> Vec<Passage> {
    let Some((index, column)) = plan.measures.index_of(statistic) else { return Vec::new() };
    let measure = plan.measure(index);
    let Some(column) = measure.columns().into_iter().nth(column) else { return Vec::new() };
    let text_half = text.map(|_| 0);
    let bytes = text.map(str::as_bytes);
    let window = Window { ids, text: bytes, text_half, document: &[], evidence: &[] };
    let (unit, ranges, length, size) = match measure.passages(&column.name, &window) {
        None => return Vec::new(),
        Some(Passages::Tokens(ranges)) => ("tokens", ranges, ids.len(), PASSAGE_TOKENS),
        Some(Passages::Bytes(ranges)) => {
            ("bytes", ranges, bytes.map_or(0, <[u8]>::len), PASSAGE_BYTES)
        }
    };
    let passage = |(range, counted): (Range<usize>, usize)| {
        let text = match (unit, text) {
            ("bytes", Some(text)) => text
                [text.floor_char_boundary(range.start)..text.floor_char_boundary(range.end)]
                .to_owned(),
            _ => text_of(range.clone()),
        };
        let text = text.trim_end().to_owned();
        Passage { unit, start: range.start, end: range.end, counted, text }
    };
    densest(&ranges, length, size).into_iter().map(passage).collect()
}

/// Returns the parts of this size with the highest counts, in order, with their counts.
fn densest(ranges: &[Range<usize>], length: usize, size: usize) -> Vec<(Range<usize>, usize)> {
    let mut counted = vec![0; length.div_ceil(size)];
    for index in ranges.iter().cloned().flatten() {
        counted[index / size] += 1;
    }
    let mut parts: Vec<usize> = (0..counted.len()).filter(|part| counted[*part] > 0).collect();
    parts.sort_by_key(|part| (std::cmp::Reverse(counted[*part]), *part));
    parts.truncate(MAX_PASSAGES);
    parts.sort_unstable();
    let range = |part: usize| (part * size..((part + 1) * size).min(length), counted[part]);
    parts.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_densest_parts_are_shown_in_their_order() {
        let ranges = [3..5, 10..12, 20..30, 33..36, 41..42];
        let found = densest(&ranges, 42, 10);
        // Of parts with equal counts the first are shown.
        assert_eq!(found, [(0..10, 2), (20..30, 10), (30..40, 3)]);
        assert_eq!(densest(&ranges[4..], 42, 10), [(40..42, 1)]);
        assert!(densest(&[], 0, 10).is_empty());
    }
}
