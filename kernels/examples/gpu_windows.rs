//! Windows on the GPU: every kernel and geometry beside the chip's own limits, and memory beside what was announced.
//!
//! `cargo run --release -p longsift-kernels --features cuda --example gpu_windows [--json FILE] [--seconds LIMIT]`
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is what the program is for"
)]

use std::fmt::Write as _;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use half::bf16;
use longsift_kernels::cuda::nvidia::{Gpu, Nvidia, gpus};
use longsift_kernels::cuda::{
    Device, Failure, Limits, Operands, SourceSizes, WindowRequest, window_bytes,
};
use longsift_kernels::{
    AttentionShape, Kernel, LogitRules, Measure, QueryKeySource, RopeStyle, Rotation, TableView,
};

/// Rows of the table: as many distinct tokens as a long window has.
const TABLE_ROWS: usize = 8192;
const TOKENS: [usize; 5] = [4096, 8192, 32_768, 131_072, 1 << 20];
/// How far the memory that a window takes may be from what was announced.
const MEMORY_TOLERANCE: f64 = 0.05;
/// Below this the driver's pieces of 2 MiB are more than the tolerance.
const MEMORY_COMPARED: u64 = 100_000_000;
/// Slowest kernel first: a window that would take longer than the limit is left out.
const KERNELS: [Kernel; 3] = [Kernel::CudaF32, Kernel::CudaV1Bf16, Kernel::CudaV2Bf16];

/// The attention of one model's first layer.
struct Geometry {
    name: &'static str,
    query_heads: usize,
    key_heads: usize,
    head_dim: usize,
    /// Numbers that the keys of all heads end with: not gathered from a table, but sent.
    shared: usize,
}

const GEOMETRIES: [Geometry; 4] = [
    Geometry { name: "LLaMA-3.1-8B", query_heads: 32, key_heads: 8, head_dim: 128, shared: 0 },
    Geometry { name: "Qwen2.5-7B", query_heads: 28, key_heads: 4, head_dim: 128, shared: 0 },
    Geometry { name: "LLaMA-3.1-70B", query_heads: 64, key_heads: 8, head_dim: 128, shared: 0 },
    Geometry { name: "DeepSeek-V3", query_heads: 128, key_heads: 128, head_dim: 192, shared: 64 },
];

/// One window of one geometry with one kernel.
struct Line {
    geometry: &'static str,
    tokens: usize,
    kernel: Kernel,
    /// On the device's own clock.
    gather_ms: f64,
    attention_ms: f64,
    /// From the request to the sums, memory and transfers included.
    wall_ms: f64,
    pairs: f64,
    head_dim: usize,
    announced: u64,
    taken: Option<u64>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1))
    };
    let limit = value("--seconds").and_then(|text| text.parse().ok()).unwrap_or(10.0);
    let gpu = match gpus() {
        Ok(gpus) if !gpus.is_empty() => gpus[0].clone(),
        Ok(_) => {
            eprintln!("skipped: the driver shows no GPU");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return ExitCode::SUCCESS;
        }
    };
    match measure_all(&gpu, limit) {
        Ok((limits, lines)) => {
            print_table(&gpu, &limits, &lines);
            if let Some(path) = value("--json")
                && let Err(error) = std::fs::write(path, json(&gpu, &limits, &lines))
            {
                eprintln!("{path}: {error}");
                return ExitCode::FAILURE;
            }
            memory_as_announced(&lines)
        }
        Err(failure) => {
            eprintln!("{}: {failure}", gpu.name);
            ExitCode::FAILURE
        }
    }
}

