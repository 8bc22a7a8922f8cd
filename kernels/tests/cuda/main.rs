//! The GPU's device code: emulated on the CPU of every machine, and on any GPUs.

mod cases;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "cuda")]
mod device;
mod emulated;
#[path = "emulation/driver.rs"]
mod emulation_driver;
#[path = "emulation/library.rs"]
mod emulation_library;
