//! Whole models on several devices, simulated within memory budgets: for any number of devices and any faults, results
//! have the bytes of the processor.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::tables::{strings, table, token_lists, write_parquet};
use crate::support::{Answer, Pipeline, Workspace, check_accounting, count, demo_model};

const TOKENS: usize = 128;
const WINDOWS: usize = 96;

/// Windows of the demo model, and a pipeline that measures them with `devices` as settings of `shard-across-devices`.
fn workspace(devices: &str) -> Workspace {
    let workspace = Workspace::new();
    let window =
        |seed: usize| (0..TOKENS).map(|t| ((t * t + 31 * seed) % 400 + 3) as u32).collect();
    let windows: Vec<Vec<u32>> = (0..WINDOWS).map(window).collect();
    let ids = (0..WINDOWS).map(|index| format!("document-{index}"));
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(&windows))]);
    write_parquet(&workspace.path("input/windows.parquet"), &input, 8);
    workspace.link("model", &demo_model());
    let pipeline = Pipeline::tokens("", TOKENS)
        .without_model(None)
        .devices(devices)
        .measure("language-model, model: model, short_context_tokens: 0, attention_layers: [1]")
        .score("terms: [{statistic: mean_loss, weight: 1}]")
        .filter("keep_fraction: 0.5");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

fn longsift(workspace: &Workspace, devices: &str, arguments: &[&str]) -> Answer {
    let mut command = workspace.command(arguments);
    command.env("LONGSIFT_SIMULATED_DEVICES", devices).env_remove("CUDA_VISIBLE_DEVICES");
    Answer::from_output(command.output().unwrap())
}

fn run(workspace: &Workspace, devices: &str) -> Answer {
    longsift(workspace, devices, &["run", "pipeline.yaml", "-q"])
}

/// Results of a run on the processor, and the bytes of a window.
fn expected() -> &'static (BTreeMap<String, String>, u64) {
    static EXPECTED: OnceLock<(BTreeMap<String, String>, u64)> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let workspace = workspace("devices: cpu");
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
        let plan = workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).success();
        let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
        (workspace.results(), count(&plan["whole_models"][0], "window_bytes"))
    })
}

/// Runs the pipeline on simulated devices and checks the results against those of the processor.
fn same_bytes(devices: &str) -> Value {
    let workspace = workspace("headroom_fraction: 0");
    let summary = run(&workspace, devices).success().summary();
    check_accounting(&summary);
    assert_eq!(workspace.results(), expected().0, "{devices}: {summary}");
    summary
}

fn steps(summary: &Value, name: &str) -> u64 {
    summary["devices"]["steps"][name].as_u64().unwrap_or(0)
}

/// Tokens that each device measured.
fn tokens(summary: &Value) -> Vec<u64> {
    let devices = summary["devices"]["list"].as_array().unwrap();
    devices.iter().map(|device| count(device, "tokens")).collect()
}

#[test]
fn any_number_of_devices_gives_the_bytes_of_the_processor() {
    for number in [1, 2, 8] {
        // Devices that are slower than the processor all get their share.
        let summary = same_bytes(&format!("{number}x4GB:milliseconds=200"));
        let tokens = tokens(&summary);
        assert_eq!(tokens.len(), number);
        assert_eq!(tokens.iter().sum::<u64>(), (WINDOWS * TOKENS) as u64, "{summary}");
        let busy = tokens.iter().filter(|tokens| **tokens > 0).count();
        assert!(busy >= number.min(4), "{summary}");
        assert_eq!(steps(&summary, "out_of_memory"), 0, "reserved memory is available");
    }
}

#[test]
fn little_memory_takes_smaller_groups_of_windows() {
    let room = expected().1 * 21 / 20;
    let summary = same_bytes(&format!("2x{room}"));
    assert_eq!(steps(&summary, "out_of_memory"), 0, "{summary}");
    for device in summary["devices"]["list"].as_array().unwrap() {
        // With more memory, three pieces of 2,048 tokens or more.
        assert!(count(device, "pieces") > 3, "{summary}");
        assert!(count(device, "most_reserved_bytes") <= room, "{summary}");
    }
}

