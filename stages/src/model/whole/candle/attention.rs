//! Softmax attention of a layer, in blocks of rows.

use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};
use longsift_kernels::{LogitRules, Rope};

use super::devices::CandleDevice;
use super::numbers::{LinearLayer, RotaryTensors, TensorNorm, factor};
use crate::contract::{LayerAttention, LayersRequest};
use crate::model::spec::{AttentionSpec, HeadNorm, NormScope};
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;
use crate::model::whole::candle_memory::{ATTENTION_ROWS, BLOCK_ROWS, attention_bytes};

pub(in crate::model::whole) struct QueryKeys<'m> {
    pub(super) device: &'m CandleDevice,
    pub(super) spec: &'m AttentionSpec,
    pub(super) norm: TensorNorm,
    query: Heads,
    key: Heads,
}

/// A projection to heads, with their norm.
struct Heads {
    projection: LinearLayer,
    norm: Option<(HeadNorm, TensorNorm)>,
}

impl<'m> QueryKeys<'m> {
    pub(super) fn new(
        device: &'m CandleDevice,
        spec: &'m AttentionSpec,
        weights: &mut LayerWeights,
    ) -> Result<Self> {
        let hidden = spec.hidden_size as usize;
        let norm = TensorNorm::take(device, &spec.norm, weights, TensorRole::NORM, hidden)?;
        let mut heads = |roles, of_norm| {
            let projection = LinearLayer::take(device, weights, roles, hidden)?;
            let norm = spec.head_norm.as_ref().map(|norm| {
                let width = match norm.over {
                    NormScope::AllHeads => projection.outputs(),
                    NormScope::Head | NormScope::EachHead => spec.head_dim as usize,
                };
                let own = TensorNorm::take(device, &norm.norm, weights, of_norm, width)?;
                Ok::<_, candle_core::Error>((norm.clone(), own))
            });
            Ok::<_, candle_core::Error>(Heads { projection, norm: norm.transpose()? })
        };
        let query = heads(TensorRole::QUERY, TensorRole::QUERY_NORM)?;
        let key = heads(TensorRole::KEY, TensorRole::KEY_NORM)?;
        Ok(Self { device, spec, norm, query, key })
    }

    pub(super) fn query_width(&self) -> usize {
        self.query.projection.outputs()
    }

    pub(super) fn clip(&self, numbers: Tensor) -> Result<Tensor> {
        match self.spec.clip {
            None => Ok(numbers),
            Some(clip) => numbers.clamp(-clip, clip),
        }
    }

    /// Splits rows into heads: `[heads, rows, head_dim]`.
    pub(super) fn by_head(&self, rows: &Tensor) -> Result<Tensor> {
        let head_dim = self.spec.head_dim as usize;
        let (count, width) = rows.dims2()?;
        rows.reshape((count, width / head_dim, head_dim))?.transpose(0, 1)?.contiguous()
    }

    /// Computes heads of the rows from `first` on, given their normalised hidden states.
    fn heads(
        &self,
        source: &Heads,
        turns: Option<&RotaryTensors>,
        first: usize,
        normed: &Tensor,
    ) -> Result<Tensor> {
        let rows = self.clip(source.projection.apply(normed)?)?;
        let (count, width) = rows.dims2()?;
        let head_dim = self.spec.head_dim as usize;
        let shape = (count, width / head_dim, head_dim);
        let normalised = |heads: Tensor, after_rope: bool| match &source.norm {
            Some((norm, own)) if norm.after_rope == after_rope => match norm.over {
                NormScope::AllHeads => own.apply(&heads.reshape((count, width))?)?.reshape(shape),
                NormScope::Head | NormScope::EachHead => own.apply(&heads),
            },
            _ => Ok(heads),
        };
        let mut heads = normalised(rows.reshape(shape)?, false)?;
        if let Some(turns) = turns {
            heads = turns.turned(first, &heads)?;
        }
        normalised(heads, true)?.transpose(0, 1)?.contiguous()
    }

