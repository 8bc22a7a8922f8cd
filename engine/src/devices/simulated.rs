//! Simulated devices for tests and rehearsals: the processor's arithmetic with a strict memory budget.
//!
//! The environment variable [`VARIABLE`] replaces GPUs with them. It is a comma-separated list of `COUNTxBYTES` (`8x64MB`),
//! each with options after colons; or `nvml`: one device per GPU in NVML, with that GPU's memory, including use by other
//! programs. Scores are those of the processor's kernel.
//!
//! | option | effect |
//! |---|---|
//! | `neighbour=BYTES` | another program holds this much |
//! | `neighbour_after=N` | it does so from the N-th piece on |
//! | `out_of_memory=N` | every N-th piece runs out of memory |
//! | `failed=N` | every N-th piece fails |
//! | `lost=N` | the device is lost after N pieces |
//! | `killed=N` | the process is killed at the N-th piece, as if the machine had crashed |
//! | `leak=BYTES` | this much of every piece is not freed |
//! | `milliseconds=N` | each piece takes this much longer |

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use longsift_kernels::{HeadSums, Kernel};
use longsift_stages::contract::compute::{Compute, DeviceFailure, ForwardPass, ForwardResult};
use longsift_stages::first_layer_attention::{FirstLayer, WindowTokens};
use longsift_stages::model::AttentionSpec;
use rustix::process::{Signal, getpid, kill_process};
use serde::Deserialize;
use serde_json::Map;

use super::ledger::{Memory, MemorySource};
use super::nvml::NvmlGpu;

/// Rows per block of a GPU kernel: sums are kept per block until they are added in order.
const BLOCK_ROWS: u64 = 128;

pub const VARIABLE: &str = "LONGSIFT_SIMULATED_DEVICES";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Description {
    /// Total memory; ignored if `gpu` is set.
    #[serde(skip)]
    pub total: u64,
    #[serde(skip)]
    pub gpu: Option<NvmlGpu>,
    neighbour: u64,
    neighbour_after: u64,
    out_of_memory: u64,
    failed: u64,
    lost: u64,
    killed: u64,
    leak: u64,
    milliseconds: u64,
}

/// Parses a value of [`VARIABLE`]; `gpus` is called for `nvml`.
pub fn describe(
    value: &str,
    gpus: impl FnOnce() -> Result<Vec<NvmlGpu>, String>,
) -> Result<Vec<Description>, String> {
    if value.trim() == "nvml" {
        let described = |gpu| Description { gpu: Some(gpu), ..Description::default() };
        return Ok(gpus()?.into_iter().map(described).collect());
    }
    let mut devices = Vec::new();
    for entry in value.split(',') {
        let wrong =
            || format!("`{entry}` is not a simulated device; write `8x64MB` or `1x64MB:lost=3`");
        let mut parts = entry.trim().split(':');
        let (count, total) =
            parts.next().and_then(|size| size.split_once('x')).ok_or_else(wrong)?;
        let count: usize = count.parse().map_err(|_| wrong())?;
        let total = bytes(total).ok_or_else(wrong)?;
        let mut options = Map::new();
        for option in parts {
            let (name, value) = option.split_once('=').ok_or_else(wrong)?;
            options.insert(name.to_owned(), bytes(value).ok_or_else(wrong)?.into());
        }
        let options: Description = serde_json::from_value(options.into()).map_err(|_| wrong())?;
        devices.extend(std::iter::repeat_n(Description { total, ..options }, count));
    }
    Ok(devices)
}

/// Parses `64MB`, `1.5GB`, `300`.
fn bytes(text: &str) -> Option<u64> {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("", 1.0)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number, unit)))?;
    let number: f64 = number.parse().ok()?;
    (number >= 0.0 && number.is_finite()).then_some((number * unit) as u64)
}

pub struct SimulatedDevice {
    name: String,
    kernel: Kernel,
    number_bytes: u64,
    description: Description,
    held: AtomicU64,
    resident: AtomicU64,
    pieces: AtomicU64,
}

impl SimulatedDevice {
    /// Returns a device that runs `kernel` on the processor; numbers in its tables and windows have `number_bytes` bytes.
    pub fn new(name: String, kernel: Kernel, number_bytes: u64, description: Description) -> Self {
        let (held, resident, pieces) = Default::default();
        Self { name, kernel, number_bytes, description, held, resident, pieces }
    }

    /// Allocates memory for a table, after freeing that of the previous one.
    fn load_table(&self, bytes: u64) -> Result<(), DeviceFailure> {
        self.held.fetch_sub(self.resident.swap(0, SeqCst), SeqCst);
        self.take(bytes)?;
        self.resident.store(bytes, SeqCst);
        Ok(())
    }

    fn take(&self, wanted: u64) -> Result<(), DeviceFailure> {
        let mut held = self.held.load(SeqCst);
        loop {
            let Memory { total, used } = self.read().map_err(DeviceFailure::Lost)?;
            // Memory of others is independent of `held`, so both may be read at different times.
            let free = total.saturating_sub(used);
            if wanted > free {
                return Err(DeviceFailure::OutOfMemory { wanted, free });
            }
            match self.held.compare_exchange(held, held + wanted, SeqCst, SeqCst) {
                Ok(_) => return Ok(()),
                Err(now) => held = now,
            }
        }
    }

