//! Multiple devices: the real binary with simulated ones, which compute on the CPU within memory budgets. For any
//! number of devices and any faults, results have the bytes of one device.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::faults::{Pause, Paused, wait_until};
use crate::support::tables::{corpus, read_parquet, texts, write_parquet};
use crate::support::{
    Answer, Pipeline, Tiny, Workspace, check_accounting, count, fake_nvml, files_below,
};

/// Two files of documents for a model of eight key heads, each shared by two query heads.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new()
        .with("hidden_size", json!(128))
        .with("num_attention_heads", json!(16))
        .with("num_key_value_heads", json!(8))
        .write(&workspace.path("model"));
    for (name, lengths) in [("a", [1500, 512, 900, 2048, 100]), ("b", [700, 1024, 0, 3000, 1300])] {
        let path = workspace.path(&format!("input/{name}.parquet"));
        write_parquet(&path, &corpus(name, &lengths), 3);
    }
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 512)
        .tokenize("windows: disjoint, short_documents: score")
        .input("max_quarantined_fraction: 1")
}

/// Results of a run on the CPU.
fn expected() -> &'static BTreeMap<String, String> {
    static EXPECTED: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let workspace = workspace();
        workspace.run(&pipeline());
        workspace.results()
    })
}

/// Runs `pipeline.yaml` on simulated devices.
fn run(workspace: &Workspace, devices: &str, arguments: &[&str]) -> Answer {
    let all = [&["run", "pipeline.yaml", "-q"], arguments].concat();
    Answer::from_output(simulated(workspace, devices, &all).output().unwrap())
}

fn simulated(workspace: &Workspace, devices: &str, all: &[&str]) -> Command {
    let mut command = workspace.command(all);
    on_simulated(&mut command, devices);
    command
}

fn on_simulated(command: &mut Command, devices: &str) {
    command.env("LONGSIFT_SIMULATED_DEVICES", devices).env_remove("CUDA_VISIBLE_DEVICES");
}

/// Runs the workload on simulated devices and checks the results against those of the CPU.
fn same_bytes(devices: &str, pipeline: &Pipeline) -> (Workspace, Value) {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline.to_string());
    let summary = run(&workspace, devices, &[]).success().summary();
    check_accounting(&summary);
    assert_eq!(&workspace.results(), expected(), "{devices}: {summary}");
    (workspace, summary)
}

fn steps(summary: &Value, name: &str) -> u64 {
    summary["devices"]["steps"][name].as_u64().unwrap_or(0)
}

fn pieces(summary: &Value) -> Vec<u64> {
    let devices = summary["devices"]["list"].as_array().unwrap();
    devices.iter().map(|device| count(device, "pieces")).collect()
}

