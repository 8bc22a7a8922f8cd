//! The driver of real GPUs. The CUDA library is loaded when it is first asked for; a machine without one has no GPU.
//!
//! Each thread has a stream of its own (CUDA's per-thread default stream), so windows of several threads overlap. Memory
//! is taken and given back per window: what another process sees as free is free.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use super::driver::{DeviceMemory, Driver, Failure, Launch, TensorMapRequest};
use super::parameters::TensorMap;
use crate::kernel::Kernel;

/// An image that the driver may read as words.
#[repr(C, align(64))]
struct Image<T: ?Sized>(T);

macro_rules! image {
    ($name:literal) => {{
        static IMAGE: &Image<[u8]> =
            &Image(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")));
        &IMAGE.0
    }};
}

/// A GPU of this machine, as the CUDA library shows it: `CUDA_VISIBLE_DEVICES` is honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number among the visible ones.
    pub ordinal: u32,
    /// `NVIDIA H200`.
    pub name: String,
    /// `GPU-…`, as NVML has it.
    pub uuid: String,
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// How many blocks of threads it works on side by side.
    pub multiprocessors: u32,
}

impl Gpu {
    /// Whether this build has the kernel for this GPU.
    pub fn has(&self, kernel: Kernel) -> bool {
        match kernel {
            Kernel::CudaF32 | Kernel::CudaV1Bf16 | Kernel::CudaV1F16 => {
                self.compute_capability >= (8, 0)
            }
            Kernel::CudaV2Bf16 => {
                self.compute_capability == (9, 0) && !image!("attention_v2").is_empty()
            }
            _ => false,
        }
    }
}

/// The GPUs there are; an error says why there are none.
pub fn gpus() -> Result<Vec<Gpu>, String> {
    start()?;
    let failed =
        |error: DriverError| format!("the NVIDIA driver does not list its GPUs: {}", said(error));
    let count = result::device::get_count().map_err(failed)?;
    (0..count).map(|ordinal| describe(ordinal).map_err(failed)).collect()
}

/// Asks once whether there is a CUDA library, and starts it.
fn start() -> Result<(), String> {
    static STARTED: OnceLock<Result<(), String>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // SAFETY: looks for a library of the NVIDIA driver; loading it runs its own start-up code, as for every program
        // that is linked with it.
        if !unsafe { sys::is_culib_present() } {
            return Err("no NVIDIA driver was found: there is no libcuda.so.1".to_owned());
        }
        result::init().map_err(|error| format!("the NVIDIA driver does not start: {}", said(error)))
    });
    started.clone()
}

fn describe(ordinal: c_int) -> Result<Gpu, DriverError> {
    let device = result::device::get(ordinal)?;
    // SAFETY: the device comes from the call above.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let positive = |value: i32| u32::try_from(value).unwrap_or(0);
    Ok(Gpu {
        ordinal: positive(ordinal),
        name: result::device::get_name(device)?,
        uuid: uuid_text(result::device::get_uuid(device)?.bytes.map(|byte| byte as u8)),
        // SAFETY: as above.
        total_bytes: unsafe { result::device::total_mem(device)? } as u64,
        compute_capability: (
            positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?),
            positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?),
        ),
        multiprocessors: positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?),
    })
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| hex[range].concat();
    format!("GPU-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
}

fn said(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

/// An opened GPU.
pub struct Nvidia {
    context: Arc<Context>,
    modules: Vec<Module>,
    functions: Mutex<HashMap<String, Function>>,
    timing: Mutex<Option<Timing>>,
}

/// What was launched while a GPU was timed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timed {
    /// Each launch: the kernel's name and what it took on the device's own clock.
    pub milliseconds: Vec<(String, f32)>,
    /// The fewest bytes that were free after an allocation.
    pub lowest_free: Option<u64>,
}

#[derive(Default)]
struct Timing {
    launches: Vec<(String, sys::CUevent, sys::CUevent)>,
    lowest_free: Option<u64>,
}
// SAFETY: events are handles that any thread may use while their context lives.
unsafe impl Send for Timing {}

/// A device's primary context, retained.
struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    /// Bytes of memory taken and not given back.
    held: AtomicU64,
}

// SAFETY: CUDA contexts may be made current on any thread, several at a time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn enter(&self) -> Result<(), Failure> {
        // SAFETY: the context is retained until this value is dropped.
        unsafe { result::ctx::set_current(self.handle) }.map_err(|error| failure("enter", error))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. An error has nobody to be told to.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

struct Module(sys::CUmodule);
// SAFETY: modules and functions are handles that any thread may use while their context lives.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

#[derive(Clone, Copy)]
struct Function {
    function: sys::CUfunction,
    shared_bytes: u32,
}
// SAFETY: as for modules.
unsafe impl Send for Function {}

