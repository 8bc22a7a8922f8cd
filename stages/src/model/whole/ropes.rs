//! The rotations of windows, shared by layers, and by windows of all lengths that have the same frequencies.

use longsift_kernels::{Rope, Rotation};

use super::located::WholeModel;
use crate::model::rope::RopeSpec;

/// Tables of cosines and sines.
#[derive(Default)]
pub(super) struct Ropes(Vec<(Rotation, usize, Rope)>);

impl Ropes {
    /// Those of all layers below `depth` for windows of these lengths. Where frequencies depend on the length, it is the
    /// window's.
    pub(super) fn of(
        model: &WholeModel,
        depth: usize,
        lengths: impl Iterator<Item = usize>,
    ) -> Self {
        let mut lengths: Vec<usize> = lengths.collect();
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        lengths.dedup();
        let mut ropes = Self::default();
        for spec in model.layers[..depth].iter().filter_map(|layer| layer.spec.rope.as_ref()) {
            for tokens in &lengths {
                let rotation = spec.rotation(*tokens);
                if ropes.found(&rotation, *tokens).is_none() {
                    let table = rotation.table(*tokens);
                    ropes.0.push((rotation, *tokens, table));
                }
            }
        }
        ropes
    }

    fn found(&self, rotation: &Rotation, tokens: usize) -> Option<&Rope> {
        let same = |(of, length, _): &&(Rotation, usize, Rope)| of == rotation && *length >= tokens;
        self.0.iter().find(same).map(|(_, _, table)| table)
    }

    /// The rotations of a layer for a window of `tokens`.
    pub(super) fn get(&self, spec: Option<&RopeSpec>, tokens: usize) -> Option<&Rope> {
        let rotation = spec?.rotation(tokens);
        Some(self.found(&rotation, tokens).expect("there is a table for every layer and length"))
    }

    /// Bytes of the tables that [`Self::of`] would hold.
    pub(super) fn bytes(model: &WholeModel, lengths: &[u64]) -> u64 {
        let mut lengths = lengths.to_vec();
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        let mut known: Vec<Rotation> = Vec::new();
        let mut bytes = 0;
        for spec in model.layers.iter().filter_map(|layer| layer.spec.rope.as_ref()) {
            for tokens in &lengths {
                let rotation = spec.rotation(*tokens as usize);
                if !known.contains(&rotation) {
                    bytes += tokens * rotation.inverse_frequencies.len() as u64 * 8;
                    known.push(rotation);
                }
            }
        }
        bytes
    }
}
