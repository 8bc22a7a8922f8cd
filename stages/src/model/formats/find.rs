//! Locates required tensors, in any storage format.

use safetensors::Dtype;

use super::finder::{Finder, StoredMatrix};
use super::method::{self, Method};
use super::{awq, bitsandbytes, gguf, gptq, packed_rows, plain, scaled};
use crate::model::problem::{ModelProblem, listed};
use crate::model::tensors::{NeededTensor, TensorRole};

/// Names of a head that may hold the embedding as well.
pub(crate) const HEADS: [&str; 2] = ["lm_head.weight", "language_model.lm_head.weight"];

impl Finder<'_> {
    /// Whether the checkpoint lists all of these tensors; opens no file.
    pub(crate) fn has_all(&self, needed: &[NeededTensor]) -> bool {
        needed.iter().all(|needed| self.stored_name(needed).is_some())
    }

    /// Locates a required tensor and its format; `None` with the problem noted.
    pub(crate) fn find(&mut self, needed: &NeededTensor) -> Option<StoredMatrix> {
        let names: Vec<String> = self.all_on_disk(&needed.name).collect();
        if names.len() > 1 && self.problems.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let message =
                format!("the checkpoint has one tensor under several names: {}", listed(&names, 6));
            self.problems.push(
                ModelProblem::checkpoint(message)
                    .with_hint("remove those that the model does not use"),
            );
        }
        match self.stored_name(needed) {
            Some(StoredName::Named(name)) => match self.method {
                Method::Gguf { architecture, head_dim } => {
                    gguf::find(self, &name, needed, architecture, *head_dim)
                }
                _ => self.named(&name, needed),
            },
            Some(StoredName::Packed(stem)) => self.packed(&stem, needed),
            None if let Some(name) = self.unexplained(needed) => {
                let message = format!("`{name}` is packed, but config.json states no method");
                self.problems.push(ModelProblem::settings(message).with_hint(method::NO_METHOD));
                None
            }
            None => {
                let gguf = matches!(self.method, Method::Gguf { .. });
                let name = gguf.then(|| gguf::gguf_name(&needed.name)).flatten();
                let usual = || format!("{}{}", self.prefixes[0], needed.name);
                self.missing.push(name.unwrap_or_else(usual));
                None
            }
        }
    }

    /// Returns the name of a stored tensor that suggests a packed matrix, although config.json names no such method.
    fn unexplained(&self, needed: &NeededTensor) -> Option<String> {
        let stem = matrix_stem(&needed.name, needed)?;
        let names = ["qweight", "weight_packed"].map(|marker| format!("{stem}.{marker}"));
        names.iter().find_map(|name| self.on_disk(name))
    }

    fn stored_name(&self, needed: &NeededTensor) -> Option<StoredName> {
        if let Method::Gguf { .. } = self.method {
            return gguf::gguf_name(&needed.name)
                .filter(|name| self.tensors.contains(name))
                .map(StoredName::Named);
        }
        if let Some(name) = self.on_disk(&needed.name) {
            return Some(StoredName::Named(name));
        }
        if needed.role == TensorRole::MixedNormWeight {
            // The norm's module depends on how the model was built, not on what it computes.
            let (fused, plain) = ("g_norm_swish_gate.", "g_norm.");
            let renamed = |from, to| self.on_disk(&needed.name.replace(from, to));
            return renamed(fused, plain).or_else(|| renamed(plain, fused)).map(StoredName::Named);
        }
        if needed.role == TensorRole::Embedding
            && self.tied
            && let Some(head) = HEADS.into_iter().find(|name| self.tensors.contains(name))
        {
            return Some(StoredName::Named(head.to_owned()));
        }
        let stem = matrix_stem(&needed.name, needed)?;
        let marker = self.method.marker()?;
        let name = self.on_disk(&format!("{stem}.{marker}"))?;
        Some(StoredName::Packed(name.strip_suffix(marker)?.strip_suffix('.')?.to_owned()))
    }

    /// Locates a tensor stored under its own name: plain, or codes with companion tensors.
    fn named(&mut self, name: &str, needed: &NeededTensor) -> Option<StoredMatrix> {
        let dtype = self.tensors.find(name)?.dtype();
        let Some(stem) = matrix_stem(name, needed) else { return plain::find(self, name, needed) };
        let is_packed = match self.method {
            Method::BitsAndBytes => {
                let largest = format!("{stem}.weight.absmax");
                [Dtype::I8, Dtype::U8].contains(&dtype) || self.tensors.contains(&largest)
            }
            Method::Fp8 { .. } => dtype == Dtype::F8_E4M3,
            Method::CompressedTensors(_) => [Dtype::F8_E4M3, Dtype::I8].contains(&dtype),
            Method::Mlx(_) => dtype == Dtype::U32,
            _ => false,
        };
        if !is_packed {
            return plain::find(self, name, needed);
        }
        if needed.columns.is_some() {
            return self.transposed(name);
        }
        match self.method {
            Method::BitsAndBytes if dtype == Dtype::I8 => {
                bitsandbytes::eight_bits(self, stem, needed)
            }
            Method::Fp8 { block } => {
                scaled::find(self, stem, needed, ("weight_scale_inv", block.as_slice(), false))
            }
            Method::CompressedTensors(settings) => {
                let scales = ("weight_scale", settings.blocks.as_slice(), settings.zeros);
                scaled::find(self, stem, needed, scales)
            }
            Method::Mlx(settings) => {
                let of_module = settings.modules.get(stem).unwrap_or(&settings.all);
                packed_rows::affine(self, stem, needed, *of_module)
            }
            _ => bitsandbytes::four_bits(self, name, needed),
        }
    }

    /// Locates a matrix stored under another name.
    fn packed(&mut self, stem: &str, needed: &NeededTensor) -> Option<StoredMatrix> {
        if needed.columns.is_some() {
            return self.transposed(stem);
        }
        match self.method {
            Method::Gptq(settings) => gptq::find(self, stem, needed, settings),
            Method::Awq { group_size } => awq::find(self, stem, needed, *group_size),
            Method::CompressedTensors(settings) => {
                let allowed = (settings.bits.as_slice(), settings.zeros);
                packed_rows::compressed(self, stem, needed, allowed)
            }
            _ => None,
        }
    }

    /// GPT-2 stores its projections as inputs by outputs, and packages differ in how they pack those.
    fn transposed(&mut self, name: &str) -> Option<StoredMatrix> {
        let why = format!("`{name}` is packed, which is not supported for this model type");
        self.problems.push(method::refused(&why));
        None
    }
}

enum StoredName {
    /// The tensor itself, or its codes.
    Named(String),
    /// Common prefix of its parts.
    Packed(String),
}

/// Returns the name of a matrix without `.weight`: only matrices are packed.
fn matrix_stem<'a>(name: &'a str, needed: &NeededTensor) -> Option<&'a str> {
    name.strip_suffix(".weight").filter(|_| needed.shape.len() == 2)
}
