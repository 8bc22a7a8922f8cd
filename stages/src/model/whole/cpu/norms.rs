//! Norms with their weights, over rows of the residual stream and over heads.

use crate::model::norm::normalise;
use crate::model::spec::{HeadNorm, Norm, NormScope};

/// A norm over whole rows.
pub(crate) struct RowNorm {
    pub(crate) norm: Norm,
    /// Weight and bias are as long as a row, or empty for 1 and 0.
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

impl RowNorm {
    pub(super) fn is_none(&self) -> bool {
        self.norm == Norm::None
    }

    pub(crate) fn apply(&self, width: usize, rows: &mut [f32]) {
        if !self.is_none() {
            rows.chunks_exact_mut(width)
                .for_each(|row| normalise(&self.norm, &self.weight, &self.bias, row));
        }
    }

    pub(super) fn normalised(&self, width: usize, rows: &[f32]) -> Vec<f32> {
        let mut rows = rows.to_vec();
        self.apply(width, &mut rows);
        rows
    }
}

/// A norm over the heads of queries or of keys.
pub(super) struct HeadsNorm {
    pub(super) norm: HeadNorm,
    pub(super) head_dim: usize,
    pub(super) weight: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

impl HeadsNorm {
    /// Normalises the heads of one token.
    pub(super) fn apply(&self, heads: &mut [f32]) {
        let group = match self.norm.over {
            NormScope::AllHeads => heads.len(),
            NormScope::Head | NormScope::EachHead => self.head_dim,
        };
        for (index, part) in heads.chunks_exact_mut(group).enumerate() {
            let of_group = |values: &[f32]| {
                let groups = values.len() / group;
                let first = if groups == 0 { 0 } else { index % groups * group };
                first..values.len().min(first + group)
            };
            let (weight, bias) =
                (&self.weight[of_group(&self.weight)], &self.bias[of_group(&self.bias)]);
            normalise(&self.norm.norm, weight, bias, part);
        }
    }
}
