//! The emulated GPU as a driver: memory is this process's, kernels are functions of the library.

use std::ffi::c_void;
use std::sync::Mutex;

use libloading::{Library, Symbol};
use longsift_kernels::cuda::{
    DeviceError, DeviceMemory, Driver, Launch, TensorMap, TensorMapRequest,
};

/// Timing of asynchronous work, and order of warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u32);

impl Mode {
    /// Immediately or as late as possible; first or last warp first.
    pub(crate) const ALL: [Self; 4] = [Self(0), Self(1), Self(2), Self(3)];
}

/// A GPU of this process.
pub(crate) struct Emulated {
    library: &'static Library,
    mode: Mode,
    budget: u64,
    /// Bytes of each allocation.
    pub(crate) allocations: Mutex<Vec<u64>>,
    /// Bytes of each staging allocation.
    pub(crate) stagings: Mutex<Vec<usize>>,
    /// Pending copies to the device: `(to, from, bytes)`. A real device may read staged bytes as late as the start of
    /// the next kernel; in the late modes, so does this one.
    sent: Mutex<Vec<(u64, usize, usize)>>,
    /// Numbers written by each `gather_rope_f32`.
    pub(crate) gathered: Mutex<Vec<Vec<f32>>>,
}

impl Emulated {
    pub(crate) fn new(library: &'static Library, mode: Mode) -> Self {
        Self {
            library,
            mode,
            budget: u64::MAX,
            allocations: Mutex::default(),
            stagings: Mutex::default(),
            sent: Mutex::default(),
            gathered: Mutex::default(),
        }
    }

    /// Refuses to allocate more than `budget` bytes in total.
    pub(crate) fn with_budget(mut self, budget: u64) -> Self {
        self.budget = budget;
        self
    }

    fn finish_copies(&self) {
        for (to, from, bytes) in self.sent.lock().expect("no test panics here").drain(..) {
            // SAFETY: both ranges live, and the first is not written, until the next wait: `send` requires it.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        }
    }

    fn keep_gathered(&self, launch: &Launch<'_>) {
        if launch.kernel != "gather_rope_f32" {
            return;
        }
        // The fields `out`, `heads`, `row_count` and `width` of the kernel's parameters.
        let int = |at: usize| {
            i32::from_ne_bytes(launch.parameters[at..at + 4].try_into().expect("four bytes"))
        };
        let out = u64::from_ne_bytes(launch.parameters[48..56].try_into().expect("eight bytes"));
        let numbers = (int(100) * int(104) * int(112)) as usize;
        // SAFETY: the kernel has just written these numbers.
        let written = unsafe { std::slice::from_raw_parts(out as *const f32, numbers) };
        self.gathered.lock().expect("no test panics here").push(written.to_vec());
    }
}

/// Memory that begins at a multiple of 256, filled with NaN.
pub(crate) struct Memory {
    words: Vec<u128>,
    start: usize,
    bytes: u64,
}

impl DeviceMemory for Memory {
    fn address(&self) -> u64 {
        self.words.as_ptr() as u64 + self.start as u64
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Driver for Emulated {
    type Memory = Memory;
    type Staging = Vec<u8>;

    fn allocate(&self, bytes: u64) -> Result<Memory, DeviceError> {
        if bytes > self.budget {
            return Err(DeviceError::OutOfMemory { wanted: bytes, free: self.budget });
        }
        self.allocations.lock().expect("no test panics here").push(bytes);
        let words = vec![u128::MAX; (bytes as usize + 256).div_ceil(16)];
        let start = (256 - words.as_ptr() as usize % 256) % 256;
        Ok(Memory { words, start, bytes })
    }

    fn write(&self, memory: &Memory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + bytes.len() as u64 <= memory.bytes, "a write beyond the memory");
        let to = (memory.address() + offset) as *mut u8;
        // SAFETY: the bounds were checked above; kernels, the only other users of the memory, do not run during a
        // write.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn stage(&self, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        self.stagings.lock().expect("no test panics here").push(bytes);
        Ok(vec![0; bytes])
    }

    unsafe fn send(&self, memory: &Memory, offset: u64, staged: &[u8]) -> Result<(), DeviceError> {
        if self.mode.0 & 1 == 0 {
            return self.write(memory, offset, staged);
        }
        assert!(offset + staged.len() as u64 <= memory.bytes, "a write beyond the memory");
        let copy = (memory.address() + offset, staged.as_ptr() as usize, staged.len());
        self.sent.lock().expect("no test panics here").push(copy);
        Ok(())
    }

    unsafe fn receive(
        &self,
        memory: &Memory,
        offset: u64,
        staged: &mut [u8],
    ) -> Result<(), DeviceError> {
        assert!(offset + staged.len() as u64 <= memory.bytes, "a read beyond the memory");
        let from = (memory.address() + offset) as *const u8;
        // SAFETY: as for a write.
        unsafe { std::ptr::copy_nonoverlapping(from, staged.as_mut_ptr(), staged.len()) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        type Kernel = extern "C" fn(*const c_void);
        type Run = extern "C" fn(Kernel, u32, u32, usize, *const c_void, u32);
        self.finish_copies();
        let kernel: Symbol<'_, Kernel> =
            // SAFETY: kernels take a reference to their parameters here.
            unsafe { self.library.get(launch.kernel.as_bytes()) }.expect("the kernel exists");
        // SAFETY: `emulate_launch` has these parameters.
        let run: Symbol<'_, Run> =
            unsafe { self.library.get(b"emulate_launch") }.expect("it exists");
        // A real launch copies parameters with the structure's alignment.
        let words = launch.parameters.len().div_ceil(8);
        let mut parameters = vec![TensorMap([0; 16]); words.div_ceil(16)];
        bytemuck::cast_slice_mut(&mut parameters)[..launch.parameters.len()]
            .copy_from_slice(launch.parameters);
        run(
            *kernel,
            launch.blocks,
            launch.threads,
            launch.shared_bytes as usize,
            parameters.as_ptr().cast(),
            self.mode.0,
        );
        self.keep_gathered(launch);
        Ok(())
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.finish_copies();
        Ok(())
    }

    /// Layout of `EmulatedMap` in `machine.cpp`.
    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap, DeviceError> {
        assert!(request.address.is_multiple_of(16) && request.numbers.is_multiple_of(8));
        let mut map = [0; 16];
        map[..4].copy_from_slice(&[request.address, request.numbers, request.rows, request.heads]);
        Ok(TensorMap(map))
    }
}
