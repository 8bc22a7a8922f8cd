//! A device's context, the stream of each thread, and classification of the driver's errors.

use std::sync::atomic::AtomicU64;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::super::driver::DeviceError;

/// A device's primary context, retained.
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    /// Bytes of allocated memory.
    pub(super) held: AtomicU64,
}

// SAFETY: CUDA contexts may be made current on any thread, several at a time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub(super) fn retain(device: sys::CUdevice) -> Result<Self, DeviceError> {
        // SAFETY: the driver returned the device. An error means that the context is already in use and keeps its own
        // wait mode, which is fine.
        let _ = unsafe {
            let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as u32;
            sys::cuDevicePrimaryCtxSetFlags_v2(device, flags)
        };
        // SAFETY: as above; the context is released on drop.
        let handle = unsafe { result::primary_ctx::retain(device) }
            .map_err(|error| failure("open", error))?;
        Ok(Self { device, handle, held: AtomicU64::new(0) })
    }

    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained until this value is dropped.
        unsafe { result::ctx::set_current(self.handle) }.map_err(|error| failure("enter", error))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. Errors on drop cannot be reported.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

pub(super) fn error_text(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

/// Returns the calling thread's own stream: `CU_STREAM_PER_THREAD`.
pub(super) fn stream() -> sys::CUstream {
    std::ptr::without_provenance_mut(2)
}

/// Classifies an error. A GPU whose context was lost to a fault returns the same error for every later call. The driver needs
/// memory for contexts and code and does not report how much: `wanted` is 0 then.
pub(super) fn failure(doing: &str, error: DriverError) -> DeviceError {
    use sys::CUresult as Code;
    let text = format!("could not {doing}: {}", error_text(error));
    match error.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => {
            let free = result::mem_get_info().map_or(0, |(free, _)| free as u64);
            DeviceError::OutOfMemory { wanted: 0, free }
        }
        Code::CUDA_ERROR_INVALID_VALUE
        | Code::CUDA_ERROR_NOT_FOUND
        | Code::CUDA_ERROR_NOT_SUPPORTED
        | Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => DeviceError::Other(text),
        _ => DeviceError::Lost(text),
    }
}
