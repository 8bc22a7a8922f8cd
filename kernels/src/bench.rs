//! How fast the kernels are beside what the processor can do at most, measured in turns on the machine at hand.
//!
//! A share of a limit is the median over repeats, in each of which the limits are measured right before and right after
//! the kernel: neighbours on the machine slow both alike. Seconds are the threads' processor time where Linux tells it.

mod case;
mod clock;
mod limits;
mod zlib;

pub use case::{BlockCost, Case, Speed};
pub use limits::Limits;
pub use zlib::SystemZlib;
