//! The device code on the processor: index arithmetic, masks, fragment and swizzle layouts, barriers and reductions. It
//! does not cover timing, the memory model, or races inside a warp.
#![expect(clippy::print_stdout, reason = "the largest difference is printed")]

use half::bf16;
use longsift_kernels::cuda::{
    CudaDevice, DeviceError, SourceSizes, unsupported_reason, window_bytes,
};
use longsift_kernels::{Kernel, QueryKeySource, TableView, TableWindow};

use crate::cases::{self, Case, KERNELS, TABLE_SHAPE};
use crate::emulation_driver::{Emulated, Mode};
use crate::emulation_library::library;

/// Creates a device in one of the modes.
fn device(kernel: Kernel, mode: Mode) -> CudaDevice<Emulated> {
    CudaDevice::new(Emulated::new(library(), mode), kernel)
}

fn check_all(kernel: Kernel, cases: &[Case]) {
    for (index, case) in cases.iter().enumerate() {
        let device = device(kernel, Mode::ALL[index % 4]);
        assert_eq!(unsupported_reason(kernel, &case.shape), None);
        case.check(&device);
    }
}

macro_rules! for_each_kernel {
    ($($name:ident: $kernel:ident;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            #[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
            fn shapes_agree_with_float64() {
                check_all(Kernel::$kernel, &cases::shapes());
            }

            #[test]
            #[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
            fn small_and_large_logits_agree_with_float64() {
                check_all(Kernel::$kernel, &cases::bounds());
            }

            #[test]
            #[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
            fn hooks_agree_with_float64() {
                check_all(Kernel::$kernel, &cases::hooks());
            }

            #[test]
            #[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
            fn timing_and_warp_order_change_no_bit() {
                let case = Case::new(700, (2, 1), 64, 175).changed(|case| case.rules.window = Some(600));
                let sums = Mode::ALL.map(|mode| {
                    case.measure(&device(Kernel::$kernel, mode), 0..1).expect("it fits")
                });
                assert!(sums.iter().all(|other| *other == sums[0]));
            }

            #[test]
            #[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
            fn grouping_and_tails_change_no_bit_and_nan_shows_in_sums() {
                for mode in [Mode(0), Mode(3)] {
                    let device = device(Kernel::$kernel, mode);
                    cases::heads_in_any_grouping_give_the_same_bits(&device);
                    cases::a_shared_tail_of_the_keys_changes_no_bit(&device);
                    cases::a_nan_shows_in_the_sums(&device);
                }
            }

            #[test]
            #[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
            fn tables_agree_with_the_gather_of_the_processor() {
                tables(Kernel::$kernel);
            }
        }
    )*};
}

for_each_kernel! {
    f32: CudaF32;
    v1_bf16: CudaV1Bf16;
    v2_bf16: CudaV2Bf16;
    v3_bf16: CudaV3Bf16;
}

fn tables(kernel: Kernel) {
    let (table, ids) = cases::random_table();
    let narrow: Vec<bf16> = table.iter().map(|&value| bf16::from_f32(value)).collect();
    for (index, case) in cases::table_cases().iter().enumerate() {
        for view in [TableView::F32(&table), TableView::Bf16(&narrow)] {
            let mut device = device(kernel, Mode::ALL[index % 4]);
            device.load_table(view, 288).expect("memory suffices");
            let error = case.check(&device, view, &ids);
            println!("{}: rounding moves the far mass by {error:.1e}", kernel.name());
        }
    }
}

/// Without a norm, float32 queries and keys have the same bits as on the CPU.
#[test]
#[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
fn gathered_numbers_have_the_bits_of_the_processors() {
    let (table, ids) = cases::random_table();
    for case in cases::table_cases().iter().filter(|case| case.norms.is_none() && !case.query_scale)
    {
        let mut device = device(Kernel::CudaF32, Mode(0));
        let view = TableView::F32(&table);
        device.load_table(view, 288).expect("memory suffices");
        case.check(&device, view, &ids);
        let gathered = device.driver().gathered.lock().expect("no test panics here");
        let rope = case.rotation.as_ref().map(|rotation| rotation.table(140));
        let window = TableWindow::new(view, 288, &ids, &TABLE_SHAPE, rope.as_ref(), None);
        let factor = std::f64::consts::LOG2_E * f64::from((1.0 / 48_f64.sqrt()) as f32);
        for (side, heads) in [4, 2].into_iter().enumerate() {
            for head in 0..heads {
                let mut want = vec![0.0; 140 * 48];
                if side == 0 {
                    window.queries(head, 0..140, &mut want);
                    for value in &mut want {
                        *value = (f64::from(*value) * factor) as f32;
                    }
                } else {
                    window.keys(head, 0..140, &mut want);
                }
                let got = &gathered[side][head * 140 * 64..][..140 * 64];
                for (got, want) in got.chunks_exact(64).zip(want.chunks_exact(48)) {
                    assert!(
                        got[..48]
                            .iter()
                            .zip(want)
                            .all(|(got, want)| got.to_bits() == want.to_bits())
                    );
                    assert!(got[48..].iter().all(|padding| padding.to_bits() == 0));
                }
            }
        }
    }
}

