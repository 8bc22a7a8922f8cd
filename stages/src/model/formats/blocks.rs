//! GGUF's blocks: 32 or 256 numbers stored with their codes, scales and offsets, converted to float32 in the order of
//! operations of gguf's `dequantize_blocks`, so that every rounding agrees.

use std::ops::Range;

use half::f16;
use rayon::prelude::*;

use super::format::{ByteSlice, StorageFormat};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// Type, its number in GGUF, its name, numbers per block, bytes per block.
const TYPES: [(BlockType, u32, &str, u64, u64); 10] = [
    (BlockType::Q4_0, 2, "q4_0", 32, 18),
    (BlockType::Q4_1, 3, "q4_1", 32, 20),
    (BlockType::Q5_0, 6, "q5_0", 32, 22),
    (BlockType::Q5_1, 7, "q5_1", 32, 24),
    (BlockType::Q8_0, 8, "q8_0", 32, 34),
    (BlockType::Q2K, 10, "q2_k", 256, 84),
    (BlockType::Q3K, 11, "q3_k", 256, 110),
    (BlockType::Q4K, 12, "q4_k", 256, 144),
    (BlockType::Q5K, 13, "q5_k", 256, 176),
    (BlockType::Q6K, 14, "q6_k", 256, 210),
];

impl BlockType {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        TYPES.iter().find(|(_, code, ..)| *code == number).map(|(kind, ..)| *kind)
    }

    fn row(self) -> &'static (Self, u32, &'static str, u64, u64) {
        TYPES.iter().find(|(kind, ..)| *kind == self).expect("every type has a row")
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().2
    }

    pub(crate) fn numbers(self) -> u64 {
        self.row().3
    }

    pub(crate) fn bytes(self) -> u64 {
        self.row().4
    }

    fn floats(self, block: &[u8], numbers: &mut [f32]) {
        match self {
            Self::Q4_0 => halves(&block[2..], None, numbers, {
                let scale = float(&block[0..]);
                move |code| scale * (f32::from(code) - 8.0)
            }),
            Self::Q4_1 => halves(&block[4..], None, numbers, {
                let (scale, min) = (float(&block[0..]), float(&block[2..]));
                move |code| scale * f32::from(code) + min
            }),
            Self::Q5_0 => halves(&block[6..], Some(&block[2..6]), numbers, {
                let scale = float(&block[0..]);
                move |code| scale * (f32::from(code) - 16.0)
            }),
            Self::Q5_1 => halves(&block[8..], Some(&block[4..8]), numbers, {
                let (scale, min) = (float(&block[0..]), float(&block[2..]));
                move |code| scale * f32::from(code) + min
            }),
            Self::Q8_0 => {
                let scale = float(block);
                for (number, code) in numbers.iter_mut().zip(&block[2..]) {
                    *number = f32::from(code.cast_signed()) * scale;
                }
            }
            Self::Q2K => two_bits(block, numbers),
            Self::Q3K => three_bits(block, numbers),
            Self::Q4K => four_or_five_bits(block, &block[16..], None, numbers),
            Self::Q5K => four_or_five_bits(block, &block[48..], Some(&block[16..48]), numbers),
            Self::Q6K => six_bits(block, numbers),
        }
    }
}

