//! Interface of a measure: a stage that turns a window into statistics.

use std::fmt;
use std::ops::Range;

use longsift_kernels::{HeadSums, STATISTICS_VERSION};

use super::{
    Column, Decimal, FarDistance, ForwardRequest, ForwardStatistics, StatisticValues, Value,
};
use crate::first_layer_attention::{Mask, Rows, RowsSampled, SampledRows, WindowTokens};
use crate::measures::external::Reads;
use crate::model::{FORWARD_VERSION, TABLE_VERSION};

/// Method of measuring a window, implemented by the settings of its stage. Pure: the same window and evidence give the same
/// bits. Implementations use no files, threads or devices.
pub trait Measure: fmt::Debug + Send + Sync {
    /// Returns the setting `name`, which distinguishes repeated stages: their statistics become `near_far_recurrence`.
    fn name(&self) -> Option<&str> {
        None
    }
    /// Returns the prefix of the statistics if the stage has a `name`.
    fn prefix(&self) -> Option<&str> {
        self.name()
    }
    /// Returns the columns that the measure writes, in the order of the values of [`Measure::statistics`].
    fn columns(&self) -> Vec<Column>;
    /// Returns the inputs required in addition to token ids.
    fn needs(&self) -> Needs {
        Needs::default()
    }
    /// Returns the version, raised when the same settings give other statistics than before.
    fn version(&self) -> u32;
    /// Returns the identity of the statistics apart from the window: all settings that can change one.
    fn facts(&self) -> serde_json::Value;
    /// Returns the minimum length: windows of fewer tokens, BOS included, are dropped as `too_short`.
    fn min_tokens(&self) -> u64 {
        2
    }
    /// Returns the share of the windows to measure; `None` for all.
    fn sample(&self) -> Option<WindowSample> {
        None
    }
    /// Computes the values that all windows of a document share, once per document and from its bytes; each window
    /// receives them. Called if [`Needs::document_text`] is set. In an evaluation the window is the document.
    fn document(&self, _text: &[u8]) -> Vec<Value> {
        Vec::new()
    }
    /// Computes the values of one window, one for each column. A statistic is null if the window is too short for it.
    /// Fails if the evidence is corrupt, so that the window has no statistics.
    fn statistics(&self, window: &Window<'_>) -> Result<StatisticValues, RowError>;
    /// Returns the parts of a window that a statistic counts; `None` if they cannot be located. `column`: its name
    /// without prefix. Only for display, so it may be slow.
    fn passages(&self, _column: &str, _window: &Window<'_>) -> Option<Passages> {
        None
    }
}

/// Parts of a window that a statistic counts, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passages {
    Tokens(Vec<Range<usize>>),
    /// Bytes of the window's text.
    Bytes(Vec<Range<usize>>),
}

/// Random share of all windows, chosen by a hash of the document's id and the window's index. The choice does not
/// depend on the order of the windows or on their distribution over files, work units and processes; with the same
/// seed, a larger share contains every smaller one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowSample {
    /// Fraction: above 0, below 1.
    pub fraction: Decimal,
    /// Seed; another one chooses another sample of the same size.
    pub seed: u64,
}

/// Inputs that the engine provides to a measure in addition to token ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Bytes of the window: [`Window::text`].
    pub window_text: bool,
    /// Bytes of the document: [`Measure::document`].
    pub document_text: bool,
    /// Evidence to compute first, in the order of [`Window::evidence`].
    pub evidence: Vec<Request>,
}

/// Evidence that a measure requires. Closed: the engine has one producer for each variant.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Attention of the first layer, summed by heads on a device.
    Attention(AttentionRequest),
    /// Answers of a child process to this input.
    Answers(Reads),
    /// Losses, or attention of any layer, computed by a whole model in batches of windows.
    Forward(ForwardRequest),
}

impl Request {
    /// Returns the arithmetic versions of the evidence with their names in the identity.
    pub fn versions(&self) -> &'static [(&'static str, u32)] {
        const STATISTICS: (&str, u32) = ("statistics_version", STATISTICS_VERSION);
        match self {
            Self::Attention(_) => &[STATISTICS, ("table_version", TABLE_VERSION)],
            // The first-layer kernels sum the attention of its layers.
            Self::Forward(_) => &[STATISTICS, ("forward_version", FORWARD_VERSION)],
            // Answers depend on the program, whose files and version are part of the stage's identity.
            Self::Answers(_) => &[],
        }
    }
}