    /// Prepares a window for its rows: computes all keys, and with `value` all values.
    pub(super) fn window(
        &self,
        rope: Option<&Rope>,
        state: &Tensor,
        value: Option<&LinearLayer>,
    ) -> Result<WindowKeys<'_>> {
        let tokens = state.dims()[0];
        let (key_heads, head_dim) = (self.spec.key_heads as usize, self.spec.head_dim as usize);
        let turns = rope.map(|rope| RotaryTensors::new(self.device, rope, tokens)).transpose()?;
        let all = || {
            let shape = (key_heads, tokens, head_dim);
            Tensor::zeros(shape, DType::F32, &self.device.handle)
        };
        let (keys, values) = (all()?, value.map(|_| all()).transpose()?);
        for rows in blocks(0..tokens, BLOCK_ROWS) {
            let normed = self.norm.apply(&state.narrow(0, rows.start, rows.len())?)?;
            let block = self.heads(&self.key, turns.as_ref(), rows.start, &normed)?;
            keys.slice_set(&factor(self.device.precision, &block)?, 1, rows.start)?;
            if let Some((values, value)) = values.as_ref().zip(value) {
                let block = self.by_head(&self.clip(value.apply(&normed)?)?)?;
                values.slice_set(&factor(self.device.precision, &block)?, 1, rows.start)?;
            }
        }
        let mut rules = self.spec.logit_rules(true);
        rules.query_scale = self.spec.query_scales(tokens);
        let row_bytes = self.spec.query_heads as usize * tokens * size_of::<f32>();
        let at_once =
            (attention_bytes(!self.device.handle.is_cpu()) / row_bytes).clamp(1, ATTENTION_ROWS);
        Ok(WindowKeys { query_keys: self, turns, rules, keys, values, tokens, at_once })
    }

    /// Computes attention sums of a window with the hidden states `state` before this layer.
    pub(super) fn attention(
        &self,
        rope: Option<&Rope>,
        state: &Tensor,
        request: &LayersRequest,
    ) -> Result<LayerAttention> {
        let window = self.window(rope, state, None)?;
        let tokens = window.tokens;
        let distance = request.distance.in_window(tokens as u64) as usize;
        let sinks = request.sink_tokens as usize;
        let heads = self.spec.query_heads as usize;
        let (mut far_mass, mut far_square) = (vec![0.0; heads], vec![0.0; heads]);
        for rows in blocks(0..tokens, window.at_once) {
            let far = sinks..rows.end.saturating_sub(distance);
            if far.is_empty() {
                continue;
            }
            let Some(shares) = window.shares(state, rows.clone(), tokens)? else { continue };
            let is_far = |row: usize, key: usize| key + distance <= row;
            let Some(far) = shares.part(far)? else { continue };
            let edge = (rows.start + 1).saturating_sub(distance).max(far.keys.start)..far.keys.end;
            far.mask(edge, 0.0, is_far)?;
            add(&mut far_mass, &far.numbers)?;
            add(&mut far_square, &far.numbers.sqr()?)?;
        }
        let context_dependence = request.ladm.as_ref().map(|ladm| {
            let spans = ladm.spans(tokens);
            let mut masses = Vec::with_capacity(spans.len());
            for span in &spans {
                let mut of_span = vec![0.0; span.blocks.len()];
                for rows in blocks(span.rows.clone(), window.at_once) {
                    let Some(shares) = window.shares(state, rows, span.rows.start)? else {
                        continue;
                    };
                    for (mass, block) in of_span.iter_mut().zip(&span.blocks) {
                        if let Some(part) = shares.part(block.clone())? {
                            *mass += part.numbers.sum_all()?.to_scalar::<f64>()? / heads as f64;
                        }
                    }
                }
                masses.push(of_span);
            }
            Ok::<_, candle_core::Error>(ladm.context_dependence(tokens, &spans, &masses))
        });
        let context_dependence = context_dependence.transpose()?.flatten();
        Ok(LayerAttention { far_mass, far_square, context_dependence })
    }
}

/// Adds the sum over the rows and keys of each head.
fn add(sums: &mut [f64], numbers: &Tensor) -> Result<()> {
    let of_heads = numbers.flatten_from(1)?.sum(D::Minus1)?.to_vec1::<f64>()?;
    sums.iter_mut().zip(of_heads).for_each(|(sum, of_head)| *sum += of_head);
    Ok(())
}