fn measure_all(gpu: &Gpu, limit: f64) -> Result<(Limits, Vec<Line>), Failure> {
    let limits = Limits::measure(gpu, &Nvidia::open(gpu.ordinal)?)?;
    let mut lines = Vec::new();
    for geometry in &GEOMETRIES {
        for kernel in KERNELS.into_iter().filter(|kernel| gpu.has(*kernel)) {
            let mut device = Device::new(Nvidia::open(gpu.ordinal)?, kernel);
            let table = Table::new(geometry, kernel);
            if geometry.shared == 0 {
                device.load_table(table.view(), geometry.row_width())?;
            }
            // Pairs a second so far, to leave out what would take too long.
            let mut rate = 0.0_f64;
            for tokens in TOKENS {
                let pairs = geometry.pairs(tokens);
                let sent = geometry.shared > 0 && tokens > 32_768;
                let expected = if rate > 0.0 { pairs / rate } else { 0.0 };
                if sent || expected > limit {
                    continue;
                }
                match window(&device, geometry, &table, tokens, expected) {
                    Ok(line) => {
                        rate = pairs / (line.attention_ms / 1e3);
                        lines.push(line);
                    }
                    Err(Failure::OutOfMemory { wanted, free }) => eprintln!(
                        "{} {tokens} {}: {wanted} bytes wanted, {free} free",
                        geometry.name,
                        kernel.name()
                    ),
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
    Ok((limits, lines))
}

impl Geometry {
    fn row_width(&self) -> usize {
        (self.query_heads + self.key_heads) * self.head_dim
    }

    fn pairs(&self, tokens: usize) -> f64 {
        tokens as f64 * (tokens as f64 + 1.0) / 2.0 * self.query_heads as f64
    }
}

/// A random table in the numbers of a kernel; of latent attention, the numbers to send.
struct Table {
    floats: Vec<f32>,
    rounded: Vec<bf16>,
    head_dim: usize,
}

impl Table {
    fn new(geometry: &Geometry, kernel: Kernel) -> Self {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let numbers = if geometry.shared > 0 { 1 << 20 } else { TABLE_ROWS * geometry.row_width() };
        let floats: Vec<f32> = (0..numbers).map(|_| 2.5 * next()).collect();
        let rounded = if kernel == Kernel::CudaF32 {
            Vec::new()
        } else {
            floats.iter().map(|&value| bf16::from_f32(value)).collect()
        };
        Self { floats, rounded, head_dim: geometry.head_dim }
    }

    fn view(&self) -> TableView<'_> {
        if self.rounded.is_empty() {
            TableView::F32(&self.floats)
        } else {
            TableView::Bf16(&self.rounded)
        }
    }

    fn fill(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            let start = (head * 7919 + row * 104_729) % (self.floats.len() - self.head_dim);
            out.copy_from_slice(&self.floats[start..][..self.head_dim]);
        }
    }
}

impl QueryKeySource for Table {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(head, rows, out);
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(1000 + head, rows, out);
    }
}

/// The best of three, after one to warm up; one alone where it is expected to take more than two seconds.
fn window(
    device: &Device<Nvidia>,
    geometry: &Geometry,
    table: &Table,
    tokens: usize,
    expected_seconds: f64,
) -> Result<Line, Failure> {
    let &Geometry { query_heads, key_heads, head_dim, shared, .. } = geometry;
    let shape = AttentionShape { tokens, query_heads, key_heads, head_dim };
    let rules = LogitRules::causal(head_dim);
    let pairs = head_dim / 2;
    let frequency = |pair: usize| 5e5_f32.powf(-(pair as f32) / pairs as f32);
    let rotation = Rotation {
        style: RopeStyle::Half,
        inverse_frequencies: (0..pairs).map(frequency).collect(),
        attention_factor: 1.0,
    };
    let ids: Vec<u32> = (0..tokens).map(|token| (token * 389 % TABLE_ROWS) as u32).collect();
    let operands = if shared > 0 {
        Operands::Source { source: table, shared }
    } else {
        Operands::Table { ids: &ids, rotation: Some(&rotation), norms: None }
    };
    let sizes = if shared > 0 {
        SourceSizes { shared, ..SourceSizes::default() }
    } else {
        SourceSizes { table: true, rotary_pairs: pairs, ..SourceSizes::default() }
    };
    let request = WindowRequest {
        shape: &shape,
        rules: &rules,
        measure: &Measure { distance: tokens - 3 * (tokens / 4), rows: false },
        operands,
        sample: None,
        key_heads: 0..key_heads,
    };
    let mut line = Line {
        geometry: geometry.name,
        tokens,
        kernel: device.kernel(),
        gather_ms: f64::INFINITY,
        attention_ms: f64::INFINITY,
        wall_ms: f64::INFINITY,
        pairs: geometry.pairs(tokens),
        head_dim,
        announced: window_bytes(device.kernel(), &shape, &sizes, &(0..key_heads)),
        taken: None,
    };
    let long = expected_seconds > 2.0;
    if !long {
        device.measure(&request)?;
    }
    for _ in 0..if long { 1 } else { 3 } {
        let free_before = device.driver().memory()?.0;
        device.driver().start_timing();
        let start = Instant::now();
        device.measure(&request)?;
        line.wall_ms = line.wall_ms.min(start.elapsed().as_secs_f64() * 1e3);
        let timed = device.driver().timed()?;
        let of = |name: &str| -> f64 {
            let matching = timed.milliseconds.iter().filter(|(kernel, _)| kernel.starts_with(name));
            matching.map(|(_, time)| f64::from(*time)).sum()
        };
        line.gather_ms = line.gather_ms.min(of("gather"));
        line.attention_ms = line.attention_ms.min(of("attention") + of("sum"));
        line.taken = timed.lowest_free.map(|free| free_before.saturating_sub(free));
    }
    Ok(line)
}

/// Whether every window took the device memory that was announced for it.
fn memory_as_announced(lines: &[Line]) -> ExitCode {
    let off = |line: &Line| -> Option<f64> {
        let compared = line.announced >= MEMORY_COMPARED;
        line.taken
            .filter(|_| compared)
            .map(|taken| (taken as f64 / line.announced as f64 - 1.0).abs())
    };
    let worst = lines.iter().filter_map(off).fold(0.0, f64::max);
    println!(
        "\nmemory: at most {:.1} % off what was announced, in windows of 100 MB or more",
        100.0 * worst
    );
    if worst <= MEMORY_TOLERANCE {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "a window took {:.1} % more or less device memory than announced, {:.0} % are allowed: see the last column",
        100.0 * worst,
        100.0 * MEMORY_TOLERANCE
    );
    ExitCode::FAILURE
}

impl Line {
    fn device_seconds(&self) -> f64 {
        (self.gather_ms + self.attention_ms) / 1e3
    }

    /// Shares of the limits of products and exponentials.
    fn shares(&self, limits: &Limits) -> (f64, f64) {
        let products = match self.kernel {
            Kernel::CudaF32 => limits.multiply_adds,
            Kernel::CudaV2Bf16 => limits.group_products.unwrap_or(limits.products),
            _ => limits.products,
        };
        let rate = self.pairs / (self.attention_ms / 1e3);
        (rate * self.head_dim as f64 / products, rate / limits.exponentials)
    }
}

fn print_table(gpu: &Gpu, limits: &Limits, lines: &[Line]) {
    println!("{} ({} multiprocessors)\n", gpu.name, gpu.multiprocessors);
    println!(
        "limits: {:.0} TFLOP/s bf16 (mma.sync), {} (wgmma), {:.2} T exponentials/s, {:.1} TFLOP/s f32\n",
        2.0 * limits.products / 1e12,
        limits
            .group_products
            .map_or("none".to_owned(), |rate| format!("{:.0} TFLOP/s", 2.0 * rate / 1e12)),
        limits.exponentials / 1e12,
        2.0 * limits.multiply_adds / 1e12
    );
    println!(
        "geometry        tokens kernel          gather ms  attention ms   wall ms   Gpairs/s   Mtokens/s  products  exps  memory MB (announced)"
    );
    for line in lines {
        let (products, exponentials) = line.shares(limits);
        println!(
            "{:14} {:7} {:14} {:10.2} {:13.2} {:9.1} {:10.1} {:11.2}  {:6.1} % {:5.1} %  {} ({:.0})",
            line.geometry,
            line.tokens,
            line.kernel.name(),
            line.gather_ms,
            line.attention_ms,
            line.wall_ms,
            line.pairs / line.attention_ms / 1e6,
            line.tokens as f64 / line.device_seconds() / 1e6,
            100.0 * products,
            100.0 * exponentials,
            line.taken.map_or("?".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1e6)),
            line.announced as f64 / 1e6,
        );
    }
}

