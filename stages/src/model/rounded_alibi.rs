//! Linear biases as Falcon computes them: slope times position, rounded to bf16.
//!
//! The kernels' biases are linear. What the rounding adds depends on head and key alone, so it becomes one more
//! dimension: 1 in every query, the difference in the key. The softmax does not see what all keys of a row share.

use std::ops::Range;

use half::bf16;
use longsift_kernels::{AttentionShape, QueryKeySource};

use super::spec::{LayerZeroSpec, widened_shape};

/// Queries and keys with one more dimension. Every query head has keys of its own, because its slope is its own.
pub(crate) struct RoundedAlibi<'a> {
    source: &'a dyn QueryKeySource,
    head_dim: usize,
    group: usize,
    /// Per query head, what one position adds to a logit.
    slopes: &'a [f64],
    scale: f64,
}

/// What the rounding adds to the logit of each key, `[query_heads, tokens]`; `None` where the model does not round.
pub(crate) fn rounding_offsets(spec: &LayerZeroSpec, tokens: usize) -> Option<Vec<f32>> {
    let slopes = spec.alibi_slopes.as_deref().filter(|_| spec.alibi_rounded)?;
    let of_head = |slope: &f64| {
        let (slope, scale) = (*slope / spec.scale, spec.scale);
        (0..tokens).map(move |position| (rounding(slope, position) * scale) as f32)
    };
    Some(slopes.iter().flat_map(of_head).collect())
}

/// By how much the rounded product of slope and position is off.
fn rounding(slope: f64, position: usize) -> f64 {
    let exact = slope * position as f64;
    f64::from(bf16::from_f32(exact as f32).to_f32()) - exact
}

impl<'a> RoundedAlibi<'a> {
    /// The source and its shape, or `None` where the model does not round.
    pub(crate) fn new(
        spec: &'a LayerZeroSpec,
        shape: &AttentionShape,
        source: &'a dyn QueryKeySource,
    ) -> Option<(Self, AttentionShape)> {
        let slopes = spec.alibi_slopes.as_deref().filter(|_| spec.alibi_rounded)?;
        let (head_dim, group, scale) = (shape.head_dim, shape.group(), spec.scale);
        Some((Self { source, head_dim, group, slopes, scale }, widened_shape(shape)))
    }

    /// What the rounding adds to the product of a query with the key at `position`: slopes are scaled after it.
    fn difference(&self, head: usize, position: usize) -> f32 {
        rounding(self.slopes[head] / self.scale, position) as f32
    }

    fn widen(&self, narrow: &[f32], out: &mut [f32], last: impl Fn(usize) -> f32) {
        let rows = narrow.chunks_exact(self.head_dim).zip(out.chunks_exact_mut(self.head_dim + 1));
        for (index, (narrow, out)) in rows.enumerate() {
            out[..self.head_dim].copy_from_slice(narrow);
            out[self.head_dim] = last(index);
        }
    }
}

impl QueryKeySource for RoundedAlibi<'_> {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        let mut narrow = vec![0.0; rows.len() * self.head_dim];
        self.source.queries(head, rows, &mut narrow);
        self.widen(&narrow, out, |_| 1.0);
    }

    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        let mut narrow = vec![0.0; rows.len() * self.head_dim];
        let first = rows.start;
        self.source.keys(head / self.group, rows, &mut narrow);
        self.widen(&narrow, out, |index| self.difference(head, first + index));
    }

    fn rows_at_once(&self) -> usize {
        self.source.rows_at_once()
    }
}
