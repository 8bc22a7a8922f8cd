//! Every refusal of a model as users see it, with reason and fix: one snapshot per group, one heading per case.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::folder_tests::Tiny;
use super::*;

/// Formats a refusal: its kind, message and hint.
pub(super) fn shown(folder: &Path, problems: &[ModelProblem]) -> String {
    let mut text = String::new();
    for problem in problems {
        let _ = writeln!(text, "{:?}: {}", problem.kind, problem.message);
        if let Some(hint) = &problem.hint {
            let _ = writeln!(text, "  → {hint}");
        }
    }
    text.replace(&folder.display().to_string(), "<folder>")
        .replace(&known_model_types().join(", "), "<all model types>")
}

/// Returns the refusal of the folder that `write` fills.
fn refusal(case: &str, write: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let problems = ModelFolder::open(folder.path(), None).expect_err(case);
    format!("── {case}\n{}\n", shown(folder.path(), &problems))
}

/// Returns the refusal of the tiny Llama's config.json, or of a family's, with `changes`.
fn config_refusal(case: &str, family: &str, changes: &Value) -> String {
    let mut config = match family {
        "" => Tiny::new().config,
        family => {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families");
            serde_json::from_slice(&fs::read(folder.join(family).join("config.json")).unwrap())
                .unwrap()
        }
    };
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    refusal(case, |folder| fs::write(folder.join("config.json"), config.to_string()).unwrap())
}