impl Nvidia {
    /// Opens the visible GPU number `ordinal` and loads the kernels.
    pub fn open(ordinal: u32) -> Result<Self, Failure> {
        start().map_err(Failure::Lost)?;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let device = result::device::get(ordinal).map_err(|error| failure("open", error))?;
        // SAFETY: the device comes from the call above; the context is released on drop.
        let handle = unsafe { result::primary_ctx::retain(device) }
            .map_err(|error| failure("open", error))?;
        let context = Arc::new(Context { device, handle, held: AtomicU64::new(0) });
        context.enter()?;
        let images = [
            image!("attention_f32"),
            image!("attention_v1"),
            image!("gather_rope"),
            image!("limits"),
        ];
        let mut modules = Vec::new();
        for image in images {
            modules.push(load(image)?);
        }
        if describe(ordinal).is_ok_and(|gpu| gpu.has(Kernel::CudaV2Bf16)) {
            modules.push(load(image!("attention_v2"))?);
            modules.push(load(image!("limits_v2"))?);
        }
        Ok(Self { context, modules, functions: Mutex::default(), timing: Mutex::default() })
    }

    /// Free and total bytes of its memory, now.
    pub fn memory(&self) -> Result<(u64, u64), Failure> {
        self.context.enter()?;
        let (free, total) =
            result::mem_get_info().map_err(|error| failure("ask for free memory", error))?;
        Ok((free as u64, total as u64))
    }

    /// Bytes of its memory that were taken here and not given back.
    pub fn held_bytes(&self) -> u64 {
        self.context.held.load(Ordering::Relaxed)
    }

    /// From now on every launch is timed, and free memory is read after every allocation; what was timed so far is
    /// forgotten.
    pub fn start_timing(&self) {
        *self.timing() = Some(Timing::default());
    }

    /// What was launched since [`Nvidia::start_timing`], and ends it.
    pub fn timed(&self) -> Result<Timed, Failure> {
        self.context.enter()?;
        let Timing { launches, lowest_free } = self.timing().take().unwrap_or_default();
        let mut milliseconds = Vec::new();
        for (kernel, start, end) in launches {
            let failed = |error| failure("time a launch", error);
            // SAFETY: both events were recorded in this context; each is destroyed once, after its last use.
            unsafe {
                result::event::synchronize(end).map_err(failed)?;
                milliseconds.push((kernel, result::event::elapsed(start, end).map_err(failed)?));
                result::event::destroy(start).map_err(failed)?;
                result::event::destroy(end).map_err(failed)?;
            }
        }
        Ok(Timed { milliseconds, lowest_free })
    }

    fn timing(&self) -> MutexGuard<'_, Option<Timing>> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event where launches are timed.
    fn event(&self) -> Result<Option<sys::CUevent>, Failure> {
        if self.timing().is_none() {
            return Ok(None);
        }
        let failed = |error| failure("time a launch", error);
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed)?;
        // SAFETY: the event was created in the current context.
        unsafe { result::event::record(event, stream()) }.map_err(failed)?;
        Ok(Some(event))
    }

    /// The kernel of a launch, with leave to use as much shared memory as it asks for.
    fn function(&self, launch: &Launch<'_>) -> Result<sys::CUfunction, Failure> {
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
            .map_err(|error| failure("give a kernel its shared memory", error))?;
            function.shared_bytes = launch.shared_bytes;
        }
        functions.insert(launch.kernel.to_owned(), function);
        Ok(function.function)
    }

    fn find(&self, name: &str) -> Result<sys::CUfunction, Failure> {
        let text = CString::new(name).expect("names of kernels have no zero byte");
        self.modules
            .iter()
            // SAFETY: modules of the current context.
            .find_map(|module| unsafe { result::module::get_function(module.0, text.clone()) }.ok())
            .ok_or_else(|| {
                Failure::Other(format!("this build has no kernel `{name}` for this GPU"))
            })
    }
}

fn load(image: &'static [u8]) -> Result<Module, Failure> {
    // SAFETY: the image is a whole fat binary that nvcc wrote.
    unsafe { result::module::load_data(image.as_ptr().cast()) }.map(Module).map_err(|error| {
        if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return failure("load the kernels", error);
        }
        let hint = match error.0 {
            sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                "; update the driver, or build with its CUDA release and LONGSIFT_CUDA_ARCHITECTURES for this GPU"
            }
            _ => "",
        };
        Failure::Lost(format!("the GPU does not load the kernels: {}{hint}", said(error)))
    })
}

/// The calling thread's own stream: `CU_STREAM_PER_THREAD`.
fn stream() -> sys::CUstream {
    std::ptr::without_provenance_mut(2)
}

