//! Every conformance case of the known families, from its folder to per-head statistics: the table is built here,
//! the attention is a dense f64 loop of its own, so that the table is proven apart from the kernels, then the kernels.

use std::fs;
use std::path::{Path, PathBuf};

use longsift_kernels::{Kernel, Measure, RopeStyle, TableView, TableWindow, attention_statistics};
use serde_json::Value;

use super::*;
use crate::load_partial_model::Precision;

/// A folder of the shared test data, or `None` with the reason printed.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("LONGSIFT_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let folder = root.join(name);
    if !folder.exists() {
        eprintln!("skipped: no `{}` (set LONGSIFT_SHARED)", folder.display());
        return None;
    }
    Some(folder)
}

pub(crate) fn built(model: &ModelFolder, precision: Precision, cache: &Path) -> OpenedTable {
    LayerZeroTable::open_or_build(model, Kernel::PortableF32, precision, cache, &|_, _| {}).unwrap()
}

/// Queries or keys of one head after the rotary embedding, `[tokens][head_dim]`, in f64.
fn rotated(spec: &LayerZeroSpec, table: &[f32], ids: &[usize], first: usize) -> Vec<Vec<f64>> {
    let (width, dims) = (spec.row_width() as usize, spec.head_dim as usize);
    let rope = spec.rope.as_ref().unwrap();
    assert_eq!(RopeStyle::from(rope.pairing), RopeStyle::Half);
    let frequencies = rope.inverse_frequencies(ids.len() as u64);
    let half = frequencies.len();
    let mut rows = Vec::new();
    for (position, id) in ids.iter().enumerate() {
        let mut row: Vec<f64> =
            table[id * width + first..][..dims].iter().map(|x| f64::from(*x)).collect();
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * f64::from(*frequency)).sin_cos();
            let (x, y) = (row[pair], row[pair + half]);
            row[pair] = (x * cos - y * sin) * rope.attention_factor();
            row[pair + half] = (y * cos + x * sin) * rope.attention_factor();
        }
        rows.push(row);
    }
    rows
}

/// Dependency strength and far variance of each head, by their definition.
fn dense(spec: &LayerZeroSpec, table: &[f32], ids: &[usize], causal: bool) -> (Vec<f64>, Vec<f64>) {
    let (tokens, dims) = (ids.len(), spec.head_dim as usize);
    let distance = tokens - 3 * (tokens / 4);
    let rules = spec.logit_rules(causal);
    let group = (spec.query_heads / spec.key_heads) as usize;
    let (mut strengths, mut variances) = (Vec::new(), Vec::new());
    for head in 0..spec.query_heads as usize {
        let queries = rotated(spec, table, ids, head * dims);
        let keys = rotated(spec, table, ids, (spec.query_heads as usize + head / group) * dims);
        let (mut mass, mut square) = (0.0, 0.0);
        for (row, query) in queries.iter().enumerate() {
            let visible = |key: usize| {
                (key <= row || !causal) && rules.window.is_none_or(|window| key + window > row)
            };
            let keys: Vec<(usize, f64)> = (0..tokens)
                .filter(|key| visible(*key))
                .map(|key| {
                    (
                        key,
                        query.iter().zip(&keys[key]).map(|(q, k)| q * k).sum::<f64>() * spec.scale,
                    )
                })
                .collect();
            let most = keys.iter().fold(f64::MIN, |most, (_, logit)| most.max(*logit));
            let total: f64 = keys.iter().map(|(_, logit)| (logit - most).exp()).sum();
            for (_, logit) in keys.iter().filter(|(key, _)| key + distance <= row) {
                let share = (logit - most).exp() / total;
                mass += share;
                square += share * share;
            }
        }
        let entries = (tokens * tokens) as f64;
        strengths.push(mass / tokens as f64);
        variances.push((square - mass * mass / entries) / (entries - 1.0));
    }
    (strengths, variances)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// The largest `|got - expected| / (floor + relative · |expected|)`.
fn worst(got: &[f64], expected: &[f64], relative: f64, floor: f64) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter()
        .zip(expected)
        .map(|(g, e)| (g - e).abs() / (floor + relative * e.abs()))
        .fold(0.0, f64::max)
}

/// The same two figures from the kernels, which know nothing of the model but what the specification tells them.
fn by_kernel(
    spec: &LayerZeroSpec,
    view: TableView<'_>,
    ids: &[usize],
    causal: bool,
) -> (Vec<f64>, Vec<f64>) {
    let tokens = ids.len();
    let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    let (shape, rope) = (spec.attention_shape(tokens), spec.rope(tokens));
    let width = spec.row_width() as usize;
    let window = TableWindow::new(view, width, &ids, &shape, rope.as_ref()).unwrap();
    let measure = Measure { distance: tokens - 3 * (tokens / 4), rows: false };
    let sums = attention_statistics(
        Kernel::detect(),
        &shape,
        &spec.logit_rules(causal),
        &measure,
        &window,
    );
    (sums.dependency_strength(tokens), sums.far_variance(tokens))
}

fn case(name: &str) {
    let Some(folder) = shared("conformance").map(|folder| folder.join(name)) else { return };
    let case: Value = serde_json::from_slice(&fs::read(folder.join("case.json")).unwrap()).unwrap();
    let model = ModelFolder::open(&folder, None).unwrap();
    assert!(model.warnings().is_empty(), "{:?}", model.warnings());
    let cache = tempfile::tempdir().unwrap();
    let opened = built(&model, Precision::F32, cache.path());
    let TableView::F32(table) = opened.table.view() else { panic!("an f32 table") };
    let ids: Vec<usize> = numbers(&case["input_ids"]).iter().map(|id| *id as usize).collect();
    let tolerance = |name: &str| case["tolerances"][name].as_f64().unwrap();
    let near = |what: &str, (strengths, variances): (Vec<f64>, Vec<f64>), expected: &Value| {
        let (strength, variance) =
            (&expected["proportion_per_head"], &expected["variance_per_head"]);
        let floor = tolerance("abs_floor");
        let strength = worst(&strengths, &numbers(strength), tolerance("proportion_rel"), floor);
        let variance =
            worst(&variances, &numbers(variance), tolerance("variance_rel"), floor * 1e-3);
        eprintln!("{name}, {what}: {strength:.4} and {variance:.4} of the tolerance");
        assert!(strength <= 1.0 && variance <= 1.0);
    };
    let spec = model.spec();
    near("dense", dense(spec, table, &ids, true), &case["expected"]);
    near("kernel", by_kernel(spec, opened.table.view(), &ids, true), &case["expected"]);
    if let Some(unmasked) = case.get("reference_code").and_then(|code| code.get("unmasked")) {
        near("dense, unmasked", dense(spec, table, &ids, false), unmasked);
        near("kernel, unmasked", by_kernel(spec, opened.table.view(), &ids, false), unmasked);
    }
}

#[rustfmt::skip]
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        #[allow(non_snake_case, reason = "a test has the name of its case's folder")]
        fn $name() {
            case(stringify!($name));
        })*
    };
}

cases![
    llama_bias_headdim_s96,
    llama_dynamic_s257,
    llama_fp16_s128,
    llama_gqa_llama3rope_s257,
    llama_linear_s128,
    llama_mha_s96,
    llama_oddS_s101,
    llama_sharded_f32_s96,
    llama_untied_bf16_sharded_s257,
    llama_v5config_s128,
    llama_yarn_s128,
    mistral_sw_s128,
    mistral_sw_short_s96,
    mixtral_s96,
    qwen2_maxwindow_s96,
    qwen2_s128,
];
