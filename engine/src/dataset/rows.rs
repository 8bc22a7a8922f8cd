//! Whole rows for the output, all columns, in the types of the output.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, new_null_array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

use super::faults::Faults;
use super::input::Dataset;
use super::problem::{DataProblem, ProblemKind};
use super::read::{Batches, Place, Request, batch_rows};
use super::units::WorkUnit;

/// Decoded bytes of a batch of rows, as far as an average can tell.
const BATCH_BYTES: u64 = 16 << 20;

/// Reads the rows at positions `rows` (ascending, without repetition, inside the unit) with all their columns, in the
/// data set's schema. Each batch comes with the positions of its rows.
///
/// Pages without a wanted row are not decoded. How the rows are cut into batches depends on the file, `rows` and
/// `batch_rows` (the most rows of a batch) alone.
///
/// # Errors
/// Positions that are not ascending or not in the unit, which is a bug of the caller. From the iterator: a file that
/// changed since it was planned, pages that do not decode, a text that is not UTF-8.
pub fn read_rows<'a>(
    dataset: &'a Dataset,
    unit: &WorkUnit,
    rows: &[u64],
    batch_rows: usize,
) -> Result<Rows<'a>, DataProblem> {
    let pieces = in_row_groups(dataset, unit, rows)?
        .into_iter()
        .map(|(groups, rows)| Piece { groups, rows, lost: Vec::new() })
        .collect();
    let schema = Arc::clone(&dataset.schema);
    Ok(Rows::new(dataset, unit, pieces, schema, batch_rows))
}

/// The same for rows of which `faults` says that something is wrong with them, in a schema of nullable columns: what
/// does not decode, and texts that are not UTF-8, are null.
pub fn read_faulty_rows<'a>(
    dataset: &'a Dataset,
    unit: &WorkUnit,
    rows: &[u64],
    faults: &Faults,
    batch_rows: usize,
) -> Result<Rows<'a>, DataProblem> {
    let mut pieces = Vec::new();
    for (groups, mut rows) in in_row_groups(dataset, unit, rows)? {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
        for (run, lost) in faults.runs(*first..last + 1, dataset.schema.fields().len()) {
            let later = rows.split_off(rows.partition_point(|row| *row < run.end));
            let rows = std::mem::replace(&mut rows, later);
            pieces.push(Piece { groups: groups.clone(), rows, lost });
        }
    }
    pieces.retain(|piece| !piece.rows.is_empty());
    let fields = dataset.schema.fields().iter();
    let nullable: Vec<_> =
        fields.map(|field| Arc::new(field.as_ref().clone().with_nullable(true))).collect();
    Ok(Rows::new(dataset, unit, pieces, Arc::new(Schema::new(nullable)), batch_rows))
}

/// Consecutive row groups, and rows in them.
type RowsOf = (Range<usize>, Vec<u64>);

/// The rows by the row group that they are in; all together where a file is read on from one to the next.
fn in_row_groups(
    dataset: &Dataset,
    unit: &WorkUnit,
    rows: &[u64],
) -> Result<Vec<RowsOf>, DataProblem> {
    let file = &dataset.files[unit.file];
    let inside = unit.first_row..unit.first_row + unit.rows;
    let ascending = rows.is_sorted_by(|a, b| a < b);
    if !ascending || rows.iter().any(|row| !inside.contains(row)) {
        let why = format!("rows to read must be ascending and in {}..{}", inside.start, inside.end);
        return Err(DataProblem::new(ProblemKind::Bug, why).in_file(&file.path));
    }
    if !file.has_row_groups() {
        return Ok(vec![(unit.row_groups.clone(), rows.to_vec())]);
    }
    let mut groups = Vec::new();
    let mut left = rows;
    for group in unit.row_groups.clone() {
        let info = &file.row_groups[group];
        let (here, later) =
            left.split_at(left.partition_point(|&row| row < info.first_row + info.rows));
        if !here.is_empty() {
            groups.push((group..group + 1, here.to_vec()));
        }
        left = later;
    }
    Ok(groups)
}

/// Rows of consecutive row groups that are read together.
struct Piece {
    groups: Range<usize>,
    rows: Vec<u64>,
    /// Columns that do not decode there.
    lost: Vec<usize>,
}

/// Batches of whole rows. Made by [`read_rows`].
pub struct Rows<'a> {
    dataset: &'a Dataset,
    file: usize,
    /// The schema of the batches.
    schema: SchemaRef,
    /// Still to read; the next one last.
    pieces: Vec<Piece>,
    /// What is being read, and its rows not yet returned, the next one first.
    current: Option<(Reading, std::vec::IntoIter<u64>)>,
    place: Place,
    limit: usize,
}

/// Batches of some columns, and where they go among all.
struct Reading {
    /// None where no column is left to read.
    batches: Option<Batches>,
    columns: Vec<usize>,
}

impl Iterator for Rows<'_> {
    type Item = Result<(Vec<u64>, RecordBatch), DataProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.read().transpose()?;
        if result.is_err() {
            self.pieces.clear();
            self.current = None;
        }
        Some(result)
    }
}

impl<'a> Rows<'a> {
    fn new(
        dataset: &'a Dataset,
        unit: &WorkUnit,
        mut pieces: Vec<Piece>,
        schema: SchemaRef,
        batch_rows: usize,
    ) -> Self {
        pieces.reverse();
        let place = Place::of(dataset, unit);
        let limit = batch_rows.max(1);
        Self { dataset, file: unit.file, schema, pieces, current: None, place, limit }
    }

