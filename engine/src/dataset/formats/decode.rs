//! What every format has in common: a file has row groups, row groups have rows in order, and a decoder gives chosen rows of
//! them as batches of chosen columns.

use std::ops::Range;

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use longsift_stages::contract::RowError;

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
    /// Rows of the file, ascending and disjoint, none empty.
    pub(in crate::dataset) rows: Vec<Range<u64>>,
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

    /// The row groups that hold wanted rows, each with these rows.
    pub(in crate::dataset) fn by_row_group(
        &self,
        groups: &[RowGroupInfo],
    ) -> Vec<(usize, Vec<Range<u64>>)> {
        let mut found: Vec<(usize, Vec<Range<u64>>)> = Vec::new();
        for range in &self.rows {
            let first = groups.partition_point(|group| group.first_row + group.rows <= range.start);
            let here = groups.iter().enumerate().skip(first);
            for (index, group) in here.take_while(|(_, group)| group.first_row < range.end) {
                let start = range.start.max(group.first_row);
                let part = start..range.end.min(group.first_row + group.rows);
                match found.last_mut() {
                    _ if part.is_empty() => {}
                    Some((last, parts)) if *last == index => parts.push(part),
                    _ => found.push((index, vec![part])),
                }
            }
        }
        found
    }
}

/// Some rows.
pub(in crate::dataset) struct Decoded {
    /// The columns of [`Wanted::in_file_order`]. Texts may be bytes that are not known to be UTF-8.
    pub(in crate::dataset) batch: RecordBatch,
    /// Rows, by their position in the batch and ascending, that are not what the file's columns promise. They are null.
    pub(in crate::dataset) bad: Vec<(usize, RowError)>,
}

/// Decodes what is wanted of one file, in order.
pub(in crate::dataset) trait Decode: Send {
    /// The next rows, all of one row group; none at the end.
    ///
    /// # Errors
    /// The bytes do not decode, or a read was refused: the open file knows which.
    fn next(&mut self) -> Result<Option<Decoded>, DecodeError>;
}

/// Why rows do not decode.
#[derive(Clone, Debug)]
pub(in crate::dataset) enum DecodeError {
    /// The bytes are not what the format says.
    Damaged(String),
    /// They may be whole, but would take too much memory.
    TooLarge(TooLarge),
}

/// A part of a file that exceeds a limit: a setting decides, not the file.
#[derive(Clone, Debug)]
pub(in crate::dataset) struct TooLarge {
    /// Short, stable name of the reason.
    pub(in crate::dataset) code: &'static str,
    /// The sizes, and the setting that the limit follows from.
    pub(in crate::dataset) message: String,
    /// What to do about it.
    pub(in crate::dataset) hint: String,
}

impl<S: Into<String>> From<S> for DecodeError {
    fn from(why: S) -> Self {
        Self::Damaged(why.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_where_row_groups_end() {
        let group = |first_row, rows| RowGroupInfo {
            first_row,
            rows,
            uncompressed_bytes: 0,
            compressed_bytes: 0,
        };
        let groups = [group(0, 10), group(10, 0), group(10, 10), group(20, 10)];
        let by_group = |rows: &[Range<u64>]| {
            let (positions, types) = (Vec::new(), Vec::new());
            let rows = rows.to_vec();
            let wanted = Wanted { rows, positions, types, batch_rows: 1, strict: false };
            let found = wanted.by_row_group(&groups).into_iter();
            let flat =
                found.flat_map(|(group, rows)| rows.into_iter().map(move |part| (group, part)));
            flat.map(|(group, part)| (group, part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(by_group(&[0..10, 25..26]), [(0, 0, 10), (3, 25, 26)]);
        let across = by_group(&[5..7, 8..15, 16..21]);
        assert_eq!(across, [(0, 5, 7), (0, 8, 10), (2, 10, 15), (2, 16, 20), (3, 20, 21)]);
    }
}