fn json(gpu: &Gpu, limits: &Limits, lines: &[Line]) -> String {
    let mut text = String::new();
    let number = |value: Option<f64>| value.map_or("null".to_owned(), |value| value.to_string());
    let _ = write!(
        text,
        "{{\"gpu\":\"{}\",\"multiprocessors\":{},\"limits\":{{\"bf16_mma\":{},\"bf16_wgmma\":{},\"exponentials\":{},\"f32\":{}}},\"windows\":[",
        gpu.name,
        gpu.multiprocessors,
        limits.products,
        number(limits.group_products),
        limits.exponentials,
        limits.multiply_adds
    );
    for (index, line) in lines.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let (products, exponentials) = line.shares(limits);
        let _ = write!(
            text,
            "{comma}\n{{\"geometry\":\"{}\",\"tokens\":{},\"kernel\":\"{}\",\"gather_ms\":{},\"attention_ms\":{},\"wall_ms\":{},\"pairs\":{},\"share_of_products\":{products},\"share_of_exponentials\":{exponentials},\"bytes_announced\":{},\"bytes_taken\":{}}}",
            line.geometry,
            line.tokens,
            line.kernel.name(),
            line.gather_ms,
            line.attention_ms,
            line.wall_ms,
            line.pairs,
            line.announced,
            number(line.taken.map(|bytes| bytes as f64)),
        );
    }
    text + "\n]}\n"
}
