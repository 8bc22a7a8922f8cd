//! Reads rows of an unchanged file: projected columns, bounded batches, and errors with their location.

use std::iter::Flatten;
use std::ops::Range;
use std::sync::Arc;
use std::vec;

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use longsift_stages::contract::RowError;

use super::formats::decode::{Decode, DecodeError, DecodeRequest, Decoded};
use super::input::Dataset;
use super::input_file::InputFile;
use super::problem::DataProblem;
use super::source::OpenFile;
use super::{text, times, unify};
use crate::base::diagnostic::Diagnostic;
use crate::storage::error::ErrorKind;
use crate::storage::range_file::Stamp;

/// Maximum rows of a batch of long rows: sizes follow from an average, but long rows may follow short ones.
const MAX_LONG_ROWS: u64 = 64;
const MAX_ROWS: u64 = 1024;
const BATCH_BYTES: u64 = 16 << 20;

pub(super) struct ReadRequest<'a> {
    pub(super) file: usize,
    /// Row ranges of the file, ascending and disjoint. Other row groups are not touched.
    pub(super) rows: Vec<Range<u64>>,
    /// Columns by index in the data set, with their requested types.
    pub(super) columns: &'a [(usize, DataType)],
    /// Approximate decoded bytes of a batch.
    pub(super) batch_bytes: u64,
    pub(super) batch_rows: usize,
    /// Whether fields without a column make a row bad.
    pub(super) strict: bool,
}

impl<'a> ReadRequest<'a> {
    /// Request that is not strict, for batches of any number of rows.
    pub(super) fn new(
        file: usize,
        rows: Vec<Range<u64>>,
        columns: &'a [(usize, DataType)],
    ) -> Self {
        Self {
            file,
            rows,
            columns,
            batch_bytes: BATCH_BYTES,
            batch_rows: usize::MAX,
            strict: false,
        }
    }
}

/// Iterator over batches of the requested columns, in the requested order and types. It ends after an error.
pub(super) struct Batches {
    reader: Result<Option<Box<dyn Decode>>, DecodeError>,
    source: OpenFile,
    planned: Stamp,
    columns: Vec<RequestedColumn>,
    rows: Flatten<vec::IntoIter<Range<u64>>>,
    /// Next row to read; errors are reported at this row.
    next_row: u64,
    file: String,
    /// First rows of the file's row groups.
    groups: Vec<u64>,
    /// Whether a row group is lost as a whole. Line files are read sequentially, so an error also loses what follows.
    whole: bool,
}

struct RequestedColumn {
    source: ColumnSource,
    data_type: DataType,
    name: String,
}

enum ColumnSource {
    /// Index among the decoded columns, and the value that replaces nulls.
    File(usize, Option<ArrayRef>),
    Partition(Option<String>),
}

pub(super) struct Batch {
    pub(super) columns: Vec<ArrayRef>,
    pub(super) rows: Vec<u64>,
    /// Rows that do not fit the columns, by ascending index in this batch. Their faulty values are null.
    pub(super) bad: Vec<(usize, RowError)>,
}

impl Batch {
    /// Returns the reason why the row at `position` in this batch is bad, if it is.
    pub(super) fn problem(&self, position: usize) -> Option<&RowError> {
        let found = self.bad.binary_search_by_key(&position, |(bad, _)| *bad);
        found.ok().map(|index| &self.bad[index].1)
    }
}

impl Batches {
    /// Opens the file if it has not changed since it was planned.
    pub(super) fn open(dataset: &Dataset, request: &ReadRequest<'_>) -> Result<Self, ReadError> {
        let file = &dataset.files[request.file];
        let source =
            open_unchanged(dataset, file).map_err(|problem| problem.in_file(&file.path))?;
        // Columns stored in the file itself; those of partitions follow.
        let own = file.schema.fields().len() - file.partitions.len();
        let columns = request.columns.iter();
        let columns =
            columns.map(|(column, data_type)| (file.positions[*column], data_type.clone()));
        let (mut positions, mut types): (Vec<_>, Vec<_>) =
            columns.filter(|(position, _)| *position < own).unzip();
        if positions.is_empty() && !request.columns.is_empty() && own > 0 {
            // One column is read to count its rows.
            positions.push(0);
            types.push(DataType::Null);
        }
        let wanted = DecodeRequest {
            rows: request.rows.clone(),
            positions,
            types,
            batch_rows: batch_rows(file, request).min(request.batch_rows),
            strict: request.strict,
        };
        let in_file_order = wanted.in_file_order();
        let folder_value = |position: usize| {
            file.folder_values.iter().find(|(of, _)| *of == position).map(|(_, value)| value)
        };
        let source_of = |position: usize| match in_file_order.binary_search(&position) {
            Ok(index) => ColumnSource::File(index, folder_value(position).cloned()),
            Err(_) => ColumnSource::Partition(file.partitions[position - own].clone()),
        };
        let column = |(index, data_type): &(usize, DataType)| RequestedColumn {
            source: source_of(file.positions[*index]),
            data_type: data_type.clone(),
            name: dataset.schema.field(*index).name().clone(),
        };
        Ok(Self {
            reader: file.decode(&source, &wanted).map(Some),
            planned: file.stamp,
            source,
            columns: request.columns.iter().map(column).collect(),
            next_row: request.rows.first().map_or(0, |rows| rows.start),
            rows: request.rows.clone().into_iter().flatten(),
            file: file.path.clone(),
            groups: file.row_groups.iter().map(|group| group.first_row).collect(),
            whole: file.has_row_groups(),
        })
    }

