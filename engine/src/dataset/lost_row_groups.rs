//! Row groups of a work unit that cannot be read. A row group that does not decode affects no other row group.
//!
//! A row with an unreadable column could not be written later, so it must not be ranked: a row group is lost if any of
//! its columns is.

use std::ops::Range;

use longsift_stages::contract::RowError;

use super::input::Dataset;
use super::input_file::Contents;
use super::read::{Batches, ReadError, ReadRequest, RowGroupError, columns};
use super::units::WorkUnit;
use crate::base::error::Result;
use crate::base::stop::Stop;

/// Maximum rows of a row group that is quarantined row by row. More rows indicate a corrupt footer.
const MAX_LOST_ROWS: u64 = 1 << 24;

/// Row groups of a work unit that cannot be read, in the order of their rows.
#[derive(Clone, Debug, Default)]
pub struct LostRowGroups(Vec<LostRowGroup>);

#[derive(Clone, Debug)]
pub(super) struct LostRowGroup {
    pub(super) rows: Range<u64>,
    /// Columns that cannot be read, by index in the data set.
    pub(super) columns: Vec<usize>,
    problem: RowError,
}

impl LostRowGroups {
    /// Adds all other lost row groups of the unit by decoding each column. `failed`: one in which a reader of all columns failed.
    pub fn with_others(
        mut self,
        dataset: &Dataset,
        unit: &WorkUnit,
        failed: Option<&RowGroupError>,
        stop: &Stop,
    ) -> Result<Self> {
        for group in unit.row_groups.clone() {
            let rows = rows_of(dataset, unit, group);
            if rows.is_empty() || self.problem(rows.start).is_some() {
                continue;
            }
            let (mut columns, mut error) = (Vec::new(), None);
            for part in parts(dataset, unit) {
                if let Some(found) = failure(dataset, unit, rows.clone(), &part, stop)? {
                    columns.extend(part);
                    error = error.or(Some(found));
                }
            }
            // Columns that only decode separately are unusable.
            if let (None, Some(failed)) =
                (&error, failed.filter(|failed| failed.row_group == group))
            {
                columns = (0..dataset.schema.fields().len()).collect();
                error = Some(failed.clone());
            }
            if let Some(error) = error {
                self.0.push(LostRowGroup { problem: problem(error, &rows)?, rows, columns });
            }
        }
        self.0.sort_unstable_by_key(|lost| lost.rows.start);
        Ok(self)
    }

    /// Returns the reason why a row cannot be read, if its row group is lost.
    pub fn problem(&self, row: u64) -> Option<&RowError> {
        self.0.iter().find(|lost| lost.rows.contains(&row)).map(|lost| &lost.problem)
    }

    pub fn rows(&self) -> Vec<Range<u64>> {
        self.0.iter().map(|lost| lost.rows.clone()).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LostRowGroup> {
        self.0.iter()
    }
}

impl RowGroupError {
    /// Adds the column's name if only one column fails.
    pub(crate) fn with_column(
        self,
        dataset: &Dataset,
        unit: &WorkUnit,
        stop: &Stop,
    ) -> Result<Self> {
        let rows = rows_of(dataset, unit, self.row_group);
        for part in parts(dataset, unit) {
            if let Some(found) = failure(dataset, unit, rows.clone(), &part, stop)? {
                return Ok(found);
            }
        }
        Ok(self)
    }
}

fn rows_of(dataset: &Dataset, unit: &WorkUnit, row_group: usize) -> Range<u64> {
    let info = dataset.files[unit.file].row_groups[row_group];
    info.first_row..(info.first_row + info.rows).min(unit.first_row + unit.rows)
}

/// Returns the columns to check together: each of Parquet, all of Arrow, none of lines, where a bad line affects no other.
fn parts(dataset: &Dataset, unit: &WorkUnit) -> Vec<Vec<usize>> {
    let columns = 0..dataset.schema.fields().len();
    match &dataset.files[unit.file].contents {
        Contents::Parquet(..) => columns.map(|column| vec![column]).collect(),
        Contents::Arrow(_) => vec![columns.collect()],
        Contents::Lines(_) => Vec::new(),
    }
}

fn failure(
    dataset: &Dataset,
    unit: &WorkUnit,
    rows: Range<u64>,
    part: &[usize],
    stop: &Stop,
) -> Result<Option<RowGroupError>> {
    let columns: Vec<_> = columns(dataset).filter(|(column, _)| part.contains(column)).collect();
    let rows = std::iter::once(rows).collect();
    for batch in Batches::open(dataset, &ReadRequest::new(unit.file, rows, &columns))? {
        stop.check()?;
        match batch {
            Ok(_) => {}
            Err(ReadError::RowGroup(error)) => return Ok(Some(*error)),
            Err(ReadError::File(problem)) => return Err(problem.into()),
        }
    }
    Ok(None)
}

/// Returns the reason that the quarantine records for each row of a row group.
fn problem(mut lost: RowGroupError, rows: &Range<u64>) -> Result<RowError> {
    let (error, count) = (&mut lost.error, rows.end - rows.start);
    if count > MAX_LOST_ROWS {
        error.message =
            format!("{}; {count} rows are more than can be quarantined one by one", error.message);
        return Err(lost.problem().into());
    }
    let message = match &error.hint {
        Some(hint) => format!("{}: {hint}", error.message),
        None => {
            format!("{} (rows {} to {} do not decode)", error.message, rows.start, rows.end - 1)
        }
    };
    Ok(RowError { code: error.code, message })
}

#[cfg(test)]
impl LostRowGroups {
    /// Returns a single lost row group for tests.
    pub(super) fn with_rows(rows: Range<u64>) -> Self {
        let problem = RowError::new("unreadable", "a damaged page");
        Self(vec![LostRowGroup { rows, columns: Vec::new(), problem }])
    }
}
