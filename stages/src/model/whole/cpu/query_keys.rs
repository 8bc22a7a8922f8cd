//! Query and key projections of a layer, with their norms and rotation.

use std::ops::Range;

use longsift_kernels::{
    AttentionShape, HeadSums, Kernel, LogitRules, PackedWeights, QueryKeySource, Rope, span_masses,
    statistics_without_sinks,
};
use rayon::prelude::*;

use crate::contract::{LayerAttention, LayersRequest};
use crate::model::norms::RowNorm;
use crate::model::row_steps::clip;
use crate::model::spec::{AttentionSpec, NormScope};
use crate::model::tensors::{Roles, TensorRole};
use crate::model::weights::LayerWeights;

/// Rows that a thread processes at a time.
pub(super) const BLOCK_ROWS: usize = 96;

/// Packs a projection and its bias, if it has one.
pub(super) fn packed(
    weights: &mut LayerWeights,
    kernel: Kernel,
    (weight, bias): Roles,
    inputs: usize,
) -> PackedWeights {
    let (weight, bias) = (weights.take(weight), weights.take(bias));
    PackedWeights::new(kernel, &weight, (!bias.is_empty()).then_some(&bias), inputs)
}

pub(crate) struct QueryKeys<'a> {
    pub(super) spec: &'a AttentionSpec,
    pub(super) kernel: Kernel,
    pub(super) norm: RowNorm,
    query: PackedWeights,
    key: PackedWeights,
    /// With the numbers that share a mean.
    query_norm: Option<(usize, RowNorm)>,
    key_norm: Option<(usize, RowNorm)>,
}

impl<'a> QueryKeys<'a> {
    pub(super) fn new(spec: &'a AttentionSpec, kernel: Kernel, weights: &mut LayerWeights) -> Self {
        let hidden = spec.hidden_size as usize;
        let norm = RowNorm::take(&spec.norm, weights, TensorRole::NORM);
        let query = packed(weights, kernel, TensorRole::QUERY, hidden);
        let key = packed(weights, kernel, TensorRole::KEY, hidden);
        let mut head_norm = |width, roles| {
            let norm = spec.head_norm.as_ref()?;
            let part = match norm.over {
                NormScope::AllHeads => width,
                NormScope::Head | NormScope::EachHead => spec.head_dim as usize,
            };
            Some((part, RowNorm::take(&norm.norm, weights, roles)))
        };
        let query_norm = head_norm(query.outputs(), TensorRole::QUERY_NORM);
        let key_norm = head_norm(key.outputs(), TensorRole::KEY_NORM);
        Self { spec, kernel, norm, query, key, query_norm, key_norm }
    }

    pub(super) fn query_width(&self) -> usize {
        self.query.outputs()
    }

    /// Computes queries, `[rows, query_heads · head_dim]`, of rows from `first` on, given their normalised hidden states.
    pub(super) fn queries(
        &self,
        first: usize,
        normed: &[f32],
        rope: Option<&Rope>,
        out: &mut [f32],
    ) {
        self.query.apply(normed, out);
        self.finish((first, self.query.outputs()), self.query_norm.as_ref(), rope, out);
    }

    /// Computes the keys of rows from `first` on, given their normalised hidden states: `[rows, key_heads · head_dim]`.
    pub(super) fn keys(&self, first: usize, normed: &[f32], rope: Option<&Rope>, out: &mut [f32]) {
        self.key.apply(normed, out);
        self.finish((first, self.key.outputs()), self.key_norm.as_ref(), rope, out);
    }