    fn read(&mut self) -> Result<Option<Batch>, ReadError> {
        let decoded = match &mut self.reader {
            Ok(None) => return Ok(None),
            Ok(Some(reader)) => reader.next(),
            Err(why) => Err(why.clone()),
        };
        let decoded = match decoded {
            Ok(Some(decoded)) => {
                // Before statistics of these rows are kept under the identity of the planned file.
                self.check_unchanged()?;
                decoded
            }
            Ok(None) => {
                self.reader = Ok(None);
                self.check_unchanged()?;
                return match self.rows.next() {
                    None => Ok(None),
                    Some(row) => Err(self.lost(row, "it has fewer rows than planned".into())),
                };
            }
            Err(why) => return Err(self.failure(why)),
        };
        self.batch(decoded).map(Some)
    }

    /// Converts decoded columns to the requested types.
    fn batch(&mut self, Decoded { batch, mut bad }: Decoded) -> Result<Batch, ReadError> {
        let rows: Vec<u64> = self.rows.by_ref().take(batch.num_rows()).collect();
        if rows.len() < batch.num_rows() {
            return Err(self.failure("it has more rows than planned".into()));
        }
        let mut columns = Vec::with_capacity(self.columns.len());
        for RequestedColumn { source, data_type, name } in &self.columns {
            let array = match source {
                ColumnSource::File(index, None) => Arc::clone(batch.column(*index)),
                ColumnSource::File(index, Some(value)) => {
                    unify::without_nulls(batch.column(*index), value)
                        .map_err(|error| self.failure(error.to_string().into()))?
                }
                ColumnSource::Partition(value) => {
                    unify::partition_column(value.as_deref(), rows.len())
                }
            };
            let converted = text::to_text(&array, data_type);
            let converted = converted.and_then(|(array, not_utf8)| {
                let (array, lost) = times::without_lost(array)?;
                Ok((array, not_utf8, lost))
            });
            match converted {
                Ok((array, not_utf8, lost)) => {
                    columns.push(array);
                    bad.extend(lost.into_iter().map(|(row, value)| {
                        let message = format!("column `{name}`: {value}");
                        (row, RowError::new("time_out_of_range", message))
                    }));
                    let message = format!("column `{name}` contains invalid UTF-8");
                    let problem = RowError::new("invalid_utf8", message);
                    bad.extend(not_utf8.into_iter().map(|row| (row, problem.clone())));
                }
                Err(error) => return Err(self.failure(error.to_string().into())),
            }
        }
        // The sort is stable, so the first of several problems of a row is kept.
        bad.sort_by_key(|(row, _)| *row);
        bad.dedup_by_key(|(row, _)| *row);
        self.next_row = rows.last().map_or(self.next_row, |row| row + 1);
        Ok(Batch { columns, rows, bad })
    }

    /// Returns why the decoder stopped: a failed read or invalid bytes.
    fn failure(&self, why: DecodeError) -> ReadError {
        if let Some(error) = self.source.refused() {
            let problem = match error.kind {
                ErrorKind::Changed => changed("the store now has another version"),
                _ => DataProblem::machine(format!("cannot be read: {error}")),
            };
            return problem.in_file(&self.file).into();
        }
        self.check_unchanged().err().unwrap_or_else(|| self.lost(self.next_row, why))
    }

    fn lost(&self, row: u64, mut error: DecodeError) -> ReadError {
        if let [RequestedColumn { name, .. }] = &self.columns[..] {
            error.message = format!("column `{name}`: {}", error.message);
        }
        let file = self.file.clone();
        let row_group = self.groups.partition_point(|&first| first <= row).saturating_sub(1);
        let error = RowGroupError { file, row_group, row, error };
        if self.whole { ReadError::RowGroup(Box::new(error)) } else { error.problem().into() }
    }

    /// Checks that the file has not changed since the plan: reading a file while it is written can mix rows of two versions.
    fn check_unchanged(&self) -> Result<(), ReadError> {
        let problem = match self.source.file.stamp() {
            Err(error) => DataProblem::machine(format!("cannot be read: {error}")),
            Ok(now) => match difference(self.planned, now) {
                None => return Ok(()),
                Some(why) => changed(&why),
            },
        };
        Err(problem.in_file(&self.file).into())
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.read().transpose();
        if batch.as_ref().is_some_and(Result::is_err) {
            self.reader = Ok(None);
            self.rows = Vec::new().into_iter().flatten();
        }
        batch
    }
}

