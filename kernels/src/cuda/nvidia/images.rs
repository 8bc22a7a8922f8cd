//! The fat binaries that nvcc made of `cuda/device/`, and loading them.

use std::path::Path;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::super::driver::DeviceError;
use super::context::{Context, error_text, failure};

/// Bytes with the alignment that the driver requires.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// One file of device code.
pub(super) struct Image {
    name: &'static str,
    /// Whether it runs only on Hopper.
    pub(super) hopper: bool,
    /// Fat binary; empty if the build excludes its chips.
    bytes: &'static [u8],
}

macro_rules! image {
    ($name:literal, $hopper:literal) => {{
        static IMAGE: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")));
        Image { name: $name, hopper: $hopper, bytes: &IMAGE.0 }
    }};
}

pub(super) static IMAGES: [Image; 5] = [
    image!("attention_f32", false),
    image!("attention_v1", false),
    image!("gather_rope", false),
    image!("attention_v2", true),
    image!("attention_v3", true),
];

/// Whether this build has the file.
pub(super) fn is_built(name: &str) -> bool {
    IMAGES.iter().any(|image| image.name == name && !image.bytes.is_empty())
}

impl Image {
    /// Loads the image, or `NAME.fatbin` of `folder` if it exists; `None` if both are missing.
    pub(super) fn load(
        &self,
        context: &Arc<Context>,
        folder: Option<&Path>,
    ) -> Result<Option<Module>, DeviceError> {
        let path = folder.map(|folder| folder.join(self.name).with_extension("fatbin"));
        if let Some(path) = path.filter(|path| path.exists()) {
            let read = std::fs::read(&path);
            let bytes = read.map_err(|error| {
                DeviceError::Other(format!("cannot read {}: {error}", path.display()))
            })?;
            // The driver reads words.
            let mut words = vec![0_u64; bytes.len().div_ceil(8)];
            bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(&bytes);
            let image: &[u8] = bytemuck::cast_slice(&words);
            return Module::load(context, image)
                .map(Some)
                .map_err(|error| refused(error, &format!(" of {}", path.display())));
        }
        if self.bytes.is_empty() {
            return Ok(None);
        }
        Module::load(context, self.bytes).map(Some).map_err(|error| refused(error, ""))
    }
}

fn refused(error: DriverError, whose: &str) -> DeviceError {
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
    DeviceError::Lost(format!(
        "the GPU cannot load the kernels{whose}: {}{hint}",
        error_text(error)
    ))
}

/// Loaded device code.
pub(super) struct Module {
    handle: sys::CUmodule,
    context: Arc<Context>,
}
// SAFETY: modules are handles that any thread may use while their context lives.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self, DriverError> {
        // SAFETY: the image is a whole fat binary, which contains its own length; the driver refuses anything else.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    pub(super) fn handle(&self) -> sys::CUmodule {
        self.handle
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the module was loaded once, and every launch of its kernels is waited for before the driver is
            // dropped. Errors on drop cannot be reported.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}
