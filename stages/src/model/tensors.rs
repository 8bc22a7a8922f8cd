//! Which tensors of a checkpoint the layer-zero table is made of.

use std::ops::Range;

use serde::Serialize;

use super::spec::LayerZeroSpec;

/// The tensors that a family's first layer is made of, named without the prefix that checkpoints may put before.
#[derive(Clone, Debug)]
pub(crate) struct LayerZeroTensors {
    /// Prefixes that checkpoints of this family use, the usual one first.
    pub(crate) prefixes: &'static [&'static str],
    /// `[vocabulary_size, embedding width]`.
    pub(crate) embedding: String,
    /// `[hidden_size]`, for a norm with a weight.
    pub(crate) norm_weight: Option<String>,
    /// `[hidden_size]`, for a norm with a bias.
    pub(crate) norm_bias: Option<String>,
    /// The query projection.
    pub(crate) query: Projection,
    /// The key projection.
    pub(crate) key: Projection,
    /// Whatever else the family has.
    pub(crate) more: Vec<WholeTensor>,
    /// A key that config.json lacks although it decides which tensors there are. Where the tensors of its default
    /// are missing, the checkpoint is read as if the key were `null`.
    pub(crate) absent_key: Option<&'static str>,
}

/// A tensor of which all rows from `first` on are read.
#[derive(Clone, Debug)]
pub(crate) struct WholeTensor {
    pub(crate) role: Role,
    /// Its name without a prefix.
    pub(crate) name: String,
    /// One or two sizes.
    pub(crate) shape: Vec<u64>,
    /// Rows that come before those that are wanted.
    pub(crate) first: u64,
}

/// Rows of a projection `[outputs, inputs]`: a whole tensor, or the parts of a fused one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Projection {
    /// The weight's name.
    pub(crate) weight: String,
    /// The bias's name: `[outputs]`, of the same rows.
    pub(crate) bias: Option<String>,
    /// Rows of the whole tensor.
    pub(crate) outputs: u64,
    /// Rows that are wanted, in the order of heads.
    pub(crate) rows: Vec<Range<u64>>,
    /// Numbers that it is applied to; `None`: the hidden state.
    pub(crate) inputs: Option<u64>,
    /// Whether the tensor lies as `[inputs, outputs]` (GPT-2).
    pub(crate) transposed: bool,
}

impl Projection {
    /// All `outputs` rows of a tensor of its own: `{name}.weight`, and `{name}.bias` if it has one.
    pub(crate) fn whole(name: &str, bias: bool, outputs: u64) -> Self {
        Self::part(name, bias, outputs, std::iter::once(0..outputs))
    }

    /// Rows of a fused tensor of `outputs` rows.
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

    /// Queries and keys of a tensor whose rows come in `groups` groups: `queries` heads of queries, one of keys, one of
    /// values, `head_dim` rows each.
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

    /// Queries and keys of a tensor of all queries, then all keys, then as many values as keys.
    pub(crate) fn stacked(name: &str, bias: bool, queries: u64, keys: u64) -> (Self, Self) {
        let part = |rows| Self::part(name, bias, queries + 2 * keys, std::iter::once(rows));
        (part(0..queries), part(queries..queries + keys))
    }

    /// Its tensors, for a hidden state of `hidden_size` numbers.
    pub(crate) fn needed(&self, hidden_size: u64, weight: Role, bias: Role) -> Vec<NeededTensor> {
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

/// A transposed projection's wanted columns are one range.
fn span(rows: &[Range<u64>]) -> Range<u64> {
    let start = rows.first().map_or(0, |range| range.start);
    start..rows.last().map_or(start, |range| range.end)
}

fn all(rows: u64) -> Vec<Range<u64>> {
    std::iter::once(0..rows).collect()
}

/// What a needed tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Role {
    NormWeight,
    NormBias,
    QueryWeight,
    QueryBias,
    KeyWeight,
    KeyBias,
    Embedding,
    /// Of the norm over the embedding itself.
    EmbeddingNormWeight,
    EmbeddingNormBias,
    /// `[hidden_size, embedding width]`
    EmbeddingProjection,
    /// `[positions, hidden_size]`
    Positions,
    /// Over queries and keys; several tensors of one role are joined in order.
    QueryNormWeight,
    QueryNormBias,
    KeyNormWeight,
    KeyNormBias,
    /// `[query_heads]`
    Sinks,
    /// From the hidden state to what the queries come out of: `[query_rank, hidden_size]`.
    QueryDownWeight,
    QueryDownBias,
    QueryDownNorm,
    /// From the hidden state to what the keys come out of, and the rotating numbers: `[key_rank + rotary, hidden_size]`.
    KeyDownWeight,
    KeyDownBias,
    KeyDownNorm,
    /// From here on what a whole model reads besides.
    ValueWeight,
    ValueBias,
    OutputWeight,
    OutputBias,
    AfterAttentionWeight,
    AfterAttentionBias,
    FeedForwardNormWeight,
    FeedForwardNormBias,
    /// Over the experts: `[experts, hidden_size]`.
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
    /// From the hidden state to what the head reads: `[embedding width, hidden_size]`.
    HeadProjection,
    HeadProjectionBias,
    /// `[vocabulary_size, embedding width]`
    HeadWeight,
    HeadBias,
}

/// A tensor that must be there, with the shape that config.json implies.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NeededTensor {
    /// What it is for.
    pub(crate) role: Role,
    /// Its name without a prefix.
    pub(crate) name: String,
    /// Its shape: one or two sizes.
    pub(crate) shape: Vec<u64>,
    /// The rows of it that are read.
    pub(crate) rows: Vec<Range<u64>>,
    /// The columns of each row that are read; all where there is no range.
    pub(crate) columns: Option<Range<u64>>,
}

