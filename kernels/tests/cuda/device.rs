//! The shared cases on every GPU of this machine, for each supported kernel.
#![expect(clippy::print_stdout, reason = "the tests print the compared values")]

use std::path::PathBuf;

use half::bf16;
use longsift_kernels::cuda::nvidia::{Nvidia, gpus};
use longsift_kernels::cuda::{CudaDevice, Driver, SourceSizes, window_bytes};
use longsift_kernels::{Kernel, TableView};

use crate::cases::{self, Case, KERNELS, TABLE_SHAPE};

/// Calls `check` for every GPU and kernel. `LONGSIFT_CUDA_KERNEL=NAME` selects one kernel;
/// `LONGSIFT_CUDA_IMAGES=FOLDER` selects a folder with fat binaries, as in the example `gpu_windows`.
fn on_each_gpu(check: impl Fn(CudaDevice<Nvidia>)) {
    let named = std::env::var("LONGSIFT_CUDA_KERNEL").ok();
    let images = std::env::var_os("LONGSIFT_CUDA_IMAGES").map(PathBuf::from);
    let is_named = |kernel: &Kernel| named.as_deref().is_none_or(|named| named == kernel.name());
    let gpus = gpus().expect("this machine has a driver");
    assert!(!gpus.is_empty(), "the driver shows no GPU");
    for gpu in gpus {
        for kernel in KERNELS.into_iter().filter(|kernel| gpu.supports(*kernel)).filter(is_named) {
            println!("{} {}", gpu.name, kernel.name());
            let driver = Nvidia::open_with(gpu.ordinal, images.as_deref());
            check(CudaDevice::new(driver.expect("the GPU opens"), kernel));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU; scripts/gpu_check.sh runs it"]
fn shapes_and_hooks_agree_with_float64() {
    on_each_gpu(|device| {
        let cases = [cases::shapes(), cases::hooks(), cases::bounds()].concat();
        for case in &cases {
            case.check(&device);
        }
        cases::heads_in_any_grouping_give_the_same_bits(&device);
        cases::a_shared_tail_of_the_keys_changes_no_bit(&device);
        cases::a_nan_shows_in_the_sums(&device);
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU; scripts/gpu_check.sh runs it"]
fn long_windows_agree_with_float64() {
    on_each_gpu(|device| {
        for (tokens, head_dim) in [(2048, 128), (3001, 64), (1999, 192), (2500, 256)] {
            Case::new(tokens, (2, 1), head_dim, tokens - 3 * (tokens / 4)).check(&device);
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU; scripts/gpu_check.sh runs it"]
fn every_launch_gives_the_same_bits() {
    on_each_gpu(|device| {
        let case = Case::new(5000, (4, 2), 128, 1250);
        let first = case.measure(&device, 0..2).expect("it fits");
        for _ in 0..20 {
            assert_eq!(case.measure(&device, 0..2).expect("it fits"), first);
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU; scripts/gpu_check.sh runs it"]
fn threads_that_share_a_gpu_do_not_disturb_each_other() {
    on_each_gpu(|device| {
        let case = Case::new(3000, (4, 2), 128, 750);
        let expected = case.measure(&device, 0..2).expect("it fits");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        assert_eq!(case.measure(&device, 0..2).expect("it fits"), expected);
                    }
                });
            }
        });
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU; scripts/gpu_check.sh runs it"]
fn tables_agree_with_the_gather_of_the_processor() {
    on_each_gpu(|mut device| {
        let (table, ids) = cases::random_table();
        let narrow: Vec<bf16> = table.iter().map(|&value| bf16::from_f32(value)).collect();
        for case in &cases::table_cases() {
            for view in [TableView::F32(&table), TableView::Bf16(&narrow)] {
                device.load_table(view, 288).expect("memory suffices");
                case.check(&device, view, &ids);
            }
        }
    });
}

/// The driver allocates in units of 2 MiB; a window is one allocation.
#[test]
#[ignore = "needs an NVIDIA GPU; scripts/gpu_check.sh runs it"]
fn a_window_takes_the_announced_memory_and_the_next_one_reuses_it() {
    on_each_gpu(|device| {
        let free = || device.driver().memory().expect("the GPU answers").0;
        let case = Case::new(4000, (2, 1), 64, 1000);
        case.measure(&device, 0..1).expect("it fits");
        let before = free();
        case.measure(&device, 0..1).expect("it fits");
        assert_eq!(free(), before, "the second window took memory, or another process did");
        device.release_spare_memory();
        let before = free();
        let sizes = SourceSizes { table: true, ..SourceSizes::default() };
        let shape = longsift_kernels::AttentionShape { tokens: 1 << 19, ..TABLE_SHAPE };
        let announced = window_bytes(device.kernel(), &shape, &sizes, &(0..2));
        let memory = device.driver().allocate(announced).expect("it fits");
        let taken = before - free();
        assert!(taken >= announced && taken <= announced + (4 << 20), "{taken} for {announced}");
        drop(memory);
    });
}
