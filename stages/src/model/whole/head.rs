//! Computes losses from the last hidden states. The vocabulary is processed in pieces, so that only the last token's
//! logits are held completely.

use std::ops::Range;

use longsift_kernels::{Kernel, LogSumExp, PackedWeights, Pointwise};
use rayon::prelude::*;

use super::figures::Squares;
use super::located::WholeModel;
use super::norms::RowNorm;
use super::packed::BLOCK_ROWS;
use crate::model::problem::ModelProblem;
use crate::model::tensors::TensorRole;
use crate::model::weights::{LayerWeights, TensorReader};

/// Bytes of the head's rows, as float32, that are read at a time.
const PIECE_BYTES: u64 = 8 << 20;
/// Minimum and maximum rows of a piece: each thread holds the logits of a block of tokens for it.
const PIECE_ROWS: (u64, u64) = (64, 4096);

/// Returns the rows of the head in a piece, for rows of `width` numbers.
pub(super) fn piece_rows(width: u64) -> u64 {
    (PIECE_BYTES / (4 * width.max(1))).clamp(PIECE_ROWS.0, PIECE_ROWS.1)
}

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

/// Results requested from the head for one window, or for one of its pieces.
#[derive(Clone)]
pub(super) struct HeadRequest<'a> {
    /// All tokens of the window.
    pub(super) ids: &'a [u32],
    /// Tokens that the piece has states of.
    pub(super) rows: Range<usize>,
    /// First row whose next token's loss is requested.
    pub(super) from: usize,
    /// Whether the logits after the last token are requested.
    pub(super) last_logits: bool,
}

/// Results of the head for one window, or for one of its pieces.
#[derive(Default)]
pub(super) struct HeadOutput {
    /// Losses of the tokens after the requested rows, in nats.
    pub(super) losses: Vec<f64>,
    /// Squares of the head's input.
    pub(super) squares: Squares,
    pub(super) last_logits: Vec<f32>,
}

/// Applies the last norm and the head to every window.
pub(super) fn finish(
    model: &WholeModel,
    requests: &[HeadRequest<'_>],
    mut states: Vec<Vec<f32>>,
    kernel: Kernel,
) -> Result<Vec<HeadOutput>, ModelProblem> {
    let (spec, decoder) = (model.spec(), &model.decoder);
    let (hidden, width) = (spec.hidden_size as usize, spec.embedding_width() as usize);
    let mut weights = LayerWeights::read_tensors(&model.shards, &model.after)?;
    let norm = RowNorm {
        norm: decoder.last_norm.norm.clone(),
        weight: weights.take(TensorRole::LastNormWeight),
        bias: weights.take(TensorRole::LastNormBias),
    };
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
    let mut reader = TensorReader::new(&model.shards, model.head())?;
    let mut first = 0;
    loop {
        let piece = reader.next(piece_rows(width as u64))?;
        if piece.is_empty() {
            break;
        }
        if let Some(wrong) = piece.iter().find(|x| !x.is_finite()) {
            let message =
                format!("`{}` holds {wrong}: every loss would be undefined", model.head().name());
            return Err(
                ModelProblem::checkpoint(message).with_hint("download the checkpoint again")
            );
        }
        let rows = piece.len() / width;
        let bias = bias.get(first..first + rows);
        let packed = PackedWeights::new(kernel, &piece, bias, width);
        drop(piece);
        blocks
            .par_iter_mut()
            .flatten()
            .for_each(|block| block.accumulate(model, &packed, first, kernel));
        first += rows;
    }
    let outputs = blocks.into_iter().zip(squares).zip(requests);
    outputs.map(|((blocks, squares), end)| collect_output(blocks, squares, end.first())).collect()
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

impl HeadRequest<'_> {
    /// First row of the piece whose next token's loss is requested; otherwise the piece's end.
    fn first(&self) -> usize {
        self.from.clamp(self.rows.start, self.rows.end)
    }
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

fn collect_output(
    blocks: Vec<TokenBlock<'_>>,
    squares: Squares,
    from: usize,
) -> Result<HeadOutput, ModelProblem> {
    let mut outputs = HeadOutput { squares, ..HeadOutput::default() };
    for block in blocks {
        let losses = block.sums.finish().zip(&block.found);
        let losses = losses.map(|(sum, found)| sum - f64::from(*found));
        outputs.losses.extend(losses.take(block.targets.len()));
        outputs.last_logits.extend(block.last.into_iter().flatten());
    }
    match outputs.losses.iter().position(|loss| !loss.is_finite()) {
        None => Ok(outputs),
        Some(at) => Err(ModelProblem::checkpoint(format!(
            "the loss of token {} is {}: the head or the last norm is damaged, or too large for float32",
            from + at + 1,
            outputs.losses[at]
        ))),
    }
}
