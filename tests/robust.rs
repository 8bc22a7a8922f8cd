//! Hostile surroundings: outputs that cannot be written, closed pipes, closed terminals, odd paths.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use serde_json::{Value, json};

use tempfile::TempDir;

use crate::support::faults::{Pause, Paused};
use crate::support::tables::{corpus, strings, table, write_parquet};
use crate::support::{Answer, Pipeline, Tiny, Workspace, copy_folder, count, demo_model};

/// Two files of four documents of two to four windows, and the pipeline over them.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for name in ["a", "b"] {
        let path = workspace.path(&format!("input/{name}.parquet"));
        write_parquet(&path, &corpus(name, &[128, 192, 256, 192]), 2);
    }
    workspace.write("pipeline.yaml", pipeline().to_string());
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::tokens("model", 64).input("unit_bytes: 1024")
}

/// A file that is always full.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn an_unwritable_log_does_not_end_a_run() {
    let expected = workspace();
    expected.run(&pipeline());
    for log in ["full", "without a reader"] {
        let workspace = workspace();
        let mut command = workspace.command(&["run", "pipeline.yaml"]);
        let answer = if log == "full" {
            Answer::from_output(command.stderr(full()).output().unwrap())
        } else {
            let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            drop(run.stderr.take());
            Answer::from_output(run.wait_with_output().unwrap())
        };
        assert_eq!(answer.success().summary()["status"], "done", "{log}");
        assert_eq!(workspace.results(), expected.results(), "{log}");
    }
}

#[test]
fn an_unwritable_answer_has_exit_code_4() {
    let workspace = workspace();
    for arguments in [
        &["run", "pipeline.yaml", "-q"][..],
        &["status", "out.run"],
        &["plan", "pipeline.yaml"],
        &["tokens", "pipeline.yaml"],
        &["completions", "bash"],
    ] {
        let answer = workspace.command(arguments).stdout(full()).output().unwrap();
        let answer = Answer::from_output(answer).expect(4);
        assert!(answer.stderr.contains("cannot write to standard output"), "{}", answer.stderr);
    }
    assert!(workspace.path("out.run/_SUCCESS").exists(), "what was committed is kept");
}

#[test]
fn tokens_stops_when_its_pipe_closes() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    // More lines than the pipe between the processes holds, followed by a file that is removed before it is read.
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[64; 2000]), 2000);
    write_parquet(&workspace.path("input/b.parquet"), &corpus("b", &[64]), 1);
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    let mut command = workspace.command(&["tokens", "pipeline.yaml", "--ids"]);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(run.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(serde_json::from_str::<Value>(&line).is_ok(), "{line}");
    fs::remove_file(workspace.path("input/b.parquet")).unwrap();
    drop(reader);
    assert_eq!(Answer::from_output(run.wait_with_output().unwrap()).success().stderr, "");
}

#[test]
fn flags_without_effect_are_rejected() {
    let workspace = workspace();
    for command in ["lock", "tokens"] {
        let answer = workspace.longsift(&[command, "pipeline.yaml", "--format", "json"]).expect(2);
        assert!(answer.stderr.contains("'--format'"), "{}", answer.stderr);
    }
}

#[test]
fn ray_receives_every_flag_or_the_flag_is_rejected() {
    let workspace = workspace();
    let python = workspace.write("bin/python3", "#!/bin/sh\necho \"$3\"\n");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |flags: &[&str]| {
        let arguments = [&["run", "pipeline.yaml", "--engine", "ray"], flags].concat();
        let path = format!("{}:/usr/bin:/bin", python.parent().unwrap().display());
        Answer::from_output(workspace.command(&arguments).env("PATH", path).output().unwrap())
    };
    let flags = ["--offline", "--run-id=tonight", "--metrics-textfile=run.prom", "-v"];
    let job = run(&flags).success().summary();
    let footers = fs::canonicalize(workspace.path("out.run/footers")).unwrap();
    let footers = format!("--footers={}", footers.display());
    assert_eq!(job["flags"], json!(["--run-id=tonight", "--offline", "--verbose", footers]));
    assert_eq!(job["kernel"], Value::Null);
    assert!(job["processor_kernel"].as_str().unwrap().ends_with("-f32"), "{job}");
    assert_eq!(job["select_flags"], json!(["--metrics-textfile=run.prom"]));
    let pinned = run(&["--kernel=portable-f32"]).success().summary();
    assert_eq!([&pinned["kernel"], &pinned["processor_kernel"]], ["portable-f32"; 2]);
    for flag in ["--only-quarantined", "--fresh", "--shard=0/2", "--phase=score"] {
        let answer = run(&[flag]).expect(2);
        let name = flag.split('=').next().unwrap();
        assert!(answer.stderr.contains(name), "{}", answer.stderr);
    }
}

