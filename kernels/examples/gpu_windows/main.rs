//! Measures windows on the GPU: every kernel and geometry against the chip's limits, and memory against the announced
//! amount.
//!
//! ```sh
//! gpu_windows [--kernel NAMES] [--geometry NAMES] [--tokens NUMBERS] [--repeat 3] [--seconds 10] [--beside KERNEL]
//!             [--no-limits] [--json FILE]
//! ```
//!
//! Lists are separated by commas. Every line is printed and appended to FILE as soon as it is measured, so a later hang
//! loses nothing. With `--beside`, the sums of each window are compared with those of another kernel for the same
//! element type before it is timed. `LONGSIFT_CUDA_IMAGES=FOLDER` loads `NAME.fatbin` from a folder, if it exists,
//! instead of the built-in image, so that nvcc alone suffices to try out kernels.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the program prints a table")]

mod arguments;
mod geometry;
mod limits;
mod line;
mod timing;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use longsift_kernels::cuda::nvidia::{Gpu, Nvidia, gpus};
use longsift_kernels::cuda::{CudaDevice, DeviceError, WindowRequest, window_bytes};
use longsift_kernels::{HeadSums, Kernel, LogitRules};

use arguments::Arguments;
use geometry::{Geometry, Table};
use limits::Limits;
use line::Line;
use timing::TimedDriver;

/// Maximum relative difference between a window's memory and the announced amount.
const MEMORY_TOLERANCE: f64 = 0.05;
/// Below this, the driver's allocation unit of 2 MiB exceeds the tolerance.
const MEMORY_COMPARED: u64 = 100_000_000;
/// Relative tolerance of a head's far mass: two kernels of the same rounded numbers differ only in the order of float32
/// sums.
const SAME_SUMS: f64 = 2e-5;
/// Windows that take longer than this are measured once.
const LONG_SECONDS: f64 = 2.0;

/// Destination of lines.
struct Output {
    json: Option<File>,
}

impl Output {
    fn line(&mut self, text: &str, json: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout();
        writeln!(out, "{text}")?;
        out.flush()?;
        self.json.as_mut().map_or(Ok(()), |file| writeln!(file, "{json}"))
    }
}

/// Reason for ending early.
enum Ended {
    Gpu(DeviceError),
    Output(std::io::Error),
    /// Sums or memory differ.
    Wrong(String),
}

impl From<DeviceError> for Ended {
    fn from(failure: DeviceError) -> Self {
        Self::Gpu(failure)
    }
}

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("gpu_windows: {message}");
            return ExitCode::from(2);
        }
    };
    let gpu = match gpus().map(|gpus| gpus.into_iter().next()) {
        Ok(Some(gpu)) => gpu,
        Ok(None) => {
            eprintln!("skipped: the driver reports no GPU");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return ExitCode::SUCCESS;
        }
    };
    let message = match measure_all(&gpu, &arguments) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Ended::Gpu(failure)) => format!("{}: {failure}", gpu.name),
        Err(Ended::Output(error)) => format!("gpu_windows cannot write its results: {error}"),
        Err(Ended::Wrong(message)) => message,
    };
    eprintln!("{message}");
    ExitCode::FAILURE
}

fn images() -> Option<PathBuf> {
    std::env::var_os("LONGSIFT_CUDA_IMAGES").map(PathBuf::from)
}

fn open(gpu: &Gpu) -> Result<Nvidia, DeviceError> {
    Nvidia::open_with(gpu.ordinal, images().as_deref())
}

