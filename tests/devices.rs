//! `longsift devices`, `longsift tune` and `longsift plan --devices`.

use std::fs;

use serde_json::{Value, json};

use crate::support::faults::wait_until;
use crate::support::pages::{self, check_harmless};
use crate::support::tables::{corpus, write_parquet};
use crate::support::{Answer, Pipeline, Tiny, Workspace, fake_nvml};

const TWO: &str = "NVIDIA H100 80GB HBM3;81559;600,NVIDIA \"odd\" name;24576;20000";

fn devices(workspace: &Workspace, arguments: &[&str]) -> Answer {
    let mut command = workspace.command(&[&["devices"], arguments].concat());
    command.env("LD_LIBRARY_PATH", fake_nvml()).env("FAKE_NVML", TWO);
    Answer::from_output(command.env_remove("CUDA_VISIBLE_DEVICES").output().unwrap())
}

#[test]
fn gpus_and_the_processor_are_listed_with_their_memory() {
    let workspace = Workspace::new();
    let answer = devices(&workspace, &["--format", "json"]);
    let survey: Value = serde_json::from_str(&answer.success().stdout).unwrap();
    let gpu = &survey["devices"][0];
    assert_eq!((&gpu["device"], &gpu["name"]), (&json!("cuda:0"), &json!("NVIDIA H100 80GB HBM3")));
    let mib = |number: u64| json!(number << 20);
    assert_eq!((&gpu["total_bytes"], &gpu["used_bytes"]), (&mib(81_559), &mib(600)));
    assert_eq!(gpu["free_bytes"], mib(81_559 - 600));
    assert_eq!(survey["devices"][2]["device"], "cpu");
    assert!(survey["devices"][2]["total_bytes"].as_u64().unwrap() > 1 << 26);
    let text = devices(&workspace, &[]).success().stdout;
    assert!(text.starts_with("device  name") && text.contains("cuda:1"), "{text}");
    // Without the library no GPU is found, and the answer states it.
    let without_library = workspace
        .command(&["devices"])
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LD_LIBRARY_PATH", "")
        .output();
    assert!(without_library.unwrap().status.success());
    let hidden = workspace.longsift(&["devices"]).success().stdout;
    assert!(hidden.contains("no GPU: `CUDA_VISIBLE_DEVICES` hides every GPU"), "{hidden}");
}

#[test]
fn device_readings_are_appended_to_a_csv_file() {
    let workspace = Workspace::new();
    let arguments = ["--watch", "--count", "2", "--seconds", "1", "--csv", "devices.csv"];
    devices(&workspace, &arguments).success();
    devices(&workspace, &["--csv", "devices.csv"]).success();
    let text = fs::read_to_string(workspace.path("devices.csv")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 3, "{text}");
    assert!(lines[0].starts_with("time,device,name,uuid,total_bytes"));
    assert!(lines[2].contains(",cuda:1,\"NVIDIA \"\"odd\"\" name\",GPU-00000001"), "{text}");
}

#[test]
fn device_readings_are_drawn_for_every_device() {
    let workspace = Workspace::new();
    let arguments = ["--watch", "--count", "2", "--seconds", "1", "--html", "devices.html"];
    devices(&workspace, &arguments).success();
    let page = fs::read_to_string(workspace.path("devices.html")).unwrap();
    check_harmless(&page, 0);
    for device in ["cpu", "cuda:0", "cuda:1"] {
        assert!(page.contains(&format!(">{device}</h2>")), "{device}");
    }
    assert!(page.matches("<svg").count() >= 6 && page.contains("<b>2</b>"), "{page}");
}

fn workload(workspace: &Workspace) {
    Tiny::new()
        .with("hidden_size", json!(64))
        .with("num_attention_heads", json!(8))
        .with("num_key_value_heads", json!(4))
        .write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[3000, 2000, 1000]), 3);
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 256).to_string());
}

#[test]
fn reservations_of_a_running_longsift_are_shown() {
    let workspace = Workspace::new();
    workload(&workspace);
    let slow = "1x64MB:milliseconds=2000";
    let mut command = workspace.command(&["run", "pipeline.yaml", "-q"]);
    let mut child = command.env("LONGSIFT_SIMULATED_DEVICES", slow).spawn().unwrap();
    let file = workspace.path(&format!("cache/longsift/running/{}.json", child.id()));
    let claimed = || fs::read_to_string(&file).is_ok_and(|text| text.contains("\"in_flight\":1"));
    assert!(wait_until(&mut child, claimed));
    let claims: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&claims[0]["device"], &claims[0]["pid"]), (&json!("cuda:0"), &json!(child.id())));
    assert!(claims[0]["reserved_bytes"].as_u64().unwrap() > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(file.exists(), "the file of a killed process remains");
    let survey = workspace.longsift(&["devices", "--format", "json"]).success().stdout;
    let survey: Value = serde_json::from_str(&survey).unwrap();
    assert_eq!(
        survey["devices"][0]["reserved_bytes"], 0,
        "a dead process reserves nothing: {survey}"
    );
}