#[test]
fn messages_for_model_types() {
    let cases = [
        ("a misspelt type", json!({"model_type": "llamma"})),
        ("no type", json!({"model_type": null})),
        ("a type that is not a text", json!({"model_type": 7})),
        ("linear attention throughout", json!({"model_type": "gla"})),
        ("a state-space model", json!({"model_type": "mamba2"})),
        ("a hybrid that begins with linear attention", json!({"model_type": "qwen3_next"})),
        (
            "a hybrid that begins with convolutions",
            json!({"model_type": "lfm2", "layer_types": ["conv", "conv", "full_attention"]}),
        ),
        (
            "a hybrid with a pattern",
            json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-"}),
        ),
        ("a hybrid that counts layers", json!({"model_type": "jamba", "attn_layer_offset": 4})),
    ];
    let text: String =
        cases.iter().map(|(case, changes)| config_refusal(case, "", changes)).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn messages_for_config_json() {
    let rope = |rope: Value| json!({"rope_scaling": rope});
    let cases = [
        ("four mistakes at once", "", {
            json!({"hidden_size": -8, "vocab_size": "12", "num_hidden_layers": null,
                "rope_scaling": {"rope_type": "yarn", "factor": "x"}})
        }),
        ("a size beyond all models", "", json!({"vocab_size": u64::MAX})),
        (
            "two names of one number that differ",
            "falcon_one_norm",
            json!({"n_head": 64, "num_attention_heads": 32}),
        ),
        (
            "two names of the base that differ",
            "",
            json!({"model_type": "gpt_neox", "rotary_emb_base": 1e4, "rope_theta": 2e4}),
        ),
        (
            "a base under another name",
            "",
            json!({"model_type": "gpt_neox", "rope_theta": 500.0, "partial_rotary_factor": 0.25}),
        ),
        (
            "rope parameters for each layer type",
            "",
            json!({"layer_types": ["full_attention"], "rope_scaling": null,
                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}}),
        ),
        (
            "rope parameters without layer types",
            "",
            json!({"model_type": "olmo3", "rope_scaling": null,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        ),
        (
            "a type of rope scaling that versions read differently",
            "",
            json!({"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}}),
        ),
        (
            "a rotating share that is null",
            "",
            json!({"model_type": "glm4", "partial_rotary_factor": null}),
        ),
        (
            "key heads that do not divide",
            "",
            json!({"num_key_value_heads": 3, "num_attention_heads": 4}),
        ),
        ("heads that do not divide", "", json!({"hidden_size": 9, "num_key_value_heads": null})),
        ("a number where a flag belongs", "", json!({"attention_bias": 3})),
        ("an unknown rope scaling", "", rope(json!({"rope_type": "proportional"}))),
        (
            "rope scaling by alpha",
            "",
            rope(json!({"rope_type": "dynamic", "alpha": 1000, "factor": 2})),
        ),
        ("rope scaling without its factor", "", rope(json!({"rope_type": "linear"}))),
        ("rope factors in the wrong order", "", {
            rope(
                json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}),
            )
        }),
        ("frequencies that overflow", "", rope(json!({"type": "linear", "factor": 1e-60}))),
        ("dynamic scaling of one pair", "", {
            json!({"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2}})
        }),
        ("longrope with a list too short", "phi3_partial", {
            json!({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1, -2]}})
        }),
        ("an odd number of rotating dimensions", "", json!({"head_dim": 5})),
        (
            "a partial rotary factor for a family without one",
            "",
            json!({"partial_rotary_factor": 0.5}),
        ),
        (
            "no dimension rotates",
            "stablelm_qk_layernorm",
            json!({"rope_parameters": {"partial_rotary_factor": 1e-9, "rope_theta": 1e4}}),
        ),
        ("layers that slide and do not", "", {
            json!({"model_type": "mistral", "sliding_window": 16, "layer_types": ["full_attention"]})
        }),
        (
            "a layer type that is not known",
            "cohere2_sliding",
            json!({"layer_types": ["dilated_attention"]}),
        ),
        (
            "attention to later tokens",
            "gemma3_full_linear",
            json!({"use_bidirectional_attention": true}),
        ),
        ("a bidirectional model of a causal type", "granite", json!({"is_causal": false})),
        (
            "a bound that is not applied",
            "gemma3_full_linear",
            json!({"attn_logit_softcapping": 50.0}),
        ),
        ("Falcon's grouped heads one after the other", "falcon_one_norm", {
            json!({"new_decoder_architecture": true, "parallel_attn": false, "num_ln_in_parallel_attn": 2})
        }),
        ("Falcon with rounded linear biases", "falcon_one_norm", json!({"alibi": true})),
        (
            "GPT-Neo's layers in another notation",
            "gpt_neo",
            json!({"attention_types": [["global"]]}),
        ),
        ("GPT-J with more rotating dimensions than a head has", "", {
            json!({"model_type": "gptj", "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 8, "rotary_dim": 64})
        }),
        (
            "MPT with prefix attention",
            "mpt",
            json!({"attn_config": {"prefix_lm": true, "alibi": true}}),
        ),
        ("MPT with another kind of attention", "mpt", {
            json!({"attn_config": {"attn_type": "grouped_query_attention", "alibi": true}})
        }),
        ("OLMoE with clipping", "olmoe", json!({"clip_qkv": 8.0})),
        ("latent heads beyond all models", "deepseek_v2_q_lora", json!({"v_head_dim": 1 << 20})),
        ("ChatGLM's groups that do not divide", "", {
            json!({"model_type": "chatglm", "num_layers": 1, "multi_query_attention": true,
                "multi_query_group_num": 3, "num_attention_heads": 4, "seq_length": 64})
        }),
    ];
    let text: String =
        cases.iter().map(|(case, family, changes)| config_refusal(case, family, changes)).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn messages_for_files() {
    let renamed = |folder: &Path, name: &str| {
        Tiny::new().write(folder);
        fs::rename(folder.join("model.safetensors"), folder.join(name)).unwrap();
    };
    let patched = |folder: &Path, patch: &dyn Fn(&mut Vec<u8>)| {
        Tiny::new().write(folder);
        let path = folder.join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        patch(&mut bytes);
        fs::write(path, bytes).unwrap();
    };
    let indexed = |folder: &Path, index: &str| {
        Tiny::new().write_sharded(folder);
        fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    };
    let text = [
        refusal("an empty folder", |_| {}),
        refusal("a config.json that is not JSON", |folder| {
            fs::write(folder.join("config.json"), "{").unwrap();
        }),
        refusal("a config.json and nothing else", |folder| Tiny::new().write_config(folder)),
        refusal("pickled weights", |folder| renamed(folder, "pytorch_model.bin")),
        refusal("pickled weights in parts", |folder| {
            renamed(folder, "pytorch_model.bin.index.json");
        }),
        refusal("incomplete weights", |folder| {
            let mut tiny = Tiny::new();
            tiny.tensors.remove("model.embed_tokens.weight");
            tiny.tensors.remove("model.layers.0.self_attn.q_proj.weight");
            tiny.write(folder);
        }),
        refusal("shapes that config.json contradicts", |folder| {
            let mut tiny = Tiny::new();
            tiny.tensors.insert("model.embed_tokens.weight".to_owned(), vec![11, 8]);
            tiny.tensors.insert("model.layers.0.self_attn.k_proj.weight".to_owned(), vec![8, 8]);
            tiny.write(folder);
        }),
        refusal("a file that was cut", |folder| {
            patched(folder, &|bytes| bytes.truncate(bytes.len() - 9));
        }),
        refusal("a file of five bytes", |folder| patched(folder, &|bytes| bytes.truncate(5))),
        refusal("a header longer than the file", |folder| {
            patched(folder, &|bytes| bytes[..8].copy_from_slice(&(1_u64 << 62).to_le_bytes()));
        }),
        refusal("a header that is not JSON", |folder| patched(folder, &|bytes| bytes[8] = b'!')),
        refusal("an index that leaves its folder", |folder| {
            indexed(
                folder,
                r#"{"weight_map": {"a": "../../etc/passwd", "b": "/etc/shadow", "c": "m\u001b.safetensors"}}"#,
            );
        }),
        refusal("an invalid index", |folder| indexed(folder, r#"{"weight_map": 3}"#)),
        refusal("an index of missing files", |folder| {
            Tiny::new().write_sharded(folder);
            fs::remove_file(folder.join("model-3.safetensors")).unwrap();
        }),
        refusal("an index with a wrong file", |folder| {
            Tiny::new().write_sharded(folder);
            fs::copy(folder.join("model-4.safetensors"), folder.join("model-2.safetensors"))
                .unwrap();
        }),
        refusal("one tensor in two files", |folder| {
            renamed(folder, "a.safetensors");
            fs::copy(folder.join("a.safetensors"), folder.join("b.safetensors")).unwrap();
        }),
    ];
    insta::assert_snapshot!(text.concat());
}

#[test]
fn messages_for_rope_theta() {
    let folder = tempfile::tempdir().unwrap();
    Tiny::new().write(folder.path());
    let rotating = ModelFolder::open(folder.path(), Some(0.5)).unwrap_err();
    let gpt2 =
        json!({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 12});
    fs::write(folder.path().join("config.json"), gpt2.to_string()).unwrap();
    let learned = ModelConfig::read(folder.path(), Some(1e4)).unwrap_err();
    insta::assert_snapshot!(shown(folder.path(), &[rotating, learned].concat()));
}

#[test]
fn messages_for_distances_and_windows() {
    let spec = |changes: &[(&str, Value)]| {
        let folder = tempfile::tempdir().unwrap();
        let mut tiny = Tiny::new();
        tiny.config["num_hidden_layers"] = json!(8);
        for (key, value) in changes {
            tiny.config[key] = value.clone();
        }
        tiny.write_config(folder.path());
        ModelConfig::read(folder.path(), None).unwrap().spec().clone()
    };
    let gpt2 = [
        ("model_type", json!("gpt2")),
        ("n_embd", json!(8)),
        ("n_head", json!(2)),
        ("n_layer", json!(8)),
    ];
    let mistral = [("model_type", json!("mistral")), ("sliding_window", json!(16))];
    let types = json!(["sliding_attention", "sliding_attention", "full_attention"]);
    let gemma = [
        ("model_type", json!("gemma3_text")),
        ("sliding_window", json!(16)),
        ("layer_types", types),
    ];
    let llama4 = [
        ("model_type", json!("llama4_text")),
        ("attention_chunk_size", json!(32)),
        ("head_dim", json!(4)),
    ];
    let problems = [
        spec(&mistral).distance_problem(16),
        spec(&gemma).distance_problem(100),
        spec(&llama4).distance_problem(32),
        spec(&gpt2).window_problem(65),
    ];
    assert!(spec(&mistral).distance_problem(15).is_none());
    assert!(spec(&gpt2).window_problem(64).is_none());
    insta::assert_snapshot!(shown(Path::new("-"), &problems.map(Option::unwrap)));
}