fn measure_all(gpu: &Gpu, arguments: &Arguments) -> Result<(), Ended> {
    let append = |path: &Path| File::options().create(true).append(true).open(path);
    let mut output = Output { json: arguments.json.as_deref().map(append).transpose()? };
    let from = images().map_or(String::new(), |folder| format!(", images of {}", folder.display()));
    println!("{} ({} multiprocessors{from})", gpu.name, gpu.multiprocessors);
    let limits = if arguments.limits {
        let limits = Limits::measure(gpu, &open(gpu)?)?;
        output.line(&limits_text(&limits), &limits_json(gpu, &limits))?;
        Some(limits)
    } else {
        None
    };
    println!("\n{}", Line::HEAD);
    let mut off = 0.0_f64;
    for geometry in &arguments.geometries {
        for &kernel in &arguments.kernels {
            if !gpu.supports(kernel) {
                eprintln!(
                    "kernel `{}` does not run on {}, or is not in this build",
                    kernel.name(),
                    gpu.name
                );
                continue;
            }
            for line in Windows::new(gpu, geometry, kernel, arguments)? {
                let line = line?;
                output.line(&line.text(limits.as_ref()), &line.json(limits.as_ref()))?;
                off = off.max(line.memory_difference());
            }
        }
    }
    println!(
        "\nmemory: within {:.1} % of the announced amount, in windows of 100 MB or more",
        100.0 * off
    );
    if off <= MEMORY_TOLERANCE {
        return Ok(());
    }
    Err(Ended::Wrong(format!(
        "the device memory of a window differs by {:.1} % from the announced amount (limit {:.0} %): see the last column",
        100.0 * off,
        100.0 * MEMORY_TOLERANCE
    )))
}

/// Iterator over the windows of one geometry and kernel.
struct Windows<'a> {
    geometry: &'static Geometry,
    arguments: &'a Arguments,
    device: CudaDevice<TimedDriver>,
    beside: Option<CudaDevice<TimedDriver>>,
    table: Table,
    /// Index of the next length.
    next: usize,
    /// Pairs per second so far, to skip windows that would take too long.
    rate: f64,
}

impl<'a> Windows<'a> {
    fn new(
        gpu: &Gpu,
        geometry: &'static Geometry,
        kernel: Kernel,
        arguments: &'a Arguments,
    ) -> Result<Self, DeviceError> {
        let table = Table::new(geometry, kernel);
        let device = |kernel| {
            let mut device = CudaDevice::new(TimedDriver::new(open(gpu)?), kernel);
            if geometry.shared == 0 {
                device.load_table(table.view(), geometry.row_width())?;
            }
            Ok(device)
        };
        let beside = arguments.beside.filter(|&other| other != kernel).map(device).transpose()?;
        let device = device(kernel)?;
        Ok(Self { geometry, arguments, device, beside, table, next: 0, rate: 0.0 })
    }

    fn measure(&mut self, tokens: usize, expected_seconds: f64) -> Result<Line, Ended> {
        let geometry = self.geometry;
        let shape = geometry.shape(tokens);
        let rules = LogitRules::causal(geometry.head_dim);
        let ids = Table::ids(tokens);
        let request = WindowRequest {
            shape: &shape,
            rules: &rules,
            distance: tokens - 3 * (tokens / 4),
            operands: self.table.operands(&ids),
            sample: None,
            key_heads: 0..geometry.key_heads,
        };
        let driver = self.device.driver();
        self.device.release_spare_memory();
        let free_before = driver.memory()?.0;
        driver.start()?;
        let first = self.device.measure(&request)?;
        let taken = driver.finish()?.lowest_free.map(|free| free_before.saturating_sub(free));
        let difference = match &self.beside {
            Some(device) => Some(compared(&first, &device.measure(&request)?, tokens)?),
            None => None,
        };
        let (mut gathers, mut attentions, mut walls) = (Vec::new(), Vec::new(), Vec::new());
        let long = expected_seconds > LONG_SECONDS;
        for _ in 0..if long { 1 } else { self.arguments.repeat } {
            driver.start()?;
            let start = Instant::now();
            self.device.measure(&request)?;
            walls.push(start.elapsed().as_secs_f64() * 1e3);
            let timings = driver.finish()?;
            let total_ms = |name: &str| -> f64 {
                let launches = timings.milliseconds.iter();
                launches
                    .filter(|(kernel, _)| kernel.starts_with(name))
                    .map(|(_, ms)| f64::from(*ms))
                    .sum()
            };
            gathers.push(total_ms("gather"));
            attentions.push(total_ms("attention") + total_ms("sum"));
        }
        Ok(Line {
            geometry: geometry.name,
            tokens,
            kernel: self.device.kernel(),
            gather_ms: median(&mut gathers),
            attention_ms: median(&mut attentions),
            least_attention_ms: attentions[0],
            wall_ms: median(&mut walls),
            pairs: geometry.pairs(tokens),
            head_dim: geometry.head_dim,
            announced: window_bytes(
                self.device.kernel(),
                &shape,
                &self.table.sizes(),
                &(0..geometry.key_heads),
            ),
            taken,
            difference,
        })
    }
}

