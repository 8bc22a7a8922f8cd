//! Every storage format: matrices bit for bit as the package of the format dequantises them, then a whole conformance case.
//! See `tests/forms/make_cases.py`.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use super::conformance_tests::check;
use super::tensors::TensorRole;
use super::weights::TensorReader;
use super::*;

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forms")
}

/// Reads all numbers of the required tensors of one name, in row order, a few rows at a time.
fn read(model: &ModelFolder, name: &str, max_rows: u64) -> Vec<f32> {
    let parts = model.parts.iter().filter(|part| name.ends_with(&part.needed.name));
    let mut numbers = Vec::new();
    for part in parts {
        let mut reader = TensorReader::new(part).unwrap();
        numbers.extend(reader.chunks(max_rows).flat_map(Result::unwrap));
        assert_eq!(reader.finish().1, part.bytes(), "{name}: bytes read differ from the estimate");
    }
    numbers
}

/// Returns the rows of an expected matrix that the model needs.
fn wanted(model: &ModelFolder, name: &str, expected: &[f32], width: usize) -> Vec<f32> {
    let parts = model.parts.iter().filter(|part| name.ends_with(&part.needed.name));
    let rows = parts.flat_map(|part| part.needed.rows.clone()).flatten();
    rows.flat_map(|row| expected[row as usize * width..][..width].to_vec()).collect()
}

fn format(name: &str) {
    let folder = folder().join(name);
    let model = ModelFolder::open(&folder, None).unwrap();
    let bytes = fs::read(folder.join("expected.tensors")).unwrap();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let expected = formats::floats(tensor.dtype(), tensor.data());
        let expected = wanted(&model, &name, &expected, tensor.shape()[1]);
        assert!(!expected.is_empty(), "{name} is needed");
        for max_rows in [u64::MAX, 5] {
            let got = read(&model, &name, max_rows);
            let pairs = got.iter().zip(&expected);
            let wrong = pairs.filter(|(got, expected)| got.to_bits() != expected.to_bits()).count();
            assert_eq!(
                (got.len(), wrong),
                (expected.len(), 0),
                "{name}: numbers, and how many differ"
            );
        }
    }
    assert!(model.parts.iter().any(|part| part.needed.role == TensorRole::Embedding));
    check(name, &folder);
}

macro_rules! formats {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            format(stringify!($name));
        })*

        #[test]
        fn every_format_has_a_test() {
            let tested = [$(stringify!($name)),*];
            for entry in fs::read_dir(folder()).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                assert!(tested.contains(&name.as_str()) || name == "make_cases.py", "no test for {name}");
            }
        }
    };
}

formats! {
    gptq_2bit,
    gptq_3bit,
    gptq_4bit,
    gptq_4bit_act_order,
    gptq_4bit_v2,
    gptq_8bit,
    awq_4bit,
    bitsandbytes_nf4,
    bitsandbytes_nf4_double,
    bitsandbytes_fp4,
    bitsandbytes_fp4_double,
    bitsandbytes_int8,
    fp8_blocks,
    fp8_blocks_deepseek_v3,
    fp8_one_scale,
    compressed_float_tensor,
    compressed_float_channel,
    compressed_float_block,
    compressed_int8_channel,
    compressed_packed_int4,
    compressed_packed_int4_zeros,
    compressed_packed_int8,
    mlx_2bit,
    mlx_3bit,
    mlx_4bit,
    mlx_5bit,
    mlx_6bit,
    mlx_8bit,
    mlx_mixed,
    gguf_bf16,
    gguf_f16,
    gguf_gemma,
    gguf_gemma3_config,
    gguf_llama_bias_config,
    gguf_llama_frequencies,
    gguf_llama_linear,
    gguf_phi3_config,
    gguf_q2_k_q3_k_q2_k,
    gguf_q4_0_q5_0_q5_1,
    gguf_q6_k_q4_k_q5_k,
    gguf_q8_0_q4_0_q4_1,
    gguf_qwen2_yarn,
    gguf_qwen3,
}
