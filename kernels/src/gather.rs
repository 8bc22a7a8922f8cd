//! Queries and keys of a window, gathered from a layer-zero table by token id.

use std::ops::Range;

use half::bf16;

use crate::norm::rms_norm;
use crate::rope::Rope;
use crate::simd_op::{SimdOp, prefetch, run};
use crate::statistics::{AttentionShape, QueryKeySource};
use crate::transpose::Transpose;

/// The rows of a layer-zero table: `[rows, row_width]`, a row being all query heads, then all key heads.
#[derive(Clone, Copy, Debug)]
pub enum TableView<'a> {
    F32(&'a [f32]),
    /// Half the bytes; widened to float32 while gathering.
    Bf16(&'a [bf16]),
}

impl TableView<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prefetches `count` numbers from `start` on.
    #[inline(always)]
    fn prefetch(&self, start: usize, count: usize) {
        match self {
            Self::F32(values) => prefetch(&values[start..][..count]),
            Self::Bf16(values) => prefetch(&values[start..][..count]),
        }
    }

    /// Copies `out.len()` numbers from `start` on, widened to float32.
    pub fn copy(&self, start: usize, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(&values[start..][..out.len()]),
            Self::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[start..]) {
                    *out = value.to_f32();
                }
            }
        }
    }
}

/// An RMS norm over each head after the rotation (Hunyuan): `x / √(mean(x²) + epsilon) · weight`.
#[derive(Clone, Debug)]
pub struct HeadNorms {
    /// Added to the mean square.
    pub epsilon: f64,
    /// `[head_dim]`, of every query head.
    pub query_weight: Vec<f32>,
    /// `[head_dim]`, of every key head.
    pub key_weight: Vec<f32>,
}

/// One window's view of a layer-zero table: rows by id, rotated by their position.
#[derive(Clone, Debug)]
pub struct TableWindow<'a> {
    table: TableView<'a>,
    row_width: usize,
    ids: &'a [u32],
    query_heads: usize,
    head_dim: usize,
    rope: Option<&'a Rope>,
    head_norms: Option<&'a HeadNorms>,
}

impl<'a> TableWindow<'a> {
    /// Checks once that every id has a row and everything fits, so that gathering cannot fail. `ids`: row indices of
    /// the table, `[shape.tokens]`. Without `rope`, rows are not rotated; `norms` are applied after the rotation.
    ///
    /// # Panics
    /// If table, ids, rotary table or norms do not fit the shape.
    pub fn new(
        table: TableView<'a>,
        row_width: usize,
        ids: &'a [u32],
        shape: &AttentionShape,
        rope: Option<&'a Rope>,
        head_norms: Option<&'a HeadNorms>,
    ) -> Self {
        let &AttentionShape { tokens, query_heads, key_heads, head_dim } = shape;
        assert_eq!(
            row_width,
            (query_heads + key_heads) * head_dim,
            "a row holds all heads: {shape:?}"
        );
        assert!(table.len().is_multiple_of(row_width), "the table consists of rows of {row_width}");
        assert_eq!(ids.len(), tokens, "one id per token");
        let rows = table.len() / row_width;
        assert!(ids.iter().all(|&id| (id as usize) < rows), "ids are rows of a table of {rows}");
        if let Some(rope) = rope {
            assert!(
                rope.tokens() >= tokens && rope.rotary_dims() <= head_dim,
                "rotations of {shape:?}"
            );
        }
        if let Some(norms) = head_norms {
            let weights = [norms.query_weight.len(), norms.key_weight.len()];
            assert_eq!(weights, [head_dim; 2], "weights of a head's norms");
        }
        Self { table, row_width, ids, query_heads, head_dim, rope, head_norms }
    }

    /// Writes heads `columns` of a row for each of `positions`, rotated: `[positions, columns, head_dim]`.
    fn gather(
        &self,
        columns: Range<usize>,
        positions: Range<usize>,
        end: usize,
        norm: Option<(f64, &[f32])>,
        out: &mut [f32],
    ) {
        run(GatherPass { window: self, columns, positions, end, norm, out });
    }
}

