//! Steps of byte-level tokenizers before merging, by the name in a GGUF file (`tokenizer.ggml.pre`).

use serde_json::{Value, json};

use super::patterns::{DEEPSEEK_CODER, DEEPSEEK_V3, cl100k};

/// Steps of a tokenizer around its merges.
pub(super) struct Steps {
    /// Whether texts are composed (NFC).
    pub(super) composes: bool,
    /// Whether a piece that is a token is not merged.
    pub(super) ignores_merges: bool,
    pub(super) pre_tokenizer: Value,
}

pub(super) const NAMES: &str = "gpt-2, phi-2, mpt, olmo, llama-bpe, llama3, llama-v3, qwen2, smollm, starcoder, refact, \
     command-r, deepseek-coder, deepseek-v3, falcon, gpt2";

impl Steps {
    /// Returns the steps of that name; `None` if it is unknown.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let digits = |individual: bool| json!({"type": "Digits", "individual_digits": individual});
        let plain = |steps: &[Value]| Self {
            composes: false,
            ignores_merges: false,
            pre_tokenizer: json!({"type": "Sequence", "pretokenizers": steps}),
        };
        let composed = |steps: &[Value]| Self { composes: true, ..plain(steps) };
        Some(match name {
            "gpt-2" | "gpt2" | "phi-2" => plain(&[bytes(true)]),
            // As in GPT-NeoX.
            "mpt" | "olmo" => composed(&[bytes(true)]),
            "llama-bpe" | "llama3" | "llama-v3" => {
                Self { ignores_merges: true, ..plain(&[split(&cl100k("{1,3}")), bytes(false)]) }
            }
            "qwen2" => composed(&[split(&cl100k("")), bytes(false)]),
            "smollm" | "starcoder" | "refact" => plain(&[digits(true), bytes(true)]),
            "command-r" => composed(&[digits(true), bytes(true)]),
            "deepseek-coder" => {
                plain(&[&DEEPSEEK_CODER.map(split)[..], &[digits(true), bytes(false)]].concat())
            }
            "deepseek-v3" => plain(&[&DEEPSEEK_V3.map(split)[..], &[bytes(false)]].concat()),
            "falcon" => {
                let punctuation = json!({"type": "Punctuation", "behavior": "Contiguous"});
                plain(&[punctuation, bytes(true), digits(false), split("[0-9][0-9][0-9]")])
            }
            _ => return None,
        })
    }
}

/// Writes bytes as characters. `cuts`: whether GPT-2's pattern cuts the text first.
fn bytes(cuts: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crate_accepts_the_steps_of_every_name() {
        for name in NAMES.split(", ") {
            let steps = Steps::from_name(name).unwrap().pre_tokenizer;
            let read = serde_json::from_value::<tokenizers::PreTokenizerWrapper>(steps);
            assert!(read.is_ok(), "{name}");
        }
        assert!(Steps::from_name("default").is_none());
    }
}
