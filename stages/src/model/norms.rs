//! Norms of a layer with their weights.

use super::norm::normalise;
use super::spec::Norm;
use super::tensors::Roles;
use super::weights::LayerWeights;

/// A norm over whole rows. Weight and bias are as long as a row, or empty for 1 and 0.
pub(crate) struct RowNorm {
    pub(crate) norm: Norm,
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

impl RowNorm {
    /// Creates the norm, and removes its weights from those of a layer.
    pub(crate) fn take(norm: &Norm, weights: &mut LayerWeights, (weight, bias): Roles) -> Self {
        Self { norm: norm.clone(), weight: weights.take(weight), bias: weights.take(bias) }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.norm == Norm::None
    }

    pub(crate) fn apply(&self, width: usize, rows: &mut [f32]) {
        if !self.is_none() {
            rows.chunks_exact_mut(width)
                .for_each(|row| normalise(&self.norm, &self.weight, &self.bias, row));
        }
    }

    pub(crate) fn normalised(&self, width: usize, rows: &[f32]) -> Vec<f32> {
        let mut rows = rows.to_vec();
        self.apply(width, &mut rows);
        rows
    }
}

/// A norm over parts of a row, `group` numbers each. The weights are those of one group, or of all groups in order.
pub(crate) struct GroupNorm {
    pub(crate) norm: Norm,
    pub(crate) group: usize,
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

impl GroupNorm {
    /// Creates the norm, and removes its weights from those of a layer.
    pub(crate) fn take(
        norm: &Norm,
        group: usize,
        weights: &mut LayerWeights,
        (weight, bias): Roles,
    ) -> Self {
        let (weight, bias) = (weights.take(weight), weights.take(bias));
        Self { norm: norm.clone(), group, weight, bias }
    }

    pub(crate) fn apply(&self, numbers: &mut [f32]) {
        for (index, part) in numbers.chunks_exact_mut(self.group).enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_weights_are_shared_or_separate() {
        let normed = |weight| {
            let norm = Norm::Layer { eps: 0.0, offset: 0.0 };
            let mut row = [1.0, 3.0, 4.0, 8.0, 9.0];
            GroupNorm { norm, group: 2, weight, bias: Vec::new() }.apply(&mut row);
            row.map(|x| x as i32)
        };
        assert_eq!(normed(vec![]), [-1, 1, -1, 1, 9]);
        assert_eq!(normed(vec![2.0, 3.0]), [-2, 3, -2, 3, 9]);
        assert_eq!(normed(vec![2.0, 3.0, 4.0, 5.0]), [-2, 3, -4, 5, 9]);
    }
}
