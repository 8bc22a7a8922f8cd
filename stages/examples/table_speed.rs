//! Measures how fast a layer-zero table is computed, compared with its multiplications alone, and how long it takes to
//! open a cached one.
//!
//! ```sh
//! cargo run --release -p longsift-stages --example table_speed -- MODEL_FOLDER CACHE_FOLDER
//! ```
//!
//! The cache folder must be new or empty: its disk is part of the measurement.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use longsift_kernels::{ElementType, Kernel, PackedWeights};
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{LayerZeroTable, ModelFolder};

/// Rows multiplied at a time to measure the rate, and multiply-adds per measurement: a quarter of a second.
const ROWS: usize = 2048;
const MULTIPLY_ADDS: usize = 25_000_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, cache] = arguments.as_slice() else {
        println!("give a model folder and a new cache folder");
        return ExitCode::FAILURE;
    };
    match run(Path::new(model), Path::new(cache)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(model: &Path, cache: &Path) -> Result<(), String> {
    let model = ModelFolder::open(model, None).map_err(|problems| problems[0].to_string())?;
    let kernel = Kernel::detect(ElementType::F32);
    let spec = model.spec();
    let (hidden, width) = (spec.hidden_size as usize, spec.row_width() as usize);
    let open = |precision| {
        let started = Instant::now();
        LayerZeroTable::open_or_build(&model, kernel, precision, cache, &|_, _| {})
            .map(|opened| (started.elapsed().as_secs_f64(), opened.from_cache))
            .map_err(|problem| problem.to_string())
    };
    println!("{} × {width} from {hidden}, kernel {}", spec.vocabulary_size, kernel.name());
    for precision in [Precision::F32, Precision::Bf16] {
        let before = multiplications(kernel, hidden, width);
        let (seconds, from_cache) = open(precision)?;
        if from_cache {
            return Err(format!("{} has the table already", cache.display()));
        }
        let rate = f64::midpoint(before, multiplications(kernel, hidden, width));
        let built = 2.0 * (spec.vocabulary_size as usize * hidden * width) as f64 / seconds;
        println!(
            "{precision:?}: built in {seconds:.2} s: {:.1} GFLOP/s, {:.0} % of the {:.1} of the multiplications alone",
            built / 1e9,
            100.0 * built / rate,
            rate / 1e9
        );
        let mut again = (0..20)
            .map(|_| open(precision).map(|opened| opened.0))
            .collect::<Result<Vec<_>, _>>()?;
        again.sort_by(f64::total_cmp);
        println!(
            "{precision:?}: open from the cache in {:.2} ms (median), {:.2} ms at most",
            again[10] * 1e3,
            again[19] * 1e3
        );
    }
    Ok(())
}

/// Returns floating-point operations per second of all threads.
fn multiplications(kernel: Kernel, hidden: usize, width: usize) -> f64 {
    let numbers = |count: usize| -> Vec<f32> {
        (0..count).map(|index| (index % 1013) as f32 / 1013.0 - 0.5).collect()
    };
    let weights = PackedWeights::new(kernel, &numbers(width * hidden), None, hidden);
    let (x, mut out) = (numbers(ROWS * hidden), vec![0.0; ROWS * width]);
    weights.apply(&x, &mut out);
    let rounds = MULTIPLY_ADDS.div_ceil(ROWS * hidden * width);
    let started = Instant::now();
    for _ in 0..rounds {
        weights.apply(&x, &mut out);
        black_box(&out);
    }
    2.0 * (rounds * ROWS * hidden * width) as f64 / started.elapsed().as_secs_f64()
}