/// Returns the events of a name.
fn events(workspace: &Workspace, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(workspace.path("out.run/events.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == name).collect()
}

#[test]
fn eight_devices_give_the_bytes_of_one_whole_or_by_heads() {
    let (workspace, summary) = same_bytes("8x64MB", &pipeline());
    assert_eq!(pieces(&summary).len(), 8);
    assert!(pieces(&summary).iter().filter(|pieces| **pieces > 0).count() > 1, "{summary}");
    assert_eq!(steps(&summary, "device_ready"), 8);
    assert_eq!(steps(&summary, "out_of_memory"), 0, "reserved memory is available");
    assert!(events(&workspace, "device_memory").len() >= 2, "memory is recorded repeatedly");
    let (_, by_heads) = same_bytes("8x64MB", &pipeline().devices("by: heads"));
    let (whole, split): (u64, u64) =
        (pieces(&summary).iter().sum(), pieces(&by_heads).iter().sum());
    assert!(split > 2 * whole, "{split} pieces, {whole} windows");
    same_bytes(
        "3x64MB",
        &pipeline().devices("key_heads_at_once: 3, workers_per_device: [3, 1, 2]"),
    );
}

#[test]
fn little_memory_splits_windows_by_heads() {
    // The table takes 97 rows of 24 heads; a window of 512 tokens exceeds the rest.
    let (_, summary) = same_bytes("1x300kB,1x64MB", &pipeline().devices("headroom_fraction: 0"));
    assert!(steps(&summary, "head_groups") > 0, "{summary}");
    assert_eq!(steps(&summary, "out_of_memory"), 0);
}

#[test]
fn device_failures_change_no_byte() {
    let faults = "3x64MB:out_of_memory=3,1x64MB:lost=2,1x64MB:lost=1,1x64MB";
    let (workspace, summary) = same_bytes(faults, &pipeline().devices("workers_per_device: 2"));
    assert!(steps(&summary, "out_of_memory") > 0, "{summary}");
    assert_eq!(events(&workspace, "out_of_memory").len() as u64, steps(&summary, "out_of_memory"));
    let retired = steps(&summary, "device_retired");
    let listed = summary["devices"]["list"].as_array().unwrap();
    let listed = listed.iter().filter(|device| device["retired"].is_string()).count() as u64;
    assert_eq!(retired, listed, "{summary}");
}

#[test]
fn a_run_that_lost_all_devices_can_be_finished_on_others() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let dead = run(&workspace, "2x64MB:lost=4", &[]).expect(4);
    assert!(dead.stderr.contains("no device is left"), "{}", dead.stderr);
    assert!(dead.stderr.contains("fallen off the bus"), "{}", dead.stderr);
    let summary = run(&workspace, "5x64MB", &[]).success().summary();
    assert!(count(&summary, "windows_reused") >= 8, "{summary}");
    check_accounting(&summary);
    assert_eq!(&workspace.results(), expected());
    let again = workspace.longsift(&["run", "pipeline.yaml"]).success().summary();
    assert_eq!(again["status"], "nothing_to_do", "the CPU measures nothing again");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_killed_run_on_eight_devices_can_be_finished_on_three() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let mut command = workspace.interposed(&["run", "pipeline.yaml", "-q"]);
    on_simulated(&mut command, "8x64MB");
    // The first unit is measured and has no record yet; the second is in progress.
    let mut first = Paused::start(command, &Pause { matching: "create out.run/units/", at: 1 });
    first.wait_for_pause();
    assert_eq!(events(&workspace, "device_ready").len(), 8);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let summary = run(&workspace, "3x64MB", &[]).success().summary();
    check_accounting(&summary);
    assert_eq!(&workspace.results(), expected());
}

#[test]
fn idle_devices_do_not_poll() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    // Three windows for three seconds: most devices are idle. A device that polls would use processor time.
    let arguments = ["run", "pipeline.yaml", "-q", "--limit", "1"];
    let mut command = workspace.command_after("ulimit -t 2 && exec", &arguments);
    on_simulated(&mut command, "8x64MB:milliseconds=3000");
    let summary = Answer::from_output(command.output().unwrap()).success().summary();
    assert!((2..8).contains(&count(&summary, "windows_scored")), "{summary}");
}

fn events_so_far(workspace: &Workspace) -> String {
    fs::read_to_string(workspace.path("out.run/events.jsonl")).unwrap_or_default()
}

#[test]
fn a_window_too_large_for_any_device_is_quarantined() {
    let workspace = workspace();
    // A single head of 512 tokens does not fit next to the table, but one of 300 does.
    workspace.write("pipeline.yaml", pipeline().devices("memory_wait_seconds: 0").to_string());
    let summary = run(&workspace, "2x130kB", &[]).success().summary();
    check_accounting(&summary);
    let given_up = steps(&summary, "window_given_up");
    assert!(given_up > 0, "{summary}");
    assert!(count(&summary, "quarantined") > 0, "{summary}");
    let quarantine = files_below(&workspace.path("out.run/quarantine"));
    assert!(!quarantine.is_empty());
    assert_eq!(events(&workspace, "window_given_up")[0]["code"], "window_exceeds_device_memory");
}

#[test]
fn lost_memory_and_growing_neighbours_are_reported() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let answer = run(&workspace, "1x4GB:leak=9MB", &[]).success();
    assert!(answer.stderr.contains("leaked by finished windows"), "{}", answer.stderr);
    assert_eq!(events(&workspace, "memory_not_returned").len(), 1, "once a device");
}

/// A command with GPUs of a simulated NVML, from the file `gpus`.
fn with_gpus(workspace: &Workspace, text: &str, arguments: &[&str]) -> Command {
    on_gpus(workspace, text, workspace.command(arguments))
}

fn on_gpus(workspace: &Workspace, text: &str, mut command: Command) -> Command {
    let file = workspace.write("gpus", text);
    on_simulated(&mut command, "nvml");
    command.env("LD_LIBRARY_PATH", fake_nvml()).env("FAKE_NVML_FILE", file);
    command
}

