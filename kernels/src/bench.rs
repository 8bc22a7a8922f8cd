//! Speed of the kernels on this machine, in processor time of the threads where Linux reports it.
//!
//! The example `pairs` compares it with the limits of the processor.

mod case;
mod clock;

pub use case::{BlockCost, Case, Speed};
pub use clock::Clock;