#[test]
#[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
fn a_window_takes_the_bytes_that_were_announced_and_its_memory_serves_the_next() {
    for kernel in KERNELS {
        let mut device = device(kernel, Mode(0));
        let case = Case::new(200, (4, 2), 64, 50);
        case.measure(&device, 1..2).expect("it fits");
        let sizes = SourceSizes::default();
        let announced = window_bytes(kernel, &case.shape, &sizes, &(1..2));
        let taken = |device: &CudaDevice<Emulated>| {
            device.driver().allocations.lock().expect("no test panics here").clone()
        };
        assert_eq!(taken(&device), [announced]);
        assert_eq!(device.kept_bytes(), announced);

        let (table, ids) = cases::random_table();
        device.load_table(TableView::F32(&table), 288).expect("memory suffices");
        assert_eq!(device.kept_bytes(), 0, "a table has the room that windows left");
        let with_rope = &cases::table_cases()[1];
        with_rope.check(&device, TableView::F32(&table), &ids);
        let sizes = SourceSizes { table: true, rotary_pairs: 24, ..SourceSizes::default() };
        let announced = window_bytes(kernel, &TABLE_SHAPE, &sizes, &(0..2));
        assert_eq!(taken(&device)[2], announced);
        assert_eq!(device.table_bytes(), 50 * 288 * 4);
        device.release_spare_memory();
        assert_eq!(device.kept_bytes(), 0);
    }
}

#[test]
#[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
fn after_the_first_window_of_a_size_nothing_is_allocated() {
    let device = device(Kernel::CudaV1Bf16, Mode(1));
    let counts = || {
        let allocations = device.driver().allocations.lock().expect("no test panics here").len();
        (allocations, device.driver().stagings.lock().expect("no test panics here").len())
    };
    let long = Case::new(200, (2, 1), 64, 50);
    let short = Case::new(130, (2, 1), 64, 33);
    let first = long.measure(&device, 0..1).expect("it fits");
    assert_eq!(counts(), (1, 1));
    for _ in 0..3 {
        assert_eq!(long.measure(&device, 0..1).expect("it fits"), first);
        short.check(&device);
    }
    assert_eq!(counts(), (1, 1), "smaller windows reuse the memory");
    Case::new(330, (2, 1), 64, 80).check(&device);
    assert_eq!(counts(), (2, 1), "a larger window takes more, through the same staging memory");
    long.check(&device);
    assert_eq!(counts(), (2, 1));
}

/// There are as many arenas as concurrent windows, and no window sees another's numbers.
#[test]
#[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
fn concurrent_windows_have_separate_memory() {
    let device = device(Kernel::CudaV1Bf16, Mode(0));
    let cases = [Case::new(200, (2, 1), 64, 50), Case::new(150, (2, 1), 64, 33)];
    let expected = cases.clone().map(|case| case.measure(&device, 0..1).expect("it fits"));
    std::thread::scope(|scope| {
        for (case, expected) in cases.iter().zip(&expected) {
            let device = &device;
            scope.spawn(move || {
                for _ in 0..4 {
                    assert_eq!(case.measure(device, 0..1).expect("it fits"), *expected);
                }
            });
        }
    });
    let allocations = device.driver().allocations.lock().expect("no test panics here").len();
    assert!(allocations <= 3, "{allocations} for two workers and two sizes");
}

#[test]
#[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
fn unsupported_windows_have_a_reason() {
    let library = library();
    let case = Case::new(200, (2, 1), 64, 50);
    let small =
        CudaDevice::new(Emulated::new(library, Mode(0)).with_budget(1000), Kernel::CudaV1Bf16);
    let sizes = SourceSizes::default();
    let wanted = window_bytes(Kernel::CudaV1Bf16, &case.shape, &sizes, &(0..1));
    assert_eq!(case.measure(&small, 0..1), Err(DeviceError::OutOfMemory { wanted, free: 1000 }));

    let device = CudaDevice::new(Emulated::new(library, Mode(0)), Kernel::CudaV1Bf16);
    let wide = Case::new(10, (1, 1), 300, 2);
    let refusal = "kernel `cuda-v1-bf16` supports heads of at most 256 numbers, got 300";
    assert_eq!(wide.measure(&device, 0..1), Err(DeviceError::Other(refusal.to_owned())));
    let empty =
        Case::new(0, (2, 1), 64, 1).measure(&device, 0..1).expect("an empty request succeeds");
    assert_eq!((empty.far_mass, empty.histograms), (vec![0.0; 2], vec![0.0]));
    let no_heads =
        Case::new(100, (2, 1), 64, 10).measure(&device, 1..1).expect("an empty request succeeds");
    assert!(no_heads.far_mass.is_empty());
    let (table, mut ids) = cases::random_table();
    let mut device = CudaDevice::new(Emulated::new(library, Mode(0)), Kernel::CudaV1Bf16);
    device.load_table(TableView::F32(&table), 288).expect("memory suffices");
    ids[7] = 50;
    let window = longsift_kernels::cuda::WindowRequest {
        shape: &TABLE_SHAPE,
        rules: &longsift_kernels::LogitRules::causal(48),
        distance: 1,
        operands: longsift_kernels::cuda::Operands::Table {
            ids: &ids,
            rotation: None,
            norms: None,
        },
        sample: None,
        key_heads: 0..2,
    };
    let refusal = "id 50 at position 7 is not in the table of 50 rows";
    assert_eq!(device.measure(&window), Err(DeviceError::Other(refusal.to_owned())));
}