/// A GPU whose context was lost to a fault answers every later call with the same error. The driver needs memory of its own
/// for contexts and code, and does not say how much: nothing is `wanted` then.
fn failure(doing: &str, error: DriverError) -> Failure {
    use sys::CUresult as Code;
    let text = format!("could not {doing}: {}", said(error));
    match error.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => {
            let free = result::mem_get_info().map_or(0, |(free, _)| free as u64);
            Failure::OutOfMemory { wanted: 0, free }
        }
        Code::CUDA_ERROR_INVALID_VALUE
        | Code::CUDA_ERROR_NOT_FOUND
        | Code::CUDA_ERROR_NOT_SUPPORTED
        | Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => Failure::Other(text),
        _ => Failure::Lost(text),
    }
}

/// Memory of a GPU.
pub struct NvidiaMemory {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: u64,
}

impl DeviceMemory for NvidiaMemory {
    fn address(&self) -> u64 {
        self.address
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl NvidiaMemory {
    fn place(&self, offset: u64, length: usize) -> sys::CUdeviceptr {
        let end = offset.checked_add(length as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "bytes {offset}+{length} of {}",
            self.bytes
        );
        self.address + offset
    }
}

impl Drop for NvidiaMemory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: this thread's launches, the only ones that may use the memory, are waited for; it is freed once.
            // Errors have nobody to be told to: the next call meets them again.
            unsafe {
                let _ = result::stream::synchronize(stream());
                let _ = result::free_sync(self.address);
            }
            self.context.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Driver for Nvidia {
    type Memory = NvidiaMemory;

    fn allocate(&self, bytes: u64) -> Result<NvidiaMemory, Failure> {
        self.context.enter()?;
        // SAFETY: the memory is not read before it was written.
        match unsafe { result::malloc_sync(usize::try_from(bytes.max(1)).unwrap_or(usize::MAX)) } {
            Ok(address) => {
                self.context.held.fetch_add(bytes, Ordering::Relaxed);
                if let Some(timing) = &mut *self.timing() {
                    let free = result::mem_get_info().map_or(u64::MAX, |(free, _)| free as u64);
                    timing.lowest_free = Some(timing.lowest_free.unwrap_or(u64::MAX).min(free));
                }
                Ok(NvidiaMemory { context: Arc::clone(&self.context), address, bytes })
            }
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(Failure::OutOfMemory {
                    wanted: bytes,
                    free: self.memory().map_or(0, |(free, _)| free),
                })
            }
            Err(error) => Err(failure("take memory", error)),
        }
    }

    fn write(&self, memory: &NvidiaMemory, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.context.enter()?;
        let to = memory.place(offset, bytes.len());
        // SAFETY: `place` checked the bounds; from pageable memory the call returns when the bytes have been read.
        unsafe { result::memcpy_htod_async(to, bytes, stream()) }
            .map_err(|error| failure("write memory", error))
    }

    fn read(&self, memory: &NvidiaMemory, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        self.context.enter()?;
        let from = memory.place(offset, bytes.len());
        // SAFETY: `place` checked the bounds; the bytes are borrowed until the copy is done.
        unsafe { result::memcpy_dtoh_async(bytes, from, stream()) }
            .map_err(|error| failure("read memory", error))?;
        self.wait()
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), Failure> {
        self.context.enter()?;
        let function = self.function(launch)?;
        let start = self.event()?;
        let parameters: *const u8 = launch.parameters.as_ptr();
        let mut parameters: [*mut c_void; 1] = [parameters.cast_mut().cast()];
        // SAFETY: the caller vouches for the parameters, which the call copies.
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
        .map_err(|error| failure(&format!("launch `{}`", launch.kernel), error))?;
        let (Some(start), Some(end)) = (start, self.event()?) else { return Ok(()) };
        if let Some(timing) = &mut *self.timing() {
            timing.launches.push((launch.kernel.to_owned(), start, end));
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), Failure> {
        self.context.enter()?;
        // SAFETY: the stream of this thread exists as long as the context.
        unsafe { result::stream::synchronize(stream()) }
            .map_err(|error| failure("finish a window", error))
    }

    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap, Failure> {
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
        assert_eq!(uuid_text(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn gpus_open_and_a_machine_without_a_driver_says_so_and_goes_on() {
        match gpus() {
            Ok(gpus) => assert!(gpus.iter().all(|gpu| Nvidia::open(gpu.ordinal).is_ok())),
            Err(reason) => {
                assert!(reason.contains("NVIDIA driver"), "{reason}");
                assert!(matches!(Nvidia::open(0), Err(Failure::Lost(_))));
            }
        }
    }
}
