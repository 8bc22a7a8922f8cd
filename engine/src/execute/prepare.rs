//! Documents to windows of token ids: what happens to a row before anything is measured.

use longsift_stages::tokenize::windows::{Cut, TokenWindow};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::dataset::{Document, DocumentContent};
use crate::plan::Plan;
use longsift_stages::contract::hex;

/// A row that could not be scored, and why.
#[derive(Clone, Debug)]
pub struct BadRow {
    /// Row in the file.
    pub row: u64,
    /// The stage that could not go on: `input`, `tokenize`, `first-layer-attention`.
    pub stage: &'static str,
    /// Short, stable name of the reason.
    pub code: &'static str,
    /// What is wrong, with the values involved.
    pub message: String,
}

/// A document, tokenised and cut.
#[derive(Debug)]
pub struct Prepared {
    /// Row in the file.
    pub row: u64,
    /// The document's id; `<file>:<row>` where the input has none.
    pub id: String,
    /// What is to be done with it.
    pub outcome: Outcome,
}

/// What is to be done with a document.
#[derive(Debug)]
pub enum Outcome {
    /// It cannot be scored.
    Quarantine(BadRow),
    /// It has nothing to score, for this reason.
    Drop {
        /// Short, stable name of the reason.
        reason: &'static str,
        /// Tokens of the document.
        tokens_total: u64,
        /// Windows that were cut and are too short for the distance.
        windows: u64,
    },
    /// Its windows are to be measured.
    Measure(CutDocument),
}

/// A document with windows to measure.
#[derive(Debug)]
pub struct CutDocument {
    /// Token ids, without BOS.
    pub ids: Vec<u32>,
    /// Character-completed byte ends of the tokens, and the length of the text; none for pre-tokenised documents.
    pub ends: Option<longsift_stages::tokenize::encoder::EncodedText>,
    /// Length of the text in bytes; 0 for pre-tokenised documents.
    pub text_bytes: usize,
    /// Windows to measure, by position.
    pub windows: Vec<TokenWindow>,
    /// Windows that are too short for the distance.
    pub windows_too_short: u64,
    /// Hash of the text or the tokens.
    pub content_hash: String,
}

/// Tokenises and cuts a batch of documents, in parallel; the answers are in the order of the documents.
pub fn prepare(plan: &Plan, file: &str, documents: Vec<Document>) -> Vec<Prepared> {
    documents
        .into_par_iter()
        .map(|document| {
            let row = document.row;
            let id = document.id.clone().unwrap_or_else(|| format!("{file}:{row}"));
            let outcome = outcome(plan, document).unwrap_or_else(|(stage, code, message)| {
                Outcome::Quarantine(BadRow { row, stage, code, message })
            });
            Prepared { row, id, outcome }
        })
        .collect()
}

type Refusal = (&'static str, &'static str, String);

fn outcome(plan: &Plan, document: Document) -> Result<Outcome, Refusal> {
    let content = document.content.map_err(|problem| ("input", problem.code, problem.message))?;
    let content_hash = content_hash(&content);
    let (ids, ends, text_bytes) = match content {
        DocumentContent::Tokens(ids) => (ids, None, 0),
        DocumentContent::Text(text) => {
            let largest = plan.largest_text_bytes();
            if text.len() as u64 > largest {
                let message = format!(
                    "the text has {} bytes; within `memory_limit_bytes` at most {largest} can be scored",
                    text.len()
                );
                return Err(("tokenize", "document_too_large", message));
            }
            let encoder = plan.encoder.as_ref().expect("the plan opens a tokenizer for text");
            let mut encoded = encoder
                .encode(&text, usize::try_from(plan.largest_part_bytes()).unwrap_or(usize::MAX))
                .map_err(|problem| ("tokenize", problem.code(), problem.to_string()))?;
            (std::mem::take(&mut encoded.ids), Some(encoded), text.len())
        }
    };
    let vocabulary = plan.model.spec().vocabulary_size;
    if let Some((position, id)) =
        ids.iter().enumerate().find(|(_, id)| u64::from(**id) >= vocabulary)
    {
        let message = format!(
            "token {position} is {id}, but the model's vocabulary has {vocabulary} entries"
        );
        return Err(("tokenize", "token_out_of_range", message));
    }
    cut(plan, ids, ends, text_bytes, content_hash)
}

fn cut(
    plan: &Plan,
    ids: Vec<u32>,
    ends: Option<longsift_stages::tokenize::encoder::EncodedText>,
    text_bytes: usize,
    content_hash: String,
) -> Result<Outcome, Refusal> {
    let tokens_total = ids.len() as u64;
    if tokens_total == 0 {
        return Err(("tokenize", "empty_text", "the text has no tokens".to_owned()));
    }
    let settings = plan.spec.tokenize();
    let bos = u64::from(plan.bos.count);
    let windows = match settings.cut(tokens_total, plan.bos.count) {
        Cut::Windows(windows) => windows,
        Cut::ShortDocument => {
            return Ok(Outcome::Drop { reason: "short_document", tokens_total, windows: 0 });
        }
        Cut::DocumentTooLong => {
            let message = format!(
                "the document has {tokens_total} tokens and {bos} BOS, more than the {} of `window_tokens`",
                settings.window_tokens
            );
            return Err(("tokenize", "document_too_long", message));
        }
    };
    let attention = plan.spec.first_layer_attention();
    let (windows, short): (Vec<_>, Vec<_>) = windows.into_iter().partition(|window| {
        let tokens = window.token_end - window.token_start + bos;
        tokens >= 2 && attention.distance(tokens) < tokens
    });
    let windows_too_short = short.len() as u64;
    if windows.is_empty() {
        return Ok(Outcome::Drop { reason: "too_short", tokens_total, windows: windows_too_short });
    }
    Ok(Outcome::Measure(CutDocument {
        ids,
        ends,
        text_bytes,
        windows,
        windows_too_short,
        content_hash,
    }))
}

/// The first 128 bits of the SHA-256 of a document: its text, or its token ids as little-endian 32-bit integers.
pub fn content_hash(content: &DocumentContent) -> String {
    let digest = match content {
        DocumentContent::Text(text) => Sha256::digest(text.as_bytes()),
        DocumentContent::Tokens(ids) => {
            let mut hasher = Sha256::new();
            for id in ids {
                hasher.update(id.to_le_bytes());
            }
            hasher.finalize()
        }
    };
    hex(&digest[..16])
}