impl Iterator for Windows<'_> {
    type Item = Result<Line, Ended>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let tokens = *self.arguments.tokens.get(self.next)?;
            self.next += 1;
            let pairs = self.geometry.pairs(tokens);
            let expected = if self.rate > 0.0 { pairs / self.rate } else { 0.0 };
            // Sending takes the CPU longer than the GPU takes to measure.
            let sent = self.geometry.shared > 0 && tokens > 32_768;
            if sent || expected > self.arguments.seconds {
                continue;
            }
            match self.measure(tokens, expected) {
                Err(Ended::Gpu(DeviceError::OutOfMemory { wanted, free })) => eprintln!(
                    "{} {tokens} {}: requested {wanted} bytes, {free} free",
                    self.geometry.name,
                    self.device.kernel().name()
                ),
                Ok(line) => {
                    self.rate = pairs / (line.attention_ms / 1e3);
                    return Some(Ok(line));
                }
                failed => return Some(failed),
            }
        }
    }
}

/// Returns the largest relative difference of a head's far mass.
fn compared(got: &HeadSums, want: &HeadSums, tokens: usize) -> Result<f64, Ended> {
    let pairs = got.far_mass.iter().zip(&want.far_mass);
    let worst = pairs
        .map(|(got, want)| ((got - want) / want).abs())
        .map(|difference| if difference.is_nan() { f64::INFINITY } else { difference })
        .fold(0.0, f64::max);
    if worst <= SAME_SUMS {
        return Ok(worst);
    }
    Err(Ended::Wrong(format!(
        "{tokens} tokens: the far mass of a head differs by {worst:.1e} from that of the other kernel (limit {SAME_SUMS:.0e}): not timed"
    )))
}

/// Sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

impl Line {
    /// Returns the relative difference between used and announced memory; 0 if they cannot be compared.
    fn memory_difference(&self) -> f64 {
        let compared = self.taken.filter(|_| self.announced >= MEMORY_COMPARED);
        compared.map_or(0.0, |taken| (taken as f64 / self.announced as f64 - 1.0).abs())
    }
}

fn limits_text(limits: &Limits) -> String {
    let group_products = limits.group_products;
    format!(
        "limits: {:.0} TFLOP/s bf16 (mma.sync), {} (wgmma), {:.2} T exponentials/s, {:.1} TFLOP/s f32",
        2.0 * limits.products / 1e12,
        group_products
            .map_or("none".to_owned(), |rate| format!("{:.0} TFLOP/s", 2.0 * rate / 1e12)),
        limits.exponentials / 1e12,
        2.0 * limits.multiply_adds / 1e12
    )
}

fn limits_json(gpu: &Gpu, limits: &Limits) -> String {
    let group_products = limits.group_products;
    format!(
        "{{\"gpu\":\"{}\",\"multiprocessors\":{},\"limits\":{{\"bf16_mma\":{},\"bf16_wgmma\":{},\"exponentials\":{},\"f32\":{}}}}}",
        gpu.name,
        gpu.multiprocessors,
        limits.products,
        group_products.map_or("null".to_owned(), |rate| rate.to_string()),
        limits.exponentials,
        limits.multiply_adds
    )
}
