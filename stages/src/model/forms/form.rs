//! What every form answers.

use std::fmt;
use std::ops::Range;

/// How a matrix `[rows, columns]` is stored. What is left of rounding is said by each form; tests compare with the
/// package that wrote the form.
pub(crate) trait Form: fmt::Debug + Send + Sync {
    /// The form with all its parameters: part of the weights' digest.
    fn name(&self) -> String;

    /// The part of stored tensor `index` that some rows are made of, or `None` if that tensor is read once and kept.
    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<Slice>;

    /// Reading may pause before rows that are multiples of this: no byte then belongs to both sides.
    fn row_step(&self) -> u64 {
        1
    }

    /// The wanted numbers of some rows, `[rows, columns]`, from the slices of each stored tensor.
    ///
    /// # Errors
    /// What is wrong with the values.
    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String>;
}

/// Some rows of a stored tensor, of each row some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) rows: Range<u64>,
    pub(crate) row_bytes: u64,
    pub(crate) columns: Range<u64>,
}

impl Slice {
    /// Whole rows.
    pub(crate) fn rows(rows: &Range<u64>, row_bytes: u64) -> Self {
        Self { rows: rows.clone(), row_bytes, columns: 0..row_bytes }
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        (self.rows.end - self.rows.start) * (self.columns.end - self.columns.start)
    }

    /// Offset in the tensor and length of each stretch of bytes.
    pub(crate) fn stretches(&self) -> Vec<(u64, u64)> {
        let width = self.columns.end - self.columns.start;
        if width == self.row_bytes {
            return vec![(self.rows.start * width, self.bytes())];
        }
        self.rows.clone().map(|row| (row * self.row_bytes + self.columns.start, width)).collect()
    }
}
