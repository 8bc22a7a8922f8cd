//! Parts of a window that a statistic counts, computed the simple way, to explain why a window was rejected.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Tokens of the n-grams that make up a repeated passage, and of the shortest passage.
const GRAM_TOKENS: usize = 8;
const MIN_PASSAGE_TOKENS: usize = 16;

pub(super) fn ranges(marked: impl Iterator<Item = bool>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (index, _) in marked.enumerate().filter(|(_, marked)| *marked) {
        match ranges.last_mut().filter(|last| last.end == index) {
            Some(last) => last.end += 1,
            None => ranges.push(index..index + 1),
        }
    }
    ranges
}

/// Returns the ends of the trigrams that `periodic_share` counts.
pub(super) fn periodic(ids: &[u32]) -> Vec<Range<usize>> {
    let mut last: HashMap<&[u32], usize> = HashMap::new();
    let mut distances = vec![0; ids.len()];
    for (start, gram) in ids.windows(3).enumerate() {
        let end = start + 2;
        distances[end] = last.insert(gram, end).map_or(0, |earlier| end - earlier);
    }
    let mut counts = vec![0_usize; ids.len()];
    for distance in &distances {
        counts[*distance] += 1;
    }
    let periods = 2..ids.len();
    let period = periods.max_by_key(|period| (counts[*period], std::cmp::Reverse(*period)));
    ranges(distances.iter().map(|distance| Some(*distance) == period))
}

/// Returns the passages that `repeated_share` counts.
pub(super) fn repeated(ids: &[u32]) -> Vec<Range<usize>> {
    let mut seen: HashSet<&[u32]> = HashSet::new();
    let hits: Vec<bool> = ids.windows(GRAM_TOKENS).map(|gram| !seen.insert(gram)).collect();
    let mut covered = vec![false; ids.len()];
    for run in ranges(hits.into_iter()) {
        // A run of n-grams covers the tokens of all of them.
        if run.len() > MIN_PASSAGE_TOKENS - GRAM_TOKENS {
            covered[run.start..run.end + GRAM_TOKENS - 1].fill(true);
        }
    }
    ranges(covered.into_iter())
}

/// Returns the tokens that `frequent_token_share` counts.
pub(super) fn frequent(ids: &[u32]) -> Vec<Range<usize>> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for id in ids {
        *counts.entry(*id).or_default() += 1;
    }
    let min = (ids.len() / 128).max(2);
    ranges(ids.iter().map(|id| counts[id] >= min))
}

/// Returns the runs that `unbroken_share` counts.
pub(super) fn unbroken(text: &[u8]) -> Vec<Range<usize>> {
    let runs = ranges(text.iter().map(|byte| matches!(byte, 0x21..=0x7f)));
    runs.into_iter().filter(|run| run.len() >= 40).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::{Measure, Passages, Value, Window};
    use crate::measures::{Lexical, Recurrence};

    #[test]
    fn the_most_frequent_period_counts() {
        let ids: Vec<u32> = (0..30).map(|token| token % 5).collect();
        assert_eq!(periodic(&ids), vec![7..30], "the first trigram ends at 2 and recurs at 7");
        assert!(periodic(&[7; 9]).is_empty(), "a run of one token has period 1");
        assert!(periodic(&[]).is_empty() && periodic(&[1, 2]).is_empty());
    }

    #[test]
    fn a_repeated_passage_has_at_least_sixteen_tokens() {
        let passage: Vec<u32> = (0..15).collect();
        let twice = |passage: &[u32]| [passage, &[99], passage].concat();
        assert!(repeated(&twice(&passage)).is_empty());
        let passage: Vec<u32> = (0..16).collect();
        assert_eq!(repeated(&twice(&passage)), vec![17..33]);
        assert!(repeated(&[5; 7]).is_empty());
    }

    #[test]
    fn frequent_tokens_and_unbroken_text_are_named() {
        assert_eq!(frequent(&[1, 2, 1, 3]), [0..1, 2..3]);
        let text = format!("a {} {}", "x".repeat(40), "y".repeat(39));
        assert_eq!(unbroken(text.as_bytes()), vec![2..42]);
    }

    proptest! {
        #[test]
        fn passages_contain_the_counted_tokens(
            alphabet in 2_u32..40, numbers in prop::collection::vec(any::<u32>(), 3..400), text in "[a-z0-9 .é]{0,300}",
        ) {
            let ids: Vec<u32> = numbers.iter().map(|number| number % alphabet).collect();
            let text = format!("{text}{}{text}", "x".repeat(ids.len() / 4));
            let bytes = Some(text.as_bytes());
            let window = Window { ids: &ids, text: bytes, text_half: Some(0), document: &[], evidence: &[] };
            let measures: [&dyn Measure; 2] = [&Recurrence::default(), &Lexical::default()];
            let mut named = 0;
            for measure in measures {
                let values = measure.statistics(&window).unwrap().0;
                for (column, value) in measure.columns().iter().zip(values) {
                    let Some(passages) = measure.passages(&column.name, &window) else { continue };
                    named += 1;
                    let (Passages::Tokens(ranges) | Passages::Bytes(ranges)) = passages;
                    let counted: usize = ranges.iter().map(ExactSizeIterator::len).sum();
                    let all = match &*column.name {
                        "copy_share" => ids.len() / 2,
                        "digit_share" => text.bytes().filter(|byte| *byte > b' ').count(),
                        "unbroken_share" => text.len(),
                        _ => ids.len(),
                    };
                    let expected = Value::number((all > 0).then(|| counted as f64 / all as f64));
                    prop_assert_eq!(value, expected, "{}", column.name);
                }
            }
            prop_assert_eq!(named, 6);
        }
    }
}
