//! bitsandbytes: four-bit codes into a table (nf4, fp4), in blocks with a maximum absolute value; or int8 rows.
//!
//! ```text
//! weight                             [numbers / 2, 1]  two codes per byte, the first one in the high half
//! weight.absmax                      [blocks]  f32, or u8 if it is quantised itself
//! weight.quant_map                   [16]      f32, value of each code
//! weight.nested_absmax               [blocks / nested_blocksize]  f32
//! weight.nested_quant_map            [256]     f32
//! weight.quant_state.bitsandbytes__* JSON: type, block sizes, shape, the type of the result
//! ```
//!
//! Four bits: `quant_map[code] · absmax`, rounded to `dtype` of the state, with `absmax = nested_quant_map[code] ·
//! nested_absmax + nested_offset` in float32 if that is quantised, as in `dequantize_4bit`. Int8: `code · SCB · 1/127`
//! in float32, as in `int8_vectorwise_dequant`.

use std::ops::Range;

use rayon::prelude::*;
use safetensors::Dtype;
use serde::Deserialize;

use super::finder::{Finder, StoredMatrix};
use super::format::{ByteSlice, StorageFormat};
use super::numbers::{floats, rounded};
use crate::model::problem::ModelProblem;
use crate::model::stored::StoredTensor;
use crate::model::tensors::NeededTensor;

/// Maximum size of a quantisation state in bytes; real ones have about 170.
const MAX_STATE_BYTES: u64 = 1 << 16;
const MAX_BLOCK: u64 = 1 << 20;
const DAMAGED: &str = "download the checkpoint again";
/// Multiplier in `int8_vectorwise_dequant`: 1/127.
const PER_STEP: f32 = 7.874_016e-3;

#[derive(Deserialize)]
struct QuantState {
    quant_type: String,
    blocksize: u64,
    dtype: String,
    shape: Vec<u64>,
    nested_blocksize: Option<u64>,
    nested_offset: Option<f64>,
}

#[derive(Debug)]
struct FourBits {
    kind: &'static str,
    columns: u64,
    numbers: u64,
    block: u64,
    dtype: Dtype,
    /// Block size and offset of the quantised `absmax`.
    nested: Option<(u64, f32)>,
}

/// Finds the packed weight `{name}` and its companion tensors.
pub(super) fn four_bits(
    finder: &mut Finder<'_>,
    name: &str,
    needed: &NeededTensor,
) -> Option<StoredMatrix> {
    let kinds = ["nf4", "fp4"];
    let state_name = |kind: &str| format!("{name}.quant_state.bitsandbytes__{kind}");
    let kind = kinds.into_iter().find(|kind| finder.tensors.contains(&state_name(kind)));
    let kind = kind.unwrap_or(kinds[0]);
    let state_at = finder.typed(&state_name(kind), &[Dtype::U8]);
    let state_at = state_at?;
    let state = state(finder, &state_at)?;
    let numbers = needed.shape[0] * needed.row_width();
    let problem = |why: String| {
        ModelProblem::checkpoint(format!("`{}` {why}", state_at.name)).with_hint(DAMAGED)
    };
    if state.shape != needed.shape {
        finder.problems.push(problem(format!(
            "states the shape {:?}; config.json implies {:?}",
            state.shape, needed.shape
        )));
        return None;
    }
    let dtype = match state.dtype.trim_start_matches("torch.") {
        "float32" => Some(Dtype::F32),
        "float16" => Some(Dtype::F16),
        "bfloat16" => Some(Dtype::BF16),
        _ => None,
    };
    let blocks = [Some(state.blocksize), state.nested_blocksize];
    let sound = blocks.into_iter().flatten().all(|size| (1..=MAX_BLOCK).contains(&size))
        && state.nested_offset.is_none_or(f64::is_finite)
        && state.nested_blocksize.is_some() == state.nested_offset.is_some();
    let Some(dtype) = dtype.filter(|_| sound && state.quant_type == kind) else {
        let nested = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
        finder.problems.push(problem(format!(
            "has invalid values: quant_type `{}`, blocksize {}, dtype `{}`, nested_blocksize {}, nested_offset {}",
            state.quant_type,
            state.blocksize,
            state.dtype,
            nested(state.nested_blocksize.map(|size| size.to_string())),
            nested(state.nested_offset.map(|offset| offset.to_string())),
        )));
        return None;
    };
    let nested =
        state.nested_blocksize.zip(state.nested_offset).map(|(size, offset)| (size, offset as f32));
    let format = FourBits {
        kind,
        columns: needed.row_width(),
        numbers,
        block: state.blocksize,
        dtype,
        nested,
    };
    let stored = format.stored(finder, name)?;
    Some(StoredMatrix {
        format: Box::new(format),
        stored: stored.into_iter().chain([state_at]).collect(),
    })
}

