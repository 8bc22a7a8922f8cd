//! Comparison of the fast path with the `tokenizers` crate: the same ids and ends for every supported shape.

use std::fmt::Write;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::SpecialTokensInText;
use super::classes::READS;
use super::encoder::Encoder;
use super::fixtures::{SHARED_TOKENIZERS, bytes_with, shared_beginnings, shared_tokenizer};
use super::part_cache::PartCache;

const BLANKS: &str = r"|\s+(?!\S)|\s+";

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// Pre-tokenizers of the supported shapes with pieces, by name.
fn pre_tokenizers() -> Vec<(&'static str, Vec<Value>)> {
    let cl100k = |digits: &str| {
        let pattern = format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+{BLANKS}"
        );
        vec![split(&pattern)]
    };
    let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let o200k = [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
    ];
    let v3 = format!(
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{{|}}~][A-Za-z]+|[^\r\n\\p{{L}}\\p{{P}}\\p{{S}}]?[\\p{{L}}\\p{{M}}]+| ?[\\p{{P}}\\p{{S}}]+[\r\n]*|\\s*[\r\n]+{BLANKS}"
    );
    let coder = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+"].map(split);
    let digits = json!({"type": "Digits", "individual_digits": true});
    vec![
        ("gpt2", vec![split(gpt2)]),
        ("cl100k, one digit", cl100k("")),
        ("cl100k, three digits", cl100k("{1,3}")),
        ("o200k", vec![split(&(o200k.join("|") + BLANKS))]),
        ("deepseek coder", coder.into_iter().chain([digits]).collect()),
        ("deepseek v3", vec![split(r"\p{N}{1,3}"), split("[一-龥\u{3040}-ゟ゠-ヿ]+"), split(&v3)]),
    ]
}

/// Returns a byte-level tokenizer with merges of frequent neighbours, including tokens that end inside characters.
fn byte_level(steps: &[Value], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    bytes_with(|form| {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let steps = [steps, &[bytes]].concat();
        form["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
        let merges = [
            "Ġ Ġ",
            "ĠĠ ĠĠ",
            "i n",
            "Ġ t",
            "h e",
            "Ġt he",
            "a a",
            "aa aa",
            "' s",
            "1 2",
            "12 3",
            "æ Ĺ",
            "æĹ ¥",
            "Ġ æĹ",
            "å ¤",
            "Ġ å¤",
            "a b",
            "b c",
            "ab c",
            "a bc",
            "Ċ Ċ",
            "ĊĊ ĊĊ",
            ". Ċ",
            "Ì ģ",
            "e Ìģ",
            "ĠĠĠĠ ĠĠĠĠ",
            "Ã ©",
            "¥ æ",
            "ð Ł",
            "ðŁ ĺ",
            "â Ģ",
            "âĢ į",
        ];
        let vocabulary = form["model"]["vocab"].as_object_mut().unwrap();
        for merge in merges {
            let token = merge.replace(' ', "");
            let id = vocabulary.len() + 2;
            vocabulary.entry(token).or_insert(json!(id));
        }
        form["model"]["merges"] = json!(merges);
        change(form);
    })
}

/// Returns a model of characters with byte fallback, as `SentencePiece` writes them.
fn characters(normalizer: Value, pre_tokenizer: Value) -> Vec<u8> {
    bytes_with(|form| {
        let mut vocabulary = serde_json::Map::new();
        vocabulary.insert("<unk>".into(), json!(0));
        for byte in 0..=255u8 {
            vocabulary.insert(format!("<0x{byte:02X}>"), json!(u32::from(byte) + 1));
        }
        let merges = [
            "▁ ▁",
            "▁▁ ▁▁",
            "▁ t",
            "h e",
            "▁t he",
            "a a",
            "aa aa",
            "i n",
            "▁ a",
            "日 本",
            "▁ 日",
            "e r",
            "▁t h",
            "1 2",
            ". ▁",
        ];
        let letters = "▁abcdefghijklmnopqrstuvwxyz.,12日本é";
        let singles = letters.chars().map(|letter| letter.to_string());
        for token in singles.chain(merges.iter().map(|merge| merge.replace(' ', ""))) {
            let id = vocabulary.len();
            vocabulary.entry(token).or_insert(json!(id + 1));
        }
        form["added_tokens"][0]["id"] = json!(1000);
        form["normalizer"] = normalizer;
        form["pre_tokenizer"] = pre_tokenizer;
        form["model"] = json!({"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
                               "vocab": vocabulary, "merges": merges});
    })
}

/// Returns a small tokenizer of every supported shape.
fn shapes() -> Vec<(String, Vec<u8>)> {
    let mut shapes = Vec::new();
    for (name, steps) in pre_tokenizers() {
        shapes.push((name.to_owned(), byte_level(&steps, |_| ())));
        shapes.push((
            format!("{name}, composed"),
            byte_level(&steps, |form| form["normalizer"] = json!({"type": "NFC"})),
        ));
        shapes.push((
            format!("{name}, whole tokens"),
            byte_level(&steps, |form| form["model"]["ignore_merges"] = json!(true)),
        ));
    }
    let blanks = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend =
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, blanks]});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let no_split = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    shapes.push(("llama 2".to_owned(), characters(prepend, json!(null))));
    shapes.push(("gemma".to_owned(), characters(blanks, no_split)));
    for scheme in ["first", "always", "never"] {
        shapes.push((format!("metaspace {scheme}"), characters(json!(null), metaspace(scheme))));
    }
    shapes
}

