//! GGUF files give the same ids as the tokenizer.json that they were made from.

use std::fs;
use std::path::Path;

use hashbrown::HashMap;
use serde_json::Value;

use super::SpecialTokensInText;
use super::encoder::Encoder;
use super::fixtures::{bytes_with, shared_file, shared_tokenizer};
use super::problem::TokenizerProblem;

enum Entry {
    Text(String),
    Texts(Vec<String>),
    Floats(Vec<f32>),
    Wholes(Vec<i32>),
    Flag(bool),
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn list(kind: u32, values: &[Vec<u8>]) -> Vec<u8> {
    let head = [kind.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()];
    [head.concat(), values.concat()].concat()
}

/// Writes a GGUF file of entries without tensors.
fn write(path: &Path, entries: &[(&str, Entry)]) {
    let mut bytes = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, entry) in entries {
        let (kind, value) = match entry {
            Entry::Text(value) => (8u32, text(value)),
            Entry::Flag(value) => (7, vec![u8::from(*value)]),
            Entry::Texts(values) => {
                (9, list(8, &values.iter().map(|value| text(value)).collect::<Vec<_>>()))
            }
            Entry::Floats(values) => (
                9,
                list(
                    6,
                    &values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>(),
                ),
            ),
            Entry::Wholes(values) => (
                9,
                list(
                    5,
                    &values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>(),
                ),
            ),
        };
        bytes.extend([text(key), kind.to_le_bytes().to_vec(), value].concat());
    }
    fs::write(path, bytes).unwrap();
}

/// Returns the entries that llama.cpp's conversion makes of a tokenizer.json.
fn entries(form: &Value, model: &str, pre: &str, architecture: &str) -> Vec<(&'static str, Entry)> {
    let id = |value: &Value| value.as_u64().unwrap() as usize;
    let vocabulary = form["model"]["vocab"].as_object().unwrap();
    let added = form["added_tokens"].as_array().unwrap();
    let max = vocabulary.values().map(id).chain(added.iter().map(|token| id(&token["id"]))).max();
    // Rows of the embedding without a token.
    let mut tokens: Vec<String> = (0..max.unwrap() + 3).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![5; tokens.len()];
    for (text, at) in vocabulary {
        let is_byte = model == "llama" && text.starts_with("<0x") && text.len() == 6;
        (tokens[id(at)], types[id(at)]) = (text.clone(), if is_byte { 6 } else { 1 });
    }
    for token in added {
        let content = token["content"].as_str().unwrap().to_owned();
        let looks_special = token["special"] == true || content == "</s>";
        let kind = if content == "<unk>" {
            2
        } else if looks_special {
            3
        } else {
            4
        };
        (tokens[id(&token["id"])], types[id(&token["id"])]) = (content, kind);
    }
    let merges: Vec<String> =
        form["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let mut entries = vec![
        ("general.architecture", Entry::Text(architecture.to_owned())),
        ("tokenizer.ggml.model", Entry::Text(model.to_owned())),
        ("tokenizer.ggml.pre", Entry::Text(pre.to_owned())),
        ("tokenizer.ggml.token_type", Entry::Wholes(types)),
    ];
    if model == "llama" {
        // `SentencePiece` orders its pieces by score.
        let mut scores = HashMap::new();
        for (rank, merge) in merges.iter().enumerate() {
            scores.entry(merge.replace(' ', "")).or_insert(-(rank as f32));
        }
        let scores = tokens.iter().map(|token| scores.get(token).copied().unwrap_or(-1e6));
        entries.push(("tokenizer.ggml.scores", Entry::Floats(scores.collect())));
    } else {
        entries.push(("tokenizer.ggml.merges", Entry::Texts(merges)));
    }
    entries.push(("tokenizer.ggml.tokens", Entry::Texts(tokens)));
    entries
}

fn merge(merge: &Value) -> String {
    match merge.as_array() {
        Some(parts) => format!("{} {}", parts[0].as_str().unwrap(), parts[1].as_str().unwrap()),
        None => merge.as_str().unwrap().to_owned(),
    }
}

fn opened(path: &Path) -> Result<Encoder, TokenizerProblem> {
    Encoder::open(path, SpecialTokensInText::Parse)
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn a_file_gives_the_ids_of_its_original_tokenizer_json() {
    for (tokenizer, model, pre, architecture) in [
        ("gpt2", "gpt2", "gpt-2", "gpt2"),
        ("qwen2.5", "gpt2", "qwen2", "qwen2"),
        ("deepseek-coder", "gpt2", "deepseek-coder", "llama"),
        ("phi-3-mini", "llama", "default", "phi3"),
    ] {
        let json = shared_tokenizer(tokenizer);
        let form: Value = serde_json::from_slice(&json).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write(&path, &entries(&form, model, pre, architecture));
        let own = opened(&path).unwrap();
        let theirs = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
        assert_eq!(own.largest_id(), theirs.largest_id(), "{tokenizer}");
        assert_eq!(own.unsplittable_reason(), None, "{tokenizer}");
        let vectors = shared_file(&format!("tokenizers/{tokenizer}/test-vectors.inp"));
        let vectors = String::from_utf8(vectors).unwrap();
        let special =
            "a <s> b</s>  c <|endoftext|> d <|user|>\n e<|im_end|> <unk> \u{344}\u{f5} 1234½²";
        let mut texts: Vec<String> = vec![vectors, special.to_owned()];
        for corpus in ["books", "code", "papers"] {
            texts.push(super::fixtures::shared_beginnings(corpus, 2000));
        }
        for text in texts {
            let (own, theirs) = (own.encode(&text, usize::MAX), theirs.encode(&text, usize::MAX));
            assert!(own.unwrap() == theirs.unwrap(), "{tokenizer}");
        }
    }
}

/// Returns the entries of a small byte-level tokenizer, modified.
fn small(change: impl Fn(&str, &mut Entry) -> bool) -> Result<Encoder, TokenizerProblem> {
    let form: Value = serde_json::from_slice(&bytes_with(|_| ())).unwrap();
    let mut entries = entries(&form, "gpt2", "gpt-2", "gpt2");
    entries.push(("tokenizer.ggml.add_space_prefix", Entry::Flag(false)));
    entries.retain_mut(|(key, entry)| change(key.trim_start_matches("tokenizer.ggml."), entry));
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("model.gguf"), &entries);
    opened(folder.path())
}

