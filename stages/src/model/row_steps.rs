//! Computes rows of the table from embeddings: scale, norm, projection, clip and norms over heads.

use std::ops::Range;

use longsift_kernels::{Kernel, PackedWeights};
use rayon::prelude::*;

use super::norms::{GroupNorm, RowNorm};
use super::spec::{AttentionSpec, Norm, NormScope, RowContent};
use super::tensors::{Roles, TensorRole};
use super::weights::LayerWeights;

/// All steps of one model, with their weights.
pub(crate) struct RowSteps {
    embedding_width: usize,
    hidden_size: usize,
    multiplier: Option<f64>,
    embedding_norm: RowNorm,
    embedding_projection: Option<PackedWeights>,
    norm: RowNorm,
    /// Projection to the table's rows; `None` if these are the embeddings.
    projection: Option<PackedWeights>,
    clip: Option<f32>,
    /// Norms over ranges of a row.
    slice_norms: Vec<(Range<usize>, GroupNorm)>,
}

impl RowSteps {
    pub(crate) fn new(spec: &AttentionSpec, kernel: Kernel, weights: &mut LayerWeights) -> Self {
        let hidden_size = spec.hidden_size as usize;
        let embedding_width = spec.embedding_width() as usize;
        let projected = spec.row_content() != RowContent::Embedding;
        let embedding_norm =
            RowNorm::take(&spec.embedding.norm, weights, TensorRole::EMBEDDING_NORM);
        let norm = if projected { &spec.norm } else { &Norm::None };
        let norm = RowNorm::take(norm, weights, TensorRole::NORM);
        let pack = |weight: Vec<f32>, bias: Vec<f32>, inputs| {
            let bias = (!bias.is_empty()).then_some(bias.as_slice());
            PackedWeights::new(kernel, &weight, bias, inputs)
        };
        let embedding_projection = spec.embedding.width.map(|width| {
            pack(weights.take(TensorRole::EmbeddingProjection), Vec::new(), width as usize)
        });
        let slice_norms = slice_norms(spec, weights);
        let projection = projected.then(|| {
            let (query, key) = first_projections(spec);
            let (weight, bias) = weights.joined(query, key, hidden_size);
            pack(weight, bias, hidden_size)
        });
        Self {
            embedding_width,
            hidden_size,
            multiplier: spec.embedding.multiplier,
            embedding_norm,
            embedding_projection,
            norm,
            projection,
            clip: spec.clip.map(|clip| clip as f32),
            slice_norms,
        }
    }

    /// Computes the table's rows from embeddings `[rows, embedding_width]`.
    pub(crate) fn apply(&self, mut rows: Vec<f32>) -> Vec<f32> {
        let count = rows.len() / self.embedding_width;
        if let Some(multiplier) = self.multiplier {
            for x in &mut rows {
                *x = (f64::from(*x) * multiplier) as f32;
            }
        }
        let width = self.embedding_width;
        rows.par_chunks_exact_mut(width).for_each(|row| self.embedding_norm.apply(width, row));
        if let Some(projection) = &self.embedding_projection {
            let mut projected = vec![0.0; count * self.hidden_size];
            projection.apply(&rows, &mut projected);
            rows = projected;
        }
        let Some(projection) = &self.projection else {
            return rows;
        };
        let width = self.hidden_size;
        rows.par_chunks_exact_mut(width).for_each(|row| self.norm.apply(width, row));
        let mut table = vec![0.0; count * projection.outputs()];
        projection.apply(&rows, &mut table);
        if let Some(clip) = self.clip {
            for x in &mut table {
                *x = x.clamp(-clip, clip);
            }
        }
        if !self.slice_norms.is_empty() {
            table.par_chunks_exact_mut(projection.outputs()).for_each(|row| {
                let norms = self.slice_norms.iter();
                norms.for_each(|(range, norm)| norm.apply(&mut row[range.clone()]));
            });
        }
        table
    }
}

/// Returns the projections of the hidden state (weight, bias) that form a row.
fn first_projections(spec: &AttentionSpec) -> (Roles, Roles) {
    match &spec.latent {
        None => (TensorRole::QUERY, TensorRole::KEY),
        Some(latent) if latent.query_rank.is_none() => (TensorRole::QUERY, TensorRole::KEY_DOWN),
        Some(_) => (TensorRole::QUERY_DOWN, TensorRole::KEY_DOWN),
    }
}

fn slice_norms(spec: &AttentionSpec, weights: &mut LayerWeights) -> Vec<(Range<usize>, GroupNorm)> {
    if let Some(latent) = &spec.latent {
        let query = spec.latent_query_width(latent) as usize;
        let key = query..query + latent.key_rank as usize;
        let mut norm = |range: Range<usize>, role| {
            let (norm, group) = (Norm::Rms { eps: latent.eps, offset: 0.0 }, range.len());
            (range, GroupNorm { norm, group, weight: weights.take(role), bias: Vec::new() })
        };
        let key = norm(key, TensorRole::KeyDownNorm);
        let query = latent.query_rank.map(|_| norm(0..query, TensorRole::QueryDownNorm));
        return query.into_iter().chain([key]).collect();
    }
    let Some(head_norm) = spec.head_norm.as_ref().filter(|norm| !norm.after_rope) else {
        return Vec::new();
    };
    let head_dim = spec.head_dim as usize;
    let queries = spec.query_heads as usize * head_dim;
    let row = queries + spec.key_heads as usize * head_dim;
    let mut norm = |range: Range<usize>, roles| {
        let group = if head_norm.over == NormScope::AllHeads { range.len() } else { head_dim };
        (range, GroupNorm::take(&head_norm.norm, group, weights, roles))
    };
    vec![norm(0..queries, TensorRole::QUERY_NORM), norm(queries..row, TensorRole::KEY_NORM)]
}
