//! Which tensors of a checkpoint the layer-zero table is made of.

use std::ops::Range;

use super::spec::{LayerZeroSpec, Norm};

/// The tensors that a family's first layer is made of, named without the prefix that checkpoints may put before.
#[derive(Clone, Debug)]
pub(crate) struct LayerZeroTensors {
    /// Prefixes that checkpoints of this family use, the usual one first.
    pub(crate) prefixes: &'static [&'static str],
    /// `[vocabulary_size, hidden_size]`.
    pub(crate) embedding: String,
    /// `[hidden_size]`, for a norm with a weight.
    pub(crate) norm_weight: Option<String>,
    /// `[hidden_size]`, for a norm with a bias.
    pub(crate) norm_bias: Option<String>,
    /// The query projection.
    pub(crate) query: Projection,
    /// The key projection.
    pub(crate) key: Projection,
}

/// Rows of a projection `[outputs, hidden_size]`: a whole tensor, or the parts of a fused one.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    /// The weight's name.
    pub(crate) weight: String,
    /// The bias's name: `[outputs]`, of the same rows.
    pub(crate) bias: Option<String>,
    /// Rows of the whole tensor.
    pub(crate) outputs: u64,
    /// Rows that are wanted, in the order of heads.
    pub(crate) rows: Vec<Range<u64>>,
}

impl Projection {
    /// All `outputs` rows of a tensor of its own: `{name}.weight`, and `{name}.bias` if it has one.
    pub(crate) fn whole(name: &str, bias: bool, outputs: u64) -> Self {
        Self {
            weight: format!("{name}.weight"),
            bias: bias.then(|| format!("{name}.bias")),
            outputs,
            rows: std::iter::once(0..outputs).collect(),
        }
    }
}

/// What a needed tensor is for, in the order in which the table builder reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    NormWeight,
    NormBias,
    QueryWeight,
    QueryBias,
    KeyWeight,
    KeyBias,
    Embedding,
}

/// A tensor that must be there, with the shape that config.json implies.
#[derive(Clone, Debug)]
pub(crate) struct NeededTensor {
    /// What it is for.
    pub(crate) role: Role,
    /// Its name without a prefix.
    pub(crate) name: String,
    /// Its shape: one or two sizes.
    pub(crate) shape: Vec<u64>,
    /// The rows of it that are read.
    pub(crate) rows: Vec<Range<u64>>,
}

impl NeededTensor {
    /// How many numbers are read.
    pub(crate) fn numbers(&self) -> u64 {
        let rows: u64 = self.rows.iter().map(|rows| rows.end - rows.start).sum();
        rows * self.shape.get(1).copied().unwrap_or(1)
    }
}

impl LayerZeroTensors {
    /// Everything the builder reads, in its order.
    pub(crate) fn needed(&self, spec: &LayerZeroSpec) -> Vec<NeededTensor> {
        let hidden = spec.hidden_size;
        let mut needed = Vec::new();
        let mut need = |role, name: Option<&String>, shape: &[u64], rows: &[Range<u64>]| {
            let tensor = |name: &String| NeededTensor {
                role,
                name: name.clone(),
                shape: shape.to_vec(),
                rows: rows.to_vec(),
            };
            needed.extend(name.map(tensor));
        };
        let all = |rows: u64| std::iter::once(0..rows).collect::<Vec<_>>();
        if spec.norm != Norm::None {
            need(Role::NormWeight, self.norm_weight.as_ref(), &[hidden], &all(hidden));
            need(Role::NormBias, self.norm_bias.as_ref(), &[hidden], &all(hidden));
        }
        let query = (Role::QueryWeight, Role::QueryBias, &self.query);
        let key = (Role::KeyWeight, Role::KeyBias, &self.key);
        for (weight, bias, projection) in [query, key] {
            need(weight, Some(&projection.weight), &[projection.outputs, hidden], &projection.rows);
            need(bias, projection.bias.as_ref(), &[projection.outputs], &projection.rows);
        }
        let vocabulary = spec.vocabulary_size;
        need(Role::Embedding, Some(&self.embedding), &[vocabulary, hidden], &all(vocabulary));
        needed
    }
}
