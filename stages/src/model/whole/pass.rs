//! Runs sequences through the layers and the head: whole, or piece by piece with carried state.

use std::collections::BTreeMap;
use std::ops::Range;

use longsift_kernels::GatedLinearState;

use super::backend::{Backend, HeadOutput, HeadRequest, SUMMED, Squares};
use super::embedding;
use super::located::WholeModel;
use super::ropes::Ropes;
use crate::model::formats::LocatedTensor;
use crate::model::problem::ModelProblem;
use crate::model::spec::AttentionSpec;
use crate::model::tensors::TensorRole;
use crate::model::weights::LayerWeights;

/// Tokens of a round, for which every layer is read once: reading a layer takes as long as multiplying it with some tens of
/// tokens, on many threads some hundreds.
pub(super) const ROUND_TOKENS: usize = 1 << 15;

#[derive(Default)]
pub(super) struct SequenceResults {
    /// Input of the first layer, and output of each layer.
    pub(super) squares: Vec<Squares>,
    pub(super) ended: HeadOutput,
}

/// Consecutive tokens of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SequenceRows {
    sequence: usize,
    rows: Range<usize>,
}

/// Layers with softmax attention that are visited before they are applied.
pub(super) struct Visit<'v, B: Backend> {
    /// Their indices, ascending.
    pub(super) layers: &'v [u32],
    /// Callback with the states of whole sequences; `false` stops the run.
    #[expect(clippy::type_complexity, reason = "the type is used once")]
    pub(super) callback: &'v mut dyn FnMut(
        &AttentionSpec,
        &B::QueryKeys,
        &Ropes<'_>,
        &[B::State],
    ) -> Result<bool, ModelProblem>,
}

impl WholeModel {
    /// Whether sequences may run in pieces, because every layer carries a state of fixed size.
    pub(super) fn runs_in_pieces(&self) -> bool {
        self.layers.iter().all(|layer| layer.spec.gated_linear.is_some())
    }

    /// Numbers per partial sum of squares, at which pieces begin.
    pub(super) fn summed(&self) -> usize {
        let chunk = GatedLinearState::CHUNK * self.spec().hidden_size as usize;
        self.spec().gated_linear.as_ref().map_or(SUMMED, |_| chunk)
    }

