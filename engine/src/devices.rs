//! Processors and GPUs: which devices exist, how much memory they have, and which heads of a window run where. Accesses no
//! files except its own record of reservations.

pub(crate) mod catalogue;
pub(crate) mod choose;
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod device;
pub(crate) mod dispatch;
#[cfg(test)]
mod dispatch_tests;
pub(crate) mod ledger;
pub(crate) mod nvml;
pub(crate) mod presence;
pub(crate) mod scheduler;
pub(crate) mod simulated;
pub(crate) mod survey;
