//! Cost of long windows with gated linear attention and with softmax attention: `cargo run --release -p longsift-stages --example long_windows`.
//!
//! Two models of the same sizes and with weights of 0, since a forward pass takes the same time with any weights.
//! Arguments are window lengths. Times are processor times, which other programs on the machine hardly affect. Runs on
//! Linux.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

use longsift_stages::model::WholeModel;

#[path = "../tests/zero_weights/mod.rs"]
mod zero_weights;

use zero_weights::Sizes;

const SIZES: Sizes =
    Sizes { layers: 2, hidden: 512, heads: 4, key_heads: 4, wide: 1408, vocabulary: 4096 };

fn main() {
    let lengths: Vec<usize> =
        std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let lengths = if lengths.is_empty() { vec![4096, 32_768, 131_072] } else { lengths };
    let threads = rayon::current_num_threads();
    println!("{} layers of {}, {threads} threads", SIZES.layers, SIZES.hidden);
    println!("{:>8} {:>22} {:>22} {:>6}", "tokens", "gated linear", "softmax", "ratio");
    for tokens in lengths {
        let gated = measure(zero_weights::gla, tokens);
        let softmax = measure(zero_weights::llama, tokens);
        let cell =
            |(micros, bytes): (f64, u64)| format!("{micros:.0} µs/token, {} MB", bytes / 1_000_000);
        println!(
            "{tokens:>8} {:>22} {:>22} {:>6.1}",
            cell(gated),
            cell(softmax),
            softmax.0 / gated.0
        );
    }
}

/// Returns the processor microseconds per token, and the peak memory.
fn measure(write: fn(&std::path::Path, &Sizes, &str), tokens: usize) -> (f64, u64) {
    let folder = tempfile::tempdir().expect("a folder for the model");
    write(folder.path(), &SIZES, "F32");
    let model = WholeModel::open(folder.path()).expect("the model has all tensors");
    let ids: Vec<u32> = (0..tokens).map(|token| (token * 7 % 3000) as u32).collect();
    let threads = rayon::current_num_threads() as u64;
    let start = processor_seconds();
    model.forward(&[&ids]).expect("weights of 0 are finite");
    let micros = (processor_seconds() - start) * 1e6 / tokens as f64;
    (micros, model.memory(tokens as u64, threads).peak_bytes)
}

/// Returns the processor seconds that this process has used.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux reports processor times");
    // The name of the program may contain spaces; user and system time are in hundredths.
    let fields = stat.rsplit(')').next().expect("a name in brackets").split_whitespace();
    let ticks = fields.skip(11).take(2).map(|field| field.parse::<f64>().expect("a number"));
    ticks.sum::<f64>() / 100.0
}
