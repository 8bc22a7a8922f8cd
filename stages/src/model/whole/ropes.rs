//! Rotation tables, shared by layers and by windows of all lengths with the same frequencies.

use longsift_kernels::{Rope, Rotation};

use super::located::WholeModel;
use crate::model::rope::RopeSpec;

/// Rotary embeddings of layers, each with its tables and their lengths, the longest first.
pub(super) struct Ropes<'a>(Vec<(&'a RopeSpec, Vec<(usize, Rope)>)>);

impl<'a> Ropes<'a> {
    /// Creates the tables of all layers below `depth` for windows of these lengths.
    pub(super) fn new(model: &'a WholeModel, depth: usize, lengths: &[usize]) -> Self {
        let table = |(longest, rotation): (usize, Rotation)| (longest, rotation.table(longest));
        let all = rotations(model, depth, lengths).into_iter();
        Self(all.map(|(spec, own)| (spec, own.into_iter().map(table).collect())).collect())
    }

    /// Returns the rotation of a layer for a window of `tokens` tokens.
    pub(super) fn get(&self, spec: Option<&RopeSpec>, tokens: usize) -> Option<&Rope> {
        let (_, tables) = self.0.iter().find(|(known, _)| Some(*known) == spec)?;
        let shortest = tables.iter().rfind(|(longest, _)| *longest >= tokens);
        Some(&shortest.expect("there is a table for every layer and length").1)
    }

    /// Bytes of the tables that [`Self::new`] would hold for all layers.
    pub(super) fn bytes(model: &WholeModel, lengths: &[u64]) -> u64 {
        let lengths: Vec<usize> = lengths.iter().map(|tokens| *tokens as usize).collect();
        let all = rotations(model, model.layers.len(), &lengths).into_iter();
        let bytes = |(longest, rotation): (usize, Rotation)| {
            (longest * rotation.inverse_frequencies.len() * 2 * size_of::<f32>()) as u64
        };
        all.flat_map(|(_, own)| own).map(bytes).sum()
    }
}

/// Returns the rotations of all layers below `depth` for windows of these lengths. Memory estimates call this for many
/// windows, so frequencies are computed only if the length changes them.
fn rotations<'a>(
    model: &'a WholeModel,
    depth: usize,
    lengths: &[usize],
) -> Vec<(&'a RopeSpec, Vec<(usize, Rotation)>)> {
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable_by(|one, other| other.cmp(one));
    let mut all: Vec<(&RopeSpec, Vec<(usize, Rotation)>)> = Vec::new();
    for spec in model.layers[..depth].iter().filter_map(|layer| layer.spec.rope.as_ref()) {
        if all.iter().any(|(known, _)| *known == spec) {
            continue;
        }
        let mut own: Vec<(usize, Rotation)> = Vec::new();
        for &tokens in &lengths {
            let same_up_to = spec.same_frequencies_up_to(tokens as u64);
            if own.last().is_none_or(|(longest, _)| same_up_to < *longest as u64) {
                own.push((tokens, spec.rotation(tokens)));
            }
        }
        all.push((spec, own));
    }
    all
}
