//! How much there is of something: samples and their tokens.

use serde::Serialize;

/// Samples and their tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Amount {
    /// Windows, or documents.
    pub(crate) samples: u64,
    /// Their tokens.
    pub(crate) tokens: u64,
}

impl Amount {
    /// Adds another.
    pub(crate) fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.tokens += other.tokens;
    }
}
