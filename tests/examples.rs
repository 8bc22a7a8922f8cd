//! The files of `docs/examples` for cron, systemd and Slurm work as their pages describe.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::tables::{corpus, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace, repository};

fn examples() -> std::path::PathBuf {
    repository().join("docs/examples")
}

/// A pipeline with the date as a parameter.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[96, 160]), 1);
    let mut pipeline = Pipeline::tokens("model", 32);
    pipeline.output = "path: \"out/${date}\"".to_owned();
    let params = "params: {date: {description: the day}}";
    workspace.write("web.yaml", format!("{params}\n{pipeline}"));
    for folder in ["logs", "metrics"] {
        fs::create_dir_all(workspace.path(folder)).unwrap();
    }
    workspace
}

fn nightly(workspace: &Workspace, pipeline: &str) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_longsift")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(std::iter::once(binary).chain(std::env::split_paths(&path)));
    Command::new(examples().join("nightly-longsift"))
        .arg(pipeline)
        .current_dir(workspace.path(""))
        .env("PATH", path.unwrap())
        .env("XDG_CACHE_HOME", workspace.path("cache"))
        .env("LONGSIFT_LOGS", workspace.path("logs"))
        .env("LONGSIFT_METRICS", workspace.path("metrics"))
        .env("LONGSIFT_RETRY_SECONDS", "0")
        .output()
        .unwrap()
}

#[test]
fn a_successful_night_leaves_a_summary_and_metrics() {
    let workspace = workspace();
    let done = nightly(&workspace, "web.yaml");
    let log = fs::read_to_string(workspace.path("logs/web.log")).unwrap();
    assert_eq!(done.status.code(), Some(0), "{log}");
    assert_eq!((done.stdout, done.stderr), (Vec::new(), Vec::new()), "cron mails what is printed");
    let summaries = fs::read_to_string(workspace.path("logs/web.summaries")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summaries).unwrap();
    assert_eq!(summary["status"], "done");
    assert!(summary["run_id"].as_str().unwrap().starts_with("web-20"));
    let metrics = fs::read_to_string(workspace.path("metrics/longsift-web.prom")).unwrap();
    assert!(metrics.contains("longsift_exit_code{pipeline=\"web\"} 0\n"), "{metrics}");
}

#[test]
fn a_failed_night_mails_the_end_of_the_log() {
    let workspace = workspace();
    fs::remove_dir_all(workspace.path("model")).unwrap();
    let done = nightly(&workspace, "web.yaml");
    assert_eq!(done.status.code(), Some(2));
    let mail = String::from_utf8(done.stdout).unwrap();
    assert!(mail.contains("longsift ended with 2") && mail.contains("model"), "{mail}");
}

#[test]
fn a_night_that_failed_because_of_the_machine_is_retried() {
    let workspace = workspace();
    // A file at the path of the output folder.
    workspace.write("out", "in the way");
    let done = nightly(&workspace, "web.yaml");
    assert_eq!(done.status.code(), Some(4));
    let summaries = fs::read_to_string(workspace.path("logs/web.summaries")).unwrap();
    assert_eq!(summaries.lines().count(), 2, "{summaries}");
}

#[test]
#[cfg_attr(not(longsift_systemd), ignore = "needs systemd-analyze")]
fn systemd_accepts_the_units() {
    let folder = tempfile::tempdir().unwrap();
    let units = ["longsift@web.service", "longsift@web.timer"];
    for (unit, example) in units.iter().zip(["longsift.service", "longsift.timer"]) {
        fs::copy(examples().join(example), folder.path().join(unit)).unwrap();
    }
    let units = units.map(|unit| folder.path().join(unit));
    let answer = Command::new("systemd-analyze").arg("verify").args(units).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
}

#[test]
fn a_slurm_task_gets_its_signal_and_a_shard_of_the_whole_array() {
    let path = examples().join("slurm-array.sh");
    let script = fs::read_to_string(&path).unwrap();
    let directives: Vec<&str> =
        script.lines().filter(|line| line.starts_with("#SBATCH ")).collect();
    // Slurm sends TERM to the shell of a task 60 s before its time limit.
    assert!(directives.contains(&"#SBATCH --signal=B:TERM@60"), "{directives:?}");
    let folder = tempfile::tempdir().unwrap();
    let stub = folder.path().join("longsift");
    fs::write(&stub, "#!/bin/sh\necho $$ \"$@\"\n").unwrap();
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();
    let task = Command::new("bash")
        .arg(path)
        .arg("web.yaml")
        .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
        .env("SLURM_ARRAY_TASK_ID", "7")
        // A task that is submitted again.
        .env("SLURM_ARRAY_TASK_COUNT", "1")
        .env_remove("SHARDS")
        .env_remove("PHASE")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The command replaces the shell.
    let expected = format!("{} run web.yaml --phase score --shard 7/64\n", task.id());
    assert_eq!(String::from_utf8(task.wait_with_output().unwrap().stdout).unwrap(), expected);
}
