//! Measures windows on any number of devices: admission by memory, placement, threads.

pub mod dispatch;
pub mod ledger;
pub mod steps;

#[cfg(test)]
mod properties;
