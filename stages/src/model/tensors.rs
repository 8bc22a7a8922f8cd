//! Tensors of a checkpoint that form the layer-zero table.

use std::ops::Range;

use serde::Serialize;

use super::spec::AttentionSpec;

/// Tensors of a family's first layer, named without the prefix that checkpoints may add.
#[derive(Clone, Debug)]
pub(crate) struct LayerZeroTensors {
    /// Prefixes in checkpoints of this family, the usual one first.
    pub(crate) prefixes: &'static [&'static str],
    /// `[vocabulary_size, embedding width]`.
    pub(crate) embedding: String,
    /// `[hidden_size]`, for a norm with a weight.
    pub(crate) norm_weight: Option<String>,
    /// `[hidden_size]`, for a norm with a bias.
    pub(crate) norm_bias: Option<String>,
    pub(crate) query: Projection,
    pub(crate) key: Projection,
    pub(crate) more: Vec<NeededTensor>,
    /// A missing key that determines the tensors. If those of its default are missing, the key is read as `null`.
    pub(crate) absent_key: Option<&'static str>,
}

/// Rows of a projection `[outputs, inputs]`: a whole tensor, or parts of a fused one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Projection {
    pub(crate) weight: String,
    /// Name of the bias, `[outputs]`; the same rows are used.
    pub(crate) bias: Option<String>,
    /// Rows of the whole tensor.
    pub(crate) outputs: u64,
    /// Rows that are used, in the order of heads.
    pub(crate) rows: Vec<Range<u64>>,
    /// Numbers that it is applied to; `None`: the hidden state.
    pub(crate) inputs: Option<u64>,
    /// Whether the tensor is stored as `[inputs, outputs]` (GPT-2).
    pub(crate) transposed: bool,
}

impl Projection {
    /// Creates a projection of all `outputs` rows of a tensor: `{name}.weight`, and `{name}.bias` if it has one.
    pub(crate) fn whole(name: &str, bias: bool, outputs: u64) -> Self {
        Self::part(name, bias, outputs, std::iter::once(0..outputs))
    }

    /// Creates a projection of some rows of a fused tensor with `outputs` rows.
    pub(crate) fn part(
        name: &str,
        bias: bool,
        outputs: u64,
        rows: impl IntoIterator<Item = Range<u64>>,
    ) -> Self {
        Self {
            weight: format!("{name}.weight"),
            bias: bias.then(|| format!("{name}.bias")),
            outputs,
            rows: rows.into_iter().collect(),
            inputs: None,
            transposed: false,
        }
    }

    /// Creates the projections of queries and keys from a tensor each: `{module}.q_proj` and `{module}.k_proj`.
    pub(crate) fn separate(module: &str, bias: bool, queries: u64, keys: u64) -> (Self, Self) {
        let whole = |name: &str, rows| Self::whole(&format!("{module}.{name}"), bias, rows);
        (whole("q_proj", queries), whole("k_proj", keys))
    }

    /// Creates the projections of queries and keys from a tensor whose rows form `groups` groups: `queries` heads of
    /// queries, one of keys, one of values, `head_dim` rows each.
    pub(crate) fn grouped(
        name: &str,
        bias: bool,
        groups: u64,
        queries: u64,
        head_dim: u64,
    ) -> (Self, Self) {
        let group = (queries + 2) * head_dim;
        let rows = |from: u64, to: u64| {
            (0..groups).map(move |index| index * group + from..index * group + to)
        };
        let keys = queries * head_dim;
        let part = |rows| Self::part(name, bias, groups * group, rows);
        (part(rows(0, keys)), part(rows(keys, keys + head_dim)))
    }

    /// Creates the projections from a tensor of all queries, then all keys, then the same number of values.
    pub(crate) fn stacked(name: &str, bias: bool, queries: u64, keys: u64) -> (Self, Self) {
        let part = |rows| Self::part(name, bias, queries + 2 * keys, std::iter::once(rows));
        (part(0..queries), part(queries..queries + keys))
    }

    /// Returns its tensors, for a hidden state of `hidden_size` numbers.
    pub(crate) fn needed(&self, hidden_size: u64, (weight, bias): Roles) -> Vec<NeededTensor> {
        let inputs = self.inputs.unwrap_or(hidden_size);
        let shape = if self.transposed { [inputs, self.outputs] } else { [self.outputs, inputs] };
        let mut needed = vec![NeededTensor {
            role: weight,
            name: self.weight.clone(),
            shape: shape.to_vec(),
            rows: if self.transposed { all(inputs) } else { self.rows.clone() },
            columns: self.transposed.then(|| span(&self.rows)),
        }];
        needed.extend(self.bias.clone().map(|name| NeededTensor {
            role: bias,
            name,
            shape: vec![self.outputs],
            rows: self.rows.clone(),
            columns: None,
        }));
        needed
    }
}