#[test]
fn output_paths_with_shell_syntax_are_rejected() {
    let workspace = workspace();
    for (path, why) in [
        ("..", "not a folder of its own"),
        ("a/..", "not a folder of its own"),
        ("~/out", "`~` is not expanded"),
        ("$HOME/out", "an environment variable is not expanded"),
        ("s3://bucket/a//b", "`path` contains an empty folder name"),
    ] {
        let set = format!("output.path={path}");
        let answer = workspace.longsift(&["validate", "pipeline.yaml", "--set", &set]).expect(2);
        assert!(answer.stderr.contains(why), "{path}: {}", answer.stderr);
    }
    let home = "stages.load-partial-model.cache_folder=~/cache";
    let answer = workspace.longsift(&["validate", "pipeline.yaml", "--set", home]).expect(2);
    assert!(
        answer.stderr.contains("`cache_folder` is `~/cache`, but `~` is not expanded"),
        "{}",
        answer.stderr
    );
    let named_so = ["validate", "pipeline.yaml", "--set", "output.path=~out$"];
    workspace.longsift(&named_so).success();
}

#[test]
fn an_input_with_the_columns_of_the_quarantine_is_refused() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let input = table(&[
        ("id", strings(["a"])),
        ("text", strings(["some text"])),
        ("longsift_code", strings(["b"])),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    workspace.write("pipeline.yaml", Pipeline::text("model", 64).to_string());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
    let message = "the input already has the columns `longsift_code`";
    assert!(answer.stderr.contains(message), "{}", answer.stderr);
}

#[test]
fn a_fraction_of_bad_rows_is_the_written_decimal() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    // In floating point 0.29 · 100 is less than 29.
    let text = |row: usize| if row < 29 { String::new() } else { "a few words ".repeat(30) };
    let ids = strings((0..100).map(|row| row.to_string()));
    let texts = strings((0..100).map(text));
    let input = table(&[("id", ids), ("text", texts)]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 100);
    let pipeline = Pipeline::text("model", 64).input("max_quarantined_fraction: 0.29");
    assert_eq!(count(&workspace.run(&pipeline), "quarantined"), 29);
}

/// A folder on another file system than that of temporary files.
fn other_file_system(workspace: &Workspace) -> TempDir {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let device = |path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(folder.path()), device(&workspace.path("")), "two file systems");
    folder
}

#[test]
fn an_output_on_another_disk_is_written_and_selected_again() {
    let expected = workspace();
    expected.run(&pipeline());
    let first = expected.results();
    expected.run(&pipeline().filter("keep_fraction: 0.9"));
    // A link from the beginning, and an output that was moved when its disk was full.
    let workspace = workspace();
    let disk = other_file_system(&workspace);
    workspace.link("out", disk.path());
    workspace.run(&pipeline());
    assert_eq!(workspace.results(), first);
    fs::remove_file(workspace.path("out")).unwrap();
    copy_folder(disk.path(), &workspace.path("out"));
    workspace.run(&pipeline().filter("keep_fraction: 0.9"));
    let moved = other_file_system(&workspace);
    copy_folder(&workspace.path("out"), moved.path());
    fs::remove_dir_all(workspace.path("out")).unwrap();
    workspace.link("out", moved.path());
    workspace.run(&pipeline());
    assert_eq!(workspace.results(), first);
    workspace.longsift(&["verify", "out.run"]).success();
    let left: Vec<_> =
        fs::read_dir(moved.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["data"]);
}

