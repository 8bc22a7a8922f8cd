//! Runs sequences through all layers and the head: whole, or piece by piece with carried state.

use std::collections::BTreeMap;
use std::ops::Range;

use longsift_kernels::GatedLinearState;

use super::embedding;
use super::figures::{SUMMED, Squares};
use super::gated_linear::Carried;
use super::head::{self, HeadOutput, HeadRequest};
use super::layer::Layer;
use super::located::WholeModel;
use super::ropes::Ropes;
use crate::model::problem::ModelProblem;

/// Tokens of a round, for which every layer is read once: reading a layer takes as long as multiplying it with some tens of
/// tokens, on many threads some hundreds.
pub(super) const ROUND_TOKENS: usize = 1 << 15;

/// Results of a sequence.
#[derive(Default)]
pub(super) struct Run {
    /// Input of the first layer, and output of each layer.
    pub(super) squares: Vec<Squares>,
    pub(super) ended: HeadOutput,
}

/// Consecutive tokens of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    sequence: usize,
    rows: Range<usize>,
}

/// Callback before each layer, with its index and the states of whole sequences; `false` stops the run.
pub(super) type BeforeLayer<'a> =
    dyn FnMut(usize, &Layer<'_>, &Ropes<'_>, &[Vec<f32>]) -> bool + 'a;

impl WholeModel {
    /// Whether sequences may run in pieces, so that memory does not grow with their length: every layer carries a state
    /// of fixed size.
    pub(super) fn runs_in_pieces(&self) -> bool {
        self.layers.iter().all(|layer| layer.spec.gated_linear.is_some())
    }

    /// Numbers per partial sum of squares, at which pieces begin.
    pub(super) fn summed(&self) -> usize {
        let chunk = GatedLinearState::CHUNK * self.spec().hidden_size as usize;
        self.spec().gated_linear.as_ref().map_or(SUMMED, |_| chunk)
    }

    /// Runs sequences through all layers and the head. `None` if a callback returns `false` meanwhile.
    pub(super) fn run(
        &self,
        ends: &[HeadRequest<'_>],
        before_layer: &mut BeforeLayer<'_>,
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<Run>>, ModelProblem> {
        let lengths: Vec<usize> = ends.iter().map(|end| end.ids.len()).collect();
        let ropes = Ropes::new(self, self.layers.len(), lengths.iter().copied());
        let most = if self.runs_in_pieces() { ROUND_TOKENS } else { usize::MAX };
        let mut runs: Vec<Run> = ends.iter().map(|_| Run::default()).collect();
        let mut carried = BTreeMap::new();
        for round in rounds(&lengths, most) {
            let ids: Vec<&[u32]> =
                round.iter().map(|piece| &ends[piece.sequence].ids[piece.rows.clone()]).collect();
            let mut states = embedding::hidden_states(self, &ids, self.kernel)?;
            let mut add = |index: usize, squares: Vec<Squares>| {
                for (piece, squares) in round.iter().zip(squares) {
                    let all = &mut runs[piece.sequence].squares;
                    all.resize(all.len().max(index + 1), Squares::default());
                    all[index].append(squares);
                }
            };
            add(0, states.iter().map(|state| Squares::new(state, self.summed())).collect());
            for index in 0..self.layers.len() {
                let layer = Layer::read(self, index, self.kernel)?;
                if !before_layer(index, &layer, &ropes, &states) {
                    return Ok(None);
                }
                let before = round.iter().map(|piece| carried.remove(&(piece.sequence, index)));
                let mut now: Vec<Option<Carried>> = before.collect();
                let passed =
                    self.pass(index, &layer, &ropes, (&mut states, &mut now), should_continue)?;
                let Some(squares) = passed else { return Ok(None) };
                add(index + 1, squares);
                for (piece, now) in round.iter().zip(now) {
                    if let Some(now) = now.filter(|_| piece.rows.end < lengths[piece.sequence]) {
                        carried.insert((piece.sequence, index), now);
                    }
                }
            }
            let of_piece = |piece: &Piece| HeadRequest {
                rows: piece.rows.clone(),
                ..ends[piece.sequence].clone()
            };
            let of_round: Vec<HeadRequest<'_>> = round.iter().map(of_piece).collect();
            let ended = head::finish(self, &of_round, states, self.kernel)?;
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

/// Pieces of at most `most` tokens that run together, sequence by sequence: at most one sequence continues in the next
/// round. Pieces end with whole chunks or with their sequence.
fn rounds(lengths: &[usize], most: usize) -> Vec<Vec<Piece>> {
    let mut rounds = vec![Vec::new()];
    let mut room = most;
    for (sequence, &length) in lengths.iter().enumerate() {
        let mut start = 0;
        while start < length {
            let mut end = length.min(start.saturating_add(room));
            if end < length {
                end -= (end - start) % GatedLinearState::CHUNK;
            }
            if end == start {
                rounds.push(Vec::new());
                room = most;
                continue;
            }
            if let Some(round) = rounds.last_mut() {
                round.push(Piece { sequence, rows: start..end });
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
        let cut = |lengths: &[usize], most| {
            let pieces = |round: Vec<Piece>| -> Vec<(usize, Range<usize>)> {
                round.into_iter().map(|piece| (piece.sequence, piece.rows)).collect()
            };
            rounds(lengths, most).into_iter().map(pieces).collect::<Vec<_>>()
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