#[test]
fn tuning_prints_a_curve_and_a_valid_stage() {
    let workspace = Workspace::new();
    workload(&workspace);
    for devices in ["", "2x64MB"] {
        let arguments = ["tune", "pipeline.yaml", "--seconds", "0.05", "--html", "tuned.html"];
        let mut command = workspace.command(&arguments);
        if !devices.is_empty() {
            command.env("LONGSIFT_SIMULATED_DEVICES", devices);
        }
        let text = Answer::from_output(command.output().unwrap()).success().stdout;
        assert!(
            text.contains("windows in flight") && text.contains("key heads at a time"),
            "{text}"
        );
        let stage = &text[text.find("  - stage: shard-across-devices").unwrap()..];
        let pipeline = Pipeline::tokens("model", 256).to_string();
        let pasted = pipeline
            .replace("  - {stage: first-layer", &format!("{stage}  - {{stage: first-layer"));
        workspace.write("tuned.yaml", pasted);
        workspace.longsift(&["validate", "tuned.yaml"]).success();
        // The page draws a point for every row of the answer, twice: its speed and its memory.
        let page = fs::read_to_string(workspace.path("tuned.html")).unwrap();
        pages::check_harmless(&page, 0);
        for id in ["flight", "heads", "stage", "repeat"] {
            assert!(page.contains(&format!("<h2 id=\"{id}\">")), "{id}");
        }
        let rows = text[..text.find("  - stage").unwrap()].lines();
        let rows =
            rows.filter(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit()));
        assert_eq!(page.matches("stroke-width=\"7\"").count(), 2 * rows.count());
        assert!(page.contains("- stage: shard-across-devices"), "{page}");
    }
}

#[test]
#[cfg_attr(not(longsift_browser), ignore = "needs chromium: any machine with it runs it")]
fn tables_of_a_curve_fit_a_small_screen() {
    let workspace = Workspace::new();
    workload(&workspace);
    let arguments = ["tune", "pipeline.yaml", "--seconds", "0.05", "--html", "tuned.html"];
    workspace.longsift(&arguments).success();
    let beyond = pages::beyond_a_screen(&workspace.path("tuned.html"), 400, "th,td,pre");
    let (cells, beyond) = beyond.split_once(':').unwrap();
    assert!(cells.len() > "of 9".len() && beyond.is_empty(), "{cells}: {beyond}");
}

#[test]
fn a_pipeline_can_be_planned_for_other_gpus() {
    let workspace = Workspace::new();
    workload(&workspace);
    let pipeline = Pipeline::tokens("model", 256).devices("devices: 8, workers_per_device: 2");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let plan = |cards: &str| workspace.longsift(&["plan", "pipeline.yaml", "--devices", cards]);
    let text = plan("8xA800-80GB,1xTiny:0.001").success().stdout;
    assert!(text.contains("9 GPUs that this machine does not have, f32"), "{text}");
    assert!(text.contains("8 × A800-80GB: 37.25 kB table + 2 × "), "{text}");
    assert!(text.contains("12.00 GB headroom"), "{text}");
    assert!(text.contains("1 × Tiny: 37.25 kB table"), "{text}");
    assert!(text.contains("not estimated"), "the speed of one is not known: {text}");
    assert!(plan("8xA800-80GB").success().stdout.contains("a roofline bound"));
    let too_small = plan("1xTiny:0.00005").success().stdout;
    assert!(too_small.contains("does not fit"), "{too_small}");
    let wrong = plan("8xA800").expect(2).stderr;
    assert!(
        wrong.contains("`8xA800` is not a known GPU") && wrong.contains("A800-80GB"),
        "{wrong}"
    );
    let json = workspace.longsift(&[
        "plan",
        "pipeline.yaml",
        "--devices",
        "2xL4-24GB",
        "--format",
        "json",
    ]);
    let json: Value = serde_json::from_str(&json.success().stdout).unwrap();
    assert_eq!(json["absent"]["cards"].as_array().unwrap().len(), 2);
    assert!(json["absent"]["least_seconds"].as_f64().unwrap() > 0.0);
    let refused = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    let because = |why: &str| refused.contains(&format!("8 GPUs cannot be used: {why}"));
    // A build with `cuda` looks for the driver first.
    let no_driver = cfg!(feature = "cuda") && because("no NVIDIA driver was found");
    assert!(no_driver || because("`CUDA_VISIBLE_DEVICES` hides every GPU"), "{refused}");
}
