//! Turns documents into windows of token ids, before anything is measured.

use std::ops::Range;
use std::sync::Arc;

use longsift_stages::contract::{RowError, StatisticValues};
use longsift_stages::tokenize::encoder::EncodedText;
use longsift_stages::tokenize::windows::{Cut, TokenWindow};
use rayon::prelude::*;

use super::passes::out_of_vocabulary;
use crate::base::error::Failure;
use crate::dataset::documents::{Document, DocumentContent, DocumentText, content_hash, id_of_row};
use crate::dataset::input::MAX_ID_BYTES;
use crate::plan::Plan;
use crate::plan::options::Bos;
use crate::run_directory::quarantine::BadRow;

/// Document with the statistics that programs returned for it, each with the index of its measure, or with its outcome if a
/// program dropped it or failed.
#[derive(Debug)]
pub struct JudgedDocument {
    pub document: Document,
    pub answers: Result<Vec<(u16, StatisticValues)>, Preparation>,
}

impl From<Document> for JudgedDocument {
    /// Keeps a document that no program read.
    fn from(document: Document) -> Self {
        Self { document, answers: Ok(Vec::new()) }
    }
}

#[derive(Debug)]
pub struct Prepared {
    pub row: u64,
    /// Id of the document; `<file>:<row>` if the input has no ids.
    pub id: String,
    pub outcome: Preparation,
}

#[derive(Debug)]
pub enum Preparation {
    Quarantine(BadRow),
    Drop {
        /// Short, stable name of the reason.
        reason: Arc<str>,
        tokens_total: u64,
        /// Windows that were cut and are too short for a measure.
        windows: u64,
    },
    Measure(CutDocument),
    /// The tokenizer timed out. Ends the run instead of quarantining the row, since another machine might succeed.
    TimedOut(Failure),
}

#[derive(Debug)]
pub struct CutDocument {
    /// Token ids, without BOS.
    pub ids: Vec<u32>,
    /// End of each token in the text, moved to the end of its character, and the length of the text; `None` if pre-tokenized.
    pub ends: Option<EncodedText>,
    /// Length of the text in bytes; 0 for pre-tokenized documents.
    pub text_bytes: usize,
    pub text: Option<DocumentText>,
    pub windows: Vec<TokenWindow>,
    /// Windows that are too short for a measure.
    pub windows_too_short: u64,
    pub content_hash: String,
    /// Statistics that programs returned for the document, with the index of their measure.
    pub answers: Vec<(u16, StatisticValues)>,
}

impl CutDocument {
    /// Token ids of a window, without BOS.
    pub fn ids_of(&self, window: &TokenWindow) -> &[u32] {
        &self.ids[window.token_start as usize..window.token_end as usize]
    }

    /// Byte range of a window in the document's text; `None` for pre-tokenized documents.
    pub fn bytes_of(&self, window: &TokenWindow) -> Option<Range<usize>> {
        let (start, end) = (window.token_start as usize, window.token_end as usize);
        Some(self.ends.as_ref()?.byte_range(start, end, self.text_bytes))
    }

    /// Text of a window if a measure needs it, and the byte in it at which the second half of its tokens (counting BOS) begins.
    pub fn text_of(&self, window: &TokenWindow, bos: Bos) -> (Option<&[u8]>, Option<usize>) {
        let (Some(text), Some(ends)) = (&self.text, &self.ends) else { return (None, None) };
        let (start, end) = (window.token_start as usize, window.token_end as usize);
        let bytes = ends.byte_range(start, end, self.text_bytes);
        let count = usize::from(bos.count);
        let half = ((count + end - start) / 2).saturating_sub(count);
        let second = ends.byte_range(start + half, end, self.text_bytes);
        (Some(&text.as_bytes()[bytes.clone()]), Some(second.start - bytes.start))
    }
}

