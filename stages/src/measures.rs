//! Measures: stages that turn windows into statistics. One file each.

pub mod compression;
pub mod external;
mod first_layer_attention;
pub mod language_model;
pub mod lexical;
mod passages;
pub mod recurrence;
pub mod speed;
pub mod statistics;

pub use compression::Compression;
pub use external::External;
pub use language_model::LanguageModel;
pub use lexical::Lexical;
pub use recurrence::Recurrence;
