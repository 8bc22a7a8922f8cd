//! AWQ in its gemm layout: four-bit codes packed along the outputs, eight per word in a special order.
//!
//! ```text
//! qweight [inputs, outputs / 8]   eight outputs per word
//! qzeros  [groups, outputs / 8]   likewise
//! scales  [groups, outputs]       f16, bf16 or f32
//! ```
//!
//! The weight is `(code - zero) · scale`, rounded to the type of the scales, as in autoawq's `dequantize_gemm`.

use std::ops::Range;

use rayon::prelude::*;
use safetensors::Dtype;

use super::finder::{FLOATS, Finder, StoredMatrix};
use super::format::{ByteSlice, StorageFormat};
use super::numbers::{floats, rounded, words};
use crate::model::tensors::NeededTensor;

const CODES_PER_WORD: u64 = 8;
/// Position of the code of output `8 · word + index` in its word, in steps of four bits: autoawq's `AWQ_REVERSE_ORDER`.
const CODE_POSITIONS: [u32; CODES_PER_WORD as usize] = [0, 4, 1, 5, 2, 6, 3, 7];

#[derive(Debug)]
struct Gemm {
    inputs: u64,
    outputs: u64,
    group_size: u64,
    scale_type: Dtype,
}

/// Finds `{stem}.qweight` and its companion tensors.
pub(super) fn find(
    finder: &mut Finder<'_>,
    stem: &str,
    needed: &NeededTensor,
    group_size: Option<u64>,
) -> Option<StoredMatrix> {
    let (outputs, inputs) = (needed.shape[0], needed.row_width());
    let group_size = group_size.unwrap_or(inputs).min(inputs);
    let groups = inputs.div_ceil(group_size);
    let packed = outputs.div_ceil(CODES_PER_WORD);
    let codes = finder.shaped(&format!("{stem}.qweight"), &[Dtype::I32], &[inputs, packed]);
    let scales = finder.shaped(&format!("{stem}.scales"), &FLOATS, &[groups, outputs]);
    let zeros = finder.shaped(&format!("{stem}.qzeros"), &[Dtype::I32], &[groups, packed]);
    let (codes, scales, zeros) = (codes?, scales?, zeros?);
    let format = Gemm { inputs, outputs, group_size, scale_type: scales.dtype() };
    Some(StoredMatrix { format: Box::new(format), stored: vec![codes, scales, zeros] })
}

impl Gemm {
    /// Returns the range of words that hold some outputs.
    fn words(rows: &Range<u64>) -> Range<u64> {
        rows.start / CODES_PER_WORD..rows.end.div_ceil(CODES_PER_WORD)
    }
}

/// Returns the code of an output, from a row of words that starts with output `8 · first`.
fn code(row: &[u32], first: u64, output: u64) -> f32 {
    let word = row[(output / CODES_PER_WORD - first) as usize];
    (word >> (4 * CODE_POSITIONS[(output % CODES_PER_WORD) as usize]) & 15) as f32
}

impl StorageFormat for Gemm {
    fn name(&self) -> String {
        format!("awq, gemm, groups of {}, scales {}", self.group_size, self.scale_type)
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        let words = Self::words(rows);
        let columns = words.start * 4..words.end * 4;
        let row_bytes = self.outputs.div_ceil(CODES_PER_WORD) * 4;
        (index == 0).then_some(ByteSlice { rows: 0..self.inputs, row_bytes, columns })
    }

    fn row_step(&self) -> u64 {
        CODES_PER_WORD
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let (codes, zeros) = (words(&stored[0]), words(&stored[2]));
        let scales = floats(self.scale_type, &stored[1]);
        let read = Self::words(&rows);
        let (width, all) =
            ((read.end - read.start) as usize, self.outputs.div_ceil(CODES_PER_WORD) as usize);
        let inputs = self.inputs as usize;
        let mut weights = vec![0.0; (rows.end - rows.start) as usize * inputs];
        weights.par_chunks_exact_mut(inputs).enumerate().for_each(|(row, weights)| {
            let output = rows.start + row as u64;
            for (input, weight) in weights.iter_mut().enumerate() {
                let group = input / self.group_size as usize;
                let zero = code(&zeros[group * all..][..all], 0, output);
                let steps = code(&codes[input * width..][..width], read.start, output) - zero;
                let scale = scales[group * self.outputs as usize + output as usize];
                *weight = rounded(self.scale_type, steps * scale);
            }
        });
        Ok(weights)
    }
}
