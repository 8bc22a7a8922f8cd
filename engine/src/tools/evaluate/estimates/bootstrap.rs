//! Bootstrap intervals: statistics of five hundred resampled corpora.

use rayon::prelude::*;

use super::{DocumentCounts, IntervalEstimate};
use crate::base::random::{Rng, key};

const REPLICATES: usize = 500;

/// Document counts of all replicates. Documents are resampled instead of windows, because windows of one document are
/// correlated.
#[derive(Clone, Debug)]
pub(crate) struct Bootstrap {
    /// Counts of the sample itself: each document once.
    pub(crate) once: DocumentCounts,
    replicates: Vec<DocumentCounts>,
}

impl Bootstrap {
    /// Resamples categories with these numbers of documents.
    pub(crate) fn new(seed: u64, documents: &[usize]) -> Self {
        let replicate = |index: usize| {
            let mut rng = Rng::new(key(seed, &["bootstrap", &index.to_string()]));
            let draw = |documents: &usize| {
                let mut counts = vec![0; *documents];
                (0..*documents).for_each(|_| counts[rng.below(*documents)] += 1);
                counts
            };
            DocumentCounts(documents.iter().map(draw).collect())
        };
        Self {
            once: DocumentCounts(documents.iter().map(|documents| vec![1; *documents]).collect()),
            replicates: (0..REPLICATES).map(replicate).collect(),
        }
    }

    /// Returns a statistic with its interval: the range of its values in B replicates without the ⌊B/40⌋ lowest and
    /// highest. Replicates without a value do not count.
    pub(crate) fn estimate(
        &self,
        of: impl Fn(&DocumentCounts) -> Option<f64> + Sync,
    ) -> IntervalEstimate {
        self.estimates(|counts| vec![of(counts)]).remove(0)
    }

    pub(crate) fn estimates(
        &self,
        of: impl Fn(&DocumentCounts) -> Vec<Option<f64>> + Sync,
    ) -> Vec<IntervalEstimate> {
        let replicates: Vec<Vec<Option<f64>>> = self.replicates.par_iter().map(&of).collect();
        let estimate = |(index, value): (usize, Option<f64>)| {
            let mut values: Vec<f64> = replicates.iter().filter_map(|of| of[index]).collect();
            values.sort_unstable_by(f64::total_cmp);
            let edge = values.len() / 40;
            let interval = values.get(edge).map(|low| [*low, values[values.len() - 1 - edge]]);
            IntervalEstimate { value, interval }
        };
        of(&self.once).into_iter().enumerate().map(estimate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replicate_has_as_many_documents_as_the_sample() {
        let bootstrap = Bootstrap::new(1, &[5, 0, 64]);
        let drawn = |counts: &DocumentCounts| {
            counts.0.iter().map(|of| of.iter().sum()).collect::<Vec<u32>>()
        };
        assert_eq!(bootstrap.replicates.len(), 500);
        assert!(bootstrap.replicates.iter().all(|counts| drawn(counts) == [5, 0, 64]));
        assert!(bootstrap.once.0[2] == [1; 64]);
    }

    #[test]
    fn interval_excludes_a_fortieth_at_each_end() {
        let bootstrap = Bootstrap::new(1, &[40]);
        let share = |counts: &DocumentCounts| Some(f64::from(counts.0[0][0]));
        let mut sorted: Vec<f64> = bootstrap.replicates.iter().filter_map(share).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let estimate = bootstrap.estimate(share);
        assert_eq!(
            estimate,
            IntervalEstimate { value: Some(1.0), interval: Some([sorted[12], sorted[487]]) }
        );
    }

    #[test]
    fn replicates_without_a_pair_are_left_out() {
        let bootstrap = Bootstrap::new(1, &[2]);
        let both = |counts: &DocumentCounts| (counts.0[0] == [1, 1]).then_some(7.0);
        assert_eq!(bootstrap.estimate(both).interval, Some([7.0, 7.0]));
        assert_eq!(bootstrap.estimate(|_| None), IntervalEstimate::default());
    }
}
