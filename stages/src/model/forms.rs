//! The forms in which checkpoints keep a matrix: plain numbers, or packed codes with scales beside them.
//!
//! A form is one file: it finds the tensors that a matrix is stored as, checks their types and shapes against
//! `config.json`, says which of their bytes some rows are made of, and turns these into floats. The table builder sees
//! rows of floats and nothing else.

mod awq;
mod bitsandbytes;
mod blocks;
mod gguf;
mod gptq;
mod method;
mod numbers;
mod packed_rows;
mod plain;
mod scaled;

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use super::problem::ModelProblem;
use super::stored::{Stored, StoredTensors, StoredType};
use super::tensors::NeededTensor;

use scaled::Scales;

pub(crate) use blocks::BlockType;
pub(crate) use gguf::Architecture;
pub(crate) use method::{Method, read as method};

pub(crate) use numbers::floats;

/// How a matrix `[rows, columns]` is stored. What is left of rounding is said by each form; tests compare with the
/// package that wrote the form.
pub(crate) trait Form: fmt::Debug + Send + Sync {
    /// The form with all its parameters: part of the weights' digest.
    fn name(&self) -> String;

    /// The part of stored tensor `index` that some rows are made of, or `None` if that tensor is read once and kept.
    fn slice(&self, index: usize, rows: &Range<u64>) -> Option<Slice>;

    /// Reading may pause before rows that are multiples of this: no byte then belongs to both sides.
    fn row_step(&self) -> u64 {
        1
    }

    /// The wanted numbers of some rows, `[rows, columns]`, from the slices of each stored tensor.
    ///
    /// # Errors
    /// What is wrong with the values.
    fn floats(&self, rows: Range<u64>, stored: &[Vec<u8>]) -> Result<Vec<f32>, String>;
}

/// Some rows of a stored tensor, of each row some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) rows: Range<u64>,
    pub(crate) row_bytes: u64,
    pub(crate) columns: Range<u64>,
}

impl Slice {
    /// Whole rows.
    pub(crate) fn rows(rows: &Range<u64>, row_bytes: u64) -> Self {
        Self { rows: rows.clone(), row_bytes, columns: 0..row_bytes }
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        (self.rows.end - self.rows.start) * (self.columns.end - self.columns.start)
    }

    /// Offset in the tensor and length of each stretch of bytes.
    pub(crate) fn stretches(&self) -> Vec<(u64, u64)> {
        let width = self.columns.end - self.columns.start;
        if width == self.row_bytes {
            return vec![(self.rows.start * width, self.bytes())];
        }
        self.rows.clone().map(|row| (row * self.row_bytes + self.columns.start, width)).collect()
    }
}

/// A matrix, how it is stored and where.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) form: Box<dyn Form>,
    /// In the form's order.
    pub(crate) stored: Vec<Stored>,
}

/// Looks for the tensors that a needed one is stored as, and notes what is missing or wrong.
pub(crate) struct Finder<'a> {
    pub(crate) tensors: &'a mut StoredTensors,
    /// Prefixes that names on disk may have, the usual one first.
    pub(crate) prefixes: &'static [&'static str],
    /// What `config.json` calls the quantisation, for messages.
    pub(crate) quantization: Option<&'a str>,
    pub(crate) method: &'a Method,
    pub(crate) missing: Vec<String>,
    pub(crate) problems: Vec<ModelProblem>,
}