/// Splits rows into blocks of at most `max`.
pub(super) fn blocks(rows: Range<usize>, max: usize) -> impl Iterator<Item = Range<usize>> {
    rows.clone().step_by(max).map(move |start| start..rows.end.min(start + max))
}

/// Keys of a window, and the settings that turn its rows into attention.
pub(super) struct WindowKeys<'w> {
    query_keys: &'w QueryKeys<'w>,
    turns: Option<RotaryTensors>,
    rules: LogitRules,
    /// `[key_heads, tokens, head_dim]`
    keys: Tensor,
    values: Option<Tensor>,
    tokens: usize,
    at_once: usize,
}

/// Logits or weights by head, row and key: `[query_heads, rows, keys]`.
struct AttentionBlock {
    rows: Range<usize>,
    keys: Range<usize>,
    numbers: Tensor,
}

impl AttentionBlock {
    /// Returns the part of some keys; `None` without any.
    fn part(&self, keys: Range<usize>) -> Result<Option<Self>> {
        let keys = keys.start.max(self.keys.start)..keys.end.min(self.keys.end);
        if keys.is_empty() {
            return Ok(None);
        }
        let numbers = self.numbers.narrow(2, keys.start - self.keys.start, keys.len())?;
        Ok(Some(Self { rows: self.rows.clone(), keys, numbers: numbers.contiguous()? }))
    }

    /// Replaces numbers for the keys `edge` that are not visible.
    fn mask(
        &self,
        edge: Range<usize>,
        hidden: f64,
        is_visible: impl Fn(usize, usize) -> bool,
    ) -> Result<()> {
        let Some(part) = self.part(edge)? else { return Ok(()) };
        let rows = part.rows.clone();
        let hides = rows.flat_map(|row| {
            let is_visible = &is_visible;
            part.keys.clone().map(move |key| u8::from(!is_visible(row, key)))
        });
        let shape = (1, part.rows.len(), part.keys.len());
        let hides = Tensor::from_iter(hides, self.numbers.device())?.reshape(shape)?;
        let hidden = Tensor::full(hidden, part.numbers.shape(), self.numbers.device())?;
        let hidden = hidden.to_dtype(part.numbers.dtype())?;
        let hides = hides.broadcast_as(part.numbers.shape())?;
        let numbers = hides.where_cond(&hidden, &part.numbers)?;
        self.numbers.slice_set(&numbers, 2, part.keys.start - self.keys.start)
    }
}

