//! Finds stored tensors by name and checks type and shape; notes missing and wrong ones.

use safetensors::Dtype;

use super::format::StorageFormat;
use super::method::Method;
use crate::model::entry::StoredType;
use crate::model::problem::ModelProblem;
use crate::model::stored::{StoredTensor, StoredTensors};
use crate::model::tensors::NeededTensor;

/// Types of plain weights, scales and biases.
pub(super) const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

#[derive(Debug)]
pub(crate) struct StoredMatrix {
    pub(crate) format: Box<dyn StorageFormat>,
    /// Stored tensors in the format's order.
    pub(crate) stored: Vec<StoredTensor>,
}

#[derive(Debug)]
pub(crate) struct LocatedTensor {
    pub(crate) needed: NeededTensor,
    pub(crate) format: Box<dyn StorageFormat>,
    /// The stored tensors that it consists of, in the format's order.
    pub(crate) stored: Vec<StoredTensor>,
}

impl LocatedTensor {
    /// Returns the name on disk, or that of the first stored tensor.
    pub(crate) fn name(&self) -> &str {
        &self.stored[0].name
    }

    /// Returns the indices of the stored tensors that are read once and whole.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> {
        (0..self.stored.len()).filter(|index| self.format.slice(*index, &(0..0)).is_none())
    }

    /// Returns the bytes that building the table reads for this tensor.
    pub(crate) fn bytes(&self) -> u64 {
        let kept: u64 = self.kept().map(|index| self.stored[index].entry.byte_length()).sum();
        let sliced = |rows| {
            let slices = (0..self.stored.len()).filter_map(|index| self.format.slice(index, rows));
            slices.map(|slice| slice.bytes()).sum::<u64>()
        };
        kept + self.needed.rows.iter().map(sliced).sum::<u64>()
    }

    /// Refuses numbers that are not finite: every `result` would be undefined.
    pub(crate) fn check_finite(&self, numbers: &[f32], result: &str) -> Result<(), ModelProblem> {
        let Some(wrong) = numbers.iter().find(|number| !number.is_finite()) else { return Ok(()) };
        let message = format!("`{}` holds {wrong}: every {result} would be undefined", self.name());
        Err(ModelProblem::checkpoint(message).with_hint("download the checkpoint again"))
    }
}

/// Finds the stored tensors of a required one and notes problems.
pub(crate) struct Finder<'a> {
    pub(crate) tensors: &'a mut StoredTensors,
    /// Possible name prefixes on disk, the usual one first.
    pub(crate) prefixes: &'static [&'static str],
    /// Name of the quantisation in `config.json`, for messages.
    pub(crate) quantization: Option<&'a str>,
    pub(crate) method: &'a Method,
    /// Whether head and embedding share one tensor, which may be stored under either name.
    pub(crate) tied: bool,
    pub(crate) missing: Vec<String>,
    pub(crate) problems: Vec<ModelProblem>,
}

impl Finder<'_> {
    /// Returns the required tensors that were found, in order.
    pub(crate) fn find_all(&mut self, needed: Vec<NeededTensor>) -> Vec<LocatedTensor> {
        let find = |needed: NeededTensor| {
            let StoredMatrix { format, stored } = self.find(&needed)?;
            Some(LocatedTensor { needed, format, stored })
        };
        needed.into_iter().filter_map(find).collect()
    }

    /// Returns the names of missing tensors, and all problems.
    pub(crate) fn finish(self) -> (Vec<String>, Vec<ModelProblem>) {
        let problems = self.tensors.problems.drain(..).chain(self.problems);
        (self.missing, problems.collect())
    }

    /// Returns the name with this checkpoint's prefix.
    pub(crate) fn on_disk(&self, name: &str) -> Option<String> {
        self.all_on_disk(name).next()
    }

    /// Returns the name with each prefix under which this checkpoint has it.
    pub(super) fn all_on_disk(&self, name: &str) -> impl Iterator<Item = String> {
        let names = self.prefixes.iter().map(move |prefix| format!("{prefix}{name}"));
        names.filter(|name| self.tensors.contains(name))
    }

    pub(super) fn stored(&mut self, name: &str) -> Option<StoredTensor> {
        if !self.tensors.contains(name) {
            self.missing.push(name.to_owned());
        }
        self.tensors.find(name)
    }

    pub(super) fn typed(&mut self, name: &str, types: &[Dtype]) -> Option<StoredTensor> {
        let stored = self.stored(name)?;
        if matches!(stored.entry.dtype, StoredType::Numbers(dtype) if types.contains(&dtype)) {
            return Some(stored);
        }
        let (method, hint) = match self.quantization {
            Some(method) => (
                format!(" (the checkpoint is quantised: `{method}`)"),
                "use the original checkpoint",
            ),
            None => (String::new(), "use the config.json that came with these weights"),
        };
        let supported = types.iter().map(|dtype| dtype.to_string().to_lowercase());
        let supported: Vec<String> = supported.collect();
        let message = format!(
            "`{name}` has the type {}{method}; supported types: {}",
            stored.entry.dtype,
            supported.join(", ")
        );
        self.problems.push(ModelProblem::settings(message).with_hint(hint));
        None
    }

    /// Finds a required tensor of one of some types and an exact shape.
    pub(super) fn shaped(
        &mut self,
        name: &str,
        types: &[Dtype],
        shape: &[u64],
    ) -> Option<StoredTensor> {
        let stored = self.typed(name, types)?;
        if stored.entry.shape == shape {
            return Some(stored);
        }
        self.wrong_shape(&stored, &format!("{shape:?}"));
        None
    }

    pub(super) fn wrong_shape(&mut self, stored: &StoredTensor, implied: &str) {
        self.problems.push(ModelProblem::checkpoint(format!(
            "`{}` in `{}` has shape {:?}; config.json implies {implied}",
            stored.name, stored.shard.name, stored.entry.shape
        )));
    }
}