/// Returns two encoders of a tokenizer: one that takes the fast path, one that never does.
fn both(json: &[u8]) -> (Encoder, Encoder) {
    let open = || Encoder::from_bytes(json, SpecialTokensInText::Parse).unwrap();
    let mut crate_alone = open();
    crate_alone.splitter.as_mut().unwrap().fast = Err("a test compares with it");
    (open(), crate_alone)
}

fn assert_equal(name: &str, (fast, crate_alone): &(Encoder, Encoder), text: &str) {
    let expected = crate_alone.encode(text, usize::MAX).unwrap();
    let found = fast.encode(text, usize::MAX).unwrap();
    if found != expected {
        let at =
            found.ids.iter().zip(&expected.ids).take_while(|(left, right)| left == right).count();
        let start = at.checked_sub(1).map_or(0, |before| expected.ends[before] as usize);
        let near: String = text[start..].chars().take(40).collect();
        panic!(
            "{name}: token {at} differs near {near:?}: {:?} {:?} instead of {:?} {:?} in {:?}",
            found.ids.get(at..(at + 5).min(found.ids.len())),
            found.ends.get(at..(at + 5).min(found.ends.len())),
            expected.ids.get(at..(at + 5).min(expected.ids.len())),
            expected.ends.get(at..(at + 5).min(expected.ends.len())),
            text.chars().take(80).collect::<String>()
        );
    }
}

#[test]
fn every_supported_shape_takes_the_fast_path() {
    for (name, json) in shapes() {
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
        assert_eq!(encoder.splitter.unwrap().fast.err(), None, "{name}");
    }
}

#[test]
fn other_tokenizers_are_encoded_by_the_library() {
    let steps = pre_tokenizers().swap_remove(1).1;
    let bytes = |change: fn(&mut Value)| byte_level(&steps, change);
    let blanks = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let lower = json!({"type": "Sequence", "normalizers": [blanks, {"type": "Replace", "pattern": {"String": "A"}, "content": "a"}]});
    let cases = [
        ("its pre-tokenizer is unknown", byte_level(&[split(r"\S+|\s+")], |_| ())),
        (
            "its tokens depend on more than merges",
            bytes(|form| {
                form["model"]["vocab"].as_object_mut().unwrap().remove("z");
            }),
        ),
        (
            "its tokens depend on more than merges",
            bytes(|form| form["model"]["vocab"]["aaaa"] = form["model"]["vocab"]["aa"].clone()),
        ),
        (
            "it has more than two million tokens",
            bytes(|form| form["model"]["vocab"]["aaaa"] = json!(3_000_000)),
        ),
        ("its normalizer does more than write blanks as `▁`", characters(lower, json!(null))),
    ];
    for (reason, json) in cases {
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
        assert_eq!(encoder.library_reason(), Some(reason));
        let whole = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        for text in ["the inner  Abc, 123\n\n'sa ", "日本 e\u{301}zzz", "aaaa\t."] {
            let expected = whole.encode(text, false).unwrap();
            assert_eq!(
                encoder.encode(text, usize::MAX).unwrap().ids,
                expected.get_ids(),
                "{reason}"
            );
        }
    }
}

