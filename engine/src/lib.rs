//! The engine of longsift: spec → plan → execute → commit.

pub mod dataset;
pub mod diagnostic;
pub mod reference;
pub mod spec;
