//! NVIDIA GPUs: each has a copy of the table, and all run the same kernel.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError, RwLock};

use longsift_kernels::cuda::nvidia::{Gpu, Nvidia, gpus};
use longsift_kernels::cuda::{self, DeviceError, WindowRequest};
use longsift_kernels::{ElementType, HeadSums, Kernel};
use longsift_stages::contract::Decimal;
use longsift_stages::contract::compute::{Compute, DeviceFailure, ForwardPass, ForwardResult};
use longsift_stages::first_layer_attention::{FirstLayer, SampledRows, WindowTokens};
use longsift_stages::model::AttentionSpec;

use super::device::{Device, DeviceCriteria};
use super::ledger::{Ledger, Memory, MemorySource};
use super::nvml::{NvmlGpu, visible_gpus};

/// Default for concurrent windows on a GPU: one that computes, and one whose ids or sums are transferred.
const GPU_WORKERS: usize = 2;

/// Lists the GPUs that this process may use, in CUDA's order.
pub(super) fn find(choice: DeviceCriteria<'_>) -> Result<Vec<Device>, String> {
    let gpus = gpus()?;
    let kernel = kernel(choice, &gpus)?;
    let by_nvml = visible_gpus().unwrap_or_default();
    let Decimal(headroom_fraction) = choice.settings.headroom_fraction;
    let device = |gpu: &Gpu| {
        let compute = Arc::new(Cuda {
            name: format!("cuda:{}", gpu.ordinal),
            ordinal: gpu.ordinal,
            kernel,
            number_bytes: choice.precision.bytes(),
            total_bytes: gpu.total_bytes,
            nvml: by_nvml.iter().find(|known| known.uuid == gpu.uuid).copied(),
            opened: RwLock::new(None),
            forwarding: AtomicU64::new(0),
        });
        let headroom = (gpu.total_bytes as f64 * headroom_fraction) as u64;
        let ledger = Ledger::new(Arc::clone(&compute) as _, headroom);
        Device { compute, ledger, workers: GPU_WORKERS, uuid: Some(gpu.uuid.clone()) }
    };
    Ok(gpus.iter().map(device).collect())
}

/// Returns the requested kernel, or the fastest one for the table that every GPU supports and that can process the windows.
fn kernel(choice: DeviceCriteria<'_>, gpus: &[Gpu]) -> Result<Kernel, String> {
    let all_have = |kernel: &Kernel| gpus.iter().all(|gpu| gpu.supports(*kernel));
    let (candidates, what) = match choice.named {
        Some(named) => (vec![named], format!("the kernel `{}`", named.name())),
        None => (fastest_first(choice.precision.element_type()).to_vec(), "a kernel".to_owned()),
    };
    let present: Vec<Kernel> = candidates.into_iter().filter(all_have).collect();
    if present.is_empty() {
        return Err(lacking(gpus, &what));
    }
    let mut refusals = Vec::new();
    for kernel in present {
        match choice.shape.and_then(|shape| cuda::unsupported_reason(kernel, shape)) {
            None => return Ok(kernel),
            Some(why) => refusals.push(why),
        }
    }
    Err(format!("GPUs cannot measure these windows: {}", refusals.join("; ")))
}

fn fastest_first(table: ElementType) -> &'static [Kernel] {
    match table {
        ElementType::F32 => &[Kernel::CudaF32],
        ElementType::Bf16 => &[Kernel::CudaV2Bf16, Kernel::CudaV1Bf16, Kernel::CudaF32],
        ElementType::Int16 => &[],
    }
}

fn lacking(gpus: &[Gpu], what: &str) -> String {
    let described: Vec<String> = gpus
        .iter()
        .map(|gpu| {
            let (major, minor) = gpu.compute_capability;
            format!("{} (compute capability {major}.{minor})", gpu.name)
        })
        .collect();
    format!("this build does not have {what} for all of {}", described.join(", "))
}