/// Returns the columns of a transposed projection, which form one range.
fn span(rows: &[Range<u64>]) -> Range<u64> {
    let start = rows.first().map_or(0, |range| range.start);
    start..rows.last().map_or(start, |range| range.end)
}

fn all(rows: u64) -> Vec<Range<u64>> {
    std::iter::once(0..rows).collect()
}

/// Roles of the weight and the bias of a norm or projection.
pub(crate) type Roles = (TensorRole, TensorRole);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum TensorRole {
    NormWeight,
    NormBias,
    QueryWeight,
    QueryBias,
    KeyWeight,
    KeyBias,
    Embedding,
    /// Norm over the embedding itself.
    EmbeddingNormWeight,
    EmbeddingNormBias,
    /// `[hidden_size, embedding width]`
    EmbeddingProjection,
    /// `[positions, hidden_size]`
    Positions,
    /// Norms over queries and keys; several tensors of one role are concatenated in order.
    QueryNormWeight,
    QueryNormBias,
    KeyNormWeight,
    KeyNormBias,
    Sinks,
    /// Projection from the hidden state to the latent vector of the queries: `[query_rank, hidden_size]`.
    QueryDownWeight,
    QueryDownBias,
    QueryDownNorm,
    /// Projection to the latent vector of the keys and the rotating numbers: `[key_rank + rotary, hidden_size]`.
    KeyDownWeight,
    KeyDownBias,
    KeyDownNorm,
    /// The roles below are read by whole models only.
    ValueWeight,
    ValueBias,
    OutputWeight,
    OutputBias,
    AfterAttentionWeight,
    AfterAttentionBias,
    FeedForwardNormWeight,
    FeedForwardNormBias,
    /// Router of the experts: `[experts, hidden_size]`.
    RouterWeight,
    RouterBias,
    GateWeight,
    GateBias,
    UpWeight,
    UpBias,
    DownWeight,
    DownBias,
    AfterFeedForwardWeight,
    AfterFeedForwardBias,
    LastNormWeight,
    LastNormBias,
    /// Projection from the hidden state to the head's input: `[embedding width, hidden_size]`.
    HeadProjection,
    HeadProjectionBias,
    /// `[vocabulary_size, embedding width]`
    HeadWeight,
    HeadBias,
    /// Log decays of gated linear attention, through a low rank.
    DecayDownWeight,
    DecayUpWeight,
    DecayUpBias,
    /// `[heads · channels, 1, taps]`
    QueryConvolution,
    KeyConvolution,
    ValueConvolution,
    /// Norm of each head's output, and the gate that multiplies it.
    MixedNormWeight,
    OutputGateWeight,
}

impl TensorRole {
    pub(crate) const NORM: Roles = (Self::NormWeight, Self::NormBias);
    pub(crate) const QUERY: Roles = (Self::QueryWeight, Self::QueryBias);
    pub(crate) const KEY: Roles = (Self::KeyWeight, Self::KeyBias);
    pub(crate) const EMBEDDING_NORM: Roles = (Self::EmbeddingNormWeight, Self::EmbeddingNormBias);
    pub(crate) const QUERY_NORM: Roles = (Self::QueryNormWeight, Self::QueryNormBias);
    pub(crate) const KEY_NORM: Roles = (Self::KeyNormWeight, Self::KeyNormBias);
    pub(crate) const QUERY_DOWN: Roles = (Self::QueryDownWeight, Self::QueryDownBias);
    pub(crate) const KEY_DOWN: Roles = (Self::KeyDownWeight, Self::KeyDownBias);
    pub(crate) const VALUE: Roles = (Self::ValueWeight, Self::ValueBias);
    pub(crate) const OUTPUT: Roles = (Self::OutputWeight, Self::OutputBias);
    pub(crate) const AFTER_ATTENTION: Roles =
        (Self::AfterAttentionWeight, Self::AfterAttentionBias);
    pub(crate) const FEED_FORWARD_NORM: Roles =
        (Self::FeedForwardNormWeight, Self::FeedForwardNormBias);
    pub(crate) const ROUTER: Roles = (Self::RouterWeight, Self::RouterBias);
    pub(crate) const GATE: Roles = (Self::GateWeight, Self::GateBias);
    pub(crate) const UP: Roles = (Self::UpWeight, Self::UpBias);
    pub(crate) const DOWN: Roles = (Self::DownWeight, Self::DownBias);
    pub(crate) const AFTER_FEED_FORWARD: Roles =
        (Self::AfterFeedForwardWeight, Self::AfterFeedForwardBias);
    pub(crate) const LAST_NORM: Roles = (Self::LastNormWeight, Self::LastNormBias);
    pub(crate) const HEAD_PROJECTION: Roles = (Self::HeadProjection, Self::HeadProjectionBias);
    pub(crate) const DECAY_UP: Roles = (Self::DecayUpWeight, Self::DecayUpBias);

