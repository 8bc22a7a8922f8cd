//! Rows of a matrix, converted to a kernel's numbers and regrouped so that a register tile reads them in one straight
//! line.

use crate::int16;
use crate::simd_op::SimdOp;
#[cfg(target_arch = "x86_64")]
use crate::simd_op::run;
use crate::transpose::{Transpose, WordRows};

/// Type of the numbers that queries and keys are multiplied in. Sums and exponentials are float32, sums of sums float64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// Queries (scaled) and keys are rounded to bf16 once, after the rotation.
    Bf16,
    /// Queries and keys (scaled) are rounded to 16-bit integers once, after the rotation, each row by a separate
    /// scale that makes it as long as products below 2^31 allow. Products and their sums are exact.
    Int16,
}

/// Layout of a kernel's packed queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Type of the numbers in a word.
    pub(crate) element_type: ElementType,
    /// The words of a row are padded with zeros to a multiple of this.
    pub(crate) depth_multiple: usize,
    /// Queries of one panel, side by side in vectors.
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Words of a key that stay together: a panel of keys is `[depth/key_words, keys, key_words]`.
    pub(crate) key_words: usize,
}

/// Returns the layout of a float32 tile.
pub(crate) const fn floats(keys: usize, queries: usize) -> Layout {
    Layout { element_type: ElementType::F32, depth_multiple: 1, queries, keys, key_words: 1 }
}

/// The layout of the portable float32 tile.
pub(crate) const PORTABLE: Layout = floats(4, 8);
/// The layout of the float32 tiles of AVX2 and NEON.
pub(crate) const AVX2: Layout = floats(6, 16);
/// The layout of the float32 tile of AVX-512.
pub(crate) const AVX512: Layout = floats(12, 32);
/// The layout of the AMX tile: keys tile by tile, `[depth/16, 32, 16]`, so that products read them sequentially;
/// zeros fill the depth of the last tile.
pub(crate) const AMX: Layout = Layout {
    element_type: ElementType::Bf16,
    depth_multiple: 16,
    queries: 32,
    keys: 32,
    key_words: 16,
};
/// Returns the layout of a tile of 16-bit integers.
pub(crate) const fn integers(keys: usize, queries: usize) -> Layout {
    Layout { element_type: ElementType::Int16, ..floats(keys, queries) }
}

impl Layout {
    /// Returns the number of words in a row of `head_dim` numbers.
    pub(crate) fn depth(&self, head_dim: usize) -> usize {
        let words = match self.element_type {
            ElementType::F32 => head_dim,
            ElementType::Bf16 => head_dim.div_ceil(2),
            ElementType::Int16 => int16::words(head_dim),
        };
        words.next_multiple_of(self.depth_multiple)
    }

    /// Returns the number of words for a row in the buffer of [`Self::words`].
    pub(crate) fn buffer(&self, head_dim: usize) -> usize {
        match self.element_type {
            ElementType::F32 => 0,
            ElementType::Bf16 | ElementType::Int16 => self.depth(head_dim),
        }
    }

    /// Returns the rows of `head_dim` numbers, rounded to those of the layout: `[rows, depth]`, each padded with zeros.
    /// Float32 numbers are returned unchanged, others are written to `buffer`.
    #[inline(always)]
    pub(crate) fn words<'a>(
        &self,
        rows: &'a [f32],
        head_dim: usize,
        buffer: &'a mut [u32],
    ) -> &'a [u32] {
        if self.element_type == ElementType::F32 {
            assert_eq!(self.depth_multiple, 1, "rows of float32 have no padding");
            return bytemuck::cast_slice(rows);
        }
        let depth = self.depth(head_dim);
        let buffer = &mut buffer[..rows.len() / head_dim * depth];
        for (row, words) in rows.chunks_exact(head_dim).zip(buffer.chunks_exact_mut(depth)) {
            match self.element_type {
                ElementType::F32 => unreachable!("returned above"),
                ElementType::Bf16 => round_to_bf16(row, words),
                ElementType::Int16 => int16::round(row, words),
            }
        }
        buffer
    }
}

/// Writes a row as pairs of bf16, the first in the low half, padded with zeros.
#[inline(always)]
fn round_to_bf16(row: &[f32], words: &mut [u32]) {
    let (pairs, odd) = row.as_chunks::<2>();
    for (word, [low, high]) in words.iter_mut().zip(pairs) {
        *word = rounded(*low) | rounded(*high) << 16;
    }
    words[pairs.len()..].fill(0);
    if let [last] = odd {
        words[pairs.len()] = rounded(*last);
    }
}

/// Returns the bits of the nearest bf16, ties to even; a `NaN` stays one. Same result as [`half::bf16::from_f32`],
/// without a branch, which would prevent vectors.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { bits >> 16 | 0x40 } else { nearest }
}