#[test]
fn a_run_waits_for_memory_taken_by_another_program() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let gpus = |used: u64| vec![format!("NVIDIA H100 80GB HBM3;81559;{used}"); 8].join(",");
    let arguments = ["run", "pipeline.yaml"];
    let mut command = with_gpus(&workspace, &gpus(600), &arguments);
    // 61,440 MiB: another program's 60 GB. The rest, minus 15 %, suffices for these windows.
    workspace.write("gpus", gpus(61_440));
    let first = Answer::from_output(command.output().unwrap()).success();
    assert_eq!(&workspace.results(), expected());
    assert_eq!(steps(&first.summary(), "memory_wait"), 0);

    // All memory is in use: nothing fits until some is released.
    fs::remove_dir_all(workspace.path("out.run")).unwrap();
    fs::remove_dir_all(workspace.path("out")).unwrap();
    let mut command = with_gpus(&workspace, &gpus(81_000), &arguments);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let is_polled = || events_so_far(&workspace).contains("\"device_memory\"");
    assert!(wait_until(&mut child, is_polled), "free memory is polled");
    assert!(events(&workspace, "device_ready").is_empty(), "not even the table fits");
    assert!(files_below(&workspace.path("out.run/units")).is_empty(), "nothing fits");
    // Replaced atomically: a run that read an incomplete file would assume a broken device.
    let new_gpus = workspace.write("gpus.next", gpus(600));
    fs::rename(new_gpus, workspace.path("gpus")).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(&workspace.results(), expected());
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_growing_neighbour_is_reported_during_a_run() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().to_string());
    let gpus = |used: u64| format!("NVIDIA H100 80GB HBM3;81559;{used}");
    let command = on_gpus(&workspace, &gpus(600), workspace.interposed(&["run", "pipeline.yaml"]));
    let mut run = Paused::start(command, &Pause { matching: "create out.run/units/", at: 1 });
    run.wait_for_pause();
    assert!(events(&workspace, "others_grew").is_empty());
    workspace.write("gpus", gpus(41_600));
    let answer = run.resume().success();
    assert!(
        answer.stderr.contains("other programs use 43.62 GB of its memory, previously 629.15 MB"),
        "{}",
        answer.stderr
    );
    let grown = events(&workspace, "others_grew");
    assert_eq!(grown.len(), 1, "{grown:?}");
    assert_eq!(
        (&grown[0]["device"], &grown[0]["before_bytes"]),
        (&json!("cuda:0"), &json!(600 << 20))
    );
    assert_eq!(grown[0]["others_bytes"], json!(41_600_u64 << 20));
    assert_eq!(&workspace.results(), expected());
}

#[test]
fn a_window_that_fails_on_three_devices_is_quarantined_and_can_be_retried() {
    let workspace = workspace();
    fs::remove_file(workspace.path("input/b.parquet")).unwrap();
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[512]), 1);
    workspace.write("pipeline.yaml", pipeline().to_string());
    // Every device fails at the only window, but none often enough to be given up.
    let summary = run(&workspace, "4x64MB:failed=1", &[]).success().summary();
    check_accounting(&summary);
    assert_eq!(
        (steps(&summary, "device_failed"), steps(&summary, "device_retired")),
        (3, 0),
        "{summary}"
    );
    assert_eq!((count(&summary, "quarantined"), count(&summary, "kept")), (1, 0));
    let row = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(texts(&row, "longsift_code"), ["device_failed"]);
    assert!(texts(&row, "longsift_message")[0].contains("an error (simulated)"));
    let again = run(&workspace, "4x64MB", &["--only-quarantined"]).success().summary();
    assert_eq!((count(&again, "quarantined"), count(&again, "windows_scored")), (0, 1), "{again}");
}

#[test]
fn devices_are_identified_by_uuid() {
    let workspace = workspace();
    workspace.write("pipeline.yaml", pipeline().devices("devices: [cuda:1, cuda:0]").to_string());
    let three = "A;90000;0,B;90000;0,C;90000;0";
    let mut command = with_gpus(&workspace, three, &["run", "pipeline.yaml", "-q"]);
    let summary = Answer::from_output(
        command.env("CUDA_VISIBLE_DEVICES", "2,GPU-00000000").output().unwrap(),
    )
    .success()
    .summary();
    let list = summary["devices"]["list"].as_array().unwrap();
    let uuids: Vec<&str> = list.iter().map(|device| device["uuid"].as_str().unwrap()).collect();
    assert!(
        uuids[0].starts_with("GPU-00000000") && uuids[1].starts_with("GPU-00000002"),
        "{summary}"
    );
    let mut one = with_gpus(&workspace, three, &["run", "pipeline.yaml"]);
    let refused =
        Answer::from_output(one.env("CUDA_VISIBLE_DEVICES", "2").output().unwrap()).expect(2);
    assert!(
        refused.stderr.contains("`cuda:1` does not exist; available are cuda:0"),
        "{}",
        refused.stderr
    );
}

#[test]
fn mismatched_numbers_of_workers_are_rejected() {
    let workspace = workspace();
    workspace
        .write("pipeline.yaml", pipeline().devices("workers_per_device: [2, 2, 1]").to_string());
    let refused = run(&workspace, "2x64MB", &[]).expect(2);
    assert!(
        refused.stderr.contains("expected one number per device (cuda:0, cuda:1), got 3"),
        "{}",
        refused.stderr
    );
    let refused = run(&workspace, "2xwhat", &[]).expect(2);
    assert!(refused.stderr.contains("not a simulated device"), "{}", refused.stderr);
}
