//! Rotation tables, shared by layers and by windows of all lengths with the same frequencies.

use longsift_kernels::{Rope, Rotation};

use super::located::WholeModel;
use crate::model::rope::RopeSpec;

#[derive(Default)]
pub(super) struct Ropes<'a> {
    /// Required rotations, each with its longest window.
    rotations: Vec<(Rotation, usize)>,
    /// Each kind of rotary embedding, with the longest window and the index of each rotation that it uses.
    specs: Vec<(&'a RopeSpec, Vec<(usize, usize)>)>,
    tables: Vec<Rope>,
}

impl<'a> Ropes<'a> {
    /// Creates the tables of all layers below `depth` for windows of these lengths.
    pub(super) fn new(
        model: &'a WholeModel,
        depth: usize,
        lengths: impl Iterator<Item = usize>,
    ) -> Self {
        let mut ropes = Self::without_tables(model, depth, lengths);
        let rotations = ropes.rotations.iter();
        ropes.tables = rotations.map(|(rotation, longest)| rotation.table(*longest)).collect();
        ropes
    }

    /// Returns the rotation of a layer for a window of `tokens` tokens.
    pub(super) fn get(&self, spec: Option<&RopeSpec>, tokens: usize) -> Option<&Rope> {
        let (_, lengths) = self.specs.iter().find(|(known, _)| Some(*known) == spec)?;
        let fitting = lengths.iter().filter(|(longest, _)| *longest >= tokens);
        let (_, table) = fitting.min().expect("there is a table for every layer and length");
        Some(&self.tables[*table])
    }

    /// Bytes of the tables that [`Self::new`] would hold for all layers.
    pub(super) fn bytes(model: &WholeModel, lengths: &[u64]) -> u64 {
        let lengths = lengths.iter().map(|tokens| *tokens as usize);
        let needed = Ropes::without_tables(model, model.layers.len(), lengths);
        let bytes = |(rotation, longest): &(Rotation, usize)| {
            (longest * rotation.inverse_frequencies.len() * 2 * size_of::<f32>()) as u64
        };
        needed.rotations.iter().map(bytes).sum()
    }

    fn without_tables(
        model: &'a WholeModel,
        depth: usize,
        lengths: impl Iterator<Item = usize>,
    ) -> Self {
        let mut lengths: Vec<usize> = lengths.collect();
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        let mut needed = Self::default();
        for spec in model.layers[..depth].iter().filter_map(|layer| layer.spec.rope.as_ref()) {
            if needed.specs.iter().all(|(known, _)| *known != spec) {
                needed.add(spec, &lengths);
            }
        }
        needed
    }

    /// Adds the rotations for windows of these lengths, the longest first. Memory estimates call this for many windows,
    /// so frequencies are computed only if the length changes them.
    fn add(&mut self, spec: &'a RopeSpec, lengths: &[usize]) {
        let mut indices: Vec<(usize, usize)> = Vec::new();
        for &tokens in lengths {
            let same_up_to = spec.same_frequencies_up_to(tokens as u64);
            if indices.last().is_none_or(|(longest, _)| same_up_to < *longest as u64) {
                let rotation = spec.rotation(tokens);
                let fits =
                    |(known, longest): &(Rotation, usize)| *known == rotation && *longest >= tokens;
                let index = self.rotations.iter().position(fits).unwrap_or_else(|| {
                    self.rotations.push((rotation, tokens));
                    self.rotations.len() - 1
                });
                indices.push((tokens, index));
            }
        }
        self.specs.push((spec, indices));
    }
}
