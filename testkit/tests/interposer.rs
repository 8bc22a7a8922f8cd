//! The interposer injects the requested faults and records the operations of the program.
#![allow(clippy::unwrap_used, reason = "tests panic if their setup fails")]

use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::disk::{Disk, Survives, changes};
use testkit::faults::{Fault, Pause, Paused, interposer};
use testkit::{Answer, Workspace};

/// The test program itself is the program under test: it executes the steps of the variable `STEPS` in the current
/// folder.
#[test]
#[ignore = "helper program: another test runs it"]
fn program() {
    for step in std::env::var("STEPS").unwrap().split("; ") {
        let words: Vec<&str> = step.split(' ').collect();
        match words[..] {
            ["write", path, text] => fs::write(path, text).unwrap(),
            ["sync", path] => File::open(path).unwrap().sync_all().unwrap(),
            ["rename", from, to] => fs::rename(from, to).unwrap(),
            ["mkdir", path] => fs::create_dir(path).unwrap(),
            ["remove", path] => fs::remove_file(path).unwrap(),
            ["sleep", seconds] => {
                let begun = Instant::now();
                std::thread::sleep(Duration::from_secs(seconds.parse().unwrap()));
                fs::write("slept", begun.elapsed().as_secs().to_string()).unwrap();
            }
            _ => panic!("no step `{step}`"),
        }
    }
}

const PROGRAM: [&str; 3] = ["--exact", "program", "--ignored"];

/// Returns a folder in which the program executes steps.
fn workspace() -> Workspace {
    Workspace::new(std::env::current_exe().unwrap())
}

fn command(workspace: &Workspace, steps: &str) -> Command {
    let mut command = workspace.interposed(&PROGRAM);
    command.env("STEPS", steps);
    command
}

fn fault(action: &'static str, matching: &str, at: usize) -> Fault {
    Fault { action, at, permanent: false, matching: matching.to_owned() }
}

fn text(workspace: &Workspace, name: &str) -> Option<String> {
    fs::read_to_string(workspace.path(name)).ok()
}

const TWO: &str = "write a one; write b twotwo; rename b c";

#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
#[test]
fn operations_are_recorded_in_order() {
    let workspace = workspace();
    let traced = Fault::default().run(command(&workspace, TWO));
    traced.answer.success();
    let expected = ["create a", "write a", "create b", "write b", "rename c"];
    assert_eq!(traced.operations, expected);
}

#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
#[test]
fn an_error_hits_one_operation_or_all_later_ones() {
    let workspace = workspace();
    let failed = fault("ENOSPC", "", 4).run(command(&workspace, TWO)).answer;
    assert_eq!(failed.code, 101, "{}", failed.to_text());
    assert!(failed.stdout.contains("No space left"), "{}", failed.to_text());
    assert_eq!(
        (text(&workspace, "a"), text(&workspace, "b")),
        (Some("one".into()), Some(String::new()))
    );
    let permanent = Fault { permanent: true, ..fault("EIO", "write ", 1) };
    let failed = permanent.run(command(&workspace, TWO)).answer;
    assert!(failed.stdout.contains("Input/output error"), "{}", failed.to_text());
    assert_eq!(text(&workspace, "a"), Some(String::new()));
}

#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
#[test]
fn a_kill_precedes_its_operation_and_a_torn_write_interrupts_it() {
    let workspace = workspace();
    assert_eq!(fault("kill", "rename c", 1).run(command(&workspace, TWO)).answer.code, -1);
    assert_eq!((text(&workspace, "b"), text(&workspace, "c")), (Some("twotwo".into()), None));
    assert_eq!(fault("torn", "write b", 1).run(command(&workspace, TWO)).answer.code, -1);
    assert_eq!(text(&workspace, "b"), Some("two".into()));
}

#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
#[test]
fn a_short_write_is_completed_by_the_program() {
    let workspace = workspace();
    let traced = fault("short", "write b", 1).run(command(&workspace, TWO));
    traced.answer.success();
    assert_eq!(traced.operations, ["write b", "write b"], "only matching operations are counted");
    assert_eq!(text(&workspace, "c"), Some("twotwo".into()));
}

#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
#[test]
fn a_program_pauses_at_an_operation_until_resumed() {
    let workspace = workspace();
    let pause = Pause { matching: "create b", at: 1 };
    let mut paused = Paused::start(command(&workspace, TWO), &pause);
    paused.wait_for_pause();
    assert_eq!((text(&workspace, "a"), text(&workspace, "b")), (Some("one".into()), None));
    paused.resume().success();
    assert_eq!(text(&workspace, "c"), Some("twotwo".into()));
}

#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
#[test]
fn sleeps_can_be_skipped_and_the_clock_moved() {
    let workspace = workspace();
    let mut slept = command(&workspace, "sleep 3600");
    slept.env("LONGSIFT_CLOCK_SLEEPS", "1");
    Answer::from_output(slept.output().unwrap()).success();
    assert_eq!(text(&workspace, "slept"), Some("3600".into()));
    // A clock moved before the program starts does not affect the durations it measures.
    let clock = workspace.write("clock", (7200 * 1_000_000_000_i64).to_le_bytes());
    let mut moved = command(&workspace, "sleep 3600");
    moved.env("LONGSIFT_CLOCK_SLEEPS", "1").env("LONGSIFT_CLOCK_FILE", clock);
    Answer::from_output(moved.output().unwrap()).success();
    assert_eq!(text(&workspace, "slept"), Some("3600".into()));
}

#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
#[test]
fn replaying_the_record_gives_the_content_of_the_folder() {
    let workspace = workspace();
    workspace.write("before", "safe");
    let mut disk = Disk::from_folder(&workspace.path(""));
    let record = tempfile::NamedTempFile::new().unwrap();
    let steps = "write a one; sync a; mkdir d; write d/b two; rename a d/c; remove before; sync .";
    let mut recorded = command(&workspace, steps);
    recorded.env("LONGSIFT_FAULT_RECORD", record.path());
    Answer::from_output(recorded.output().unwrap()).success();
    for change in changes(&fs::read(record.path()).unwrap()) {
        disk.apply(&change);
    }
    assert_eq!(disk.now(), Disk::from_folder(&workspace.path("")).now());
    let names: Vec<String> = disk.now().into_keys().collect();
    assert_eq!(names, ["d/b", "d/c"]);
    // The root folder was synced, the names in the other were not.
    assert!(disk.after_power_cut(Survives::OnlySynced).is_empty());
}

#[test]
fn the_interposer_is_built_on_glibc() {
    assert_eq!(interposer().exists(), cfg!(all(target_os = "linux", target_env = "gnu")));
    assert!(testkit::fake_nvml().join("libnvidia-ml.so.1").exists());
}
