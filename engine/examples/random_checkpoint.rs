//! Writes a random-weight checkpoint of Qwen2 geometry, to time a run with a real tokenizer without a real model.
//!
//! ```sh
//! cargo run --release -p longsift-engine --example random_checkpoint -- FOLDER TOKENIZER_FOLDER
//! ```
//!
//! Hidden size 896, 14 query and 2 key heads of 64, vocabulary 151,665, bf16: the first layer of Qwen2.5-0.5B. Only
//! the tensors that layer 0 needs are written. The tokenizer is copied beside them.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

const HIDDEN: usize = 896;
const QUERY: usize = 14 * 64;
const KEY: usize = 2 * 64;
const VOCABULARY: usize = 151_665;

const CONFIG: &str = r#"{
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16",
  "hidden_size": 896, "num_hidden_layers": 1, "num_attention_heads": 14, "num_key_value_heads": 2,
  "intermediate_size": 4864, "vocab_size": 151665, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "tie_word_embeddings": true, "use_sliding_window": false, "sliding_window": 32768,
  "max_window_layers": 21, "bos_token_id": 151643, "eos_token_id": 151643
}
"#;

/// The generator of Steele, Lea and Flood 2014 (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// About normal, with this standard deviation: the sum of four uniform numbers.
    fn normal(&mut self, deviation: f32) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum();
        sum * deviation * 3f32.sqrt()
    }

    /// `count` numbers as bf16 bytes, rounded towards zero.
    fn tensor(&mut self, count: usize, centre: f32, deviation: f32) -> Vec<u8> {
        let number = |_| (centre + self.normal(deviation)).to_bits().to_le_bytes();
        (0..count).map(number).flat_map(|bytes| [bytes[2], bytes[3]]).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(folder), Some(tokenizer)) = (arguments.next(), arguments.next()) else {
        return Err("usage: random_checkpoint FOLDER TOKENIZER_FOLDER".into());
    };
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("config.json"), CONFIG)?;
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        // Written anew, so that a read-only original does not make a read-only copy.
        std::fs::write(folder.join(name), std::fs::read(tokenizer.join(name))?)?;
    }
    let mut random = Random(1);
    let projection = 1.5 / (HIDDEN as f32).sqrt();
    let tensors: BTreeMap<&str, (Vec<usize>, Vec<u8>)> = BTreeMap::from([
        (
            "model.embed_tokens.weight",
            (vec![VOCABULARY, HIDDEN], random.tensor(VOCABULARY * HIDDEN, 0.0, 1.0)),
        ),
        ("model.layers.0.input_layernorm.weight", (vec![HIDDEN], random.tensor(HIDDEN, 1.0, 0.1))),
        (
            "model.layers.0.self_attn.q_proj.weight",
            (vec![QUERY, HIDDEN], random.tensor(QUERY * HIDDEN, 0.0, projection)),
        ),
        ("model.layers.0.self_attn.q_proj.bias", (vec![QUERY], random.tensor(QUERY, 0.0, 0.5))),
        (
            "model.layers.0.self_attn.k_proj.weight",
            (vec![KEY, HIDDEN], random.tensor(KEY * HIDDEN, 0.0, projection)),
        ),
        ("model.layers.0.self_attn.k_proj.bias", (vec![KEY], random.tensor(KEY, 0.0, 0.5))),
    ]);
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, (shape, bytes))| {
            TensorView::new(Dtype::BF16, shape.clone(), bytes).map(|view| (*name, view))
        })
        .collect();
    safetensors::serialize_to_file(views?, None, &folder.join("model.safetensors"))?;
    Ok(())
}
