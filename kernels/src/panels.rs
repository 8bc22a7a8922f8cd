//! Rows of a matrix, converted to a kernel's numbers and regrouped so that a register tile reads them in one straight
//! line.

use half::bf16;

use crate::int16;
use crate::kernel::ElementType;
use crate::work::Work;

/// How a kernel wants queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// What a word holds.
    pub(crate) element_type: ElementType,
    /// A row's words are padded with zeros to a multiple of this.
    pub(crate) depth_multiple: usize,
    /// Queries of one panel, side by side in vectors.
    pub(crate) queries: usize,
    /// Keys of one panel.
    pub(crate) keys: usize,
    /// Whether keys stay rows: a panel of theirs is `[keys, depth]`.
    pub(crate) whole_keys: bool,
}

impl Layout {
    /// Words of a row of `head_dim` numbers.
    pub(crate) fn depth(&self, head_dim: usize) -> usize {
        let words = match self.element_type {
            ElementType::F32 => head_dim,
            ElementType::Bf16 => head_dim.div_ceil(2),
            ElementType::Int16 => int16::words(head_dim),
        };
        words.next_multiple_of(self.depth_multiple)
    }

    /// Words of a row in the buffer of [`Self::words`].
    pub(crate) fn buffer(&self, head_dim: usize) -> usize {
        match self.element_type {
            ElementType::F32 => 0,
            ElementType::Bf16 | ElementType::Int16 => self.depth(head_dim),
        }
    }

    /// Rows of `head_dim` numbers, rounded to those of the layout: `[rows, depth]`, zeros behind each. Float32 numbers are
    /// words as they stand, others are written to `buffer`.
    #[inline(always)]
    pub(crate) fn words<'a>(
        &self,
        rows: &'a [f32],
        head_dim: usize,
        buffer: &'a mut [u32],
    ) -> &'a [u32] {
        if self.element_type == ElementType::F32 {
            assert_eq!(self.depth_multiple, 1, "nothing stands between rows of float32");
            return bytemuck::cast_slice(rows);
        }
        let depth = self.depth(head_dim);
        let buffer = &mut buffer[..rows.len() / head_dim * depth];
        for (row, words) in rows.chunks_exact(head_dim).zip(buffer.chunks_exact_mut(depth)) {
            if self.element_type == ElementType::Int16 {
                int16::round(row, words);
            } else {
                round_to_bf16(row, words);
            }
        }
        buffer
    }
}

/// Writes a row as pairs of bf16, the first in the low half, zeros behind it.
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

/// The bits of the nearest bf16, ties to even; a `NaN` stays one.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    u32::from(bf16::from_f32(value).to_bits())
}

/// Rows to be packed as a kernel wants them.
pub(crate) struct Packing<'a> {
    pub(crate) layout: Layout,
    /// Rows of a panel, [`Layout::queries`] or [`Layout::keys`].
    pub(crate) width: usize,
    /// Whether rows stay as they are.
    pub(crate) whole: bool,
    /// `[rows, head_dim]`
    pub(crate) rows: &'a [f32],
    pub(crate) head_dim: usize,
    /// Room for the words of a panel's rows: [`Layout::buffer`] each.
    pub(crate) buffer: &'a mut [u32],
    /// `[⌈rows/width⌉, depth, width]`, or `[rows, depth]` where rows stay as they are.
    pub(crate) panels: &'a mut [u32],
}

impl Work for Packing<'_> {
    /// The largest norm of the rows.
    type Found = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let Self { layout, width, whole, rows, head_dim, buffer, panels } = self;
        let depth = layout.depth(head_dim);
        let mut largest = 0.0_f32;
        let panels = panels.chunks_mut(depth * width);
        for (rows, panel) in rows.chunks(width * head_dim).zip(panels) {
            let words = layout.words(rows, head_dim, buffer);
            if whole {
                panel[..words.len()].copy_from_slice(words);
            } else {
                regroup(words, depth, depth, width, panel);
            }
            largest = largest.max(largest_norm(rows, head_dim));
        }
        largest
    }
}

