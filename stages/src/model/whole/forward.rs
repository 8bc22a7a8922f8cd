//! Runs windows through the model.

use std::path::Path;

use rayon::prelude::*;

use super::figures::{ForwardOutput, root_mean_square};
use super::head::{HeadOutput, HeadRequest};
use super::layer::Layer;
use super::located::{self, WholeModel};
use super::ropes::Ropes;
use super::{embedding, head};
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
        let kernel = self.kernel;
        let mut states = embedding::hidden_states(self, windows, kernel)?;
        let mut rms: Vec<Vec<f64>> =
            states.iter().map(|state| vec![root_mean_square(state)]).collect();
        let ropes = Ropes::new(self, self.layers.len(), windows.iter().map(|ids| ids.len()));
        for index in 0..self.layers.len() {
            let layer = Layer::read(self, index, kernel)?;
            let after = self.pass(index, &layer, &ropes, &mut states, &|| true)?;
            let after = after.expect("the callback never stops");
            rms.iter_mut().zip(after).for_each(|(rms, after)| rms.push(after));
        }
        let requests: Vec<HeadRequest<'_>> =
            windows.iter().map(|ids| HeadRequest { ids, from: 0, last_logits: true }).collect();
        let outputs = head::finish(self, &requests, states, kernel)?;
        let forward = |(mut hidden_rms, outputs): (Vec<f64>, HeadOutput)| {
            hidden_rms.push(outputs.rms);
            ForwardOutput { losses: outputs.losses, hidden_rms, last_logits: outputs.last_logits }
        };
        Ok(rms.into_iter().zip(outputs).map(forward).collect())
    }

    /// Runs all states through a layer and returns the root mean square of each, or `None` if `should_continue` returns
    /// `false` meanwhile.
    ///
    /// States run in parallel as long as their tokens together do not exceed those of the longest state. Short windows
    /// thus use all threads, with the memory of the longest one.
    pub(super) fn pass(
        &self,
        index: usize,
        layer: &Layer<'_>,
        ropes: &Ropes<'_>,
        states: &mut [Vec<f32>],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<f64>>, ModelProblem> {
        let hidden = self.spec().hidden_size as usize;
        let spec = self.layers[index].spec.rope.as_ref();
        let lengths: Vec<usize> = states.iter().map(Vec::len).collect();
        let mut rest = &mut *states;
        for count in parallel_groups(&lengths) {
            let (now, later) = rest.split_at_mut(count);
            now.par_iter_mut().for_each(|state| {
                layer.apply(ropes.get(spec, state.len() / hidden), state, should_continue);
            });
            rest = later;
        }
        if !should_continue() {
            return Ok(None);
        }
        let after: Vec<f64> = states.iter().map(|state| root_mean_square(state)).collect();
        match after.iter().find(|after| !after.is_finite()) {
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

/// Returns how many consecutive states of these lengths run through a layer in parallel: no group is longer than the
/// longest state.
pub(super) fn parallel_groups(lengths: &[usize]) -> Vec<usize> {
    let most = lengths.iter().copied().max().unwrap_or(0);
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
        assert_eq!(parallel_groups(&[8, 3, 3, 3, 8, 1]), [1, 2, 1, 1, 1]);
        assert_eq!(parallel_groups(&[8, 4, 4, 4, 1, 1]), [1, 2, 3]);
        assert_eq!(parallel_groups(&[2, 2]), [1, 1]);
        assert!(parallel_groups(&[]).is_empty());
    }
}
