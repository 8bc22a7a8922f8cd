//! GPTQ: codes packed along the inputs, one scale and zero point per group of inputs and output.
//!
//! ```text
//! qweight [inputs · bits / 32, outputs]   a column's codes, one after the other from the lowest bit
//! qzeros  [groups, outputs · bits / 32]   likewise along a row; format 1 stores each zero point minus one
//! scales  [groups, outputs]               f16, bf16 or f32
//! g_idx   [inputs]                        the group of each input; if missing, groups are consecutive
//! ```
//!
//! The weight is `scale · (code - zero)`, rounded to the type of the scales, as in gptqmodel's `dequantize_weight`.
//! Format 1 is reversed as there: one is added to all zero points of a packed word at once, so that a zero point of 0
//! carries into its neighbour; three-bit zero points wrap separately.

use std::ops::Range;

use rayon::prelude::*;
use safetensors::Dtype;

use super::finder::{FLOATS, Finder, StoredMatrix};
use super::format::{ByteSlice, StorageFormat};
use super::method::Gptq;
use super::numbers::{bits_at, floats, rounded, words};
use crate::model::tensors::NeededTensor;

#[derive(Debug)]
struct Packed {
    bits: u64,
    inputs: u64,
    outputs: u64,
    group_size: u64,
    groups: u64,
    second_format: bool,
    ordered: bool,
    scale_type: Dtype,
}

/// Finds `{stem}.qweight` and its companion tensors.
pub(super) fn find(
    finder: &mut Finder<'_>,
    stem: &str,
    needed: &NeededTensor,
    method: &Gptq,
) -> Option<StoredMatrix> {
    let (outputs, inputs) = (needed.shape[0], needed.row_width());
    let group_size = method.group_size.unwrap_or(inputs).min(inputs);
    let groups = inputs.div_ceil(group_size);
    let packed = |count: u64| (count * method.bits).div_ceil(32);
    let codes = [packed(inputs), outputs];
    let codes = finder.shaped(&format!("{stem}.qweight"), &[Dtype::I32], &codes);
    let scales = finder.shaped(&format!("{stem}.scales"), &FLOATS, &[groups, outputs]);
    let zeros = [groups, packed(outputs)];
    let zeros = finder.shaped(&format!("{stem}.qzeros"), &[Dtype::I32], &zeros);
    let order = format!("{stem}.g_idx");
    // A single group has no order.
    let ordered = finder.tensors.contains(&order) || method.ordered && groups > 1;
    let order = if ordered { Some(finder.shaped(&order, &[Dtype::I32], &[inputs])?) } else { None };
    let (codes, scales, zeros) = (codes?, scales?, zeros?);
    let format = Packed {
        bits: method.bits,
        inputs,
        outputs,
        group_size,
        groups,
        second_format: method.second_format,
        ordered,
        scale_type: scales.dtype(),
    };
    let stored = [codes, scales, zeros].into_iter().chain(order).collect();
    Some(StoredMatrix { format: Box::new(format), stored })
}

impl Packed {
    /// Returns the group of each input.
    fn order(&self, stored: &[Vec<u8>]) -> Result<Vec<usize>, String> {
        if !self.ordered {
            return Ok((0..self.inputs).map(|input| (input / self.group_size) as usize).collect());
        }
        let group = |word: u32| {
            let found = u64::from(word) < self.groups;
            let wrong = || format!("`g_idx` names group {} of {}", word.cast_signed(), self.groups);
            found.then_some(word as usize).ok_or_else(wrong)
        };
        words(&stored[3]).into_iter().map(group).collect()
    }

    /// Returns all zero points, `[groups, outputs]`.
    fn zeros(&self, stored: &[u8]) -> Vec<u32> {
        let mut packed = words(stored);
        let ones = match self.bits {
            2 => 0x5555_5555,
            4 => 0x1111_1111,
            8 => 0x0101_0101,
            _ => 0,
        };
        if !self.second_format {
            for word in &mut packed {
                *word = word.wrapping_add(ones);
            }
        }
        let rows = packed.chunks_exact((packed.len() / self.groups as usize).max(1));
        let code = |row, output| bits_at(row, output * self.bits, self.bits);
        let code = |row, output| match (self.bits, self.second_format) {
            (3, false) => (code(row, output) + 1) & 7,
            _ => code(row, output),
        };
        rows.flat_map(|row| (0..self.outputs).map(move |output| code(row, output))).collect()
    }
}

impl StorageFormat for Packed {
    fn name(&self) -> String {
        let format = if self.second_format { 2 } else { 1 };
        let (order, scales) = (if self.ordered { "given" } else { "none" }, self.scale_type);
        let (bits, group) = (self.bits, self.group_size);
        format!(
            "gptq, format {format}, {bits} bits, groups of {group}, order {order}, scales {scales}"
        )
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        let columns = rows.start * 4..rows.end * 4;
        let packed = 0..(self.inputs * self.bits).div_ceil(32);
        (index == 0).then_some(ByteSlice { rows: packed, row_bytes: self.outputs * 4, columns })
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let order = self.order(stored)?;
        let (codes, zeros) = (words(&stored[0]), self.zeros(&stored[2]));
        let scales = floats(self.scale_type, &stored[1]);
        let outputs = (rows.end - rows.start) as usize;
        let mut weights = vec![0.0; outputs * order.len()];
        weights.par_chunks_exact_mut(order.len()).enumerate().for_each(|(index, weights)| {
            let column: Vec<u32> = codes[index..].iter().step_by(outputs).copied().collect();
            let output = rows.start as usize + index;
            for (input, (weight, group)) in weights.iter_mut().zip(&order).enumerate() {
                let code = bits_at(&column, input as u64 * self.bits, self.bits);
                let index = group * self.outputs as usize + output;
                let steps = code as f32 - zeros[index] as f32;
                *weight = rounded(self.scale_type, scales[index] * steps);
            }
        });
        Ok(weights)
    }
}
