//! Locates required tensors, in any storage form.

use safetensors::Dtype;

use super::finder::{Finder, Found};
use super::method::{self, Method};
use super::scaled::Scales;
use super::{awq, bitsandbytes, gguf, gptq, packed_rows, plain, scaled};
use crate::model::problem::ModelProblem;
use crate::model::tensors::{NeededTensor, Role};

impl Finder<'_> {
    /// Whether the checkpoint lists all of these tensors; opens no file.
    pub(crate) fn has_all(&self, needed: &[NeededTensor]) -> bool {
        needed.iter().all(|needed| self.place(needed).is_some())
    }

    /// Locates a required tensor and its form; `None` with the problem noted.
    pub(crate) fn find(&mut self, needed: &NeededTensor) -> Option<Found> {
        match self.place(needed) {
            Some(Place::Named(name)) => match self.method {
                Method::Gguf { architecture, head_dim } => {
                    gguf::find(self, &name, needed, architecture, *head_dim)
                }
                _ => self.named(&name, needed),
            },
            Some(Place::Packed(stem)) => self.packed(&stem, needed),
            None if let Some(name) = self.unexplained(needed) => {
                let message = format!("`{name}` is packed, but config.json does not say how");
                self.problems.push(ModelProblem::settings(message).with_hint(method::NO_METHOD));
                None
            }
            None => {
                let gguf = matches!(self.method, Method::Gguf { .. });
                let name = gguf.then(|| gguf::name_of(&needed.name)).flatten();
                let usual = || format!("{}{}", self.prefixes[0], needed.name);
                self.missing.push(name.unwrap_or_else(usual));
                None
            }
        }
    }

    /// Name of a stored tensor that suggests a packed matrix, although config.json names no such method.
    fn unexplained(&self, needed: &NeededTensor) -> Option<String> {
        let stem = matrix_stem(&needed.name, needed)?;
        let names = ["qweight", "weight_packed"].map(|marker| format!("{stem}.{marker}"));
        names.iter().find_map(|name| self.on_disk(name))
    }

    /// Returns the name under which a required tensor is stored.
    fn place(&self, needed: &NeededTensor) -> Option<Place> {
        if let Method::Gguf { .. } = self.method {
            return gguf::name_of(&needed.name)
                .filter(|name| self.tensors.has(name))
                .map(Place::Named);
        }
        if let Some(name) = self.on_disk(&needed.name) {
            return Some(Place::Named(name));
        }
        if needed.role == Role::Embedding && self.tied {
            let heads = ["", "language_model."].map(|prefix| format!("{prefix}lm_head.weight"));
            if let Some(head) = heads.into_iter().find(|name| self.tensors.has(name)) {
                return Some(Place::Named(head));
            }
        }
        let stem = matrix_stem(&needed.name, needed)?;
        let marker = self.method.marker()?;
        let name = self.on_disk(&format!("{stem}.{marker}"))?;
        Some(Place::Packed(name.strip_suffix(marker)?.strip_suffix('.')?.to_owned()))
    }

    /// Locates a tensor stored under its own name: plain, or codes with companion tensors.
    fn named(&mut self, name: &str, needed: &NeededTensor) -> Option<Found> {
        let dtype = self.tensors.find(name)?.dtype();
        let Some(stem) = matrix_stem(name, needed) else { return plain::find(self, name, needed) };
        let beside = |finder: &Self, part: &str| finder.tensors.has(&format!("{stem}.{part}"));
        let form = match self.method {
            Method::BitsAndBytes if dtype == Dtype::I8 => Beside::EightBits,
            Method::BitsAndBytes if beside(self, "weight.absmax") || dtype == Dtype::U8 => {
                Beside::FourBits
            }
            Method::Fp8 { block } if dtype == Dtype::F8_E4M3 => {
                let blocks = block.iter().copied().collect();
                Beside::Scales(Scales { name: "weight_scale_inv", blocks, zeros: false })
            }
            Method::CompressedTensors(settings) if [Dtype::F8_E4M3, Dtype::I8].contains(&dtype) => {
                let blocks = settings.blocks.clone();
                Beside::Scales(Scales { name: "weight_scale", blocks, zeros: settings.zeros })
            }
            Method::Mlx(settings) if dtype == Dtype::U32 => {
                Beside::Affine(*settings.modules.get(stem).unwrap_or(&settings.all))
            }
            _ => return plain::find(self, name, needed),
        };
        if needed.columns.is_some() {
            return self.transposed(name);
        }
        match form {
            Beside::EightBits => bitsandbytes::eight_bits(self, stem, needed),
            Beside::FourBits => bitsandbytes::four_bits(self, name, needed),
            Beside::Scales(scales) => scaled::find(self, stem, needed, &scales),
            Beside::Affine(settings) => packed_rows::affine(self, stem, needed, settings),
        }
    }

    /// Locates a matrix stored under another name.
    fn packed(&mut self, stem: &str, needed: &NeededTensor) -> Option<Found> {
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
    fn transposed(&mut self, name: &str) -> Option<Found> {
        let why = format!("`{name}` is packed, which is not supported for this model type");
        self.problems.push(method::refused(&why));
        None
    }
}

/// Name of a stored tensor.
enum Place {
    /// The tensor itself, or its codes.
    Named(String),
    /// Common prefix of its parts.
    Packed(String),
}

/// Returns the name of a matrix without `.weight`: only matrices are packed.
fn matrix_stem<'a>(name: &'a str, needed: &NeededTensor) -> Option<&'a str> {
    name.strip_suffix(".weight").filter(|_| needed.shape.len() == 2)
}

/// Codes under a matrix's own name, and their companion tensors.
enum Beside {
    EightBits,
    FourBits,
    Scales(Scales),
    /// Group size and bits.
    Affine((u64, u64)),
}