impl Finder<'_> {
    /// Whether the checkpoint names all of these; opens no file.
    pub(crate) fn has_all(&self, needed: &[NeededTensor]) -> bool {
        needed.iter().all(|needed| self.place(needed).is_some())
    }

    /// How and where a needed tensor is stored; `None` with the reason noted.
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

    /// What a needed matrix is stored as, where config.json names no method that stores it so.
    fn unexplained(&self, needed: &NeededTensor) -> Option<String> {
        let stem = matrix_stem(&needed.name, needed)?;
        let names = ["qweight", "weight_packed"].map(|marker| format!("{stem}.{marker}"));
        names.iter().find_map(|name| self.on_disk(name))
    }

    /// Under which name a needed tensor is stored.
    fn place(&self, needed: &NeededTensor) -> Option<Place> {
        if let Method::Gguf { .. } = self.method {
            return gguf::name_of(&needed.name)
                .filter(|name| self.tensors.has(name))
                .map(Place::Named);
        }
        if let Some(name) = self.on_disk(&needed.name) {
            return Some(Place::Named(name));
        }
        let stem = matrix_stem(&needed.name, needed)?;
        let marker = self.method.marker()?;
        let name = self.on_disk(&format!("{stem}.{marker}"))?;
        Some(Place::Packed(name.strip_suffix(marker)?.strip_suffix('.')?.to_owned()))
    }

    /// A tensor that is stored under its own name: plain, or codes with other tensors beside them.
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

    /// A matrix that is stored under another name than its own.
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

    /// GPT-2 keeps its projections as inputs by outputs, and packages differ in what they make of that.
    fn transposed(&mut self, name: &str) -> Option<Found> {
        let why = format!("`{name}` is packed, which is not supported for this model type");
        self.problems.push(method::refused(&why));
        None
    }

    /// The name with the prefix that this checkpoint uses.
    pub(crate) fn on_disk(&self, name: &str) -> Option<String> {
        let names = self.prefixes.iter().map(|prefix| format!("{prefix}{name}"));
        names.into_iter().find(|name| self.tensors.has(name))
    }

    /// A tensor that must be there.
    fn stored(&mut self, name: &str) -> Option<Stored> {
        if !self.tensors.has(name) {
            self.missing.push(name.to_owned());
        }
        self.tensors.find(name)
    }

    /// A tensor that must be there, of one of some types.
    fn typed(&mut self, name: &str, types: &[Dtype]) -> Option<Stored> {
        let stored = self.stored(name)?;
        if matches!(stored.entry.dtype, StoredType::Numbers(dtype) if types.contains(&dtype)) {
            return Some(stored);
        }
        let (method, hint) = match self.quantization {
            Some(method) => (
                format!(" (the checkpoint is quantised: `{method}`)"),
                "use the checkpoint it was made from",
            ),
            None => (String::new(), "take the config.json that came with these weights"),
        };
        let supported = types.iter().map(|dtype| dtype.to_string().to_lowercase());
        let supported: Vec<String> = supported.collect();
        let message = format!(
            "`{name}` has numbers of type {}{method}; supported are {}",
            stored.entry.dtype,
            supported.join(", ")
        );
        self.problems.push(ModelProblem::settings(message).with_hint(hint));
        None
    }

    /// A tensor that must be there, of one of some types and exactly that shape.
    fn shaped(&mut self, name: &str, types: &[Dtype], shape: &[u64]) -> Option<Stored> {
        let stored = self.typed(name, types)?;
        if stored.entry.shape == shape {
            return Some(stored);
        }
        self.wrong_shape(&stored, &format!("{shape:?}"));
        None
    }

    pub(super) fn wrong_shape(&mut self, stored: &Stored, implied: &str) {
        self.problems.push(ModelProblem::checkpoint(format!(
            "`{}` in `{}` has shape {:?}; config.json implies {implied}",
            stored.name, stored.file, stored.entry.shape
        )));
    }
}

/// Where a needed tensor is.
enum Place {
    /// The tensor itself, or its codes.
    Named(String),
    /// What other names begin with.
    Packed(String),
}

/// The name of a matrix without `.weight`: nothing else is ever packed.
fn matrix_stem<'a>(name: &'a str, needed: &NeededTensor) -> Option<&'a str> {
    name.strip_suffix(".weight").filter(|_| needed.shape.len() == 2)
}

/// Codes under a matrix's own name, and what they need to be numbers.
enum Beside {
    EightBits,
    FourBits,
    Scales(Scales),
    /// Group size and bits.
    Affine((u64, u64)),
}

/// The types that plain weights, scales and biases have.
const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];
