//! Computes the input of the first layer from token ids.

use std::ops::Range;

use longsift_kernels::return_freed_arrays;

use super::located::WholeModel;
use crate::model::problem::ModelProblem;
use crate::model::row_steps::EmbeddingInput;
use crate::model::tensors::TensorRole;
use crate::model::weights::{LayerWeights, TensorReader};

/// Rows of the embedding per read.
pub(super) const ROWS: u64 = 1 << 12;

/// Computes the initial hidden states of each window, `[tokens, hidden_size]`. Rows of the embedding are read once for
/// all windows.
///
/// Every pass starts here, so this also makes the allocator return freed memory to the system: a layer's weights are
/// released before the next layer is read.
pub(super) fn hidden_states(
    model: &WholeModel,
    windows: &[&[u32]],
) -> Result<Vec<Vec<f32>>, ModelProblem> {
    return_freed_arrays();
    let spec = model.spec();
    let mut ids: Vec<u32> = windows.concat();
    ids.sort_unstable();
    ids.dedup();
    let rows = read_rows(model, &ids)?;
    let width = spec.embedding_width() as usize;
    let mut weights = LayerWeights::read(&model.before)?;
    let input = EmbeddingInput::new(spec, model.kernel, &mut weights);
    let positions = weights.take(TensorRole::Positions);
    let of_window = |ids_of: &&[u32]| {
        let mut state = Vec::with_capacity(ids_of.len() * width);
        for id in *ids_of {
            let at = ids.binary_search(id).expect("every id of a window is among all ids");
            state.extend_from_slice(&rows[at * width..][..width]);
        }
        let mut state = input.apply(state);
        state.iter_mut().zip(&positions).for_each(|(x, position)| *x += position);
        state
    };
    Ok(windows.iter().map(of_window).collect())
}

/// Reads the embeddings of some ascending ids, `[ids, embedding width]`.
fn read_rows(model: &WholeModel, ids: &[u32]) -> Result<Vec<f32>, ModelProblem> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for id in ids.iter().copied().map(u64::from) {
        match ranges.last_mut() {
            Some(range) if range.end == id => range.end += 1,
            _ => ranges.push(id..id + 1),
        }
    }
    let mut reader = TensorReader::for_rows(&model.embedding, &ranges)?;
    let mut rows = Vec::with_capacity(ids.len() * model.spec().embedding_width() as usize);
    for chunk in reader.chunks(ROWS) {
        rows.extend(chunk?);
    }
    if let Some(wrong) = rows.iter().position(|x| !x.is_finite()) {
        let id = ids[wrong / model.spec().embedding_width() as usize];
        let message =
            format!("`{}` holds {} for the token id {id}", model.embedding.name(), rows[wrong]);
        return Err(ModelProblem::checkpoint(message).with_hint("download the checkpoint again"));
    }
    Ok(rows)
}
