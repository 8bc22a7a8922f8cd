//! The raw figures of all samples, read from the score tables, by column.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use longsift_stages::score::Score;
use sha2::{Digest, Sha256};

use crate::dataset;
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::files;
use crate::parallel;
use crate::plan::Plan;
use crate::run_directory::RunDirectory;
use crate::scores::{self, ScoredWindow};
use crate::spec::pipeline::Samples;
use crate::units::UnitRecord;

/// Units that are read before they are added to the others.
const UNITS_AT_ONCE: usize = 1024;

/// A window, or a document, that can be kept.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Row of the document in its file.
    pub row: u64,
    /// Index of the window; none for a document.
    pub window: Option<u32>,
    /// Tokens of the output that it would be.
    pub tokens: u64,
    /// Mean over heads (and windows, for a document).
    pub dependency_strength: f64,
    /// Mean over heads (and windows, for a document).
    pub far_variance: f64,
    /// The score; `NaN` until it is known.
    pub score: f64,
    /// Whether it is kept.
    pub keep: bool,
}

impl Sample {
    /// The samples of one document, given all its windows; nothing is kept yet.
    pub(super) fn of_document(plan: &Plan, windows: &[ScoredWindow]) -> Vec<Self> {
        let Some(first) = windows.first() else { return Vec::new() };
        let sample = |window, tokens, dependency_strength, far_variance| Self {
            row: first.input_row,
            window,
            tokens,
            dependency_strength,
            far_variance,
            score: f64::NAN,
            keep: false,
        };
        match plan.spec.pipeline.output.samples {
            Samples::Windows => windows
                .iter()
                .map(|window| {
                    let tokens = window.tokens.1 - window.tokens.0;
                    let (strength, variance) = (window.dependency_strength, window.far_variance);
                    sample(Some(window.window), tokens, strength, variance)
                })
                .collect(),
            Samples::Documents => {
                let how = plan.spec.score().document_score.unwrap_or_default();
                let aggregate = |figure: &dyn Fn(&ScoredWindow) -> f64| {
                    how.of(&windows.iter().map(figure).collect::<Vec<f64>>())
                };
                let strength = aggregate(&|window| window.dependency_strength);
                let variance = aggregate(&|window| window.far_variance);
                vec![sample(None, first.tokens_total, strength, variance)]
            }
        }
    }
}

/// The samples of some units.
#[derive(Default)]
pub(super) struct Table {
    /// By unit, its samples.
    pub(super) units: Vec<Range<usize>>,
    /// By sample, in input order.
    columns: Columns,
    /// The values of the `within` column, and the index of each.
    pub(super) groups: BTreeMap<Option<String>, u32>,
    /// By group, tokens of its shortest and its longest window.
    pub(super) lengths: Vec<(u64, u64)>,
    /// Windows.
    pub(super) windows: u64,
    /// Windows that begin before the end of the one before them.
    pub(super) overlapping: u64,
    pub(super) variance_errors: VarianceErrors,
    /// Hashes of the documents' ids.
    ids: Vec<u128>,
}

#[derive(Default)]
struct Columns {
    dependency_strength: Vec<f64>,
    far_variance: Vec<f64>,
    /// Empty unless there is a budget of tokens.
    tokens: Vec<u64>,
    group: Vec<u32>,
}

impl Table {
    /// Reads the score tables of all units.
    pub(super) fn read(
        plan: &Plan,
        directory: &RunDirectory,
        records: &[UnitRecord],
    ) -> Result<Self> {
        let mut table = Self::default();
        let windows: u64 = records.iter().map(|record| record.counts.windows).sum();
        if plan.spec.pipeline.output.samples == Samples::Windows {
            table.columns.reserve(windows as usize, plan);
        }
        let threads = files::at_once(&directory.root, rayon::current_num_threads());
        for first in (0..records.len()).step_by(UNITS_AT_ONCE) {
            let count = UNITS_AT_ONCE.min(records.len() - first);
            let units = parallel::in_order(count, threads, |unit| {
                Self::of_unit(plan, directory, first + unit, &records[first + unit])
            })?;
            for unit in units {
                table.append(unit);
            }
        }
        Ok(table)
    }

    fn of_unit(
        plan: &Plan,
        directory: &RunDirectory,
        index: usize,
        record: &UnitRecord,
    ) -> Result<Self> {
        let unit = &plan.units[index];
        let labels = match &plan.spec.score().within {
            Some(column) if record.counts.windows > 0 => {
                let unreadable = record.unreadable_rows();
                Some(dataset::read_labels(&plan.dataset, unit, column, &unreadable)?)
            }
            _ => None,
        };
        let label = |document: &[ScoredWindow]| {
            let row = document.first()?.input_row - unit.first_row;
            labels.as_ref()?[row as usize].clone()
        };
        let mut table = Self::default();
        let mut document: Vec<ScoredWindow> = Vec::new();
        scores::read(&directory.root.join(&record.scores.path), |window| {
            if document.first().is_some_and(|first| first.input_row != window.input_row) {
                table.document(plan, &document, label(&document));
                document.clear();
            }
            document.push(window);
            Ok(())
        })?;
        table.document(plan, &document, label(&document));
        table.units.push(0..table.len());
        Ok(table)
    }

