//! Every conformance case, from its folder to per-head statistics, far mass per token and attention between blocks.
//!
//! For the simplest families, a dense f64 loop computes the attention first, so that the table is tested independently
//! of the kernels.

use std::fs;
use std::path::{Path, PathBuf};

use longsift_kernels::{
    BlockShares, ElementType, Kernel, RopeStyle, TableView, attention_statistics, reference_rows,
};
use serde_json::Value;

use super::*;
use crate::first_layer_attention::{FirstLayer, Mask};
use crate::load_partial_model::Precision;

/// Returns a folder of the shared test data. Tests that use it are ignored unless the cfg `longsift_shared` is set.
pub(crate) fn shared(name: &str) -> PathBuf {
    let root = std::env::var_os("LONGSIFT_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    let folder = root.join(name);
    assert!(
        folder.exists(),
        "`{}` does not exist; set LONGSIFT_SHARED to the shared folder",
        folder.display()
    );
    folder
}

pub(crate) fn built(model: &ModelFolder, precision: Precision, cache: &Path) -> OpenedTable {
    LayerZeroTable::open_or_build(model, Kernel::PortableF32, precision, cache, &|_, _| {}).unwrap()
}

/// Computes queries or keys of one head after the rotary embedding, `[tokens][head_dim]`, in f64.
fn rotated(spec: &AttentionSpec, table: &[f32], ids: &[usize], first: usize) -> Vec<Vec<f64>> {
    let (width, dims) = (spec.row_width() as usize, spec.head_dim as usize);
    let rope = spec.rope.as_ref().unwrap();
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

/// Computes dependency strength and far variance of each head by definition.
fn dense(spec: &AttentionSpec, table: &[f32], ids: &[usize], causal: bool) -> (Vec<f64>, Vec<f64>) {
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
            let max = keys.iter().fold(f64::MIN, |max, (_, logit)| max.max(*logit));
            let total: f64 = keys.iter().map(|(_, logit)| (logit - max).exp()).sum();
            for (_, logit) in keys.iter().filter(|(key, _)| key + distance <= row) {
                let share = (logit - max).exp() / total;
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

/// Returns the largest `|got - expected| / (floor + relative · |expected|)`.
fn worst(got: &[f64], expected: &[f64], relative: f64, floor: f64) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter()
        .zip(expected)
        .map(|(g, e)| (g - e).abs() / (floor + relative * e.abs()))
        .fold(0.0, f64::max)
}

/// Statistics of a window as computed by the kernels.
struct Measured {
    strengths: Vec<f64>,
    variances: Vec<f64>,
    /// Far mass of each row, mean over heads.
    rows: Vec<f64>,
}

fn supported(numbers: ElementType) -> impl Iterator<Item = Kernel> {
    let kernels = Kernel::ALL.iter().copied().filter(|kernel| kernel.is_supported());
    kernels.filter(move |kernel| kernel.element_type() == numbers)
}

/// The kernels see only the specification of the model.
fn measure(layer: &FirstLayer, kernel: Kernel, ids: &[u32]) -> Measured {
    let tokens = ids.len();
    let distance = tokens - 3 * (tokens / 4);
    layer.with_source(kernel, ids, |shape, rules, source| {
        let sums = attention_statistics(kernel, shape, rules, distance, source);
        Measured {
            strengths: sums.dependency_strength(tokens),
            variances: sums.far_variance(tokens),
            rows: sums.row_far_mass,
        }
    })
}

/// Computes the attention of the rows of one block to the keys of another, per row, mean over heads, in float64.
fn reference_blocks(layer: &FirstLayer, ids: &[u32], boundaries: &[usize]) -> Vec<Vec<f64>> {
    layer.with_source(Kernel::PortableF32, ids, |shape, rules, source| {
        let block_of = |token: usize| boundaries.partition_point(|start| *start <= token) - 1;
        let count = boundaries.len() - 1;
        let mut blocks = vec![vec![0.0; count]; count];
        reference_rows(shape, rules, source, |_, row, probabilities| {
            for (key, probability) in probabilities.iter().enumerate() {
                let block = block_of(row);
                let rows = boundaries[block + 1] - boundaries[block];
                let share = probability / (shape.query_heads * rows) as f64;
                blocks[block][block_of(key)] += share;
            }
        });
        blocks
    })
}

/// Relative tolerance of the bf16 kernels for a head's statistics. Rounding queries and keys to bf16 moves a logit by
/// up to 2^-8 of the sizes of its terms, which add up to a few units here. If a steep slope or a short window limits a
/// head's far mass to single pairs, errors do not average out.
const BF16: f64 = 2e-2;

/// Relative tolerance of the integer kernels: a number is off by up to half of a 46,340th of its row's length, so a
/// logit by up to `√d / 46,340` of ‖q‖·‖k‖, which is a few units to a hundred here.
const INT16: f64 = 1e-3;

fn near_rounded(name: &str, layer: &FirstLayer, ids: &[u32], expected: &Value) {
    for (precision, tolerance) in [(ElementType::Bf16, BF16), (ElementType::Int16, INT16)] {
        for kernel in supported(precision) {
            let got = measure(layer, kernel, ids);
            let (strength, variance) =
                (&expected["proportion_per_head"], &expected["variance_per_head"]);
            let strength = worst(&got.strengths, &numbers(strength), tolerance, 1e-6);
            let variance = worst(&got.variances, &numbers(variance), tolerance, 1e-9);
            let kernel = kernel.name();
            eprintln!("{name}, {kernel}: {strength:.4} and {variance:.4} of the tolerance");
            assert!(strength <= 1.0 && variance <= 1.0, "{name}, {kernel}");
        }
    }
}

/// Whether the dense loop above covers the model.
fn is_plain(spec: &AttentionSpec) -> bool {
    let half = spec
        .rope
        .as_ref()
        .is_some_and(|rope| rope.pairing == RopeStyle::Half && rope.rotary_dims == spec.head_dim);
    let after = spec.head_norm.as_ref().is_some_and(|norm| norm.after_rope);
    half && !after
        && !spec.sinks
        && spec.softcap.is_none()
        && spec.chunk.is_none()
        && spec.latent.is_none()
        && spec.query_scale.is_none()
}

fn case(name: &str) {
    check(name, &shared("conformance").join(name));
}

/// A case of a family that the shared cases do not cover: see `tests/families/make_cases.py`.
fn family(name: &str) {
    check(name, &families().join(name));
}

fn families() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families")
}

pub(super) fn check(name: &str, folder: &Path) {
    let case: Value = serde_json::from_slice(&fs::read(folder.join("case.json")).unwrap()).unwrap();
    let model = ModelFolder::open(folder, None).unwrap();
    assert!(model.warnings().is_empty(), "{:?}", model.warnings());
    assert!(!model.spec().unverified);
    let cache = tempfile::tempdir().unwrap();
    let ids: Vec<usize> = numbers(&case["input_ids"]).iter().map(|id| *id as usize).collect();
    let tolerance = |name: &str| case["tolerances"][name].as_f64().unwrap();
    let near = |what: &str, (strengths, variances): (&[f64], &[f64]), expected: &Value| {
        let (strength, variance) =
            (&expected["proportion_per_head"], &expected["variance_per_head"]);
        let floor = tolerance("abs_floor");
        let strength = worst(strengths, &numbers(strength), tolerance("proportion_rel"), floor);
        let variance =
            worst(variances, &numbers(variance), tolerance("variance_rel"), floor * 1e-3);
        eprintln!("{name}, {what}: {strength:.4} and {variance:.4} of the tolerance");
        assert!(strength <= 1.0 && variance <= 1.0);
    };
    let spec = model.spec();
    let expected = &case["expected"];
    let unmasked = case.get("reference_code").and_then(|code| code.get("unmasked"));
    let opened = built(&model, Precision::F32, cache.path());
    if is_plain(spec) {
        let TableView::F32(table) = opened.table.view() else { panic!("an f32 table") };
        let (strengths, variances) = dense(spec, table, &ids, true);
        near("dense", (&strengths, &variances), expected);
        if let Some(unmasked) = unmasked {
            let (strengths, variances) = dense(spec, table, &ids, false);
            near("dense, unmasked", (&strengths, &variances), unmasked);
        }
    }
    let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    let boundaries: Vec<usize> =
        numbers(&expected["block_boundaries"]).iter().map(|token| *token as usize).collect();
    let layer = FirstLayer::new(spec.clone(), opened.table, Mask::Causal, ids.len());
    for kernel in supported(ElementType::F32) {
        let got = measure(&layer, kernel, &ids);
        near(kernel.name(), (&got.strengths, &got.variances), expected);
        let rows = worst(&got.rows, &numbers(&expected["ds_t"]), 0.0, tolerance("ds_t_abs"));
        eprintln!("{name}, rows: {rows:.4} of the tolerance");
        assert!(rows <= 1.0, "{}", kernel.name());
    }
    near_rounded(name, &layer, &ids, expected);
    let wanted = expected["block_attention"].as_array().unwrap();
    let of_blocks = |(got, wanted): (&Vec<f64>, &Value)| {
        worst(got, &numbers(wanted), 0.0, tolerance("block_abs"))
    };
    let near_blocks = |what: &str, got: &[Vec<f64>]| {
        assert_eq!(got.len(), wanted.len());
        let blocks = got.iter().zip(wanted).map(of_blocks).fold(0.0, f64::max);
        eprintln!("{name}, blocks, {what}: {blocks:.4} of the tolerance");
        assert!(blocks <= 1.0, "{name}, {what}");
    };
    near_blocks("float64", &reference_blocks(&layer, &ids, &boundaries));
    for kernel in supported(ElementType::F32) {
        let blocks = layer.block_attention(kernel, &ids, &boundaries[1..], None, None);
        let shares: Vec<f64> = blocks.shares.into_iter().flatten().collect();
        let shares: Vec<Vec<f64>> = shares.chunks(wanted.len()).map(<[f64]>::to_vec).collect();
        near_blocks(kernel.name(), &shares);
        // Mean over the heads, one after the other.
        let heads = 0..spec.query_heads as usize;
        let of_heads: Vec<BlockShares> = heads
            .map(|head| layer.block_attention(kernel, &ids, &boundaries[1..], Some(head), None))
            .collect();
        let mean = |cell: usize| {
            let shares = of_heads.iter().map(|blocks| blocks.shares[cell].unwrap());
            shares.sum::<f64>() / of_heads.len() as f64
        };
        let means: Vec<f64> = (0..wanted.len() * wanted.len()).map(mean).collect();
        let means: Vec<Vec<f64>> = means.chunks(wanted.len()).map(<[f64]>::to_vec).collect();
        near_blocks("head by head", &means);
    }
    if let Some(unmasked) = unmasked {
        let table = built(&model, Precision::F32, cache.path()).table;
        let layer = FirstLayer::new(spec.clone(), table, Mask::Unmasked, ids.len());
        for kernel in supported(ElementType::F32) {
            let got = measure(&layer, kernel, &ids);
            let what = format!("{}, unmasked", kernel.name());
            near(&what, (&got.strengths, &got.variances), unmasked);
        }
        near_rounded(name, &layer, &ids, unmasked);
    }
}

#[rustfmt::skip]
macro_rules! cases {
    ($has:meta, $run:ident: $($name:ident),* $(,)?) => {
        $(#[test]
        #[cfg_attr(not($has), ignore = "needs ../shared, a sibling of the repository")]
        #[allow(non_snake_case, reason = "a test has the name of its case's folder")]
        fn $name() {
            super::$run(stringify!($name));
        })*
    };
}

mod shared_cases {
    cases![
        longsift_shared, case:
        bloom_s96,
        cohere_s96,
        deepseek_v2_lite_s96,
        deepseek_v3_yarn_s128,
        falcon_mq_s96,
        falcon_newdec_s128,
        gemma2_s128,
        gemma3_nested_s96,
        gemma3_text_s128,
        gemma_s96,
        glm4_s96,
        gpt2_noprefix_s96,
        gpt2_s128,
        gpt_neox_s96,
        gpt_oss_s128,
        gptj_s96,
        hunyuan_dense_s96,
        llama4_text_s96,
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
        minicpm3_s96,
        mistral_sw_s128,
        mistral_sw_short_s96,
        mixtral_s96,
        olmo2_s128,
        opt_s96,
        phi3_longrope_long_s257,
        phi3_s96,
        phi_s96,
        qwen2_maxwindow_s96,
        qwen2_s128,
        qwen3_moe_s128,
        qwen3_s96,
        smollm3_s128,
        stablelm_s96,
    ];
}

mod family_cases {
    cases![
        all(), family:
        bloom_six_heads,
        cohere2_full_nope,
        cohere2_sliding,
        cohere_qk_norm,
        deepseek_v2_q_lora,
        deepseek_v3_half_bias,
        ernie4_5,
        ernie4_5_moe,
        falcon_one_norm,
        gemma2_full,
        gemma3_full_linear,
        glm,
        glm4_moe,
        gpt_bigcode,
        gpt_bigcode_all_heads,
        gpt_neo,
        gpt_neo_local,
        gpt_neox_no_bias,
        gpt_oss_default_yarn,
        granite,
        granitemoe,
        granitemoeshared,
        hunyuan_alpha,
        hunyuan_v1_moe,
        internlm3,
        llama4_nope,
        ministral,
        ministral3,
        mpt,
        mpt_six_heads_clip,
        nemotron,
        olmo,
        olmo3_full_yarn,
        olmo3_sliding,
        olmo_clip,
        olmoe,
        opt_350m,
        opt_plain_norm,
        persimmon,
        phi3_partial,
        phi3_short_factors,
        phi_qk_layernorm,
        qwen2_moe,
        qwen3_sliding,
        seed_oss,
        smollm3_nope,
        stablelm_qk_layernorm,
        starcoder2,
        starcoder2_sliding,
    ];
}

/// Checks that every case of a folder is named above.
fn check_all_are_tests(folder: &Path) {
    let source = include_str!("conformance_tests.rs");
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            assert!(source.contains(&format!("        {name},\n")), "no test for {name}");
        }
    }
}

#[test]
fn every_case_of_a_family_has_a_test() {
    check_all_are_tests(&families());
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn every_shared_case_has_a_test() {
    check_all_are_tests(&shared("conformance"));
}
