//! What of a unit cannot be used: found before anything is scored, so that a bad value costs its row and a damaged page
//! the rows that need it.
//!
//! All columns are decoded once, whether they are scored or only passed through: a row that could not be written later
//! must not take part in a ranking.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow_schema::DataType;

use super::footer::Footer;
use super::input::Dataset;
use super::input_file::Contents;
use super::pages::{self, PageFault};
use super::problem::{DataProblem, RowProblem};
use super::read::{
    Batches, Place, ReadFailure, Request, batch_rows, open_unchanged, refusal, selection,
};
use super::source::OpenFile;
use super::units::WorkUnit;
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::spec::pipeline::OnBadFile;

/// Bytes of a batch while columns are only looked through.
const BATCH_BYTES: u64 = 16 << 20;
/// Readings of a column of a row group in search of what is damaged in it; beyond them, the rest of the group counts as
/// damaged. Each damaged page takes some 40.
const MOST_READINGS: u32 = 1000;
/// A row group whose rows cannot be read is set aside row by row up to this many rows. More are no row group of
/// documents but a footer that lies.
const MOST_UNREADABLE_ROWS: u64 = 1 << 24;

/// What of a unit cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Rows with a value that is not what its column promises.
    rows: BTreeMap<u64, RowProblem>,
    /// Rows that do not decode, column by column.
    unreadable: Vec<Unreadable>,
}

/// Rows of one column that do not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unreadable {
    rows: Range<u64>,
    /// Position of the column in the data set; `None` where no single column is to blame.
    column: Option<usize>,
    problem: RowProblem,
}

impl Faults {
    /// Looks through all columns of a unit. `largest_page`: bytes that a page may decompress to.
    ///
    /// # Errors
    /// A file that changed since it was planned, a disk that fails; with [`OnBadFile::Fail`], rows that do not decode; a
    /// signal, which is looked for before every column and batch.
    pub fn find(
        dataset: &Dataset,
        unit: &WorkUnit,
        on_bad_file: OnBadFile,
        largest_page: u64,
        stop: &Stop,
    ) -> Result<Self> {
        let file = &dataset.files[unit.file];
        let mut search =
            Search { dataset, unit, on_bad_file, largest_page, stop, faults: Self::default() };
        match &file.contents {
            Contents::Parquet(footer) => search.parquet(footer)?,
            Contents::Arrow(_) => search.record_batches()?,
            Contents::Lines(_) => search.lines()?,
        }
        Ok(search.faults)
    }

    /// Rows that do not decode.
    #[cfg(test)]
    pub(super) fn unreadable(rows: Range<u64>) -> Self {
        let problem = RowProblem { code: "unreadable", message: "a damaged page".to_owned() };
        Self { rows: BTreeMap::new(), unreadable: vec![Unreadable { rows, column: None, problem }] }
    }

    /// Why a row cannot be used, if it cannot.
    pub fn of_row(&self, row: u64) -> Option<&RowProblem> {
        let unreadable = self.unreadable.iter().find(|part| part.rows.contains(&row));
        unreadable.map(|part| &part.problem).or_else(|| self.rows.get(&row))
    }

    /// The rows that do not decode, ascending and disjoint.
    pub fn unreadable_rows(&self) -> Vec<Range<u64>> {
        merged(self.unreadable.iter().map(|part| part.rows.clone()).collect())
    }

    /// Runs of rows within `rows` (ascending, disjoint ranges) with the columns, by position, that do not decode there.
    pub(super) fn runs(&self, rows: Range<u64>, columns: usize) -> Vec<(Range<u64>, Vec<usize>)> {
        let here = |part: &&Unreadable| part.rows.start < rows.end && part.rows.end > rows.start;
        let parts: Vec<&Unreadable> = self.unreadable.iter().filter(here).collect();
        let edges = parts.iter().flat_map(|part| [part.rows.start, part.rows.end]);
        let mut edges: Vec<u64> =
            edges.filter(|edge| rows.contains(edge)).chain([rows.start, rows.end]).collect();
        edges.sort_unstable();
        edges.dedup();
        let run = |edges: &[u64]| {
            let row = edges[0];
            let mut of_run = Vec::new();
            for part in parts.iter().filter(|part| part.rows.contains(&row)) {
                match part.column {
                    Some(column) => of_run.push(column),
                    None => of_run.extend(0..columns),
                }
            }
            of_run.sort_unstable();
            of_run.dedup();
            (row..edges[1], of_run)
        };
        edges.windows(2).map(run).collect()
    }
}

