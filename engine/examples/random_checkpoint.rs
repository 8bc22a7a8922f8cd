//! Writes a random-weight checkpoint of a real model's geometry, to time a run with a real tokenizer without a real model.
//!
//! ```sh
//! cargo run --release -p longsift-engine --example random_checkpoint -- FOLDER TOKENIZER_FOLDER [GEOMETRY]
//! ```
//!
//! The geometry is `qwen2.5-0.5b` (the default) or `llama-2-7b`. Only the tensors that layer 0 needs are written, in
//! bf16. The tokenizer is copied to the same folder.

use std::error::Error;
use std::path::PathBuf;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use testkit::Random;

/// The sizes of a first layer.
struct Geometry {
    name: &'static str,
    model_type: &'static str,
    vocabulary: usize,
    hidden: usize,
    query_heads: usize,
    key_heads: usize,
    head_dim: usize,
    biases: bool,
    rope_theta: f64,
    norm_epsilon: f64,
}

const GEOMETRIES: [Geometry; 2] = [
    Geometry {
        name: "qwen2.5-0.5b",
        model_type: "qwen2",
        vocabulary: 151_665,
        hidden: 896,
        query_heads: 14,
        key_heads: 2,
        head_dim: 64,
        biases: true,
        rope_theta: 1e6,
        norm_epsilon: 1e-6,
    },
    Geometry {
        name: "llama-2-7b",
        model_type: "llama",
        vocabulary: 32_000,
        hidden: 4096,
        query_heads: 32,
        key_heads: 32,
        head_dim: 128,
        biases: false,
        rope_theta: 1e4,
        norm_epsilon: 1e-5,
    },
];

impl Geometry {
    fn config(&self) -> String {
        let config = json!({
            "model_type": self.model_type, "torch_dtype": "bfloat16", "num_hidden_layers": 1,
            "hidden_size": self.hidden, "intermediate_size": 4 * self.hidden,
            "num_attention_heads": self.query_heads, "num_key_value_heads": self.key_heads,
            "vocab_size": self.vocabulary, "max_position_embeddings": 32_768,
            "rms_norm_eps": self.norm_epsilon, "rope_theta": self.rope_theta,
            "tie_word_embeddings": true, "use_sliding_window": false,
        });
        format!("{config:#}\n")
    }

    /// Name, shape, mean and standard deviation of each tensor.
    fn tensors(&self) -> Vec<(&'static str, Vec<usize>, f32, f32)> {
        let (hidden, projection) = (self.hidden, 1.5 / (self.hidden as f32).sqrt());
        let (query, key) = (self.query_heads * self.head_dim, self.key_heads * self.head_dim);
        let mut tensors = vec![
            ("model.embed_tokens.weight", vec![self.vocabulary, hidden], 0.0, 1.0),
            ("model.layers.0.input_layernorm.weight", vec![hidden], 1.0, 0.1),
            ("model.layers.0.self_attn.q_proj.weight", vec![query, hidden], 0.0, projection),
            ("model.layers.0.self_attn.k_proj.weight", vec![key, hidden], 0.0, projection),
        ];
        if self.biases {
            tensors.push(("model.layers.0.self_attn.q_proj.bias", vec![query], 0.0, 0.5));
            tensors.push(("model.layers.0.self_attn.k_proj.bias", vec![key], 0.0, 0.5));
        }
        tensors
    }
}

/// About normal, with this standard deviation: the sum of four uniform numbers.
fn normal(random: &mut Random, deviation: f32) -> f32 {
    let sum: f32 = (0..4).map(|_| (random.next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum();
    sum * deviation * 3f32.sqrt()
}

/// `count` numbers as bf16 bytes, rounded towards zero.
fn tensor(random: &mut Random, count: usize, centre: f32, deviation: f32) -> Vec<u8> {
    let number = |_| (centre + normal(random, deviation)).to_bits().to_le_bytes();
    (0..count).map(number).flat_map(|bytes| [bytes[2], bytes[3]]).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(tokenizer)) = (arguments.next(), arguments.next()) else {
        return Err("usage: random_checkpoint FOLDER TOKENIZER_FOLDER [GEOMETRY]".into());
    };
    let name = arguments.next().unwrap_or_else(|| GEOMETRIES[0].name.to_owned());
    let Some(geometry) = GEOMETRIES.iter().find(|geometry| geometry.name == name) else {
        let names = GEOMETRIES.map(|geometry| geometry.name).join(", ");
        return Err(format!("no geometry is called `{name}`; there are {names}").into());
    };
    let (folder, tokenizer) = (PathBuf::from(folder), PathBuf::from(tokenizer));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("config.json"), geometry.config())?;
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        // Written anew, so that a read-only original does not make a read-only copy.
        std::fs::write(folder.join(name), std::fs::read(tokenizer.join(name))?)?;
    }
    let mut random = Random(1);
    let tensors: Vec<_> = geometry
        .tensors()
        .into_iter()
        .map(|(name, shape, centre, deviation)| {
            let bytes = tensor(&mut random, shape.iter().product(), centre, deviation);
            (name, shape, bytes)
        })
        .collect();
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            TensorView::new(Dtype::BF16, shape.clone(), bytes).map(|view| (*name, view))
        })
        .collect();
    safetensors::serialize_to_file(views?, None, &folder.join("model.safetensors"))?;
    Ok(())
}
