//! Runs code that is compiled for the processor of a kernel. No other module maps kernels to instructions.

use crate::kernel::Kernel;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Degree5};
#[cfg(target_arch = "aarch64")]
use crate::simd::{Neon, Twice};
use crate::simd::{Portable, Simd};
#[cfg(target_arch = "aarch64")]
use crate::tile::NeonTile;
use crate::tile::int16::PortableInt16Tile;
#[cfg(target_arch = "x86_64")]
use crate::tile::int16::{Avx2Int16Tile, Avx512Int16Tile};
#[cfg(target_arch = "x86_64")]
use crate::tile::{Avx2Tile, Avx512Tile, amx::AmxTile};
use crate::tile::{PortableTile, Tile};

/// Code over a kernel's register tile. Everything that `run` calls for every number must be inlined into it.
pub(crate) trait TileOp {
    type Result;

    fn run<T: Tile>(self, tile: T) -> Self::Result;
}

/// Code over a float32 kernel's vectors and the size of its register tile: `ROWS` by `VECTORS` vectors.
pub(crate) trait FloatOp {
    type Result;

    fn run<S: Simd, const ROWS: usize, const VECTORS: usize>(self, simd: S) -> Self::Result;
}

/// Runs an operation with the instructions of a kernel. Every kernel is named: one that is compiled for another target, or
/// listed under `never`, stops the program.
macro_rules! dispatch {
    (
        $kernel:expr, $operation:ident: $bound:ident,
        portable { $($portable:ident => [$($run:tt)*],)* }
        $($arch:literal { $($own:ident $features:literal => [$($own_run:tt)*],)* })*
        never { $($never:ident)|+ }
    ) => {{
        let kernel: Kernel = $kernel;
        kernel.assert_supported();
        match kernel {
            $(Kernel::$portable => dispatch!(@run $operation, $($run)*),)*
            $($(
                #[cfg(target_arch = $arch)]
                Kernel::$own => {
                    #[target_feature(enable = $features)]
                    unsafe fn run<O: $bound>(operation: O) -> O::Result {
                        dispatch!(@run operation, $($own_run)*)
                    }
                    // SAFETY: the kernel is supported, so the processor has the features, and AMX where it is used.
                    unsafe { run($operation) }
                }
                #[cfg(not(target_arch = $arch))]
                Kernel::$own => unreachable!("`{}` is not for this target", kernel.name()),
            )*)*
            $(Kernel::$never)|+ => panic!("`{}` is not a kernel for this operation", kernel.name()),
        }
    }};
    (@run $operation:ident, tile $tile:expr) => { $operation.run($tile) };
    (@run $operation:ident, $rows:literal x $vectors:literal $simd:expr) => { $operation.run::<_, $rows, $vectors>($simd) };
}

/// Runs an operation with the register tile of a processor's kernel.
pub(crate) fn with_tile<O: TileOp>(kernel: Kernel, operation: O) -> O::Result {
    dispatch! {
        kernel, operation: TileOp,
        portable {
            PortableF32 => [tile PortableTile::new(Portable)],
            PortableInt16 => [tile PortableInt16Tile::portable()],
        }
        "x86_64" {
            Avx2F32 "avx2,fma" => [tile Avx2Tile::new(Avx2::new())],
            Avx512F32 "avx512f,avx512dq" => [tile Avx512Tile::new(Avx512::new())],
            Avx2Int16 "avx2,fma" => [tile Avx2Int16Tile::avx2()],
            Avx512Int16 "avx512f,avx512dq,avx512vnni" => [tile Avx512Int16Tile::avx512()],
            // SAFETY: the kernel is supported, so AMX may be used.
            AmxBf16 "avx512f,avx512dq" => [tile unsafe { AmxTile::new() }],
        }
        "aarch64" {
            NeonF32 "neon" => [tile NeonTile::new(Twice::new(Neon))],
        }
        never { CudaF32 | CudaV1Bf16 | CudaV2Bf16 | CudaV3Bf16 }
    }
}

/// Runs an operation with the vectors of a float32 kernel.
pub(crate) fn with_floats<O: FloatOp>(kernel: Kernel, operation: O) -> O::Result {
    dispatch! {
        kernel, operation: FloatOp,
        portable {
            PortableF32 => [4 x 1 Portable],
        }
        "x86_64" {
            Avx2F32 "avx2,fma" => [6 x 2 Avx2::new()],
            Avx512F32 "avx512f,avx512dq" => [12 x 2 Avx512::<Degree5>::new()],
        }
        "aarch64" {
            NeonF32 "neon" => [6 x 2 Twice::new(Neon)],
        }
        never {
            AmxBf16 | PortableInt16 | Avx2Int16 | Avx512Int16 | CudaF32 | CudaV1Bf16 | CudaV2Bf16 | CudaV3Bf16
        }
    }
}
