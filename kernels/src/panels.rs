//! Rows of a matrix, converted to a kernel's numbers and regrouped so that a register tile reads them in one straight
//! line.

use half::bf16;

use crate::int16;
use crate::kernel::ElementType;

/// How a kernel wants queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// What a word holds.
    pub(crate) element_type: ElementType,
    /// A row's words are padded with zeros to a multiple of this.
    pub(crate) depth_multiple: usize,
    /// Queries of one panel; 0: rows stay as they are.
    pub(crate) query_rows: usize,
    /// Keys of one panel.
    pub(crate) keys: usize,
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

    /// Writes a row times `factor` as words, zeros behind it. The product is rounded to float32, then to the numbers
    /// of the layout. `row`: `[head_dim]`, `words`: `[depth]`.
    #[inline(always)]
    pub(crate) fn convert(&self, row: &mut [f32], factor: Option<f64>, words: &mut [u32]) {
        if let Some(factor) = factor {
            for value in &mut *row {
                *value = (f64::from(*value) * factor) as f32;
            }
        }
        match self.element_type {
            ElementType::F32 => {
                for (word, value) in words.iter_mut().zip(&*row) {
                    *word = value.to_bits();
                }
                words[row.len()..].fill(0);
            }
            ElementType::Bf16 => {
                let (pairs, odd) = row.as_chunks::<2>();
                for (word, [low, high]) in words.iter_mut().zip(pairs) {
                    *word = rounded(*low) | rounded(*high) << 16;
                }
                words[pairs.len()..].fill(0);
                if let [last] = odd {
                    words[pairs.len()] = rounded(*last);
                }
            }
            ElementType::Int16 => int16::round(row, words),
        }
    }
}

/// The bits of the nearest bf16, ties to even; a `NaN` stays one.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    u32::from(bf16::from_f32(value).to_bits())
}

/// Regroups `rows`, `[count, depth]`, into panels of `width` rows, `[⌈count/width⌉, depth, width]`; missing rows are
/// zero. Fills as many panels as `panels` holds.
#[inline(always)]
pub(crate) fn regroup(rows: &[u32], depth: usize, width: usize, panels: &mut [u32]) {
    for (index, panel) in panels.chunks_exact_mut(depth * width).enumerate() {
        for lane in 0..width {
            let row = (index * width + lane) * depth;
            match rows.get(row..row + depth) {
                Some(words) => {
                    for (d, &word) in words.iter().enumerate() {
                        panel[d * width + lane] = word;
                    }
                }
                None => (0..depth).for_each(|d| panel[d * width + lane] = 0),
            }
        }
    }
}

/// As [`regroup`] for float32, from rows that lie `stride` apart and of which `depth` values are taken.
pub(crate) fn pack(rows: &[f32], stride: usize, depth: usize, width: usize, panels: &mut [f32]) {
    let count = rows.len().div_ceil(stride);
    for (index, panel) in panels.chunks_exact_mut(depth * width).enumerate() {
        for lane in 0..width {
            let row = index * width + lane;
            if row < count {
                for (d, &value) in rows[row * stride..][..depth].iter().enumerate() {
                    panel[d * width + lane] = value;
                }
            } else {
                (0..depth).for_each(|d| panel[d * width + lane] = 0.0);
            }
        }
    }
}

/// The Euclidean length of a row, never too small by more than 1e-5 of it; infinite where a number is not finite.
#[inline(always)]
pub(crate) fn norm(row: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (chunks, rest) = row.as_chunks::<16>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value * value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value * value;
    }
    let square = lanes.iter().sum::<f32>();
    if square.is_nan() { f32::INFINITY } else { square.sqrt() }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn panels_hold_each_row_as_a_column_and_zeros_for_the_missing_ones() {
        let rows = [1, 2, 3, 4, 5, 6]; // three rows of two
        let mut panels = [9; 8];
        regroup(&rows, 2, 2, &mut panels);
        assert_eq!(panels, [1, 3, 2, 4, 5, 0, 6, 0]);
    }

    #[test]
    fn a_panel_can_take_a_slice_of_the_depth() {
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // two rows of three, columns 1 and 2 taken
        let mut panels = [9.0; 4];
        pack(&rows[1..], 3, 2, 2, &mut panels);
        assert_eq!(panels, [2.0, 5.0, 3.0, 6.0]);
    }

    #[test]
    fn a_row_becomes_float32_words_or_pairs_of_bf16_with_zeros_behind() {
        let layout =
            Layout { element_type: ElementType::F32, depth_multiple: 1, query_rows: 4, keys: 8 };
        let mut words = [9; 3];
        layout.convert(&mut [1.0, -2.0, 0.5], Some(3.0), &mut words);
        assert_eq!(words.map(f32::from_bits), [3.0, -6.0, 1.5]);
        let layout = Layout { element_type: ElementType::Bf16, depth_multiple: 4, ..layout };
        assert_eq!((layout.depth(3), layout.depth(8), layout.depth(9)), (4, 4, 8));
        let mut words = [9; 4];
        // Both are half way between two bf16 numbers: 1 + 2^-8 goes down to the even one, 1 + 3·2^-8 up.
        layout.convert(&mut [1.0 + 1.0 / 256.0, -2.0, 1.0 + 3.0 / 256.0], None, &mut words);
        assert_eq!(words, [0xC000_3F80, 0x3F82, 0, 0]);
        layout.convert(&mut [f32::NAN, 1.0, f32::INFINITY], None, &mut words);
        assert!(f32::from_bits(words[0] << 16).is_nan() && words[1] == 0x7F80);
    }

    #[test]
    fn a_norm_is_the_euclidean_length_and_infinite_where_a_number_is_not_one() {
        let mut row = [0.0; 37];
        (row[3], row[36]) = (3.0, -4.0);
        assert_eq!(norm(&row), 5.0);
        row[20] = f32::NAN;
        assert_eq!(norm(&row), f32::INFINITY);
        row[20] = f32::INFINITY;
        assert_eq!(norm(&row), f32::INFINITY);
    }
}
