//! Every conformance case on the kernels of GPUs: on every machine in the emulation of the device code, and with the
//! feature `cuda` on each GPU.
#![expect(clippy::print_stderr, reason = "the tests print the compared values")]

#[path = "../../kernels/tests/cuda/emulation/driver.rs"]
#[expect(unsafe_code, dead_code, reason = "shared with the tests of the kernels")]
mod emulation_driver;
#[path = "../../kernels/tests/cuda/emulation/library.rs"]
#[expect(unsafe_code, reason = "it belongs to the kernels' tests")]
mod emulation_library;

use std::fs;
use std::path::{Path, PathBuf};

use longsift_kernels::cuda::{CudaDevice, Driver, WindowRequest};
use longsift_kernels::{Kernel, RowSample};
use longsift_stages::first_layer_attention::{FirstLayer, Mask};
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{LayerZeroTable, ModelFolder};
use serde_json::Value;

use emulation_driver::{Emulated, Mode};

/// Relative tolerance of a head's statistics if queries and keys are rounded to 16 bits, as for the CPU's bf16 kernel.
const ROUNDED: f64 = 2e-2;

/// Returns the folder of this crate. The variable follows a moved repository; the compiled-in path may be another
/// machine's.
fn crate_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

fn families() -> PathBuf {
    crate_folder().join("tests/families")
}

/// The shared cases. Tests that use them are ignored unless the cfg `longsift_shared` is set.
fn shared_cases() -> PathBuf {
    let root = std::env::var_os("LONGSIFT_SHARED")
        .map_or_else(|| crate_folder().join("../../shared"), PathBuf::from);
    root.join("conformance")
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .expect("a list")
        .iter()
        .map(|number| number.as_f64().expect("a number"))
        .collect()
}

/// Returns the largest `|got - expected| / (floor + relative · |expected|)`; infinite if any value is `NaN`.
fn worst(got: &[f64], expected: &[f64], relative: f64, floor: f64) -> f64 {
    assert_eq!(got.len(), expected.len());
    let error = |(got, expected): (&f64, &f64)| {
        let error = (got - expected).abs() / (floor + relative * expected.abs());
        if error.is_nan() { f64::INFINITY } else { error }
    };
    got.iter().zip(expected).map(error).fold(0.0, f64::max)
}

/// Checks all cases of a folder on one device.
fn check_all<D: Driver>(folder: &Path, device: &mut CudaDevice<D>) {
    let cases = fs::read_dir(folder).expect("the folder exists");
    let mut cases: Vec<PathBuf> =
        cases.map(|case| case.expect("it can be listed").path()).collect();
    cases.retain(|case| case.join("case.json").exists());
    cases.sort();
    assert!(!cases.is_empty(), "no cases in {}", folder.display());
    for case in cases {
        check(&case, device);
    }
}

fn check<D: Driver>(folder: &Path, device: &mut CudaDevice<D>) {
    let case = fs::read(folder.join("case.json")).expect("a case has this file");
    let case: Value = serde_json::from_slice(&case).expect("it is JSON");
    let ids: Vec<u32> = numbers(&case["input_ids"]).iter().map(|id| *id as u32).collect();
    let model = ModelFolder::open(folder, None).expect("the model opens");
    let cache = tempfile::tempdir().expect("temporary folders can be made");
    let unmasked = case.pointer("/reference_code/unmasked");
    let masks = [(Mask::Causal, Some(&case["expected"])), (Mask::Unmasked, unmasked)];
    for (mask, expected) in masks {
        let Some(expected) = expected else { continue };
        let table = LayerZeroTable::open_or_build(
            &model,
            Kernel::PortableF32,
            Precision::F32,
            cache.path(),
            &|_, _| {},
        );
        let table = table.expect("the table is built").table;
        let layer = FirstLayer::new(model.spec().clone(), table, mask, ids.len());
        check_layer(folder, &case, &layer, &ids, expected, device);
    }
}