impl NeededTensor {
    /// How many numbers are read.
    pub(crate) fn numbers(&self) -> u64 {
        let rows: u64 = self.rows.iter().map(|rows| rows.end - rows.start).sum();
        rows * self.row_numbers()
    }

    /// Numbers in one row.
    pub(crate) fn row_width(&self) -> u64 {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Numbers of one row that are read.
    pub(crate) fn row_numbers(&self) -> u64 {
        self.columns.as_ref().map_or(self.row_width(), |columns| columns.end - columns.start)
    }
}

impl LayerZeroTensors {
    /// A tensor of the family's own, all of it.
    pub(crate) fn need(&mut self, role: Role, name: &str, shape: &[u64]) {
        let shape = shape.to_vec();
        self.more.push(WholeTensor { role, name: name.to_owned(), shape, first: 0 });
    }

    /// Everything the builder reads.
    pub(crate) fn needed(&self, spec: &LayerZeroSpec) -> Vec<NeededTensor> {
        let hidden = spec.hidden_size;
        let mut needed = Vec::new();
        let whole = |role, name: &String, shape: &[u64], first: u64| NeededTensor {
            role,
            name: name.clone(),
            shape: shape.to_vec(),
            rows: std::iter::once(first..shape[0].max(first)).collect(),
            columns: None,
        };
        let norm = [(Role::NormWeight, &self.norm_weight), (Role::NormBias, &self.norm_bias)];
        needed.extend(
            norm.iter().filter_map(|(role, name)| {
                name.as_ref().map(|name| whole(*role, name, &[hidden], 0))
            }),
        );
        needed.extend(self.query.needed(hidden, Role::QueryWeight, Role::QueryBias));
        needed.extend(self.key.needed(hidden, Role::KeyWeight, Role::KeyBias));
        needed.extend(
            self.more
                .iter()
                .map(|tensor| whole(tensor.role, &tensor.name, &tensor.shape, tensor.first)),
        );
        let embedding = [spec.vocabulary_size, spec.embedding_width()];
        needed.push(whole(Role::Embedding, &self.embedding, &embedding, 0));
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_their_queries_then_one_key_and_one_value() {
        let (query, key) = Projection::grouped("qkv", true, 2, 3, 10);
        assert_eq!((query.outputs, query.rows), (100, vec![0..30, 50..80]));
        assert_eq!(key.rows, [30..40, 80..90]);
        assert_eq!(key.bias.as_deref(), Some("qkv.bias"));
    }

    #[test]
    fn a_stack_holds_queries_then_keys_then_values() {
        let (query, key) = Projection::stacked("qkv", false, 8, 4);
        assert_eq!((query.outputs, query.rows), (16, all(8)));
        assert_eq!((key.rows[0].clone(), key.rows.len()), (8..12, 1));
    }

    #[test]
    fn of_a_transposed_projection_columns_are_read() {
        let (_, mut key) = Projection::stacked("qkv", false, 8, 4);
        key.transposed = true;
        let needed = key.needed(6, Role::KeyWeight, Role::KeyBias).remove(0);
        assert_eq!((needed.shape, needed.columns), (vec![6, 16], Some(8..12)));
        let numbers = key.needed(6, Role::KeyWeight, Role::KeyBias)[0].numbers();
        assert_eq!(numbers, 24);
    }
}
