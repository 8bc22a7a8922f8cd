//! The GPU's device code: on every machine in an emulation on the processor, and on GPUs where there are any.

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
