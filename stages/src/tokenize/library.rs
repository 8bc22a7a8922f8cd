//! Tokenizer of the `tokenizers` library. Building its model takes most of the loading time, so if the fast path
//! encodes nearly all texts, the model is built when the first other text needs it.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tokenizers::models::ModelWrapper;
use tokenizers::{Model, Result, Tokenizer};

use super::bpe_model::{BpeMerge, BpeTokenizer};
use super::settings::SpecialTokensInText;
use super::unigram;

pub(super) struct Library {
    /// Added tokens and all steps but the model; the model as well, unless `lazy_model` has it.
    steps: Tokenizer,
    lazy_model: Option<LazyModel>,
}

/// Model that is built at its first use.
struct LazyModel {
    json: Vec<u8>,
    whole: OnceLock<std::result::Result<Tokenizer, String>>,
}

impl Library {
    pub(super) fn open(json: &[u8], special: SpecialTokensInText) -> Result<Self> {
        let mut steps = deterministic(json)?;
        steps.set_encode_special_tokens(special == SpecialTokensInText::AsText);
        Ok(Self { steps, lazy_model: None })
    }

    /// Reads a tokenizer without its model; `None` if the library might refuse the model, apart from merges of tokens
    /// outside its vocabulary, or give added tokens other ids than the file states.
    pub(super) fn without_model(
        json: &[u8],
        parsed: &BpeTokenizer<'_>,
        special: SpecialTokensInText,
    ) -> Option<Self> {
        let model = &parsed.model;
        let is_text = |merge: &BpeMerge<'_>| matches!(merge, BpeMerge::Text(_));
        let usable = model.kind.as_deref() == Some("BPE")
            && model.dropout.is_none_or(|share| (0.0..=1.0).contains(&share))
            && model.merges.windows(2).all(|pair| is_text(&pair[0]) == is_text(&pair[1]));
        if !usable {
            return None;
        }
        // The library gives added tokens their ids from the model's vocabulary, or else the next free ones.
        let mut added = serde_json::Map::new();
        let mut next_id = u32::try_from(model.vocab.len()).ok()?;
        for token in parsed.rest.get("added_tokens").and_then(Value::as_array).into_iter().flatten()
        {
            let content = token["content"].as_str().filter(|content| !content.is_empty())?;
            let id = model.vocab.get(content).copied().unwrap_or_else(|| {
                next_id += 1;
                next_id - 1
            });
            let is_new = added.insert(content.to_owned(), json!(id)).is_none();
            if !is_new || token["id"] != id {
                return None;
            }
        }
        let mut rest = parsed.rest.clone();
        rest.insert("model".to_owned(), json!({"type": "BPE", "vocab": added, "merges": []}));
        let mut steps = Tokenizer::from_bytes(serde_json::to_vec(&rest).ok()?).ok()?;
        steps.set_encode_special_tokens(special == SpecialTokensInText::AsText);
        let lazy_model = Some(LazyModel { json: json.to_vec(), whole: OnceLock::new() });
        Some(Self { steps, lazy_model })
    }

    /// Returns the added tokens and all steps but the model.
    pub(super) fn steps(&self) -> &Tokenizer {
        &self.steps
    }

    pub(super) fn model(&self) -> Result<&ModelWrapper> {
        let Some(lazy) = &self.lazy_model else { return Ok(self.steps.get_model()) };
        let whole = lazy
            .whole
            .get_or_init(|| deterministic(&lazy.json).map_err(|problem| problem.to_string()));
        Ok(whole.as_ref().map_err(String::clone)?.get_model())
    }

    /// Returns all tokens with their ids: those of the model, and added ones.
    pub(super) fn vocabulary(&self) -> Result<HashMap<String, u32>> {
        let mut vocabulary = self.model()?.get_vocab();
        let added = self.steps.get_added_tokens_decoder();
        vocabulary.extend(added.into_iter().map(|(id, token)| (token.content, id)));
        Ok(vocabulary)
    }
}