    /// The next batch; a batch never spans two row groups of Parquet.
    fn read(&mut self) -> Result<Option<(Vec<u64>, RecordBatch)>, DataProblem> {
        loop {
            if self.current.is_none() {
                let Some(piece) = self.pieces.pop() else { return Ok(None) };
                let reading = self.open(&piece)?;
                self.current = Some((reading, piece.rows.into_iter()));
            }
            let Some((reading, rows)) = &mut self.current else { continue };
            let Some(batches) = &mut reading.batches else {
                let numbers: Vec<u64> = rows.by_ref().take(self.limit).collect();
                if numbers.is_empty() {
                    self.current = None;
                    continue;
                }
                return Ok(Some((numbers.clone(), self.batch(&[], Vec::new(), &numbers)?)));
            };
            let first = rows.as_slice().first().copied();
            match (batches.next(), first) {
                (None, None) => self.current = None,
                (Some(Ok(batch)), Some(_)) => {
                    let numbers: Vec<u64> = rows.by_ref().take(batch.rows).collect();
                    let columns = reading.columns.clone();
                    let batch = self.batch(&columns, batch.columns, &numbers)?;
                    return Ok(Some((numbers, batch)));
                }
                (Some(Err(why)), first) => {
                    return Err(self.place.unreadable(first.unwrap_or(0), why));
                }
                (_, first) => {
                    return Err(self
                        .place
                        .unreadable(first.unwrap_or(0), "row count differs from the footer"));
                }
            }
        }
    }

    /// A batch of all columns, of which `read` are at `positions` and the others are null.
    fn batch(
        &self,
        positions: &[usize],
        read: Vec<ArrayRef>,
        numbers: &[u64],
    ) -> Result<RecordBatch, DataProblem> {
        let fields = self.schema.fields();
        let columns = if read.len() == fields.len() {
            read
        } else {
            let null = |field: &Arc<Field>| new_null_array(field.data_type(), numbers.len());
            let mut columns: Vec<ArrayRef> = fields.iter().map(null).collect();
            for (position, array) in positions.iter().zip(read) {
                columns[*position] = array;
            }
            columns
        };
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|why| self.place.unreadable(numbers[0], why.to_string()))
    }

    fn open(&self, piece: &Piece) -> Result<Reading, DataProblem> {
        let file = &self.dataset.files[self.file];
        let all = self.dataset.schema.fields().iter().map(|field| field.data_type().clone());
        let columns: Vec<(usize, DataType)> =
            all.enumerate().filter(|(column, _)| !piece.lost.contains(column)).collect();
        let row_groups: Vec<usize> = piece.groups.clone().collect();
        let request = Request {
            file: self.file,
            columns: &columns,
            selection: Some(selection(file.row_groups[piece.groups.start].first_row, &piece.rows)),
            batch_rows: batch_rows(file, &columns, &row_groups, BATCH_BYTES).min(self.limit),
            row_groups,
            strict: false,
        };
        let batches = if columns.is_empty() && !piece.lost.is_empty() {
            None
        } else {
            Some(Batches::open(self.dataset, &request)?)
        };
        Ok(Reading { batches, columns: columns.into_iter().map(|(column, _)| column).collect() })
    }
}

/// The rows of row groups that begin at `first`, as runs to skip and to select.
fn selection(first: u64, rows: &[u64]) -> RowSelection {
    let mut selectors: Vec<RowSelector> = Vec::new();
    let mut next = first;
    for &row in rows {
        match selectors.last_mut() {
            Some(run) if row == next && !run.skip => run.row_count += 1,
            _ => {
                if row > next {
                    selectors.push(RowSelector::skip((row - next) as usize));
                }
                selectors.push(RowSelector::select(1));
            }
        }
        next = row + 1;
    }
    selectors.into()
}

#[cfg(test)]
mod tests {
    use arrow_array::UInt64Array;
    use arrow_select::concat::concat_batches;
    use arrow_select::take::take_record_batch;
    use proptest::prelude::*;

    use super::*;
    use crate::dataset::tests::{everything, folder_of, in_output_types};

    #[test]
    fn rows_that_are_not_ascending_or_not_in_the_unit_are_refused() {
        let (_folder, dataset) = folder_of(&[everything(20)], 10);
        let unit = &dataset.units(1, None)[1];
        assert!(
            [&[12, 11][..], &[11, 11], &[9], &[20]]
                .iter()
                .all(|rows| read_rows(&dataset, unit, rows, 8).is_err())
        );
        assert_eq!(read_rows(&dataset, unit, &[], 8).unwrap().count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn any_choice_of_rows_gives_those_rows(
            chosen in prop::collection::btree_set(0_u64..300, 0..200),
            group_rows in 1_usize..150,
            batch_rows in 1_usize..90,
        ) {
            let input = everything(300);
            let (_folder, dataset) = folder_of(std::slice::from_ref(&input), group_rows);
            let rows: Vec<u64> = chosen.into_iter().collect();
            let unit = &dataset.units(u64::MAX, None)[0];
            let read: Vec<_> = read_rows(&dataset, unit, &rows, batch_rows).unwrap().map(Result::unwrap).collect();
            prop_assert!(read.iter().all(|(_, batch)| batch.num_rows() <= batch_rows));
            let numbers: Vec<u64> = read.iter().flat_map(|(numbers, _)| numbers.iter().copied()).collect();
            prop_assert_eq!(&numbers, &rows);
            let read = concat_batches(&dataset.schema, read.iter().map(|(_, batch)| batch)).unwrap();
            let expected = take_record_batch(&input, &UInt64Array::from(rows)).unwrap();
            prop_assert_eq!(in_output_types(&read, &dataset.schema), in_output_types(&expected, &dataset.schema));
        }
    }
}