    /// Adds the samples of one document, given all its windows and its group.
    fn document(&mut self, plan: &Plan, windows: &[ScoredWindow], label: Option<String>) {
        let Some(first) = windows.first() else { return };
        let length = first.tokens_scored;
        let group = self.group(label, (length, length));
        self.ids.push(hash(&first.id));
        self.windows += windows.len() as u64;
        self.overlapping +=
            windows.windows(2).filter(|pair| pair[1].tokens.0 < pair[0].tokens.1).count() as u64;
        for window in windows {
            self.variance_errors.add(window);
            self.widen(group, (window.tokens_scored, window.tokens_scored));
        }
        for sample in Sample::of_document(plan, windows) {
            self.columns.push(&sample, group, plan);
        }
    }

    /// The index of a group; a new one gets these lengths.
    fn group(&mut self, label: Option<String>, lengths: (u64, u64)) -> u32 {
        let next = self.lengths.len() as u32;
        let group = *self.groups.entry(label).or_insert(next);
        if group == next {
            self.lengths.push(lengths);
        }
        group
    }

    fn widen(&mut self, group: u32, (shortest, longest): (u64, u64)) {
        let lengths = &mut self.lengths[group as usize];
        *lengths = (lengths.0.min(shortest), lengths.1.max(longest));
    }

    /// Adds the samples of the units behind these.
    fn append(&mut self, mut other: Self) {
        let start = self.len();
        let mut index = vec![0; other.lengths.len()];
        for (label, group) in other.groups {
            let lengths = other.lengths[group as usize];
            let own = self.group(label, lengths);
            self.widen(own, lengths);
            index[group as usize] = own;
        }
        other.columns.group.iter_mut().for_each(|group| *group = index[*group as usize]);
        self.columns.append(&mut other.columns);
        let shifted = other.units.into_iter().map(|unit| start + unit.start..start + unit.end);
        self.units.extend(shifted);
        self.windows += other.windows;
        self.overlapping += other.overlapping;
        self.variance_errors.windows += other.variance_errors.windows;
        self.variance_errors.squares += other.variance_errors.squares;
        self.ids.append(&mut other.ids);
    }

    /// Number of samples.
    pub(super) fn len(&self) -> usize {
        self.columns.group.len()
    }

    /// Whether there is only the group of a run without `within` (or of rows without a value).
    pub(super) fn is_one_group(&self) -> bool {
        self.groups.keys().all(Option::is_none)
    }

    /// The hashes of ids that more than one document has. They are forgotten here.
    pub(super) fn take_repeated_ids(&mut self) -> HashSet<u128> {
        let mut ids = std::mem::take(&mut self.ids);
        ids.sort_unstable();
        ids.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
    }

    /// The samples group by group, each in input order.
    pub(super) fn by_group(&mut self) -> ByGroup {
        let columns = std::mem::take(&mut self.columns);
        let mut starts = vec![0; self.lengths.len() + 1];
        columns.group.iter().for_each(|&group| starts[group as usize + 1] += 1);
        for group in 1..starts.len() {
            starts[group] += starts[group - 1];
        }
        let order = Order { group: columns.group, starts };
        ByGroup {
            dependency_strength: order.gathered(columns.dependency_strength),
            far_variance: order.gathered(columns.far_variance),
            tokens: order.gathered(columns.tokens),
            order,
        }
    }
}

impl Columns {
    fn reserve(&mut self, samples: usize, plan: &Plan) {
        self.dependency_strength.reserve_exact(samples);
        self.far_variance.reserve_exact(samples);
        self.group.reserve_exact(samples);
        if plan.spec.filter().keep_tokens.is_some() {
            self.tokens.reserve_exact(samples);
        }
    }

    fn push(&mut self, sample: &Sample, group: u32, plan: &Plan) {
        self.dependency_strength.push(sample.dependency_strength);
        self.far_variance.push(sample.far_variance);
        self.group.push(group);
        if plan.spec.filter().keep_tokens.is_some() {
            self.tokens.push(sample.tokens);
        }
    }

    fn append(&mut self, other: &mut Self) {
        self.dependency_strength.append(&mut other.dependency_strength);
        self.far_variance.append(&mut other.far_variance);
        self.tokens.append(&mut other.tokens);
        self.group.append(&mut other.group);
    }
}

