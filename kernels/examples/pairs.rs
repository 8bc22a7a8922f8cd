//! Causal (query, key) pairs per second of every kernel that this machine supports, compared with the machine's limits.
//!
//! `cargo run --release -p longsift-kernels --example pairs -- [--json] [--kernel NAME] [--without-portable]` `   
//! [--head-dims 64,96,128,256] [--tokens 2048,8192,32768] [--threads 1,2] [--key-heads 2] [--group 4] [--repeats 5]`
//!
//! Four query heads share a key head, or as many as `--group` specifies. Windows beyond 16,384 tokens have one key head
//! by default. Limits are measured right before and right after each case, on as many threads.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

mod limits;

use limits::Limits;
use longsift_kernels::Kernel;
use longsift_kernels::bench::{BenchCase, BenchSpeed};

struct Options {
    json: bool,
    kernels: Vec<Kernel>,
    head_dims: Vec<usize>,
    tokens: Vec<usize>,
    threads: Vec<usize>,
    key_heads: Option<usize>,
    group: usize,
    repeats: usize,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let supported = Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported());
        let mut options = Self {
            json: false,
            kernels: supported.collect(),
            head_dims: vec![64, 96, 128, 256],
            tokens: vec![2048, 8192, 32_768],
            threads: vec![1, 2],
            key_heads: None,
            group: 4,
            repeats: 5,
        };
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().ok_or_else(|| format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--json" => options.json = true,
                "--without-portable" => {
                    options.kernels.retain(|kernel| !kernel.name().starts_with("portable"));
                }
                "--kernel" => {
                    let name = value()?;
                    let kernel = Kernel::from_name(&name).filter(|kernel| kernel.is_supported());
                    options.kernels = vec![kernel.ok_or(format!(
                        "kernel `{name}` is unknown or not supported by this machine"
                    ))?];
                }
                "--head-dims" => options.head_dims = numbers(&value()?)?,
                "--tokens" => options.tokens = numbers(&value()?)?,
                "--threads" => options.threads = numbers(&value()?)?,
                "--key-heads" => options.key_heads = numbers(&value()?)?.first().copied(),
                "--group" => options.group = numbers(&value()?)?[0],
                "--repeats" => options.repeats = numbers(&value()?)?[0],
                other => return Err(format!("unknown option `{other}`")),
            }
        }
        Ok(options)
    }
}

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    text.split(',')
        .map(|number| number.parse().map_err(|_| format!("`{number}` is not a number")))
        .collect()
}

fn main() -> Result<(), String> {
    let options = Options::parse(std::env::args().skip(1))?;
    if !options.json {
        println!(
            "{:14} {:>8} {:>7} {:>7} {:>9} {:>8} {:>9} {:>9} {:>7}",
            "kernel",
            "head_dim",
            "tokens",
            "threads",
            "Gpairs/s",
            "GFMA/s",
            "FMA limit",
            "exp limit",
            "share"
        );
    }
    for &threads in &options.threads {
        for &head_dim in &options.head_dims {
            for &tokens in &options.tokens {
                // Kernels take turns at one size, so that their results are comparable.
                for &kernel in &options.kernels {
                    let key_heads =
                        options.key_heads.unwrap_or(if tokens > 16_384 { 1 } else { 2 });
                    let case = BenchCase {
                        kernel,
                        head_dim,
                        tokens,
                        key_heads,
                        group: options.group,
                        threads,
                    };
                    let before = limits_of(&case)?;
                    let speed = case.measure(options.repeats);
                    print(&options, &case, &speed, &before.mean(&limits_of(&case)?));
                }
            }
        }
    }
    Ok(())
}

/// Returns the mean limits of the threads of a case.
fn limits_of(case: &BenchCase) -> Result<Limits, String> {
    let threads: Vec<_> = (0..case.threads)
        .map(|_| {
            let kernel = case.kernel;
            std::thread::spawn(move || Limits::measure(kernel))
        })
        .collect();
    let mut measured = Vec::new();
    for thread in threads {
        let limits = thread.join().map_err(|_| "a measurement of the limits failed".to_owned())?;
        measured.push(limits.ok_or(format!("`{}` is not for this processor", case.kernel.name()))?);
    }
    let count = measured.len() as f64;
    Ok(Limits {
        multiply_adds: measured.iter().map(|limits| limits.multiply_adds).sum::<f64>() / count,
        exponentials: measured.iter().map(|limits| limits.exponentials).sum::<f64>() / count,
    })
}

fn print(options: &Options, case: &BenchCase, speed: &BenchSpeed, limits: &Limits) {
    let (kernel, head_dim) = (case.kernel.name(), case.head_dim);
    let &BenchSpeed { seconds, pairs } = speed;
    let processor_seconds = case.pairs() / pairs;
    let share = pairs / limits.pairs(case.kernel.element_type(), head_dim);
    if options.json {
        println!(
            "{{\"kernel\":\"{kernel}\",\"head_dim\":{head_dim},\"tokens\":{},\"query_heads\":{},\"threads\":{},\
             \"seconds\":{seconds:e},\"processor_seconds\":{processor_seconds:e},\"pairs_per_second_and_thread\":{pairs:e},\"multiply_limit\":{:e},\
             \"exponential_limit\":{:e},\"share\":{share:.4}}}",
            case.tokens,
            case.group * case.key_heads,
            case.threads,
            limits.multiply_adds,
            limits.exponentials,
        );
    } else {
        println!(
            "{kernel:14} {head_dim:8} {:7} {:7} {:9.3} {:8.1} {:9.1} {:9.2} {:6.1} %",
            case.tokens,
            case.threads,
            pairs / 1e9,
            pairs * head_dim as f64 / 1e9,
            limits.multiply_adds / 1e9,
            limits.exponentials / 1e9,
            100.0 * share
        );
    }
}
