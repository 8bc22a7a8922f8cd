//! Runs windows through the model.

use std::path::Path;

use super::backend::HeadRequest;
use super::dispatch::on_backend;
use super::located::{self, WholeModel};
use super::pass::{SequenceResults, Visit};
use crate::model::problem::{ModelProblem, with_remedies};

/// Part of the identity of all results: incremented when the same weights and tokens produce different bits.
pub const FORWARD_VERSION: u32 = 1;

/// Output of a whole model for one window.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardOutput {
    /// Loss of each token except the first, in nats, `[tokens - 1]`.
    pub losses: Vec<f64>,
    /// Root mean square of the first layer's input, each layer's output and the head's input, `[layers + 2]`.
    pub hidden_rms: Vec<f64>,
    /// Logits after the last token, `[vocabulary_size]`.
    pub last_logits: Vec<f32>,
}

impl WholeModel {
    /// Locates every tensor of the model and checks shapes and types; reads no weights.
    pub fn open(path: &Path) -> Result<Self, Vec<ModelProblem>> {
        Self::open_to(path, None)
    }

    /// Like [`Self::open`], for the embedding and the first `layers` layers only; tensors above these may be missing.
    pub fn open_to(path: &Path, layers: Option<u64>) -> Result<Self, Vec<ModelProblem>> {
        located::open(path, layers).map_err(|problems| {
            with_remedies(problems, "the download may be incomplete: download the checkpoint again")
        })
    }

    /// Computes losses and hidden states of some windows. No token is prepended; positions start at 0 in each window. Runs in the
    /// current rayon pool, with the same bits for any number of threads and any combination of windows. Memory:
    /// [`Self::memory`]. Fails for windows that do not fit the model, and for weights and results that are not finite.
    pub fn forward(&self, windows: &[&[u32]]) -> Result<Vec<ForwardOutput>, ModelProblem> {
        for ids in windows {
            self.check(ids)?;
        }
        let ends = windows
            .iter()
            .map(|ids| HeadRequest { last_logits: true, ..HeadRequest::losses(ids, 0) });
        let ends: Vec<HeadRequest<'_>> = ends.collect();
        let run = on_backend!(self, 0, backend => {
            let mut nothing = Visit { layers: &[], callback: &mut |_, _, _, _| Ok(true) };
            self.run(&backend, &ends, true, &mut nothing, &|| true)?
        });
        let run = run.expect("the callback never stops");
        let forward = |SequenceResults { squares, ended }: SequenceResults| {
            let squares = squares.into_iter().chain([ended.squares]);
            ForwardOutput {
                losses: ended.losses,
                hidden_rms: squares.map(|squares| squares.root_mean()).collect(),
                last_logits: ended.last_logits,
            }
        };
        Ok(run.into_iter().map(forward).collect())
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
