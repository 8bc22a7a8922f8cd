//! Measures the limits of a GPU, which the kernels' speed is compared with.

use std::ffi::c_void;

use cudarc::driver::result;
use longsift_kernels::Kernel;
use longsift_kernels::cuda::nvidia::{Gpu, Nvidia};
use longsift_kernels::cuda::{DeviceError, DeviceMemory, Driver};

use super::timing::{elapsed, failed, record_event, stream};

/// Rounds of each loop: a few milliseconds.
const ROUNDS: i32 = 20_000;
const THREADS: u32 = 256;
/// Operations per thread and round of the loops without matrices.
const CHAINS: f64 = 8.0;

/// Bytes with the alignment that the driver requires.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static LIMITS: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/limits.fatbin")));
static LIMITS_V2: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/limits_v2.fatbin")));

/// Operations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// Multiply-adds of bf16 on the tensor cores with `mma.sync`.
    pub(super) products: f64,
    /// Multiply-adds of bf16 with Hopper's own instruction; `None` on other chips.
    pub(super) group_products: Option<f64>,
    /// Exponentials of base 2 on the special function units.
    pub(super) exponentials: f64,
    /// Multiply-adds of float32.
    pub(super) multiply_adds: f64,
}

/// `LimitParameters` of `limits.cu`.
#[repr(C)]
struct Parameters {
    out: u64,
    rounds: i32,
    start: f32,
}

impl Limits {
    /// Returns the best of three runs of each loop.
    pub(super) fn measure(gpu: &Gpu, driver: &Nvidia) -> Result<Self, DeviceError> {
        // Enough blocks to fill the chip evenly many times.
        let blocks = gpu.multiprocessors * 32;
        let threads = f64::from(blocks) * f64::from(THREADS);
        let rate = |image, kernel, shared_bytes, operations: f64| {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                best = best.min(seconds(driver, image, kernel, blocks, shared_bytes)?);
            }
            Ok(operations * f64::from(ROUNDS) / best)
        };
        let plain = &LIMITS.0;
        // Eight products of 16×8×16 per round and warp; eight of 64×128×16 per round and warpgroup.
        let products = threads / 32.0 * CHAINS * (16.0 * 8.0 * 16.0);
        let group_products = threads / 128.0 * 8.0 * (64.0 * 128.0 * 16.0);
        let shared_bytes = (2 * 64 + 128) * 128;
        let group_products = (gpu.supports(Kernel::CudaV2Bf16) && !LIMITS_V2.0.is_empty())
            .then(|| rate(&LIMITS_V2.0, c"limit_group_products", shared_bytes, group_products));
        Ok(Self {
            products: rate(plain, c"limit_products", 0, products)?,
            group_products: group_products.transpose()?,
            exponentials: rate(plain, c"limit_exponentials", 0, threads * CHAINS)?,
            multiply_adds: rate(plain, c"limit_multiply_adds", 0, threads * CHAINS)?,
        })
    }
}

fn seconds(
    driver: &Nvidia,
    image: &[u8],
    kernel: &std::ffi::CStr,
    blocks: u32,
    shared_bytes: u32,
) -> Result<f64, DeviceError> {
    // Makes the device's context current on this thread.
    let out = driver.allocate(u64::from(blocks * THREADS * 4))?;
    let mut parameters = Parameters { out: out.address(), rounds: ROUNDS, start: 0.5 };
    let mut arguments: [*mut c_void; 1] = [(&raw mut parameters).cast()];
    // SAFETY: the image is a whole fat binary. Every thread writes one float of `out`, which lives until the launch has been
    // waited for; the call copies the parameters; the module is unloaded after that.
    unsafe {
        let module = result::module::load_data(image.as_ptr().cast()).map_err(failed)?;
        let function = result::module::get_function(module, kernel.to_owned()).map_err(failed)?;
        let start = record_event()?;
        let (blocks, threads) = ((blocks, 1, 1), (THREADS, 1, 1));
        let launched = result::launch_kernel(
            function,
            blocks,
            threads,
            shared_bytes,
            stream(),
            &mut arguments,
        );
        launched.map_err(failed)?;
        let milliseconds = elapsed(start, record_event()?)?;
        result::module::unload(module).map_err(failed)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}
