//! Register tiles: products of a few queries and a few keys, the only part that differs between kernels.
//!
//! The register tile of the float32 kernels is a few keys times a few vectors of queries. Its shape changes the speed but no
//! bit: an element is one running sum over the depth, ascending.

use crate::online_softmax::{Logits, STRIP_ROWS};
use crate::panels::{Layout, floats};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Degree5};
#[cfg(target_arch = "aarch64")]
use crate::simd::{Neon, Twice};
use crate::simd::{Portable, Simd};

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod int16;

/// Keys of a tile, which stays in the second-level cache; a multiple of every chunk's keys.
pub(crate) const TILE_KEYS: usize = 288;
pub(crate) const MAX_CHUNK_KEYS: usize = 32;

/// Register tile of a kernel.
pub(crate) trait Tile: Copy {
    /// Vectors of the softmax.
    type Simd: Simd;
    /// Processor state of this thread while it computes products.
    type Session;
    /// Keys whose logits are in memory at once, whole panels: they stay in the first-level cache. It affects bits, because the
    /// exponentials of a chunk are added up before those of different chunks are.
    const CHUNK_KEYS: usize;
    /// Rows of a strip that share decisions on masks and offsets, a multiple of the vector's lanes: two vectors of the kernel are
    /// best. It affects bits, as [`Self::CHUNK_KEYS`] does.
    const GROUP_ROWS: usize;

    /// Returns the proof that the processor has the vectors.
    fn simd(self) -> Self::Simd;
    fn layout(self) -> Layout;
    /// Prepares this thread for products.
    fn begin(self) -> Self::Session;
    /// Computes the products of one panel of keys with `rows` queries of a strip, whose panels are in `queries`; logits of rows
    /// from `rows` on are undefined.
    fn multiply(
        self,
        session: &mut Self::Session,
        keys: &[u32],
        queries: &[u32],
        rows: usize,
        logits: &mut Logits,
    );
}

/// Float32 numbers, a register tile of `ROWS · VECTORS` vectors.
#[derive(Clone, Copy)]
pub(crate) struct Floats<S, const ROWS: usize, const VECTORS: usize>(S);

impl<S: Simd, const ROWS: usize, const VECTORS: usize> Floats<S, ROWS, VECTORS> {
    #[inline(always)]
    pub(crate) fn new(simd: S) -> Self {
        Self(simd)
    }
}

/// The portable tile: 8 accumulators of the 16 registers that every `x86_64` has.
pub(crate) type PortableTile = Floats<Portable, 4, 1>;
/// The AVX2 tile: 12 accumulators, two columns and one row value fill its 16 registers.
#[cfg(target_arch = "x86_64")]
pub(crate) type Avx2Tile = Floats<Avx2, 6, 2>;
/// The AVX-512 tile: 24 accumulators of its 32 registers.
#[cfg(target_arch = "x86_64")]
pub(crate) type Avx512Tile = Floats<Avx512<Degree5>, 12, 2>;

/// The NEON tile: 24 accumulators of its 32 registers. Its vectors have as many lanes as AVX2's, so its sums have the same bits.
#[cfg(target_arch = "aarch64")]
pub(crate) type NeonTile = Floats<Twice<Neon>, 6, 2>;

impl<S: Simd, const ROWS: usize, const VECTORS: usize> Tile for Floats<S, ROWS, VECTORS> {
    type Simd = S;
    type Session = ();
    const CHUNK_KEYS: usize = 24;
    const GROUP_ROWS: usize = if S::LANES < 16 { 16 } else { STRIP_ROWS };

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }

    #[inline(always)]
    fn layout(self) -> Layout {
        floats(ROWS, VECTORS * S::LANES)
    }

    #[inline(always)]
    fn begin(self) {}

    #[inline(always)]
    fn multiply(
        self,
        (): &mut (),
        keys: &[u32],
        queries: &[u32],
        rows: usize,
        logits: &mut Logits,
    ) {
        let width = VECTORS * S::LANES;
        let depth = keys.len() / ROWS;
        let (keys, queries) = (bytemuck::cast_slice(keys), bytemuck::cast_slice(queries));
        let panels = queries.chunks_exact(depth * width).take(rows.div_ceil(width));
        // With a known length, they are written from registers.
        let logits = &mut logits[..ROWS];
        for (panel, queries) in panels.enumerate() {
            let products = multiply::<S, ROWS, VECTORS>(self.0, keys, queries);
            for (logits, products) in logits.iter_mut().zip(&products) {
                let logits = &mut logits[panel * width..][..width];
                for (index, product) in products.iter().enumerate() {
                    self.0.store(*product, &mut logits[index * S::LANES..]);
                }
            }
        }
    }
}

/// Computes `tile[r][c] = Σ_d rows[d, r] · columns[d, c]`, `d` ascending.
///
/// `rows`: `[depth, ROWS]`, `columns`: `[depth, VECTORS · LANES]`.
#[inline(always)]
pub(crate) fn multiply<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    rows: &[f32],
    columns: &[f32],
) -> [[S::Vector; VECTORS]; ROWS] {
    let mut tile = [[simd.splat(0.0); VECTORS]; ROWS];
    let rows = rows.as_chunks::<ROWS>().0;
    for (row, columns) in rows.iter().zip(columns.chunks_exact(VECTORS * S::LANES)) {
        let mut column = [simd.splat(0.0); VECTORS];
        for (index, column) in column.iter_mut().enumerate() {
            *column = simd.load(&columns[index * S::LANES..]);
        }
        for (row, tile) in row.iter().zip(&mut tile) {
            let row = simd.splat(*row);
            for (column, sum) in column.iter().zip(tile) {
                *sum = simd.mul_add(row, *column, *sum);
            }
        }
    }
    tile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_of_any_height_give_the_same_bits() {
        let value = |d: usize, n: usize| ((d * 31 + n * 17) as f32 * 0.618).sin();
        let depth = 37;
        let panel = |width: usize, shift: usize| -> Vec<f32> {
            (0..depth * width).map(|index| value(index / width, index % width + shift)).collect()
        };
        let width = 2 * Portable::LANES;
        let tile = multiply::<_, 6, 2>(Portable, &panel(6, 3), &panel(width, 50));
        for (r, row) in tile.iter().enumerate() {
            for (c, value) in row.as_flattened().iter().enumerate() {
                let single = multiply::<_, 1, 1>(
                    Portable,
                    &panel(1, r + 3),
                    &panel(Portable::LANES, c + 50),
                );
                assert_eq!(value.to_bits(), single[0][0][0].to_bits());
            }
        }
    }
}