/// Rows to be packed for a kernel.
pub(crate) struct Packing<'a> {
    pub(crate) layout: Layout,
    /// Rows of a panel, [`Layout::queries`] or [`Layout::keys`].
    pub(crate) width: usize,
    /// Words of a row that stay together: [`Layout::key_words`], one of queries.
    pub(crate) together: usize,
    /// `[rows, head_dim]`
    pub(crate) rows: &'a [f32],
    pub(crate) head_dim: usize,
    /// Buffer for the words of a panel's rows: [`Layout::buffer`] each.
    pub(crate) buffer: &'a mut [u32],
    /// `[⌈rows/width⌉, depth/together, width, together]`
    pub(crate) panels: &'a mut [u32],
}

/// Packs queries and keys as one panel each, with as many rows as given.
#[cfg(target_arch = "x86_64")]
pub(crate) fn one_panel_each(
    layout: Layout,
    head_dim: usize,
    [queries, keys]: [&[f32]; 2],
) -> [Vec<u32>; 2] {
    [(queries, layout.queries, 1), (keys, layout.keys, layout.key_words)].map(
        |(rows, width, together)| {
            let mut panel = vec![0; width * layout.depth(head_dim)];
            let (buffer, panels) = (&mut vec![0; width * layout.buffer(head_dim)], &mut panel);
            run(Packing { layout, width, together, rows, head_dim, buffer, panels });
            panel
        },
    )
}

impl SimdOp for Packing<'_> {
    /// The largest norm of the rows.
    type Result = f32;

    #[inline(always)]
    fn run(self, transpose: impl Transpose) -> f32 {
        let Self { layout, width, together, rows, head_dim, buffer, panels } = self;
        let depth = layout.depth(head_dim);
        let mut largest = 0.0_f32;
        let panels = panels.chunks_mut(depth * width);
        for (rows, panel) in rows.chunks(width * head_dim).zip(panels) {
            let words = layout.words(rows, head_dim, buffer);
            if together == 1 {
                let count = words.len() / depth;
                regroup(transpose, WordRows { words, stride: depth, depth, count }, width, panel);
            } else {
                regroup_together(words, depth, width, together, panel);
            }
            largest = largest.max(largest_square(rows, head_dim));
        }
        // A square root is correctly rounded, so the root of the largest square is the largest root.
        largest.sqrt()
    }
}

/// Regroups rows into panels of `width` of them, `[⌈count/width⌉, depth, width]`; missing rows are zero. Fills as many panels as
/// `panels` holds.
#[inline(always)]
pub(crate) fn regroup(
    transpose: impl Transpose,
    rows: WordRows<'_>,
    width: usize,
    panels: &mut [u32],
) {
    for (index, panel) in panels.chunks_exact_mut(rows.depth * width).enumerate() {
        let rows = rows.some(index * width, width);
        transpose.transpose(rows, panel, width);
        if rows.count < width {
            panel.chunks_exact_mut(width).for_each(|words| words[rows.count..].fill(0));
        }
    }
}

/// Regroups rows of `depth` words into a panel `[depth/together, width, together]`; missing rows are left unchanged.
#[inline(always)]
fn regroup_together(words: &[u32], depth: usize, width: usize, together: usize, panel: &mut [u32]) {
    for (index, row) in words.chunks_exact(depth).enumerate() {
        let pieces = panel.chunks_exact_mut(width * together).zip(row.chunks_exact(together));
        for (panel, words) in pieces {
            panel[index * together..][..together].copy_from_slice(words);
        }
    }
}

/// Separate sums of a row's squares, so that the compiler can use vectors; they are added up in halves.
const NORM_LANES: usize = 16;

/// Returns the largest sum of squares of rows of `head_dim` numbers, at most a relative 1e-5 too small; infinite if a
/// number is not finite, 0 without rows.
#[inline(always)]
fn largest_square(rows: &[f32], head_dim: usize) -> f32 {
    // Non-negative numbers have the order of their bits, and every `NaN` is greater than all of them.
    let mut largest = 0;
    for row in rows.chunks_exact(head_dim) {
        let lanes = squares_by_lanes(row);
        let eight: [f32; 8] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 8]);
        let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
        let sum = (four[0] + four[2]) + (four[1] + four[3]);
        largest = largest.max(sum.to_bits());
    }
    f32::from_bits(largest.min(f32::INFINITY.to_bits()))
}

/// Sums of a row's squares, one for every sixteenth number.
#[inline(always)]
fn squares_by_lanes(row: &[f32]) -> [f32; NORM_LANES] {
    let mut lanes = [0.0_f32; NORM_LANES];
    let (chunks, rest) = row.as_chunks::<NORM_LANES>();
    for chunk in chunks {
        lanes = with_squares(lanes, *chunk);
    }
    if !rest.is_empty() {
        let mut chunk = [0.0; NORM_LANES];
        chunk[..rest.len()].copy_from_slice(rest);
        lanes = with_squares(lanes, chunk);
    }
    lanes
}

