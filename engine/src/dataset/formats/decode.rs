//! Common interface of the formats: a file has row groups, and a decoder returns selected rows of them as batches of
//! selected columns.

use std::ops::Range;

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use longsift_stages::contract::RowError;

/// Part of a file that can be read independently: a Parquet row group, a range of lines, a record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroupInfo {
    pub first_row: u64,
    pub rows: u64,
    /// Bytes of all its columns, encoded but not compressed.
    pub uncompressed_bytes: u64,
    pub compressed_bytes: u64,
}

pub(crate) struct DecodeRequest {
    /// Row ranges of the file, ascending, disjoint and non-empty.
    pub(crate) rows: Vec<Range<u64>>,
    /// Column positions in the file, in any order.
    pub(crate) positions: Vec<usize>,
    /// Requested type of each of these columns. A decoder may return another type of the same meaning.
    pub(crate) types: Vec<DataType>,
    pub(crate) batch_rows: usize,
    /// Whether fields without a column make a row bad. Otherwise they are ignored.
    pub(crate) strict: bool,
}

impl DecodeRequest {
    /// Returns the positions sorted and without duplicates: the columns of a decoder's batches.
    pub(crate) fn in_file_order(&self) -> Vec<usize> {
        let mut positions = self.positions.clone();
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// Returns the row groups with requested rows, and these rows.
    pub(crate) fn by_row_group(&self, groups: &[RowGroupInfo]) -> Vec<(usize, Vec<Range<u64>>)> {
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

pub(crate) struct Decoded {
    /// Columns in the order of [`DecodeRequest::in_file_order`]. Texts may be bytes that are not checked to be UTF-8.
    pub(crate) batch: RecordBatch,
    /// Rows that do not fit the file's columns, by ascending index in the batch. Their values are null.
    pub(crate) bad: Vec<(usize, RowError)>,
}

pub(crate) trait Decode: Send {
    /// Returns the next rows, all of one row group; `None` at the end. The open file records failed reads.
    fn next(&mut self) -> Result<Option<Decoded>, DecodeError>;
}

#[derive(Clone, Debug)]
pub(crate) struct DecodeError {
    /// `unreadable` for invalid bytes, or the code of an exceeded limit.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl<E: ToString> From<E> for DecodeError {
    fn from(why: E) -> Self {
        Self { code: "unreadable", message: why.to_string(), hint: None }
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
            let wanted = DecodeRequest { rows, positions, types, batch_rows: 1, strict: false };
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
