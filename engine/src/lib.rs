//! The engine of longsift: a pipeline file in, the best windows of a corpus out.
//!
//! Data moves one way, **spec → plan → score → select → write**; each arrow is a function, each noun a room:
//!
//! ```text
//! spec      a pipeline as its author wrote it, with positions; every mistake at once
//! plan      proven runnable: columns typed, first layer understood, work units cut
//! run       what happens in a run directory, in order:
//!   score     work units: read → tokenise → windows → statistics → scores/part-*.parquet
//!   select    all windows: standardise, rank, keep → calibration.json
//!   write     second read of the input, kept rows only, byte-exact slices of the text; then all files of the
//!             selection move into place together, or not at all
//! ```
//!
//! To follow a run, start at [`plan()`] and [`crate::run::run`]. The stages' settings and arithmetic are in `longsift-stages`, the
//! kernels in `longsift-kernels`.

pub mod base;
pub mod cli;
pub mod dataset;
pub(crate) mod devices;
pub mod plan;
pub(crate) mod report;
pub mod run;
pub mod run_directory;
pub mod score;
pub mod select;
pub mod spec;
pub(crate) mod storage;
pub(crate) mod tools;
pub(crate) mod write;

pub use crate::plan::read::plan;
pub use crate::run::run;
