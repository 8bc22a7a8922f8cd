//! Reads complete rows in the types of the output.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{Field, Schema, SchemaRef};
use longsift_stages::contract::RowError;

use super::input::Dataset;
use super::lost_row_groups::LostRowGroups;
use super::problem::DataProblem;
use super::read::{Batches, ReadError, ReadRequest, columns, ranges};
use super::units::WorkUnit;
use crate::base::diagnostic::Blame;

/// Reads the rows with indices `rows` (ascending, unique, inside the work unit) with all columns, in the data set's
/// schema. Each batch comes with the indices of its rows.
///
/// Pages without a requested row are not decoded. Batch boundaries depend only on the file, `rows` and `batch_rows`
/// (the maximum rows of a batch).
pub fn read_rows<'a>(
    dataset: &'a Dataset,
    unit: &WorkUnit,
    rows: &[u64],
    batch_rows: usize,
) -> Result<RowBatches<'a>, DataProblem> {
    check_rows(unit, rows)?;
    let pieces = vec![RowPiece { rows: rows.to_vec(), lost: Vec::new() }];
    Ok(RowBatches::new(dataset, unit, pieces, Arc::clone(&dataset.schema), batch_rows))
}

/// Reads faulty rows in a nullable schema: null where a column of a `lost` row group does not decode or a value does not fit.
pub fn read_faulty_rows<'a>(
    dataset: &'a Dataset,
    unit: &WorkUnit,
    rows: &[u64],
    lost: &LostRowGroups,
    batch_rows: usize,
) -> Result<RowBatches<'a>, DataProblem> {
    check_rows(unit, rows)?;
    let mut pieces = Vec::new();
    let mut left = rows;
    let mut until = |end: u64, lost: &[usize]| {
        let (here, later) = left.split_at(left.partition_point(|row| *row < end));
        left = later;
        pieces.push(RowPiece { rows: here.to_vec(), lost: lost.to_vec() });
    };
    for group in lost.iter() {
        until(group.rows.start, &[]);
        until(group.rows.end, &group.columns);
    }
    until(u64::MAX, &[]);
    let fields = dataset.schema.fields().iter();
    let nullable: Vec<_> =
        fields.map(|field| Arc::new(field.as_ref().clone().with_nullable(true))).collect();
    Ok(RowBatches::new(dataset, unit, pieces, Arc::new(Schema::new(nullable)), batch_rows))
}

/// Reads one row with all its columns, or returns why it cannot be used.
pub fn read_row(
    dataset: &Dataset,
    unit: &WorkUnit,
    row: u64,
) -> Result<Result<RecordBatch, RowError>, ReadError> {
    check_rows(unit, &[row])?;
    let columns: Vec<_> = columns(dataset).collect();
    let request =
        ReadRequest { strict: true, ..ReadRequest::new(unit.file, ranges(&[row]), &columns) };
    let batch = Batches::open(dataset, &request)?
        .next()
        .expect("the iterator returns the row or an error")?;
    if let Some(problem) = batch.problem(0) {
        return Ok(Err(problem.clone()));
    }
    let batch = RecordBatch::try_new(Arc::clone(&dataset.schema), batch.columns);
    Ok(Ok(batch.map_err(|why| schema_problem(&unit.file_path, row, &why.to_string()))?))
}

fn check_rows(unit: &WorkUnit, rows: &[u64]) -> Result<(), DataProblem> {
    let inside = unit.first_row..unit.first_row + unit.rows;
    if rows.is_sorted_by(|a, b| a < b) && rows.iter().all(|row| inside.contains(row)) {
        return Ok(());
    }
    let why = format!("rows to read must be ascending and in {}..{}", inside.start, inside.end);
    Err(DataProblem::new(Blame::Bug, why).in_file(&unit.file_path))
}

fn schema_problem(file: &str, row: u64, why: &str) -> DataProblem {
    DataProblem::data(format!("its columns differ from the plan: {why}")).in_file(file).at_row(row)
}

struct RowPiece {
    rows: Vec<u64>,
    /// Columns that do not decode in these rows.
    lost: Vec<usize>,
}

