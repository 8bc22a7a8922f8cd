//! Finds the id of the token that begins a sequence (BOS).

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::ModelConfig;
use super::folder_files::{read_small_file, token_text, tokenizer_config};
use crate::tokenize::encoder::MAX_TOKENIZER_BYTES;

impl ModelConfig {
    /// Returns the BOS id: from `tokenizer_config.json` in the model folder, otherwise from `config.json`. A `bos_token` of
    /// `null` means that the model has none, even if `config.json` names an id (as Qwen2.5 does).
    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos_token_id_in(self.folder())
    }

    /// Like [`Self::bos_token_id`], with the tokenizer files of another folder.
    pub(crate) fn bos_token_id_in(&self, tokenizer_folder: &Path) -> Option<u32> {
        // `ModelConfig::read` and `Encoder::open` refuse an invalid file.
        let config = tokenizer_config(tokenizer_folder).unwrap_or_default();
        let token = config.get("bos_token");
        if token.is_some_and(Value::is_null) {
            return None;
        }
        let id = token.and_then(token_text).and_then(|text| {
            id_in_config(&config, text).or_else(|| id_in_tokenizer(tokenizer_folder, text))
        });
        id.or_else(|| self.stated_bos_token_id())
    }
}

/// Looks a token's id up in `added_tokens_decoder`, which maps ids to tokens.
fn id_in_config(config: &Map<String, Value>, text: &str) -> Option<u32> {
    let decoder = config.get("added_tokens_decoder")?.as_object()?;
    let content = |token: &Value| token.get("content").and_then(Value::as_str) == Some(text);
    decoder.iter().find(|(_, token)| content(token)).and_then(|(id, _)| id.parse().ok())
}

/// Parts of `tokenizer.json` that name ids.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: Option<TokenizerModel>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct TokenizerModel {
    vocab: Option<Value>,
}

fn id_in_tokenizer(folder: &Path, text: &str) -> Option<u32> {
    let bytes = read_small_file(&folder.join("tokenizer.json"), MAX_TOKENIZER_BYTES).ok()?;
    let tokenizer: TokenizerFile = serde_json::from_slice(&bytes).ok()?;
    if let Some(token) = tokenizer.added_tokens.iter().rfind(|token| token.content == text) {
        return Some(token.id);
    }
    match tokenizer.model?.vocab? {
        Value::Object(vocabulary) => vocabulary.get(text)?.as_u64()?.try_into().ok(),
        // A unigram vocabulary is a list of [token, score].
        Value::Array(pieces) => {
            let index = pieces
                .iter()
                .position(|piece| piece.get(0).and_then(Value::as_str) == Some(text))?;
            u32::try_from(index).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn bos(files: &[(&str, Value)]) -> Option<u32> {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512,
            "num_hidden_layers": 2, "bos_token_id": 7});
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        for (name, value) in files {
            fs::write(folder.path().join(name), value.to_string()).unwrap();
        }
        ModelConfig::read(folder.path(), None).unwrap().bos_token_id()
    }

    #[test]
    fn config_json_is_the_fallback() {
        assert_eq!(bos(&[]), Some(7));
        assert_eq!(bos(&[("tokenizer_config.json", json!({"add_bos_token": true}))]), Some(7));
    }

    #[test]
    fn a_null_bos_token_overrides_config_json() {
        assert_eq!(bos(&[("tokenizer_config.json", json!({"bos_token": null}))]), None);
    }

    #[test]
    fn an_invalid_tokenizer_config_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512,
            "num_hidden_layers": 2, "bos_token_id": 7});
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let read = |text: &str| {
            fs::write(folder.path().join("tokenizer_config.json"), text).unwrap();
            ModelConfig::read(folder.path(), None).map(|config| config.bos_token_id())
        };
        for text in ["", "[]", "{\"bos_token\": nul", "null"] {
            let problems = read(text).unwrap_err();
            assert!(problems[0].message.contains("tokenizer_config.json"), "{text}: {problems:?}");
        }
        assert_eq!(read("{\"bos_token\": null, \"model_max_length\": Infinity}"), Ok(None));
    }

    #[test]
    fn the_id_is_found_in_every_tokenizer_file() {
        let text = ("tokenizer_config.json", json!({"bos_token": "<s>"}));
        let object = ("tokenizer_config.json", json!({"bos_token": {"content": "<s>"}}));
        let added = ("tokenizer.json", json!({"added_tokens": [{"id": 3, "content": "<s>"}]}));
        let vocabulary = ("tokenizer.json", json!({"model": {"vocab": {"a": 0, "<s>": 4}}}));
        let unigram = ("tokenizer.json", json!({"model": {"vocab": [["a", -1.0], ["<s>", 0.0]]}}));
        let decoder =
            json!({"bos_token": "<s>", "added_tokens_decoder": {"5": {"content": "<s>"}}});
        assert_eq!(bos(&[text.clone(), added]), Some(3));
        assert_eq!(bos(&[object, vocabulary]), Some(4));
        assert_eq!(bos(&[text, unigram]), Some(1));
        assert_eq!(bos(&[("tokenizer_config.json", decoder)]), Some(5));
    }
}