    /// Runs sequences through all layers and the head; without losses, only up to the queries and keys of the highest
    /// visited layer. `None` if a callback returns `false` meanwhile.
    pub(super) fn run<B: Backend>(
        &self,
        backend: &B,
        ends: &[HeadRequest<'_>],
        losses: bool,
        visit: &mut Visit<'_, B>,
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<SequenceResults>>, ModelProblem> {
        let lengths: Vec<usize> = ends.iter().map(|end| end.ids.len()).collect();
        let visited = visit.layers.last().map_or(0, |layer| *layer as usize + 1);
        let depth = if losses { self.layers.len() } else { visited };
        let ropes = Ropes::new(self, depth, &lengths);
        let max = if self.runs_in_pieces() { ROUND_TOKENS } else { usize::MAX };
        let mut runs: Vec<SequenceResults> =
            ends.iter().map(|_| SequenceResults::default()).collect();
        let mut carried = BTreeMap::new();
        for round in rounds(&lengths, max) {
            let ids: Vec<&[u32]> =
                round.iter().map(|piece| &ends[piece.sequence].ids[piece.rows.clone()]).collect();
            let mut add = |index: usize, squares: Vec<Squares>| {
                for (piece, squares) in round.iter().zip(squares) {
                    let all = &mut runs[piece.sequence].squares;
                    all.resize(all.len().max(index + 1), Squares::default());
                    all[index].append(squares);
                }
            };
            let rows = embedding::hidden_states(self, &ids)?;
            add(0, rows.iter().map(|rows| Squares::new(rows, self.summed())).collect());
            let states = rows.into_iter().map(|rows| backend.state(rows));
            let mut states = states.collect::<Result<Vec<_>, _>>()?;
            for (index, located) in self.layers[..depth].iter().enumerate() {
                let spec = &located.spec;
                if !losses && index + 1 == depth {
                    let parts = located.parts.iter().filter(|part| is_for_query_keys(part));
                    let weights = LayerWeights::read(parts)?;
                    let query_keys = backend.query_keys(index, weights)?;
                    if !(visit.callback)(spec, &query_keys, &ropes, &states)? {
                        return Ok(None);
                    }
                    break;
                }
                let weights = LayerWeights::read(&located.parts)?;
                let layer = backend.layer(index, weights)?;
                if visit.layers.contains(&(index as u32))
                    && !(visit.callback)(spec, B::query_keys_of(&layer), &ropes, &states)?
                {
                    return Ok(None);
                }
                let before = round.iter().map(|piece| carried.remove(&(piece.sequence, index)));
                let mut now: Vec<Option<B::Carried>> = before.collect();
                let squares =
                    backend.apply(&layer, &ropes, &mut states, &mut now, should_continue)?;
                if !should_continue() {
                    return Ok(None);
                }
                check_finite(index, &squares)?;
                add(index + 1, squares);
                for (piece, now) in round.iter().zip(now) {
                    if let Some(now) = now.filter(|_| piece.rows.end < lengths[piece.sequence]) {
                        carried.insert((piece.sequence, index), now);
                    }
                }
            }
            if !losses {
                continue;
            }
            let of_piece = |piece: &SequenceRows| HeadRequest {
                rows: piece.rows.clone(),
                ..ends[piece.sequence].clone()
            };
            let of_round: Vec<HeadRequest<'_>> = round.iter().map(of_piece).collect();
            let ended = backend.head(&of_round, states)?;
            for (piece, ended) in round.iter().zip(ended) {
                let all = &mut runs[piece.sequence].ended;
                all.losses.extend(ended.losses);
                all.squares.append(ended.squares);
                all.last_logits.extend(ended.last_logits);
            }
        }
        Ok(Some(runs))
    }
}

/// Refuses hidden states after layer `index` that are not finite.
fn check_finite(index: usize, squares: &[Squares]) -> Result<(), ModelProblem> {
    match squares.iter().map(Squares::root_mean).find(|after| !after.is_finite()) {
        None => Ok(()),
        Some(after) => Err(ModelProblem::checkpoint(format!(
            "the hidden states after layer {index} are not finite ({after})"
        ))
        .with_hint(
            "the weights of this layer or an earlier one are damaged, or too large for float32",
        )),
    }
}

fn is_for_query_keys(part: &LocatedTensor) -> bool {
    part.needed.role.is_in(&[
        TensorRole::NORM,
        TensorRole::QUERY,
        TensorRole::KEY,
        TensorRole::QUERY_NORM,
        TensorRole::KEY_NORM,
    ])
}

/// Pieces of at most `max` tokens that run together, sequence by sequence: at most one sequence continues in the next
/// round. Pieces end with whole chunks or with their sequence.
fn rounds(lengths: &[usize], max: usize) -> Vec<Vec<SequenceRows>> {
    let mut rounds = vec![Vec::new()];
    let mut room = max;
    for (sequence, &length) in lengths.iter().enumerate() {
        let mut start = 0;
        while start < length {
            let mut end = length.min(start.saturating_add(room));
            if end < length {
                end -= (end - start) % GatedLinearState::CHUNK;
            }
            if end == start {
                rounds.push(Vec::new());
                room = max;
                continue;
            }
            if let Some(round) = rounds.last_mut() {
                round.push(SequenceRows { sequence, rows: start..end });
            }
            room -= end - start;
            start = end;
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_full_and_every_piece_but_the_last_of_a_sequence_has_whole_chunks() {
        let cut = |lengths: &[usize], max| {
            let pieces = |round: Vec<SequenceRows>| -> Vec<(usize, Range<usize>)> {
                round.into_iter().map(|piece| (piece.sequence, piece.rows)).collect()
            };
            rounds(lengths, max).into_iter().map(pieces).collect::<Vec<_>>()
        };
        assert_eq!(cut(&[300, 20], usize::MAX), [vec![(0, 0..300), (1, 0..20)]]);
        assert_eq!(
            cut(&[300, 20, 100], 128),
            [
                vec![(0, 0..128)],
                vec![(0, 128..256)],
                vec![(0, 256..300), (1, 0..20), (2, 0..64)],
                vec![(2, 64..100)]
            ]
        );
        assert_eq!(cut(&[128, 1], 128), [vec![(0, 0..128)], vec![(1, 0..1)]]);
    }
}
