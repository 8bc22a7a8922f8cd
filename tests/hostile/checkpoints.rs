//! Malicious checkpoints: safetensors headers, indexes, configurations, links.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;

use serde_json::{Value, json};

use super::{bounded, first_line};
use crate::support::tables::{corpus, write_parquet};
use crate::support::{Answer, Pipeline, Tiny, Workspace};

/// A run of a generated model.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[64, 64]), 8);
    workspace.write("p.yaml", Pipeline::tokens("model", 64).to_string());
    workspace
}

/// Checks that a run and `inspect` reject the model, with these words in the first line of the run's message.
fn refused(workspace: &Workspace, what: &str, words: &str) -> Answer {
    let answer = bounded(workspace, what, &["run", "p.yaml", "-q"], 3);
    assert!(answer.stderr.contains(words), "{what}: {}", answer.stderr);
    answer
}

/// Replaces the weights by a header and zeros.
fn header(workspace: &Workspace, header: &str, data: u64) {
    let file = File::create(workspace.path("model/model.safetensors")).unwrap();
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0).unwrap();
    file.write_all_at(header.as_bytes(), 8).unwrap();
    file.set_len(8 + header.len() as u64 + data).unwrap();
}

fn tensor(name: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn a_valid_generated_model_runs_in_that_memory() {
    bounded(&workspace(), "a right model", &["run", "p.yaml", "-q"], 0);
}

#[test]
fn headers_with_wrong_lengths_are_rejected() {
    let workspace = workspace();
    let path = workspace.path("model/model.safetensors");
    for length in [u64::MAX, u64::MAX - 7, 1 << 63, 1 << 40, 1 << 30, 99_999_999, 1 << 25] {
        let file = File::create(&path).unwrap();
        file.write_all_at(&length.to_le_bytes(), 0).unwrap();
        // A sparse file, which takes no space, with room for some of these headers.
        file.set_len(1 << 36).unwrap();
        let answer = refused(&workspace, "a length", "it claims a header of");
        assert!(answer.stderr.contains(&length.to_string()), "{}", answer.stderr);
    }
    for (what, bytes) in [("empty", &b""[..]), ("short", b"abc"), ("no header", &[0; 8])] {
        fs::write(&path, bytes).unwrap();
        refused(&workspace, what, "is not a valid safetensors file");
    }
}

#[test]
fn overlapping_overflowing_and_misplaced_tensors_are_rejected() {
    let workspace = workspace();
    let a = tensor("a", "[2]", 0, 8);
    for (what, text, data) in [
        ("overlap", format!("{{{a},{}}}", tensor("b", "[2]", 4, 12)), 12),
        ("a gap", format!("{{{a},{}}}", tensor("b", "[2]", 12, 20)), 20),
        ("beyond the end", format!("{{{}}}", tensor("a", "[1099511627776]", 0, 1 << 42)), 8),
        ("backwards", format!("{{{}}}", tensor("a", "[2]", 8, 0)), 8),
        (
            "sizes that overflow",
            format!("{{{}}}", tensor("a", "[4294967296,4294967296,4]", 0, 8)),
            8,
        ),
        (
            "sizes that wrap to fit",
            format!("{{{}}}", tensor("a", "[9223372036854775809,2]", 0, 8)),
            8,
        ),
        ("negative sizes", format!("{{{}}}", tensor("a", "[-1,-2]", 0, 8)), 8),
        ("numbers beyond 64 bits", format!("{{{}}}", tensor("a", "[1e300]", 0, 8)), 8),
        ("brackets", "[".repeat(100_000), 0),
        ("bytes that are no text", "\u{0}".repeat(64), 0),
    ] {
        header(&workspace, &text, data);
        refused(&workspace, what, "is not a valid safetensors file");
    }
}

#[test]
fn a_header_of_very_many_tensors_takes_bounded_memory() {
    let workspace = workspace();
    let tensors: Vec<String> =
        (0..400_000).map(|index| tensor(&format!("t{index}"), "[0]", 0, 0)).collect();
    let text = format!("{{{}}}", tensors.join(","));
    assert!(text.len() < 24 << 20, "{}", text.len());
    header(&workspace, &text, 0);
    refused(&workspace, "very many tensors", "at most 131072 tensors are read");
}

#[test]
fn weights_that_are_not_finite_are_rejected() {
    let whole = workspace();
    let bytes = fs::read(whole.path("model/model.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(bytes[8..start].to_vec()).unwrap();
    let header: Value = serde_json::from_str(&text).unwrap();
    for name in ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "embed_tokens"] {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let workspace = workspace();
            let (_, tensor) =
                header.as_object().unwrap().iter().find(|(key, _)| key.contains(name)).unwrap();
            let at = start + tensor["data_offsets"][0].as_u64().unwrap() as usize;
            let mut bytes = bytes.clone();
            let rows = if name == "embed_tokens" { 97 } else { 1 };
            for row in 0..rows {
                bytes[at + 64 * row..at + 64 * row + 4].copy_from_slice(&wrong.to_le_bytes());
            }
            fs::write(workspace.path("model/model.safetensors"), bytes).unwrap();
            bounded(&workspace, &format!("{wrong} in {name}"), &["run", "p.yaml", "-q"], 3);
        }
    }
}

#[test]
fn an_index_cannot_name_outside_files_or_exhaust_memory() {
    let workspace = workspace();
    fs::rename(workspace.path("model/model.safetensors"), workspace.path("outside.safetensors"))
        .unwrap();
    let outside = workspace.path("outside.safetensors");
    let absolute = outside.to_str().unwrap();
    let index = |text: &str| {
        workspace.write("model/model.safetensors.index.json", text);
    };
    for name in [
        "../outside.safetensors",
        absolute,
        "/etc/passwd",
        "a/../../outside.safetensors",
        "..\\outside.safetensors",
        "a\u{0}.safetensors",
        "\u{1b}[2J.safetensors/",
        "",
        ".",
        "..",
    ] {
        index(&json!({ "weight_map": { "model.embed_tokens.weight": name } }).to_string());
        refused(&workspace, name, "which is not the plain name of a safetensors file");
    }
    for (what, text, words) in [
        ("no map", "[]".to_owned(), "not a valid index"),
        ("brackets", "[".repeat(100_000), "not a valid index"),
        ("brackets inside", format!("{{\"metadata\": {}", "[".repeat(100_000)), "not a valid index"),
        ("no files", r#"{"weight_map": {}}"#.to_owned(), "the checkpoint is missing tensors"),
        (
            "an absent file",
            r#"{"weight_map": {"model.embed_tokens.weight": "x.safetensors"}, "metadata": {"total_size": 1e300}}"#
                .to_owned(),
            "the checkpoint is missing tensors",
        ),
        (
            "very many tensors",
            format!(
                "{{\"weight_map\": {{{}}}}}",
                (0..1_500_000).map(|tensor| format!("\"{tensor}\":\"a.safetensors\"")).collect::<Vec<_>>().join(",")
            ),
            "more than 500000 tensors",
        ),
    ] {
        index(&text);
        refused(&workspace, what, words);
    }
    let file = File::create(workspace.path("model/model.safetensors.index.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    refused(&workspace, "an index of a terabyte", "has more than 67108864 bytes");
}

#[test]
fn configurations_of_absurd_sizes_and_values_are_refused() {
    let huge = [
        ("hidden_size", json!(1_u64 << 40)),
        ("hidden_size", json!(u64::MAX)),
        ("hidden_size", json!(-16)),
        ("hidden_size", json!(16.5)),
        ("vocab_size", json!(u64::MAX)),
        ("vocab_size", json!(1e300)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(1_u64 << 50)),
        ("num_key_value_heads", json!(3)),
        ("num_hidden_layers", json!(0)),
        ("head_dim", json!(1_u64 << 33)),
        ("max_position_embeddings", json!(-1)),
        ("rms_norm_eps", json!("1e-5")),
        ("rope_theta", json!(-1e308)),
        ("rope_theta", json!(0)),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": -1e300 })),
        (
            "rope_scaling",
            json!({ "rope_type": "longrope", "long_factor": vec![1.0; 100_000], "short_factor": [] }),
        ),
        ("rope_scaling", json!("x".repeat(1_000_000))),
        ("model_type", json!("m".repeat(1_000_000))),
        ("model_type", json!("\u{1b}[2J")),
        ("quantization_config", json!({ "quant_method": "q".repeat(100_000) })),
    ];
    for (key, value) in huge {
        let workspace = workspace();
        let config = Tiny::new().with(key, value.clone()).config;
        workspace.write("model/config.json", config.to_string());
        let what = format!("{key}: {:.40}", value.to_string());
        let answer = workspace.longsift(&["run", "p.yaml", "-q"]);
        bounded(&workspace, &what, &["run", "p.yaml", "-q"], answer.code);
        assert!([2, 3].contains(&answer.code), "{what}: exit {} {}", answer.code, answer.stderr);
        // `inspect` also rejects the files that it opens.
        let inspected = workspace.longsift(&["inspect", "model"]).code;
        assert!([0, 2, 3].contains(&inspected), "{what}: exit {inspected}");
        bounded(&workspace, &what, &["inspect", "model"], inspected);
    }
    let workspace = workspace();
    for (what, text) in [
        ("brackets", "[".repeat(1_000_000)),
        ("a list", "[]".to_owned()),
        ("values", format!("{{\"a\": [{}0]}}", "[],".repeat(1_300_000))),
        ("one key twice and again", format!("{{{}\"a\": 1}}", "\"a\": 1,".repeat(100_000))),
    ] {
        workspace.write("model/config.json", text);
        let answer = workspace.longsift(&["inspect", "model"]);
        bounded(&workspace, what, &["inspect", "model"], answer.code);
        assert!([2, 3].contains(&answer.code), "{what}: exit {} {}", answer.code, answer.stderr);
    }
    File::create(workspace.path("model/config.json")).unwrap().set_len(1 << 40).unwrap();
    refused(&workspace, "a configuration of a terabyte", "has more than 4194304 bytes");
}

/// The Hugging Face cache consists of links that lead out of the model's folder, so all links are followed; the
/// target must be a file of the right kind.
#[test]
fn links_are_followed_to_files_only() {
    let workspace = workspace();
    let snapshot = workspace.path("hub/models--a--b/snapshots/0123");
    let blobs = workspace.path("hub/models--a--b/blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    for (name, blob) in [("config.json", "aaaa"), ("model.safetensors", "bbbb")] {
        fs::copy(workspace.path("model").join(name), blobs.join(blob)).unwrap();
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    let model = "stages.load-partial-model.model=hub/models--a--b/snapshots/0123";
    bounded(&workspace, "a cache of links", &["run", "p.yaml", "-q", "--set", model], 0);
    workspace.write("secret", "root:secret-of-this-machine:0:0\n");
    Command::new("mkfifo").arg(workspace.path("pipe")).status().unwrap();
    for name in ["config.json", "model.safetensors"] {
        for (target, words) in [
            ("/dev/zero", "not a regular file"),
            ("pipe", "not a regular file"),
            ("input", "not a regular file"),
            ("absent", "No such file"),
            (name, "symbolic links"),
            ("secret", ""),
        ] {
            let path = snapshot.join(name);
            fs::remove_file(&path).unwrap();
            let target = if target == name { path.clone() } else { workspace.path(target) };
            symlink(&target, &path).unwrap();
            let what = format!("{name} → {}", target.display());
            let arguments = ["run", "p.yaml", "-q", "--fresh", "--set", model];
            let answer = bounded(&workspace, &what, &arguments, 3);
            assert!(
                answer.stderr.contains(words)
                    || first_line(&answer).contains("has no .safetensors"),
                "{what}: {}",
                answer.stderr
            );
            assert!(!answer.stderr.contains("secret-of-this-machine"), "{what}: {}", answer.stderr);
        }
        fs::remove_file(snapshot.join(name)).unwrap();
        let blob = if name == "config.json" { "aaaa" } else { "bbbb" };
        symlink(blobs.join(blob), snapshot.join(name)).unwrap();
    }
}
