//! Output rows, with their positions in a batch of the input.

use crate::run_directory::dropped::DroppedRow;
use crate::run_directory::scores::ScoredWindow;
use crate::select::Sample;

/// Output row, with its position in the input batch and its sample.
pub(super) struct OutputRow<'a> {
    pub(super) position: usize,
    /// Row of the document in its file.
    pub(super) row: u64,
    pub(super) id: &'a str,
    /// `None` for an input row without samples.
    pub(super) sample: Option<&'a Sample>,
    /// Reason for not keeping it; `None` if it is kept.
    pub(super) reason: Option<&'a str>,
    /// Tokens of the document; `None` if it was not measured.
    pub(super) tokens_total: Option<u64>,
    /// `None` for a document.
    pub(super) window: Option<&'a ScoredWindow>,
}

impl<'a> OutputRow<'a> {
    /// Returns the row of a sample. `windows`: those of its document.
    pub(super) fn from_sample(
        position: usize,
        sample: &'a Sample,
        windows: &'a [ScoredWindow],
    ) -> Self {
        let window =
            sample.window.and_then(|index| windows.iter().find(|window| window.window == index));
        let reason = sample.reason.as_deref();
        let (row, id, tokens_total) = (sample.row, &windows[0].id, Some(windows[0].tokens_total));
        Self { position, row, id, sample: Some(sample), reason, tokens_total, window }
    }

    /// Returns the row for an input row without samples.
    pub(super) fn without_sample(position: usize, dropped: &'a DroppedRow) -> Self {
        let (row, id, reason) = (dropped.input_row, &dropped.id, Some(&*dropped.reason));
        Self { position, row, id, sample: None, reason, tokens_total: None, window: None }
    }

    /// Returns the bytes of the window's text, or eight per token.
    pub(super) fn content_bytes(&self) -> u64 {
        self.window.map_or(0, |window| match window.bytes {
            Some((start, end)) => end - start,
            None => 8 * (window.tokens.1 - window.tokens.0),
        })
    }
}

/// Splits rows into slices of at most [`BATCH_BYTES`], with at least one row each. `others`: bytes of the other columns by row
/// of the batch, which are copied for each window.
pub(super) fn by_bytes<'a, 'b>(
    rows: &'b [OutputRow<'a>],
    others: &[u64],
) -> Vec<&'b [OutputRow<'a>]> {
    let mut runs = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, row) in rows.iter().enumerate() {
        let more = row.content_bytes() + others[row.position];
        if index > start && bytes + more > BATCH_BYTES {
            runs.push(&rows[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += more;
    }
    if start < rows.len() {
        runs.push(&rows[start..]);
    }
    runs
}

/// Maximum bytes of one batch: prevents overflow of 32-bit offsets and limits memory.
const BATCH_BYTES: u64 = 64 << 20;
