//! A pipeline as its author wrote it, with positions.

pub mod pipeline;
