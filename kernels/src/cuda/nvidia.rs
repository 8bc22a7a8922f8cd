//! Driver of real GPUs. The CUDA library is loaded on first use; a machine without it has no GPU.
//!
//! Each thread has its own stream (CUDA's per-thread default stream), so windows of several threads overlap. A thread that waits
//! for the GPU sleeps.

mod context;
mod images;
mod memory;

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use super::driver::{DeviceError, Driver, Launch, TensorMapRequest};
use super::parameters::TensorMap;
use crate::kernel::Kernel;

use context::{Context, error_text, failure, stream};
use images::{IMAGES, Module};
pub use memory::{NvidiaMemory, PinnedMemory};

/// A GPU of this machine, as the CUDA library shows it: `CUDA_VISIBLE_DEVICES` is honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Index among the visible GPUs.
    pub ordinal: u32,
    /// `NVIDIA H200`.
    pub name: String,
    /// `GPU-…`, as in NVML.
    pub uuid: String,
    pub total_bytes: u64,
    /// Major and minor version.
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
}

impl Gpu {
    /// Whether this build has the kernel for this GPU.
    pub fn supports(&self, kernel: Kernel) -> bool {
        match kernel {
            Kernel::CudaF32 | Kernel::CudaV1Bf16 => self.compute_capability >= (8, 0),
            Kernel::CudaV2Bf16 => {
                self.compute_capability == (9, 0) && images::is_built("attention_v2")
            }
            Kernel::CudaV3Bf16 => {
                self.compute_capability == (9, 0) && images::is_built("attention_v3")
            }
            _ => false,
        }
    }
}

/// Lists the visible GPUs, or returns the reason why no GPU can be used.
pub fn gpus() -> Result<Vec<Gpu>, String> {
    start()?;
    let failed = |error: DriverError| {
        format!("the NVIDIA driver cannot list its GPUs: {}", error_text(error))
    };
    let count = result::device::get_count().map_err(failed)?;
    (0..count).map(|ordinal| describe(ordinal).map_err(failed)).collect()
}

/// Loads and initialises the CUDA library once.
fn start() -> Result<(), String> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // SAFETY: looks for a library of the NVIDIA driver; loading it runs its own start-up code, as for every program
        // that is linked with it.
        #[cfg(not(feature = "cuda-linked"))]
        if !unsafe { sys::is_culib_present() } {
            return Err("no NVIDIA driver was found: libcuda.so.1 is missing".to_owned());
        }
        result::init().map_err(|error| {
            format!("the NVIDIA driver cannot be initialised: {}", error_text(error))
        })
    });
    started.clone()
}

fn describe(ordinal: c_int) -> Result<Gpu, DriverError> {
    let device = result::device::get(ordinal)?;
    // SAFETY: the device comes from the call above.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let positive = |value: i32| u32::try_from(value).unwrap_or(0);
    let name = result::device::get_name(device)?;
    let mut uuid = MaybeUninit::uninit();
    // SAFETY: the device comes from the call above; if the call succeeds, it has written a UUID. The second version of
    // the call distinguishes the parts of a divided GPU (MIG), for which the first returns the same answer.
    let uuid = unsafe {
        sys::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device).result()?;
        uuid.assume_init()
    };
    Ok(Gpu {
        ordinal: positive(ordinal),
        uuid: uuid_text(&name, uuid.bytes.map(|byte| byte as u8)),
        name,
        // SAFETY: as above.
        total_bytes: unsafe { result::device::total_mem(device)? } as u64,
        compute_capability: (
            positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?),
            positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?),
        ),
        multiprocessors: positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?),
    })
}

/// Formats a UUID as NVML does: `MIG-…` for a part of a divided GPU, which its name shows.
fn uuid_text(name: &str, bytes: [u8; 16]) -> String {
    let kind = if name.contains(" MIG ") { "MIG" } else { "GPU" };
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| hex[range].concat();
    format!("{kind}-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
}

pub struct Nvidia {
    functions: Mutex<HashMap<String, Function>>,
    modules: Vec<Module>,
    context: Arc<Context>,
}

#[derive(Clone, Copy)]
struct Function {
    function: sys::CUfunction,
    shared_bytes: u32,
}
// SAFETY: functions are handles that any thread may use while their module is loaded.
unsafe impl Send for Function {}

impl Nvidia {
    /// Opens the visible GPU number `ordinal` and loads the kernels.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        Self::open_with(ordinal, None)
    }

    /// Opens a GPU like [`Nvidia::open`], but takes `NAME.fatbin` from `folder`, if it exists, instead of the built-in image: for
    /// experiments with kernels on a machine without Rust. Their results are not those of the named kernels.
    pub fn open_with(ordinal: u32, folder: Option<&Path>) -> Result<Self, DeviceError> {
        start().map_err(DeviceError::Lost)?;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let device = result::device::get(ordinal).map_err(|error| failure("open", error))?;
        let context = Arc::new(Context::retain(device)?);
        context.enter()?;
        let hopper = describe(ordinal).is_ok_and(|gpu| gpu.compute_capability == (9, 0));
        let mut modules = Vec::new();
        for image in IMAGES.iter().filter(|image| hopper || !image.hopper) {
            modules.extend(image.load(&context, folder)?);
        }
        Ok(Self { functions: Mutex::default(), modules, context })
    }

    /// Returns the current free and total bytes of memory.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.context.enter()?;
        let (free, total) =
            result::mem_get_info().map_err(|error| failure("query free memory", error))?;
        Ok((free as u64, total as u64))
    }

    /// Returns the bytes of memory that this process holds.
    pub fn held_bytes(&self) -> u64 {
        self.context.held.load(Ordering::Relaxed)
    }

    /// Returns the kernel of a launch, permitted to use as much shared memory as it requests.
    fn function(&self, launch: &Launch<'_>) -> Result<sys::CUfunction, DeviceError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = functions.get(launch.kernel).copied();
        let mut function = match known {
            Some(function) => function,
            None => Function { function: self.find(launch.kernel)?, shared_bytes: 48 << 10 },
        };
        if launch.shared_bytes > function.shared_bytes {
            let attribute =
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = c_int::try_from(launch.shared_bytes).unwrap_or(c_int::MAX);
            // SAFETY: the function belongs to a module of the current context.
            unsafe {
                result::function::set_function_attribute(function.function, attribute, bytes)
            }
            .map_err(|error| failure("reserve shared memory for a kernel", error))?;
            function.shared_bytes = launch.shared_bytes;
        }
        functions.insert(launch.kernel.to_owned(), function);
        Ok(function.function)
    }

    fn find(&self, name: &str) -> Result<sys::CUfunction, DeviceError> {
        let text = CString::new(name).expect("names of kernels have no zero byte");
        self.modules
            .iter()
            .find_map(|module| {
                // SAFETY: modules of the current context.
                unsafe { result::module::get_function(module.handle(), text.clone()) }.ok()
            })
            .ok_or_else(|| {
                DeviceError::Other(format!("this build has no kernel `{name}` for this GPU"))
            })
    }
}

