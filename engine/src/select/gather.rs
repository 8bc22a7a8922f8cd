//! Gathers the raw statistics of all samples: reads the score tables once, units in parallel, into temporary files by group.

use std::collections::BTreeMap;
use std::ops::Range;

use longsift_stages::score::settings::RelativeError;

use super::criteria::Criteria;
use super::repeated_ids::{RepeatedIds, hash};
use super::runs::RecordRuns;
use super::sort::Sorter;
use crate::base::error::Result;
use crate::base::parallel;
use crate::base::stop::Stop;
use crate::dataset::documents::is_id_of_row;
use crate::dataset::labels;
use crate::plan::Plan;
use crate::run_directory::anonymous_file::AnonymousFile;
use crate::run_directory::dropped;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::{self, ScoredWindow};
use crate::run_directory::units::UnitRecord;

const MAX_BATCH_WINDOWS: u64 = 1 << 19;

/// Encodes a sample: its number in input order, its tokens, its statistics.
fn write_sample(into: &mut Vec<u8>, number: u64, tokens: u64, values: &[f64]) {
    into.clear();
    into.extend(number.to_le_bytes());
    into.extend(tokens.to_le_bytes());
    into.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Returns the number of a sample and its tokens; its statistics go to `values`.
fn read_sample(record: &[u8], values: &mut Vec<f64>) -> (u64, u64) {
    let (head, statistics) = record.as_chunks::<8>().0.split_at(2);
    values.clear();
    values.extend(statistics.iter().map(|bytes| f64::from_le_bytes(*bytes)));
    (u64::from_le_bytes(head[0]), u64::from_le_bytes(head[1]))
}

/// Temporary file with the number of every sample's group, in input order.
#[derive(Debug)]
pub(super) struct GroupsOfSamples(AnonymousFile);

const GROUP_BYTES: usize = size_of::<u32>();

impl GroupsOfSamples {
    pub(super) fn read_range(&self, samples: Range<u64>) -> Result<Vec<u32>> {
        let mut bytes = vec![0; (samples.end - samples.start) as usize * GROUP_BYTES];
        self.0.read(&mut bytes, samples.start * GROUP_BYTES as u64)?;
        let numbers = bytes.as_chunks::<GROUP_BYTES>().0.iter();
        Ok(numbers.map(|number| u32::from_le_bytes(*number)).collect())
    }
}

#[derive(Debug, Default)]
pub(super) struct SampleTotals {
    /// Relative errors of the values of sampled rows, by term.
    pub(super) errors: Vec<RelativeError>,
    /// Windows that guards skip for a measure, by measure with guards before it.
    pub(super) skipped: Vec<u64>,
    pub(super) windows: u64,
    /// Number of windows that overlap the previous window.
    pub(super) overlapping: u64,
    pub(super) without_id: u64,
}

impl SampleTotals {
    fn new(criteria: &Criteria) -> Self {
        Self {
            errors: vec![RelativeError::default(); criteria.terms.len()],
            skipped: vec![0; criteria.skipped.len()],
            ..Self::default()
        }
    }

    fn add(&mut self, more: &Self) {
        self.errors.iter_mut().zip(&more.errors).for_each(|(all, more)| all.append(more));
        self.skipped.iter_mut().zip(&more.skipped).for_each(|(all, more)| *all += more);
        self.windows += more.windows;
        self.overlapping += more.overlapping;
        self.without_id += more.without_id;
    }
}

pub(super) struct GatheredSamples {
    samples: RecordRuns,
    values_per_sample: usize,
    pub(super) groups_of_samples: GroupsOfSamples,
    /// Number of the first sample of every unit, then the number of all samples.
    pub(super) units: Vec<u64>,
    /// Values of the `within` column with the number of each.
    pub(super) groups: BTreeMap<Option<String>, u32>,
    pub(super) group_totals: Vec<GroupTotals>,
    pub(super) totals: SampleTotals,
    pub(super) repeated_ids: RepeatedIds,
}

#[derive(Clone, Debug, Default)]
pub(super) struct GroupTotals {
    pub(super) samples: u64,
    /// Tokens of its shortest and its longest window.
    pub(super) lengths: (u64, u64),
}

/// Returns the number of the group with a value of the `within` column, and adds to its totals.
pub(super) fn add_to_group(
    groups: &mut BTreeMap<Option<String>, u32>,
    totals: &mut Vec<GroupTotals>,
    value: Option<String>,
    more: &GroupTotals,
) -> u32 {
    let next = totals.len() as u32;
    let group = *groups.entry(value).or_insert(next);
    if group == next {
        totals.push(GroupTotals { samples: 0, ..more.clone() });
    }
    let GroupTotals { samples, lengths: (shortest, longest) } = &mut totals[group as usize];
    *samples += more.samples;
    (*shortest, *longest) = ((*shortest).min(more.lengths.0), (*longest).max(more.lengths.1));
    group
}

/// Sample as read from the temporary file.
pub(super) struct Record<'a> {
    pub(super) number: u64,
    pub(super) tokens: u64,
    /// By statistic; `NaN` if missing.
    pub(super) values: &'a [f64],
}

