//! Identity of a whole model: on this machine without reading weights, and by content on any machine.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::located::WholeModel;
use crate::contract::{hex, sha256};
use crate::model::checkpoint::location_facts;
use crate::model::formats::LocatedTensor;
use crate::model::problem::ModelProblem;
use crate::model::stored::StoredTensor;

/// Bytes per read, each hashed at once.
const PIECE_BYTES: u64 = 8 << 20;

impl WholeModel {
    /// Returns a SHA-256 of the requested layers' computation, independent of the weights.
    pub fn description_digest(&self) -> String {
        let layers: Vec<String> = self.layers.iter().map(|layer| layer.spec.digest()).collect();
        let description = json!({ "decoder": self.decoder, "layers": layers });
        sha256(description.to_string())
    }

    /// Returns a SHA-256 that detects a changed model without reading its weights: the folder, headers, sizes and times
    /// of its files, and the computation. Valid on this machine only.
    pub fn identity(&self) -> String {
        let [folder, files, parts] = location_facts(self.config(), self.all_parts());
        let description = self.description_digest();
        let identity =
            json!({ "folder": folder, "files": files, "description": description, "parts": parts });
        sha256(identity.to_string())
    }

    /// Bytes of weights that one pass reads.
    pub fn weights_bytes(&self) -> u64 {
        self.stored().values().map(|stored| stored.entry.byte_length()).sum()
    }

    /// Returns a SHA-256 of all tensors' content, or `None` if `should_continue` returns `false`. Reads all weights.
    pub fn weights_digest(
        &self,
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<String>, ModelProblem> {
        let stored = self.stored();
        let digest = |StoredTensor { name, shard, entry }: &StoredTensor| {
            let mut reader = shard.reader()?;
            let (length, mut hash) = (entry.byte_length(), Sha256::new());
            for offset in (0..length).step_by(PIECE_BYTES as usize) {
                if !should_continue() {
                    return Ok(None);
                }
                let mut bytes = vec![0; PIECE_BYTES.min(length - offset) as usize];
                reader.read(entry, offset, &mut bytes)?;
                hash.update(&bytes);
            }
            let dtype = entry.dtype.to_string();
            Ok(Some((name.clone(), dtype, entry.shape.clone(), hex(&hash.finalize()))))
        };
        let tensors: Result<Vec<_>, ModelProblem> =
            stored.into_par_iter().map(|(_, stored)| digest(stored)).collect();
        let tensors: Option<Vec<_>> = tensors?.into_iter().collect();
        Ok(tensors.map(|tensors| sha256(json!(tensors).to_string())))
    }

    fn all_parts(&self) -> impl Iterator<Item = &LocatedTensor> {
        let layers = self.layers.iter().flat_map(|layer| &layer.parts);
        let ends = self.before.iter().chain(&self.after).chain(&self.head);
        std::iter::once(&self.embedding).chain(ends).chain(layers)
    }

    /// Returns each stored tensor that is read, once, by name.
    fn stored(&self) -> BTreeMap<&str, &StoredTensor> {
        let all = self.all_parts().flat_map(|part| &part.stored);
        all.map(|stored| (&*stored.name, stored)).collect()
    }
}