/// Returns how many bytes of each shared corpus are compared; `LONGSIFT_CORPUS_BYTES` overrides it, as in
/// `.ci/nightly`.
fn corpus_bytes() -> usize {
    let requested =
        std::env::var("LONGSIFT_CORPUS_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    requested.unwrap_or(2_000_000)
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn shared_corpora_match_the_crate() {
    for tokenizer in SHARED_TOKENIZERS {
        let encoders = both(&shared_tokenizer(tokenizer));
        assert_eq!(encoders.0.splitter.as_ref().unwrap().fast.as_ref().err(), None, "{tokenizer}");
        for corpus in ["books", "code", "papers", "mixed_short"] {
            let text = shared_beginnings(corpus, (8 << 10).max(corpus_bytes() / 100));
            assert_equal(
                &format!("{tokenizer}, {corpus}"),
                &encoders,
                &text[..text.floor_char_boundary(corpus_bytes())],
            );
        }
    }
}

/// Characters that scanners, composition and merges treat differently.
const HOSTILE: &str = "(\\PC|[ \u{a0}\u{3000}\u{1680}\u{2028}\t\r\n'sSſtTlLK\u{212a}dm1２½Ⅷ.,!(|)*/_中一龥ࠀ日本゠ー・゙\u{3099}퟿あ가e\u{301}\u{200d}\u{1f999}\u{1f600}\u{130}ǅʰ\u{85}\u{0}\u{1}\u{ad}\u{e000}▁①०一〇$+<s>]| {1,17}|\r\n|\n{1,4}|\t{1,3} |'(re|VE|ll|ſ)|[0-9]{1,5}|[a-zA-Z]{1,20}|[A-Z]{1,3}[a-z]{1,3}|(日本|æé|the | ab| in|aaaa))*";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1250)))]
    #[test]
    fn hostile_texts_match_the_crate(texts in prop::collection::vec(HOSTILE, 4)) {
        thread_local! {
            static ENCODERS: Vec<(String, (Encoder, Encoder))> =
                shapes().into_iter().map(|(name, json)| (name, both(&json))).collect();
        }
        ENCODERS.with(|encoders| {
            for (name, encoders) in encoders {
                for text in &texts {
                    assert_equal(name, encoders, text);
                }
            }
        });
    }
}

/// Returns a variant of a supported shape: its normalizer, prefix space, byte fallback, `ignore_merges` and added tokens
/// follow from `seed`.
fn variant(seed: u64) -> (String, Vec<u8>) {
    let mut state = seed;
    // SplitMix64.
    let mut draw = |below: u64| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    };
    let mut shapes = shapes();
    let (shape, json) = shapes.swap_remove(draw(shapes.len() as u64) as usize);
    let mut form: Value = serde_json::from_slice(&json).unwrap();
    let has_bytes = form["model"]["byte_fallback"].is_null();
    if has_bytes && draw(2) == 0 {
        form["normalizer"] = json!({"type": "NFC"});
    }
    if has_bytes && draw(4) == 0 {
        form["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": draw(2) == 0,
                                       "trim_offsets": true, "use_regex": true});
    }
    if !has_bytes {
        form["model"]["byte_fallback"] = json!(draw(4) > 0);
    }
    form["model"]["ignore_merges"] = json!(draw(3) == 0);
    let contents = ["<s>", "[SEP]", " ab", "the", "é", "日", "\n\n", "12", "'s", "  "];
    let mut added = Vec::new();
    for (at, content) in contents.into_iter().enumerate() {
        if draw(3) == 0 {
            let mut flag = || json!(draw(2) == 0);
            added.push(
                json!({"id": 5000 + at, "content": content, "single_word": flag(), "lstrip": flag(),
                              "rstrip": flag(), "normalized": flag(), "special": flag()}),
            );
        }
    }
    form["added_tokens"] = json!(added);
    (
        format!("variant {seed} of {shape}: {}", form["added_tokens"]),
        serde_json::to_vec(&form).unwrap(),
    )
}

/// Returns the number of variants to compare; `LONGSIFT_VARIANTS` overrides it, as in `.ci/nightly`.
fn variants() -> u64 {
    std::env::var("LONGSIFT_VARIANTS").ok().and_then(|count| count.parse().ok()).unwrap_or(24)
}