/// Regroups rows that lie `stride` apart, `depth` words of each, into panels of `width` rows,
/// `[⌈count/width⌉, depth, width]`; missing rows are zero. Fills as many panels as `panels` holds.
#[inline(always)]
pub(crate) fn regroup(rows: &[u32], stride: usize, depth: usize, width: usize, panels: &mut [u32]) {
    let mut rest = rows;
    for panel in panels.chunks_exact_mut(depth * width) {
        let rows;
        (rows, rest) = rest.split_at(rest.len().min(width * stride));
        let count = rows.len().div_ceil(stride);
        let row = |lane: usize| &rows[lane * stride..][..depth];
        let fours = count / 4 * 4;
        for lane in (0..fours).step_by(4) {
            interleave(std::array::from_fn(|index| row(lane + index)), lane, width, panel);
        }
        for lane in fours..count {
            for (to, word) in panel.chunks_exact_mut(width).zip(row(lane)) {
                to[lane] = *word;
            }
        }
        if count < width {
            panel.chunks_exact_mut(width).for_each(|words| words[count..].fill(0));
        }
    }
}

/// Writes four rows to the columns of a panel from `lane` on.
#[inline(always)]
fn interleave(rows: [&[u32]; 4], lane: usize, width: usize, panel: &mut [u32]) {
    let [a, b, c, d] = rows.map(|row| row.as_chunks::<4>().0);
    let mut to = panel.chunks_exact_mut(4 * width);
    let squares = a.iter().zip(b).zip(c.iter().zip(d));
    for (((a, b), (c, d)), to) in squares.zip(to.by_ref()) {
        let columns = transposed(Four::of(a), Four::of(b), Four::of(c), Four::of(d));
        let (first, rest) = to.split_at_mut(width);
        let (second, rest) = rest.split_at_mut(width);
        let (third, fourth) = rest.split_at_mut(width);
        columns.0.write(&mut first[lane..lane + 4]);
        columns.1.write(&mut second[lane..lane + 4]);
        columns.2.write(&mut third[lane..lane + 4]);
        columns.3.write(&mut fourth[lane..lane + 4]);
    }
    let tails = rows.map(|row| row.as_chunks::<4>().1);
    for (d, to) in to.into_remainder().chunks_exact_mut(width).enumerate() {
        to[lane..lane + 4].copy_from_slice(&tails.map(|row| row[d]));
    }
}

/// Four words in a register. Arrays of arrays would pass through memory, where words that were written one by one are read
/// together, at several times the time.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Four(std::arch::x86_64::__m128i);

#[cfg(target_arch = "x86_64")]
impl Four {
    #[inline(always)]
    fn of(words: &[u32; 4]) -> Self {
        Self(bytemuck::cast(*words))
    }

    /// `to` has room for four.
    #[inline(always)]
    fn write(self, to: &mut [u32]) {
        to.copy_from_slice(&bytemuck::cast::<_, [u32; 4]>(self.0));
    }
}

/// Rows become columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed(a: Four, b: Four, c: Four, d: Four) -> (Four, Four, Four, Four) {
    use std::arch::x86_64::{
        _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };
    // SAFETY: every x86-64 processor has SSE2.
    unsafe {
        let (low, high) = (_mm_unpacklo_epi32(a.0, b.0), _mm_unpackhi_epi32(a.0, b.0));
        let (low_after, high_after) = (_mm_unpacklo_epi32(c.0, d.0), _mm_unpackhi_epi32(c.0, d.0));
        (
            Four(_mm_unpacklo_epi64(low, low_after)),
            Four(_mm_unpackhi_epi64(low, low_after)),
            Four(_mm_unpacklo_epi64(high, high_after)),
            Four(_mm_unpackhi_epi64(high, high_after)),
        )
    }
}

/// Four words.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
struct Four([u32; 4]);

#[cfg(not(target_arch = "x86_64"))]
impl Four {
    #[inline(always)]
    fn of(words: &[u32; 4]) -> Self {
        Self(*words)
    }

    /// `to` has room for four.
    #[inline(always)]
    fn write(self, to: &mut [u32]) {
        to.copy_from_slice(&self.0);
    }
}

/// Rows become columns.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transposed(a: Four, b: Four, c: Four, d: Four) -> (Four, Four, Four, Four) {
    let column = |index: usize| Four([a.0[index], b.0[index], c.0[index], d.0[index]]);
    (column(0), column(1), column(2), column(3))
}