pub struct RowBatches<'a> {
    dataset: &'a Dataset,
    file: usize,
    schema: SchemaRef,
    /// Remaining pieces, the next one last.
    pieces: Vec<RowPiece>,
    /// Reader of the current piece, and its columns.
    current: Option<(Batches, Vec<usize>)>,
    limit: usize,
    /// Whether a row that cannot be scored is an error.
    refuses_bad_rows: bool,
}

impl Iterator for RowBatches<'_> {
    type Item = Result<(Vec<u64>, RecordBatch), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.read().transpose()?;
        if result.is_err() {
            self.pieces.clear();
            self.current = None;
        }
        Some(result)
    }
}

impl<'a> RowBatches<'a> {
    /// Makes rows that cannot be scored an error, instead of setting their faulty values to null.
    #[must_use]
    pub fn refusing_bad_rows(mut self) -> Self {
        self.refuses_bad_rows = true;
        self
    }

    fn new(
        dataset: &'a Dataset,
        unit: &WorkUnit,
        mut pieces: Vec<RowPiece>,
        schema: SchemaRef,
        batch_rows: usize,
    ) -> Self {
        pieces.retain(|piece| !piece.rows.is_empty());
        pieces.reverse();
        let limit = batch_rows.max(1);
        let (file, current) = (unit.file, None);
        Self { dataset, file, schema, pieces, current, limit, refuses_bad_rows: false }
    }

    fn read(&mut self) -> Result<Option<(Vec<u64>, RecordBatch)>, ReadError> {
        loop {
            if let Some((batches, columns)) = &mut self.current {
                if let Some(batch) = batches.next().transpose()? {
                    if let (true, Some((position, problem))) =
                        (self.refuses_bad_rows, batch.bad.first())
                    {
                        let file = &self.dataset.files[self.file].path;
                        let hint = "run again with `--fresh`: the row is then quarantined when it is scored";
                        let problem = DataProblem::data(&problem.message).in_file(file);
                        return Err(problem.at_row(batch.rows[*position]).with_hint(hint).into());
                    }
                    let columns = columns.clone();
                    let whole = self.batch(&columns, &batch.columns, &batch.rows)?;
                    return Ok(Some((batch.rows, whole)));
                }
                self.current = None;
            }
            let Some(mut piece) = self.pieces.pop() else { return Ok(None) };
            let columns = columns(self.dataset).filter(|(column, _)| !piece.lost.contains(column));
            let columns: Vec<_> = columns.collect();
            if columns.is_empty() && !piece.lost.is_empty() {
                let later = piece.rows.split_off(self.limit.min(piece.rows.len()));
                let rows = std::mem::replace(&mut piece.rows, later);
                if !piece.rows.is_empty() {
                    self.pieces.push(piece);
                }
                return Ok(Some((rows.clone(), self.batch(&[], &[], &rows)?)));
            }
            let request = ReadRequest {
                batch_rows: self.limit,
                ..ReadRequest::new(self.file, ranges(&piece.rows), &columns)
            };
            let batches = Batches::open(self.dataset, &request)?;
            self.current = Some((batches, columns.into_iter().map(|(column, _)| column).collect()));
        }
    }

    /// Builds a batch of all columns: those `read` at `positions`, which ascend, and the others null.
    fn batch(
        &self,
        positions: &[usize],
        read: &[ArrayRef],
        rows: &[u64],
    ) -> Result<RecordBatch, DataProblem> {
        let column = |(position, field): (usize, &Arc<Field>)| {
            let index = positions.binary_search(&position);
            let null = |_| new_null_array(field.data_type(), rows.len());
            index.map_or_else(null, |index| Arc::clone(&read[index]))
        };
        let columns = self.schema.fields().iter().enumerate().map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(
            |why| schema_problem(&self.dataset.files[self.file].path, rows[0], &why.to_string()),
        )
    }
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
    fn rows_that_are_not_ascending_or_outside_the_unit_are_rejected() {
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
        fn any_selection_of_rows_is_read(
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
