//! Codes packed row by row into 32-bit words, with scales for groups of columns: compressed-tensors' `pack-quantized`
//! and MLX's affine format.
//!
//! ```text
//! compressed-tensors  weight_packed [rows, columns · bits / 32], weight_scale [rows, groups], weight_shape [2],
//!                     weight_zero_point [rows · bits / 32, groups] (packed along the rows) if asymmetric
//! MLX                 weight [rows, columns · bits / 32], scales [rows, groups], biases [rows, groups]
//! ```
//!
//! In both, codes are consecutive from the lowest bit on. compressed-tensors: `(code - zero) · scale`, both stored with
//! 2^(bits - 1) added, rounded to the type of the scales, as its `dequantize`. MLX: see [`Affine`].

use std::ops::Range;

use rayon::prelude::*;
use safetensors::Dtype;

use super::finder::{FLOATS, Finder, StoredMatrix};
use super::format::{ByteSlice, StorageFormat};
use super::method::refused;
use super::numbers::{bits_at, floats, rounded, words};
use crate::model::tensors::NeededTensor;

/// Packed rows, shared by both formats.
#[derive(Debug)]
struct PackedRows {
    bits: u64,
    columns: u64,
    group_size: u64,
    scale_type: Dtype,
}

impl PackedRows {
    fn groups(&self) -> u64 {
        self.columns.div_ceil(self.group_size)
    }

    fn code_bytes(&self) -> u64 {
        (self.columns * self.bits).div_ceil(32) * 4
    }

    fn scale_bytes(&self) -> u64 {
        self.groups() * self.scale_type.bitsize() as u64 / 8
    }

    /// Returns the numbers of some rows, computed by `number(row, group, code)`; rows are counted from the first one.
    fn floats(&self, codes: &[u8], number: impl Fn(usize, usize, f32) -> f32 + Sync) -> Vec<f32> {
        let words = words(codes);
        let width = (self.code_bytes() / 4) as usize;
        let mut weights = vec![0.0; words.len() / width * self.columns as usize];
        let lines = weights.par_chunks_exact_mut(self.columns as usize);
        lines.zip(words.par_chunks_exact(width)).enumerate().for_each(|(row, (weights, words))| {
            for (column, weight) in weights.iter_mut().enumerate() {
                let code = bits_at(words, column as u64 * self.bits, self.bits) as f32;
                *weight = number(row, column / self.group_size as usize, code);
            }
        });
        weights
    }
}

#[derive(Debug)]
struct Compressed {
    packed: PackedRows,
    /// Rows of scales: one for all rows, or one per row.
    scale_rows: u64,
    zeros: bool,
}

/// Finds `{stem}.weight_packed` and its companion tensors. `bits` and `groups` are those that config.json names.
pub(super) fn compressed(
    finder: &mut Finder<'_>,
    stem: &str,
    needed: &NeededTensor,
    (bits, zeros): (&[u64], bool),
) -> Option<StoredMatrix> {
    let (rows, columns) = (needed.shape[0], needed.row_width());
    let order = format!("{stem}.weight_g_idx");
    if finder.tensors.contains(&order) {
        let why =
            format!("`{order}` reorders the groups, which compressed-tensors no longer supports");
        finder.problems.push(refused(&why));
        return None;
    }
    let codes = finder.typed(&format!("{stem}.weight_packed"), &[Dtype::I32]);
    let scales = finder.typed(&format!("{stem}.weight_scale"), &FLOATS);
    let shape = finder.shaped(&format!("{stem}.weight_shape"), &[Dtype::I64], &[2]);
    let (codes, scales, shape) = (codes?, scales?, shape?);
    let widths = bits.iter().map(|bits| (*bits, [rows, (columns * bits).div_ceil(32)]));
    let widths: Vec<(u64, [u64; 2])> = widths.collect();
    let Some((bits, _)) = widths.iter().find(|(_, shape)| codes.entry.shape == *shape) else {
        let shapes: Vec<String> = widths.iter().map(|(_, shape)| format!("{shape:?}")).collect();
        finder.wrong_shape(&codes, &shapes.join(" or "));
        return None;
    };
    let groups = match *scales.entry.shape {
        [] | [1] => 1,
        [down, across] if down == rows && across > 0 && columns.is_multiple_of(across) => across,
        _ => {
            let implied = format!("[{rows}, groups], where groups divide {columns} columns");
            finder.wrong_shape(&scales, &implied);
            return None;
        }
    };
    let zeros_name = format!("{stem}.weight_zero_point");
    let zeros = zeros || finder.tensors.contains(&zeros_name);
    let packed = [(rows * bits).div_ceil(32), groups];
    let zeros_at =
        if zeros { Some(finder.shaped(&zeros_name, &[Dtype::I32], &packed)?) } else { None };
    let scale_rows = if scales.entry.shape.len() == 2 { rows } else { 1 };
    let packed_rows = PackedRows {
        bits: *bits,
        columns,
        group_size: columns / groups,
        scale_type: scales.dtype(),
    };
    let stored = [codes, scales, shape].into_iter().chain(zeros_at).collect();
    Some(StoredMatrix {
        format: Box::new(Compressed { packed: packed_rows, scale_rows, zeros }),
        stored,
    })
}