fn check_layer<D: Driver>(
    folder: &Path,
    case: &Value,
    layer: &FirstLayer,
    ids: &[u32],
    expected: &Value,
    device: &mut CudaDevice<D>,
) {
    let kernel = device.kernel();
    let context = format!("{}, {}", folder.display(), kernel.name());
    if layer.spec().gathers_on_device() {
        device
            .load_table(layer.table().view(), layer.table().row_width())
            .expect("memory suffices");
    }
    let tokens = ids.len();
    let distance = tokens - 3 * (tokens / 4);
    let key_heads = layer.spec().key_heads as usize;
    let measure = |sample: Option<&RowSample>| {
        let heads = 0..key_heads;
        let sums = layer.with_operands(kernel, ids, heads, |shape, rules, operands, key_heads| {
            device.measure(&WindowRequest { shape, rules, distance, operands, sample, key_heads })
        });
        sums.unwrap_or_else(|failure| panic!("{context}: {failure}"))
    };
    let sums = measure(None).window_sums(tokens);
    let tolerance = |name: &str| case["tolerances"][name].as_f64().expect("a tolerance");
    let exact = kernel == Kernel::CudaF32;
    let relative = |name: &str| if exact { tolerance(name) } else { ROUNDED };
    let floor = if exact { tolerance("abs_floor") } else { 1e-6 };
    let strengths = worst(
        &sums.dependency_strength(tokens),
        &numbers(&expected["proportion_per_head"]),
        relative("proportion_rel"),
        floor,
    );
    let variances = worst(
        &sums.far_variance(tokens),
        &numbers(&expected["variance_per_head"]),
        relative("variance_rel"),
        floor * 1e-3,
    );
    eprintln!("{context}: {strengths:.4} and {variances:.4} of the tolerance");
    assert!(strengths <= 1.0 && variances <= 1.0, "{context}");
    if let (true, Some(of_rows)) = (exact, expected.get("ds_t")) {
        let all = RowSample { positions: (0..tokens).collect(), weights: vec![1.0; tokens] };
        let rows = measure(Some(&all)).row_far_mass;
        let heads = layer.spec().query_heads as f64;
        let mean = |row: usize| rows[row..].iter().step_by(tokens).sum::<f64>() / heads;
        let means: Vec<f64> = (0..tokens).map(mean).collect();
        let error = worst(&means, &numbers(of_rows), 0.0, tolerance("ds_t_abs"));
        assert!(error <= 1.0, "{context}: rows are at {error} of the tolerance");
    }
}

fn emulated(kernel: Kernel, mode: Mode, folder: &Path) {
    let emulated = Emulated::new(emulation_library::library(), mode);
    check_all(folder, &mut CudaDevice::new(emulated, kernel));
}

macro_rules! for_each_kernel {
    ($($name:ident: $kernel:ident, $mode:literal;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            #[cfg_attr(not(longsift_cxx), ignore = "needs a C++ compiler")]
            fn families_in_the_emulation() {
                emulated(Kernel::$kernel, Mode($mode), &families());
            }

            #[test]
            #[cfg_attr(
                not(all(longsift_shared, longsift_cxx)),
                ignore = "needs ../shared, a sibling of the repository, and a C++ compiler"
            )]
            fn shared_cases_in_the_emulation() {
                emulated(Kernel::$kernel, Mode($mode), &shared_cases());
            }
        }
    )*};
}

for_each_kernel! {
    f32: CudaF32, 0;
    v1_bf16: CudaV1Bf16, 1;
    v2_bf16: CudaV2Bf16, 3;
    v3_bf16: CudaV3Bf16, 1;
}

#[cfg(feature = "cuda")]
fn on_every_gpu(folder: &Path) {
    use longsift_kernels::cuda::nvidia::{Nvidia, gpus};
    let gpus = gpus().expect("this machine has a driver");
    assert!(!gpus.is_empty(), "the driver shows no GPU");
    let named = std::env::var("LONGSIFT_CUDA_KERNEL").ok();
    let is_named = |kernel: &Kernel| named.as_deref().is_none_or(|named| named == kernel.name());
    let kernels = Kernel::ALL.iter().copied().filter(|kernel| kernel.is_cuda()).filter(is_named);
    for (gpu, kernel) in
        gpus.iter().flat_map(|gpu| kernels.clone().map(move |kernel| (gpu, kernel)))
    {
        if gpu.supports(kernel) {
            eprintln!("{} {}", gpu.name, kernel.name());
            let driver = Nvidia::open(gpu.ordinal).expect("the GPU opens");
            let mut device = CudaDevice::new(driver, kernel);
            check_all(folder, &mut device);
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU; scripts/gpu_check.sh runs it"]
fn families_on_every_gpu() {
    on_every_gpu(&families());
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU and ../shared; scripts/gpu_check.sh runs it"]
fn shared_cases_on_every_gpu() {
    on_every_gpu(&shared_cases());
}