/// The largest Euclidean length of rows of `head_dim` numbers, never too small by more than 1e-5 of it; infinite where a
/// number is not finite, 0 of no rows.
#[inline(always)]
fn largest_norm(rows: &[f32], head_dim: usize) -> f32 {
    let mut largest = 0.0_f32;
    for four in rows.chunks(4 * head_dim) {
        let mut squares = [[0.0; NORM_LANES]; 4];
        for (row, squares) in four.chunks_exact(head_dim).zip(&mut squares) {
            *squares = squares_by_lanes(row);
        }
        for square in sums_of_four(&squares) {
            largest = if square.is_nan() { f32::INFINITY } else { largest.max(square) };
        }
    }
    largest.sqrt() // a root is rounded correctly: of the largest square it is the largest
}

/// Sums of a row's squares that are kept apart, so that the compiler can use vectors.
const NORM_LANES: usize = 16;

#[inline(always)]
fn squares_by_lanes(row: &[f32]) -> [f32; NORM_LANES] {
    let mut lanes = [0.0_f32; NORM_LANES];
    let (chunks, rest) = row.as_chunks::<NORM_LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value * value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value * value;
    }
    lanes
}

/// The sum of each row, from the first number to the last, four rows side by side.
#[inline(always)]
fn sums_of_four(rows: &[[f32; NORM_LANES]; 4]) -> [f32; 4] {
    let mut sums = [0.0_f32; 4];
    let mut add = |column: Four| {
        let mut values = [0; 4];
        column.write(&mut values);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += f32::from_bits(value);
        }
    };
    let [a, b, c, d] = rows;
    let four = |row: &[f32; NORM_LANES], part: usize| {
        Four::of(&std::array::from_fn(|lane| row[4 * part + lane].to_bits()))
    };
    for part in 0..NORM_LANES / 4 {
        let columns = transposed(four(a, part), four(b, part), four(c, part), four(d, part));
        add(columns.0);
        add(columns.1);
        add(columns.2);
        add(columns.3);
    }
    sums
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn panels_hold_each_row_as_a_column_and_zeros_for_the_missing_ones() {
        let rows = [1, 2, 3, 4, 5, 6]; // three rows of two
        let mut panels = [9; 8];
        regroup(&rows, 2, 2, 2, &mut panels);
        assert_eq!(panels, [1, 3, 2, 4, 5, 0, 6, 0]);
    }

    #[test]
    fn a_panel_can_take_a_slice_of_the_depth() {
        let rows = [1, 2, 3, 4, 5, 6]; // two rows of three, columns 1 and 2 taken
        let mut panels = [9; 4];
        regroup(&rows[1..], 3, 2, 2, &mut panels);
        assert_eq!(panels, [2, 5, 3, 6]);
    }

    #[test]
    fn panels_of_any_size_hold_every_row_at_its_place() {
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
            let rows: Vec<u32> = (1..=(count * stride) as u32).collect();
            let mut panels = vec![9; count.div_ceil(width) * depth * width];
            regroup(&rows, stride, depth, width, &mut panels);
            for (at, value) in panels.into_iter().enumerate() {
                let row = at / (depth * width) * width + at % width;
                let d = at / width % depth;
                let want = if row < count { rows[row * stride + d] } else { 0 };
                assert_eq!(value, want, "row {row} of {count}, {d} of {depth}, panels of {width}");
            }
        }
    }

    #[test]
    fn rows_become_float32_words_or_pairs_of_bf16_with_zeros_behind() {
        let layout = Layout {
            element_type: ElementType::F32,
            depth_multiple: 1,
            queries: 8,
            keys: 4,
            whole_keys: false,
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
    fn the_largest_norm_is_the_euclidean_length_and_infinite_where_a_number_is_not_one() {
        const WIDTH: usize = 37;
        for count in 1..=9 {
            for longest in 0..count {
                let mut rows = vec![0.0; count * WIDTH];
                rows.iter_mut().step_by(WIDTH).for_each(|value| *value = 2.0);
                (rows[longest * WIDTH + 3], rows[longest * WIDTH + 36]) = (6.0, -9.0);
                assert_eq!(largest_norm(&rows, WIDTH), 11.0);
                for wrong in [f32::NAN, f32::INFINITY] {
                    rows[longest * WIDTH + 20] = wrong;
                    assert_eq!(largest_norm(&rows, WIDTH), f32::INFINITY, "{count} rows");
                }
            }
        }
        assert_eq!(largest_norm(&[], WIDTH), 0.0);
    }
}
