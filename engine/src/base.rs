//! Foundation of the engine: diagnostics, results and exit codes, progress, counts, signals, threads and time. Does not import other
//! modules of the engine.

pub(crate) mod clock;
pub mod counts;
pub(crate) mod diagnostic;
pub(crate) mod environment;
pub mod error;
pub mod machine;
pub(crate) mod parallel;
pub mod progress;
pub(crate) mod random;
pub mod render;
pub(crate) mod secrets;
pub mod stop;
pub mod text;
pub mod wildcards;