/// Tokenizes and cuts a batch of documents in parallel; results are in the order of the documents.
pub fn prepare(
    plan: &Plan,
    file: &str,
    documents: Vec<impl Into<JudgedDocument> + Send>,
) -> Vec<Prepared> {
    documents
        .into_par_iter()
        .map(|document| {
            let JudgedDocument { document, answers } = document.into();
            let row = document.row;
            let id = document.id.clone().unwrap_or_else(|| id_of_row(file, row));
            let location = format!("{file}, row {row}");
            let failed = |(stage, error): StageError| {
                Preparation::Quarantine(BadRow { row, stage: stage.into(), error })
            };
            let outcome = match answers {
                Ok(answers) => outcome(plan, location, document, answers).unwrap_or_else(failed),
                Err(outcome) => outcome,
            };
            Prepared { row, id, outcome }
        })
        .collect()
}

/// Stage at which a row failed, with the error.
type StageError = (&'static str, RowError);

fn outcome(
    plan: &Plan,
    location: String,
    document: Document,
    answers: Vec<(u16, StatisticValues)>,
) -> Result<Preparation, StageError> {
    let content = document.content.map_err(|error| ("input", error))?;
    let id_bytes = document.id.as_ref().map_or(0, String::len);
    if id_bytes > MAX_ID_BYTES {
        let message =
            format!("the id has {id_bytes} bytes, more than the maximum of {MAX_ID_BYTES}");
        return Err(("input", RowError::new("id_too_long", message)));
    }
    let content_hash = content_hash(&content);
    let (ids, ends, text) = match content {
        DocumentContent::Tokens(ids) => (ids, None, None),
        DocumentContent::Text(text) => {
            let mut encoded = match plan.tokenize(location, &text) {
                Ok(encoded) => encoded.map_err(|error| ("tokenize", error))?,
                Err(timeout) => return Ok(Preparation::TimedOut(timeout)),
            };
            (std::mem::take(&mut encoded.ids), Some(encoded), Some(text))
        }
    };
    if let Some(vocabulary) = plan.vocabulary_size()
        && let Some(error) = out_of_vocabulary(&ids, "", vocabulary)
    {
        return Err(("tokenize", error));
    }
    cut(plan, ids, ends, text, content_hash, answers)
}

fn cut(
    plan: &Plan,
    ids: Vec<u32>,
    ends: Option<EncodedText>,
    text: Option<DocumentText>,
    content_hash: String,
    answers: Vec<(u16, StatisticValues)>,
) -> Result<Preparation, StageError> {
    let tokens_total = ids.len() as u64;
    if tokens_total == 0 {
        return Err(("tokenize", RowError::new("empty_text", "the text has no tokens")));
    }
    let settings = plan.spec.tokenize();
    let bos = u64::from(plan.bos.count);
    let dropped =
        |reason: &str, windows| Preparation::Drop { reason: reason.into(), tokens_total, windows };
    let windows = match settings.cut(tokens_total, plan.bos.count) {
        Cut::Windows(windows) => windows,
        Cut::ShortDocument => return Ok(dropped("short_document", 0)),
        Cut::DocumentTooLong => {
            let message = format!(
                "the document has {tokens_total} tokens and {bos} BOS, more than the {} of `window_tokens`",
                settings.window_tokens
            );
            return Err(("tokenize", RowError::new("document_too_long", message)));
        }
    };
    let (windows, short): (Vec<_>, Vec<_>) = windows.into_iter().partition(|window| {
        window.token_end - window.token_start + bos >= plan.measures.min_tokens
    });
    let windows_too_short = short.len() as u64;
    if windows.is_empty() {
        return Ok(dropped("too_short", windows_too_short));
    }
    Ok(Preparation::Measure(CutDocument {
        ids,
        ends,
        text_bytes: text.as_ref().map_or(0, |text| text.len()),
        text: text.filter(|_| plan.measures.text),
        windows,
        windows_too_short,
        content_hash,
        answers,
    }))
}
