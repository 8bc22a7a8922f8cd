//! What every format has in common: a file has row groups, row groups have rows in order, and a decoder gives chosen rows of
//! them as batches of chosen columns.

use std::ops::Range;

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::RowSelection;

use crate::dataset::problem::RowProblem;

/// A part of a file that can be read without what is before it: a row group of Parquet, a stretch of lines, a record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroupInfo {
    /// Position in the file of its first row.
    pub first_row: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes of all its columns, encoded but not compressed.
    pub uncompressed_bytes: u64,
    /// Bytes of all its columns in the file.
    pub compressed_bytes: u64,
}

/// What is wanted of a file.
pub(in crate::dataset) struct Wanted {
    /// The row groups, ascending.
    pub(in crate::dataset) row_groups: Vec<usize>,
    /// Rows of the row groups; all where `None`.
    pub(in crate::dataset) selection: Option<RowSelection>,
    /// Columns by their position in the file, in any order.
    pub(in crate::dataset) positions: Vec<usize>,
    /// The type that each of them is wanted in. A decoder may give another of the same meaning.
    pub(in crate::dataset) types: Vec<DataType>,
    /// Rows in a batch at most.
    pub(in crate::dataset) batch_rows: usize,
    /// Whether a row is bad that has something the file's columns have no place for. Without it that is passed over.
    pub(in crate::dataset) strict: bool,
}

impl Wanted {
    /// The positions in the order of the file, each once: the columns of a decoder's batches.
    pub(in crate::dataset) fn in_file_order(&self) -> Vec<usize> {
        let mut positions = self.positions.clone();
        positions.sort_unstable();
        positions.dedup();
        positions
    }
}

/// Some rows.
pub(in crate::dataset) struct Decoded {
    /// The columns of [`Wanted::in_file_order`]. Texts may be bytes that are not known to be UTF-8.
    pub(in crate::dataset) batch: RecordBatch,
    /// Rows, by their position in the batch and ascending, that are not what the file's columns promise. They are null.
    pub(in crate::dataset) bad: Vec<(usize, RowProblem)>,
}

/// Decodes what is wanted of one file, in order.
pub(in crate::dataset) trait Decode: Send {
    /// The next rows; none at the end.
    ///
    /// # Errors
    /// The bytes do not decode, or a read was refused: the open file knows which.
    fn next(&mut self) -> Result<Option<Decoded>, String>;
}

/// The rows of a file that are wanted, ascending and disjoint, by the runs of a selection in its row groups.
pub(super) fn chosen_rows(groups: &[RowGroupInfo], wanted: &Wanted) -> Vec<Range<u64>> {
    let all = wanted.row_groups.iter().map(|group| groups[*group]);
    let mut rows = all.map(|group| group.first_row..group.first_row + group.rows).collect();
    let Some(selection) = &wanted.selection else { return rows };
    let (mut chosen, mut of_groups) =
        (Vec::<Range<u64>>::new(), std::mem::take(&mut rows).into_iter());
    let mut group = 0..0;
    for run in selection.iter() {
        let mut left = run.row_count as u64;
        while left > 0 {
            if group.is_empty() {
                let Some(next) = of_groups.next() else { return chosen };
                group = next;
            }
            let here = group.start..group.end.min(group.start + left);
            (group.start, left) = (here.end, left - (here.end - here.start));
            match chosen.last_mut() {
                _ if run.skip || here.is_empty() => {}
                Some(last) if last.end == here.start => last.end = here.end,
                _ => chosen.push(here),
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use parquet::arrow::arrow_reader::RowSelector;

    use super::*;

    #[test]
    fn a_selection_counts_the_rows_of_its_row_groups_alone() {
        let group = |first_row, rows| RowGroupInfo {
            first_row,
            rows,
            uncompressed_bytes: 0,
            compressed_bytes: 0,
        };
        let groups = [group(0, 10), group(10, 0), group(10, 10), group(20, 10)];
        let rows = |row_groups: &[usize], runs: &[RowSelector]| {
            let selection = (!runs.is_empty()).then(|| runs.to_vec().into());
            let row_groups = row_groups.to_vec();
            chosen_rows(
                &groups,
                &Wanted {
                    row_groups,
                    selection,
                    positions: Vec::new(),
                    types: Vec::new(),
                    batch_rows: 1,
                    strict: false,
                },
            )
        };
        let (skip, take) = (RowSelector::skip, RowSelector::select);
        assert_eq!(rows(&[0, 3], &[]), [0..10, 20..30]);
        assert_eq!(rows(&[0, 3], &[skip(8), take(4), skip(1), take(1)]), [8..10, 20..22, 23..24]);
        let across = rows(&[0, 1, 2], &[skip(5), take(10), skip(1), take(1)]);
        assert_eq!(across, [5..15, 16..17]);
    }
}
