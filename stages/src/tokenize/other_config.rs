//! Settings of `tokenizer_config.json` that change token ids and are missing in `tokenizer.json`: `transformers`
//! applies them when it loads a tokenizer; programs that only read `tokenizer.json` do not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::{ModelWrapper, Tokenizer};

use crate::model::folder_files::{MAX_CONFIG_BYTES, read_small_file, token_text, tokenizer_config};
use crate::model::{ModelProblem, listed};

/// Settings that name several tokens.
const TOKEN_LISTS: [&str; 3] =
    ["additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"];
/// Pattern by which `Qwen2Tokenizer` splits texts.
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Normalizers and pre-tokenizers by class of transformers 5, which replace those of `tokenizer.json`.
const STEPS_OF_CLASSES: [(&str, &[&str], &[&str]); 7] = [
    ("BertTokenizer", &["BertNormalizer"], &["BertPreTokenizer"]),
    ("GPT2Tokenizer", &[], &["ByteLevel"]),
    ("CodeGenTokenizer", &[], &["ByteLevel"]),
    ("GPTNeoXTokenizer", &["NFC"], &["ByteLevel"]),
    ("CohereTokenizer", &["NFC"], &["Digits", "ByteLevel"]),
    ("Qwen2Tokenizer", &["NFC"], &["Split", "ByteLevel"]),
    ("GemmaTokenizer", &["Replace"], &["Split"]),
];
/// Model types for which transformers 5 uses the steps of `tokenizer.json`, although a class is named.
const MODELS_WITHOUT_CLASS: [&str; 28] = [
    "ernie4_5",
    "ernie4_5_moe",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_bigcode",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "granitemoeshared",
    "internlm2",
    "internlm3",
    "jamba",
    "minicpm3",
    "minimax_m2",
    "ministral",
    "ministral3",
    "mistral",
    "mistral3",
    "mixtral",
    "nemotron",
    "olmo2",
    "olmo3",
    "persimmon",
    "phi3",
    "phimoe",
    "qwen3_5",
    "stablelm",
];
/// Settings of a normalizer for BERT, by their names here and in `tokenizer.json`.
const BERT_SETTINGS: [(&str, &str); 3] = [
    ("do_lower_case", "lowercase"),
    ("strip_accents", "strip_accents"),
    ("tokenize_chinese_chars", "handle_chinese_chars"),
];

/// Describes each setting of the files next to a `tokenizer.json` that gives other ids than `tokenizer`.
pub(super) fn differences(
    folder: &Path,
    tokenizer: &Tokenizer,
) -> Result<Vec<String>, ModelProblem> {
    let config = tokenizer_config(folder)?;
    let other = |name: &str| {
        let path = folder.join(name);
        let bytes = read_small_file(&path, MAX_CONFIG_BYTES).ok()?;
        serde_json::from_slice::<Map<String, Value>>(&bytes).ok()
    };
    let maps = [other("special_tokens_map.json"), other("added_tokens.json")];
    let [special, by_text] = maps.map(Option::unwrap_or_default);
    let tokens = added_tokens(&config, &special, &by_text, tokenizer);
    let flags = flags(&config, tokenizer);
    let splits = config.get("split_special_tokens").and_then(Value::as_bool) == Some(true);
    let splits = splits.then(|| {
        "`tokenizer_config.json` has `split_special_tokens: true`: transformers then reads special tokens in texts as text; \
         here `special_tokens_in_text` decides"
            .to_owned()
    });
    let model = other("config.json");
    let model = model.as_ref().map(|model| model.get("model_type").and_then(Value::as_str));
    let model = model.flatten().unwrap_or_default();
    let class = match model {
        // transformers ignores the class in `tokenizer_config.json`.
        "qwen2" => "Qwen2Tokenizer",
        _ => config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default(),
    };
    let uses_class = !MODELS_WITHOUT_CLASS.contains(&model);
    let steps = steps_of_class(class, &config, tokenizer).filter(|_| uses_class);
    let prefix = prefix_space(class, &config, tokenizer);
    let of_tokens = tokens.into_iter().chain(flags).chain(splits).chain(steps);
    Ok(of_tokens.chain(prefix).chain(bert_normalizer(&config, tokenizer)).collect())
}

