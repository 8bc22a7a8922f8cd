//! Measures the speed of the kernels on this machine, in CPU time of the threads if Linux reports it.
//!
//! The example `pairs` compares it with the CPU's limits.

mod case;
mod clock;

pub use case::{BenchCase, BenchSpeed};
pub use clock::Clock;