impl StorageFormat for Compressed {
    fn name(&self) -> String {
        let PackedRows { bits, group_size, scale_type, .. } = &self.packed;
        let zeros = if self.zeros { ", zero points" } else { "" };
        format!("packed, {bits} bits, groups of {group_size}, scales {scale_type}{zeros}")
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        (index == 0).then(|| ByteSlice::rows(rows, self.packed.code_bytes()))
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let shape: Vec<i64> = stored[2]
            .chunks_exact(8)
            .map(|bytes| i64::from_le_bytes(bytes.try_into().expect("eight bytes")))
            .collect();
        if shape.get(1) != Some(&self.packed.columns.cast_signed()) {
            return Err(format!(
                "`weight_shape` is {shape:?}; config.json implies {} columns",
                self.packed.columns
            ));
        }
        let groups = self.packed.groups() as usize;
        let scales = floats(self.packed.scale_type, &stored[1]);
        let middle = (1u32 << (self.packed.bits - 1)) as f32;
        let zeros: Vec<f32> = if self.zeros {
            let packed = words(&stored[3]);
            let column = |group: usize| packed[group..].iter().step_by(groups).copied().collect();
            let columns: Vec<Vec<u32>> = (0..groups).map(column).collect();
            let bits = self.packed.bits;
            let zero = |row, column: &Vec<u32>| bits_at(column, row * bits, bits) as f32;
            let of_row = |row| columns.iter().map(move |column| zero(row, column));
            rows.clone().flat_map(of_row).collect()
        } else {
            vec![middle; (rows.end - rows.start) as usize * groups]
        };
        Ok(self.packed.floats(&stored[0], |row, group, code| {
            let index = (rows.start as usize + row) % self.scale_rows as usize * groups + group;
            let steps = code - zeros[row * groups + group];
            rounded(self.packed.scale_type, steps * scales[index])
        }))
    }
}

/// MLX's affine format: `scale · code + bias`, both steps rounded to the type of the scales, like mlx's `dequantize` on
/// the CPU.
#[derive(Debug)]
struct Affine(PackedRows);

/// Finds `{stem}.weight` and its companion tensors.
pub(super) fn affine(
    finder: &mut Finder<'_>,
    stem: &str,
    needed: &NeededTensor,
    (group_size, bits): (u64, u64),
) -> Option<StoredMatrix> {
    let (rows, columns) = (needed.shape[0], needed.row_width());
    let packed = [rows, (columns * bits).div_ceil(32)];
    let codes = finder.shaped(&format!("{stem}.weight"), &[Dtype::U32], &packed);
    let groups = [rows, columns.div_ceil(group_size)];
    let scales = finder.shaped(&format!("{stem}.scales"), &FLOATS, &groups);
    let biases = finder.shaped(&format!("{stem}.biases"), &FLOATS, &groups);
    let (codes, scales, biases) = (codes?, scales?, biases?);
    let scale_type = scales.dtype();
    let biases = finder.shaped(&biases.name, &[scale_type], &groups)?;
    let format = Affine(PackedRows { bits, columns, group_size, scale_type });
    Some(StoredMatrix { format: Box::new(format), stored: vec![codes, scales, biases] })
}

impl StorageFormat for Affine {
    fn name(&self) -> String {
        let PackedRows { bits, group_size, scale_type, .. } = &self.0;
        format!("mlx, affine, {bits} bits, groups of {group_size}, scales {scale_type}")
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        let row_bytes = if index == 0 { self.0.code_bytes() } else { self.0.scale_bytes() };
        Some(ByteSlice::rows(rows, row_bytes))
    }

    fn floats(&self, _rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let (dtype, groups) = (self.0.scale_type, self.0.groups() as usize);
        let (scales, biases) = (floats(dtype, &stored[1]), floats(dtype, &stored[2]));
        Ok(self.0.floats(&stored[0], |row, group, code| {
            let index = row * groups + group;
            rounded(dtype, rounded(dtype, scales[index] * code) + biases[index])
        }))
    }
}