/// Returns the texts of the tokens that settings name, as in `bos_token` or `additional_special_tokens`.
fn named_tokens(settings: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let named = settings.iter().filter(|(name, _)| name.ends_with("_token"));
    let named = named.filter_map(|(_, token)| token_text(token));
    let lists = TOKEN_LISTS.iter().filter_map(|name| settings.get(*name));
    let of_lists = lists.flat_map(|list| match list {
        Value::Array(tokens) => tokens.iter().filter_map(token_text).collect(),
        Value::Object(tokens) => tokens.values().filter_map(token_text).collect(),
        _ => Vec::new(),
    });
    named.chain(of_lists)
}

fn added_tokens(
    config: &Map<String, Value>,
    special: &Map<String, Value>,
    by_text: &Map<String, Value>,
    tokenizer: &Tokenizer,
) -> Option<String> {
    let added: BTreeMap<String, u32> = tokenizer
        .get_added_tokens_decoder()
        .into_iter()
        .map(|(id, token)| (token.content, id))
        .collect();
    let by_id = config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let by_id = by_id.filter_map(|(id, token)| Some((token_text(token)?, id.parse::<u32>().ok())));
    let by_text =
        by_text.iter().filter_map(|(text, id)| Some((&**text, Some(id.as_u64()? as u32))));
    let named = named_tokens(config).chain(named_tokens(special));
    let wanted = by_id.chain(by_text).chain(named.map(|token| (token, None)));
    let other = |(token, id): &(&str, Option<u32>)| match added.get(*token) {
        Some(own) => id.is_some_and(|id| id != *own),
        None => true,
    };
    let others: BTreeSet<&str> = wanted.filter(other).map(|(token, _)| token).collect();
    let others: Vec<&str> = others.into_iter().collect();
    (!others.is_empty()).then(|| {
        format!(
            "files next to `tokenizer.json`, such as `tokenizer_config.json`, have added tokens that it does not have, or has \
             under other ids: {}; transformers adds them when it loads the tokenizer, so texts with these tokens get other ids here",
            listed(&others, 4)
        )
    })
}

/// Describes added tokens that `tokenizer_config.json` matches in texts in another way.
fn flags(config: &Map<String, Value>, tokenizer: &Tokenizer) -> Option<String> {
    let added = tokenizer.get_added_tokens_decoder();
    let by_id = config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let differs = |(id, token): (&String, &Value)| {
        let own = added.get(&id.parse::<u32>().ok()?)?;
        let flags = [
            ("lstrip", own.lstrip),
            ("rstrip", own.rstrip),
            ("single_word", own.single_word),
            ("normalized", own.normalized),
        ];
        let mut flags = flags.iter();
        let is_same = |(name, own): &(&str, bool)| {
            token.get(*name).and_then(Value::as_bool).is_none_or(|wanted| wanted == *own)
        };
        (token_text(token) == Some(&own.content) && !flags.all(is_same))
            .then(|| own.content.clone())
    };
    let others: BTreeSet<String> = by_id.filter_map(differs).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    (!others.is_empty()).then(|| {
        format!(
            "`tokenizer_config.json` has other values of `lstrip`, `rstrip`, `single_word` or `normalized` than `tokenizer.json` \
             for added tokens: {}; transformers follows the former, so texts with these tokens get other ids here",
            listed(&others, 4)
        )
    })
}

/// Whether a class uses the steps of a `tokenizer.json` as it finds them.
fn uses_steps(class: &str) -> bool {
    matches!(
        class.trim_end_matches("Fast"),
        "" | "PreTrainedTokenizer" | "TokenizersBackend" | "BloomTokenizer"
    )
}

