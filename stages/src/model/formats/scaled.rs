//! One code per number, f8 e4m3 or int8, with one scale for the matrix, per row or per block.
//!
//! ```text
//! weight      [rows, columns]   f8 e4m3, or int8
//! its scales  [] or [1]; [rows] or [rows, 1]; or the grid of blocks, the last ones cut at the matrix's edge
//! zero points [rows, 1] or the grid, int8, if the quantisation is asymmetric
//! ```
//!
//! Scales are called `weight_scale_inv` by `fp8` (DeepSeek-V3, transformers), `weight_scale` by compressed-tensors. The
//! weight is `(code - zero) · scale` in float32, rounded to the type of the scales, as in transformers' `Fp8Dequantize`
//! and compressed-tensors' `dequantize`: with float32 scales nothing is rounded to bf16.

use std::ops::Range;

use rayon::prelude::*;
use safetensors::Dtype;

use super::finder::{FLOATS, Finder, StoredMatrix};
use super::format::{ByteSlice, StorageFormat};
use super::numbers::{float8, floats, rounded};
use crate::model::tensors::NeededTensor;

#[derive(Debug)]
struct Scaled {
    code_type: Dtype,
    columns: u64,
    /// Rows and columns that share a scale.
    block: (u64, u64),
    scale_type: Dtype,
    zeros: bool,
}

/// Finds `{stem}.weight` and its companion tensors. `blocks`: those that the scales, `{stem}.{scales}`, may cover. `zeros`:
/// whether zero points are required.
pub(super) fn find(
    finder: &mut Finder<'_>,
    stem: &str,
    needed: &NeededTensor,
    (scales, blocks, zeros): (&str, &[(u64, u64)], bool),
) -> Option<StoredMatrix> {
    let (rows, columns) = (needed.shape[0], needed.row_width());
    let types = [Dtype::F8_E4M3, Dtype::I8];
    let codes = finder.shaped(&format!("{stem}.weight"), &types, &needed.shape);
    let scales_at = finder.typed(&format!("{stem}.{scales}"), &FLOATS);
    let zeros_name = format!("{stem}.weight_zero_point");
    let integers = codes.as_ref().is_some_and(|codes| codes.dtype() == Dtype::I8);
    let zeros = integers && (zeros || finder.tensors.contains(&zeros_name));
    let zeros_at = if zeros { Some(finder.typed(&zeros_name, &[Dtype::I8])?) } else { None };
    let (codes, scales_at) = (codes?, scales_at?);
    let Some(block) = block(&scales_at.entry.shape, (rows, columns), blocks) else {
        let grids = blocks
            .iter()
            .map(|block| format!("{:?}", [rows.div_ceil(block.0), columns.div_ceil(block.1)]));
        let shapes: Vec<String> =
            ["[1]".to_owned(), format!("[{rows}, 1]")].into_iter().chain(grids).collect();
        finder.wrong_shape(&scales_at, &shapes.join(" or "));
        return None;
    };
    if let Some(zeros) = &zeros_at
        && zeros.entry.shape != scales_at.entry.shape
    {
        finder.wrong_shape(zeros, &format!("{:?}", scales_at.entry.shape));
        return None;
    }
    let format =
        Scaled { code_type: codes.dtype(), columns, block, scale_type: scales_at.dtype(), zeros };
    let stored = [codes, scales_at].into_iter().chain(zeros_at).collect();
    Some(StoredMatrix { format: Box::new(format), stored })
}

/// Returns the rows and columns that share a scale, from the shape of the scales.
fn block(shape: &[u64], (rows, columns): (u64, u64), blocks: &[(u64, u64)]) -> Option<(u64, u64)> {
    match shape {
        [] | [1] | [1, 1] => Some((rows, columns)),
        [count] | [count, 1] if *count == rows => Some((1, columns)),
        [down, across] => blocks
            .iter()
            .copied()
            .find(|block| (*down, *across) == (rows.div_ceil(block.0), columns.div_ceil(block.1))),
        _ => None,
    }
}

impl StorageFormat for Scaled {
    fn name(&self) -> String {
        let (rows, columns) = self.block;
        let zeros = if self.zeros { ", zero points" } else { "" };
        format!(
            "{}, blocks of {rows} by {columns}, scales {}{zeros}",
            self.code_type, self.scale_type
        )
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        (index == 0).then(|| ByteSlice::rows(rows, self.columns))
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let scales = floats(self.scale_type, &stored[1]);
        let across = self.columns.div_ceil(self.block.1) as usize;
        let width = (self.block.1.min(self.columns) as usize).max(1);
        let code = |byte: u8| match self.code_type {
            Dtype::I8 => f32::from(byte.cast_signed()),
            _ => float8(byte),
        };
        let codes: Vec<f32> = (0..=u8::MAX).map(code).collect();
        let mut weights = vec![0.0; stored[0].len()];
        let lines = weights.par_chunks_exact_mut(self.columns as usize);
        let lines = lines.zip(stored[0].par_chunks_exact(self.columns as usize)).enumerate();
        lines.for_each(|(row, (weights, bytes))| {
            let first = ((rows.start + row as u64) / self.block.0) as usize * across;
            let blocks = weights.chunks_mut(width).zip(bytes.chunks(width)).enumerate();
            for (index, (weights, bytes)) in blocks {
                let index = first + index;
                let zero = if self.zeros { f32::from(stored[2][index].cast_signed()) } else { 0.0 };
                for (weight, byte) in weights.iter_mut().zip(bytes) {
                    let steps = codes[usize::from(*byte)] - zero;
                    *weight = rounded(self.scale_type, steps * scales[index]);
                }
            }
        });
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_the_scales_determines_their_blocks() {
        let block = |shape: &[u64]| block(shape, (300, 200), &[(128, 128)]);
        assert_eq!(block(&[]), Some((300, 200)));
        assert_eq!(block(&[1]), Some((300, 200)));
        assert_eq!(block(&[300]), Some((1, 200)));
        assert_eq!(block(&[300, 1]), Some((1, 200)));
        assert_eq!(block(&[3, 2]), Some((128, 128)));
        assert_eq!(block(&[2, 2]), None);
        assert_eq!(block(&[3, 2, 1]), None);
    }
}
