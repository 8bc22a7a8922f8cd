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

/// Mismatch of a table and a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A table row does not hold the shape's heads.
    #[error("a table row holds {row_width} numbers, but {query_heads} query and {key_heads} key heads of {head_dim} need {}",
        (query_heads + key_heads) * head_dim)]
    RowWidth { row_width: usize, query_heads: usize, key_heads: usize, head_dim: usize },
    /// The table is not a whole number of rows.
    #[error("a table of {numbers} numbers does not consist of rows of {row_width}")]
    PartialRow {
        /// Numbers of the table.
        numbers: usize,
        row_width: usize,
    },
    /// The window has another number of ids than tokens.
    #[error("expected {tokens} ids for a window of {tokens} tokens, got {ids}")]
    Ids { tokens: usize, ids: usize },
    #[error("id {id} at position {position} is not in the table of {rows} rows")]
    IdOutOfTable { position: usize, id: u32, rows: usize },
    /// The rotary table does not fit.
    #[error(
        "a rotary table of {rope_tokens} positions and {rotary_dims} dimensions does not fit {tokens} tokens of {head_dim}"
    )]
    Rope {
        /// Positions of the rotary table.
        rope_tokens: usize,
        /// Rotating dimensions.
        rotary_dims: usize,
        tokens: usize,
        head_dim: usize,
    },
    /// A head norm has another width than a head.
    #[error("head norms of {query} and {key} weights do not fit heads of {head_dim}")]
    HeadNorms {
        /// Weights for queries.
        query: usize,
        /// Weights for keys.
        key: usize,
        head_dim: usize,
    },
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
    /// the table, `[shape.tokens]`. Without `rope`, rows are not rotated.
    pub fn new(
        table: TableView<'a>,
        row_width: usize,
        ids: &'a [u32],
        shape: &AttentionShape,
        rope: Option<&'a Rope>,
    ) -> Result<Self, GatherError> {
        let &AttentionShape { tokens, query_heads, key_heads, head_dim } = shape;
        if row_width == 0 || row_width != (query_heads + key_heads) * head_dim {
            return Err(GatherError::RowWidth { row_width, query_heads, key_heads, head_dim });
        }
        if !table.len().is_multiple_of(row_width) {
            return Err(GatherError::PartialRow { numbers: table.len(), row_width });
        }
        if ids.len() != tokens {
            return Err(GatherError::Ids { tokens, ids: ids.len() });
        }
        let rows = table.len() / row_width;
        if let Some(position) = ids.iter().position(|&id| id as usize >= rows) {
            return Err(GatherError::IdOutOfTable { position, id: ids[position], rows });
        }
        if let Some(rope) =
            rope.filter(|rope| rope.tokens() < tokens || rope.rotary_dims() > head_dim)
        {
            let (rope_tokens, rotary_dims) = (rope.tokens(), rope.rotary_dims());
            return Err(GatherError::Rope { rope_tokens, rotary_dims, tokens, head_dim });
        }
        Ok(Self { table, row_width, ids, query_heads, head_dim, rope, head_norms: None })
    }

    /// Adds norms that the model applies after the rotation.
    pub fn with_head_norms(mut self, norms: &'a HeadNorms) -> Result<Self, GatherError> {
        let (query, key) = (norms.query_weight.len(), norms.key_weight.len());
        if query != self.head_dim || key != self.head_dim {
            return Err(GatherError::HeadNorms { query, key, head_dim: self.head_dim });
        }
        self.head_norms = Some(norms);
        Ok(self)
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
        let window =
            TableWindow::new(TableView::F32(&table), 6, &[3, 0, 3], &SHAPE, None).expect("it fits");
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
            let window =
                TableWindow::new(TableView::F32(&table), 96, &[3, 0, 2], &shape, Some(&rope))
                    .expect("it fits");
            let mut together = [0.0; 128];
            window.queries_of_heads(0..2, 1..3, 3, &mut together);
            for (at, of_head) in together.chunks_exact(32).enumerate() {
                let mut alone = [0.0; 32];
                let position = 1 + at / 2;
                window.queries(at % 2, position..position + 1, &mut alone);
                assert_eq!(of_head, alone, "{style:?} {pairs} {at}");
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
        let wide = TableWindow::new(TableView::F32(&table), 6, &[1, 2, 3], &SHAPE, Some(&rope))
            .expect("it fits");
        let bf16 = TableWindow::new(TableView::Bf16(&narrow), 6, &[1, 2, 3], &SHAPE, Some(&rope))
            .expect("it fits");
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
        let window = TableWindow::new(TableView::F32(&table), 6, &[1, 2, 3], &SHAPE, Some(&rope))
            .and_then(|window| window.with_head_norms(&norms))
            .expect("it fits");
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
    fn mismatches_are_reported_with_their_sizes() {
        let (table, rope) = (table(), Rope::new(RopeStyle::Half, &[1.0, 0.5], 1.0, 3));
        let view = TableView::F32(&table);
        let message = |result: Result<TableWindow<'_>, GatherError>| {
            result.expect_err("it does not fit").to_string()
        };
        assert_eq!(
            message(TableWindow::new(view, 6, &[0, 4, 1], &SHAPE, None)),
            "id 4 at position 1 is not in the table of 4 rows"
        );
        assert_eq!(
            message(TableWindow::new(view, 8, &[0, 1, 1], &SHAPE, None)),
            "a table row holds 8 numbers, but 2 query and 1 key heads of 2 need 6"
        );
        assert_eq!(
            message(TableWindow::new(view, 6, &[0, 1], &SHAPE, None)),
            "expected 3 ids for a window of 3 tokens, got 2"
        );
        assert_eq!(
            message(TableWindow::new(view, 6, &[0, 1, 2], &SHAPE, Some(&rope))),
            "a rotary table of 3 positions and 4 dimensions does not fit 3 tokens of 2"
        );
        assert_eq!(
            message(TableWindow::new(TableView::F32(&table[1..]), 6, &[0, 1, 2], &SHAPE, None)),
            "a table of 23 numbers does not consist of rows of 6"
        );
    }
}
