//! Parts give the tokens of the whole, for every kind of tokenizer.

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Tokenizer};

use super::SpecialTokensInText;
use super::encoder::Encoder;
use super::fixtures::{SHARED_TOKENIZERS, shared_beginnings, shared_tokenizer};

const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Training text of the vocabularies in these tests: words, blanks in runs, code, accents, several scripts.
const CORPUS: &[&str] = &[
    "the other weather, there and then; whether they're here or there's nothing. It's what we'll see.",
    "    fn main() {\n        let x = vec![1, 2, 333];\n\n\n        println!(\"{x:?}\");\r\n\t\t}\n    }",
    "déjà vu à l'été, naïve café; über Straße. 中文字符中文 字符. ひらがな 한국어 한국",
    "aaaa aaaaaaaa      aa   a          aaa\n\n\n\n  \n \n  aaaa 1234567890 12 123 1234 .... ,,, ---- ====",
];

/// Returns a tokenizer with merges, trained on [`CORPUS`].
fn trained(normalizer: &Value, pre_tokenizer: &Value, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let form = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer, "added_tokens": [],
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {}, "merges": []}
    });
    let mut tokenizer = Tokenizer::from_bytes(serde_json::to_vec(&form).unwrap()).unwrap();
    let trainer = BpeTrainer::builder().vocab_size(600).min_frequency(1).show_progress(false);
    let trainer = match tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet() {
        bytes if pre_tokenizer.to_string().contains("ByteLevel") => {
            trainer.initial_alphabet(bytes.into_iter().collect())
        }
        _ => trainer,
    };
    let mut trainer = TrainerWrapper::from(trainer.build());
    tokenizer.train(&mut trainer, CORPUS.iter().map(ToString::to_string)).unwrap();
    let mut form = serde_json::to_value(&tokenizer).unwrap();
    let next = tokenizer.get_vocab_size(true) as u32;
    let added = [
        ("<s>", false, false, false, false, true),
        ("<|end|>", false, true, true, false, false),
        ("there", true, false, false, false, false),
        ("<tool>", false, false, false, true, false),
    ];
    form["added_tokens"] = (next..)
        .zip(added)
        .map(|(id, (content, single_word, lstrip, rstrip, normalized, special))| {
            json!({"id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
                   "normalized": normalized, "special": special})
        })
        .collect();
    change(&mut form);
    serde_json::to_vec(&form).unwrap()
}

/// Adds the tokens of single bytes.
fn with_byte_fallback(form: &mut Value) {
    let vocabulary = form["model"]["vocab"].as_object_mut().unwrap();
    for byte in 0..=255u8 {
        vocabulary.insert(format!("<0x{byte:02X}>"), json!(10_000 + u32::from(byte)));
    }
    form["model"]["byte_fallback"] = json!(true);
    only_plain_added_tokens(form);
}

/// Removes the token that is matched in normalised text.
fn only_plain_added_tokens(form: &mut Value) {
    form["added_tokens"].as_array_mut().unwrap().retain(|token| token["normalized"] == false);
}

fn byte_level(prefix: bool, regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex})
}