#[test]
fn variants_of_tokenizers_match_the_crate() {
    use proptest::strategy::{Strategy, ValueTree};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut fast = 0;
    for seed in 0..variants() {
        let (name, json) = variant(seed);
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse)
            .unwrap_or_else(|problem| panic!("{name}: {problem}"));
        let is_fast = encoder.splitter.as_ref().is_ok_and(|splitter| splitter.fast.is_ok());
        fast += u64::from(is_fast);
        let whole = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        for _ in 0..60 {
            let text = HOSTILE.new_tree(&mut runner).unwrap().current();
            // The crate panics where tokens of blanks overlap.
            let encode = || whole.encode(text.as_str(), false).unwrap();
            let expected = std::panic::catch_unwind(std::panic::AssertUnwindSafe(encode));
            let (Ok(expected), found) = (expected, encoder.encode(&text, usize::MAX)) else {
                continue;
            };
            let found = found.unwrap_or_else(|problem| panic!("{name}: {problem}"));
            assert_eq!(found.ids, expected.get_ids(), "{name}: {}", text.escape_default());
            assert!(found.ends.is_sorted(), "{name}: {}", text.escape_default());
        }
    }
    assert!(2 * fast > variants(), "{fast} of {} take the fast path", variants());
}

#[test]
fn a_blank_without_a_token_is_the_bytes_of_its_mark() {
    let blanks = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let mut form: Value = serde_json::from_slice(&characters(blanks, json!(null))).unwrap();
    form["model"]["merges"] = json!([]);
    form["model"]["vocab"].as_object_mut().unwrap().remove("▁");
    let json = serde_json::to_vec(&form).unwrap();
    let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
    let whole = tokenizers::Tokenizer::from_bytes(&json).unwrap();
    for text in ["a b", " ", "日 本  é▁x "] {
        let expected = whole.encode(text, false).unwrap();
        assert_eq!(encoder.encode(text, usize::MAX).unwrap().ids, expected.get_ids(), "{text}");
    }
}

#[test]
fn runs_of_any_length_give_the_tokens_of_the_whole() {
    let mut text = String::new();
    for number in 0..150_u32 {
        let word = [
            "the ",
            "inner\n\n",
            "  12345 ",
            "日本語 ",
            "aaaaaaa",
            "e\u{301}",
            "<s>",
            ".\n",
            " \t ",
        ][number as usize * 7 % 9];
        write!(text, "{word}{}", number % 13).unwrap();
    }
    for (name, json) in shapes() {
        let (mut fast, crate_alone) = both(&json);
        for run_bytes in [1, 7, 64, 1000] {
            let splitter = fast.splitter.as_mut().unwrap();
            splitter.run_bytes = run_bytes;
            let long = &mut splitter.fast.as_mut().unwrap().long_parts;
            (long.chunk, long.overlap) = (64, 24);
            assert_eq!(
                fast.encode(&text, usize::MAX),
                crate_alone.encode(&text, usize::MAX),
                "{name}, runs of {run_bytes}"
            );
        }
    }
}

/// Texts of one kind of character, which could make a scanner read the same run repeatedly, once per piece.
fn monotonous(bytes: usize) -> Vec<String> {
    let kinds = [
        " ",
        "a",
        "7",
        "\n",
        "\r\n",
        " \n",
        "\u{301}",
        "👩\u{200d}",
        "日",
        "。",
        "aB",
        "Ab",
        "あB",
        "'s",
        "a ",
        "\u{0}",
        "\u{a0}",
        "A\u{301}",
        "\t ",
        "1a ",
        "日1",
        "\u{3000}a",
        ".,",
        " .",
        "/",
    ];
    kinds.map(|kind| kind.repeat(bytes / kind.len())).into()
}

fn assert_linear(bytes: usize) {
    for (name, json) in shapes() {
        let encoder = Encoder::from_bytes(&json, SpecialTokensInText::Parse).unwrap();
        let splitter = encoder.splitter.as_ref().unwrap();
        let fast = splitter.fast.as_ref().unwrap();
        for text in monotonous(bytes) {
            let (mut cache, mut ids) = (PartCache::new(usize::MAX), Vec::new());
            READS.set(0);
            let end = fast.encode(&mut cache, &text, 0, text.len(), &mut ids, |_, _| ());
            let (reads, characters) = (READS.get(), text.chars().count());
            assert_eq!(end, text.len(), "{name}");
            assert!(
                reads <= 6 * characters + 64,
                "{name}: {reads} reads of {characters} characters of {:?}",
                &text[..text.ceil_char_boundary(4)]
            );
        }
    }
}

#[test]
fn scanners_read_each_character_a_bounded_number_of_times() {
    assert_linear(64 << 10);
}

#[test]
#[ignore = "takes minutes: .ci/nightly runs it"]
fn scanners_read_a_hundred_megabytes_in_linear_time() {
    assert_linear(100_000_000);
}