/// Ranges in ascending order, those that overlap or touch as one.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// The parts of `within` that are not in `without` (ascending and disjoint).
pub(super) fn remaining(within: Range<u64>, without: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut start = within.start;
    for range in without.iter().filter(|range| range.end > within.start) {
        if range.start >= within.end {
            break;
        }
        if range.start > start {
            left.push(start..range.start);
        }
        start = range.end;
    }
    if start < within.end {
        left.push(start..within.end);
    }
    left
}

/// A list of one range.
fn one(range: Range<u64>) -> [Range<u64>; 1] {
    std::array::from_fn(|_| range.clone())
}

struct Search<'a> {
    dataset: &'a Dataset,
    unit: &'a WorkUnit,
    on_bad_file: OnBadFile,
    largest_page: u64,
    stop: &'a Stop,
    faults: Faults,
}

impl Search<'_> {
    /// Looks through the row groups of a Parquet file, one by one: a damaged page costs the rows that need it.
    fn parquet(&mut self, footer: &Footer) -> Result<()> {
        let file = &self.dataset.files[self.unit.file];
        let opened =
            open_unchanged(self.dataset, file).map_err(|problem| problem.in_file(&file.path))?;
        let row_groups: Vec<usize> = self.unit.row_groups.clone().collect();
        opened.want(footer.chunks(&row_groups, &file.positions));
        self.unit.row_groups.clone().try_for_each(|group| self.row_group(group, &opened, footer))
    }

    /// Looks through the rows of a format in which a bad one costs no other.
    fn lines(&mut self) -> Result<()> {
        let unit = self.unit;
        let rows = unit.first_row..unit.first_row + unit.rows;
        match self.read_on(unit.row_groups.clone(), rows)? {
            Ok(()) => Ok(()),
            Err((row, why)) => Err(self.place().unreadable(row, why).into()),
        }
    }

    /// Looks through the record batches of an Arrow file: one that does not decode is lost as a whole.
    fn record_batches(&mut self) -> Result<()> {
        let unit = self.unit;
        for group in unit.row_groups.clone() {
            let info = self.dataset.files[unit.file].row_groups[group];
            let end = (info.first_row + info.rows).min(unit.first_row + unit.rows);
            let rows = info.first_row..end;
            if let Err((_, why)) = self.read_on(group..group + 1, rows.clone())? {
                self.damaged(rows, None, &why)?;
            }
        }
        Ok(())
    }

    /// Decodes rows of consecutive row groups, all columns, and notes those that are bad. Where they do not decode: from which
    /// row on, and why.
    fn read_on(
        &mut self,
        groups: Range<usize>,
        rows: Range<u64>,
    ) -> Result<std::result::Result<(), (u64, String)>> {
        let file = &self.dataset.files[self.unit.file];
        let fields = self.dataset.schema.fields().iter();
        let columns: Vec<_> = fields.map(|field| field.data_type().clone()).enumerate().collect();
        let (row_groups, selection) = selection(file, groups, &one(rows.clone()));
        let request = Request {
            file: self.unit.file,
            columns: &columns,
            selection: Some(selection),
            batch_rows: batch_rows(file, &columns, &row_groups, BATCH_BYTES),
            row_groups,
            strict: true,
        };
        let mut row = rows.start;
        for batch in Batches::open(self.dataset, &request)? {
            self.stop.check()?;
            let batch = match batch {
                Ok(batch) => batch,
                Err(ReadFailure::Damaged(why)) => return Ok(Err((row, why))),
                Err(other) => return Err(self.place().unreadable(row, other).into()),
            };
            let bad = batch.bad.into_iter().map(|(place, problem)| (row + place as u64, problem));
            self.faults.rows.extend(bad);
            row += batch.rows as u64;
        }
        if row == rows.end {
            return Ok(Ok(()));
        }
        Ok(Err((row, format!("rows up to {} are expected", rows.end))))
    }

    fn row_group(&mut self, group: usize, file: &OpenFile, footer: &Footer) -> Result<()> {
        let info = self.dataset.files[self.unit.file].row_groups[group];
        let end = (info.first_row + info.rows).min(self.unit.first_row + self.unit.rows);
        let rows = info.first_row..end;
        let columns: Vec<usize> = (0..self.dataset.schema.fields().len()).collect();
        let found = self.faults.unreadable.len();
        for &column in &columns {
            self.stop.check()?;
            let Err(fault) = self.pages(group, column, file, footer) else { continue };
            if let Some(refused) = refusal(file) {
                return Err(self.place().unreadable(rows.start, refused).into());
            }
            match fault {
                PageFault::Damaged(why) => self.damaged(rows.clone(), Some(column), &why)?,
                PageFault::TooLarge(why, hint) if self.on_bad_file == OnBadFile::Fail => {
                    let why = self.in_column(Some(column), &why);
                    return Err(self
                        .place()
                        .in_group(rows.start, DataProblem::data(why), hint)
                        .into());
                }
                PageFault::TooLarge(why, hint) => {
                    let why = format!("{}: {hint}", self.in_column(Some(column), &why));
                    self.unread(rows.clone(), Some(column), why)?;
                }
            }
        }
        if self.faults.unreadable.len() > found {
            return Ok(());
        }
        if self.read(group, &columns, &one(rows.clone()))?.is_ok() {
            return Ok(());
        }
        for &column in &columns {
            self.column(group, column, rows.clone())?;
        }
        // What is left must decode together, as it will be read.
        let bad =
            merged(self.faults.unreadable[found..].iter().map(|part| part.rows.clone()).collect());
        if let Err(why) = self.read(group, &columns, &remaining(rows.clone(), &bad))? {
            self.damaged(rows, None, &why)?;
        }
        Ok(())
    }

    fn place(&self) -> Place {
        Place::of(self.dataset, self.unit)
    }

    /// The sizes that the pages of a column claim.
    fn pages(
        &self,
        group: usize,
        column: usize,
        file: &OpenFile,
        footer: &Footer,
    ) -> std::result::Result<(), PageFault> {
        let input = &self.dataset.files[self.unit.file];
        let chunks = footer.metadata.row_group(group).columns();
        footer
            .leaves(input.positions[column])
            .try_for_each(|leaf| pages::check(file, &chunks[leaf], self.largest_page))
    }

    /// Finds the rows of one column that do not decode: the first by halving what is left, then the end of the damage.
    fn column(&mut self, group: usize, column: usize, rows: Range<u64>) -> Result<()> {
        let mut readings = 0;
        let mut start = rows.start;
        while let Err(why) = self.read(group, &[column], &one(start..rows.end))? {
            let mut fails = |search: &mut Self, range: Range<u64>| -> Result<bool> {
                readings += 1;
                Ok(search.read(group, &[column], &one(range))?.is_err())
            };
            let (mut good, mut bad) = (start, rows.end);
            while good + 1 < bad {
                let middle = good + (bad - good) / 2;
                if fails(self, start..middle)? { bad = middle } else { good = middle }
            }
            let first = good;
            let (mut last, mut step) = (first, 1);
            let mut behind = rows.end;
            while last + step < rows.end {
                if fails(self, last + step..last + step + 1)? {
                    last += step;
                    step *= 2;
                } else {
                    behind = last + step;
                    break;
                }
            }
            if behind == rows.end && last + 1 < rows.end && !fails(self, rows.end - 1..rows.end)? {
                behind = rows.end - 1;
            }
            while last + 1 < behind {
                let middle = last + (behind - last) / 2;
                if fails(self, middle..middle + 1)? { last = middle } else { behind = middle }
            }
            let behind = if readings > MOST_READINGS { rows.end } else { behind };
            self.damaged(first..behind, Some(column), &why)?;
            start = behind;
            if start >= rows.end {
                break;
            }
        }
        Ok(())
    }

    /// Decodes `ranges` (ascending, inside the row group) of some columns and notes texts that are not UTF-8. The outer
    /// error is one that no file is to blame for.
    fn read(
        &mut self,
        group: usize,
        columns: &[usize],
        ranges: &[Range<u64>],
    ) -> Result<std::result::Result<(), String>> {
        let file = &self.dataset.files[self.unit.file];
        let info = file.row_groups[group];
        let columns: Vec<(usize, DataType)> = columns
            .iter()
            .map(|&column| (column, self.dataset.schema.field(column).data_type().clone()))
            .collect();
        let (row_groups, selection) = selection(file, group..group + 1, ranges);
        let request = Request {
            file: self.unit.file,
            row_groups,
            columns: &columns,
            selection: Some(selection),
            batch_rows: batch_rows(file, &columns, &[group], BATCH_BYTES),
            strict: true,
        };
        let mut rows = ranges.iter().flat_map(Clone::clone);
        for batch in Batches::open(self.dataset, &request)? {
            self.stop.check()?;
            let batch = match batch {
                Ok(batch) => batch,
                Err(ReadFailure::Damaged(why)) => return Ok(Err(why)),
                Err(other) => return Err(self.place().unreadable(info.first_row, other).into()),
            };
            let numbers: Vec<u64> = rows.by_ref().take(batch.rows).collect();
            if numbers.len() < batch.rows {
                return Ok(Err("a column has more rows than the footer promises".to_owned()));
            }
            for (row, column) in batch.not_utf8 {
                let name = self.dataset.schema.field(columns[column].0).name();
                self.faults.rows.entry(numbers[row]).or_insert_with(|| RowProblem {
                    code: "invalid_utf8",
                    message: format!("column `{name}` holds bytes that are not UTF-8"),
                });
            }
        }
        if rows.next().is_none() {
            return Ok(Ok(()));
        }
        Ok(Err("a column has fewer rows than the footer promises".to_owned()))
    }

    /// Notes that rows do not decode, or refuses them where that is asked for.
    fn damaged(&mut self, rows: Range<u64>, column: Option<usize>, why: &str) -> Result<()> {
        let why = self.in_column(column, why);
        if self.on_bad_file == OnBadFile::Fail {
            return Err(self.place().unreadable(rows.start, why).into());
        }
        let why = format!("{why} (rows {} to {} do not decode)", rows.start, rows.end - 1);
        self.unread(rows, column, why)
    }

    fn in_column(&self, column: Option<usize>, why: &str) -> String {
        match column {
            Some(column) => format!("column `{}`: {why}", self.dataset.schema.field(column).name()),
            None => why.to_owned(),
        }
    }

    /// Notes that rows are not read.
    fn unread(&mut self, rows: Range<u64>, column: Option<usize>, why: String) -> Result<()> {
        let count = rows.end - rows.start;
        if count > MOST_UNREADABLE_ROWS {
            let why = format!("{why}; {count} rows are more than can be set aside one by one");
            return Err(self.place().unreadable(rows.start, why).into());
        }
        let problem = RowProblem { code: "unreadable", message: why };
        self.faults.unreadable.push(Unreadable { rows, column, problem });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::Failure;

    #[test]
    fn a_signal_ends_the_search() {
        let rows = crate::dataset::tests::texts(&[Some("a")]);
        let (_folder, dataset) = crate::dataset::tests::folder_of(&[rows], 1);
        let find = |stop: Stop| {
            let unit = &dataset.units(1, None)[0];
            Faults::find(&dataset, unit, OnBadFile::Fail, 1 << 20, &stop)
        };
        assert_eq!(find(Stop::default()).unwrap(), Faults::default());
        let stopped = find(Stop::after(15)).unwrap_err();
        assert!(matches!(stopped, Failure::Stopped { signal: 15 }), "{stopped}");
    }

    #[test]
    fn what_remains_of_a_range() {
        assert_eq!(merged(vec![7..9, 0..2, 2..3, 1..2]), [0..3, 7..9]);
        assert_eq!(remaining(1..10, &[0..3, 5..6, 9..12]), [3..5, 6..9]);
        assert_eq!(remaining(1..10, &[]), one(1..10));
        assert!(remaining(1..10, &one(0..20)).is_empty());
    }

    #[test]
    fn runs_name_the_columns_that_are_lost() {
        let problem = RowProblem { code: "unreadable", message: String::new() };
        let part = |rows: Range<u64>, column| Unreadable { rows, column, problem: problem.clone() };
        let faults = Faults {
            rows: BTreeMap::new(),
            unreadable: vec![part(0..10, Some(1)), part(5..15, Some(0)), part(20..30, None)],
        };
        assert_eq!(
            faults.runs(2..25, 3),
            [
                (2..5, vec![1]),
                (5..10, vec![0, 1]),
                (10..15, vec![0]),
                (15..20, vec![]),
                (20..25, vec![0, 1, 2])
            ]
        );
        assert_eq!(faults.unreadable_rows(), [0..15, 20..30]);
    }
}