/// One GPU, opened when the table is loaded, so that planning uses none of its memory.
struct Cuda {
    name: String,
    ordinal: u32,
    kernel: Kernel,
    number_bytes: u64,
    total_bytes: u64,
    /// `None` if NVML does not know the GPU; CUDA then reports its memory.
    nvml: Option<NvmlGpu>,
    opened: RwLock<Option<cuda::CudaDevice<Nvidia>>>,
    /// Bytes of the pass of a whole model in progress, which another allocator holds.
    forwarding: AtomicU64,
}

impl Cuda {
    /// Runs `work` on the opened device; `None` before it is opened.
    fn with_device<T>(&self, work: impl FnOnce(&cuda::CudaDevice<Nvidia>) -> T) -> Option<T> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(work)
    }
}

impl Compute for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Rows of the table, if the device gathers from them.
    fn resident_bytes(&self, layer: &AttentionSpec, _: u64) -> u64 {
        let rows = layer.vocabulary_size * layer.row_width() * self.number_bytes;
        if layer.gathers_on_device() { rows } else { 0 }
    }

    fn load(&self, layer: &FirstLayer) -> Result<(), DeviceFailure> {
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        let device = if let Some(device) = opened.take() {
            opened.insert(device)
        } else {
            let driver = Nvidia::open(self.ordinal).map_err(failure)?;
            opened.insert(cuda::CudaDevice::new(driver, self.kernel))
        };
        if !layer.spec().gathers_on_device() {
            return Ok(());
        }
        device.load_table(layer.table().view(), layer.table().row_width()).map_err(failure)
    }

    fn window_bytes(&self, layer: &AttentionSpec, tokens: usize, key_heads: Range<usize>) -> u64 {
        let (shape, sizes) = layer.device_window(tokens);
        cuda::window_bytes(self.kernel, &shape, &sizes, &(0..key_heads.len()))
    }

    fn kept_bytes(&self) -> u64 {
        self.with_device(cuda::CudaDevice::kept_bytes).unwrap_or(0)
    }

    fn measure(
        &self,
        layer: &FirstLayer,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> Result<HeadSums, DeviceFailure> {
        layer.mark_ids_seen(&window.ids);
        let sample = window.sampled.as_ref().map(SampledRows::sample);
        let distance = window.distance as usize;
        let measured = self.with_device(|device| {
            let heads = key_heads;
            layer.with_operands(self.kernel, &window.ids, heads, |shape, rules, operands, heads| {
                let (sample, key_heads) = (sample.as_ref(), heads);
                let request = WindowRequest { shape, rules, distance, operands, sample, key_heads };
                device.measure(&request)
            })
        });
        measured.expect("the scheduler loads a device before it measures").map_err(failure)
    }

    fn forward(&self, pass: &ForwardPass<'_>) -> Result<ForwardResult, DeviceFailure> {
        self.forwarding.fetch_add(pass.bytes, SeqCst);
        let done = pass.run_on_gpu(self.ordinal);
        self.forwarding.fetch_sub(pass.bytes, SeqCst);
        done
    }
}

fn failure(failure: DeviceError) -> DeviceFailure {
    match failure {
        DeviceError::OutOfMemory { wanted, free } => DeviceFailure::OutOfMemory { wanted, free },
        DeviceError::Lost(why) => DeviceFailure::Lost(why),
        DeviceError::Other(why) => DeviceFailure::Failed(why),
    }
}

impl MemorySource for Cuda {
    fn read(&self) -> Result<Memory, String> {
        if let Some(gpu) = self.nvml {
            return gpu.memory();
        }
        match self.with_device(|device| device.driver().memory()) {
            Some(Ok((free, total))) => Ok(Memory { total, used: total.saturating_sub(free) }),
            Some(Err(why)) => Err(why.to_string()),
            None => Ok(Memory { total: self.total_bytes, used: 0 }),
        }
    }

    fn held(&self) -> u64 {
        let windows = self.with_device(|device| device.driver().held_bytes());
        windows.unwrap_or(0) + self.forwarding.load(SeqCst)
    }

    fn utilisation(&self) -> Option<u32> {
        self.nvml.and_then(|gpu| gpu.utilisation())
    }
}
