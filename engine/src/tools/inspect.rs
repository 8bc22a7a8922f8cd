//! `longsift inspect`: what is read of a checkpoint, how much memory it takes, and settings for a pipeline.
//!
//! A `config.json` is sufficient; if there are weights, their headers are checked.

use std::fmt::{self, Write};
use std::path::Path;

use longsift_kernels::Kernel;
use longsift_stages::first_layer_attention::FirstLayerAttention;
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{AttentionSpec, ModelConfig, ModelFolder};
use serde::Serialize;

use crate::base::diagnostic::Diagnostic;
use crate::base::error::Result;
use crate::base::machine::free_memory_bytes;
use crate::base::text::{bytes, count};

const WINDOWS: [u64; 6] = [4_096, 8_192, 32_768, 131_072, 262_144, 1_048_576];

/// Memory of common GPUs, in 10^9 bytes.
const CARDS: [u64; 5] = [16, 24, 40, 80, 141];

/// Reserved share of a GPU's memory: the default of `headroom_fraction`.
const HEADROOM: f64 = 0.15;

#[derive(Clone, Debug, Serialize)]
pub struct ModelReport {
    pub layer: AttentionSpec,
    pub stated_dtype: Option<String>,
    /// Quantisation method stated in the config: `gptq`, `mlx`, ….
    pub quantization: Option<String>,
    /// Reason for which the weights cannot be used; `None` if their headers are valid.
    pub weights_problem: Option<String>,
    pub checkpoint_bytes: Option<u64>,
    /// Bytes of the checkpoint that are read; without weights, an estimate from the stated number format.
    pub bytes_to_read: u64,
    /// Layer-zero tables by precision.
    pub tables: Vec<TableSize>,
    /// Bytes of the projections in memory, in addition to the table; 0 if the table holds the heads themselves.
    pub packed_bytes: u64,
    /// Properties that `config.json` does not define and the weights will determine.
    pub undecided: Option<String>,
    pub windows: Vec<WindowMemory>,
    pub free_memory_bytes: Option<u64>,
    pub bos_token_id: Option<u32>,
    pub trained_positions: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TableSize {
    /// `f32` or `bf16`.
    pub precision: &'static str,
    pub bytes: u64,
    pub row_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct WindowMemory {
    pub tokens: u64,
    /// CPU memory of one window in bytes, in addition to the table.
    pub cpu_bytes: u64,
    /// Bytes of its queries and keys in bf16: GPU memory per window.
    pub card_bytes: u64,
    /// Number of windows that fit on a GPU with a bf16 table, by GPU memory in 10^9 bytes.
    pub fitting: Vec<(u64, u64)>,
    /// Number of windows that fit into the free memory of this machine, with an f32 table.
    pub fitting_here: Option<u64>,
    /// Whether the first layer sees the default far distance of such a window.
    pub sees_far: bool,
    pub has_positions: bool,
}

/// Inspects a model folder without reading weights. Their problems are part of the page.
pub fn inspect(folder: &Path) -> Result<ModelReport> {
    let config = ModelConfig::read(folder, None)?;
    let weights = with_weights(config.clone());
    let config = weights.as_ref().map_or(config, |model| model.config().clone());
    let bytes_per_number = if config.stated_dtype() == Some("float32") { 4 } else { 2 };
    let (checkpoint_bytes, bytes_to_read, weights_problem, undecided) = match weights {
        Ok(model) => (Some(model.checkpoint_bytes()), model.bytes_to_read(), None, None),
        Err(why) => {
            (None, config.bytes_to_read_at(bytes_per_number), Some(why), config.undecided())
        }
    };
    let layer = config.spec().clone();
    let tables = [Precision::F32, Precision::Bf16].map(|precision| TableSize {
        precision: precision.name(),
        bytes: config.table_bytes(precision),
        row_bytes: config.row_bytes(precision),
    });
    let free = free_memory_bytes();
    let here = free.map(|free| free.saturating_sub(tables[0].bytes + config.packed_bytes()));
    let window = |tokens| window(&layer, tables[1].bytes, here, tokens);
    Ok(ModelReport {
        windows: WINDOWS.map(window).to_vec(),
        free_memory_bytes: free,
        trained_positions: layer.trained_positions(),
        layer,
        stated_dtype: config.stated_dtype().map(str::to_owned),
        quantization: config.quantization().map(str::to_owned),
        weights_problem,
        checkpoint_bytes,
        bytes_to_read,
        tables: tables.to_vec(),
        packed_bytes: config.packed_bytes(),
        undecided,
        bos_token_id: config.bos_token_id(),
    })
}

fn with_weights(config: ModelConfig) -> std::result::Result<ModelFolder, String> {
    if !config.has_weights() {
        return Err("no weights found; values come from config.json".to_owned());
    }
    config.with_weights().map_err(|problems| {
        let problems = problems.into_iter().map(Diagnostic::from);
        let messages: Vec<String> = problems
            .map(|problem| match problem.hint {
                Some(hint) => format!("{}; {hint}", problem.message),
                None => problem.message,
            })
            .collect();
        messages.join("; ")
    })
}

/// Returns the memory of a window. `on_card`: bytes of the table on a GPU; `here`: bytes available on this machine.
fn window(layer: &AttentionSpec, on_card: u64, here: Option<u64>, tokens: u64) -> WindowMemory {
    let threads = rayon::current_num_threads();
    let shape = layer.attention_shape(usize::try_from(tokens).unwrap_or(usize::MAX));
    let rotary = layer.rope.as_ref().map_or(0, |rope| rope.rotary_dims / 2 * 8 * tokens);
    let heads = (layer.query_heads + layer.key_heads) * layer.head_dim;
    let card_bytes = heads * 2 * tokens + 4 * tokens;
    let fitting = |card: u64| {
        let budget = (card as f64 * 1e9 * (1.0 - HEADROOM)) as u64;
        (card, budget.saturating_sub(on_card) / card_bytes)
    };
    let distance = FirstLayerAttention::default().far_distance().in_window(tokens);
    let cpu_bytes = longsift_kernels::window_bytes(Kernel::PortableF32, &shape, threads)
        + rotary
        + layer.source_bytes(tokens);
    WindowMemory {
        tokens,
        cpu_bytes,
        fitting_here: here.map(|bytes| bytes / cpu_bytes),
        card_bytes,
        fitting: CARDS.map(fitting).to_vec(),
        sees_far: layer.distance_problem(distance).is_none(),
        has_positions: layer.window_problem(tokens).is_none(),
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = &self.layer;
        let hidden_size = count(layer.hidden_size);
        writeln!(f, "{}, {} layers, hidden size {hidden_size}", layer.model_type, layer.layers)?;
        let mut line = |name: &str, value: &str| writeln!(f, "  {name:<12} {value}");
        if layer.unverified {
            let what =
                "the arithmetic of this family was never compared with a reference implementation";
            line("unverified", what)?;
        }
        let AttentionSpec { query_heads, key_heads, head_dim, .. } = layer;
        line(
            "layer 0",
            &format!("{query_heads} query heads, {key_heads} key heads of {head_dim}"),
        )?;
        line("sees", &self.visible_range())?;
        let positions = self.trained_positions.map_or("not stated".to_owned(), count);
        let learned = layer.learned_positions.is_some();
        let kind = if learned { "learned: longer windows cannot be scored" } else { "trained" };
        line("positions", &format!("{positions} {kind}"))?;
        line("vocabulary", &format!("{} entries", count(layer.vocabulary_size)))?;
        line("reads", &self.reads())?;
        if let Some(method) = &self.quantization {
            let less = if self.checkpoint_bytes.is_some() { "" } else { ", so less is read" };
            let how = "packed weights are unpacked when the table is built";
            line("quantised", &format!("by `{method}`{less}; {how}"))?;
        }
        for table in &self.tables {
            let [all, row] = [table.bytes, table.row_bytes].map(bytes);
            line("table", &format!("{all:>9} in {}, {row} a row", table.precision))?;
        }
        if self.packed_bytes > 0 {
            line("projections", &format!("{:>9} in memory in addition", bytes(self.packed_bytes)))?;
        }
        if let Some(open) = &self.undecided {
            line("undecided", open)?;
        }
        if let Some(problem) = &self.weights_problem {
            line("weights", problem)?;
        }
        writeln!(f, "\nmemory per window, in addition to the table")?;
        f.write_str(&self.window_table())?;
        if let Some(free) = self.free_memory_bytes {
            let fitting = self.windows.iter().filter_map(|window| window.fitting_here.map(count));
            let (free, fitting) = (bytes(free), fitting.collect::<Vec<_>>().join(", "));
            let what = "windows that fit into the free memory of this machine";
            writeln!(f, "  {what} ({free}), by length: {fitting}")?;
        }
        writeln!(f, "\nsettings for a pipeline\n{}", self.settings())
    }
}

impl ModelReport {
    fn visible_range(&self) -> String {
        let Some(tokens) = self.layer.visible_distances().map(count) else {
            return "the whole window".to_owned();
        };
        let first = match self.layer.first_full_attention_layer {
            Some(index) => format!("layer {index} is the first that sees all"),
            None => "no layer sees all".to_owned(),
        };
        format!("{tokens} tokens back, and the far distance must be below that; {first}")
    }

    fn reads(&self) -> String {
        match self.checkpoint_bytes {
            Some(all) => format!(
                "{} of {} of the checkpoint ({:.1} %): embedding, first norm, query and key projections",
                bytes(self.bytes_to_read),
                bytes(all),
                100.0 * self.bytes_to_read as f64 / all as f64
            ),
            None => format!("about {} of the checkpoint", bytes(self.bytes_to_read)),
        }
    }

    fn window_table(&self) -> String {
        let mut text = String::from("     tokens        CPU      GPU");
        for card in CARDS {
            let _ = write!(text, "  {:>6}", format!("{card} GB"));
        }
        text.push_str("   windows that fit with a bf16 table\n");
        for window in &self.windows {
            let [cpu, gpu] = [window.cpu_bytes, window.card_bytes].map(bytes);
            let _ = write!(text, "  {:>9}  {cpu:>9}  {gpu:>9}", count(window.tokens));
            for (_, fitting) in &window.fitting {
                let _ = write!(text, "  {:>6}", count(*fitting));
            }
            text.push_str(match window {
                WindowMemory { has_positions: false, .. } => {
                    "   longer than the learned positions\n"
                }
                WindowMemory { sees_far: false, .. } => "   layer 0 does not see k = S/4\n",
                _ => "\n",
            });
        }
        text
    }

    /// Returns a window length within the trained positions whose default far distance the first layer sees.
    fn window_tokens(&self) -> u64 {
        let mut tokens = self.trained_positions.unwrap_or(4_096).min(32_768);
        let distance = |tokens| FirstLayerAttention::default().far_distance().in_window(tokens);
        while tokens > 2 && self.layer.distance_problem(distance(tokens)).is_some() {
            tokens /= 2;
        }
        tokens
    }

    fn settings(&self) -> String {
        let tokens = self.window_tokens();
        let bos = u8::from(self.bos_token_id.is_some());
        format!(
            "  - stage: load-partial-model\n    precision: f32   # exact; bf16 halves the table to {}\n  \
             - stage: tokenize\n    window_tokens: {tokens}\n    bos: {bos}",
            bytes(self.tables[1].bytes)
        )
    }
}
