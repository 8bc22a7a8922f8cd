//! Plain numbers: f32, f16 or bf16, row by row. Exact.

use std::ops::Range;

use safetensors::Dtype;

use super::finder::{FLOATS, Finder, StoredMatrix};
use super::format::{ByteSlice, StorageFormat};
use super::numbers::floats;
use crate::model::tensors::NeededTensor;

#[derive(Debug)]
pub(super) struct Plain {
    dtype: Dtype,
    row_width: u64,
    columns: Range<u64>,
}

impl Plain {
    pub(super) fn new(dtype: Dtype, needed: &NeededTensor) -> Self {
        let row_width = needed.row_width();
        let columns = needed.columns.clone().unwrap_or(0..row_width);
        Self { dtype, row_width, columns }
    }
}

/// Finds the tensor and checks that it has the shape that config.json implies.
pub(super) fn find(
    finder: &mut Finder<'_>,
    name: &str,
    needed: &NeededTensor,
) -> Option<StoredMatrix> {
    let stored = finder.shaped(name, &FLOATS, &needed.shape)?;
    let format = Plain::new(stored.dtype(), needed);
    Some(StoredMatrix { format: Box::new(format), stored: vec![stored] })
}

impl StorageFormat for Plain {
    fn name(&self) -> String {
        self.dtype.to_string()
    }

    fn slice(&self, _index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        let number = self.dtype.bitsize() as u64 / 8;
        let columns = self.columns.start * number..self.columns.end * number;
        Some(ByteSlice { columns, ..ByteSlice::rows(rows, self.row_width * number) })
    }

    fn floats(&self, _rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        Ok(floats(self.dtype, &stored[0]))
    }
}