/// Describes the steps of a class in transformers 5 that replace others of a `tokenizer.json`.
fn steps_of_class(
    class: &str,
    config: &Map<String, Value>,
    tokenizer: &Tokenizer,
) -> Option<String> {
    if uses_steps(class) {
        return None;
    }
    let name = class.trim_end_matches("Fast");
    let normalizer = tokenizer.get_normalizer().and_then(|own| serde_json::to_value(own).ok());
    let splitter = tokenizer.get_pre_tokenizer().and_then(|own| serde_json::to_value(own).ok());
    let (normalizer, splitter) = (steps(normalizer), steps(splitter));
    let has_prefix_setting = config.get("add_prefix_space").is_some_and(Value::is_boolean);
    let is = |own: &[Value], wanted: &[&str]| {
        own.iter().map(|step| step["type"].as_str().unwrap_or_default()).eq(wanted.iter().copied())
    };
    let is_same = if name.contains("Llama") {
        // By default, the class puts a blank before each text. It does not replace byte-level steps.
        let is_replaced = match normalizer_prefix(name, tokenizer) {
            Some(has_prefix) => has_prefix || !has_prefix_setting,
            None => !matches!(tokenizer.get_model(), ModelWrapper::BPE(_)),
        };
        !is_replaced || splitter.iter().any(|step| step["type"] == "ByteLevel")
    } else {
        let other = |step: &Value| match step["type"].as_str() {
            Some("Split") => name == "Qwen2Tokenizer" && step["pattern"]["Regex"] != QWEN2_PATTERN,
            // By default, the classes put no blank before a text.
            Some("ByteLevel") => step["add_prefix_space"] == true && !has_prefix_setting,
            _ => false,
        };
        let mut known = STEPS_OF_CLASSES.iter();
        known.any(|(known, normalizers, splits)| {
            *known == name && is(&normalizer, normalizers) && is(&splitter, splits)
        }) && !splitter.iter().any(other)
    };
    (!is_same).then(|| {
        format!(
            "versions of transformers load this tokenizer as `{class}`, which replaces steps of `tokenizer.json` by its own: \
             there, texts can get other ids"
        )
    })
}

/// Returns the steps of a normalizer or a pre-tokenizer.
fn steps(whole: Option<Value>) -> Vec<Value> {
    let Some(whole) = whole else { return Vec::new() };
    let list =
        ["normalizers", "pretokenizers"].iter().find_map(|name| whole.get(*name)?.as_array());
    list.cloned().unwrap_or_else(|| vec![whole])
}

/// Describes a difference between the settings and the tokenizer in putting a blank before a text.
fn prefix_space(class: &str, config: &Map<String, Value>, tokenizer: &Tokenizer) -> Option<String> {
    let wanted = config.get("add_prefix_space")?.as_bool()?;
    let first = tokenizer.get_pre_tokenizer().and_then(|first| serde_json::to_value(first).ok());
    // Only classes of a model build the steps of a sequence again.
    let steps = first.as_ref().and_then(|first| first.get("pretokenizers")?.as_array());
    let steps = steps.filter(|_| !uses_steps(class));
    let adds = |step: &Value| match step.get("prepend_scheme").and_then(Value::as_str) {
        Some(scheme) => Some(scheme != "never"),
        None => step.get("add_prefix_space")?.as_bool(),
    };
    let own = first.iter().chain(steps.into_iter().flatten()).find_map(adds);
    let own = own.or_else(|| normalizer_prefix(class, tokenizer))?;
    (own != wanted).then(|| {
        format!(
            "`tokenizer_config.json` has `add_prefix_space: {wanted}` and `tokenizer.json` has {own}: versions of transformers \
             follow the former, so texts begin with other ids there"
        )
    })
}

/// Returns whether the normalizer of a tokenizer of Llama puts a blank before a text; `None` for other tokenizers.
fn normalizer_prefix(class: &str, tokenizer: &Tokenizer) -> Option<bool> {
    let steps = steps(serde_json::to_value(tokenizer.get_normalizer()?).ok());
    let has = |kind: &str| steps.iter().any(|step| step["type"] == kind);
    let is_known = class.contains("Llama") && (has("Prepend") || has("Replace"));
    is_known.then(|| has("Prepend"))
}