#[inline(always)]
fn with_squares(lanes: [f32; NORM_LANES], values: [f32; NORM_LANES]) -> [f32; NORM_LANES] {
    std::array::from_fn(|lane| lanes[lane] + values[lane] * values[lane])
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;
    use crate::transpose::FourRows;

    #[test]
    fn panels_store_rows_as_columns_padded_with_zeros() {
        let words = &[1, 2, 3, 4, 5, 6];
        let mut panels = [9; 8];
        let rows = WordRows { words, stride: 2, depth: 2, count: 3 };
        regroup(FourRows, rows, 2, &mut panels);
        assert_eq!(panels, [1, 3, 2, 4, 5, 0, 6, 0]);
    }

    #[test]
    fn a_panel_can_take_a_slice_of_the_depth() {
        let words = &[2, 3, 4, 5, 6]; // columns 1 and 2 of rows of three
        let mut panels = [9; 4];
        let rows = WordRows { words, stride: 3, depth: 2, count: 2 };
        regroup(FourRows, rows, 2, &mut panels);
        assert_eq!(panels, [2, 5, 3, 6]);
    }

    #[test]
    fn grouped_words_are_stored_row_by_row() {
        let mut panel = [9; 12];
        regroup_together(&[1, 2, 3, 4, 5, 6, 7, 8], 4, 3, 2, &mut panel);
        assert_eq!(panel, [1, 2, 5, 6, 9, 9, 3, 4, 7, 8, 9, 9]);
    }

    #[test]
    fn panels_of_any_size_store_every_row() {
        for (count, depth, width) in [
            (0_usize, 3, 4),
            (1, 1, 1),
            (7, 9, 6),
            (12, 64, 12),
            (31, 33, 32),
            (33, 4, 32),
            (9, 5, 8),
        ] {
            let stride = depth + count % 3;
            let words: Vec<u32> = (1..=(count * stride) as u32).collect();
            let mut panels = vec![9; count.div_ceil(width) * depth * width];
            let rows = WordRows { words: &words, stride, depth, count };
            regroup(FourRows, rows, width, &mut panels);
            for (at, value) in panels.into_iter().enumerate() {
                let row = at / (depth * width) * width + at % width;
                let d = at / width % depth;
                let want = if row < count { words[row * stride + d] } else { 0 };
                assert_eq!(value, want, "row {row} of {count}, {d} of {depth}, panels of {width}");
            }
        }
    }

    #[test]
    fn rows_become_float32_words_or_padded_bf16_pairs() {
        let layout = Layout {
            element_type: ElementType::F32,
            depth_multiple: 1,
            queries: 8,
            keys: 4,
            key_words: 1,
        };
        assert_eq!((layout.depth(3), layout.buffer(3)), (3, 0));
        let words = layout.words(&[3.0, -6.0, 1.5], 3, &mut []);
        assert_eq!(words, [3.0_f32, -6.0, 1.5].map(f32::to_bits));
        let layout = Layout { element_type: ElementType::Bf16, depth_multiple: 4, ..layout };
        assert_eq!((layout.depth(3), layout.depth(8), layout.depth(9)), (4, 4, 8));
        assert_eq!(layout.buffer(3), 4);
        let mut buffer = [9; 12];
        // Both are half way between two bf16 numbers: 1 + 2^-8 goes down to the even one, 1 + 3·2^-8 up.
        let rows = [1.0 + 1.0 / 256.0, -2.0, 1.0 + 3.0 / 256.0, f32::NAN, 1.0, f32::INFINITY];
        let words = layout.words(&rows, 3, &mut buffer);
        assert_eq!(words[..4], [0xC000_3F80, 0x3F82, 0, 0]);
        assert!(f32::from_bits(words[4] << 16).is_nan() && words[5] == 0x7F80);
        assert_eq!(words.len(), 8);
    }

    #[test]
    fn rounding_matches_the_half_crate() {
        let all = (0..=u32::MAX).step_by(65_521).chain([0x7F80_0001, u32::MAX, 0x7F7F_FFFF]);
        for value in all.map(f32::from_bits) {
            assert_eq!(rounded(value), u32::from(half::bf16::from_f32(value).to_bits()), "{value}");
        }
    }

    #[test]
    fn the_largest_sum_of_squares_is_infinite_for_nan_and_infinity() {
        const WIDTH: usize = 37;
        for count in 1..=9 {
            for longest in 0..count {
                let mut rows = vec![0.0; count * WIDTH];
                rows.iter_mut().step_by(WIDTH).for_each(|value| *value = 2.0);
                (rows[longest * WIDTH + 3], rows[longest * WIDTH + 36]) = (6.0, -9.0);
                assert_eq!(largest_square(&rows, WIDTH), 121.0);
                for wrong in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    rows[longest * WIDTH + 20] = wrong;
                    assert_eq!(largest_square(&rows, WIDTH), f32::INFINITY, "{count} rows");
                }
            }
        }
        assert_eq!(largest_square(&[], WIDTH), 0.0);
    }
}