#[test]
fn a_card_is_written_to_an_output_on_another_disk() {
    let workspace = workspace();
    let disk = other_file_system(&workspace);
    workspace.link("out", disk.path());
    workspace.run(&pipeline().output("card: true"));
    assert!(disk.path().join("README.md").is_file());
    workspace.run(&pipeline().output("card: true").filter("keep_fraction: 0.9"));
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn a_data_folder_on_another_disk_than_the_output_is_refused_at_plan() {
    let workspace = workspace();
    let disk = other_file_system(&workspace);
    fs::create_dir(workspace.path("out")).unwrap();
    workspace.link("out/data", disk.path());
    let answer = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2);
    assert!(answer.stderr.contains("is on a different file system"), "{}", answer.stderr);
}

#[test]
fn a_run_from_the_scores_of_another_can_be_verified_and_compared() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let mut other = pipeline().filter("keep_fraction: 0.25");
    other.output = "path: other".to_owned();
    workspace.run_with(&other, &["--scores-from", "out.run"]);
    workspace.longsift(&["verify", "other.run"]).success();
    let json = ["diff", "out.run", "other.run", "--format", "json"];
    let difference: Value =
        serde_json::from_str(&workspace.longsift(&json).expect(5).stdout).unwrap();
    assert!(difference["documents"]["other_fate"].as_u64().unwrap() > 0, "{difference}");
    fs::remove_dir_all(workspace.path("out.run")).unwrap();
    let answer = workspace.longsift(&["verify", "other.run"]).expect(3);
    assert!(answer.stdout.contains("the run with the scores is missing"), "{}", answer.stdout);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_closed_terminal_drains_a_run_unless_hangups_are_ignored() {
    let workspace = workspace();
    // Set explicitly in both cases, since these tests may run under nohup themselves.
    let hung_up = |signal: &str| {
        let plain = workspace.interposed(&["run", "pipeline.yaml"]);
        let mut command = Command::new("env");
        command.arg(signal).arg(plain.get_program()).args(plain.get_args());
        command.current_dir(workspace.path(""));
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let pause = Pause { matching: "create out.run/units", at: 1 };
        let mut run = Paused::start(command, &pause);
        run.wait_for_pause();
        run.signal(Signal::HUP);
        run.resume()
    };
    let stopped = hung_up("--default-signal=HUP").expect(129);
    assert_eq!(stopped.summary()["status"], "stopped");
    let done = hung_up("--ignore-signal=HUP").success();
    assert_eq!(done.summary()["status"], "done", "as under nohup");
}

#[test]
fn exceeding_the_file_size_limit_is_reported() {
    let workspace = workspace();
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -f 1; exec \"$0\" run pipeline.yaml -q"])
        .arg(env!("CARGO_BIN_EXE_longsift"))
        .current_dir(workspace.path(""))
        .env("XDG_CACHE_HOME", workspace.path("cache"));
    let answer = Answer::from_output(command.output().unwrap()).expect(4);
    assert!(answer.stderr.contains("File too large"), "{}", answer.stderr);
}

#[test]
fn a_small_stack_limit_changes_nothing() {
    let workspace = workspace();
    let expected = workspace.run(&pipeline());
    let arguments = ["run", "pipeline.yaml", "-q", "--fresh"];
    let mut command = workspace.command_after("ulimit -s 64 && exec", &arguments);
    let answer = Answer::from_output(command.output().unwrap()).success();
    assert_eq!(answer.summary()["kept"], expected["kept"]);
}

