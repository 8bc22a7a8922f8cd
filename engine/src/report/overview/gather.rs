//! Counts for a report, in one parallel pass. Memory: the bins, the windows of one unit per thread, the shown samples.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use longsift_stages::filter::guards::{Bounds, Verdict};
use longsift_stages::score::terms::{Combine, Scorer};

use super::amounts::Scores;
use super::bins::{BinSums, MAX_BINS};
use super::choice::SelectionSettings;
use super::picks::{Candidate, Picks};
use crate::base::error::Result;
use crate::base::parallel;
use crate::dataset::labels;
use crate::plan::Plan;
use crate::report::amount::Amount;
use crate::run_directory::dropped::NOT_SELECTED;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::{self, WindowLocation};
use crate::run_directory::selected;
use crate::run_directory::table::Table;
use crate::run_directory::units::UnitRecord;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleOutcome {
    Kept,
    /// Not kept because of its rank.
    Below,
    /// Rejected by a guard, or without a score.
    Refused,
}

pub(super) const OUTCOMES: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct GroupCounts {
    pub(super) outcomes: [Amount; OUTCOMES],
    pub(super) score: BinSums<OUTCOMES>,
    /// By statistic of the selection.
    pub(super) statistics: Vec<BinSums<OUTCOMES>>,
    pub(super) picks: Picks,
    /// Samples outside the bounds, by guard.
    pub(super) rejected: Vec<u64>,
}

/// Sums of lists, for their mean.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    pub(super) windows: u64,
    /// By index: the sum, and the number of lists that are long enough.
    pub(super) sums: Vec<(f64, u64)>,
}

