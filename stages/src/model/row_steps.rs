//! Computes rows of the table from embeddings: scale, norm, projection, clip and norms over heads.

use std::ops::Range;

use longsift_kernels::{Kernel, PackedWeights};
use rayon::prelude::*;

use super::norm::normalise;
use super::spec::{AttentionSpec, Norm, NormScope, RowContent};
use super::tensors::TensorRole;
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
    slice_norms: Vec<SliceNorm>,
}

/// A norm over a whole row.
struct RowNorm {
    norm: Norm,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl RowNorm {
    fn apply(&self, width: usize, rows: &mut [f32]) {
        if self.norm != Norm::None {
            rows.par_chunks_exact_mut(width)
                .for_each(|row| normalise(&self.norm, &self.weight, &self.bias, row));
        }
    }
}

/// A norm over parts of a row, `group` numbers each. The weights are those of one group, or of all groups in order.
struct SliceNorm {
    norm: Norm,
    range: Range<usize>,
    group: usize,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl SliceNorm {
    fn apply(&self, row: &mut [f32]) {
        for (index, part) in row[self.range.clone()].chunks_exact_mut(self.group).enumerate() {
            let (weight, bias) =
                (self.group_values(&self.weight, index), self.group_values(&self.bias, index));
            normalise(&self.norm, weight, bias, part);
        }
    }

    fn group_values<'a>(&self, values: &'a [f32], index: usize) -> &'a [f32] {
        let groups = values.len() / self.group;
        if groups == 0 { values } else { &values[index % groups * self.group..][..self.group] }
    }
}

impl RowSteps {
    pub(crate) fn new(spec: &AttentionSpec, kernel: Kernel, weights: &mut LayerWeights) -> Self {
        let hidden_size = spec.hidden_size as usize;
        let embedding_width = spec.embedding_width() as usize;
        let projected = spec.row_content() != RowContent::Embedding;
        let embedding_norm = RowNorm {
            norm: spec.embedding.norm.clone(),
            weight: weights.take(TensorRole::EmbeddingNormWeight),
            bias: weights.take(TensorRole::EmbeddingNormBias),
        };
        let norm = RowNorm {
            norm: if projected { spec.norm.clone() } else { Norm::None },
            weight: weights.take(TensorRole::NormWeight),
            bias: weights.take(TensorRole::NormBias),
        };
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
        self.embedding_norm.apply(self.embedding_width, &mut rows);
        if let Some(projection) = &self.embedding_projection {
            let mut projected = vec![0.0; count * self.hidden_size];
            projection.apply(&rows, &mut projected);
            rows = projected;
        }
        let Some(projection) = &self.projection else {
            return rows;
        };
        self.norm.apply(self.hidden_size, &mut rows);
        let mut table = vec![0.0; count * projection.outputs()];
        projection.apply(&rows, &mut table);
        if let Some(clip) = self.clip {
            for x in &mut table {
                *x = x.clamp(-clip, clip);
            }
        }
        if !self.slice_norms.is_empty() {
            table
                .par_chunks_exact_mut(projection.outputs())
                .for_each(|row| self.slice_norms.iter().for_each(|norm| norm.apply(row)));
        }
        table
    }
}

/// Returns the projections of the hidden state (weight, bias) that form a row.
fn first_projections(spec: &AttentionSpec) -> ((TensorRole, TensorRole), (TensorRole, TensorRole)) {
    let query = (TensorRole::QueryWeight, TensorRole::QueryBias);
    match &spec.latent {
        None => (query, (TensorRole::KeyWeight, TensorRole::KeyBias)),
        Some(latent) => {
            let down = (TensorRole::QueryDownWeight, TensorRole::QueryDownBias);
            let query = if latent.query_rank.is_some() { down } else { query };
            (query, (TensorRole::KeyDownWeight, TensorRole::KeyDownBias))
        }
    }
}

fn slice_norms(spec: &AttentionSpec, weights: &mut LayerWeights) -> Vec<SliceNorm> {
    if let Some(latent) = &spec.latent {
        let query = spec.latent_query_width(latent) as usize;
        let key = query..query + latent.key_rank as usize;
        let mut norm = |range: Range<usize>, role| SliceNorm {
            norm: Norm::Rms { eps: latent.eps, offset: 0.0 },
            group: range.len(),
            range,
            weight: weights.take(role),
            bias: Vec::new(),
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
    let mut norm = |range: Range<usize>, weight, bias| SliceNorm {
        norm: head_norm.norm.clone(),
        group: if head_norm.over == NormScope::AllHeads { range.len() } else { head_dim },
        range,
        weight: weights.take(weight),
        bias: weights.take(bias),
    };
    vec![
        norm(0..queries, TensorRole::QueryNormWeight, TensorRole::QueryNormBias),
        norm(queries..row, TensorRole::KeyNormWeight, TensorRole::KeyNormBias),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice_norm(weight: Vec<f32>) -> SliceNorm {
        let norm = Norm::Layer { eps: 0.0, offset: 0.0 };
        SliceNorm { norm, range: 1..5, group: 2, weight, bias: Vec::new() }
    }

    #[test]
    fn group_weights_are_shared_or_separate() {
        let normed = |weight| {
            let mut row = [9.0, 1.0, 3.0, 4.0, 8.0, 9.0];
            slice_norm(weight).apply(&mut row);
            row.map(|x| x as i32)
        };
        assert_eq!(normed(vec![]), [9, -1, 1, -1, 1, 9]);
        assert_eq!(normed(vec![2.0, 3.0]), [9, -2, 3, -2, 3, 9]);
        assert_eq!(normed(vec![2.0, 3.0, 4.0, 5.0]), [9, -2, 3, -4, 5, 9]);
    }
}