fn split(pattern: &str, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert})
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// Tokenizers whose texts can be split, by name.
fn tokenizers_in_parts() -> Vec<(&'static str, Vec<u8>)> {
    let nfc = json!({"type": "NFC"});
    let none = Value::Null;
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let sentence_piece = json!({"type": "Sequence", "normalizers": [prepend, spaces]});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let coder = sequence(&[
        split("[\r\n]", "Isolated", false),
        split(r"\s?\p{L}+", "Isolated", false),
        split(r"\s?\p{P}+", "Isolated", false),
        json!({"type": "Digits", "individual_digits": true}),
        byte_level(false, false),
    ]);
    let words_only = sequence(&[
        split(r"\p{L}+|\p{N}", "Removed", true),
        json!({"type": "Digits", "individual_digits": false}),
        byte_level(true, true),
    ]);
    let letters: Vec<char> =
        CORPUS.concat().chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut words: Vec<String> =
        ["[UNK]", "the", "##the", "there", "weather", "##er"].map(String::from).into();
    words.extend(letters.iter().flat_map(|letter| [letter.to_string(), format!("##{letter}")]));
    words.sort_unstable();
    words.dedup();
    let vocabulary: serde_json::Map<_, _> =
        words.into_iter().enumerate().map(|(id, word)| (word, json!(id))).collect();
    let bert = json!({
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "decoder": null,
        "added_tokens": [{"id": 5000, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 12, "vocab": vocabulary}
    });
    let as_is = |_: &mut Value| ();
    let unknown = |form: &mut Value| {
        form["model"]["unk_token"] = json!("<unk>");
        form["model"]["fuse_unk"] = json!(true);
        form["model"]["vocab"]["<unk>"] = json!(9_999);
        only_plain_added_tokens(form);
    };
    // Google's Gemma: the normaliser leaves no blank that the pre-tokenizer could cut at.
    let blank = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let gemma = |form: &mut Value| {
        with_byte_fallback(form);
        form["model"]["unk_token"] = json!("<unk>");
        form["model"]["fuse_unk"] = json!(true);
        form["model"]["vocab"]["<unk>"] = json!(9_999);
    };
    vec![
        ("gpt2", trained(&none, &byte_level(false, true), as_is)),
        ("a space in front", trained(&none, &byte_level(true, true), as_is)),
        ("a space in front, composed", trained(&nfc, &byte_level(true, true), as_is)),
        (
            "qwen",
            trained(
                &nfc,
                &sequence(&[split(QWEN, "Isolated", false), byte_level(false, false)]),
                as_is,
            ),
        ),
        (
            "whole pieces first",
            trained(&none, &byte_level(false, true), |form| {
                form["model"]["ignore_merges"] = json!(true);
            }),
        ),
        ("coder", trained(&none, &coder, as_is)),
        ("words only", trained(&none, &words_only, as_is)),
        ("sentence piece", trained(&sentence_piece, &none, with_byte_fallback)),
        ("sentence piece with unknown characters", trained(&sentence_piece, &none, unknown)),
        ("gemma", trained(&spaces, &blank, gemma)),
        ("metaspace first", trained(&none, &metaspace("first"), with_byte_fallback)),
        ("metaspace always", trained(&none, &metaspace("always"), unknown)),
        ("bert", serde_json::to_vec(&bert).unwrap()),
    ]
}

/// Encodes a text with the crate alone.
fn reference(tokenizer: &Tokenizer, text: &str) -> (Vec<u32>, Vec<u32>) {
    let encoding = tokenizer.encode(text, false).unwrap();
    let ends = super::encoded::character_ends(text, encoding.get_offsets());
    (encoding.get_ids().to_vec(), ends)
}

/// Encoder and crate for each tokenizer.
fn pairs() -> Vec<(&'static str, Encoder, Tokenizer)> {
    let pair = |(name, json): (_, Vec<u8>)| {
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
        assert_eq!(encoder.unsplittable_reason(), None, "{name}");
        (name, encoder, Tokenizer::from_bytes(&json).unwrap())
    };
    tokenizers_in_parts().into_iter().map(pair).collect()
}

fn check(name: &str, encoder: &mut Encoder, crate_alone: &Tokenizer, text: &str, runs: &[usize]) {
    let (ids, ends) = reference(crate_alone, text);
    let whole = encoder.encode_whole(text).unwrap();
    assert_eq!((&whole.ids, &whole.ends), (&ids, &ends), "{name} whole: {text:?}");
    for &run_bytes in runs {
        encoder.splitter.as_mut().unwrap().run_bytes = run_bytes;
        let parts = encoder.encode(text, usize::MAX).unwrap();
        assert_eq!(parts.ids, ids, "{name}, runs of {run_bytes}: {text:?}");
        assert_eq!(parts.ends, ends, "{name}, runs of {run_bytes}: {text:?}");
    }
}

#[test]
fn runs_can_start_at_any_position() {
    let text = format!("{}<s>{}", CORPUS.concat(), CORPUS[1]);
    for (name, mut encoder, crate_alone) in pairs() {
        let runs: Vec<usize> = (1..40).chain([text.len() / 2, text.len()]).collect();
        check(name, &mut encoder, &crate_alone, &text, &runs);
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn published_tokenizers_split_real_texts() {
    for corpus in ["books", "code", "papers", "mixed_short"] {
        let texts = shared_beginnings(corpus, 4000);
        for name in SHARED_TOKENIZERS {
            let json = shared_tokenizer(name);
            let mut encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
            assert_eq!(encoder.unsplittable_reason(), None, "{name}");
            let mut crate_alone = Tokenizer::from_bytes(&json).unwrap();
            crate_alone.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
            check(name, &mut encoder, &crate_alone, &texts, &[97, 5000, usize::MAX]);
        }
    }
}

#[test]
fn unsplittable_texts_are_encoded_whole() {
    let look_ahead = split(r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)|\D+", "Isolated", false);
    let none = Value::Null;
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let blank = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let first =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true});
    for (json, why) in [
        (trained(&none, &look_ahead, |_| ()), "its pre-tokenizer has an unknown type"),
        (trained(&none, &first, |_| ()), "its pre-tokenizer has an unknown type"),
        (trained(&none, &blank, |_| ()), "its pre-tokenizer has an unknown type"),
        (
            trained(&json!({"type": "Lowercase"}), &byte_level(false, true), |_| ()),
            "its normaliser does more than replace characters",
        ),
        (
            trained(&spaces, &none, |form| form["model"]["ignore_merges"] = json!(true)),
            "its tokens depend on more than merges",
        ),
        (
            trained(&spaces, &none, |form| {
                form["model"]["unk_token"] = Value::Null;
                only_plain_added_tokens(form);
            }),
            "its tokens depend on more than merges",
        ),
        (
            trained(&spaces, &none, |form| {
                form["model"]["unk_token"] = json!("<unk>");
                form["model"]["vocab"]["<unk>"] = json!(9_999);
            }),
            "its added tokens are matched in normalised text",
        ),
    ] {
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
        assert_eq!(encoder.unsplittable_reason(), Some(why));
        let (ids, ends) = reference(&Tokenizer::from_bytes(&json).unwrap(), CORPUS[0]);
        let encoded = encoder.encode(CORPUS[0], CORPUS[0].len()).unwrap();
        assert_eq!((encoded.ids, encoded.ends), (ids, ends));
        let refused = encoder.encode(CORPUS[0], CORPUS[0].len() - 1).unwrap_err();
        assert_eq!(refused.code(), "document_too_large");
    }
}

#[test]
fn a_million_blanks_have_the_right_tokens() {
    let (_, json) = tokenizers_in_parts().swap_remove(3);
    let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
    for (blank, left) in [(" ", " world"), ("\n", "world")] {
        let blanks = blank.repeat(1_200_000);
        let text = format!("hello{blanks}world");
        let run = &text[5..text.len() - left.len()];
        let letters: String =
            run.chars().map(|letter| if letter == ' ' { 'Ġ' } else { 'Ċ' }).collect();
        let mut expected = encoder.encode("hello", usize::MAX).unwrap().ids;
        expected.extend(
            encoder
                .library
                .model()
                .unwrap()
                .tokenize(&letters)
                .unwrap()
                .iter()
                .map(|token| token.id),
        );
        expected.extend(encoder.encode(left, usize::MAX).unwrap().ids);
        let encoded = encoder.encode(&text, usize::MAX).unwrap();
        assert_eq!(encoded.ids, expected);
        assert_eq!(encoded.ends.last(), Some(&(text.len() as u32)));
        let longest_word = " world".len();
        assert_eq!(
            encoder.encode(&text, longest_word).unwrap(),
            encoded,
            "the blanks must not be encoded as one part"
        );
    }
}

/// Returns texts of one part each: letters, blanks, joined emoji, jamo, marks, and the long tokens of the vocabularies.
fn long_parts() -> Vec<String> {
    let parts = [
        "a",
        "the",
        "aaaab",
        " ",
        "\u{a0}",
        "\u{1f468}\u{200d}",
        "\u{1161}",
        "한",
        "\u{301}",
        "é",
        "中文字",
        "-=",
        "\u{2003} ",
    ];
    parts.iter().map(|part| part.repeat(3000 / part.len())).collect()
}

#[test]
fn long_parts_have_the_tokens_of_the_whole() {
    let mut in_stretches = 0;
    for (name, mut encoder, crate_alone) in pairs() {
        let splitter = encoder.splitter.as_mut().unwrap();
        let Some(long_parts_of) = splitter.long_parts.as_mut() else { continue };
        (long_parts_of.chunk, long_parts_of.overlap) = (256, 64);
        in_stretches += 1;
        for part in long_parts() {
            for text in [part.clone(), format!("there{part}weather<s>{part}")] {
                check(name, &mut encoder, &crate_alone, &text, &[97, usize::MAX]);
            }
        }
    }
    assert_eq!(in_stretches, 9);
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn long_parts_of_published_tokenizers_have_the_tokens_of_the_whole() {
    for name in SHARED_TOKENIZERS {
        let json = shared_tokenizer(name);
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
        for part in ["a", " ", "\u{a0}", "\u{1f468}\u{200d}", "\u{1112}\u{1161}\u{11ab}", "=-"] {
            let text = part.repeat((200 << 10) / part.len());
            let whole = encoder.encode_whole(&text).unwrap();
            let parts = encoder.encode(&text, usize::MAX).unwrap();
            assert!(parts.ids == whole.ids, "{name}: {part:?}");
        }
    }
}

#[test]
fn special_tokens_as_text_give_the_same_ids_in_parts_and_whole() {
    for (name, json) in tokenizers_in_parts() {
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::AsText).unwrap();
        let text = "a <s> there  <|end|>\n<s>[SEP] [SEP]x";
        let whole = encoder.encode_whole(text).unwrap();
        assert_eq!(encoder.encode(text, usize::MAX).unwrap(), whole, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn parts_have_the_tokens_of_the_whole(
        text in "(\\PC|[ aeé中字한\u{a0}\u{3000}\t\r\n'sStT1２½.,!▁_\u{301}\u{300}\u{323}\u{344}\u{1100}\u{1161}\u{11a8}\u{200d}\u{1f999}\u{0}\u{ad}\u{85}]| {1,9}|\r\n|\n{1,4}|a{1,9}|the|there|weather|<s>|<\\|end\\|>|<tool>|<unk>|<0x0A>|\\[SEP\\]|[0-9]{1,5})*",
        run_bytes in 1usize..30,
        stretch_bytes in 40usize..80,
    ) {
        thread_local!(static PAIRS: std::cell::RefCell<Vec<(&'static str, Encoder, Tokenizer)>> = pairs().into());
        PAIRS.with_borrow_mut(|pairs| {
            for (name, encoder, crate_alone) in pairs {
                if let Some(long_parts) = &mut encoder.splitter.as_mut().unwrap().long_parts {
                    (long_parts.chunk, long_parts.overlap) = (stretch_bytes, 38);
                }
                check(name, encoder, crate_alone, &text, &[run_bytes, usize::MAX]);
            }
        });
    }
}
