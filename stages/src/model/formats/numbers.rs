//! Conversion of stored numbers to floats, and rounding of floats to a stored type.

use std::borrow::Cow;

use half::{bf16, f16, slice::HalfFloatSliceExt};
use rayon::prelude::*;
use safetensors::Dtype;

const PIECE: usize = 1 << 14;

/// Converts little-endian numbers to 32-bit floats: exact for f32, f16 and bf16. The loops are in library code, which is
/// optimised in test builds as well.
pub(crate) fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let size = dtype.bitsize() / 8;
    let mut floats = vec![0.0; bytes.len() / size];
    let pieces = bytes.par_chunks(PIECE * size).zip(floats.par_chunks_mut(PIECE));
    pieces.for_each(|(bytes, floats)| match dtype {
        Dtype::F32 => floats.copy_from_slice(&aligned(bytes)),
        Dtype::F16 => aligned::<f16>(bytes).convert_to_f32_slice(floats),
        Dtype::BF16 => aligned::<bf16>(bytes).convert_to_f32_slice(floats),
        other => unreachable!("{other} is refused when the header is read"),
    });
    floats
}

/// Borrows the numbers, or copies them if they are not aligned. Processors are little-endian, as files are.
fn aligned<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(bytes: &[u8]) -> Cow<'_, [T]> {
    const { assert!(cfg!(target_endian = "little")) };
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}

/// Rounds a number to a stored type, to nearest with ties to even, like a package's result of that type.
pub(super) fn rounded(dtype: Dtype, number: f32) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(number).to_f32(),
        Dtype::BF16 => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}

/// Converts an f8 e4m3 number exactly (it has no infinities: all ones are NaN).
pub(super) fn float8(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction / 512.0,
        _ => (1.0 + fraction / 8.0) * f32::from_bits(((exponent + 120) as u32) << 23),
    };
    if byte >> 7 == 1 { -size } else { size }
}

pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    aligned(bytes).into_owned()
}

/// Returns `count` (at most 32) bits of packed words from bit `start` on, the lowest first.
pub(super) fn bits_at(words: &[u32], start: u64, count: u64) -> u32 {
    let (word, shift) = ((start / 32) as usize, start % 32);
    let low = u64::from(words[word]);
    let high = words.get(word + 1).map_or(0, |word| u64::from(*word));
    (((high << 32 | low) >> shift) & ((1 << count) - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_types_are_exact() {
        let numbers = [1.0f32, -0.5, 65_504.0, 0.0];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(floats(Dtype::F32, &bytes), numbers);
        let bytes: Vec<u8> =
            numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect();
        assert_eq!(floats(Dtype::F16, &bytes), numbers);
        let bytes: Vec<u8> =
            numbers[..2].iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect();
        assert_eq!(floats(Dtype::BF16, &bytes), numbers[..2]);
    }

    #[test]
    fn bits_continue_across_words() {
        let words = [0x8000_0001, 0b101];
        assert_eq!(bits_at(&words, 0, 4), 1);
        assert_eq!(bits_at(&words, 31, 3), 0b011);
        assert_eq!(bits_at(&words, 32, 8), 5);
        assert_eq!(bits_at(&words, 60, 4), 0);
    }

    #[test]
    fn numbers_of_eight_bits_are_exact() {
        for (byte, number) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xbc, -1.5),
        ] {
            assert_eq!(float8(byte).to_bits(), f32::to_bits(number), "{byte:#x}");
        }
        assert!(float8(0x7f).is_nan() && float8(0xff).is_nan());
    }

    #[test]
    fn rounding_is_to_nearest_with_ties_to_even() {
        assert_eq!(rounded(Dtype::BF16, 1.0 + 1.0 / 256.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(
            rounded(Dtype::BF16, 1.0 + 3.0 / 256.0).to_bits(),
            (1.0f32 + 1.0 / 64.0).to_bits()
        );
        assert_eq!(rounded(Dtype::F16, 1.0 + 1.0 / 2048.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(
            rounded(Dtype::F32, 1.0 + f32::EPSILON).to_bits(),
            (1.0 + f32::EPSILON).to_bits()
        );
    }
}
