//! What it takes to be a measure: a stage that turns a window into figures.

use std::fmt;
use std::ops::Range;

use longsift_kernels::{HeadSums, STATISTICS_VERSION};

use super::{Column, Decimal, FarDistance, Figures, ForwardFigures, ForwardRequest, Value};
use crate::first_layer_attention::{Mask, Rows, RowsSampled, SampledRows, WindowTokens};
use crate::measures::external::Reads;
use crate::model::{FORWARD_VERSION, TABLE_VERSION};

/// A way to measure a window, implemented by the settings of its stage.
///
/// Pure: the same window and evidence give the same bits, whatever is measured beside it. It knows neither files, threads
/// nor devices.
pub trait Measure: fmt::Debug + Send + Sync {
    /// The setting `name`, which tells a repeated stage from the others: its statistics are then `near_far_recurrence`.
    fn name(&self) -> Option<&str> {
        None
    }
    /// What its statistics begin with where the stage has a `name`.
    fn prefix(&self) -> Option<&str> {
        self.name()
    }
    /// What it writes, in the order of the values of [`Measure::figures`].
    fn columns(&self) -> Vec<Column>;
    /// What it must be handed besides token ids.
    fn needs(&self) -> Needs {
        Needs::default()
    }
    /// Raised when the same settings give other figures than before.
    fn version(&self) -> u32;
    /// What figures depend on besides the window: all settings that can change one.
    fn facts(&self) -> serde_json::Value;
    /// Windows of fewer tokens, BOS included, are dropped as `too_short`.
    fn min_tokens(&self) -> u64 {
        2
    }
    /// The share of the windows that it is taken of; none: of all.
    fn sample(&self) -> Option<WindowSample> {
        None
    }
    /// Values of a document that all its windows share: taken once for a document, from its bytes, and handed to each of
    /// its windows. Asked for where [`Needs::document_text`] is set; in an evaluation the window is the document.
    fn document(&self, _text: &[u8]) -> Vec<Value> {
        Vec::new()
    }
    /// The values of one window, one for each column.
    ///
    /// # Errors
    /// The window has no figures, because its evidence is damaged. What the window is too short for is a null.
    fn figures(&self, window: &Window<'_>) -> Result<Figures, RowError>;
    /// The parts of a window that a statistic counts, by the name of its column without prefix; none where they cannot be named.
    /// For people: it may be slow.
    fn passages(&self, _column: &str, _window: &Window<'_>) -> Option<Passages> {
        None
    }
}

/// The parts of a window that a statistic counts, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passages {
    /// Tokens, BOS included.
    Tokens(Vec<Range<usize>>),
    /// Bytes of the window's text.
    Bytes(Vec<Range<usize>>),
}

/// A share of all windows, chosen by a hash of the document's id and the number of the window: which windows it holds does
/// not depend on their order or on how they are divided among files, work units and processes, and a larger share with the
/// same seed holds all windows of a smaller one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowSample {
    /// Above 0, below 1.
    pub fraction: Decimal,
    /// Chooses another sample of the same size.
    pub seed: u64,
}

/// What the engine hands to a measure besides token ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// The bytes of the window: [`Window::text`].
    pub window_text: bool,
    /// The bytes of the document: [`Measure::document`].
    pub document_text: bool,
    /// What must be made elsewhere first, in the order of [`Window::evidence`].
    pub evidence: Vec<Request>,
}

/// Evidence that a measure asks for. Closed: the engine knows a place for each.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Attention of the first layer, summed by heads on a device.
    Attention(AttentionRequest),
    /// Answers of a child process, which is handed this.
    Answers(Reads),
    /// Losses, or attention of any layer, of a whole model, many windows at a time.
    Forward(ForwardRequest),
}

impl Request {
    /// Versions of the arithmetic of the evidence, by the names of their facts: what a measure asks for decides what its
    /// figures depend on, so that no measure can forget one.
    pub fn versions(&self) -> &'static [(&'static str, u32)] {
        const STATISTICS: (&str, u32) = ("statistics_version", STATISTICS_VERSION);
        match self {
            Self::Attention(_) => &[STATISTICS, ("table_version", TABLE_VERSION)],
            // Attention of its layers is summed by the kernels of the first layer.
            Self::Forward(_) => &[STATISTICS, ("forward_version", FORWARD_VERSION)],
            // The answers depend on the program, whose files and version are facts of the stage.
            Self::Answers(_) => &[],
        }
    }
}