/// Reads a tokenizer and switches dropout and sampling off.
fn deterministic(json: &[u8]) -> Result<Tokenizer> {
    let mut tokenizer = Tokenizer::from_bytes(json)?;
    if matches!(tokenizer.get_model(), ModelWrapper::Unigram(_)) {
        tokenizer.with_model(unigram::model(json)?);
    }
    if let Some(model) = without_randomness(tokenizer.get_model()) {
        tokenizer.with_model(model);
    }
    Ok(tokenizer)
}

/// Returns the model without dropout and sampling; `None` if it has neither.
fn without_randomness(model: &ModelWrapper) -> Option<ModelWrapper> {
    match model {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_some() => {
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            Some(bpe.into())
        }
        ModelWrapper::Unigram(unigram)
            if unigram.alpha.is_some() || unigram.nbest_size.is_some() =>
        {
            let mut unigram = unigram.clone();
            (unigram.alpha, unigram.nbest_size) = (None, None);
            Some(unigram.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::encoder::Encoder;
    use crate::tokenize::fixtures::bytes_with;

    fn added(id: u32, content: &str) -> Value {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    }

    /// Opens a changed tokenizer and checks it against the library; returns whether its model is built lazily.
    fn is_lazy(change: impl FnOnce(&mut Value)) -> bool {
        let json = bytes_with(change);
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse);
        let whole = Tokenizer::from_bytes(&json);
        let (encoder, whole) = match (encoder, whole) {
            (Ok(encoder), Ok(whole)) => (encoder, whole),
            (Err(problem), Err(expected)) => {
                assert_eq!(problem, expected.to_string());
                return false;
            }
            (ours, library) => panic!("{:?}, expected {:?}", ours.err(), library.err()),
        };
        let text = "hello <s>he<t>hehe";
        let expected = whole.encode(text, false).unwrap().get_ids().to_vec();
        assert_eq!(encoder.encode(text, usize::MAX).unwrap().ids, expected);
        assert_eq!(encoder.encode_whole(text).unwrap().ids, expected);
        assert_eq!(encoder.library.vocabulary().unwrap(), whole.get_vocab(true));
        encoder.library.lazy_model.is_some()
    }

    #[test]
    fn a_lazily_built_model_gives_the_ids_of_the_library() {
        assert!(is_lazy(|_| ()));
        assert!(is_lazy(|form| form["model"]["merges"] = json!(["h e"])));
        assert!(is_lazy(|form| form["model"]["fuse_unk"] = json!(null)));
        assert!(is_lazy(
            |form| form["added_tokens"] = json!([added(257, "<s>"), added(258, "<t>")])
        ));
        assert!(is_lazy(|form| {
            form["model"]["vocab"]["<t>"] = json!(257);
            form["added_tokens"] = json!([added(257, "<t>"), added(258, "<s>")]);
        }));
    }

    #[test]
    fn added_tokens_under_other_ids_are_those_of_the_library() {
        assert!(!is_lazy(|form| form["added_tokens"] = json!([added(300, "<s>")])));
        assert!(!is_lazy(
            |form| form["added_tokens"] = json!([added(257, "<s>"), added(257, "<s>")])
        ));
        assert!(!is_lazy(|form| form["added_tokens"] = json!([added(0, ""), added(257, "<s>")])));
    }

    #[test]
    fn models_that_the_library_rejects_are_errors() {
        for (setting, value) in [
            ("dropout", json!(2.0)),
            ("fuse_unk", json!("yes")),
            ("merges", json!([["h", "x"]])),
            ("merges", json!(["h e e"])),
            ("merges", json!([["h", "e"], "h e"])),
            ("vocab", json!({"a": -1})),
        ] {
            let json = bytes_with(|form| form["model"][setting] = value.clone());
            assert!(Tokenizer::from_bytes(&json).is_err(), "{setting}: {value}");
            assert!(!is_lazy(|form| form["model"][setting] = value));
        }
    }
}
