//! The register tile: a few rows times a few columns, summed over the depth in a fixed order.
//!
//! Bodies are generic and `#[inline(always)]`, so that each kernel compiles them again with its own instructions; the
//! shape of a tile changes the speed, never a bit: an element is one running sum over the depth in ascending order.

/// Height of the portable tile: 8 accumulators of the 16 registers that every `x86_64` has.
pub(crate) const PORTABLE_ROWS: usize = 4;
/// Width of the portable tile.
pub(crate) const PORTABLE_COLUMNS: usize = 8;
/// Height of the AVX2 tile: 12 accumulators, two columns and one row value fill its 16 registers.
pub(crate) const AVX2_ROWS: usize = 6;
/// Width of the AVX2 tile.
pub(crate) const AVX2_COLUMNS: usize = 16;

/// How a product is added: the one difference in rounding between kernels.
pub(crate) trait Arithmetic {
    /// `a·b + c`.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// Multiply, round, add, round.
pub(crate) struct Plain;

/// Multiply and add with one rounding; fast only where the processor has the instruction.
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) struct Fused;

impl Arithmetic for Plain {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

#[cfg(any(target_arch = "x86_64", test))]
impl Arithmetic for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// `tile[r][c] = Σ_d rows[d, r] · columns[d, c]`, `d` ascending. `rows`: `[depth, ROWS]`, `columns`: `[depth, COLUMNS]`.
#[inline(always)]
pub(crate) fn multiply<A: Arithmetic, const ROWS: usize, const COLUMNS: usize>(
    rows: &[f32],
    columns: &[f32],
) -> [[f32; COLUMNS]; ROWS] {
    let mut tile = [[0.0; COLUMNS]; ROWS];
    for (row, column) in rows.as_chunks::<ROWS>().0.iter().zip(columns.as_chunks::<COLUMNS>().0) {
        for r in 0..ROWS {
            for c in 0..COLUMNS {
                tile[r][c] = A::mul_add(row[r], column[c], tile[r][c]);
            }
        }
    }
    tile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_any_shape_give_the_same_bits() {
        let value = |d: usize, n: usize| ((d * 31 + n * 17) as f32 * 0.618).sin();
        let depth = 37;
        let narrow = |n: usize| -> Vec<f32> { (0..depth).map(|d| value(d, n)).collect() };
        let wide = |width: usize, shift: usize| -> Vec<f32> {
            (0..depth * width).map(|index| value(index / width, index % width + shift)).collect()
        };
        let tile = multiply::<Plain, 6, 16>(&wide(6, 3), &wide(16, 50));
        for (r, row) in tile.iter().enumerate() {
            for (c, value) in row.iter().enumerate() {
                let single = multiply::<Plain, 1, 1>(&narrow(r + 3), &narrow(c + 50));
                assert_eq!(value.to_bits(), single[0][0].to_bits());
            }
        }
    }
}
