//! Losses from the last hidden states, by pieces of the vocabulary: only the last token's logits are held completely.

use candle_core::{D, DType, Result, Tensor};

use super::attention::blocks;
use super::devices::{CandleDevice, failed};
use super::numbers::{LinearLayer, TensorNorm, squares_of};
use crate::model::problem::ModelProblem;
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;
use crate::model::whole::backend::{HeadOutput, HeadRequest, Squares};
use crate::model::whole::candle_memory::BLOCK_ROWS;
use crate::model::whole::located::WholeModel;
use crate::model::whole::memory::piece_rows;

/// Some rows of a window, while the vocabulary is processed.
struct HeadRows<'a> {
    /// `[rows, width]`
    rows: Tensor,
    /// The id after each row; the window's last token has none.
    targets: &'a [u32],
    /// Largest logit of each row so far, and the sum of powers of e of logits minus it.
    sums: Vec<(f64, f64)>,
    /// Logit of each target, set when its piece has been processed.
    found: Vec<f64>,
    /// Logits after the window's last token, if it is in this block.
    last: Option<Vec<f32>>,
}

/// Applies the last norm and the head to every window.
pub(super) fn finish(
    model: &WholeModel,
    device: &CandleDevice,
    requests: &[HeadRequest<'_>],
    states: Vec<Tensor>,
) -> std::result::Result<Vec<HeadOutput>, ModelProblem> {
    let (hidden, width) =
        (model.spec().hidden_size as usize, model.spec().embedding_width() as usize);
    let mut weights = LayerWeights::read(&model.after)?;
    let (norm, roles) = (&model.decoder.last_norm.norm, TensorRole::LAST_NORM);
    let norm = TensorNorm::take(device, norm, &mut weights, roles, hidden);
    let norm = norm.map_err(failed)?;
    let roles = TensorRole::HEAD_PROJECTION;
    let projection = model.decoder.head.projection.as_ref();
    let projection = projection.map(|_| LinearLayer::take(device, &mut weights, roles, hidden));
    let projection = projection.transpose().map_err(failed)?;
    let bias = weights.take(TensorRole::HeadBias);
    let prepared = requests.iter().zip(states).map(|(request, state)| {
        row_blocks(request, &state, &norm, projection.as_ref()).map_err(failed)
    });
    let mut prepared = prepared.collect::<std::result::Result<Vec<_>, _>>()?;
    model.read_head(piece_rows(width as u64), &mut |first, piece| {
        let rows = piece.len() / width;
        let bias = bias.get(first..first + rows).map(<[f32]>::to_vec).unwrap_or_default();
        let piece = LinearLayer::new(device, piece, bias, width).map_err(failed)?;
        let blocks = prepared.iter_mut().flat_map(|(_, blocks)| blocks);
        for block in blocks {
            block.absorb(model, &piece, first).map_err(failed)?;
        }
        Ok(())
    })?;
    let outputs = prepared.into_iter().zip(requests).map(|((squares, blocks), request)| {
        let mut output = HeadOutput { squares, ..HeadOutput::default() };
        for block in blocks {
            let losses = block.sums.iter().zip(&block.found);
            let losses = losses.map(|((largest, sum), found)| sum.ln() + largest - found);
            output.losses.extend(losses.take(block.targets.len()));
            output.last_logits.extend(block.last.into_iter().flatten());
        }
        request.checked(output)
    });
    outputs.collect()
}

/// Computes the input of the head: the squares of all rows, and the blocks of those that are requested.
fn row_blocks<'a>(
    request: &HeadRequest<'a>,
    state: &Tensor,
    norm: &TensorNorm,
    projection: Option<&LinearLayer>,
) -> Result<(Squares, Vec<HeadRows<'a>>)> {
    let (mut squares, mut prepared) = (Squares::default(), Vec::new());
    let ids = request.ids;
    for rows in blocks(request.rows.clone(), BLOCK_ROWS) {
        let mut input =
            norm.apply(&state.narrow(0, rows.start - request.rows.start, rows.len())?)?;
        if let Some(projection) = projection {
            input = projection.apply(&input)?;
        }
        squares.append(squares_of(&input)?);
        let first = request.first().max(rows.start);
        if first >= rows.end {
            continue;
        }
        let count = rows.end - first;
        prepared.push(HeadRows {
            rows: input.narrow(0, first - rows.start, count)?,
            targets: &ids[first + 1..ids.len().min(rows.end + 1)],
            sums: vec![(f64::NEG_INFINITY, 0.0); count],
            found: vec![f64::NAN; count],
            last: (request.last_logits && rows.end == ids.len()).then(Vec::new),
        });
    }
    Ok((squares, prepared))
}

impl HeadRows<'_> {
    /// Adds the logits of the vocabulary piece that starts with `first`.
    fn absorb(&mut self, model: &WholeModel, piece: &LinearLayer, first: usize) -> Result<()> {
        let head = &model.decoder.head;
        let mut logits = piece.apply(&self.rows)?;
        if head.multiplier.to_bits() != 1.0_f64.to_bits() {
            logits = (logits * head.multiplier)?;
        }
        if let Some(cap) = head.softcap {
            logits = ((logits / cap)?.tanh()? * cap)?;
        }
        let largest = logits.max_keepdim(D::Minus1)?;
        let powers = logits.broadcast_sub(&largest)?.exp()?;
        let sums = powers.to_dtype(DType::F64)?.sum(D::Minus1)?.to_vec1::<f64>()?;
        let largest = largest.squeeze(1)?.to_vec1::<f32>()?;
        for ((known, sum), (largest, new)) in self.sums.iter_mut().zip(largest.iter().zip(sums)) {
            let both = known.max(f64::from(*largest));
            *sum = *sum * (*known - both).exp() + new * (f64::from(*largest) - both).exp();
            *known = both;
        }
        let columns = piece.outputs();
        let targets = self.targets.iter().enumerate().filter_map(|(row, target)| {
            let column = (*target as usize).checked_sub(first)?;
            (column < columns).then(|| (row, (row * columns + column) as u32))
        });
        let (rows, indices): (Vec<usize>, Vec<u32>) = targets.unzip();
        if !rows.is_empty() {
            let indices = Tensor::new(indices, logits.device())?;
            let found = logits.flatten_all()?.index_select(&indices, 0)?.to_vec1::<f32>()?;
            rows.iter().zip(found).for_each(|(row, logit)| self.found[*row] = f64::from(logit));
        }
        if let Some(last) = &mut self.last {
            last.extend(logits.get(self.sums.len() - 1)?.to_vec1::<f32>()?);
        }
        Ok(())
    }
}