impl GatheredSamples {
    pub(super) fn read(
        plan: &Plan,
        directory: &RunDirectory,
        records: &[UnitRecord],
        criteria: &Criteria,
        stop: &Stop,
    ) -> Result<Self> {
        let mut gathering = Gathering::new(&plan.directory, criteria)?;
        let threads = directory.concurrency(rayon::current_num_threads());
        let mut first = 0;
        while first < records.len() {
            let running = records[first..].iter().scan(0_u64, |windows, record| {
                *windows = windows.saturating_add(record.counts.windows).saturating_add(1);
                Some(*windows)
            });
            let fitting = running.take_while(|windows| *windows <= MAX_BATCH_WINDOWS).count();
            let end = first + fitting.max(1);
            let units = parallel::in_order(end - first, threads, |unit| {
                stop.check()?;
                UnitSamples::read(plan, directory, first + unit, &records[first + unit], criteria)
            })?;
            for unit in units {
                gathering.add(&unit)?;
            }
            first = end;
        }
        gathering.finish(stop)
    }

    /// Whether the only group is that of a run without `within`, or of rows without a value.
    pub(super) fn is_one_group(&self) -> bool {
        self.groups.keys().all(Option::is_none)
    }

    /// Reorders results of all groups, which are in the order of their values, by number of the group.
    pub(super) fn by_number<T>(&self, results: impl Iterator<Item = T>) -> Vec<T> {
        let mut numbered: Vec<(u32, T)> = self.groups.values().copied().zip(results).collect();
        numbered.sort_unstable_by_key(|(group, _)| *group);
        numbered.into_iter().map(|(_, result)| result).collect()
    }

    /// Calls `each` for the samples of a group in input order.
    pub(super) fn visit(
        &self,
        group: u32,
        stop: &Stop,
        mut each: impl FnMut(Record<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut values = Vec::new();
        self.samples.visit(group as usize, stop, |record| {
            let (number, tokens) = read_sample(record, &mut values);
            each(Record { number, tokens, values: &values })
        })
    }
}

pub(super) struct Gathering<'d> {
    gathered: GatheredSamples,
    ids: Sorter<'d, 2>,
    record: Vec<u8>,
}

impl<'d> Gathering<'d> {
    pub(super) fn new(directory: &'d RunDirectory, criteria: &Criteria) -> Result<Self> {
        let values_per_sample = criteria.statistics.len() + usize::from(criteria.random.is_some());
        let gathered = GatheredSamples {
            samples: RecordRuns::new(directory, 8 * (2 + values_per_sample))?,
            values_per_sample,
            groups_of_samples: GroupsOfSamples(AnonymousFile::create(directory)?),
            units: vec![0],
            groups: BTreeMap::new(),
            group_totals: Vec::new(),
            totals: SampleTotals::new(criteria),
            repeated_ids: RepeatedIds::default(),
        };
        Ok(Self { gathered, ids: Sorter::new(directory), record: Vec::new() })
    }

    pub(super) fn add(&mut self, unit: &UnitSamples) -> Result<()> {
        let Self { gathered, ids, record } = self;
        let mut number_of = vec![0; unit.group_totals.len()];
        for (value, own) in &unit.groups {
            let (all, totals) = (&mut gathered.groups, &mut gathered.group_totals);
            let own = *own as usize;
            number_of[own] = add_to_group(all, totals, value.clone(), &unit.group_totals[own]);
        }
        let mut number = gathered.units.last().copied().unwrap_or(0);
        let values = unit.values.chunks_exact(gathered.values_per_sample.max(1));
        for ((own, tokens), values) in unit.samples.iter().zip(values) {
            let group = number_of[*own as usize];
            write_sample(record, number, *tokens, values);
            gathered.samples.push(group as usize, record)?;
            gathered.groups_of_samples.0.append(&group.to_le_bytes())?;
            number += 1;
        }
        unit.ids.iter().try_for_each(|id| ids.push(*id))?;
        gathered.totals.add(&unit.totals);
        gathered.units.push(number);
        Ok(())
    }

    pub(super) fn finish(self, stop: &Stop) -> Result<GatheredSamples> {
        let Self { mut gathered, ids, .. } = self;
        gathered.samples.finish()?;
        gathered.groups_of_samples.0.flush()?;
        gathered.repeated_ids = RepeatedIds::find(ids, stop)?;
        Ok(gathered)
    }
}

