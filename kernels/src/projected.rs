//! Queries and keys of a window that are projected head by head on request, if a table of whole queries and keys is impossible
//! (learned positions) or too large (a low rank before many heads).

use std::ops::Range;

use crate::gather::TableView;
use crate::project::PackedWeights;
use crate::rope::Rope;
use crate::statistics::QueryKeySource;

/// Rows of numbers by position in the window.
#[derive(Clone, Copy, Debug)]
pub enum WindowRows<'a> {
    /// Row `ids[position]` of a table, `[rows, row_width]`.
    Table {
        table: TableView<'a>,
        row_width: usize,
        /// `[tokens]`, each below the number of rows.
        ids: &'a [u32],
    },
    /// Row `position` of `[tokens, row_width]`.
    Window { rows: &'a [f32], row_width: usize },
}

impl WindowRows<'_> {
    /// Copies `out.len()` numbers of a position's row, from `first` on.
    fn copy(&self, position: usize, first: usize, out: &mut [f32]) {
        match *self {
            Self::Table { table, row_width, ids } => {
                table.copy(ids[position] as usize * row_width + first, out);
            }
            Self::Window { rows, row_width } => {
                out.copy_from_slice(&rows[position * row_width + first..][..out.len()]);
            }
        }
    }
}

/// Computation of queries or keys from the rows.
#[derive(Clone, Debug)]
pub struct ProjectedHeads<'a> {
    /// Index of their first number in a row.
    pub first: usize,
    /// Per head, weights `[numbers of a head before the tail, inputs]`, applied to `inputs` numbers from `first` on;
    /// `None` if the row holds the heads themselves.
    pub heads: Option<&'a [PackedWeights]>,
    /// Every number is clamped to ±`clip`.
    pub clip: Option<f32>,
    /// Range in the row of the numbers that all heads share and end with.
    pub tail: Range<usize>,
}

/// One window whose queries and keys are projected on request: `projected or copied | shared tail`, rotated by the rotary table
/// from its first rotating dimension on.
///
/// Cost: one projection per head and window, `tokens · inputs · head_dim` products for each of queries and keys; no
/// memory beyond a block of rows per thread.
#[derive(Clone, Debug)]
pub struct ProjectedWindow<'a> {
    /// Rows that queries and keys are computed from.
    pub rows: WindowRows<'a>,
    /// Numbers in one query or key.
    pub head_dim: usize,
    pub query: ProjectedHeads<'a>,
    pub key: ProjectedHeads<'a>,
    /// The rotation, if any, and the first rotating dimension.
    pub rope: Option<(&'a Rope, usize)>,
}

impl ProjectedWindow<'_> {
    fn write(&self, part: &ProjectedHeads<'_>, head: usize, rows: Range<usize>, out: &mut [f32]) {
        let tail = part.tail.len();
        let own = self.head_dim - tail;
        if let Some(weights) = part.heads {
            self.project(part, &weights[head], &rows, out);
        } else {
            for (position, out) in rows.clone().zip(out.chunks_exact_mut(self.head_dim)) {
                self.rows.copy(position, part.first + head * own, &mut out[..own]);
            }
        }
        for (position, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            if let Some(clip) = part.clip {
                out[..own].iter_mut().for_each(|value| *value = value.clamp(-clip, clip));
            }
            self.rows.copy(position, part.tail.start, &mut out[own..]);
            if let Some((rope, first)) = self.rope {
                rope.rotate(position, &mut out[first..]);
            }
        }
    }

    fn project(
        &self,
        part: &ProjectedHeads<'_>,
        weights: &PackedWeights,
        rows: &Range<usize>,
        out: &mut [f32],
    ) {
        let (inputs, own) = (weights.inputs(), weights.outputs());
        let mut gathered = vec![0.0; rows.len() * inputs];
        for (position, gathered) in rows.clone().zip(gathered.chunks_exact_mut(inputs)) {
            self.rows.copy(position, part.first, gathered);
        }
        if own == self.head_dim {
            return weights.apply(&gathered, out);
        }
        let mut projected = vec![0.0; rows.len() * own];
        weights.apply(&gathered, &mut projected);
        for (out, projected) in out.chunks_exact_mut(self.head_dim).zip(projected.chunks_exact(own))
        {
            out[..own].copy_from_slice(projected);
        }
    }
}

impl QueryKeySource for ProjectedWindow<'_> {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.write(&self.query, head, rows, out);
    }

    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.write(&self.key, head, rows, out);
    }

    /// Returns all rows, since every call reads the weights.
    fn rows_at_once(&self) -> usize {
        usize::MAX
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use crate::rope::RopeStyle;

    fn packed(weights: &[f32], inputs: usize) -> PackedWeights {
        PackedWeights::new(Kernel::PortableF32, weights, None, inputs)
    }

    /// Returns a window with rows of five numbers: two queries of two numbers, then one latent number of the keys; the
    /// tail is the first query's.
    fn window<'a>(
        rows: WindowRows<'a>,
        keys: &'a [PackedWeights],
        rope: Option<(&'a Rope, usize)>,
    ) -> ProjectedWindow<'a> {
        let query = ProjectedHeads { first: 0, heads: None, clip: None, tail: 0..0 };
        let key = ProjectedHeads { first: 4, heads: Some(keys), clip: None, tail: 1..2 };
        ProjectedWindow { rows, head_dim: 2, query, key, rope }
    }

    #[test]
    fn queries_are_copied_and_keys_projected_before_the_shared_tail() {
        let rows: Vec<f32> = (0..15).map(|value| value as f32).collect();
        let ids = [2, 0, 1];
        let table = WindowRows::Table { table: TableView::F32(&rows), row_width: 5, ids: &ids };
        let keys = [packed(&[10.0], 1), packed(&[100.0], 1)];
        let window = window(table, &keys, None);
        let mut out = [0.0; 4];
        window.queries(1, 0..2, &mut out);
        assert_eq!(out, [12.0, 13.0, 2.0, 3.0]);
        window.keys(0, 1..3, &mut out);
        assert_eq!(out, [40.0, 1.0, 90.0, 6.0]);
        window.keys(1, 1..3, &mut out);
        assert_eq!(out, [400.0, 1.0, 900.0, 6.0]);
    }

    #[test]
    fn window_rows_are_read_by_position_and_clipped_before_the_tail() {
        let rows: Vec<f32> = (0..10).map(|value| value as f32).collect();
        let keys = [packed(&[10.0], 1)];
        let mut window = window(WindowRows::Window { rows: &rows, row_width: 5 }, &keys, None);
        window.key.clip = Some(50.0);
        let mut out = [0.0; 4];
        window.keys(0, 0..2, &mut out);
        assert_eq!(out, [40.0, 1.0, 50.0, 6.0]);
    }

    #[test]
    fn dimensions_before_the_first_rotating_one_are_unchanged() {
        let rows = [1.0, 2.0, 3.0, 4.0].repeat(2);
        let rope = Rope::new(RopeStyle::Half, &[std::f32::consts::FRAC_PI_2], 1.0, 2);
        let part = ProjectedHeads { first: 0, heads: None, clip: None, tail: 0..0 };
        let window = ProjectedWindow {
            rows: WindowRows::Window { rows: &rows, row_width: 4 },
            head_dim: 4,
            query: part.clone(),
            key: part,
            rope: Some((&rope, 2)),
        };
        let mut out = [0.0; 8];
        window.queries(0, 0..2, &mut out);
        assert_eq!(out[..6], [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
        assert!((out[6] + 4.0).abs() < 1e-6 && (out[7] - 3.0).abs() < 1e-6, "{out:?}");
    }
}
