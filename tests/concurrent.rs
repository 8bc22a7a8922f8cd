//! Two processes at once: one directory has one run, and a shared cache never exposes an incomplete table.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::faults::Pause;
use crate::support::scenarios::{Scenario, check_nothing_is_left};
use crate::support::{Answer, Workspace, check_accounting, files_below, result_folders};

fn start(workspace: &Workspace, arguments: &[&str]) -> Child {
    let mut command = workspace.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end(child: Child) -> Answer {
    Answer::from_output(child.wait_with_output().unwrap())
}

#[test]
fn only_one_of_several_runs_on_a_directory_starts() {
    let scenario = Scenario::first_run();
    for _ in 0..3 {
        let workspace = Workspace::copy_of(&scenario.before);
        let runs: Vec<Child> = (0..6).map(|_| start(&workspace, &scenario.arguments)).collect();
        let ids: Vec<u32> = runs.iter().map(Child::id).collect();
        let answers: Vec<Answer> = runs.into_iter().map(end).collect();
        let mut done = 0;
        for answer in answers {
            match answer.code {
                0 => done += usize::from(answer.summary()["status"] == "done"),
                4 => {
                    assert!(answer.stderr.contains("in use by"), "{}", answer.stderr);
                    let named = ids.iter().any(|id| answer.stderr.contains(&format!(" {id} ")));
                    assert!(
                        named || answer.stderr.contains("another process"),
                        "{}",
                        answer.stderr
                    );
                    assert_eq!(answer.summary()["exit_code"], 4);
                }
                code => panic!("exit {code}: {}", answer.stderr),
            }
        }
        assert_eq!(done, 1, "the work is done once");
        assert_eq!(workspace.results(), scenario.results);
        check_nothing_is_left(&workspace, "six at once");
    }
}

#[test]
fn a_lock_of_a_dead_process_is_ignored() {
    let scenario = Scenario::first_run();
    let contents = [
        json!({ "pid": 4_000_000, "host": "here", "started": "2020-01-01T00:00:00Z" }).to_string(),
        // A process with that PID exists, but it is another one: the machine was restarted, or it is on another
        // machine.
        json!({ "pid": std::process::id(), "host": "elsewhere", "started": "" }).to_string(),
        "{ torn".to_owned(),
        String::new(),
    ];
    for content in contents {
        let workspace = Workspace::copy_of(&scenario.before);
        workspace.write("out.run/lock", &content);
        let status = workspace.longsift(&["status", "out.run", "--format", "json"]).success();
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        assert_eq!(status["holder"], Value::Null, "{content}");
        scenario.finish(&workspace, &content);
    }
}

#[test]
fn status_does_not_block_a_run() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    workspace.longsift(&scenario.arguments).success();
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            for _ in 0..40 {
                workspace.longsift(&["status", "out.run"]).success();
            }
        });
        while !watching.is_finished() {
            workspace.longsift(&scenario.arguments).success();
        }
    });
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_incomplete_table_is_never_read() {
    let scenario = Scenario::first_run();
    for killed in [false, true] {
        let workspace = Workspace::copy_of(&scenario.before);
        let building = ["run", "pipeline.yaml", "--set", "output.path=slow"];
        let pause = Pause { matching: ".partial", at: 4 };
        let mut slow = workspace.start_paused(&building, &pause);
        slow.wait_for_pause();
        let partial = || {
            let files = files_below(&workspace.path("cache"));
            files.iter().filter(|path| path.extension().is_some_and(|end| end == "partial")).count()
        };
        assert_eq!(partial(), 1, "half a table is there");
        check_accounting(&workspace.longsift(&scenario.arguments).success().summary());
        assert_eq!(workspace.results(), scenario.results);
        let cleared = workspace.longsift(&["cache", "--clear", "tables"]).success().stdout;
        assert!(cleared.contains("in use: ") && cleared.contains(".partial"), "{cleared}");
        assert_eq!(partial(), 1, "the table that is being built was left alone");
        if killed {
            slow.child.kill().unwrap();
            slow.child.wait().unwrap();
            let again = ["run", "pipeline.yaml", "--fresh"];
            workspace.longsift(&again).success();
        } else {
            slow.resume().success();
            let data = |output: &str| workspace.hashes(&[&format!("{output}/data")]).into_values();
            assert!(data("slow").eq(data("out")));
        }
        assert_eq!(partial(), 0, "no trace is left");
    }
}

#[test]
fn runs_that_share_an_empty_cache_have_the_same_results() {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    let outputs: Vec<String> = (0..8).map(|run| format!("output.path=out{run}")).collect();
    let runs: Vec<Child> = outputs
        .iter()
        .map(|output| start(&workspace, &["run", "pipeline.yaml", "-q", "--set", output]))
        .collect();
    for run in runs {
        check_accounting(&end(run).success().summary());
    }
    let expected: Vec<&String> = scenario.results.values().collect();
    for run in 0..8 {
        let folders = result_folders(&format!("out{run}"));
        let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
        let mut hashes: Vec<String> = workspace.hashes(&folders).into_values().collect();
        let mut expected: Vec<String> = expected.iter().map(|hash| (*hash).clone()).collect();
        hashes.sort();
        expected.sort();
        assert_eq!(hashes, expected);
    }
    let tables = fs::read_dir(workspace.path("cache/longsift/tables")).unwrap().count();
    assert_eq!(tables, 1);
}