impl Driver for Nvidia {
    type Memory = NvidiaMemory;
    type Staging = PinnedMemory;

    fn allocate(&self, bytes: u64) -> Result<NvidiaMemory, DeviceError> {
        self.context.enter()?;
        // SAFETY: the memory is not read before it was written.
        match unsafe { result::malloc_sync(usize::try_from(bytes.max(1)).unwrap_or(usize::MAX)) } {
            Ok(address) => Ok(NvidiaMemory::new(&self.context, address, bytes)),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(DeviceError::OutOfMemory {
                    wanted: bytes,
                    free: self.memory().map_or(0, |(free, _)| free),
                })
            }
            Err(error) => Err(failure("take memory", error)),
        }
    }

    fn write(&self, memory: &NvidiaMemory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.context.enter()?;
        let to = memory.address_of(offset, bytes.len());
        // SAFETY: `address_of` checked the bounds; from pageable memory the call returns when the bytes have been read.
        unsafe { result::memcpy_htod_async(to, bytes, stream()) }
            .map_err(|error| failure("write memory", error))
    }

    fn stage(&self, bytes: usize) -> Result<PinnedMemory, DeviceError> {
        self.context.enter()?;
        PinnedMemory::new(&self.context, bytes)
            .map_err(|error| failure("allocate pinned memory", error))
    }

    unsafe fn send(
        &self,
        memory: &NvidiaMemory,
        offset: u64,
        staged: &[u8],
    ) -> Result<(), DeviceError> {
        self.context.enter()?;
        let to = memory.address_of(offset, staged.len());
        // SAFETY: `address_of` checked the bounds; the caller does not access the bytes until they have been read.
        unsafe { result::memcpy_htod_async(to, staged, stream()) }
            .map_err(|error| failure("write memory", error))
    }

    unsafe fn receive(
        &self,
        memory: &NvidiaMemory,
        offset: u64,
        staged: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.context.enter()?;
        let from = memory.address_of(offset, staged.len());
        // SAFETY: `address_of` checked the bounds; the caller does not access the bytes until they have been written.
        unsafe { result::memcpy_dtoh_async(staged, from, stream()) }
            .map_err(|error| failure("read memory", error))
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        self.context.enter()?;
        let function = self.function(launch)?;
        let parameters: *const u8 = launch.parameters.as_ptr();
        let mut parameters: [*mut c_void; 1] = [parameters.cast_mut().cast()];
        // SAFETY: the caller guarantees the parameters, which the call copies.
        unsafe {
            result::launch_kernel(
                function,
                (launch.blocks, 1, 1),
                (launch.threads, 1, 1),
                launch.shared_bytes,
                stream(),
                &mut parameters,
            )
        }
        .map_err(|error| failure(&format!("launch `{}`", launch.kernel), error))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: the stream of this thread exists as long as the context.
        unsafe { result::stream::synchronize(stream()) }
            .map_err(|error| failure("finish a window", error))
    }

    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap, DeviceError> {
        self.context.enter()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let row_bytes = request.numbers * 2;
        let (sizes, strides) =
            ([request.numbers, request.rows, request.heads], [row_bytes, row_bytes * request.rows]);
        let (boxes, steps) = ([64_u32, 128, 1], [1_u32; 3]);
        // SAFETY: every array has the rank's length; strides leave out the innermost dimension.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                sys::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                3,
                request.address as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        code.result().map_err(|error| failure("describe a tensor", error))?;
        Ok(TensorMap(map.opaque))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes = std::array::from_fn(|index| index as u8 * 17);
        let text = |name| uuid_text(name, bytes);
        assert_eq!(text("NVIDIA H200"), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        let part = text("NVIDIA H100 80GB HBM3 MIG 1g.10gb");
        assert_eq!(part, "MIG-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn a_machine_without_a_driver_reports_an_error() {
        match gpus() {
            Ok(gpus) => assert!(gpus.iter().all(|gpu| Nvidia::open(gpu.ordinal).is_ok())),
            Err(reason) => {
                assert!(reason.contains("NVIDIA driver"), "{reason}");
                assert!(matches!(Nvidia::open(0), Err(DeviceError::Lost(_))));
            }
        }
    }
}
