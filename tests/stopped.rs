//! Signals, a full disk, a read-only disk, a clock that runs backwards: a stopped run loses nothing.

use std::process::Command;
use std::time::SystemTime;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::faults::Pause;
use crate::support::scenarios::{Scenario, write_input};
use crate::support::{Answer, Workspace, check_accounting};

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_second_signal_ends_a_run_at_once_without_loss() {
    let scenario = Scenario::first_run();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let workspace = Workspace::copy_of(&scenario.before);
        let pause = Pause { matching: "write out.run/scores", at: 1 };
        let mut run = workspace.start_paused(&scenario.arguments, &pause);
        run.wait_for_pause();
        // The first signal asks the run to finish its current work, which is paused here; see the next test.
        run.signal(signal);
        assert!(
            run.child.try_wait().unwrap().is_none(),
            "the first signal lets the run finish its work"
        );
        kill_process(Pid::from_child(&run.child), signal).unwrap();
        let status = run.child.wait().unwrap();
        assert_eq!(status.code(), Some(code));
        scenario.finish(&workspace, "a second signal");
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_signal_at_any_step_stops_the_run_before_the_next() {
    let scenario = Scenario::first_run();
    for matching in ["open input/", "create out.run/units", "create out/.staging"] {
        let workspace = Workspace::copy_of(&scenario.before);
        // The plan opens an input first, before signal handlers are installed.
        let at = if matching == "open input/" { 3 } else { 1 };
        let mut run = workspace.start_paused(&scenario.arguments, &Pause { matching, at });
        run.wait_for_pause();
        run.signal(Signal::TERM);
        let answer = run.resume().expect(143);
        assert_eq!(answer.summary()["status"], json!("stopped"));
        scenario.check_no_mixture(&workspace, matching);
        scenario.finish(&workspace, matching);
    }
}

/// Runs a script as root of its own namespace, where it may mount file systems.
fn in_a_namespace(workspace: &Workspace, script: &str) -> Answer {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-euc", script])
        .current_dir(workspace.path(""))
        .env("LONGSIFT", env!("CARGO_BIN_EXE_longsift"))
        .env("XDG_CACHE_HOME", workspace.path("cache"));
    Answer::from_output(command.output().unwrap())
}

/// Moves the scenario's output to a path that can be a disk of its own.
const ELSEWHERE: &str = "--set output.path=disk/out";

#[test]
#[cfg_attr(
    not(longsift_mounts),
    ignore = "needs `unshare` and user namespaces, to mount a file system"
)]
fn a_run_stopped_by_a_full_disk_can_be_finished() {
    let scenario = Scenario::first_run();
    let mut stopped = 0;
    // On a smaller disk, the run is refused before it scores.
    for kilobytes in (64..=152).step_by(8) {
        let workspace = Workspace::copy_of(&scenario.before);
        let script = format!(
            "mkdir disk; mount -t tmpfs -o size={kilobytes}k none disk
             code=0; $LONGSIFT run pipeline.yaml -q {ELSEWHERE} 1>&2 || code=$?
             mount -o remount,size=64m disk
             $LONGSIFT run pipeline.yaml -q {ELSEWHERE} >summary 2>&1
             cp -r disk/out disk/out.run .
             exit $code"
        );
        let answer = in_a_namespace(&workspace, &script);
        if answer.code != 0 {
            assert_eq!(answer.code, 4, "{kilobytes} KB: {}", answer.stderr);
            assert!(answer.stderr.contains("No space left"), "{}", answer.stderr);
            assert!(
                answer.stderr.contains("hint: ") && answer.stderr.contains("free "),
                "{}",
                answer.stderr
            );
            stopped += 1;
        }
        assert_eq!(workspace.results(), scenario.results, "{kilobytes} KB");
    }
    println!("a disk of 64 to 152 KB was full in {stopped} of 12 runs; all were finished");
    assert!(stopped >= 3, "{stopped}");
}

#[test]
#[cfg_attr(
    not(longsift_mounts),
    ignore = "needs `unshare` and user namespaces, to mount a file system"
)]
fn an_output_that_cannot_be_written_is_exit_4_with_a_hint() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    let script = format!(
        "mkdir disk; mount -t tmpfs none disk; mount -o remount,ro disk
         code=0; $LONGSIFT run pipeline.yaml -q {ELSEWHERE} || code=$?
         mount -o remount,rw disk
         $LONGSIFT run pipeline.yaml -q {ELSEWHERE} >summary 2>&1
         cp -r disk/out disk/out.run .
         exit $code"
    );
    let answer = in_a_namespace(&workspace, &script).expect(4);
    assert!(answer.stderr.contains("disk/out.run"), "{}", answer.stderr);
    assert!(answer.stderr.contains("Read-only file system"), "{}", answer.stderr);
    assert!(answer.stderr.contains("mount the disk for writing"), "{}", answer.stderr);
    assert_eq!(workspace.results(), scenario.results);
}