impl Needs {
    pub fn attention(&self) -> Option<&AttentionRequest> {
        self.evidence.iter().find_map(|request| match request {
            Request::Attention(request) => Some(request),
            Request::Answers(_) | Request::Forward(_) => None,
        })
    }

    /// Returns the input of the child process, if any.
    pub fn answers(&self) -> Option<Reads> {
        self.evidence.iter().find_map(|request| match request {
            Request::Answers(reads) => Some(*reads),
            Request::Attention(_) | Request::Forward(_) => None,
        })
    }

    pub fn forward(&self) -> Option<&ForwardRequest> {
        self.evidence.iter().find_map(|request| match request {
            Request::Forward(request) => Some(request),
            Request::Attention(_) | Request::Answers(_) => None,
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct AttentionRequest {
    pub distance: FarDistance,
    pub mask: Mask,
    pub rows: Rows,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    Attention(HeadSums),
    /// Answers of a child process, in the order of the measure's columns.
    Answers(Vec<Value>),
    Forward(ForwardStatistics),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Window<'a> {
    /// Token ids, BOS included: `[tokens]`.
    pub ids: &'a [u32],
    /// Bytes of the window, if [`Needs::window_text`] is set. May begin or end inside a character in an evaluation.
    pub text: Option<&'a [u8]>,
    /// Byte of `text` at which token `⌊S/2⌋` begins, in a run rounded up to a character boundary.
    pub text_half: Option<usize>,
    /// Result of [`Measure::document`] for the window's document; empty if not required.
    pub document: &'a [Value],
    /// Evidence in the order of [`Needs::evidence`].
    pub evidence: &'a [Evidence],
}

/// Reason why a row is quarantined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RowError {
    /// Short, stable name of the reason, such as `score_not_finite`.
    pub code: &'static str,
    pub message: String,
}

impl RowError {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl AttentionRequest {
    /// Builds the window of these ids with its far distance and sampled rows.
    pub fn window(&self, ids: Vec<u32>, vocabulary_size: u64) -> Result<WindowTokens, RowError> {
        let beyond = |(_, id): &(usize, &u32)| u64::from(**id) >= vocabulary_size;
        if let Some((position, id)) = ids.iter().enumerate().find(beyond) {
            let message = format!(
                "token {position} of the window is {id}, but the model's vocabulary has {vocabulary_size} entries"
            );
            return Err(RowError { code: "token_out_of_range", message });
        }
        Ok(self.window_tokens(ids))
    }

    /// Like [`AttentionRequest::window`], for ids that are known to be in the vocabulary.
    pub fn window_tokens(&self, ids: Vec<u32>) -> WindowTokens {
        let (distance, sampled) = (self.distance.in_window(ids.len() as u64), self.rows_of(&ids));
        WindowTokens { ids, distance, sampled }
    }

    /// Returns the rows of a window to measure; `None` for all.
    pub fn rows_of(&self, ids: &[u32]) -> Option<SampledRows> {
        let Rows::Sampled(RowsSampled { per_window, seed }) = self.rows else { return None };
        let distance = self.distance.in_window(ids.len() as u64);
        SampledRows::draw(ids, distance as usize, per_window as usize, seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(rows: Rows) -> AttentionRequest {
        AttentionRequest { distance: FarDistance::PublishedQuarter, mask: Mask::Causal, rows }
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_rejected_with_its_index() {
        let problem = request(Rows::default()).window(vec![3, 7, 8], 8).unwrap_err();
        assert_eq!(problem.code, "token_out_of_range");
        assert_eq!(
            problem.to_string(),
            "token 2 of the window is 8, but the model's vocabulary has 8 entries"
        );
        assert!(request(Rows::default()).window(vec![3, 7, 8], 9).is_ok());
    }

    #[test]
    fn a_window_has_the_sampled_rows_of_its_ids() {
        let ids: Vec<u32> = (0..400).collect();
        assert_eq!(request(Rows::default()).rows_of(&ids), None);
        let sampled = request(Rows::Sampled(RowsSampled { per_window: 64, seed: 1 }));
        let window = sampled.window(ids.clone(), 400).unwrap();
        assert_eq!(
            (window.distance, window.sampled.as_ref()),
            (100, sampled.rows_of(&ids).as_ref())
        );
        assert_eq!(window.sampled.map(|rows| rows.positions.len()), Some(64));
    }
}