fn state(finder: &mut Finder<'_>, stored: &StoredTensor) -> Option<QuantState> {
    let bytes = stored.entry.byte_length();
    let read = (bytes <= MAX_STATE_BYTES).then(|| finder.tensors.read(stored));
    let why = match read {
        Some(bytes) => match serde_json::from_slice(&bytes?) {
            Ok(state) => return Some(state),
            Err(error) => error.to_string(),
        },
        None => format!("it has {bytes} bytes"),
    };
    let message = format!("`{}` is not a quantisation state: {why}", stored.name);
    finder.problems.push(ModelProblem::checkpoint(message).with_hint(DAMAGED));
    None
}

impl FourBits {
    /// Finds codes, `absmax`, the table and, if `absmax` is quantised, its two tensors, and checks types and shapes.
    fn stored(&self, finder: &mut Finder<'_>, name: &str) -> Option<Vec<StoredTensor>> {
        // The storage may have another type, so that it is sharded with the other tensors.
        let types = [Dtype::U8, Dtype::I8, Dtype::F16, Dtype::BF16, Dtype::F32];
        let codes = finder.typed(name, &types).filter(|codes| {
            let fits = codes.entry.byte_length() == self.numbers.div_ceil(2);
            if !fits {
                finder.wrong_shape(codes, &format!("{} bytes", self.numbers.div_ceil(2)));
            }
            fits
        });
        let blocks = self.numbers.div_ceil(self.block);
        let absmax_type = if self.nested.is_some() { Dtype::U8 } else { Dtype::F32 };
        let mut part =
            |part: &str, dtype, count| finder.shaped(&format!("{name}.{part}"), &[dtype], &[count]);
        let absmax = part("absmax", absmax_type, blocks);
        let map = part("quant_map", Dtype::F32, 16);
        let mut stored = vec![codes, absmax, map];
        if let Some((size, _)) = self.nested {
            stored.push(part("nested_absmax", Dtype::F32, blocks.div_ceil(size)));
            stored.push(part("nested_quant_map", Dtype::F32, 256));
        }
        stored.into_iter().collect()
    }

    fn absmax(&self, stored: &[Vec<u8>]) -> Vec<f32> {
        let Some((size, offset)) = self.nested else { return floats(Dtype::F32, &stored[1]) };
        let (outer, map) = (floats(Dtype::F32, &stored[3]), floats(Dtype::F32, &stored[4]));
        let value = |(block, code): (usize, &u8)| {
            map[usize::from(*code)] * outer[block / size as usize] + offset
        };
        stored[1].iter().enumerate().map(value).collect()
    }
}

impl StorageFormat for FourBits {
    fn name(&self) -> String {
        let nested = self.nested.map_or_else(String::new, |(size, offset)| {
            format!(", absmax in blocks of {size} around {offset}")
        });
        format!("bitsandbytes, {}, blocks of {}, {}{nested}", self.kind, self.block, self.dtype)
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        let bytes = rows.start * self.columns / 2..(rows.end * self.columns).div_ceil(2);
        (index == 0).then_some(ByteSlice { rows: bytes, row_bytes: 1, columns: 0..1 })
    }

    fn row_step(&self) -> u64 {
        1 + self.columns % 2
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let (absmax, map) = (self.absmax(stored), floats(Dtype::F32, &stored[2]));
        let (first, last) = (rows.start * self.columns, rows.end * self.columns);
        let number = |index: u64| {
            let byte = stored[0][(index / 2 - first / 2) as usize];
            let code = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
            let value = map[usize::from(code)] * absmax[(index / self.block) as usize];
            rounded(self.dtype, value)
        };
        Ok((first..last).into_par_iter().map(number).collect())
    }
}

#[derive(Debug)]
struct EightBits {
    columns: u64,
}

/// Finds `{stem}.weight` and `{stem}.SCB`.
pub(super) fn eight_bits(
    finder: &mut Finder<'_>,
    stem: &str,
    needed: &NeededTensor,
) -> Option<StoredMatrix> {
    let codes = finder.shaped(&format!("{stem}.weight"), &[Dtype::I8], &needed.shape);
    let largest = finder.shaped(&format!("{stem}.SCB"), &[Dtype::F32], &needed.shape[..1]);
    let layout = format!("{stem}.weight_format");
    if finder.tensors.contains(&layout) {
        let layout = finder.shaped(&layout, &[Dtype::U8], &[])?;
        if finder.tensors.read(&layout)? != [0] {
            let name = &layout.name;
            let why = format!("`{name}` is not 0: the matrix is stored in a GPU-specific order");
            finder.problems.push(super::method::refused(&why));
        }
    }
    let format = EightBits { columns: needed.row_width() };
    Some(StoredMatrix { format: Box::new(format), stored: vec![codes?, largest?] })
}

impl StorageFormat for EightBits {
    fn name(&self) -> String {
        "bitsandbytes, int8".to_owned()
    }

    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        (index == 0).then(|| ByteSlice::rows(rows, self.columns))
    }

    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let largest = floats(Dtype::F32, &stored[1]);
        let lines =
            stored[0].chunks_exact(self.columns as usize).zip(&largest[rows.start as usize..]);
        let line = |(codes, largest): (&[u8], &f32)| {
            let number = |code: &u8| f32::from(code.cast_signed()) * largest * PER_STEP;
            codes.iter().map(number).collect::<Vec<f32>>()
        };
        Ok(lines.flat_map(line).collect())
    }
}