#[derive(Default)]
pub(super) struct UnitSamples {
    /// Values of the `within` column with the number of each in this unit.
    pub(super) groups: BTreeMap<Option<String>, u32>,
    pub(super) group_totals: Vec<GroupTotals>,
    /// Group and tokens of each sample.
    pub(super) samples: Vec<(u32, u64)>,
    /// Values of all samples, concatenated.
    pub(super) values: Vec<f64>,
    pub(super) ids: Vec<[u64; 2]>,
    totals: SampleTotals,
}

impl UnitSamples {
    fn read(
        plan: &Plan,
        directory: &RunDirectory,
        index: usize,
        record: &UnitRecord,
        criteria: &Criteria,
    ) -> Result<Self> {
        let unit = &plan.units[index];
        let labels = match &plan.spec.score().within {
            Some(column) if record.counts.windows > 0 => {
                let unreadable = record.unreadable_rows();
                Some(labels::read_labels(&plan.dataset, unit, column, &unreadable)?)
            }
            _ => None,
        };
        let label = |document: &[ScoredWindow]| {
            let row = document.first()?.input_row - unit.first_row;
            labels.as_ref()?[row as usize].clone()
        };
        let mut samples = Self { totals: SampleTotals::new(criteria), ..Self::default() };
        let mut document: Vec<ScoredWindow> = Vec::new();
        scores::read(&directory.root.join(&record.scores.path), &criteria.columns(), |window| {
            if document.first().is_some_and(|first| first.input_row != window.input_row) {
                samples.add(criteria, &document, &unit.file_path, label(&document));
                document.clear();
            }
            document.push(window);
            Ok(())
        })?;
        samples.add(criteria, &document, &unit.file_path, label(&document));
        // The output then also has rows without a sample, and ids that are unique.
        if plan.spec.filter().mark_only
            && let Some(part) = &record.dropped
        {
            let dropped = dropped::read(&directory.root.join(&part.path))?;
            samples.ids.extend(dropped.iter().map(|row| hash(&row.id)));
        }
        Ok(samples)
    }

    /// Adds the samples of one document, given all its windows, its file and its group.
    fn add(
        &mut self,
        criteria: &Criteria,
        windows: &[ScoredWindow],
        file: &str,
        label: Option<String>,
    ) {
        let Some(first) = windows.first() else { return };
        let lengths = windows.iter().map(|window| window.tokens_scored);
        let lengths = (lengths.clone().min().unwrap_or(0), lengths.max().unwrap_or(0));
        let own = GroupTotals { samples: criteria.samples.split(windows).len() as u64, lengths };
        let group = add_to_group(&mut self.groups, &mut self.group_totals, label, &own);
        self.ids.push(hash(&first.id));
        let totals = &mut self.totals;
        totals.without_id += u64::from(is_id_of_row(&first.id, file, first.input_row));
        totals.windows += windows.len() as u64;
        totals.overlapping +=
            windows.windows(2).filter(|pair| pair[1].tokens.0 < pair[0].tokens.1).count() as u64;
        for sample in criteria.samples.split(windows) {
            criteria.add_errors(sample, &mut totals.errors);
            for (windows, of) in totals.skipped.iter_mut().zip(&criteria.skipped) {
                *windows += criteria.skipped_windows(of, sample);
            }
            self.samples.push((group, criteria.tokens(sample)));
            self.values.extend(criteria.values(sample, file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_back_as_it_was_written() {
        let (mut record, mut values) = (vec![7], vec![1.0]);
        write_sample(&mut record, 5, 9, &[0.25, f64::NAN]);
        assert_eq!(read_sample(&record, &mut values), (5, 9));
        assert!(values.len() == 2 && values[0].to_bits() == 0.25_f64.to_bits());
        assert!(values[1].is_nan());
    }

    #[test]
    fn the_groups_of_any_samples_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::for_output(&folder.path().join("out"));
        let mut file = AnonymousFile::create(&directory).unwrap();
        let all: Vec<u32> = (0..524_295).map(|sample| sample * 31 % 1009).collect();
        for group in &all {
            file.append(&group.to_le_bytes()).unwrap();
        }
        file.flush().unwrap();
        let groups = GroupsOfSamples(file);
        for range in [0..0, 0..3, 262_140..262_150, 524_290..524_295] {
            assert_eq!(
                groups.read_range(range.start as u64..range.end as u64).unwrap(),
                all[range]
            );
        }
        assert!(groups.read_range(524_290..524_296).is_err(), "there is no such sample");
    }
}
