//! The measure `language-model` through the program: every case of tiny checkpoints, the mini model on real windows,
//! and its use in a pipeline.

use arrow_array::{Array, RecordBatch};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::support::tables::{
    float_lists, floats, integers, read_parquet, read_scores, strings, table, texts, token_lists,
    write_parquet,
};
use crate::support::{
    Pipeline, Workspace, backends, check_accounting, copy_folder, count, demo_model, numbers,
    read_json, repository, shared,
};

/// Windows of these ids, one document each, and a pipeline that measures them with `settings`.
fn prepared(windows: &[Vec<u32>], settings: &str) -> (Workspace, Pipeline) {
    let workspace = Workspace::new();
    let ids = (0..windows.len()).map(|index| format!("document-{index}"));
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(windows))]);
    write_parquet(&workspace.path("input/windows.parquet"), &input, 2);
    let pipeline = Pipeline::tokens("", windows[0].len())
        .without_model(None)
        .measure(&format!("language-model, model: model, {settings}"));
    (workspace, pipeline)
}

/// Scores by this statistic and keeps everything.
fn ranked_by(pipeline: Pipeline, statistic: &str) -> Pipeline {
    pipeline
        .score(&format!("terms: [{{statistic: {statistic}, weight: 1}}]"))
        .filter("keep_fraction: 1")
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

/// The value of a number, if not null.
fn optional(scores: &RecordBatch, name: &str, row: usize) -> Option<f64> {
    let column = scores.column_by_name(name).unwrap_or_else(|| panic!("{name}"));
    column.is_valid(row).then(|| floats(&scores.slice(row, 1), name)[0])
}

/// Compares values. `tolerance`: absolute, as a function of the expected value.
fn close(what: &str, got: Option<f64>, want: &Value, tolerance: impl Fn(f64) -> f64) {
    match (got, want.as_f64()) {
        (None, None) => {}
        (Some(got), Some(want)) => {
            assert!((got - want).abs() <= tolerance(want), "{what}: {got} for {want}");
        }
        both => panic!("{what}: {both:?}"),
    }
}

/// Checks that all columns of a row are within the tolerances of a case.
fn check(scores: &RecordBatch, row: usize, case: &Value) {
    let (expected, tolerances) = (&case["expected"], &case["tolerances"]);
    let mean = tolerances["mean_abs"].as_f64().unwrap();
    let column = |name: &str| optional(scores, name, row);
    close("mean_loss", column("mean_loss"), &expected["mean_nll"], |_| mean);
    close("perplexity", column("perplexity"), &expected["perplexity"], |want| mean * want);
    let gain = &expected["gain"];
    close("long_gain", column("long_gain"), &gain["mean_gain"], |_| mean);
    close("longfilter", column("longfilter"), &gain["longfilter"], |_| mean);
    close("key_share", column("key_share"), &gain["key_share"], |_| 1e-12);
    close("longppl", column("longppl"), &gain["longppl"], |want| mean * want);
    let count = |name: &str| integers(&scores.slice(row, 1), name)[0];
    assert_eq!(Some(count("counted_tokens")), gain["n_counted"].as_i64());
    assert_eq!(Some(count("key_tokens")), gain["n_key"].as_i64());
    assert_eq!(Some(count("loss_tokens")), gain["n_all"].as_i64());
    let values = [("dependency_strength", "proportion"), ("far_variance", "variance")];
    for (column, name) in values.into_iter().filter(|(_, name)| expected.get(*name).is_some()) {
        let heads: Vec<Value> = expected[name].as_array().unwrap().clone();
        let relative = |layer: usize| {
            let of_layer = &tolerances[format!("{name}_rel_per_layer")][layer];
            of_layer.as_f64().unwrap_or_else(|| tolerances[format!("{name}_rel")].as_f64().unwrap())
        };
        let floor = tolerances["abs_floor"].as_f64().unwrap_or(1e-12);
        let by_head = &float_lists(scores, &format!("layer_{column}_by_head"))[row];
        let by_layer = &float_lists(scores, &format!("layer_{column}"))[row];
        assert_eq!(by_layer.len(), heads.len());
        let mut got = by_head.iter();
        for (layer, heads) in heads.iter().enumerate() {
            let tolerance = |want: f64| floor + relative(layer) * want.abs();
            let what = format!("{column} of layer {layer}");
            for want in heads.as_array().unwrap() {
                close(&what, got.next().copied(), want, tolerance);
            }
            let want = &expected[format!("mean_{name}")][layer];
            close(&what, Some(by_layer[layer]), want, tolerance);
            close(
                &what,
                optional(scores, &format!("{column}_layer_{layer}"), row),
                want,
                tolerance,
            );
        }
        assert_eq!(got.next(), None);
    }
    if let Some(ladm) = expected.get("ladm") {
        let relative = tolerances["cds_rel"].as_f64().unwrap_or(1e-3);
        let by_layer = &float_lists(scores, "layer_cds")[row];
        let wanted = ladm["cds"].as_array().unwrap();
        for (got, want) in by_layer.iter().zip(wanted) {
            close("cds", Some(*got), want, |want| relative * want);
        }
        assert_eq!(by_layer.len(), wanted.len());
        close("cds", optional(scores, "cds", row), &ladm["mean_cds"], |want| relative * want);
    }
}

/// The settings of a case.
fn settings(case: &Value, layers: usize) -> String {
    let layers: Vec<usize> = (0..layers).collect();
    let ladm = case["expected"].get("ladm").map_or(String::new(), |ladm| {
        format!(
            ", ladm: {{span_tokens: {}, d_afs: {}, d_cds: {}, keep_at_start: {}}}",
            ladm["span"], ladm["d_afs"], ladm["d_cds"], ladm["keep_at_start"]
        )
    });
    let short = &case["short_context"];
    if case["expected"].get("proportion").is_none() {
        return format!("short_context_tokens: {short}");
    }
    format!("short_context_tokens: {short}, sink_tokens: 0, attention_layers: {layers:?}{ladm}")
}

fn case(set: &str, name: &str) {
    let folder = shared(&format!("{set}/{name}"));
    let case = read_json(&folder.join("case.json"));
    let layers = case["layers"].as_u64().unwrap() as usize;
    let window = ids(&case["input_ids"]);
    for backend in backends(&folder) {
        let settings = settings(&case, layers);
        let (workspace, pipeline) = prepared(std::slice::from_ref(&window), &settings);
        workspace.link("model", &folder);
        let pipeline = ranked_by(pipeline, "mean_loss");
        let summary = workspace.run_with(&pipeline, &["--backend", backend]);
        assert_eq!((&summary["windows_scored"], &summary["kept"]), (&json!(1), &json!(1)));
        check(&read_scores(&workspace.path("out.run")), 0, &case);
    }
}

macro_rules! cases {
    ($set:literal: $($name:ident)*) => {
        $(#[test]
        #[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
        fn $name() {
            super::case($set, stringify!($name));
        })*
    };
}

mod every_column_is_that_of_the_models_own_code {
    cases!("conformance-lm":
        gemma2_s150 gemma3_text_s141 gpt2_s130 gpt_neox_s127 granite_s121 llama_gqa_llama3rope_s257
        llama_untied_bf16_sharded_s193 mistral_sw_s160 olmo2_s111 opt_350m_s120 opt_preln_s101 phi3_longrope_s150
        phi3_s96 qwen2_bias_tied_s131 qwen3_s129 smollm3_s143 stablelm_s99 starcoder2_s120);
    cases!("conformance-gla":
        gla_340m_tied_bf16_s210 gla_7b_gqa_relu_nogate_sharded_s160 gla_default_s193 gla_hybrid_s150
        gla_mqa_clamp_nonaffine_s111 gla_shortconv_gqa_s131 gla_strong_gates_s257);
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn every_case_has_a_test() {
    let source = include_str!("language_model.rs");
    for set in ["conformance-lm", "conformance-gla"] {
        for case in read_json(&shared(&format!("{set}/MANIFEST.json")))["cases"].as_array().unwrap()
        {
            let name = case["name"].as_str().unwrap();
            assert!(source.contains(name), "{name}");
        }
    }
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn attention_of_gated_linear_attention_is_refused_at_plan_with_the_reason() {
    let folder = shared("conformance-gla/gla_hybrid_s150");
    let window = ids(&read_json(&folder.join("case.json"))["input_ids"]);
    let refused = |settings: &str, statistic: &str| {
        let (workspace, pipeline) = prepared(std::slice::from_ref(&window), settings);
        workspace.link("model", &folder);
        workspace.write("pipeline.yaml", ranked_by(pipeline, statistic).to_string());
        workspace
    };
    let layers = "losses: false, attention_layers: [1]";
    let workspace = refused(layers, "dependency_strength_layer_1");
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    assert!(answer.contains("weights are signed and not normalised"), "{answer}");
    assert!(answer.contains("attention_layers"), "{answer}");
    let workspace = refused("short_context_tokens: 32", "long_gain");
    let map = ["map", "pipeline.yaml", "--document", "document-0", "--layer", "1"];
    let answer = workspace.longsift(&map).expect(2).stderr;
    assert!(answer.contains("weights are signed and not normalised"), "{answer}");
    let answer = workspace.longsift(&["inspect", "model"]).expect(2).stderr;
    assert!(answer.contains("weights are signed and not normalised"), "{answer}");
    let plan = ["plan", "pipeline.yaml", "--devices", "8xH100-80GB"];
    let answer = workspace.longsift(&plan).success().stdout;
    let why = "GPUs do not compute the gated linear attention of `language-model`";
    assert!(answer.contains(why), "{answer}");
}

/// The windows of the mini model's cases.
fn mini_windows() -> (Value, Vec<Vec<u32>>) {
    let folder = shared("models/mini");
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    let expected = read_json(&folder.join("expected_lm.json"));
    let window = |window: &Value| {
        let corpus = window["file"].as_str().unwrap().trim_start_matches("dev/");
        let corpus = read_parquet(&shared(&format!("corpora/{corpus}")));
        let row = texts(&corpus, "data_id").iter().position(|id| window["data_id"] == id.as_str());
        let text = texts(&corpus, "text").swap_remove(row.unwrap());
        let ids = tokenizer.encode(text, false).unwrap();
        let field = |name: &str| window[name].as_u64().unwrap() as usize;
        ids.get_ids()[field("token_start")..field("token_end")].to_vec()
    };
    let windows = expected["windows"].as_array().unwrap().iter().map(window).collect();
    (expected, windows)
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn the_mini_model_matches_its_own_code_on_real_windows() {
    let (expected, windows) = mini_windows();
    let cases = expected["windows"].as_array().unwrap();
    let folder = shared("models/mini");
    for backend in backends(&folder) {
        let (workspace, pipeline) = prepared(&windows, &settings(&cases[0], 2));
        workspace.link("model", &folder);
        workspace.run_with(&ranked_by(pipeline, "long_gain"), &["--backend", backend]);
        let scores = read_scores(&workspace.path("out.run"));
        for (row, case) in cases.iter().enumerate() {
            check(&scores, row, case);
        }
    }
}

#[test]
fn attention_of_layer_zero_equals_first_layer_attention() {
    let window = |seed: u32| (0..300).map(|token| (token * token + 31 * seed) % 400 + 3).collect();
    let windows: Vec<Vec<u32>> = (0..3).map(window).collect();
    let far = "min_distance_tokens: 64";
    let (workspace, mut pipeline) =
        prepared(&windows, &format!("losses: false, sink_tokens: 0, attention_layers: [0], {far}"));
    workspace.link("model", &demo_model());
    pipeline.model = "model: model".to_owned();
    workspace.run(&ranked_by(pipeline.attention(far), "dependency_strength"));
    let scores = read_scores(&workspace.path("out.run"));
    for statistic in ["dependency_strength", "far_variance"] {
        let first_layer = float_lists(&scores, &format!("{statistic}_by_head"));
        let layer_zero = float_lists(&scores, &format!("layer_{statistic}_by_head"));
        assert_eq!(first_layer.len(), windows.len());
        for (want, got) in first_layer.iter().flatten().zip(layer_zero.iter().flatten()) {
            assert!(*want > 0.0, "{statistic}: {want}");
            assert!((got - want).abs() <= 1e-6 * want, "{statistic}: {got} for {want}");
        }
    }
}

/// Two windows of the demo model's first tokens.
fn demo(settings: &str) -> (Workspace, Pipeline) {
    let window = |seed: u32| (0..64).map(|token| (token * token + 31 * seed) % 400 + 3).collect();
    let windows: Vec<Vec<u32>> = (0..6).map(window).collect();
    let (workspace, pipeline) = prepared(&windows, settings);
    workspace.link("model", &demo_model());
    (workspace, ranked_by(pipeline, "mean_loss"))
}

/// The message with which a plan of these settings is rejected.
fn refused(settings: &str) -> String {
    let (workspace, pipeline) = demo(settings);
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr
}

#[test]
fn impossible_model_settings_are_rejected_at_plan() {
    let all = [
        refused("short_context_tokens: 64"),
        refused("short_context_tokens: 16, attention_layers: [0, 2]"),
        refused("short_context_tokens: 16, attention_layers: [{layer: 1, heads: [0, 4]}]"),
        refused("short_context_tokens: 0, attention_layers: [1], min_distance_tokens: 64"),
        refused("losses: false"),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn a_model_of_another_vocabulary_is_refused_with_the_first_id_that_differs() {
    let (workspace, _) = demo("short_context_tokens: 16");
    copy_folder(&demo_model(), &workspace.path("other"));
    let path = workspace.path("other/tokenizer.json");
    let mut tokenizer = read_json(&path);
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let names: Vec<String> = vocabulary
        .iter()
        .filter(|(_, id)| (500..502).contains(&id.as_u64().unwrap()))
        .map(|(name, _)| name.clone())
        .collect();
    let (one, two) = (vocabulary[&names[0]].clone(), vocabulary[&names[1]].clone());
    (vocabulary[&names[0]], vocabulary[&names[1]]) = (two, one);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let ids = table(&[("id", strings(["a"])), ("text", strings(["some text"]))]);
    write_parquet(&workspace.path("texts/a.parquet"), &ids, 1);
    let pipeline = Pipeline::text("model", 64)
        .measure("language-model, model: other, short_context_tokens: 16")
        .to_string()
        .replace("path: input", "path: texts");
    workspace.write("pipeline.yaml", pipeline);
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    assert!(
        answer.contains("the vocabulary of this model differs from the pipeline's: id 500 is"),
        "{answer}"
    );
}

/// The demo model with the bytes of its weights changed.
fn damaged(workspace: &Workspace, change: impl FnOnce(&mut Vec<u8>)) {
    std::fs::remove_file(workspace.path("model")).unwrap();
    copy_folder(&demo_model(), &workspace.path("model"));
    let path = workspace.path("model/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Position of a text among bytes.
fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

/// Writes a bf16 NaN into a tensor.
fn put_nan(bytes: &mut [u8], tensor: &str) {
    put(bytes, tensor, 0x7FC0, 1);
}

/// Writes a bf16 number into the first numbers of a tensor.
fn put(bytes: &mut [u8], tensor: &str, number: u16, count: usize) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let start = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    let first = &mut bytes[8 + length + start..][..2 * count];
    first.copy_from_slice(&number.to_le_bytes().repeat(count));
}

#[test]
fn a_missing_tensor_of_an_upper_layer_and_a_missing_head_are_named_at_plan() {
    let (workspace, pipeline) = demo("short_context_tokens: 16");
    workspace.write("pipeline.yaml", pipeline.to_string());
    damaged(&workspace, |bytes| {
        let at = find(bytes, "model.layers.1.mlp.up_proj.weight");
        bytes[at + "model.layers.1.mlp.up_pro".len()] = b'x';
    });
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(3).stderr;
    assert!(answer.contains("has no `model.layers.1.mlp.up_proj.weight`"), "{answer}");
    let (workspace, _) = demo("short_context_tokens: 16");
    workspace.write("pipeline.yaml", pipeline.to_string());
    damaged(&workspace, |_| ());
    let config = workspace.path("model/config.json");
    let mut json = read_json(&config);
    json["tie_word_embeddings"] = json!(false);
    std::fs::write(config, json.to_string()).unwrap();
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(3).stderr;
    assert!(
        answer.contains("lm_head.weight") && answer.contains("tie_word_embeddings"),
        "{answer}"
    );
}

#[test]
fn a_nan_weight_ends_the_run_and_keeps_measured_windows() {
    let tensor = "model.layers.1.mlp.down_proj.weight";
    for backend in backends(&demo_model()) {
        let (workspace, pipeline) = demo("short_context_tokens: 16");
        damaged(&workspace, |bytes| put_nan(bytes, tensor));
        workspace.write("pipeline.yaml", pipeline.to_string());
        let run =
            |pipeline: &str| workspace.longsift(&["run", pipeline, "-q", "--backend", backend]);
        let answer = run("pipeline.yaml").expect(3).stderr;
        assert!(answer.contains(&format!("`{tensor}` holds NaN")), "{answer}");
        assert!(!workspace.path("out/data").exists());
        // Its attention does not need the tensor.
        workspace.write("layers.yaml", layers_only(&pipeline));
        run("layers.yaml").success();
    }
}

/// Measures the attention of all layers instead of losses.
fn layers_only(pipeline: &Pipeline) -> String {
    pipeline
        .to_string()
        .replace("short_context_tokens: 16", "losses: false, attention_layers: [0, 1]")
        .replace("statistic: mean_loss", "statistic: dependency_strength_layer_1")
        .replace("path: out,", "path: layers,")
}

#[test]
fn attention_that_is_not_finite_quarantines_windows_and_hidden_states_end_the_run() {
    for backend in backends(&demo_model()) {
        // The largest number in all queries of the last layer: its dot products are infinite.
        let (workspace, pipeline) = demo("short_context_tokens: 16");
        damaged(&workspace, |bytes| {
            put(bytes, "model.layers.1.self_attn.q_proj.weight", 0x7F7F, 256 * 256);
        });
        let all = "max_quarantined_fraction: 1";
        workspace.write("layers.yaml", layers_only(&pipeline.clone().input(all)));
        let run =
            |pipeline: &str| workspace.longsift(&["run", pipeline, "-q", "--backend", backend]);
        let summary = run("layers.yaml").success().summary();
        assert_eq!((&summary["quarantined"], &summary["kept"]), (&json!(6), &json!(0)));
        let quarantine = read_parquet(&workspace.path("layers.run/quarantine"));
        for message in texts(&quarantine, "longsift_message") {
            assert!(message.contains("the attention of layer 1 is not finite"), "{message}");
        }
        // A run that needs the losses ends, because those of all windows are lost.
        workspace.write("pipeline.yaml", pipeline.input(all).to_string());
        let answer = run("pipeline.yaml").expect(3).stderr;
        assert!(answer.contains("the hidden states after layer 1 are not finite"), "{answer}");
    }
}

#[test]
fn a_named_kernel_computes_the_model_and_is_part_of_the_identity() {
    let (workspace, _) = demo("short_context_tokens: 16");
    let pipeline = "version: 1\nname: test\ninput: {path: input, id_column: id, tokens_column: tokens}\nstages:\n  \
                    - {stage: tokenize, window_tokens: 64, bos: 0}\n  \
                    - {stage: language-model, model: model, short_context_tokens: 16}\n  \
                    - {stage: score, terms: [{statistic: mean_loss}]}\n  - {stage: filter, keep_fraction: 0.5}\n\
                    output: {path: out}\n";
    workspace.write("pipeline.yaml", pipeline);
    let run = |more: &[&str]| workspace.longsift(&[&["run", "pipeline.yaml", "-q"], more].concat());
    for (kernel, why) in [
        (
            "portable-int16",
            "rounds queries and keys to 16-bit integers, but `language-model` computes float32 numbers",
        ),
        ("cuda-f32", "runs"),
        ("abacus", "unknown kernel `abacus`"),
    ] {
        let stderr = run(&["--kernel", kernel]).expect(2).stderr;
        assert!(
            stderr.contains(why) && stderr.contains("this machine has portable-f32"),
            "{stderr}"
        );
    }
    let summary = run(&["--kernel", "portable-f32"]).success().summary();
    assert_eq!(summary["kernel"], "portable-f32");
    let lock = read_json(&workspace.path("out.run/pipeline.lock"));
    let facts = &lock["identity"]["measures"]["language-model"]["facts"];
    assert_eq!(facts["model_kernel"], "portable-f32");
    assert_eq!(facts["statistics_version"], longsift_kernels::STATISTICS_VERSION);
    assert_eq!(facts["forward_version"], longsift_stages::model::FORWARD_VERSION);
    let (windows, selection) = (&lock["identity"]["windows"], &lock["identity"]["selection"]);
    assert_eq!(windows["windows_version"], longsift_stages::tokenize::WINDOWS_VERSION);
    assert_eq!(selection["selection_version"], longsift_stages::score::SELECTION_VERSION);
    // A run directory is repeated with its original kernel.
    let again = workspace.longsift(&["run", "out.run", "-q"]).success().summary();
    assert_eq!(again["status"], "nothing_to_do");
}

#[cfg(not(feature = "candle"))]
#[test]
fn a_backend_that_this_build_lacks_is_refused_at_plan() {
    let (workspace, pipeline) = demo("short_context_tokens: 16");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let refused = |arguments: &[&str]| {
        let plan = [&["plan", "pipeline.yaml"], arguments].concat();
        let answer = workspace.longsift(&plan).expect(2).stderr;
        assert!(answer.contains("this build does not have the backend candle"), "{answer}");
        assert!(answer.contains("--features candle"), "{answer}");
    };
    refused(&["--backend", "candle"]);
    refused(&["--set", "stages.language-model.precision=bf16"]);
    workspace.longsift(&["plan", "pipeline.yaml", "--backend", "own"]).success();
}

#[test]
fn the_time_on_absent_gpus_follows_from_the_operations_of_the_model() {
    let (workspace, pipeline) = demo("short_context_tokens: 16, attention_layers: [1]");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let plan = |more: &[&str]| {
        let plan = ["plan", "pipeline.yaml", "--devices", "8xH100-80GB"];
        workspace.longsift(&[&plan[..], more].concat()).success().stdout
    };
    let json: Value = serde_json::from_str(&plan(&["--format", "json"])).unwrap();
    let absent = &json["absent"];
    let whole = &absent["whole_models"][0];
    // The window and six short ones of 16 tokens, which count 8 losses each.
    let (tokens, losses) = (64 + 6 * 16, 63 + 6 * 8);
    let pairs = 64 * 65 / 2 + 6 * 16 * 17 / 2;
    let (hidden, wide, keys, vocabulary, layers) = (256, 704, 128, 8192, 2);
    let layer = 2 * hidden * hidden + 2 * keys * hidden + 3 * wide * hidden;
    let dense = layers * tokens * layer + losses * vocabulary * hidden;
    // Products with keys and values, and those with keys again for the statistics of one layer.
    let attention = layers * 2 * pairs * hidden + 64 * 65 / 2 * hidden;
    let products = f64::from(2 * (dense + attention));
    assert_eq!(whole["operations"]["products"], json!(products));
    assert_eq!((&whole["windows"], &whole["bound_by"]), (&json!(6), &json!("products")));
    let seconds = 6.0 * products / 67e12 / 8.0;
    let near = |got: &Value, want: f64| {
        let got = got.as_f64().unwrap();
        assert!((got - want).abs() < 1e-12 * want, "{got} for {want}");
    };
    near(&whole["least_seconds"], seconds);
    near(&absent["least_seconds"], seconds);
    near(&absent["least_gpu_hours"], 8.0 * seconds / 3600.0);
    let text = plan(&[]);
    let part = "for `language-model` if guards reject none of its 6 (products, f32)";
    assert!(text.contains(part) && text.contains("a roofline bound"), "{text}");
    let sampled = plan(&["--format", "json", "--set", "stages.language-model.sample_fraction=0.5"]);
    let sampled: Value = serde_json::from_str(&sampled).unwrap();
    near(&sampled["absent"]["least_seconds"], seconds / 2.0);
}

#[test]
fn the_own_backend_refuses_bf16() {
    let (workspace, pipeline) = demo("short_context_tokens: 16, precision: bf16");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let plan = ["plan", "pipeline.yaml", "--backend", "own"];
    let answer = workspace.longsift(&plan).expect(2).stderr;
    assert!(
        answer.contains("`precision: bf16` is computed by the backend candle only"),
        "{answer}"
    );
}

#[cfg(feature = "candle")]
#[test]
fn the_backend_is_part_of_the_identity() {
    let (workspace, pipeline) = demo("short_context_tokens: 16");
    let own = workspace.run_with(&pipeline, &["--backend", "own"]);
    let candle = ["run", "pipeline.yaml", "-q", "--backend", "candle"];
    let answer = workspace.longsift(&candle).expect(2).stderr;
    assert!(answer.contains("model_kernel: candle-"), "{answer}");
    let kernel = own["kernel"].as_str().unwrap();
    assert!(answer.contains(&format!("`--backend own --kernel {kernel}`")), "{answer}");
    workspace.longsift(&[&candle[..], &["--remeasure", "language-model"]].concat()).success();
    let answer = workspace.longsift(&candle[..3]).expect(2).stderr;
    assert!(answer.contains("`--backend candle`"), "{answer}");
    // A run directory is repeated with its original backend.
    let again = workspace.longsift(&["run", "out.run", "-q"]).success().summary();
    assert_eq!(again["status"], "nothing_to_do");
}

#[test]
fn the_demo_with_a_whole_model_computes_the_same_gains_with_every_backend() {
    let corpus = read_parquet(&repository().join("datasets/natural/corpus.parquet"));
    let books = texts(&corpus, "id").into_iter().zip(texts(&corpus, "text"));
    let books = books.filter(|(id, _)| id.starts_with("books-")).take(3);
    let mut documents: Vec<String> =
        books.map(|(_, text)| text.chars().skip(5_000).take(2_500).collect()).collect();
    documents.push("The same sentence, again and again. ".repeat(70));
    let ids = (0..documents.len()).map(|index| format!("document-{index}"));
    let kinds = ["book", "book", "book", "copies"];
    let input =
        table(&[("id", strings(ids)), ("text", strings(documents)), ("kind", strings(kinds))]);
    let mut gains: Vec<Vec<Option<f64>>> = Vec::new();
    for backend in backends(&demo_model()) {
        let workspace = Workspace::new();
        write_parquet(&workspace.path("input/a.parquet"), &input, 2);
        let pipeline = repository().join("pipelines/demo-gain.yaml");
        let mut arguments = vec!["run", pipeline.to_str().unwrap(), "--backend", backend, "-q"];
        let paths = [("input", "input"), ("output", "out")]
            .map(|(part, name)| format!("{part}.path={}", workspace.path(name).display()));
        let sizes =
            ["stages.tokenize.window_tokens=256", "stages.language-model.short_context_tokens=64"];
        for set in paths.iter().map(String::as_str).chain(sizes) {
            arguments.extend(["--set", set]);
        }
        let summary = workspace.longsift(&arguments).success().summary();
        check_accounting(&summary);
        assert!(count(&summary, "kept") > 0, "{summary}");
        let scores = read_scores(&workspace.path("out.run"));
        let rows = 0..scores.num_rows();
        gains.push(rows.map(|row| optional(&scores, "long_gain", row)).collect());
    }
    let measured = gains[0].iter().flatten().count();
    assert!(measured >= 6 && measured < gains[0].len(), "{gains:?}");
    for others in &gains[1..] {
        assert_eq!(gains[0].len(), others.len());
        for (own, other) in gains[0].iter().zip(others) {
            assert_eq!(own.is_some(), other.is_some(), "guards differ: {gains:?}");
            let difference = own.zip(*other).map_or(0.0, |(own, other)| (own - other).abs());
            assert!(difference < 1e-5, "{own:?} and {other:?}");
        }
    }
}

#[test]
fn another_model_is_rejected_until_measured_again() {
    let (workspace, pipeline) = demo("short_context_tokens: 16");
    workspace.run(&pipeline);
    let before = workspace.results();
    let nothing = workspace.run(&pipeline);
    assert_eq!(nothing["status"], "nothing_to_do");
    damaged(&workspace, |bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
    });
    let arguments = ["run", "pipeline.yaml", "-q"];
    let answer = workspace.longsift(&arguments).expect(2).stderr;
    assert!(
        answer.contains("model_weights") && answer.contains("--remeasure language-model"),
        "{answer}"
    );
    assert_eq!(workspace.results(), before);
    let again = [&arguments[..], &["--remeasure", "language-model"]].concat();
    let summary = workspace.longsift(&again).success().summary();
    assert_eq!(summary["windows_scored"], 6);
    let fresh = Workspace::copy_of(&workspace);
    fresh.longsift(&[&arguments[..], &["--fresh"]].concat()).success();
    assert_eq!(workspace.results(), fresh.results());
    assert_ne!(workspace.results(), before);
}

#[test]
fn threads_memory_and_units_change_no_bit() {
    let settings = "short_context_tokens: 12, attention_layers: [1], sink_tokens: 4";
    let (workspace, pipeline) = demo(settings);
    workspace.run_with(&pipeline, &["--threads", "1"]);
    let scores = read_scores(&workspace.path("out.run"));
    let units = pipeline.input("unit_bytes: 1024, memory_limit_bytes: 67108864");
    let (other, _) = demo(settings);
    other.run_with(&units, &["--threads", "4"]);
    let others = read_scores(&other.path("out.run"));
    for name in ["mean_loss", "long_gain", "longfilter", "dependency_strength_layer_1"] {
        let bits = |scores: &RecordBatch| -> Vec<u64> {
            floats(scores, name).into_iter().map(f64::to_bits).collect()
        };
        assert_eq!(bits(&scores), bits(&others), "{name}");
    }
}

#[test]
fn statistics_of_a_document_are_ratios_of_sums() {
    let ids: Vec<u32> = (0..150).map(|token| (token * token + 7) % 400 + 3).collect();
    let (workspace, mut pipeline) =
        prepared(std::slice::from_ref(&ids), "short_context_tokens: 12");
    workspace.link("model", &demo_model());
    pipeline.tokenize =
        "window_tokens: 40, bos: 0, short_documents: score, windows: disjoint".to_owned();
    let pipeline = ranked_by(pipeline, "long_gain").output("samples: documents");
    workspace.run(&pipeline);
    let scores = read_scores(&workspace.path("out.run"));
    let total = |name: &str| floats(&scores, name).iter().sum::<f64>();
    let count = |name: &str| integers(&scores, name).iter().sum::<i64>() as f64;
    assert!(scores.num_rows() > 1 && count("counted_tokens") > 0.0);
    let kept = read_parquet(&workspace.path("out/data"));
    let column = |name: &str| floats(&kept, &format!("longsift_{name}"))[0];
    let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-12, "{got} {want}");
    near(column("mean_loss"), total("loss_sum") / count("loss_tokens"));
    near(column("perplexity"), (total("loss_sum") / count("loss_tokens")).exp());
    near(column("long_gain"), total("gain_sum") / count("counted_tokens"));
    near(column("longfilter"), total("longfilter_sum") / count("counted_tokens"));
}

/// Losses of a window, computed by `longsift inspect`.
fn losses(workspace: &Workspace, ids: &[u32]) -> Vec<f64> {
    workspace.write("ids.json", json!(ids).to_string());
    let inspect = ["inspect", "model", "--forward", "ids.json", "--format", "json"];
    let answer: Value =
        serde_json::from_str(&workspace.longsift(&inspect).success().stdout).unwrap();
    numbers(&answer["losses"])
}

#[test]
fn the_gain_by_position_is_a_mean_over_bands_of_windows_that_reach_them() {
    let (context, step) = (12, 6);
    let window = |length: usize| (0..length as u32).map(|token| (token * token + 7) % 400 + 3);
    let windows: Vec<Vec<u32>> = [60, 30, 12].map(|length| window(length).collect()).to_vec();
    let (workspace, mut pipeline) = prepared(&windows, "short_context_tokens: 12");
    workspace.link("model", &demo_model());
    pipeline.tokenize = "window_tokens: 60, bos: 0, short_documents: score".to_owned();
    workspace.run(&ranked_by(pipeline, "mean_loss"));
    let scores = read_scores(&workspace.path("out.run"));
    let got = &float_lists(&scores.slice(0, 2), "long_gain_by_position");
    // Every short window is run as a separate window.
    let by_token = |ids: &Vec<u32>| -> Vec<f64> {
        let long = losses(&workspace, ids);
        let of_token = |token: usize| {
            let start = step * ((token - context) / step + 1);
            let short = losses(&workspace, &ids[start..ids.len().min(start + context)]);
            short[token - start - 1] - long[token - 1]
        };
        (context..ids.len()).map(of_token).collect()
    };
    let mean = |gains: &[f64]| gains.iter().sum::<f64>() / gains.len() as f64;
    let (first, second) = (by_token(&windows[0]), by_token(&windows[1]));
    let want = [
        vec![mean(&first[..12]), mean(&first[12..36]), mean(&first[36..])],
        vec![mean(&second[..12]), mean(&second[12..])],
    ];
    let near = |got: &[f64], want: &[f64]| {
        assert_eq!(got.len(), want.len(), "{got:?} for {want:?}");
        let differences = got.iter().zip(want).map(|(got, want)| (got - want).abs());
        assert!(differences.into_iter().all(|error| error < 1e-6), "{got:?} for {want:?}");
    };
    got.iter().zip(&want).for_each(|(got, want)| near(got, want));
    let column = scores.column_by_name("long_gain_by_position").unwrap();
    assert!(column.is_null(2), "no token lies beyond the short context");
    // A window counts in the bands that it reaches.
    let report = workspace.longsift(&["report", "out.run", "--format", "json"]).success().stdout;
    let report: Value = serde_json::from_str(&report).unwrap();
    let means = &report["lists"]["long_gain_by_position"];
    assert_eq!(means["windows"], json!([2, 0]));
    let both = |band: usize| f64::midpoint(want[0][band], want[1][band]);
    near(&numbers(&means["kept"]), &[both(0), both(1), want[0][2]]);
    workspace.longsift(&["report", "out.run", "--html", "page.html"]).success();
    let page = std::fs::read_to_string(workspace.path("page.html")).unwrap();
    assert!(page.contains("long gain by position") && page.contains(">4</text>"), "{page}");
}

#[test]
fn the_language_model_provides_tokenizer_and_bos() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let text =
        "The river stood behind the old house, and the old house behind the river. ".repeat(9);
    let input = table(&[("id", strings(["a"])), ("text", strings([text]))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    let mut pipeline = Pipeline::text("", 64)
        .without_model(None)
        .measure("language-model, model: model, short_context_tokens: 16");
    pipeline.tokenize = "window_tokens: 64".to_owned();
    let summary = workspace.run(&ranked_by(pipeline, "long_gain"));
    assert_eq!(summary["kept"], summary["windows_scored"]);
    let lock = read_json(&workspace.path("out.run/pipeline.lock"));
    assert_eq!(
        (&lock["identity"]["windows"]["bos"], &lock["identity"]["windows"]["bos_id"]),
        (&json!(1), &json!(0))
    );
    // The same model again under its own name, and that of the pipeline.
    let both = Pipeline::text("model", 64)
        .measure("language-model, short_context_tokens: 16")
        .measure("language-model, name: own, model: model, short_context_tokens: 16")
        .output("path: both, part_bytes: 0")
        .to_string()
        .replace("path: out, part_bytes: 0, ", "");
    workspace.write("both.yaml", both);
    workspace.longsift(&["run", "both.yaml", "-q"]).success();
    let scores = read_scores(&workspace.path("both.run"));
    assert_eq!(floats(&scores, "long_gain"), floats(&scores, "own_long_gain"));
}
