//! Interface of all storage formats.

use std::fmt;
use std::ops::Range;

/// Storage format of a matrix `[rows, columns]`. Tests compare it with the package that writes the format.
pub(crate) trait StorageFormat: fmt::Debug + Send + Sync {
    /// Returns the format with all its parameters: part of the weights' digest.
    fn name(&self) -> String;

    /// Returns the part of stored tensor `index` that some rows need, or `None` if that tensor is read once and kept.
    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice>;

    /// Returns the row granularity of reads: a tensor may be split at multiples of it without reading a byte twice.
    fn row_step(&self) -> u64 {
        1
    }

    /// Converts the slices of each stored tensor to the numbers of some rows, `[rows, columns]`.
    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String>;
}

/// Some rows of a stored tensor, and a range of bytes in each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByteSlice {
    pub(crate) rows: Range<u64>,
    pub(crate) row_bytes: u64,
    pub(crate) columns: Range<u64>,
}

impl ByteSlice {
    /// Selects whole rows.
    pub(crate) fn rows(rows: &Range<u64>, row_bytes: u64) -> Self {
        Self { rows: rows.clone(), row_bytes, columns: 0..row_bytes }
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.rows.end - self.rows.start) * (self.columns.end - self.columns.start)
    }

    /// Returns offset in the tensor and length of each contiguous range of bytes.
    pub(crate) fn byte_ranges(&self) -> Vec<(u64, u64)> {
        let width = self.columns.end - self.columns.start;
        if width == self.row_bytes {
            return vec![(self.rows.start * width, self.bytes())];
        }
        self.rows.clone().map(|row| (row * self.row_bytes + self.columns.start, width)).collect()
    }
}