#[derive(Clone, Debug)]
pub enum ReadError {
    /// The whole file is affected: it changed, or the machine failed. The rows may be valid.
    File(DataProblem),
    /// One row group cannot be read; others may be.
    RowGroup(Box<RowGroupError>),
}

#[derive(Clone, Debug)]
pub struct RowGroupError {
    pub(super) file: String,
    pub(super) row_group: usize,
    /// First row that was not read.
    pub(super) row: u64,
    pub(super) error: DecodeError,
}

impl RowGroupError {
    /// Converts to a problem for callers that require the row group.
    pub(crate) fn problem(self) -> DataProblem {
        let DecodeError { message, hint, .. } = self.error;
        let (message, hint) = match hint {
            Some(hint) => (message, hint),
            None => (
                format!("this and the following rows do not decode: {message}"),
                "rewrite the file from its source, or set `input.on_bad_file: quarantine` to skip this row group".to_owned(),
            ),
        };
        let problem = DataProblem::data(message).in_file(self.file);
        problem.in_row_group(self.row_group).at_row(self.row).with_hint(hint)
    }
}

impl From<DataProblem> for ReadError {
    fn from(problem: DataProblem) -> Self {
        Self::File(problem)
    }
}

impl From<ReadError> for DataProblem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::File(problem) => problem,
            ReadError::RowGroup(error) => error.problem(),
        }
    }
}

impl From<ReadError> for Diagnostic {
    fn from(error: ReadError) -> Self {
        DataProblem::from(error).into()
    }
}

/// Opens a planned file and checks that its size and modification time are unchanged.
pub(super) fn open_unchanged(dataset: &Dataset, file: &InputFile) -> Result<OpenFile, DataProblem> {
    let opened = if let Some(hub) = &dataset.hub {
        OpenFile::open_in_hub(hub, &file.path)?
    } else {
        let path = dataset.root.join(&file.path);
        OpenFile::open(&path).map_err(|error| match error.kind {
            ErrorKind::NotFound => changed("it no longer exists"),
            _ => error.into(),
        })?
    };
    let now = opened
        .file
        .stamp()
        .map_err(|error| DataProblem::machine(format!("its size is unknown: {error}")))?;
    match difference(file.stamp, now) {
        Some(why) => Err(changed(&why)),
        None => Ok(opened),
    }
}

fn changed(why: &str) -> DataProblem {
    DataProblem::data(format!("the file changed since it was planned: {why}"))
        .with_hint("wait until it is completely written, then run again")
}

fn difference(planned: Stamp, now: Stamp) -> Option<String> {
    if now.size != planned.size {
        return Some(format!("it had {} bytes, now it has {}", planned.size, now.size));
    }
    if now.version != planned.version {
        return Some("the store now has another version".to_owned());
    }
    let (before, after) = (planned.modified_ns, now.modified_ns);
    if after != before {
        return Some(format!("it was modified at {before} ns, now at {after} ns"));
    }
    let (before, after) = (planned.changed_ns, now.changed_ns);
    (after != before).then(|| format!("its status changed at {before} ns, now at {after} ns"))
}

/// Returns the rows of `within` outside `without` (ascending and disjoint).
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

pub(super) fn columns(dataset: &Dataset) -> impl Iterator<Item = (usize, DataType)> {
    dataset.schema.fields().iter().map(|field| field.data_type().clone()).enumerate()
}

pub(super) fn ranges(rows: &[u64]) -> Vec<Range<u64>> {
    let runs = rows.chunk_by(|a, b| a + 1 == *b);
    runs.map(|run| run[0]..run[run.len() - 1] + 1).collect()
}

/// Returns the number of rows that decode to about the requested bytes. Depends only on the file and the columns.
fn batch_rows(file: &InputFile, request: &ReadRequest<'_>) -> usize {
    let positions: Vec<usize> =
        request.columns.iter().map(|(column, _)| file.positions[*column]).collect();
    let groups = file.row_groups.iter().enumerate().filter(|(_, group)| {
        let next = request.rows.partition_point(|rows| rows.end <= group.first_row);
        request.rows.get(next).is_some_and(|rows| rows.start < group.first_row + group.rows)
    });
    let (rows, bytes) = groups.fold((0_u64, 0_u64), |(rows, bytes), (index, group)| {
        (rows + group.rows, bytes.saturating_add(file.decoded_bytes(&positions, index..index + 1)))
    });
    let fitting = request.batch_bytes / (bytes / rows.max(1)).max(1);
    let rows = fitting.clamp(1, MAX_LONG_ROWS).max((fitting / MAX_LONG_ROWS).min(MAX_ROWS));
    usize::try_from(rows).expect("at most MAX_ROWS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_rows_are_outside_all_ranges() {
        assert_eq!(remaining(0..10, &[2..4, 4..5, 8..12]), [0..2, 5..8]);
        assert_eq!(remaining(3..8, &[0..3, 5..6, 8..9]), [3..5, 6..8]);
        assert!(remaining(1..10, &[0..4, 4..20]).is_empty());
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), [1..4, 7..8, 9..11]);
    }
}
