//! Compares `WholeModel::memory` with the heap memory of a forward pass. The only test of its binary, because the
//! allocator counts the whole process.
#![expect(clippy::print_stderr, reason = "what is checked is printed")]
#![expect(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

#[path = "../../kernels/tests/common/heap.rs"]
#[expect(unsafe_code, reason = "it belongs to the kernels' tests")]
mod heap;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use longsift_stages::model::WholeModel;
use serde_json::{Map, json};

const THREADS: usize = 2;
const HIDDEN: u64 = 512;
const WIDE: u64 = 1408;
const KEYS: u64 = 256;
const VOCABULARY: u64 = 4096;

/// Writes a llama with `layers` layers of width 512, 8 query heads and 4 key heads. All weights are 0 and the file is a
/// hole, which does not affect peak memory.
fn write_model(folder: &Path, layers: usize, dtype: &str) {
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": 8, "num_key_value_heads": 4,
        "intermediate_size": WIDE, "vocab_size": VOCABULARY, "num_hidden_layers": layers, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 32768, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    let mut tensors = vec![
        ("model.embed_tokens".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..layers {
        let of_layer: [(&str, &[u64]); 9] = [
            ("input_layernorm", &[HIDDEN]),
            ("self_attn.q_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.k_proj", &[KEYS, HIDDEN]),
            ("self_attn.v_proj", &[KEYS, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, HIDDEN]),
            ("post_attention_layernorm", &[HIDDEN]),
            ("mlp.gate_proj", &[WIDE, HIDDEN]),
            ("mlp.up_proj", &[WIDE, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, WIDE]),
        ];
        let named = |(name, shape): (&str, &[u64])| {
            (format!("model.layers.{layer}.{name}"), shape.to_vec())
        };
        tensors.extend(of_layer.map(named));
    }
    let number = if dtype == "F32" { 4 } else { 2 };
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += number * shape.iter().product::<u64>();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(format!("{name}.weight"), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0).unwrap();
    file.write_all_at(&header, 8).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}

/// Returns the computed and the measured memory of a window of `tokens` tokens.
fn memory(pool: &rayon::ThreadPool, layers: usize, dtype: &str, tokens: usize) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), layers, dtype);
    let model = WholeModel::open(folder.path()).unwrap();
    let computed = model.memory(tokens as u64, THREADS as u64).peak_bytes;
    let ids: Vec<u32> = (0..tokens).map(|token| (token * 7 % 3000) as u32).collect();
    let (taken, made) = heap::peak_of(|| pool.install(|| model.forward(&[&ids])));
    made.unwrap();
    let part = taken as f64 / computed as f64;
    eprintln!(
        "{layers:>2} layers of {HIDDEN} in {dtype:<4}, {tokens:>6} tokens: computed {:>5.1} MB, taken {:>5.1} MB ({:.2})",
        computed as f64 / 1e6,
        taken as f64 / 1e6,
        part
    );
    (computed, taken)
}

#[test]
fn computed_memory_is_close_to_used_memory_for_any_number_of_layers() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    // After a first run, the memory that rayon and the threads keep is allocated.
    memory(&pool, 2, "F32", 100);
    let mut flat = Vec::new();
    for (layers, dtype, tokens) in
        [(2, "F32", 40), (2, "F32", 1000), (24, "F32", 1000), (2, "BF16", 1000), (2, "BF16", 4000)]
    {
        let (computed, taken) = memory(&pool, layers, dtype, tokens);
        assert!(taken <= computed, "{layers} layers, {dtype}, {tokens} tokens");
        assert!(taken * 10 >= computed * 9, "{layers} layers, {dtype}, {tokens} tokens");
        flat.extend(((dtype, tokens) == ("F32", 1000)).then_some((computed, taken)));
    }
    assert_eq!(flat[0].0, flat[1].0, "the number of layers does not enter");
    assert!(flat[1].1 * 100 <= flat[0].1 * 101, "of 2 and 24 layers: {flat:?}");
}
