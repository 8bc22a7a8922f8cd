//! What a device is asked for, so that a GPU and its emulation are interchangeable.

use super::parameters::TensorMap;

/// Why a device did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its memory did not suffice. The device is well.
    #[error("out of device memory: {wanted} bytes wanted, {free} free")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free when the answer came.
        free: u64,
    },
    /// It is gone for good, or nothing it does can be trusted any more: fallen off the bus, a fault in a kernel.
    #[error("{0}")]
    Lost(String),
    /// This was refused or went wrong; something else may go well.
    #[error("{0}")]
    Other(String),
}

/// Memory of a device. Dropping it waits for what the calling thread has launched and gives it back.
pub trait DeviceMemory: Send + Sync {
    /// Its first byte, as kernels see it; a multiple of 256.
    fn address(&self) -> u64;
    /// Its size.
    fn bytes(&self) -> u64;
}

/// One launch of a kernel. Blocks and threads are counted in one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// Blocks of threads.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// The one structure that the kernel takes.
    pub parameters: &'a [u8],
}

/// A tensor `[heads, rows, numbers]` of 16-bit numbers, to be copied in boxes of 1 × 128 × 64 with the 128-byte swizzle.
/// What lies outside reads as zero.
#[derive(Clone, Copy, Debug)]
pub struct TensorMapRequest {
    /// Of the first number; a multiple of 16.
    pub address: u64,
    /// Numbers of a row; a multiple of 8.
    pub numbers: u64,
    /// Rows of a head.
    pub rows: u64,
    /// Heads.
    pub heads: u64,
}

/// A GPU, or what behaves like one. Calls of one thread take effect in their order; those of several threads may overlap.
pub trait Driver: Send + Sync {
    /// Memory of this device.
    type Memory: DeviceMemory;

    /// Memory of this machine that the device reads and writes by itself, given back on drop.
    type Staging: AsMut<[u8]> + Send;

    /// Takes memory, uninitialised.
    fn allocate(&self, bytes: u64) -> Result<Self::Memory, Failure>;

    /// Copies to the device. The bytes may be changed as soon as this returns; launches of other threads see them after
    /// [`Driver::wait`].
    ///
    /// # Panics
    /// If they do not lie inside the memory.
    fn write(&self, memory: &Self::Memory, offset: u64, bytes: &[u8]) -> Result<(), Failure>;

    /// Takes staging memory.
    fn stage(&self, bytes: usize) -> Result<Self::Staging, Failure>;

    /// Begins to copy staged bytes to the device, before whatever this thread launches later.
    ///
    /// # Safety
    /// The bytes stay as they are until the next [`Driver::wait`] returns or the memory is dropped.
    ///
    /// # Panics
    /// If they do not lie inside the memory.
    unsafe fn send(&self, memory: &Self::Memory, offset: u64, staged: &[u8])
    -> Result<(), Failure>;

    /// Begins to copy from the device to staged bytes, after whatever this thread launched earlier.
    ///
    /// # Safety
    /// Nobody reads or writes the bytes until the next [`Driver::wait`] returns or the memory is dropped.
    ///
    /// # Panics
    /// If they do not lie inside the memory.
    unsafe fn receive(
        &self,
        memory: &Self::Memory,
        offset: u64,
        staged: &mut [u8],
    ) -> Result<(), Failure>;

    /// Starts a kernel.
    ///
    /// # Safety
    /// The parameters are those of the kernel, and every address in them is of memory of this device that lives, and
    /// holds as much as the kernel reads or writes there, until the next [`Driver::wait`] returns.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), Failure>;

    /// Waits for everything this thread has launched.
    fn wait(&self) -> Result<(), Failure>;

    /// Describes a tensor to the bulk copy engine.
    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap, Failure>;
}