#[test]
#[cfg_attr(
    not(longsift_mounts),
    ignore = "needs `unshare` and user namespaces, to mount a file system"
)]
fn a_folder_that_is_not_writable_is_found_before_scoring() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    let script = "
        mkdir -p out/data; mount --bind out/data out/data
        code=0; $LONGSIFT plan pipeline.yaml -q || code=$?
        echo \"a mount ends with $code\"
        umount out/data
        mount --bind out out; mount -o remount,ro,bind out
        for command in plan run; do
            code=0; $LONGSIFT $command pipeline.yaml -q || code=$?
            echo \"$command ends with $code\"
        done
        ls out.run/scores 2>&1 || true
        ls -A out out/data
        umount out
        $LONGSIFT plan pipeline.yaml -q >plan
        ls -A out out/data
        $LONGSIFT run pipeline.yaml -q >summary";
    let answer = in_a_namespace(&workspace, script).expect(0);
    for command in ["plan", "run"] {
        let code = format!("{command} ends with 4");
        assert!(answer.stdout.contains(&code), "{}", answer.to_text());
    }
    assert!(answer.stdout.contains("a mount ends with 2"), "{}", answer.to_text());
    let mount = "`out/data` is on a different file system or mount from its parent";
    assert_eq!(answer.stderr.matches(mount).count(), 1, "{}", answer.stderr);
    let message = "cannot create files in `out/data`: Read-only file system";
    assert_eq!(answer.stderr.matches(message).count(), 2, "{}", answer.stderr);
    assert!(answer.stderr.contains("choose another `output.path`"), "{}", answer.stderr);
    assert!(!answer.stdout.contains("part-"), "nothing is scored: {}", answer.stdout);
    assert!(!answer.stdout.contains(".tmp-"), "no temporary file is left: {}", answer.stdout);
    assert_eq!(workspace.results(), scenario.results);
}

#[test]
#[cfg_attr(
    not(longsift_mounts),
    ignore = "needs `unshare` and user namespaces, to mount a file system"
)]
fn whatif_works_in_a_read_only_run_directory() {
    let scenario = Scenario::first_run();
    let script = format!(
        "mkdir disk; mount -t tmpfs none disk; $LONGSIFT run pipeline.yaml -q {ELSEWHERE} >summary
         mount -o remount,ro disk
         $LONGSIFT whatif disk/out.run --set stages.filter.keep_fraction=0.9
         ! TMPDIR=disk $LONGSIFT whatif disk/out.run --set stages.filter.keep_fraction=0.9"
    );
    let answer = in_a_namespace(&Workspace::copy_of(&scenario.before), &script).expect(0);
    assert!(!answer.stdout.is_empty(), "{}", answer.stderr);
    assert!(answer.stderr.contains("make the folder writable"), "{}", answer.stderr);
}

#[test]
#[cfg_attr(
    not(longsift_mounts),
    ignore = "needs `unshare` and user namespaces, to mount a file system"
)]
fn existing_scores_need_no_additional_space() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    write_input(&workspace, "many", &[2; 400]);
    let settings = "--set stages.tokenize.window_tokens=16 --set stages.filter.keep_fraction=0.01";
    let script = format!(
        "mkdir disk; mount -t tmpfs -o size=64m none disk
         $LONGSIFT run pipeline.yaml -q {ELSEWHERE} {settings} >summary
         truncate -s 1G disk/out.run/scores/part-more.parquet
         mount -o remount,size=$(($(du -k -s disk | cut -f1) + 24))k disk
         $LONGSIFT plan pipeline.yaml -q {ELSEWHERE} {settings}
         mv disk/out.run/scores disk/out.run/elsewhere
         ! $LONGSIFT plan pipeline.yaml -q {ELSEWHERE} {settings}"
    );
    let answer = in_a_namespace(&workspace, &script).expect(0);
    assert!(answer.stderr.contains("the scores and the output in"), "{}", answer.stderr);
}

#[test]
#[cfg_attr(
    not(longsift_mounts),
    ignore = "needs `unshare` and user namespaces, to mount a file system"
)]
fn commands_that_write_nothing_need_no_space() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    let script = format!(
        "mkdir disk; mount -t tmpfs -o size=64m none disk
         $LONGSIFT run pipeline.yaml -q {ELSEWHERE} >summary
         mount -o remount,size=$(du -k -s disk | cut -f1)k disk
         head -c 1M /dev/zero >disk/fill || true
         $LONGSIFT run pipeline.yaml -q {ELSEWHERE}
         $LONGSIFT plan pipeline.yaml -q {ELSEWHERE} >plan
         $LONGSIFT tokens pipeline.yaml -q {ELSEWHERE} >tokens
         TMPDIR=$PWD/gone $LONGSIFT whatif disk/out.run -q --set stages.filter.keep_fraction=0.1 || true"
    );
    let answer = in_a_namespace(&workspace, &script).expect(0);
    assert!(answer.stdout.contains("\"nothing_to_do\""), "{}", answer.to_text());
    assert!(!answer.stderr.contains("are free"), "{}", answer.stderr);
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_wrong_clock_changes_no_byte() {
    let scenario = Scenario::first_run();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let hour = 3600;
    for (offset, step) in [
        (400 * 24 * hour, 0),
        (-400 * 24 * hour, 0),
        (0, -hour),
        // A board without a battery starts in 1970; the hour before that is in 1969.
        (hour / 2 - i64::try_from(now).unwrap(), -hour / 4),
    ] {
        let workspace = Workspace::copy_of(&scenario.before);
        let run = |arguments: &[&str]| {
            let mut command = workspace.interposed(arguments);
            command.env("LONGSIFT_CLOCK_OFFSET", offset.to_string());
            command.env("LONGSIFT_CLOCK_STEP", step.to_string());
            Answer::from_output(command.output().unwrap()).success().summary()
        };
        check_accounting(&run(&scenario.arguments));
        assert_eq!(workspace.results(), scenario.results, "{offset} s, then {step} s per reading");
        assert_eq!(run(&scenario.arguments)["status"], "nothing_to_do");
    }
}