#[test]
fn a_device_that_loses_memory_or_fails_changes_no_byte() {
    let window = expected().1;
    let free = window * 21 / 20;
    // Another program takes all but the memory of a few windows when the first group begins.
    let (total, neighbour) = (64 * window, 64 * window - free);
    let summary = same_bytes(&format!("1x{total}:neighbour={neighbour}:neighbour_after=1"));
    assert!(steps(&summary, "out_of_memory") > 0, "{summary}");
    assert!(steps(&summary, "window_groups") > 0, "{summary}");
    let losing = format!("1x{total}:neighbour={total}:neighbour_after=1,1x{total}");
    let summary = same_bytes(&losing);
    assert!(tokens(&summary)[1] >= (WINDOWS / 2 * TOKENS) as u64, "{summary}");
    let summary = same_bytes(&format!("1x{free}:lost=1,1x{free}:failed=2,1x{free}"));
    assert_eq!(steps(&summary, "device_retired"), 1, "{summary}");
    assert!(steps(&summary, "device_failed") > 0, "{summary}");
}

#[test]
fn a_run_that_lost_all_devices_can_be_finished_on_others() {
    let workspace = workspace("headroom_fraction: 0");
    let dead = run(&workspace, "2x4GB:lost=1").expect(4);
    assert!(dead.stderr.contains("no device is left"), "{}", dead.stderr);
    let summary = run(&workspace, "3x4GB").success().summary();
    check_accounting(&summary);
    assert_eq!(workspace.results(), expected().0);
}

#[test]
fn a_window_that_fits_no_device_is_refused_at_plan_and_smaller_devices_are_named() {
    let window = expected().1;
    let workspace = workspace("headroom_fraction: 0");
    let plan = |devices: &str| longsift(&workspace, devices, &["plan", "pipeline.yaml"]);
    let refused = plan(&format!("2x{}", window / 2)).expect(2).stderr;
    assert!(refused.contains("a window of 128 tokens takes"), "{refused}");
    assert!(refused.contains("in `language-model`, but cuda:0, cuda:1 has only"), "{refused}");
    assert!(refused.contains("lower `window_tokens`"), "{refused}");
    let devices = format!("1x{},1x4GB", window / 2);
    let answer = plan(&devices).success();
    assert!(answer.stderr.contains("but cuda:0 has only"), "{}", answer.stderr);
    assert!(answer.stdout.contains(" on cuda:0, cuda:1, "), "{}", answer.stdout);
    assert_eq!(tokens(&same_bytes(&devices))[0], 0);
}

#[test]
fn a_window_that_fits_no_absent_gpu_is_refused_and_smaller_gpus_are_named() {
    let workspace = workspace("headroom_fraction: 0.5");
    let plan = |devices: &str| {
        workspace.longsift(&["plan", "pipeline.yaml", "--devices", devices, "--format", "json"])
    };
    let bytes = |answer: &Answer| {
        let plan: Value = serde_json::from_str(&answer.stdout).unwrap();
        (plan["absent"]["whole_models"][0].clone(), plan["warnings"].to_string())
    };
    let (fitting, warnings) = bytes(&plan("8xL4-24GB").success());
    assert!(!warnings.contains("has only"), "{warnings}");
    let window = count(&fitting, "window_bytes");
    // Half of the memory stays unused.
    let gigabytes = |bytes: u64| format!("Small:{}", bytes as f64 / 1e9);
    let small = gigabytes(2 * window - 2_000_000);
    let refused = plan(&format!("2x{small}")).expect(2).stderr;
    assert!(refused.contains("in `language-model`, but Small has only"), "{refused}");
    assert!(refused.contains("name GPUs with more memory"), "{refused}");
    let (mixed, warnings) = bytes(&plan(&format!("{small},1xL4-24GB")).success());
    assert!(warnings.contains("but Small has only"), "{warnings}");
    // Only the other GPU counts.
    let (one, _) = bytes(&plan("1xL4-24GB").success());
    assert_eq!(mixed["least_seconds"], one["least_seconds"]);
    plan(&gigabytes(2 * window + 2)).success();
}
