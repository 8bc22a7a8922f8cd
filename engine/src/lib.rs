//! Engine of longsift: selects the best windows of a corpus according to a pipeline file.
//!
//! Data moves one way, **spec → plan → score → select → write**. Each arrow is a function, each noun a module:
//!
//! ```text
//! spec      the parsed pipeline file with source positions; all its mistakes are reported at once
//! plan      a pipeline that is known to run: typed columns, supported model, work units
//! run       the phases in a run directory, in order:
//!   score     work units: read → tokenize → windows → statistics → scores/part-*.parquet
//!   select    all windows: standardise, rank, keep → calibration.json
//!   write     second pass over the input: kept rows only, byte-exact slices of the text; the files of the
//!             selection are published together or not at all
//! ```
//!
//! A run starts at [`plan()`] and [`crate::run::run`]. Stage settings and arithmetic are in `longsift-stages`, kernels
//! in `longsift-kernels`.

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
