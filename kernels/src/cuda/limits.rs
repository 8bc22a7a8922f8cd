//! What a GPU can do at most, measured: what the speed of the kernels is held against.

use bytemuck::{Pod, Zeroable};

use super::driver::{DeviceMemory, Driver, Failure, Launch};
use super::nvidia::{Gpu, Nvidia};
use crate::kernel::Kernel;

/// Rounds of each loop: a few milliseconds.
const ROUNDS: i32 = 20_000;
const THREADS: u32 = 256;
/// Operations of a thread in a round of the loops that have no matrices.
const CHAINS: f64 = 8.0;

/// Operations a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Multiply-adds of bf16 on the tensor cores with `mma.sync`.
    pub products: f64,
    /// The same with Hopper's own instruction; `None` on other chips.
    pub group_products: Option<f64>,
    /// Exponentials of base 2 on the special function units.
    pub exponentials: f64,
    /// Multiply-adds of float32.
    pub multiply_adds: f64,
}

/// `LimitParameters` of `limits.cu`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Parameters {
    out: u64,
    rounds: i32,
    start: f32,
}

impl Limits {
    /// The best of three runs each.
    pub fn measure(gpu: &Gpu, driver: &Nvidia) -> Result<Self, Failure> {
        // Blocks enough to fill the chip many times over, evenly.
        let blocks = gpu.multiprocessors * 32;
        let threads = f64::from(blocks) * f64::from(THREADS);
        let rate = |kernel, shared_bytes, operations: f64| {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                best = best.min(seconds(driver, kernel, blocks, shared_bytes)?);
            }
            Ok(operations * f64::from(ROUNDS) / best)
        };
        // Eight products of 16×8×16 a round and warp; eight of 64×128×16 a round and warpgroup.
        let products = threads / 32.0 * CHAINS * (16.0 * 8.0 * 16.0);
        let group_products = threads / 128.0 * 8.0 * (64.0 * 128.0 * 16.0);
        let group_products = gpu
            .has(Kernel::CudaV2Bf16)
            .then(|| rate("limit_group_products", (2 * 64 + 128) * 128, group_products));
        Ok(Self {
            products: rate("limit_products", 0, products)?,
            group_products: group_products.transpose()?,
            exponentials: rate("limit_exponentials", 0, threads * CHAINS)?,
            multiply_adds: rate("limit_multiply_adds", 0, threads * CHAINS)?,
        })
    }
}

fn seconds(driver: &Nvidia, kernel: &str, blocks: u32, shared_bytes: u32) -> Result<f64, Failure> {
    let out = driver.allocate(u64::from(blocks * THREADS * 4))?;
    let parameters = Parameters { out: out.address(), rounds: ROUNDS, start: 0.5 };
    let launch = Launch {
        kernel,
        blocks,
        threads: THREADS,
        shared_bytes,
        parameters: bytemuck::bytes_of(&parameters),
    };
    driver.start_timing();
    // SAFETY: every thread writes one float of `out`, which lives until the launch has been waited for.
    unsafe { driver.launch(&launch)? };
    driver.wait()?;
    let timed = driver.timed()?;
    Ok(timed.milliseconds.iter().map(|(_, time)| f64::from(*time)).sum::<f64>() / 1e3)
}
