//! From the last hidden states to losses: the vocabulary in pieces, so that no row of logits is ever whole but the last.

use longsift_kernels::{Kernel, LogSumExp, PackedWeights, Pointwise};
use rayon::prelude::*;

use super::figures::{Forward, root_mean_square};
use super::located::WholeModel;
use super::norms::RowNorm;
use super::packed::BLOCK_ROWS;
use crate::model::problem::ModelProblem;
use crate::model::tensors::Role;
use crate::model::weights::{SmallWeights, TensorReader};

/// Bytes of the head's rows, as float32, that are read at a time.
const PIECE_BYTES: u64 = 8 << 20;
/// The fewest and the most rows of a piece: each thread holds the logits of a block of tokens for it.
const PIECE_ROWS: (u64, u64) = (64, 4096);

/// Rows of the head in a piece, for rows of `width` numbers.
pub(super) fn piece_rows(width: u64) -> u64 {
    (PIECE_BYTES / (4 * width.max(1))).clamp(PIECE_ROWS.0, PIECE_ROWS.1)
}

/// Some tokens of a window on their way through the vocabulary.
struct Block<'a> {
    /// `[tokens, width]`
    rows: &'a [f32],
    /// The id that comes after each token; the window's last token has none.
    targets: &'a [u32],
    sums: LogSumExp,
    /// The logit of each target, once its piece has passed.
    found: Vec<f32>,
    /// The logits behind the window's last token, if it is in this block.
    last: Option<Vec<f32>>,
}

/// The end of every window's way.
pub(super) fn finish(
    model: &WholeModel,
    windows: &[&[u32]],
    mut states: Vec<Vec<f32>>,
    mut rms: Vec<Vec<f64>>,
    kernel: Kernel,
) -> Result<Vec<Forward>, ModelProblem> {
    let (spec, decoder) = (model.spec(), &model.decoder);
    let (hidden, width) = (spec.hidden_size as usize, spec.embedding_width() as usize);
    let mut weights = SmallWeights::of(&model.shards, &model.after)?;
    let norm = RowNorm {
        norm: decoder.last_norm.norm.clone(),
        weight: weights.take(Role::LastNormWeight),
        bias: weights.take(Role::LastNormBias),
    };
    let projection = decoder.head.projection.as_ref();
    let projection = projection
        .map(|_| PackedWeights::new(kernel, &weights.take(Role::HeadProjection), None, hidden));
    let bias = weights.take(Role::HeadBias);
    for (state, rms) in states.iter_mut().zip(&mut rms) {
        state.par_chunks_mut(BLOCK_ROWS * hidden).for_each(|rows| norm.apply(hidden, rows));
        if let Some(projection) = &projection {
            let mut projected = vec![0.0; state.len() / hidden * width];
            projection.apply(state, &mut projected);
            *state = projected;
        }
        rms.push(root_mean_square(state));
    }
    let mut blocks: Vec<Vec<Block<'_>>> =
        windows.iter().zip(&states).map(|(ids, state)| blocks_of(ids, state, width)).collect();
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
        let piece = PackedWeights::new(kernel, &piece, bias, width);
        blocks.par_iter_mut().flatten().for_each(|block| block.meet(model, &piece, first, kernel));
        first += rows;
    }
    blocks.into_iter().zip(rms).map(|(blocks, rms)| joined(blocks, rms)).collect()
}

fn blocks_of<'a>(ids: &'a [u32], state: &'a [f32], width: usize) -> Vec<Block<'a>> {
    let count = ids.len().div_ceil(BLOCK_ROWS);
    let block = |(index, rows): (usize, &'a [f32])| {
        let start = index * BLOCK_ROWS;
        let end = start + rows.len() / width;
        Block {
            rows,
            targets: &ids[start + 1..ids.len().min(end + 1)],
            sums: LogSumExp::new(end - start),
            found: vec![f32::NAN; end - start],
            last: (index + 1 == count).then(Vec::new),
        }
    };
    state.chunks(BLOCK_ROWS * width).enumerate().map(block).collect()
}

impl Block<'_> {
    /// Takes the logits of the piece of the vocabulary that begins with `first`.
    fn meet(&mut self, model: &WholeModel, piece: &PackedWeights, first: usize, kernel: Kernel) {
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

fn joined(blocks: Vec<Block<'_>>, hidden_rms: Vec<f64>) -> Result<Forward, ModelProblem> {
    let mut forward = Forward { losses: Vec::new(), hidden_rms, last_logits: Vec::new() };
    for block in blocks {
        let losses = block.sums.finish().zip(&block.found);
        let losses = losses.map(|(sum, found)| sum - f64::from(*found));
        forward.losses.extend(losses.take(block.targets.len()));
        forward.last_logits.extend(block.last.into_iter().flatten());
    }
    match forward.losses.iter().position(|loss| !loss.is_finite()) {
        None => Ok(forward),
        Some(at) => Err(ModelProblem::checkpoint(format!(
            "the loss of token {} is {}: the head or the last norm is damaged, or too large for float32",
            at + 1,
            forward.losses[at]
        ))),
    }
}
