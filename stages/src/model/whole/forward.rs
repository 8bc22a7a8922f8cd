//! The way of windows through all layers.

use std::path::Path;

use longsift_kernels::{ElementType, Kernel, Rope};

use super::figures::{Forward, root_mean_square};
use super::layer::Layer;
use super::located::{self, WholeModel};
use super::{embedding, head};
use crate::model::problem::{ModelProblem, with_remedies};
use crate::model::rope::RopeSpec;

impl WholeModel {
    /// Locates every tensor of the model and checks shapes and types; reads no weights.
    ///
    /// # Errors
    /// Everything that is wrong with config.json or with the files, together; a model type of which only the first
    /// layer is known.
    pub fn open(path: &Path) -> Result<Self, Vec<ModelProblem>> {
        located::open(path).map_err(|problems| {
            with_remedies(problems, "is the download complete? fetch the checkpoint again")
        })
    }

    /// Losses and hidden states of some windows. Nothing is prepended; positions begin at 0 in each.
    ///
    /// Runs in the current rayon pool and gives the same bits for any number of threads, and whatever windows stand beside
    /// one another. Memory: [`Self::memory`].
    ///
    /// # Errors
    /// A window without tokens, ids beyond the vocabulary, more tokens than learned positions; weights that cannot be
    /// read or are not finite, by tensor; figures that are not finite, by layer.
    pub fn forward(&self, windows: &[&[u32]]) -> Result<Vec<Forward>, ModelProblem> {
        for ids in windows {
            self.check(ids)?;
        }
        let kernel = Kernel::detect(ElementType::F32);
        let mut states = embedding::hidden_states(self, windows, kernel)?;
        let hidden = self.spec().hidden_size as usize;
        let mut rms: Vec<Vec<f64>> =
            states.iter().map(|state| vec![root_mean_square(state)]).collect();
        let mut ropes = Ropes::default();
        for index in 0..self.layers.len() {
            let layer = Layer::read(self, index, kernel)?;
            for (state, rms) in states.iter_mut().zip(&mut rms) {
                let rope = ropes.of(self.layers[index].spec.rope.as_ref(), state.len() / hidden);
                layer.apply(rope, state);
                let after = root_mean_square(state);
                if !after.is_finite() {
                    return Err(ModelProblem::checkpoint(format!(
                        "the hidden states behind layer {index} are not finite ({after})"
                    ))
                    .with_hint("the weights of this layer or of one before it are damaged, or too large for float32"));
                }
                rms.push(after);
            }
        }
        head::finish(self, windows, states, rms, kernel)
    }

    fn check(&self, ids: &[u32]) -> Result<(), ModelProblem> {
        let spec = self.spec();
        if ids.is_empty() {
            return Err(ModelProblem::settings("a window without tokens has no losses"));
        }
        let beyond = |(_, id): &(usize, &u32)| u64::from(**id) >= spec.vocabulary_size;
        if let Some((position, id)) = ids.iter().enumerate().find(beyond) {
            let message = format!(
                "token {position} of the window has the id {id}; this {} model has {} entries",
                spec.model_type, spec.vocabulary_size
            );
            return Err(ModelProblem::settings(message).with_hint("use the model's own tokenizer"));
        }
        spec.window_problem(ids.len() as u64).map_or(Ok(()), Err)
    }
}

/// The rotations of windows; layers share them.
#[derive(Default)]
struct Ropes(Vec<(RopeSpec, usize, Rope)>);

impl Ropes {
    /// The rotations of a layer for a window of `tokens`: where frequencies depend on the length, it is the window's.
    fn of(&mut self, spec: Option<&RopeSpec>, tokens: usize) -> Option<&Rope> {
        let spec = spec?;
        let known = self.0.iter().position(|(of, length, _)| of == spec && *length == tokens);
        let index = known.unwrap_or_else(|| {
            self.0.push((spec.clone(), tokens, spec.rotation(tokens).table(tokens)));
            self.0.len() - 1
        });
        Some(&self.0[index].2)
    }
}