#[test]
fn a_thread_that_cannot_be_started_has_exit_code_4() {
    let workspace = workspace();
    for (arguments, says) in [
        (&["run", "pipeline.yaml", "-q"][..], "error: no more threads can be started"),
        (&["run", "pipeline.yaml"], "(`ulimit -u`, `pids.max` of the control group)"),
        (&["run", "pipeline.yaml", "--threads", "2"], "error: cannot start 2 threads: "),
    ] {
        // No address space has room for such a stack, so every thread fails as beyond a limit of threads.
        let mut command = workspace.command(arguments);
        let answer = command.env("RUST_MIN_STACK", (1_u64 << 60).to_string()).output().unwrap();
        let answer = Answer::from_output(answer).expect(4);
        assert!(answer.stderr.contains(says), "{}", answer.stderr);
        assert!(!answer.stderr.contains("panicked"), "{}", answer.stderr);
    }
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
}

#[test]
#[cfg_attr(
    not(longsift_mounts),
    ignore = "needs `unshare` and user namespaces, to mount a file system"
)]
fn the_memory_limit_of_a_control_group_lowers_that_of_the_run() {
    let workspace = workspace();
    let planned = |groups: &str, folder: &str, limit: &str| {
        let script = format!(
            "mount -t tmpfs none /sys/fs/cgroup
             mkdir -p /sys/fs/cgroup/a/b /sys/fs/cgroup/memory/c
             echo max >/sys/fs/cgroup/a/b/memory.max
             echo {limit} >/sys/fs/cgroup/{folder}
             echo {groups} >/sys/fs/cgroup/groups
             mount --bind /sys/fs/cgroup/groups /proc/$$/cgroup
             exec \"$0\" \"$@\""
        );
        let enter = format!("unshare --user --map-root-user --mount sh -euc '{script}'");
        let mut command = workspace.command_after(&enter, &["plan", "pipeline.yaml"]);
        Answer::from_output(command.output().unwrap()).success().stderr
    };
    let lowered =
        "the control group of this process allows 200.00 MB: the limit is lowered to 150.00 MB";
    for (groups, folder, limit, is_lowered) in [
        ("0::/a/b", "a/b/memory.max", "200000000", true),
        // The limit of an enclosing group.
        ("0::/a/b", "a/memory.max", "200000000", true),
        ("4:cpu,memory:/c", "memory/c/memory.limit_in_bytes", "200000000", true),
        ("4:cpu,memory:/c", "memory/c/memory.limit_in_bytes", "9223372036854771712", false),
        ("4:cpu:/c", "memory/c/memory.limit_in_bytes", "200000000", false),
    ] {
        let says = planned(groups, folder, limit);
        assert_eq!(says.contains(lowered), is_lowered, "{groups} {folder}: {says}");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_signal_ends_a_selection_before_anything_is_written() {
    let workspace = workspace();
    workspace.run(&pipeline());
    let again = ["run", "pipeline.yaml", "--set", "stages.filter.keep_fraction=0.9"];
    let mut run = workspace.start_paused(&again, &Pause { matching: "open out.run/scores", at: 1 });
    run.wait_for_pause();
    run.signal(Signal::TERM);
    assert_eq!(run.resume().expect(143).summary()["status"], "stopped");
    assert!(!workspace.path("out/.staging").exists(), "the write phase has not begun");
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_signal_ends_the_reading_of_footers() {
    let workspace = workspace();
    for file in 0..30 {
        let path = workspace.path(&format!("input/more-{file:02}.parquet"));
        fs::copy(workspace.path("input/a.parquet"), path).unwrap();
    }
    let trace = workspace.path("trace");
    let mut command = workspace.interposed(&["run", "pipeline.yaml"]);
    command.env("RAYON_NUM_THREADS", "1").env("LONGSIFT_FAULT_TRACE", &trace);
    let mut run = Paused::start(command, &Pause { matching: "open input/", at: 3 });
    run.wait_for_pause();
    run.signal(Signal::TERM);
    assert_eq!(run.resume().expect(143).summary()["status"], "stopped");
    let operations = fs::read_to_string(trace).unwrap();
    let opened = operations.lines().filter(|line| line.starts_with("open input/")).count();
    assert!((3..10).contains(&opened), "{operations}");
}
