//! Amounts by cell, where most cells are empty.
//!
//! New entries are appended; they are sorted and merged when their number about equals that of the merged ones. A run
//! has millions of samples, and a lookup for each would take longer than reading it.

use crate::report::amount::Amount;

/// A type with a sum.
pub(super) trait Sum: Copy {
    /// The empty sum.
    const NONE: Self;
    fn sum(&mut self, other: Self);
}

impl<const KINDS: usize> Sum for [u64; KINDS] {
    const NONE: Self = [0; KINDS];

    fn sum(&mut self, other: Self) {
        self.iter_mut().zip(other).for_each(|(count, more)| *count += more);
    }
}

impl Sum for Amount {
    const NONE: Self = Self { samples: 0, tokens: 0 };

    fn sum(&mut self, other: Self) {
        self.add(other);
    }
}

/// Minimum number of entries before they are sorted for the first time.
const MIN_ENTRIES: usize = 4096;

/// Sums by cell.
#[derive(Clone, Debug)]
pub(super) struct Cells<K, S> {
    entries: Vec<(K, S)>,
    /// Number of leading entries that are sorted, one per cell.
    sorted: usize,
}

impl<K: Copy + Ord, S: Sum> Cells<K, S> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), sorted: 0 }
    }

    pub(super) fn add(&mut self, cell: K, more: S) {
        self.entries.push((cell, more));
        if self.entries.len() >= MIN_ENTRIES.max(2 * self.sorted) {
            self.compact();
        }
    }

    /// Adds the entries of another, each to the cell that `to` returns.
    pub(super) fn append(&mut self, other: &Self, to: impl Fn(K) -> K) {
        other.entries.iter().for_each(|(cell, more)| self.add(to(*cell), *more));
    }

    /// Merges all cells for which `to` returns the same cell.
    pub(super) fn merge(&mut self, to: impl Fn(K) -> K) {
        self.entries.iter_mut().for_each(|(cell, _)| *cell = to(*cell));
        self.sorted = 0;
        self.compact();
    }

    /// Returns the cells, ascending.
    pub(super) fn compacted(&mut self) -> &[(K, S)] {
        self.compact();
        &self.entries
    }

    fn compact(&mut self) {
        if self.sorted == self.entries.len() {
            return;
        }
        self.entries.sort_by_key(|(cell, _)| *cell);
        self.entries.dedup_by(|(cell, more), (before, sum)| {
            let same = cell == before;
            if same {
                sum.sum(*more);
            }
            same
        });
        self.sorted = self.entries.len();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn sums_equal_those_of_a_map() {
        let samples = || (0..20_000_u64).map(|sample| (sample * sample % 997, sample));
        let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
        samples().for_each(|(cell, more)| *expected.entry(cell / 2).or_default() += more);
        let (mut one, mut other) = (Cells::new(), Cells::new());
        for (place, (cell, more)) in samples().enumerate() {
            if place % 3 == 0 { &mut one } else { &mut other }.add(cell, [more]);
        }
        one.merge(|cell| cell / 2);
        one.append(&other, |cell| cell / 2);
        let expected: Vec<(u64, [u64; 1])> =
            expected.into_iter().map(|(cell, sum)| (cell, [sum])).collect();
        assert_eq!(one.compacted(), expected);
    }
}
