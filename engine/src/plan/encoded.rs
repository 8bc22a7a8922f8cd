//! Tokenizes texts with the tokenizer of a plan.

use longsift_stages::contract::RowError;
use longsift_stages::tokenize::encoder::{EncodedText, Encoder};

use crate::base::diagnostic::{Blame, Diagnostic, DiagnosticLocation};
use crate::plan::Plan;

/// Tokenizes a whole text; `location` is its location in messages. The inner error quarantines the row.
///
/// # Errors
/// Tokenizing exceeds the time limit, which is generous for all published tokenizers. Another machine might finish.
pub(crate) fn tokenize(
    plan: &Plan,
    location: String,
    text: &str,
) -> Result<Result<EncodedText, RowError>, Box<Diagnostic>> {
    let largest = plan.spec.pipeline.input.max_document_bytes;
    if text.len() as u64 > largest {
        let message = format!(
            "the text has {} bytes, more than the {largest} of `max_document_bytes`",
            text.len()
        );
        return Ok(Err(RowError::new("document_too_large", message)));
    }
    let encoder = plan.encoder.as_ref().expect("the plan opens a tokenizer for text");
    match encoder.encode(text, Encoder::MAX_PART_BYTES) {
        Err(problem) if problem.is_tokenizer_fault() => {
            let timed_out = Diagnostic::error(Blame::Pipeline, problem.to_string())
                .at(DiagnosticLocation::Data(location))
                .hint("use another tokenizer, or remove this row from the input");
            Err(Box::new(timed_out))
        }
        encoded => {
            Ok(encoded.map_err(|problem| RowError::new(problem.code(), problem.to_string())))
        }
    }
}
