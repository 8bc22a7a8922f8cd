//! Rows of the output beside their rows in a batch of the input.

use crate::run_directory::dropped::DroppedRow;
use crate::run_directory::scores::ScoredWindow;
use crate::select::samples::Sample;

/// A row of the output beside its row in the input batch and what was measured.
pub(super) struct OutputRow<'a> {
    pub(super) position: usize,
    /// Row of the document in its file.
    pub(super) row: u64,
    /// The document's id.
    pub(super) id: &'a str,
    /// The sample; none for a row of the input that gave none.
    pub(super) sample: Option<&'a Sample>,
    /// Why it is not kept; none where it is.
    pub(super) reason: Option<&'a str>,
    /// Tokens of the document, where it was measured.
    pub(super) tokens_total: Option<u64>,
    /// The window; none for a document.
    pub(super) window: Option<&'a ScoredWindow>,
}

impl<'a> OutputRow<'a> {
    /// `windows`: those of the document.
    pub(super) fn of(position: usize, sample: &'a Sample, windows: &'a [ScoredWindow]) -> Self {
        let window =
            sample.window.and_then(|index| windows.iter().find(|window| window.window == index));
        let reason = sample.reason.as_deref();
        let (row, id, tokens_total) = (sample.row, &windows[0].id, Some(windows[0].tokens_total));
        Self { position, row, id, sample: Some(sample), reason, tokens_total, window }
    }

    /// A row of the input that gave no sample.
    pub(super) fn without_sample(position: usize, dropped: &'a DroppedRow) -> Self {
        let (row, id, reason) = (dropped.input_row, &dropped.id, Some(&*dropped.reason));
        Self { position, row, id, sample: None, reason, tokens_total: None, window: None }
    }

    /// Bytes of the window's text; of its tokens, eight each.
    pub(super) fn content_bytes(&self) -> u64 {
        self.window.map_or(0, |window| match window.bytes {
            Some((start, end)) => end - start,
            None => 8 * (window.tokens.1 - window.tokens.0),
        })
    }
}

/// Cuts rows into runs of at most [`BATCH_BYTES`], at least one row each. `others`: bytes of the other columns, by row of the
/// batch; each window has a copy of them.
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

/// Bytes of one batch: below it 32-bit offsets cannot overflow, and memory stays small.
const BATCH_BYTES: u64 = 64 << 20;
