//! Speed of both backends on this machine's processors, and the error of `precision: bf16`.
//!
//! ```console
//! $ longsift tokens PIPELINE --ids > WINDOWS.jsonl
//! $ cargo run --release -p longsift-stages --features candle --example backends -- MODEL WINDOWS.jsonl SHORT_CONTEXT
//! ```
//!
//! Without arguments, two windows of 2,048 tokens of a model with the layers of SmolLM2-135M and weights of 0.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

#[expect(dead_code, reason = "only softmax attention has two backends")]
#[path = "../tests/zero_weights/mod.rs"]
mod zero_weights;

use std::path::Path;
use std::time::Instant;

use longsift_stages::contract::{ForwardRequest, ForwardStatistics};
use longsift_stages::measures::language_model::{LossSums, ProductPrecision};
use longsift_stages::model::{BackendName, WholeModel, has_gpu};

/// Eight of the 30 layers of SmolLM2-135M, and about the same share of its vocabulary.
const SIZES: zero_weights::Sizes = zero_weights::Sizes {
    layers: 8,
    hidden: 576,
    heads: 9,
    key_heads: 3,
    wide: 1536,
    vocabulary: 13_056,
};

/// Number of measurements with the built-in model; the fastest counts.
const REPEATS: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            let folder = tempfile::tempdir().expect("a folder for the model");
            zero_weights::llama(folder.path(), &SIZES, "BF16");
            let window: Vec<u32> = (0..2048).map(|token| token * 7 % 3000).collect();
            compare(folder.path(), &[window.clone(), window], 512, REPEATS);
        }
        [folder, windows, short_context] => {
            let text = std::fs::read_to_string(windows).expect("a readable file of windows");
            let ids = |line: &str| {
                let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
                serde_json::from_value(line["ids"].clone()).expect("a list of ids")
            };
            let windows: Vec<Vec<u32>> = text.lines().map(ids).collect();
            let short_context = short_context.parse().expect("a number of tokens");
            compare(Path::new(folder), &windows, short_context, 1);
        }
        _ => panic!("expected a model, a file of windows and the tokens of a short context"),
    }
}

fn compare(folder: &Path, windows: &[Vec<u32>], short_context: u32, repeats: usize) {
    let request = ForwardRequest {
        model: None,
        losses: true,
        short_context: Some(short_context),
        attention: None,
        strict_positions: false,
    };
    let runs = [
        (BackendName::Own, ProductPrecision::F32),
        (BackendName::Candle, ProductPrecision::F32),
        (BackendName::Candle, ProductPrecision::Bf16),
    ];
    let tokens = windows.iter().map(Vec::len).sum::<usize>() as f64;
    let mut all = Vec::new();
    for (backend, precision) in runs {
        let model = WholeModel::open(folder).expect("a whole model");
        let model = model
            .with_backend(Some(backend), precision, has_gpu())
            .expect("a backend of this build");
        let ids: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        let mut fastest = f64::INFINITY;
        let mut made = Vec::new();
        for _ in 0..repeats {
            let start = Instant::now();
            let output = model.measure(0, &request, &ids, &|| true).expect("a valid model");
            made = output.expect("the callback never stops");
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
        println!(
            "{:<24} {precision:?}: {:.0} tokens per second, {:.2} s for {} windows",
            model.backend_name(),
            tokens / fastest,
            fastest,
            windows.len()
        );
        all.push(made);
    }
    println!("candle and own in f32:   {}", difference(&all[0], &all[1]));
    println!("candle in bf16 and f32:  {}", difference(&all[1], &all[2]));
}

/// Describes how losses and gains differ.
fn difference(one: &[ForwardStatistics], other: &[ForwardStatistics]) -> String {
    let pairs = || one.iter().zip(other);
    let losses = pairs().flat_map(|(one, other)| one.losses.iter().zip(&other.losses));
    let mut off: Vec<f64> = losses.map(|(one, other)| (one - other).abs()).collect();
    off.sort_by(f64::total_cmp);
    let gain = |output: &ForwardStatistics| {
        let sums = LossSums::new(output);
        sums.gain / sums.counted as f64
    };
    let mean =
        |output: &ForwardStatistics| output.losses.iter().sum::<f64>() / output.losses.len() as f64;
    let max_difference = |value: &dyn Fn(&ForwardStatistics) -> f64| {
        pairs().map(|(one, other)| (value(one) - value(other)).abs()).fold(0.0, f64::max)
    };
    let (gains, others): (Vec<f64>, Vec<f64>) =
        pairs().map(|(one, other)| (gain(one), gain(other))).unzip();
    format!(
        "a loss differs by at most {:.1e} nats (median {:.1e}), a mean loss by {:.1e}, long_gain by {:.1e}; rank correlation \
         of long_gain {:.5}",
        off.last().copied().unwrap_or(0.0),
        off[off.len() / 2],
        max_difference(&mean),
        max_difference(&gain),
        correlation(&ranks(&gains), &ranks(&others))
    )
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |value: &f64| values.iter().filter(|other| *other < value).count() as f64;
    values.iter().map(below).collect()
}

fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (first, second) = (mean(one), mean(other));
    let product = |a: &[f64], m: f64, b: &[f64], n: f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - m) * (b - n)).sum()
    };
    product(one, first, other, second)
        / (product(one, first, one, first) * product(other, second, other, second)).sqrt()
}