/// The samples group by group.
pub(super) struct ByGroup {
    dependency_strength: Vec<f64>,
    far_variance: Vec<f64>,
    tokens: Vec<u64>,
    pub(super) order: Order,
}

impl ByGroup {
    /// Number of samples.
    pub(super) fn len(&self) -> usize {
        self.dependency_strength.len()
    }

    /// Dependency strength, far variance and tokens (empty without a budget) of a group's samples.
    pub(super) fn of(&self, group: u32) -> (&[f64], &[f64], &[u64]) {
        let range = self.order.range(group);
        let tokens = self.tokens.get(range.clone()).unwrap_or_default();
        (&self.dependency_strength[range.clone()], &self.far_variance[range], tokens)
    }
}

/// Which group each sample belongs to.
pub(super) struct Order {
    /// By sample, in input order.
    group: Vec<u32>,
    /// By group, the number of samples of the groups before it; at the end, that of all.
    starts: Vec<usize>,
}

impl Order {
    /// Where the samples of a group are.
    pub(super) fn range(&self, group: u32) -> Range<usize> {
        self.starts[group as usize]..self.starts[group as usize + 1]
    }

    /// Values in input order → group by group. An empty column stays empty.
    fn gathered<T: Copy + Default>(&self, values: Vec<T>) -> Vec<T> {
        if self.starts.len() <= 2 || values.is_empty() {
            return values;
        }
        let mut next = self.starts.clone();
        let mut gathered = vec![T::default(); values.len()];
        for (&group, value) in self.group.iter().zip(values) {
            gathered[next[group as usize]] = value;
            next[group as usize] += 1;
        }
        gathered
    }

    /// Values group by group → in input order.
    pub(super) fn spread<T: Copy>(&self, values: Vec<T>) -> Vec<T> {
        if self.starts.len() <= 2 {
            return values;
        }
        let mut next = self.starts.clone();
        let place = |&group: &u32| {
            let place = next[group as usize];
            next[group as usize] += 1;
            values[place]
        };
        self.group.iter().map(place).collect()
    }
}

/// How far the sampled variances may be off.
#[derive(Default)]
pub(super) struct VarianceErrors {
    windows: u64,
    squares: f64,
}

impl VarianceErrors {
    fn add(&mut self, window: &ScoredWindow) {
        if let Some(error) = window.far_variance_error
            && window.far_variance > 0.0
        {
            self.windows += 1;
            self.squares += (error / window.far_variance).powi(2);
        }
    }

    /// Refuses a uniformity term that is mostly noise.
    pub(super) fn check(&self, score: &Score) -> Result<()> {
        let error = (self.squares / self.windows.max(1) as f64).sqrt();
        if score.alpha == 0.0 || error <= score.max_variance_error {
            return Ok(());
        }
        let message = format!(
            "the far variance of sampled rows is off by {:.0} % (root mean square over {} windows), and \
             `score.max_variance_error` allows {:.0} %",
            100.0 * error,
            crate::report::count(self.windows),
            100.0 * score.max_variance_error
        );
        Err(Diagnostic::error(Blame::Pipeline, message)
            .hint(
                "the scores are kept: set `alpha: 0` to rank by dependency strength alone, or raise \
                 `max_variance_error` to accept the noise; more rows or `rows: all` measure again",
            )
            .into())
    }
}

/// 128 bits of an id: two of a thousand million ids coincide with a probability of 10^-21.
pub(super) fn hash(id: &str) -> u128 {
    let digest = Sha256::digest(id);
    u128::from_le_bytes(digest[..16].try_into().expect("a SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_gathered_by_group_is_spread_to_where_it_was(
            group in prop::collection::vec(0u32..5, 0..60),
        ) {
            let values: Vec<usize> = (0..group.len()).collect();
            let mut table = Table { lengths: vec![(1, 1); 5], ..Table::default() };
            table.columns.group.clone_from(&group);
            table.columns.dependency_strength = values.iter().map(|&value| value as f64).collect();
            let samples = table.by_group();
            for own in 0..5 {
                let expected: Vec<f64> = (0..group.len())
                    .filter(|&sample| group[sample] == own)
                    .map(|sample| sample as f64)
                    .collect();
                prop_assert_eq!(&samples.dependency_strength[samples.order.range(own)], expected);
            }
            let spread = samples.order.spread(samples.dependency_strength.clone());
            prop_assert!(spread.into_iter().map(|value| value as usize).eq(values));
        }
    }

    #[test]
    fn an_id_that_comes_three_times_is_repeated_once() {
        let ids = ["a", "b", "a", "c", "a"].map(hash).to_vec();
        let mut table = Table { ids, ..Table::default() };
        assert_eq!(table.take_repeated_ids(), HashSet::from([hash("a")]));
    }
}
