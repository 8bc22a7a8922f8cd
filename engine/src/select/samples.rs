//! Windows, or documents, that can be kept.

use std::sync::Arc;

/// A window, or a document, that can be kept.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Row of the document in its file.
    pub row: u64,
    /// Index of the window; none for a document.
    pub window: Option<u32>,
    /// Tokens of the output that it would be.
    pub tokens: u64,
    /// Value of the `within` column.
    pub group: Option<Arc<str>>,
    /// The statistics of terms and guards; `NaN` where there is none.
    pub used: Vec<f64>,
    /// The statistics that the output has, in the order of its columns; `NaN` where there is none.
    pub statistics: Vec<f64>,
    /// The score; `NaN` without one.
    pub score: f64,
    /// The percentile of its score among those of its group that pass every guard; none where it is not one of them.
    pub percentile: Option<f64>,
    /// Whether each of `output.compare` keeps it.
    pub compared: Vec<bool>,
    /// Why it is not kept; none where it is.
    pub reason: Option<Arc<str>>,
}

impl Sample {
    /// Whether it is kept.
    pub fn keep(&self) -> bool {
        self.reason.is_none()
    }
}