/// Rows to prefetch while one is rotated: they are scattered over the table.
const ROWS_AHEAD: usize = 8;

/// Pass that gathers and rotates rows.
struct GatherPass<'a, 'b> {
    window: &'a TableWindow<'b>,
    columns: Range<usize>,
    positions: Range<usize>,
    /// Positions up to this one will be requested next; 0 if unknown.
    end: usize,
    norm: Option<(f64, &'a [f32])>,
    out: &'a mut [f32],
}

impl SimdOp for GatherPass<'_, '_> {
    type Result = ();

    #[inline(always)]
    fn run(self, _: impl Transpose) {
        let Self { window, columns, positions, end, norm, out } = self;
        let TableWindow { table, row_width, ids, head_dim, rope, .. } = *window;
        let (of_row, end) = (columns.len() * head_dim, end.max(positions.end));
        let first = |position: usize| ids[position] as usize * row_width + columns.start * head_dim;
        for (position, out) in positions.zip(out.chunks_exact_mut(of_row)) {
            let ahead = position + ROWS_AHEAD;
            if ahead < end {
                table.prefetch(first(ahead), of_row);
            }
            let first = first(position);
            match (table, rope) {
                (TableView::F32(values), Some(rope)) if rope.turns_vectors() => {
                    rope.turn_heads(position, &values[first..][..of_row], head_dim, out);
                }
                (table, rope) => {
                    table.copy(first, out);
                    if let Some(rope) = rope {
                        out.chunks_exact_mut(head_dim).for_each(|out| rope.turn(position, out));
                    }
                }
            }
        }
        if let Some((epsilon, weight)) = norm {
            for out in out.chunks_exact_mut(head_dim) {
                rms_norm(out, epsilon, weight, 0.0);
            }
        }
    }
}

impl QueryKeySource for TableWindow<'_> {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.queries_of_heads(head..head + 1, rows, 0, out);
    }

    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        let norm = self.head_norms.map(|norms| (norms.epsilon, &norms.key_weight[..]));
        let column = self.query_heads + head;
        self.gather(column..column + 1, rows, 0, norm, out);
    }

    fn queries_of_heads(
        &self,
        heads: Range<usize>,
        rows: Range<usize>,
        end: usize,
        out: &mut [f32],
    ) {
        let norm = self.head_norms.map(|norms| (norms.epsilon, &norms.query_weight[..]));
        self.gather(heads, rows, end, norm, out);
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;
    use crate::rope::RopeStyle;

    const SHAPE: AttentionShape =
        AttentionShape { tokens: 3, query_heads: 2, key_heads: 1, head_dim: 2 };

    fn table() -> Vec<f32> {
        (0..24).map(|value| value as f32).collect() // four rows of six
    }

    #[test]
    fn rows_are_read_by_id_with_queries_before_keys() {
        let table = table();
        let window = TableWindow::new(TableView::F32(&table), 6, &[3, 0, 3], &SHAPE, None, None);
        let mut out = [0.0; 4];
        window.queries(1, 0..2, &mut out);
        assert_eq!(out, [20.0, 21.0, 2.0, 3.0]);
        window.keys(0, 1..3, &mut out);
        assert_eq!(out, [4.0, 5.0, 22.0, 23.0]);
    }

    #[test]
    fn several_heads_equal_single_heads() {
        let table: Vec<f32> = (0..4 * 96).map(|value| value as f32).collect();
        let shape = AttentionShape { head_dim: 32, ..SHAPE };
        let frequencies: Vec<f32> = (1..=16).map(|pair| 1.0 / pair as f32).collect();
        for (style, pairs) in
            [(RopeStyle::Half, 16), (RopeStyle::Half, 1), (RopeStyle::Interleaved, 16)]
        {
            let rope = Rope::new(style, &frequencies[..pairs], 1.0, 3);
            let view = TableView::F32(&table);
            let window = TableWindow::new(view, 96, &[3, 0, 2], &shape, Some(&rope), None);
            let mut together = [0.0; 128];
            window.queries_of_heads(0..2, 1..3, 3, &mut together);
            for (at, of_head) in together.chunks_exact(32).enumerate() {
                let mut single = [0.0; 32];
                let position = 1 + at / 2;
                window.queries(at % 2, position..position + 1, &mut single);
                assert_eq!(of_head, single, "{style:?} {pairs} {at}");
            }
        }
    }

    #[test]
    fn sources_of_single_heads_provide_several_heads() {
        struct Numbered;
        impl QueryKeySource for Numbered {
            fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
                for (row, out) in rows.zip(out.chunks_exact_mut(2)) {
                    out.copy_from_slice(&[head as f32, row as f32]);
                }
            }
            fn keys(&self, _: usize, _: Range<usize>, _: &mut [f32]) {}
        }
        let mut out = [9.0; 8];
        Numbered.queries_of_heads(4..6, 7..9, 9, &mut out);
        assert_eq!(out, [4.0, 7.0, 5.0, 7.0, 4.0, 8.0, 5.0, 8.0]);
    }

    #[test]
    fn bf16_tables_are_widened_and_rotated() {
        let (table, rope) = (table(), Rope::new(RopeStyle::Half, &[1.0], 1.0, 3));
        let narrow: Vec<bf16> = table.iter().map(|&value| bf16::from_f32(value)).collect();
        let window = |view| TableWindow::new(view, 6, &[1, 2, 3], &SHAPE, Some(&rope), None);
        let (wide, bf16) = (window(TableView::F32(&table)), window(TableView::Bf16(&narrow)));
        let (mut a, mut b) = ([0.0; 6], [0.0; 6]);
        wide.queries(0, 0..3, &mut a);
        bf16.queries(0, 0..3, &mut b);
        assert_eq!(a, b); // integers below 256 are exact in bf16
        assert!((a[2] - (12.0 * 1.0_f32.cos() - 13.0 * 1.0_f32.sin())).abs() < 1e-5);
    }

    #[test]
    fn head_norms_follow_the_rotation() {
        let (table, rope) = (table(), Rope::new(RopeStyle::Half, &[1.0], 1.0, 3));
        let norms =
            HeadNorms { epsilon: 0.0, query_weight: vec![1.0, 3.0], key_weight: vec![0.0, 0.0] };
        let (view, ids) = (TableView::F32(&table), &[1, 2, 3]);
        let window = TableWindow::new(view, 6, ids, &SHAPE, Some(&rope), Some(&norms));
        let (mut out, mut keys) = ([0.0; 2], [9.0; 2]);
        window.queries(0, 1..2, &mut out);
        window.keys(0, 1..2, &mut keys);
        let (x, y) = (12.0_f32, 13.0_f32);
        let root = (x * x + y * y).sqrt() / 2.0_f32.sqrt();
        let (sin, cos) = 1.0_f32.sin_cos();
        assert!((out[0] - (x * cos - y * sin) / root).abs() < 1e-6, "{out:?}");
        assert!((out[1] - 3.0 * (y * cos + x * sin) / root).abs() < 1e-6, "{out:?}");
        assert_eq!(keys, [0.0, 0.0]);
    }

    #[test]
    fn mismatches_are_refused() {
        let (table, rope) = (table(), Rope::new(RopeStyle::Half, &[1.0, 0.5], 1.0, 3));
        let refused = |table: &[f32], width, ids: &[u32], rope| {
            let view = TableView::F32(table);
            std::panic::catch_unwind(|| TableWindow::new(view, width, ids, &SHAPE, rope, None))
                .is_err()
        };
        assert!(!refused(&table, 6, &[0, 3, 1], None), "it fits");
        assert!(refused(&table, 6, &[0, 4, 1], None), "an id beyond the table");
        assert!(refused(&table, 8, &[0, 1, 1], None), "a row of another width");
        assert!(refused(&table, 6, &[0, 1], None), "too few ids");
        assert!(
            refused(&table, 6, &[0, 1, 2], Some(&rope)),
            "more rotating dimensions than a head"
        );
        assert!(refused(&table[1..], 6, &[0, 1, 2], None), "a part of a row");
    }
}