    fn piece<T>(&self, bytes: u64, work: impl FnOnce() -> T) -> Result<T, DeviceFailure> {
        self.fault(self.pieces.fetch_add(1, SeqCst) + 1)?;
        self.take(bytes)?;
        let Description { milliseconds, leak, .. } = self.description;
        std::thread::sleep(Duration::from_millis(milliseconds));
        let done = work();
        self.held.fetch_sub(bytes, SeqCst);
        self.held.fetch_add(leak, SeqCst);
        Ok(done)
    }

    fn fault(&self, piece: u64) -> Result<(), DeviceFailure> {
        let Description { lost, killed, out_of_memory, failed, .. } = self.description;
        let every = |number: u64| number > 0 && piece.is_multiple_of(number);
        if killed == piece {
            let ended = kill_process(getpid(), Signal::KILL);
            return Err(DeviceFailure::Failed(format!(
                "the process could not be killed: {ended:?}"
            )));
        }
        if lost > 0 && piece > lost {
            return Err(DeviceFailure::Lost("it has fallen off the bus (simulated)".to_owned()));
        }
        if every(out_of_memory) {
            return Err(DeviceFailure::OutOfMemory { wanted: 1, free: 0 });
        }
        if every(failed) {
            return Err(DeviceFailure::Failed("an error (simulated)".to_owned()));
        }
        Ok(())
    }
}

impl MemorySource for SimulatedDevice {
    fn read(&self) -> Result<Memory, String> {
        let others = if let Some(gpu) = &self.description.gpu {
            gpu.memory()?
        } else {
            let is_there = self.pieces.load(SeqCst) >= self.description.neighbour_after;
            let used = if is_there { self.description.neighbour } else { 0 };
            Memory { total: self.description.total, used }
        };
        Ok(Memory { used: others.used + self.held.load(SeqCst), ..others })
    }

    fn held(&self) -> u64 {
        self.held.load(SeqCst)
    }

    fn utilisation(&self) -> Option<u32> {
        self.description.gpu.and_then(|gpu| gpu.utilisation())
    }
}

impl Compute for SimulatedDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kernel(&self) -> Kernel {
        self.kernel
    }

    fn resident_bytes(&self, _: &AttentionSpec, table_bytes: u64) -> u64 {
        table_bytes
    }

    fn load(&self, layer: &FirstLayer) -> Result<(), DeviceFailure> {
        self.load_table(self.resident_bytes(layer.spec(), layer.table().bytes()))
    }

    /// About the bytes on a GPU, without padding: ids and row factors, rotated queries and keys, and the sums of each block.
    fn window_bytes(&self, layer: &AttentionSpec, tokens: usize, key_heads: Range<usize>) -> u64 {
        let shape = layer.attention_shape(tokens);
        let (tokens, keys) = (tokens as u64, key_heads.len() as u64);
        let queries = keys * shape.group() as u64;
        let rows = tokens * (queries + keys) * shape.head_dim as u64 * self.number_bytes;
        let bins = longsift_kernels::histogram_bins(shape.tokens) as u64;
        let sums = tokens.div_ceil(BLOCK_ROWS) * queries * (2 + bins) * 8;
        8 * tokens + rows + sums
    }

    fn measure(
        &self,
        layer: &FirstLayer,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> Result<HeadSums, DeviceFailure> {
        let bytes = self.window_bytes(layer.spec(), window.ids.len(), key_heads.clone());
        self.piece(bytes, || layer.measure_heads(self.kernel, window, key_heads))
    }

    fn forward(&self, pass: &ForwardPass<'_>) -> Result<ForwardResult, DeviceFailure> {
        self.piece(pass.bytes, || pass.run_on_gpu(0))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_devices_and_options_are_parsed() {
        let none = || Err("no GPU".to_owned());
        let devices = describe("2x64MB, 1x1.5GB:lost=3:neighbour=10kB", none).unwrap();
        assert_eq!(devices.len(), 3);
        assert_eq!((devices[1].total, devices[1].lost), (64_000_000, 0));
        let last = &devices[2];
        assert_eq!((last.total, last.lost, last.neighbour), (1_500_000_000, 3, 10_000));
        for wrong in ["8", "x64MB", "2x", "1x64MB:lost", "1x64MB:found=1", "1x-3", ""] {
            assert!(describe(wrong, none).is_err(), "{wrong}");
        }
        assert_eq!(describe("nvml", none).unwrap_err(), "no GPU");
    }

    fn device(description: Description) -> SimulatedDevice {
        SimulatedDevice::new("cuda:0".to_owned(), Kernel::PortableF32, 4, description)
    }

    #[test]
    fn allocations_beyond_the_budget_fail() {
        let description = Description { total: 100, neighbour: 30, ..Description::default() };
        let memory = device(description);
        memory.take(60).unwrap();
        let refused = memory.take(11).unwrap_err();
        assert_eq!(refused, DeviceFailure::OutOfMemory { wanted: 11, free: 10 });
        memory.take(10).unwrap();
    }

    #[test]
    fn reloading_a_table_replaces_it() {
        let memory = device(Description { total: 100, ..Description::default() });
        for _ in 0..3 {
            memory.load_table(60).unwrap();
        }
        assert_eq!(memory.held.load(SeqCst), 60);
        assert!(memory.load_table(101).is_err());
        memory.take(100).unwrap();
    }
}