impl Lists {
    fn add(&mut self, windows: u64, sums: impl ExactSizeIterator<Item = (f64, u64)>) {
        self.windows += windows;
        self.sums.resize(self.sums.len().max(sums.len()), (0.0, 0));
        for ((sum, count), (more, windows)) in self.sums.iter_mut().zip(sums) {
            *sum += more;
            *count += windows;
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct SampleCounts {
    /// By index among the shown groups; the last entry is all others.
    pub(super) groups: Vec<GroupCounts>,
    /// Kept samples, and the others by reason.
    pub(super) kept: Amount,
    pub(super) dropped: BTreeMap<String, Amount>,
    /// Samples that pass the guards, by score.
    pub(super) scores: Scores,
    /// By term, how often it was the minimum, for kept samples and for those below the threshold.
    pub(super) weakest: Vec<[u64; 2]>,
    /// By statistic that is a list, in the order of [`CountSources::lists`]: sums over kept windows and over the others.
    pub(super) lists: Vec<[Lists; 2]>,
    /// Some of the rejected samples, by guard.
    pub(super) rejected: Vec<Picks>,
    /// By label of `output.report_by`: all samples, and the kept ones.
    pub(super) labels: BTreeMap<Option<String>, [u64; 2]>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct GroupRules<'a> {
    /// Index among the shown groups; `None` if it is not shown.
    pub(super) index: Option<usize>,
    /// Scorer of the samples of a shown group; `None` if it has no scale.
    pub(super) scorer: Option<Scorer>,
    pub(super) bounds: &'a [Bounds],
}

/// Minimum number of windows that are counted before a merge, which costs as much as counting thousands of windows.
const MIN_WINDOWS_PER_PART: u64 = 8192;

pub(super) struct CountSources<'a> {
    pub(super) choice: &'a SelectionSettings,
    pub(super) records: &'a [UnitRecord],
    pub(super) scores: &'a RunDirectory,
    /// Tables of the selection, by unit.
    pub(super) selection: HashMap<&'a str, PathBuf>,
    /// Statistics in these tables.
    pub(super) statistics: Vec<String>,
    pub(super) shown: usize,
    pub(super) groups: HashMap<Option<&'a str>, GroupRules<'a>>,
    /// Statistics that are lists, each with whether a guard runs before its measure.
    pub(super) lists: Vec<(&'a str, bool)>,
    /// Index of each guard's statistic in the selection.
    pub(super) guards: Vec<Option<usize>>,
    /// Column of the labels and the input's units by name, if the input can be read.
    pub(super) labels: Option<(&'a Plan, &'a str, HashMap<String, usize>)>,
}

impl CountSources<'_> {
    /// Counts all samples in parts that the records define, added in order, so that threads do not change the result.
    pub(super) fn gather(&self) -> Result<SampleCounts> {
        let threads = self.scores.concurrency(rayon::current_num_threads());
        let (mut all, parts) = (self.nothing(), self.parts());
        let work = |part: usize| {
            let mut counts = self.nothing();
            parts[part].clone().try_for_each(|unit| self.unit(unit, &mut counts))?;
            Ok(counts)
        };
        parallel::each_in_order(parts.len(), threads, work, |part| {
            all.append(part);
            Ok(())
        })?;
        Ok(all)
    }

    /// Splits the units into parts of at least [`MIN_WINDOWS_PER_PART`] windows.
    fn parts(&self) -> Vec<Range<usize>> {
        let (mut parts, mut first, mut windows) = (Vec::new(), 0, 0);
        for (unit, record) in self.records.iter().enumerate() {
            windows += record.counts.windows;
            if windows >= MIN_WINDOWS_PER_PART || unit + 1 == self.records.len() {
                parts.push(first..unit + 1);
                (first, windows) = (unit + 1, 0);
            }
        }
        parts
    }

    fn nothing(&self) -> SampleCounts {
        let group = GroupCounts {
            outcomes: [Amount::default(); OUTCOMES],
            score: BinSums::new(MAX_BINS),
            statistics: vec![BinSums::new(MAX_BINS); self.statistics.len()],
            picks: Picks::default(),
            rejected: vec![0; self.guards.len()],
        };
        SampleCounts {
            groups: vec![group; self.shown + 1],
            kept: Amount::default(),
            dropped: BTreeMap::new(),
            scores: Scores::new(),
            weakest: vec![[0; 2]; self.choice.terms.len()],
            lists: vec![Default::default(); self.lists.len()],
            rejected: vec![Picks::default(); self.guards.len()],
            labels: BTreeMap::new(),
        }
    }

    fn unit(&self, unit: usize, found: &mut SampleCounts) -> Result<()> {
        let record = &self.records[unit];
        let Some(path) = self.selection.get(record.unit.as_str()) else { return Ok(()) };
        let lists: Vec<&str> = self.lists.iter().map(|(name, _)| *name).collect();
        let located = scores::read_locations(&self.scores.root.join(&record.scores.path), &lists)?;
        let locations = &located.locations;
        let labels = self.labels_of(unit)?;
        let mut outcomes: Vec<(SampleOutcome, bool)> = Vec::with_capacity(locations.len());
        selected::read(path, |row| {
            let first = outcomes.len();
            let is_sample = |location: &WindowLocation| match row.window {
                Some(window) => location.window == window,
                None => self.choice.documents,
            };
            let location =
                locations.get(first).filter(|location| location.input_row == row.input_row);
            let Some(location) = location.copied().filter(is_sample) else {
                return Err(mismatched_rows(path));
            };
            let (windows, tokens) = if row.window.is_some() {
                (1, location.tokens.1 - location.tokens.0)
            } else {
                let rest = locations[first..].iter();
                let windows =
                    rest.take_while(|location| location.input_row == row.input_row).count();
                (windows, location.tokens_total)
            };
            let outcome = match row.reason {
                None => SampleOutcome::Kept,
                Some(NOT_SELECTED) => SampleOutcome::Below,
                Some(_) => SampleOutcome::Refused,
            };
            let skipped = row.reason.is_some_and(|reason| self.choice.is_early_rejection(reason));
            outcomes.extend(std::iter::repeat_n((outcome, skipped), windows));
            self.sample(found, Candidate { unit, row, location, tokens }, outcome);
            if let Some(of_rows) = &labels {
                let label = of_rows.get((row.input_row - record.first_row) as usize).cloned();
                let counts = found.labels.entry(label.flatten()).or_default();
                counts[0] += 1;
                counts[1] += u64::from(outcome == SampleOutcome::Kept);
            }
            Ok(())
        })?;
        if outcomes.len() != locations.len() {
            return Err(mismatched_rows(path));
        }
        for (list, (sums, (_, guarded))) in found.lists.iter_mut().zip(&self.lists).enumerate() {
            located.each(list, |window, numbers| {
                let (outcome, skipped) = outcomes[window];
                // Another run of the same scores with other guards may have measured some skipped windows.
                if !(skipped && *guarded) {
                    let numbers = numbers.iter().map(|number| (*number, 1));
                    sums[usize::from(outcome != SampleOutcome::Kept)].add(1, numbers);
                }
            });
        }
        Ok(())
    }

    fn sample(&self, found: &mut SampleCounts, sample: Candidate<'_>, outcome: SampleOutcome) {
        let (row, amount) = (sample.row, Amount { samples: 1, tokens: sample.tokens });
        match row.reason.map(|reason| (reason, found.dropped.get_mut(reason))) {
            None => found.kept.add(amount),
            Some((_, Some(all))) => all.add(amount),
            Some((reason, None)) => drop(found.dropped.insert(reason.to_owned(), amount)),
        }
        let known = self.groups.get(&row.group);
        let shown = known.and_then(|known| known.index);
        let group = &mut found.groups[shown.unwrap_or(self.shown)];
        group.outcomes[outcome as usize].add(amount);
        let mut one = [0; OUTCOMES];
        one[outcome as usize] = 1;
        group.score.add(row.score, one);
        for (bins, value) in group.statistics.iter_mut().zip(row.statistics) {
            bins.add(*value, one);
        }
        if shown.is_some() {
            group.picks.add(sample);
        }
        let bounds = known.map_or(&[][..], |known| known.bounds);
        for (guard, (bounds, index)) in bounds.iter().zip(&self.guards).enumerate() {
            if index.is_some_and(|index| bounds.judge(row.statistics[index]) == Verdict::Refused) {
                group.rejected[guard] += 1;
                found.rejected[guard].add_rejected(sample);
            }
        }
        if outcome == SampleOutcome::Refused {
            return;
        }
        found.scores.add(row.score, amount);
        let scorer = known.and_then(|known| known.scorer.as_ref());
        if let Some(scorer) = scorer.filter(|_| self.choice.combine == Combine::Least)
            && !row.score.is_nan()
        {
            let min = |(index, min): (usize, f64), (own, term): (usize, f64)| {
                if term < min { (own, term) } else { (index, min) }
            };
            let terms = scorer.terms(row.statistics).enumerate();
            let (weakest, _) = terms.fold((0, f64::INFINITY), min);
            found.weakest[weakest][usize::from(outcome == SampleOutcome::Below)] += 1;
        }
    }

    fn labels_of(&self, unit: usize) -> Result<Option<Vec<Option<String>>>> {
        let Some((plan, column, units)) = &self.labels else { return Ok(None) };
        let record = &self.records[unit];
        let Some(index) = units.get(&record.unit) else { return Ok(None) };
        let (unit, unreadable) = (&plan.units[*index], record.unreadable_rows());
        Ok(Some(labels::read_labels(&plan.dataset, unit, column, &unreadable)?))
    }
}

fn mismatched_rows(path: &Path) -> crate::base::error::Failure {
    let hint = "`longsift verify` reports which file changed after it was written";
    Table { hint, ..selected::table(path) }.damaged(&"its rows do not match the scores")
}

impl SampleCounts {
    fn append(&mut self, other: Self) {
        for (group, more) in self.groups.iter_mut().zip(other.groups) {
            group
                .outcomes
                .iter_mut()
                .zip(more.outcomes)
                .for_each(|(outcome, more)| outcome.add(more));
            group.score.append(&more.score);
            let statistics = group.statistics.iter_mut().zip(&more.statistics);
            statistics.for_each(|(bins, more)| bins.append(more));
            group.picks.append(more.picks);
            group.rejected.iter_mut().zip(more.rejected).for_each(|(all, more)| *all += more);
        }
        self.kept.add(other.kept);
        self.scores.append(&other.scores);
        for (reason, amount) in other.dropped {
            self.dropped.entry(reason).or_default().add(amount);
        }
        for (components, more) in self.weakest.iter_mut().zip(other.weakest) {
            components.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        for (lists, more) in self.lists.iter_mut().zip(other.lists) {
            let of_both = lists.iter_mut().zip(more);
            of_both.for_each(|(all, more)| all.add(more.windows, more.sums.into_iter()));
        }
        for (picks, more) in self.rejected.iter_mut().zip(other.rejected) {
            picks.append(more);
        }
        for (label, more) in other.labels {
            let counts = self.labels.entry(label).or_default();
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
    }
}