    pub(crate) fn is_in(self, all: &[Roles]) -> bool {
        all.iter().any(|(weight, bias)| [*weight, *bias].contains(&self))
    }
}

/// A required tensor, with the shape that config.json implies.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NeededTensor {
    pub(crate) role: TensorRole,
    pub(crate) name: String,
    /// One size, or rows and the sizes of a row.
    pub(crate) shape: Vec<u64>,
    /// Rows that are read.
    pub(crate) rows: Vec<Range<u64>>,
    /// Columns of each row that are read; `None` for all.
    pub(crate) columns: Option<Range<u64>>,
}

impl NeededTensor {
    /// Requires all rows of a tensor.
    pub(crate) fn whole(role: TensorRole, name: String, shape: Vec<u64>) -> Self {
        Self { role, name, rows: all(shape[0]), shape, columns: None }
    }

    pub(crate) fn numbers(&self) -> u64 {
        let rows: u64 = self.rows.iter().map(|rows| rows.end - rows.start).sum();
        rows * self.row_numbers()
    }

    /// Returns the width of a row, in numbers.
    pub(crate) fn row_width(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Returns how many numbers of each row are read.
    pub(crate) fn row_numbers(&self) -> u64 {
        self.columns.as_ref().map_or(self.row_width(), |columns| columns.end - columns.start)
    }
}

impl LayerZeroTensors {
    pub(crate) fn need(&mut self, role: TensorRole, name: &str, shape: &[u64]) {
        self.more.push(NeededTensor::whole(role, name.to_owned(), shape.to_vec()));
    }

    pub(crate) fn needed(&self, spec: &AttentionSpec) -> Vec<NeededTensor> {
        let hidden = spec.hidden_size;
        let norms =
            [(TensorRole::NormWeight, &self.norm_weight), (TensorRole::NormBias, &self.norm_bias)];
        let norms = norms.into_iter().filter_map(|(role, name)| {
            Some(NeededTensor::whole(role, name.clone()?, vec![hidden]))
        });
        let mut needed: Vec<NeededTensor> = norms.collect();
        needed.extend(self.query.needed(hidden, TensorRole::QUERY));
        needed.extend(self.key.needed(hidden, TensorRole::KEY));
        needed.extend(self.more.iter().cloned());
        let shape = vec![spec.vocabulary_size, spec.embedding_width()];
        needed.push(NeededTensor::whole(TensorRole::Embedding, self.embedding.clone(), shape));
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_consist_of_queries_then_a_key_and_a_value() {
        let (query, key) = Projection::grouped("qkv", true, 2, 3, 10);
        assert_eq!((query.outputs, query.rows), (100, vec![0..30, 50..80]));
        assert_eq!(key.rows, [30..40, 80..90]);
        assert_eq!(key.bias.as_deref(), Some("qkv.bias"));
    }

    #[test]
    fn stacks_consist_of_queries_then_keys_then_values() {
        let (query, key) = Projection::stacked("qkv", false, 8, 4);
        assert_eq!((query.outputs, query.rows), (16, all(8)));
        assert_eq!((key.rows[0].clone(), key.rows.len()), (8..12, 1));
    }

    #[test]
    fn columns_of_a_transposed_projection_are_read() {
        let (_, mut key) = Projection::stacked("qkv", false, 8, 4);
        key.transposed = true;
        let needed = key.needed(6, TensorRole::KEY).remove(0);
        assert_eq!((needed.shape, needed.columns), (vec![6, 16], Some(8..12)));
        let numbers = key.needed(6, TensorRole::KEY)[0].numbers();
        assert_eq!(numbers, 24);
    }
}