fn bert_normalizer(config: &Map<String, Value>, tokenizer: &Tokenizer) -> Option<String> {
    let normalizer = serde_json::to_value(tokenizer.get_normalizer()?).ok()?;
    if normalizer["type"] != "BertNormalizer" {
        return None;
    }
    let differs = |(setting, own): &&(&str, &str)| {
        config.get(*setting).is_some_and(|wanted| !wanted.is_null() && *wanted != normalizer[*own])
    };
    let (setting, own) = BERT_SETTINGS.iter().find(differs)?;
    Some(format!(
        "`tokenizer_config.json` has `{setting}: {}` and `tokenizer.json` has `{own}: {}`: transformers follows the former, \
         so texts get other ids here",
        config[*setting], normalizer[*own]
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn differences_of(tokenizer: &Value, config: &Value) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = Tokenizer::from_bytes(tokenizer.to_string()).unwrap();
        differences(folder.path(), &tokenizer).unwrap()
    }

    fn tokenizer() -> Value {
        json!({
            "added_tokens": [{"id": 2, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                              "normalized": false, "special": true}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        })
    }

    #[test]
    fn tokens_of_older_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizer = Tokenizer::from_bytes(tokenizer().to_string()).unwrap();
        for (name, content) in [
            (
                "special_tokens_map.json",
                json!({"bos_token": "<s>", "additional_special_tokens": ["<y>"]}),
            ),
            ("added_tokens.json", json!({"<s>": 2, "<y>": 3})),
        ] {
            let path = folder.path().join(name);
            fs::write(&path, content.to_string()).unwrap();
            let [found] = &differences(folder.path(), &tokenizer).unwrap()[..] else { panic!() };
            assert!(found.contains("under other ids: `<y>`;"), "{found}");
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn equivalent_settings_are_not_reported() {
        let config = json!({
            "added_tokens_decoder": {"2": {"content": "<s>"}}, "bos_token": "<s>", "eos_token": {"content": "<s>"},
            "unk_token": null, "add_prefix_space": false, "additional_special_tokens": ["<s>"], "do_lower_case": true,
        });
        assert_eq!(differences_of(&tokenizer(), &config), Vec::<String>::new());
    }

    #[test]
    fn steps_that_a_class_replaces_are_named() {
        let is_named = |class: &str, normalizer: Value, splitter: Value| {
            let mut own = tokenizer();
            own["normalizer"] = normalizer;
            own["pre_tokenizer"] = splitter;
            let found = differences_of(&own, &json!({ "tokenizer_class": class }));
            found.iter().any(|found| found.contains("by its own"))
        };
        let bytes = tokenizer()["pre_tokenizer"].clone();
        let sequence =
            |first: Value| json!({"type": "Sequence", "pretokenizers": [first, bytes.clone()]});
        let digits = sequence(json!({"type": "Digits", "individual_digits": true}));
        let split = |pattern: &str| {
            sequence(json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                "invert": false}))
        };
        let composed = json!({"type": "NFC"});
        assert!(!is_named("GPT2TokenizerFast", Value::Null, bytes.clone()));
        assert!(is_named("GPT2Tokenizer", Value::Null, digits.clone()));
        assert!(!is_named("PreTrainedTokenizerFast", Value::Null, digits.clone()));
        assert!(is_named("GPTNeoXTokenizer", Value::Null, bytes.clone()));
        assert!(!is_named("CohereTokenizerFast", composed.clone(), digits));
        assert!(!is_named("Qwen2Tokenizer", composed.clone(), split(QWEN2_PATTERN)));
        assert!(is_named("Qwen2Tokenizer", composed, split(r"\p{N}{1,3}")));
        let mut blank = bytes;
        blank["add_prefix_space"] = json!(true);
        assert!(is_named("CodeGenTokenizer", Value::Null, blank));
        assert!(is_named("RobertaTokenizer", Value::Null, tokenizer()["pre_tokenizer"].clone()));
    }

    #[test]
    fn a_blank_before_a_text_is_compared_inside_a_sequence() {
        let mut own = tokenizer();
        let digits = json!({"type": "Digits", "individual_digits": true});
        own["pre_tokenizer"] =
            json!({"type": "Sequence", "pretokenizers": [digits, own["pre_tokenizer"]]});
        for (class, wanted, differ) in [
            ("GPT2Tokenizer", true, true),
            ("GPT2Tokenizer", false, false),
            ("BloomTokenizer", true, false),
            ("TokenizersBackend", true, false),
        ] {
            let config = json!({"tokenizer_class": class, "add_prefix_space": wanted});
            let found = differences_of(&own, &config);
            let is_named = found.iter().any(|found| found.contains("add_prefix_space"));
            assert_eq!(is_named, differ, "{class} {wanted}");
        }
    }

    #[test]
    fn a_normalizer_of_llama_that_adds_a_blank_is_compared() {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let both = json!({"type": "Sequence", "normalizers": [prepend, replace]});
        let class = "which replaces steps";
        for (normalizer, class, wanted, named) in [
            (&both, "LlamaTokenizerFast", json!(false), &[class, "`add_prefix_space: false`"][..]),
            (&both, "LlamaTokenizerFast", json!(true), &[class]),
            (&both, "CodeLlamaTokenizer", Value::Null, &[class]),
            (&replace, "LlamaTokenizer", json!(true), &["`add_prefix_space: true`"]),
            (&replace, "LlamaTokenizer", Value::Null, &[class]),
            (&replace, "LlamaTokenizer", json!(false), &[]),
            (&both, "PreTrainedTokenizerFast", json!(false), &[]),
        ] {
            let mut tokenizer = tokenizer();
            tokenizer["pre_tokenizer"] = Value::Null;
            tokenizer["normalizer"] = normalizer.clone();
            let config = json!({"tokenizer_class": class, "add_prefix_space": wanted});
            let found = differences_of(&tokenizer, &config);
            assert_eq!(found.len(), named.len(), "{normalizer} {class} {wanted}: {found:?}");
            assert!(
                found.iter().zip(named).all(|(found, named)| found.contains(named)),
                "{found:?}"
            );
        }
    }

    #[test]
    fn steps_of_classes_are_named_for_models_that_use_them_only() {
        for (class, model, named) in [
            ("LlamaTokenizer", "llama", 1),
            ("LlamaTokenizer", "mistral", 0),
            ("GPT2Tokenizer", "starcoder2", 1),
            ("GPT2Tokenizer", "phi", 1),
            ("GPT2Tokenizer", "granite", 0),
            ("PreTrainedTokenizerFast", "qwen2", 1),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let config = json!({ "tokenizer_class": class });
            fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
            let config = json!({"model_type": model});
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            let mut own = tokenizer();
            own["normalizer"] = json!({"type": "Prepend", "prepend": "▁"});
            own["pre_tokenizer"] = Value::Null;
            let tokenizer = Tokenizer::from_bytes(own.to_string()).unwrap();
            assert_eq!(differences(folder.path(), &tokenizer).unwrap().len(), named, "{model}");
        }
    }

    #[test]
    fn differing_added_tokens_and_prefix_spaces_are_named() {
        let config = json!({
            "added_tokens_decoder": {"2": {"content": "<s>"}, "3": {"content": "<|im_start|>"}},
            "eos_token": "</s>", "extra_special_tokens": {"image": "<img>"}, "add_prefix_space": true,
        });
        let [tokens, prefix] = &differences_of(&tokenizer(), &config)[..] else { panic!() };
        assert!(tokens.contains("`</s>`, `<img>`, `<|im_start|>`;"), "{tokens}");
        assert!(prefix.contains("`add_prefix_space: true`"), "{prefix}");
        let moved = json!({"added_tokens_decoder": {"7": {"content": "<s>"}}});
        assert!(differences_of(&tokenizer(), &moved)[0].contains("under other ids: `<s>`;"));
        let named =
            json!({"image_token": "<img>", "model_specific_special_tokens": {"video": "<video>"}});
        assert!(differences_of(&tokenizer(), &named)[0].contains("`<img>`, `<video>`;"));
        let flags = json!({"added_tokens_decoder": {"2": {"content": "<s>", "lstrip": true}}, "split_special_tokens": true});
        let [flags, splits] = &differences_of(&tokenizer(), &flags)[..] else { panic!() };
        assert!(flags.contains("for added tokens: `<s>`;"), "{flags}");
        assert!(splits.contains("`split_special_tokens: true`"), "{splits}");
        let mut bert = tokenizer();
        bert["normalizer"] = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                                    "strip_accents": null, "lowercase": true});
        assert!(
            differences_of(&bert, &json!({"do_lower_case": false}))[0]
                .contains("`do_lower_case: false`")
        );
    }
}