fn float(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Decodes 32 codes: sixteen in the low halves of the bytes, then sixteen in the high halves; and fifth bits, if any.
fn halves(codes: &[u8], fifth: Option<&[u8]>, numbers: &mut [f32], number: impl Fn(u8) -> f32) {
    for (index, value) in numbers.iter_mut().enumerate() {
        let code = codes[index % 16] >> (index / 16 * 4) & 15;
        let bit = fifth.map_or(0, |bits| bits[index / 8] >> (index % 8) & 1);
        *value = number(code | bit << 4);
    }
}

/// Four-bit scales and four-bit offsets, one each per sixteen numbers.
fn two_bits(block: &[u8], numbers: &mut [f32]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (scale, min) = (float(&block[80..]), float(&block[82..]));
    for (index, number) in numbers.iter_mut().enumerate() {
        let code = codes[index / 128 * 32 + index % 32] >> (index % 128 / 32 * 2) & 3;
        let part = scales[index / 16];
        let (scale, min) = (scale * f32::from(part & 15), min * f32::from(part >> 4));
        *number = scale * f32::from(code) - min;
    }
}

/// The third bit is stored separately and inverted; scales have six bits, the upper two stored separately.
fn three_bits(block: &[u8], numbers: &mut [f32]) {
    let (upper, codes, scales, scale) =
        (&block[..32], &block[32..96], &block[96..108], float(&block[108..]));
    for (index, number) in numbers.iter_mut().enumerate() {
        let low = codes[index / 128 * 32 + index % 32] >> (index % 128 / 32 * 2) & 3;
        let unset = (upper[index % 32] >> (index / 32) & 1) ^ 1;
        let code = low.cast_signed() - (unset << 2).cast_signed();
        let part = index / 16;
        let six = scales[part % 8] >> (part / 8 * 4) & 15
            | (scales[8 + part % 4] >> (part / 4 * 2) & 3) << 4;
        *number = scale * f32::from(six.cast_signed() - 32) * f32::from(code);
    }
}

/// Six-bit scales and offsets, one each per 32 numbers, in twelve bytes.
fn four_or_five_bits(block: &[u8], codes: &[u8], fifth: Option<&[u8]>, numbers: &mut [f32]) {
    let (scale, min, packed) = (float(&block[0..]), float(&block[2..]), &block[4..16]);
    for (part, numbers) in numbers.chunks_exact_mut(32).enumerate() {
        let at = part % 4;
        let (six, offset) = match part {
            ..4 => (packed[at] & 63, packed[4 + at] & 63),
            _ => (
                packed[8 + at] & 15 | packed[at] >> 2 & 0x30,
                packed[8 + at] >> 4 | packed[4 + at] >> 2 & 0x30,
            ),
        };
        let (scale, min) = (scale * f32::from(six), min * f32::from(offset));
        for (index, number) in numbers.iter_mut().enumerate() {
            let code = codes[part / 2 * 32 + index] >> (part % 2 * 4) & 15;
            let bit = fifth.map_or(0, |bits| bits[index] >> part & 1);
            *number = scale * f32::from(code | bit << 4) - min;
        }
    }
}

/// Eight-bit scales, one per sixteen numbers; the upper two bits of codes are stored separately.
fn six_bits(block: &[u8], numbers: &mut [f32]) {
    let (lower, upper, scales, scale) =
        (&block[..128], &block[128..192], &block[192..208], float(&block[208..]));
    for (index, number) in numbers.iter_mut().enumerate() {
        let (half, position) = (index / 128, index % 128);
        let low = lower[half * 64 + position % 64] >> (position / 64 * 4) & 15;
        let high = upper[half * 32 + position % 32] >> (position / 32 * 2) & 3;
        let code = (low | high << 4).cast_signed() - 32;
        *number = scale * f32::from(scales[index / 16].cast_signed()) * f32::from(code);
    }
}

/// A matrix whose rows consist of blocks.
#[derive(Debug)]
pub(super) struct BlockMatrix {
    pub(super) kind: BlockType,
    pub(super) columns: u64,
}

impl StorageFormat for BlockMatrix {
    fn name(&self) -> String {
        format!("gguf {}", self.kind.name())
    }

    fn slice(&self, _index: usize, rows: &Range<u64>) -> Option<ByteSlice> {
        Some(ByteSlice::rows(rows, self.columns / self.kind.numbers() * self.kind.bytes()))
    }

    fn floats(&self, _rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String> {
        let (size, bytes) = (self.kind.numbers() as usize, self.kind.bytes() as usize);
        let mut weights = vec![0.0; stored[0].len() / bytes * size];
        let blocks = weights.par_chunks_exact_mut(size).zip(stored[0].par_chunks_exact(bytes));
        blocks.for_each(|(numbers, block)| self.kind.floats(block, numbers));
        Ok(weights)
    }
}
