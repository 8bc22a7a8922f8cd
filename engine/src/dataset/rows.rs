//! Whole rows for the output, all columns, in the types of the output.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

use super::Dataset;
use super::problem::DataProblem;
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
/// changed since it was planned, pages that do not decode.
pub fn read_rows<'a>(
    dataset: &'a Dataset,
    unit: &WorkUnit,
    rows: &[u64],
    batch_rows: usize,
) -> Result<Rows<'a>, DataProblem> {
    let file = &dataset.files[unit.file];
    let inside = unit.first_row..unit.first_row + unit.rows;
    let ascending = rows.is_sorted_by(|a, b| a < b);
    if !ascending || rows.iter().any(|row| !inside.contains(row)) {
        let why = format!("rows to read must be ascending and in {}..{}", inside.start, inside.end);
        return Err(DataProblem::machine(why).in_file(&file.path));
    }
    let mut groups = Vec::new();
    let mut left = rows;
    for group in unit.row_groups.clone() {
        let info = &file.row_groups[group];
        let (here, later) =
            left.split_at(left.partition_point(|&row| row < info.first_row + info.rows));
        if !here.is_empty() {
            groups.push((group, here.to_vec()));
        }
        left = later;
    }
    groups.reverse();
    let columns =
        dataset.schema.fields().iter().map(|field| field.data_type().clone()).enumerate().collect();
    let place = Place::of(dataset, unit);
    Ok(Rows {
        dataset,
        file: unit.file,
        columns,
        groups,
        current: None,
        place,
        limit: batch_rows.max(1),
    })
}

/// Batches of whole rows. Made by [`read_rows`].
pub struct Rows<'a> {
    dataset: &'a Dataset,
    file: usize,
    columns: Vec<(usize, DataType)>,
    /// Row groups still to read and the rows wanted of each; the next one last.
    groups: Vec<(usize, Vec<u64>)>,
    /// The row group being read, and its rows not yet returned, the next one first.
    current: Option<(Batches, std::vec::IntoIter<u64>)>,
    place: Place,
    limit: usize,
}

impl Iterator for Rows<'_> {
    type Item = Result<(Vec<u64>, RecordBatch), DataProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.read().transpose()?;
        if result.is_err() {
            self.groups.clear();
            self.current = None;
        }
        Some(result)
    }
}

impl Rows<'_> {
    /// The next batch; row groups are opened one at a time, so a batch never spans two.
    fn read(&mut self) -> Result<Option<(Vec<u64>, RecordBatch)>, DataProblem> {
        loop {
            if self.current.is_none() {
                let Some((group, rows)) = self.groups.pop() else { return Ok(None) };
                self.current = Some((self.open(group, &rows)?, rows.into_iter()));
            }
            let Some((batches, rows)) = &mut self.current else { continue };
            let first = rows.as_slice().first().copied();
            match (batches.next(), first) {
                (None, None) => self.current = None,
                (Some(Ok((columns, length))), Some(first)) => {
                    let numbers: Vec<u64> = rows.by_ref().take(length).collect();
                    let batch = RecordBatch::try_new(Arc::clone(&self.dataset.schema), columns);
                    let batch =
                        batch.map_err(|why| self.place.unreadable(first, why.to_string()))?;
                    return Ok(Some((numbers, batch)));
                }
                (Some(Err(why)), first) => {
                    return Err(self.place.unreadable(first.unwrap_or(0), why));
                }
                (_, first) => {
                    return Err(self.place.unreadable(
                        first.unwrap_or(0),
                        "another number of rows than the footer has",
                    ));
                }
            }
        }
    }

    fn open(&self, group: usize, rows: &[u64]) -> Result<Batches, DataProblem> {
        let file = &self.dataset.files[self.file];
        let request = Request {
            file: self.file,
            columns: &self.columns,
            selection: Some(selection(file.row_groups[group].first_row, rows)),
            limit: None,
            batch_rows: batch_rows(file, &self.columns, &[group], BATCH_BYTES).min(self.limit),
            row_groups: vec![group],
        };
        Batches::open(self.dataset, &request)
    }
}

/// The rows of a row group that begins at `first`, as runs to skip and to select.
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
    use arrow::array::UInt64Array;
    use arrow::compute::{concat_batches, take_record_batch};
    use proptest::prelude::*;

    use super::super::tests::{everything, folder_of, in_output_types};
    use super::*;

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
