//! Computes rows of the table from embeddings: scale, norm, projection, clip and norms over heads.

use std::ops::Range;

use longsift_kernels::{Kernel, PackedWeights};
use rayon::prelude::*;

use super::norms::RowNorm;
use super::spec::{AttentionSpec, Norm, NormScope, RowContent};
use super::tensors::{Roles, TensorRole};
use super::weights::LayerWeights;

/// All steps of one model, with their weights.
pub(crate) struct RowSteps {
    input: EmbeddingInput,
    hidden_size: usize,
    norm: RowNorm,
    /// Projection to the table's rows; `None` if these are the embeddings.
    projection: Option<PackedWeights>,
    clip: Option<f64>,
    /// Norms over parts of ranges of a row, with the width of a part.
    slice_norms: Vec<(Range<usize>, usize, RowNorm)>,
}

impl RowSteps {
    pub(crate) fn new(spec: &AttentionSpec, kernel: Kernel, weights: &mut LayerWeights) -> Self {
        let hidden_size = spec.hidden_size as usize;
        let projected = spec.row_content() != RowContent::Embedding;
        let input = EmbeddingInput::new(spec, kernel, weights);
        let norm = if projected { &spec.norm } else { &Norm::None };
        let norm = RowNorm::take(norm, weights, TensorRole::NORM);
        let slice_norms = slice_norms(spec, weights);
        let projection = projected.then(|| {
            let (query, key) = first_projections(spec);
            let (weight, bias) = weights.joined(query, key, hidden_size);
            let bias = (!bias.is_empty()).then_some(bias.as_slice());
            PackedWeights::new(kernel, &weight, bias, hidden_size)
        });
        Self { input, hidden_size, norm, projection, clip: spec.clip, slice_norms }
    }

    /// Computes the table's rows from embeddings `[rows, embedding_width]`.
    pub(crate) fn apply(&self, embeddings: Vec<f32>) -> Vec<f32> {
        let mut rows = self.input.apply(embeddings);
        let Some(projection) = &self.projection else {
            return rows;
        };
        let width = self.hidden_size;
        rows.par_chunks_exact_mut(width).for_each(|row| self.norm.apply(width, row));
        let mut table = vec![0.0; rows.len() / width * projection.outputs()];
        projection.apply(&rows, &mut table);
        clip(self.clip, &mut table);
        if !self.slice_norms.is_empty() {
            table.par_chunks_exact_mut(projection.outputs()).for_each(|row| {
                let norms = self.slice_norms.iter();
                norms.for_each(|(range, part, norm)| norm.apply(*part, &mut row[range.clone()]));
            });
        }
        table
    }
}

/// Bounds numbers to `-max..=max`.
pub(crate) fn clip(max: Option<f64>, numbers: &mut [f32]) {
    if let Some(max) = max.map(|max| max as f32) {
        for x in numbers {
            *x = x.clamp(-max, max);
        }
    }
}

/// Steps from stored embeddings to the input of the first layer, without positions.
pub(crate) struct EmbeddingInput {
    width: usize,
    hidden_size: usize,
    multiplier: Option<f64>,
    norm: RowNorm,
    projection: Option<PackedWeights>,
}

impl EmbeddingInput {
    pub(crate) fn new(spec: &AttentionSpec, kernel: Kernel, weights: &mut LayerWeights) -> Self {
        let (width, hidden_size) = (spec.embedding_width() as usize, spec.hidden_size as usize);
        let norm = RowNorm::take(&spec.embedding.norm, weights, TensorRole::EMBEDDING_NORM);
        let projection = weights.take(TensorRole::EmbeddingProjection);
        let projection =
            spec.embedding.width.map(|_| PackedWeights::new(kernel, &projection, None, width));
        Self { width, hidden_size, multiplier: spec.embedding.multiplier, norm, projection }
    }

    /// Computes `[rows, hidden_size]` from embeddings `[rows, embedding_width]`.
    pub(crate) fn apply(&self, mut rows: Vec<f32>) -> Vec<f32> {
        if let Some(multiplier) = self.multiplier {
            for x in &mut rows {
                *x = (f64::from(*x) * multiplier) as f32;
            }
        }
        rows.par_chunks_exact_mut(self.width).for_each(|row| self.norm.apply(self.width, row));
        let Some(projection) = &self.projection else { return rows };
        let mut projected = vec![0.0; rows.len() / self.width * self.hidden_size];
        projection.apply(&rows, &mut projected);
        projected
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

fn slice_norms(
    spec: &AttentionSpec,
    weights: &mut LayerWeights,
) -> Vec<(Range<usize>, usize, RowNorm)> {
    if let Some(latent) = &spec.latent {
        let query = spec.latent_query_width(latent) as usize;
        let key = query..query + latent.key_rank as usize;
        let mut norm = |range: Range<usize>, role| {
            let (norm, part) = (Norm::rms(latent.eps), range.len());
            (range, part, RowNorm { norm, weight: weights.take(role), bias: Vec::new() })
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
        let part = if head_norm.over == NormScope::AllHeads { range.len() } else { head_dim };
        (range, part, RowNorm::take(&head_norm.norm, weights, roles))
    };
    vec![norm(0..queries, TensorRole::QUERY_NORM), norm(queries..row, TensorRole::KEY_NORM)]
}
