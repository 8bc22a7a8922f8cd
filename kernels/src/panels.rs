//! Rows of a matrix, regrouped so that a register tile reads them in one straight line.

/// Copies `rows` (`[count, depth]`) into panels of `width` rows: `[⌈count/width⌉, depth, width]`, missing rows zero.
///
/// `factors` multiplies row `r` by `factors(r)`, in float64 so that the product is rounded once.
pub(crate) fn pack_scaled(
    rows: &[f32],
    depth: usize,
    width: usize,
    factor: impl Fn(usize) -> f64,
    panels: &mut [f32],
) {
    for (index, panel) in panels.chunks_exact_mut(depth * width).enumerate() {
        for lane in 0..width {
            let row = index * width + lane;
            match rows.get(row * depth..(row + 1) * depth) {
                Some(values) => {
                    let factor = factor(row);
                    for (d, &value) in values.iter().enumerate() {
                        panel[d * width + lane] = (f64::from(value) * factor) as f32;
                    }
                }
                None => (0..depth).for_each(|d| panel[d * width + lane] = 0.0),
            }
        }
    }
}

/// As [`pack_scaled`] without a factor, from rows that lie `stride` apart and of which `depth` values are taken.
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

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn panels_hold_each_row_as_a_column_and_zeros_for_the_missing_ones() {
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // three rows of two
        let mut panels = [9.0; 8];
        pack(&rows, 2, 2, 2, &mut panels);
        assert_eq!(panels, [1.0, 3.0, 2.0, 4.0, 5.0, 0.0, 6.0, 0.0]);
        pack_scaled(&rows, 2, 2, |row| row as f64, &mut panels);
        assert_eq!(panels, [0.0, 3.0, 0.0, 4.0, 10.0, 0.0, 12.0, 0.0]);
    }

    #[test]
    fn a_panel_can_take_a_slice_of_the_depth() {
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // two rows of three, columns 1 and 2 taken
        let mut panels = [9.0; 4];
        pack(&rows[1..], 3, 2, 2, &mut panels);
        assert_eq!(panels, [2.0, 5.0, 3.0, 6.0]);
    }
}