    /// Clips, normalises and rotates the heads of the rows from `first` on, `width` numbers per row.
    fn finish(
        &self,
        (first, width): (usize, usize),
        norm: Option<&(usize, RowNorm)>,
        rope: Option<&Rope>,
        rows: &mut [f32],
    ) {
        clip(self.spec.clip, rows);
        let head_dim = self.spec.head_dim as usize;
        let after_rope = self.spec.head_norm.as_ref().is_some_and(|norm| norm.after_rope);
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            if let Some((part, norm)) = norm.filter(|_| !after_rope) {
                norm.apply(*part, row);
            }
            if let Some(rope) = rope {
                row.chunks_exact_mut(head_dim).for_each(|head| rope.rotate(first + index, head));
            }
            if let Some((part, norm)) = norm.filter(|_| after_rope) {
                norm.apply(*part, row);
            }
        }
    }

    /// Computes attention sums of a window with the hidden states `state` before this layer.
    pub(super) fn attention(
        &self,
        rope: Option<&Rope>,
        state: &[f32],
        request: &LayersRequest,
    ) -> LayerAttention {
        self.with_source(rope, state, &mut |shape, rules, source| {
            self.sums(shape, rules, source, request)
        })
    }

    /// Passes the shape, rules, queries and keys of such a window to `work`.
    pub(crate) fn with_source<T>(
        &self,
        rope: Option<&Rope>,
        state: &[f32],
        work: &mut dyn FnMut(&AttentionShape, &LogitRules, &dyn QueryKeySource) -> T,
    ) -> T {
        let hidden = self.spec.hidden_size as usize;
        let tokens = state.len() / hidden;
        let shape = self.spec.attention_shape(tokens);
        let mut rules = self.spec.logit_rules(true);
        rules.query_scale = self.spec.query_scales(tokens);
        let (width, key_width) = (self.query.outputs(), self.key.outputs());
        let mut rows = QueryKeyRows {
            head_dim: self.spec.head_dim as usize,
            widths: (width, key_width),
            queries: vec![0.0; tokens * width],
            keys: vec![0.0; tokens * key_width],
        };
        let blocks = rows.queries.par_chunks_mut(BLOCK_ROWS * width);
        let blocks = blocks.zip(rows.keys.par_chunks_mut(BLOCK_ROWS * key_width));
        let blocks = blocks.zip(state.par_chunks(BLOCK_ROWS * hidden)).enumerate();
        blocks.for_each(|(block, ((queries, keys), state))| {
            let normed = self.norm.normalised(hidden, state);
            self.queries(block * BLOCK_ROWS, &normed, rope, queries);
            self.keys(block * BLOCK_ROWS, &normed, rope, keys);
        });
        work(&shape, &rules, &rows)
    }

    fn sums(
        &self,
        shape: &AttentionShape,
        rules: &LogitRules,
        source: &dyn QueryKeySource,
        request: &LayersRequest,
    ) -> LayerAttention {
        let tokens = shape.tokens;
        let distance = request.distance.in_window(tokens as u64) as usize;
        let far = (distance, request.sink_tokens as usize);
        let HeadSums { far_mass, far_square, .. } =
            statistics_without_sinks(self.kernel, shape, rules, far, source, 0..shape.key_heads);
        let context_dependence = request.ladm.as_ref().and_then(|ladm| {
            let spans = ladm.spans(tokens);
            let masses = span_masses(self.kernel, shape, rules, source, &spans);
            ladm.context_dependence(tokens, &spans, &masses)
        });
        LayerAttention { far_mass, far_square, context_dependence }
    }
}

/// The queries and keys of a window, `[tokens, heads, head_dim]`.
struct QueryKeyRows {
    head_dim: usize,
    /// Numbers per row of queries, and of keys.
    widths: (usize, usize),
    queries: Vec<f32>,
    keys: Vec<f32>,
}

impl QueryKeyRows {
    fn copy(&self, all: &[f32], width: usize, head: usize, rows: Range<usize>, out: &mut [f32]) {
        let rows = rows.zip(out.chunks_exact_mut(self.head_dim));
        for (row, out) in rows {
            out.copy_from_slice(&all[row * width + head * self.head_dim..][..self.head_dim]);
        }
    }
}

impl QueryKeySource for QueryKeyRows {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.copy(&self.queries, self.widths.0, head, rows, out);
    }

    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.copy(&self.keys, self.widths.1, head, rows, out);
    }
}
