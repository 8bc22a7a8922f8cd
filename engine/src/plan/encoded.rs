//! The tokens of a text, by the tokenizer of a plan.

use longsift_stages::tokenize::encoder::{EncodedText, Encoder};

use crate::base::diagnostic::{Blame, Diagnostic, Place};
use crate::plan::Plan;

/// Why a text has no tokens.
pub(crate) enum Untokenized {
    /// The row cannot be used: a short, stable name of the reason, and a message.
    Refused(&'static str, String),
    /// The tokenizer is not done with it in a time that no published tokenizer needs: another machine might be.
    Endless(Box<Diagnostic>),
}

/// The tokens of a whole text; `place` says where it stands.
pub(crate) fn tokenize(plan: &Plan, place: String, text: &str) -> Result<EncodedText, Untokenized> {
    let largest = plan.spec.pipeline.input.max_document_bytes;
    if text.len() as u64 > largest {
        let message = format!(
            "the text has {} bytes, more than the {largest} of `max_document_bytes`",
            text.len()
        );
        return Err(Untokenized::Refused("document_too_large", message));
    }
    let encoder = plan.encoder.as_ref().expect("the plan opens a tokenizer for text");
    encoder.encode(text, Encoder::LARGEST_PART_BYTES).map_err(|problem| {
        if !problem.is_of_the_tokenizer() {
            return Untokenized::Refused(problem.code(), problem.to_string());
        }
        let endless = Diagnostic::error(Blame::Pipeline, problem.to_string())
            .at(Place::Data(place))
            .hint("use another tokenizer, or leave this row out of the input");
        Untokenized::Endless(Box::new(endless))
    })
}
