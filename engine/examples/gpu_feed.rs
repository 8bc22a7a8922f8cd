//! Writes what `scripts/gpu_check.sh` feeds a GPU with from Parquet: the demo's corpus as long documents, a random-weight
//! checkpoint whose first layer has the heads of LLaMA-3.1-8B, and two pipelines.
//!
//! ```sh
//! cargo run --release -p longsift-engine --example gpu_feed -- FOLDER [WINDOWS] [DEMO_FOLDER]
//! ```
//!
//! `text.yaml` reads and tokenizes texts (the demo's tokenizer: vocabulary 8,192), `tokens.yaml` reads random token ids.
//! Both have about WINDOWS windows (1,500) of 32,768 tokens. `DEMO_FOLDER` is `datasets/demo`.

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const WINDOW: usize = 32_768;
/// Windows of a document.
const WINDOWS: usize = 8;
const VOCABULARY: usize = 8192;
const HIDDEN: usize = 256;
const QUERY: usize = 32 * 128;
const KEY: usize = 8 * 128;
/// Bytes of the demo's text to a token; a document has a little more than its windows need.
const BYTES_PER_TOKEN: f64 = 3.2;

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
  "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
  "intermediate_size": 704, "vocab_size": 8192, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
  "rope_theta": 500000.0, "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 1
}
"#;

/// Knuth's linear congruential generator; its upper bits.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// `count` numbers, uniform within `spread` of `centre`, as bf16 bytes.
    fn tensor(&mut self, count: usize, centre: f32, spread: f32) -> Vec<u8> {
        let number = |_| {
            let unit = self.next() as f32 / u32::MAX as f32 * 2.0 - 1.0;
            let bytes = (centre + spread * unit).to_bits().to_le_bytes();
            [bytes[2], bytes[3]]
        };
        (0..count).flat_map(number).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        return Err("usage: gpu_feed FOLDER [WINDOWS] [DEMO_FOLDER]".into());
    };
    let windows: usize = match arguments.next() {
        Some(text) => text.to_str().ok_or("WINDOWS is a number")?.parse()?,
        None => 1500,
    };
    let demo = arguments.next().map_or_else(|| PathBuf::from("datasets/demo"), PathBuf::from);
    let documents = windows.div_ceil(WINDOWS);
    fs::create_dir_all(folder.join("model"))?;
    checkpoint(&folder.join("model"), &demo.join("model"))?;
    texts(&folder.join("text.parquet"), &demo.join("corpus.parquet"), documents)?;
    tokens(&folder.join("tokens.parquet"), documents)?;
    for column in ["text", "tokens"] {
        fs::write(folder.join(column).with_extension("yaml"), pipeline(column))?;
    }
    Ok(())
}

fn pipeline(column: &str) -> String {
    format!(
        "version: 1
name: feed-{column}
input: {{path: {column}.parquet, id_column: id, {column}_column: {column}}}
stages:
  - {{stage: load-partial-model, model: model, precision: bf16}}
  - {{stage: tokenize, window_tokens: {WINDOW}, windows: disjoint, short_documents: drop, bos: 0}}
  - {{stage: shard-across-devices, devices: 1}}
  - {{stage: first-layer-attention, min_distance_fraction: 0.25}}
  - {{stage: score, formula: longattn, alpha: 0.5}}
  - {{stage: filter, keep_fraction: 0.1}}
output: {{path: out/{column}, samples: windows}}
"
    )
}

fn checkpoint(folder: &Path, demo: &Path) -> Result<(), Box<dyn Error>> {
    fs::write(folder.join("config.json"), CONFIG)?;
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::write(folder.join(name), fs::read(demo.join(name))?)?;
    }
    let mut random = Random(1);
    let projection = 2.5 / (HIDDEN as f32).sqrt();
    let mut tensor = |name: &'static str, shape: &[usize], centre, spread| {
        (name, shape.to_vec(), random.tensor(shape.iter().product(), centre, spread))
    };
    let tensors = [
        tensor("model.embed_tokens.weight", &[VOCABULARY, HIDDEN], 0.0, 1.0),
        tensor("model.layers.0.input_layernorm.weight", &[HIDDEN], 1.0, 0.1),
        tensor("model.layers.0.self_attn.k_proj.weight", &[KEY, HIDDEN], 0.0, projection),
        tensor("model.layers.0.self_attn.q_proj.weight", &[QUERY, HIDDEN], 0.0, projection),
    ];
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            Ok((*name, TensorView::new(Dtype::BF16, shape.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors"))?;
    Ok(())
}

/// Documents of the demo's texts in turn, each long enough for its windows.
fn texts(to: &Path, corpus: &Path, documents: usize) -> Result<(), Box<dyn Error>> {
    let mut pieces: Vec<String> = Vec::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(corpus)?)?.build()? {
        let batch = batch?;
        let column = batch.column_by_name("text").ok_or("the demo's corpus has texts")?;
        let column: &StringArray = column.as_any().downcast_ref().ok_or("texts are strings")?;
        pieces.extend(column.iter().flatten().map(str::to_owned));
    }
    let bytes = (WINDOWS as f64 * WINDOW as f64 * BYTES_PER_TOKEN) as usize;
    let mut pieces = pieces.iter().cycle();
    write(to, documents, "text", |_| {
        let mut text = String::with_capacity(bytes + 65_536);
        while text.len() < bytes {
            text.push_str(pieces.next().map_or("", String::as_str));
            text.push('\n');
        }
        Arc::new(StringArray::from(vec![text]))
    })
}

fn tokens(to: &Path, documents: usize) -> Result<(), Box<dyn Error>> {
    write(to, documents, "tokens", |document| {
        let mut random = Random(document as u64);
        let ids = (0..WINDOWS * WINDOW).map(|_| Some((random.next() as usize % VOCABULARY) as i32));
        let mut lists = ListBuilder::new(Int32Builder::new());
        lists.append_value(ids);
        Arc::new(lists.finish())
    })
}

/// A document a row group, so that several are read at a time.
fn write(
    to: &Path,
    documents: usize,
    name: &str,
    mut column: impl FnMut(usize) -> ArrayRef,
) -> Result<(), Box<dyn Error>> {
    let compression = Compression::ZSTD(ZstdLevel::try_new(1)?);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(1))
        .set_compression(compression)
        .build();
    let mut writer = None;
    for document in 0..documents {
        let id: ArrayRef = Arc::new(StringArray::from(vec![format!("document-{document}")]));
        let batch = RecordBatch::try_from_iter([("id", id), (name, column(document))])?;
        if writer.is_none() {
            let (file, properties) = (File::create(to)?, properties.clone());
            writer = Some(ArrowWriter::try_new(file, batch.schema(), Some(properties))?);
        }
        if let Some(writer) = &mut writer {
            writer.write(&batch)?;
        }
    }
    writer.map_or(Ok(()), |writer| writer.close().map(drop))?;
    Ok(())
}