impl WindowKeys<'_> {
    fn first_key(&self, row: usize) -> usize {
        let from_window = self.rules.window.map_or(0, |window| (row + 1).saturating_sub(window));
        self.rules.chunk.map_or(0, |chunk| row / chunk * chunk).max(from_window)
    }

    /// Computes the queries of a block of rows, `[query_heads, rows, head_dim]`.
    fn queries(&self, rows: &Range<usize>, normed: &Tensor) -> Result<Tensor> {
        let query_keys = self.query_keys;
        let queries =
            query_keys.heads(&query_keys.query, self.turns.as_ref(), rows.start, normed)?;
        let Some(scales) = &self.rules.query_scale else { return Ok(queries) };
        let scales =
            query_keys.device.tensor(scales[rows.clone()].to_vec(), &[1, rows.len(), 1])?;
        queries.broadcast_mul(&scales)
    }

    /// Computes the powers of e of logits minus their largest, and their sums in float64, `[query_heads, rows, 1]`, over
    /// the visible keys before `end`. Rows without such keys are left out; `None` if there are no others.
    fn powers(
        &self,
        queries: &Tensor,
        rows: Range<usize>,
        end: usize,
    ) -> Result<Option<(AttentionBlock, Tensor)>> {
        let rows =
            rows.start..rows.clone().find(|row| self.first_key(*row) >= end).unwrap_or(rows.end);
        let keys = self.first_key(rows.start)..rows.end.min(end);
        if rows.is_empty() || keys.is_empty() {
            return Ok(None);
        }
        let spec = self.query_keys.spec;
        let (heads, head_dim) = (spec.query_heads as usize, spec.head_dim as usize);
        let key_heads = spec.key_heads as usize;
        let queries = queries.narrow(1, 0, rows.len())?.contiguous()?;
        let queries = factor(self.query_keys.device.precision, &queries)?;
        let queries = queries.reshape((key_heads, heads / key_heads * rows.len(), head_dim))?;
        let seen = self.keys.narrow(1, keys.start, keys.len())?;
        let mut logits = (queries.matmul(&seen.t()?)? * f64::from(self.rules.scale))?;
        if let Some(cap) = self.rules.softcap.map(f64::from) {
            logits = ((logits / cap)?.tanh()? * cap)?;
        }
        let mut logits = logits.reshape((heads, rows.len(), keys.len()))?;
        if let Some(slopes) = &self.rules.alibi_slopes {
            let device = self.query_keys.device;
            let slopes = device.tensor(slopes.clone(), &[heads, 1, 1])?;
            let distances =
                rows.clone().flat_map(|row| keys.clone().map(move |key| key as f32 - row as f32));
            let distances = device.tensor(distances.collect(), &[1, rows.len(), keys.len()])?;
            logits = (logits + slopes.broadcast_mul(&distances)?)?;
        }
        let block = AttentionBlock { rows: rows.clone(), keys: keys.clone(), numbers: logits };
        let is_visible = |row: usize, key: usize| key <= row && key >= self.first_key(row);
        let all_see = self.first_key(rows.end - 1)..(rows.start + 1).min(keys.end);
        block.mask(keys.start..all_see.start, f64::NEG_INFINITY, is_visible)?;
        block.mask(all_see.end.max(all_see.start)..keys.end, f64::NEG_INFINITY, is_visible)?;
        let AttentionBlock { numbers: logits, .. } = block;
        let largest = logits.max_keepdim(D::Minus1)?;
        let numbers = logits.broadcast_sub(&largest)?.exp()?;
        let sums = numbers.to_dtype(DType::F64)?.sum_keepdim(D::Minus1)?;
        Ok(Some((AttentionBlock { rows, keys, numbers }, sums)))
    }

    /// Computes the attention of some rows to the keys before `end`, in float64.
    fn shares(
        &self,
        state: &Tensor,
        rows: Range<usize>,
        end: usize,
    ) -> Result<Option<AttentionBlock>> {
        let normed = self.query_keys.norm.apply(&state.narrow(0, rows.start, rows.len())?)?;
        let queries = self.queries(&rows, &normed)?;
        let Some((powers, sums)) = self.powers(&queries, rows, end)? else { return Ok(None) };
        let numbers = powers.numbers.to_dtype(DType::F64)?.broadcast_div(&sums)?;
        Ok(Some(AttentionBlock { numbers, ..powers }))
    }

    /// Computes attention's output for some rows, `[rows, query_heads · head_dim]`.
    pub(super) fn attend(&self, rows: Range<usize>, normed: &Tensor) -> Result<Tensor> {
        let values = self.values.as_ref().expect("the window has values");
        let precision = self.query_keys.device.precision;
        let queries = self.queries(&rows, normed)?;
        let mut parts = Vec::new();
        for part in blocks(rows.clone(), self.at_once) {
            let own = queries.narrow(1, part.start - rows.start, part.len())?;
            let attended = self.powers(&own, part.clone(), self.tokens)?;
            let (powers, sums) = attended.expect("a row sees itself");
            let (heads, count, keys) = powers.numbers.dims3()?;
            let (key_heads, _, head_dim) = values.dims3()?;
            let shape = (key_heads, heads / key_heads * count, keys);
            let weights = factor(precision, &powers.numbers)?.reshape(shape)?;
            let values = values.narrow(1, powers.keys.start, keys)?;
            let out = weights.matmul(&values)?.reshape((heads, count, head_dim))?;
            let out = out.to_dtype(DType::F64)?.broadcast_div(&sums)?.to_dtype(DType::F32)?;
            parts.push(out.transpose(0, 1)?.reshape((count, heads * head_dim))?);
        }
        Tensor::cat(&parts, 0)
    }
}
