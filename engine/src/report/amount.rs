//! Amounts of samples and tokens.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Amount {
    /// Windows or documents.
    pub(crate) samples: u64,
    pub(crate) tokens: u64,
}

impl Amount {
    pub(crate) fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.tokens += other.tokens;
    }
}
