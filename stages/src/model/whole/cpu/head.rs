//! Losses from the last hidden states, by pieces of the vocabulary: only the last token's logits are held completely.

use longsift_kernels::{Kernel, LogSumExp, PackedWeights, Pointwise};
use rayon::prelude::*;

use super::query_keys::BLOCK_ROWS;
use crate::model::norms::RowNorm;
use crate::model::problem::ModelProblem;
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;
use crate::model::whole::backend::{HeadOutput, HeadRequest, Squares};
use crate::model::whole::located::WholeModel;
use crate::model::whole::memory::piece_rows;

/// Some tokens of a window, while the vocabulary is processed.
struct TokenBlock<'a> {
    /// `[tokens, width]`
    rows: &'a [f32],
    /// The id after each token; the window's last token has none.
    targets: &'a [u32],
    sums: LogSumExp,
    /// Logit of each target, set when its piece has been processed.
    found: Vec<f32>,
    /// Logits after the window's last token, if it is in this block.
    last: Option<Vec<f32>>,
}

pub(super) fn finish(
    model: &WholeModel,
    requests: &[HeadRequest<'_>],
    mut states: Vec<Vec<f32>>,
) -> Result<Vec<HeadOutput>, ModelProblem> {
    let (spec, decoder, kernel) = (model.spec(), &model.decoder, model.kernel);
    let (hidden, width) = (spec.hidden_size as usize, spec.embedding_width() as usize);
    let mut weights = LayerWeights::read(&model.after)?;
    let norm = RowNorm::take(&decoder.last_norm.norm, &mut weights, TensorRole::LAST_NORM);
    let projection = decoder.head.projection.as_ref();
    let projection = projection.map(|_| {
        PackedWeights::new(kernel, &weights.take(TensorRole::HeadProjection), None, hidden)
    });
    let bias = weights.take(TensorRole::HeadBias);
    let mut squares = Vec::with_capacity(states.len());
    for state in &mut states {
        state.par_chunks_mut(BLOCK_ROWS * hidden).for_each(|rows| norm.apply(hidden, rows));
        if let Some(projection) = &projection {
            let mut projected = vec![0.0; state.len() / hidden * width];
            projection.apply(state, &mut projected);
            *state = projected;
        }
        squares.push(Squares::new(state, model.summed()));
    }
    let mut blocks: Vec<Vec<TokenBlock<'_>>> =
        requests.iter().zip(&states).map(|(end, state)| token_blocks(end, state, width)).collect();
    model.read_head(piece_rows(width as u64), &mut |first, piece| {
        let bias = bias.get(first..first + piece.len() / width);
        let packed = PackedWeights::new(kernel, &piece, bias, width);
        drop(piece);
        let blocks = blocks.par_iter_mut().flatten();
        blocks.for_each(|block| block.accumulate(model, &packed, first, kernel));
        Ok(())
    })?;
    let outputs = blocks.into_iter().zip(squares).zip(requests);
    outputs.map(|((blocks, squares), end)| end.checked(collect_output(blocks, squares))).collect()
}

fn token_blocks<'a>(end: &HeadRequest<'a>, state: &'a [f32], width: usize) -> Vec<TokenBlock<'a>> {
    let (ids, first) = (end.ids, end.first());
    let state = &state[(first - end.rows.start) * width..];
    let count = (end.rows.end - first).div_ceil(BLOCK_ROWS);
    let last_logits = end.last_logits && end.rows.end == ids.len();
    let block = |(index, rows): (usize, &'a [f32])| {
        let start = first + index * BLOCK_ROWS;
        let next = start + rows.len() / width;
        TokenBlock {
            rows,
            targets: &ids[start + 1..ids.len().min(next + 1)],
            sums: LogSumExp::new(next - start),
            found: vec![f32::NAN; next - start],
            last: (last_logits && index + 1 == count).then(Vec::new),
        }
    };
    state.chunks(BLOCK_ROWS * width).enumerate().map(block).collect()
}

impl TokenBlock<'_> {
    /// Adds the logits of the vocabulary piece that starts with `first`.
    fn accumulate(
        &mut self,
        model: &WholeModel,
        piece: &PackedWeights,
        first: usize,
        kernel: Kernel,
    ) {
        let count = piece.outputs();
        let mut logits = vec![0.0; self.found.len() * count];
        piece.apply(self.rows, &mut logits);
        let head = &model.decoder.head;
        if head.multiplier.to_bits() != 1.0_f64.to_bits() {
            for x in &mut logits {
                *x = (f64::from(*x) * head.multiplier) as f32;
            }
        }
        if let Some(cap) = head.softcap {
            Pointwise::Softcap(cap as f32).apply(kernel, &mut logits);
        }
        self.sums.absorb(kernel, &logits);
        for (row, target) in self.targets.iter().enumerate() {
            let column = (*target as usize).wrapping_sub(first);
            if column < count {
                self.found[row] = logits[row * count + column];
            }
        }
        if let Some(last) = &mut self.last {
            last.extend_from_slice(&logits[logits.len() - count..]);
        }
    }
}

fn collect_output(blocks: Vec<TokenBlock<'_>>, squares: Squares) -> HeadOutput {
    let mut output = HeadOutput { squares, ..HeadOutput::default() };
    for block in blocks {
        let losses = block.sums.finish().zip(&block.found);
        let losses = losses.map(|(sum, found)| sum - f64::from(*found));
        output.losses.extend(losses.take(block.targets.len()));
        output.last_logits.extend(block.last.into_iter().flatten());
    }
    output
}
