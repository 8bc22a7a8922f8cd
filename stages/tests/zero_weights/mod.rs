//! Checkpoints whose weights are all 0, in sparse files. Time and memory of a forward pass do not depend on the
//! weights.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Sizes of a model.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub layers: usize,
    pub hidden: u64,
    /// Query heads; key heads are `key_heads`.
    pub heads: u64,
    pub key_heads: u64,
    pub wide: u64,
    pub vocabulary: u64,
}

/// Writes a llama whose head is the embedding.
pub fn llama(folder: &Path, sizes: &Sizes, dtype: &str) {
    let Sizes { layers, hidden, heads, key_heads, wide, vocabulary } = *sizes;
    let config = json!({
        "model_type": "llama", "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": key_heads,
        "intermediate_size": wide, "vocab_size": vocabulary, "num_hidden_layers": layers, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 32768, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    let keys = hidden / heads * key_heads;
    let of_layer: [(&str, &[u64]); 9] = [
        ("input_layernorm.weight", &[hidden]),
        ("self_attn.q_proj.weight", &[hidden, hidden]),
        ("self_attn.k_proj.weight", &[keys, hidden]),
        ("self_attn.v_proj.weight", &[keys, hidden]),
        ("self_attn.o_proj.weight", &[hidden, hidden]),
        ("post_attention_layernorm.weight", &[hidden]),
        ("mlp.gate_proj.weight", &[wide, hidden]),
        ("mlp.up_proj.weight", &[wide, hidden]),
        ("mlp.down_proj.weight", &[hidden, wide]),
    ];
    write(folder, &config, ("embed_tokens", &of_layer), dtype);
}

/// Writes a model with gated linear attention whose head is the embedding: values as wide as the hidden state, queries and keys
/// half as wide, as in the published models.
pub fn gla(folder: &Path, sizes: &Sizes, dtype: &str) {
    let Sizes { layers, hidden, heads, key_heads, wide, vocabulary } = *sizes;
    let config = json!({
        "model_type": "gla", "hidden_size": hidden, "num_heads": heads, "num_kv_heads": key_heads,
        "intermediate_size": wide, "vocab_size": vocabulary, "num_hidden_layers": layers, "tie_word_embeddings": true,
    });
    let (keys, values) = (hidden / 2 / heads * key_heads, hidden / heads * key_heads);
    let of_layer: [(&str, &[u64]); 14] = [
        ("attn_norm.weight", &[hidden]),
        ("attn.q_proj.weight", &[hidden / 2, hidden]),
        ("attn.k_proj.weight", &[keys, hidden]),
        ("attn.v_proj.weight", &[values, hidden]),
        ("attn.g_proj.weight", &[hidden, hidden]),
        ("attn.gk_proj.0.weight", &[16, hidden]),
        ("attn.gk_proj.1.weight", &[keys, 16]),
        ("attn.gk_proj.1.bias", &[keys]),
        ("attn.g_norm_swish_gate.weight", &[hidden / heads]),
        ("attn.o_proj.weight", &[hidden, hidden]),
        ("mlp_norm.weight", &[hidden]),
        ("mlp.gate_proj.weight", &[wide, hidden]),
        ("mlp.up_proj.weight", &[wide, hidden]),
        ("mlp.down_proj.weight", &[hidden, wide]),
    ];
    write(folder, &config, ("embeddings", &of_layer), dtype);
}

/// Writes a checkpoint with the layers that `config` states, each with these tensors.
fn write(
    folder: &Path,
    config: &Value,
    (embedding, of_layer): (&str, &[(&str, &[u64])]),
    dtype: &str,
) {
    let size = |key: &str| config[key].as_u64().expect("the size of a model");
    let (hidden, layers) = (size("hidden_size"), size("num_hidden_layers"));
    let mut tensors = vec![
        (format!("model.{embedding}.weight"), vec![size("vocab_size"), hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        let named = |(name, shape): &(&str, &[u64])| {
            (format!("model.layers.{layer}.{name}"), shape.to_vec())
        };
        tensors.extend(of_layer.iter().map(named));
    }
    let number = if dtype == "F32" { 4 } else { 2 };
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += number * shape.iter().product::<u64>();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).expect("a header is JSON");
    fs::write(folder.join("config.json"), config.to_string()).expect("the folder is writable");
    let file = File::create(folder.join("model.safetensors")).expect("the folder is writable");
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0).expect("the file is writable");
    file.write_all_at(&header, 8).expect("the file is writable");
    file.set_len(8 + header.len() as u64 + end).expect("the file is writable");
}
