//! Interface of a device, so that a GPU and its emulation are interchangeable.

use super::parameters::TensorMap;

/// A failed device operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Device memory did not suffice; the device still works.
    #[error("out of device memory: requested {wanted} bytes, {free} free")]
    OutOfMemory {
        /// Requested bytes.
        wanted: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The device is lost or unreliable, for example after a fault in a kernel.
    #[error("{0}")]
    Lost(String),
    /// This request failed; others may succeed.
    #[error("{0}")]
    Other(String),
}

/// Memory of a device. Dropping it waits for the calling thread's launches and frees it.
pub trait DeviceMemory: Send + Sync {
    /// Address of the first byte on the device; a multiple of 256.
    fn address(&self) -> u64;
    fn bytes(&self) -> u64;
}

/// One launch of a kernel. Blocks and threads are counted in one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    pub kernel: &'a str,
    pub blocks: u32,
    pub threads: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// The structure that the kernel takes.
    pub parameters: &'a [u8],
}

/// A tensor `[heads, rows, numbers]` of 16-bit numbers, to be copied in boxes of 1 × 128 × 64 with the 128-byte swizzle.
/// Numbers outside read as zero.
#[derive(Clone, Copy, Debug)]
pub struct TensorMapRequest {
    /// Address of the first number; a multiple of 16.
    pub address: u64,
    /// Numbers of a row; a multiple of 8.
    pub numbers: u64,
    pub rows: u64,
    pub heads: u64,
}

/// A GPU or its emulation. Calls of one thread take effect in order; calls of several threads may overlap.
pub trait Driver: Send + Sync {
    type Memory: DeviceMemory;

    /// Memory of the host that the device reads and writes directly, freed on drop.
    type Staging: AsMut<[u8]> + Send;

    /// Allocates memory, uninitialised.
    fn allocate(&self, bytes: u64) -> Result<Self::Memory, DeviceError>;

    /// Copies to the device. The bytes may be changed as soon as this returns; launches of other threads see them after
    /// [`Driver::wait`].
    ///
    /// # Panics
    /// If the range is not inside the memory.
    fn write(&self, memory: &Self::Memory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Allocates staging memory.
    fn stage(&self, bytes: usize) -> Result<Self::Staging, DeviceError>;

    /// Starts copying staged bytes to the device, before this thread's later launches.
    ///
    /// # Safety
    /// The bytes must not change until the next [`Driver::wait`] returns or the memory is dropped.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    unsafe fn send(
        &self,
        memory: &Self::Memory,
        offset: u64,
        staged: &[u8],
    ) -> Result<(), DeviceError>;

    /// Starts copying from the device to staged bytes, after this thread's earlier launches.
    ///
    /// # Safety
    /// The bytes must not be read or written until the next [`Driver::wait`] returns or the memory is dropped.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    unsafe fn receive(
        &self,
        memory: &Self::Memory,
        offset: u64,
        staged: &mut [u8],
    ) -> Result<(), DeviceError>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// The parameters are those of the kernel, and every address in them is of memory of this device that lives, and
    /// holds as much as the kernel reads or writes there, until the next [`Driver::wait`] returns.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError>;

    /// Waits for all launches of this thread.
    fn wait(&self) -> Result<(), DeviceError>;

    /// Describes a tensor to the bulk copy engine.
    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap, DeviceError>;
}
