//! Bytes read from a checkpoint of 5 GB in ten files, sparse on disk except for layer 0, as counted by the system. The
//! only test of its binary, because the count is per process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use longsift_kernels::{ElementType, Kernel};
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{LayerZeroTable, ModelFolder};
use serde_json::{Map, json};

const FILES: usize = 10;
const FILE_BYTES: u64 = 500_000_000;
const HIDDEN: u64 = 256;
const VOCABULARY: u64 = 8_000;

/// Returns the bytes that this process has read so far through any system call.
fn bytes_read() -> u64 {
    let text =
        fs::read_to_string("/proc/self/io").expect("Linux counts the bytes that a process reads");
    let count = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    count.expect("the file has this line").parse().expect("a number")
}

/// Returns pseudo-random bf16 numbers between -2 and 2.
fn random(seed: u64, numbers: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 33) as u16;
        (bits & 0x80ff) | 0x3f00
    };
    (0..numbers).flat_map(|_| next().to_le_bytes()).collect()
}

/// Writes one file: its tensors, those of layer 0 filled, and one large tensor that is a hole.
fn write_file(path: &Path, index: usize, tensors: &[(&str, Vec<u64>)]) -> io::Result<()> {
    let mut header = Map::new();
    let mut end = 0;
    let mut add = |name: &str, shape: &[u64]| {
        let start = end;
        end += 2 * shape.iter().product::<u64>();
        header.insert(
            name.to_owned(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}),
        );
        start
    };
    let starts: Vec<u64> = tensors.iter().map(|(name, shape)| add(name, shape)).collect();
    add(&format!("model.layers.{}.mlp.down_proj.weight", index + 1), &[FILE_BYTES / 1000, 500]);
    let header = serde_json::to_vec(&header)?;
    let data = 8 + header.len() as u64;
    let file = File::create(path)?;
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0)?;
    file.write_all_at(&header, 8)?;
    file.set_len(data + end)?;
    for ((name, shape), start) in tensors.iter().zip(starts) {
        let bytes = random(name.len() as u64, shape.iter().product());
        file.write_all_at(&bytes, data + start)?;
    }
    Ok(())
}

#[test]
#[cfg_attr(not(longsift_io_counts), ignore = "needs a system that counts what a process reads")]
fn only_layer_zero_of_five_gigabytes_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCABULARY, "num_hidden_layers": 12, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"});
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let layer_zero: [&[(&str, Vec<u64>)]; 3] = [
        &[("model.embed_tokens.weight", vec![VOCABULARY, HIDDEN])],
        &[
            ("model.layers.0.self_attn.q_proj.weight", vec![HIDDEN, HIDDEN]),
            ("model.layers.0.input_layernorm.weight", vec![HIDDEN]),
        ],
        &[("model.layers.0.self_attn.k_proj.weight", vec![HIDDEN / 2, HIDDEN])],
    ];
    let mut weight_map = Map::new();
    for index in 0..FILES {
        let name = format!("model-{:05}-of-{FILES:05}.safetensors", index + 1);
        let tensors = layer_zero.get(index / 4).filter(|_| index % 4 == 0);
        let tensors = tensors.copied().unwrap_or_default();
        write_file(&folder.path().join(&name), index, tensors).unwrap();
        for (tensor, _) in tensors {
            weight_map.insert((*tensor).to_owned(), json!(name));
        }
        weight_map.insert(format!("model.layers.{}.mlp.down_proj.weight", index + 1), json!(name));
    }
    let index = json!({"metadata": {}, "weight_map": weight_map});
    fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();

    let before = bytes_read();
    let started = Instant::now();
    let model = ModelFolder::open(folder.path(), None).unwrap();
    let opened = started.elapsed();
    let cache = folder.path().join("cache");
    let kernel = Kernel::detect(ElementType::F32);
    let table = LayerZeroTable::open_or_build(&model, kernel, Precision::F32, &cache, &|_, _| {});
    let (table, built) = (table.unwrap(), started.elapsed());
    let touched = bytes_read() - before;

    let needed = 2 * (VOCABULARY * HIDDEN + HIDDEN + HIDDEN * HIDDEN + HIDDEN / 2 * HIDDEN);
    println!(
        "{} bytes of {}: {touched} read through system calls; headers in {opened:?}, table in {built:?}",
        needed,
        model.checkpoint_bytes()
    );
    assert!(model.checkpoint_bytes() > 5_000_000_000);
    assert_eq!((model.bytes_to_read(), table.bytes_read), (needed, needed));
    assert!(touched >= needed, "fewer bytes were read than the table needs: {touched}");
    assert!(
        touched as f64 <= 1.01 * needed as f64,
        "{touched} bytes read where {needed} are needed"
    );
}
