//! Runs windows through the model.

use std::path::Path;

use rayon::prelude::*;

use super::figures::{ForwardOutput, Squares};
use super::gated_linear::{Carried, PIECE_TOKENS};
use super::head::HeadRequest;
use super::layer::Layer;
use super::located::{self, WholeModel};
use super::pieces::Run;
use super::ropes::Ropes;
use crate::model::problem::{ModelProblem, with_remedies};

/// Part of the identity of all results of whole models: incremented when the same weights and tokens produce different
/// bits.
pub const FORWARD_VERSION: u32 = 1;

impl WholeModel {
    /// Locates every tensor of the model and checks shapes and types; reads no weights.
    ///
    /// # Errors
    /// All problems in config.json or in the files; the model type is supported for its first layer only.
    pub fn open(path: &Path) -> Result<Self, Vec<ModelProblem>> {
        Self::open_to(path, None)
    }

    /// Like [`Self::open`], for the embedding and the first `layers` layers only; tensors above these may be missing.
    ///
    /// # Errors
    /// As [`Self::open`]; `layers` exceeds the model's layers.
    pub fn open_to(path: &Path, layers: Option<u64>) -> Result<Self, Vec<ModelProblem>> {
        located::open(path, layers).map_err(|problems| {
            with_remedies(problems, "the download may be incomplete: download the checkpoint again")
        })
    }

    /// Computes losses and hidden states of some windows. No token is prepended; positions start at 0 in each window.
    ///
    /// Runs in the current rayon pool. The result has the same bits for any number of threads and any combination of
    /// windows. Memory: [`Self::memory`].
    ///
    /// # Errors
    /// A window without tokens, ids beyond the vocabulary, more tokens than learned positions; weights that cannot be
    /// read or are not finite, by tensor; results that are not finite, by layer.
    pub fn forward(&self, windows: &[&[u32]]) -> Result<Vec<ForwardOutput>, ModelProblem> {
        for ids in windows {
            self.check(ids)?;
        }
        let ends = windows.iter().map(|ids| HeadRequest {
            ids,
            rows: 0..ids.len(),
            from: 0,
            last_logits: true,
        });
        let ends: Vec<HeadRequest<'_>> = ends.collect();
        let run =
            self.run(&ends, &mut |_, _, _, _| true, &|| true)?.expect("the callback never stops");
        let forward = |Run { squares, ended }: Run| {
            let squares = squares.into_iter().chain([ended.squares]);
            ForwardOutput {
                losses: ended.losses,
                hidden_rms: squares.map(|squares| squares.root_mean()).collect(),
                last_logits: ended.last_logits,
            }
        };
        Ok(run.into_iter().map(forward).collect())
    }

    /// Runs all states through a layer and returns the squares of each, or `None` if `should_continue` returns `false`
    /// meanwhile.
    ///
    /// States run in parallel as long as their tokens together do not exceed those of the longest state, or of a piece with
    /// gated linear attention. Short windows thus use all threads, with the memory of the longest one.
    pub(super) fn pass(
        &self,
        index: usize,
        layer: &Layer<'_>,
        ropes: &Ropes<'_>,
        (states, carried): (&mut [Vec<f32>], &mut [Option<Carried>]),
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<Squares>>, ModelProblem> {
        let hidden = self.spec().hidden_size as usize;
        let spec = &self.layers[index].spec;
        let most = spec.gated_linear.as_ref().map(|_| PIECE_TOKENS * hidden);
        let lengths: Vec<usize> = states.iter().map(Vec::len).collect();
        let mut rest = (&mut *states, carried);
        for count in parallel_groups(&lengths, most) {
            let (now, later) = rest.0.split_at_mut(count);
            let (carried, carried_later) = rest.1.split_at_mut(count);
            now.par_iter_mut().zip(carried).for_each(|(state, carried)| {
                let rope = ropes.get(spec.rope.as_ref(), state.len() / hidden);
                layer.apply(rope, state, carried, should_continue);
            });
            rest = (later, carried_later);
        }
        if !should_continue() {
            return Ok(None);
        }
        let squares = states.iter().map(|state| Squares::new(state, self.summed()));
        let after: Vec<Squares> = squares.collect();
        match after.iter().map(Squares::root_mean).find(|after| !after.is_finite()) {
            None => Ok(Some(after)),
            Some(after) => Err(ModelProblem::checkpoint(format!(
                "the hidden states after layer {index} are not finite ({after})"
            ))
            .with_hint(
                "the weights of this layer or an earlier one are damaged, or too large for float32",
            )),
        }
    }

    pub(super) fn check(&self, ids: &[u32]) -> Result<(), ModelProblem> {
        let spec = self.spec();
        if ids.is_empty() {
            return Err(ModelProblem::settings("a window without tokens has no losses"));
        }
        let beyond = |(_, id): &(usize, &u32)| u64::from(**id) >= spec.vocabulary_size;
        if let Some((position, id)) = ids.iter().enumerate().find(beyond) {
            let message = format!(
                "token {position} of the window has the id {id}; the vocabulary of this {} model has {} entries",
                spec.model_type, spec.vocabulary_size
            );
            return Err(ModelProblem::settings(message).with_hint("use the model's own tokenizer"));
        }
        spec.window_problem(ids.len() as u64).map_or(Ok(()), Err)
    }
}

/// Returns how many consecutive states of these lengths run through a layer in parallel: no group of several is longer than
/// `most`, by default the longest state.
pub(super) fn parallel_groups(lengths: &[usize], most: Option<usize>) -> Vec<usize> {
    let most = most.or_else(|| lengths.iter().copied().max()).unwrap_or(0);
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for length in lengths {
        match groups.last_mut() {
            Some((count, total)) if *total + length <= most => {
                (*count, *total) = (*count + 1, *total + length);
            }
            _ => groups.push((1, *length)),
        }
    }
    groups.into_iter().map(|(count, _)| count).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel_groups;

    #[test]
    fn parallel_states_are_no_longer_than_the_longest() {
        assert_eq!(parallel_groups(&[8, 3, 3, 3, 8, 1], None), [1, 2, 1, 1, 1]);
        assert_eq!(parallel_groups(&[8, 4, 4, 4, 1, 1], None), [1, 2, 3]);
        assert_eq!(parallel_groups(&[9, 2, 2, 1], Some(4)), [1, 2, 1]);
        assert_eq!(parallel_groups(&[2, 2], None), [1, 1]);
        assert!(parallel_groups(&[], None).is_empty());
    }
}
