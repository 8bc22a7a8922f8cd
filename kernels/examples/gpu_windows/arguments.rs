//! Command line arguments.

use std::path::PathBuf;

use longsift_kernels::Kernel;

use super::geometry::{GEOMETRIES, Geometry};

/// Windows to measure, and output options.
pub(super) struct Arguments {
    pub(super) kernels: Vec<Kernel>,
    pub(super) geometries: Vec<&'static Geometry>,
    pub(super) tokens: Vec<usize>,
    /// Repetitions of each window, after one to warm up; the median counts.
    pub(super) repeat: usize,
    /// Windows that are expected to take more seconds are skipped.
    pub(super) seconds: f64,
    /// Kernel whose sums are compared with those of each window before it is timed.
    pub(super) beside: Option<Kernel>,
    /// Whether the chip's limits are measured first.
    pub(super) limits: bool,
    /// File to which one line of JSON is appended for each printed line.
    pub(super) json: Option<PathBuf>,
}

/// Slowest first: a window that would take longer than the limit is skipped.
const KERNELS: [Kernel; 4] =
    [Kernel::CudaF32, Kernel::CudaV1Bf16, Kernel::CudaV2Bf16, Kernel::CudaV3Bf16];
const TOKENS: [usize; 5] = [4096, 8192, 32_768, 131_072, 1 << 20];

impl Arguments {
    pub(super) fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            kernels: KERNELS.to_vec(),
            geometries: GEOMETRIES.iter().collect(),
            tokens: TOKENS.to_vec(),
            repeat: 3,
            seconds: 10.0,
            beside: None,
            limits: true,
            json: None,
        };
        while let Some(name) = words.next() {
            if name == "--no-limits" {
                arguments.limits = false;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("`{name}` needs a value"))?;
            match name.as_str() {
                "--kernel" => arguments.kernels = list(&value, kernel)?,
                "--geometry" => arguments.geometries = list(&value, geometry)?,
                "--tokens" => arguments.tokens = list(&value, |text| number(&name, text))?,
                "--repeat" => arguments.repeat = number(&name, &value)?,
                "--seconds" => arguments.seconds = number(&name, &value)?,
                "--beside" => arguments.beside = Some(kernel(&value)?),
                "--json" => arguments.json = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown option `{name}`")),
            }
        }
        if arguments.repeat == 0 {
            return Err("`--repeat`: expected at least 1, got 0".to_owned());
        }
        Ok(arguments)
    }
}

/// Parses a list such as `a,b` with `read`.
fn list<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    text.split(',').map(|part| read(part.trim())).collect()
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{name}`: expected a number, got `{text}`"))
}

fn kernel(name: &str) -> Result<Kernel, String> {
    Kernel::from_name(name).filter(|kernel| kernel.is_cuda()).ok_or_else(|| {
        let names =
            Kernel::ALL.iter().filter(|kernel| kernel.is_cuda()).map(|kernel| kernel.name());
        format!(
            "`{name}` is not a GPU kernel; expected one of {}",
            names.collect::<Vec<_>>().join(", ")
        )
    })
}

fn geometry(name: &str) -> Result<&'static Geometry, String> {
    let named = |geometry: &&Geometry| geometry.name.eq_ignore_ascii_case(name);
    GEOMETRIES.iter().find(named).ok_or_else(|| {
        let names: Vec<&str> = GEOMETRIES.iter().map(|geometry| geometry.name).collect();
        format!("`{name}` is not a geometry; expected one of {}", names.join(", "))
    })
}
