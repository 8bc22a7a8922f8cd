//! Tiny checkpoints with random weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::Random;

/// Tiny llama checkpoint.
#[derive(Clone, Debug)]
pub struct Tiny {
    pub config: Value,
    /// Seed of its random weights.
    pub seed: u64,
}

impl Tiny {
    /// 97 tokens, hidden size 16, 2 query heads and 1 key head of 8 dimensions.
    pub fn new() -> Self {
        let config = json!({
            "model_type": "llama", "vocab_size": 97, "hidden_size": 16, "num_attention_heads": 2,
            "num_key_value_heads": 1, "num_hidden_layers": 2, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 1, "torch_dtype": "float32",
        });
        Self { config, seed: 1 }
    }

    /// Sets a key of the configuration; null removes it.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        if value.is_null() {
            self.config.as_object_mut().unwrap().shift_remove(key);
        } else {
            self.config[key] = value;
        }
        self
    }

    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    fn size(&self, key: &str) -> usize {
        usize::try_from(self.config[key].as_u64().unwrap()).unwrap()
    }

    /// Writes `config.json` and `model.safetensors`, with the tensors that layer 0 needs and one that it does not.
    pub fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        let hidden = self.size("hidden_size");
        let heads = self.size("num_attention_heads");
        let head = hidden / heads;
        let keys = self.size("num_key_value_heads") * head;
        let mut random = Random(self.seed);
        let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
        let mut add = |name: &str, shape: &[usize], middle: f64| {
            let scale = if middle == 0.0 { 0.8 } else { 0.1 };
            let values = (0..shape.iter().product())
                .flat_map(|_| ((middle + scale * random.centred()) as f32).to_le_bytes());
            tensors.insert(name.to_owned(), (shape.to_vec(), values.collect()));
        };
        let layer = "model.layers.0";
        add("model.embed_tokens.weight", &[self.size("vocab_size"), hidden], 0.0);
        add(&format!("{layer}.input_layernorm.weight"), &[hidden], 1.0);
        add(&format!("{layer}.self_attn.q_proj.weight"), &[heads * head, hidden], 0.0);
        add(&format!("{layer}.self_attn.k_proj.weight"), &[keys, hidden], 0.0);
        add(&format!("{layer}.self_attn.v_proj.weight"), &[keys, hidden], 0.0);
        if self.config["model_type"] == "qwen2" {
            add(&format!("{layer}.self_attn.q_proj.bias"), &[heads * head], 0.0);
            add(&format!("{layer}.self_attn.k_proj.bias"), &[keys], 0.0);
        }
        let views = tensors.iter().map(|(name, (shape, bytes))| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        fs::write(folder.join("model.safetensors"), bytes).unwrap();
    }
}
