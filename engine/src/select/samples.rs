//! Samples: windows or documents that can be kept.

use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Sample {
    pub row: u64,
    /// Index of the window; `None` for a document.
    pub window: Option<u32>,
    pub tokens: u64,
    /// Value of the `within` column.
    pub group: Option<Arc<str>>,
    /// Statistics of terms and guards; `NaN` if missing.
    pub used: Vec<f64>,
    /// Statistics in the output, in the order of its columns; `NaN` if missing.
    pub statistics: Vec<f64>,
    /// Score; `NaN` if missing.
    pub score: f64,
    /// Percentile rank of the score among samples of the group that pass every guard; `None` for other samples.
    pub percentile: Option<f64>,
    /// Whether each of `output.compare` keeps the sample.
    pub compared: Vec<bool>,
    /// Reason for not keeping it; `None` if it is kept.
    pub reason: Option<Arc<str>>,
}

impl Sample {
    pub fn keep(&self) -> bool {
        self.reason.is_none()
    }
}