#[test]
fn a_tokenizer_json_takes_precedence_over_a_gguf_file() {
    let encoder = small(|_, _| true).unwrap();
    assert_eq!(encoder.encode("hello<s>", usize::MAX).unwrap().ids.last(), Some(&257));
    let id = |content| encoder.library.vocabulary().unwrap().get(content).copied();
    assert_eq!((id("<s>"), id("[PAD258]")), (Some(257), None));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.gguf"), "GGUF").unwrap();
    fs::write(folder.path().join("tokenizer.json"), bytes_with(|_| ())).unwrap();
    assert!(opened(folder.path()).is_ok() && opened(&folder.path().join("model.gguf")).is_ok());
}

#[test]
fn a_different_tokenizer_json_is_reported() {
    let warning = |change: &dyn Fn(&mut Value)| {
        let form: Value = serde_json::from_slice(&bytes_with(|_| ())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut entries = entries(&form, "gpt2", "gpt-2", "gpt2");
        entries.push(("tokenizer.ggml.add_space_prefix", Entry::Flag(false)));
        write(&folder.path().join("model.gguf"), &entries);
        fs::write(folder.path().join("tokenizer.json"), bytes_with(change)).unwrap();
        opened(folder.path()).unwrap().warnings()
    };
    assert_eq!(warning(&|_| ()), [""; 0]);
    let swapped = warning(&|form| {
        let vocab = form["model"]["vocab"].as_object_mut().unwrap();
        let (a, b) = (vocab["a"].clone(), vocab["b"].clone());
        vocab.insert("a".to_owned(), b);
        vocab.insert("b".to_owned(), a);
    });
    let [swapped] = &swapped[..] else { panic!("{swapped:?}") };
    assert!(swapped.contains("differs from the tokenizer inside `model.gguf`: id "), "{swapped}");
}

#[test]
fn digits_are_single_pieces_for_smollm() {
    let encoder = |name: &'static str| {
        small(move |key, entry| {
            if key == "pre" {
                *entry = Entry::Text(name.to_owned());
            }
            true
        })
    };
    let text = "a 12 b";
    let tokens = |name| encoder(name).unwrap().encode(text, usize::MAX).unwrap();
    // One token a byte: only the pieces could differ.
    assert_eq!(tokens("smollm"), tokens("gpt-2"));
    let why = encoder("default").unwrap_err().to_string();
    assert!(why.contains("pre-tokenizer is `default`; supported are: gpt-2, "), "{why}");
}

#[test]
fn missing_entries_are_reported() {
    let error_without = |lost: &'static str| small(move |key, _| key != lost).unwrap_err();
    for (lost, why) in [
        ("model", "the type of its tokenizer is missing"),
        ("pre", "the pre-tokenizer is missing"),
        ("tokens", "it has no tokens"),
        ("merges", "it has no merges"),
    ] {
        let problem = error_without(lost);
        assert!(problem.to_string().contains(why), "{problem}");
        assert!(problem.hint().starts_with("put the tokenizer.json"), "{lost}");
    }
    let changed = |wanted: &'static str, value: fn() -> Entry| {
        let change = move |key: &str, entry: &mut Entry| {
            if key == wanted {
                *entry = value();
            }
            true
        };
        small(change).unwrap_err().to_string()
    };
    let bert = changed("model", || Entry::Text("bert".to_owned()));
    assert!(bert.contains("has the type `bert`; supported are `gpt2` and `llama`"), "{bert}");
    let twice = changed("tokens", || Entry::Texts(vec!["a".to_owned(); 260]));
    assert!(twice.contains("its tokens 0 and 1 are both `a`"), "{twice}");
    let types = changed("token_type", || Entry::Wholes(vec![1; 3]));
    assert!(types.contains("260 tokens, but 3 token types"), "{types}");
    let prefix = changed("add_space_prefix", || Entry::Flag(true));
    assert!(prefix.contains("puts a space before texts"), "{prefix}");
    let scores = changed("model", || Entry::Text("llama".to_owned()));
    assert!(scores.contains("260 tokens, but 0"), "{scores}");
    let merges = changed("merges", || Entry::Texts(vec!["h nothing".to_owned()]));
    assert!(merges.contains("out of vocabulary"), "{merges}");
}