impl Needs {
    /// The attention that devices sum, if any.
    pub fn attention(&self) -> Option<&AttentionRequest> {
        self.evidence.iter().find_map(|request| match request {
            Request::Attention(request) => Some(request),
            Request::Answers(_) | Request::Forward(_) => None,
        })
    }

    /// What a child process is to be handed.
    pub fn answers(&self) -> Option<Reads> {
        self.evidence.iter().find_map(|request| match request {
            Request::Answers(reads) => Some(*reads),
            Request::Attention(_) | Request::Forward(_) => None,
        })
    }

    /// What a whole model computes, if anything.
    pub fn forward(&self) -> Option<&ForwardRequest> {
        self.evidence.iter().find_map(|request| match request {
            Request::Forward(request) => Some(request),
            Request::Attention(_) | Request::Answers(_) => None,
        })
    }
}

/// Which attention is summed.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionRequest {
    /// From which distance on a key is far.
    pub distance: FarDistance,
    /// Which keys a token's attention is spread over.
    pub mask: Mask,
    /// Which rows of a window are measured.
    pub rows: Rows,
}

/// What was made elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// Sums of all heads, in their order.
    Attention(HeadSums),
    /// What a child process answered, in the order of the measure's columns.
    Answers(Vec<Value>),
    /// What a whole model makes of the window.
    Forward(ForwardFigures),
}

/// A window to measure.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// Token ids as scored, BOS included: `[tokens]`.
    pub ids: &'a [u32],
    /// The bytes of the window, where [`Needs::window_text`] asks for them. May cut a character in an evaluation, never in a
    /// run.
    pub text: Option<&'a [u8]>,
    /// The byte of `text` at which token `⌊S/2⌋` begins; in a run the next border of a character. Only with `text`.
    pub text_half: Option<usize>,
    /// What [`Measure::document`] returned for the window's document; empty without it.
    pub document: &'a [Value],
    /// In the order of [`Needs::evidence`].
    pub evidence: &'a [Evidence],
}

/// Reason why a row is quarantined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RowError {
    /// Short, stable name of the reason, such as `score_not_finite`.
    pub code: &'static str,
    /// Explanation for people, with the values involved.
    pub message: String,
}

impl RowError {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl AttentionRequest {
    /// The window of these ids: its far distance, and the rows that are measured of it.
    ///
    /// # Errors
    /// A token that is not in the vocabulary of the model.
    pub fn window(&self, ids: Vec<u32>, vocabulary_size: u64) -> Result<WindowTokens, RowError> {
        let beyond = |(_, id): &(usize, &u32)| u64::from(**id) >= vocabulary_size;
        if let Some((position, id)) = ids.iter().enumerate().find(beyond) {
            let message = format!(
                "token {position} of the window is {id}, but the model's vocabulary has {vocabulary_size} entries"
            );
            return Err(RowError { code: "token_out_of_range", message });
        }
        let (distance, sampled) = (self.distance.of(ids.len() as u64), self.rows_of(&ids));
        Ok(WindowTokens { ids, distance, sampled })
    }

    /// The rows of a window that are measured; none where all are.
    pub fn rows_of(&self, ids: &[u32]) -> Option<SampledRows> {
        let Rows::Sampled(RowsSampled { per_window, seed }) = self.rows else { return None };
        let distance = self.distance.of(ids.len() as u64);
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
    fn a_token_beyond_the_vocabulary_is_refused_with_its_place() {
        let problem = request(Rows::default()).window(vec![3, 7, 8], 8).unwrap_err();
        assert_eq!(problem.code, "token_out_of_range");
        assert_eq!(
            problem.to_string(),
            "token 2 of the window is 8, but the model's vocabulary has 8 entries"
        );
        assert!(request(Rows::default()).window(vec![3, 7, 8], 9).is_ok());
    }

    #[test]
    fn the_rows_of_a_window_are_those_that_its_figures_are_estimated_from() {
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
