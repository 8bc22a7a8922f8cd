//! Outputs and run directories in a bucket: the same content as on a disk, with any concurrent processes.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::bucket::{Bucket, Fault};
use crate::support::faults::wait_until;
use crate::support::scenarios::Scenario;
use crate::support::server::Request;
use crate::support::tables::{labels, strings, table, write_parquet};
use crate::support::{Answer, Random, Workspace, check_accounting};

const OUTPUT: &str = "output.path=s3://bucket/x/out";

/// Runs the pipeline with its output in the bucket.
fn run(workspace: &Workspace, bucket: &Bucket, more: &[&str]) -> Answer {
    let arguments = ["run", "pipeline.yaml", "--threads", "2", "--set", OUTPUT];
    bucket.longsift(workspace, &[&arguments[..], more].concat())
}

/// Like [`Workspace::results`] for a disk.
fn results(bucket: &Bucket) -> BTreeMap<String, String> {
    bucket.results("x/")
}

/// Checks that no object of a run in progress is left.
fn check_nothing_is_left(bucket: &Bucket) {
    let left = ["staging/", "written/", "intent.json", "lock", "journal/"];
    for key in bucket.objects().keys() {
        let name = key.strip_prefix("x/out.run/").unwrap_or("");
        assert!(!left.iter().any(|left| name.starts_with(left)), "{key} is left");
    }
    assert_eq!(bucket.open_uploads(), Vec::<String>::new());
}

#[test]
fn objects_of_others_in_working_folders_stay() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let workspace = Workspace::copy_of(&scenario.before);
    run(&workspace, &bucket, &[]).success();
    let names = ["staging", "written/a/data", "fresh/scores", "staging/own/deeper"];
    let notes: Vec<String> =
        names.iter().map(|name| format!("x/out.run/{name}/notes.txt")).collect();
    let left = "x/out.run/staging/1-1/data/train-00000-of-00001.parquet";
    for command in [&["--fresh"][..], &[], &["--set", "stages.filter.keep_fraction=0.75"]] {
        for key in &notes {
            bucket.put(key, "somebody's notes");
        }
        bucket.put(left, "a part that an interrupted run left");
        run(&workspace, &bucket, command).success();
        let objects = bucket.objects();
        for key in &notes {
            assert_eq!(objects[key], b"somebody's notes", "{key}");
        }
        let folders = ["x/out.run/staging/", "x/out.run/written/", "x/out.run/fresh/"];
        let is_working = |key: &&String| folders.iter().any(|folder| key.starts_with(folder));
        let working: Vec<&String> = objects.keys().filter(is_working).collect();
        assert_eq!(working.len(), notes.len(), "no object of the run is left: {working:?}");
    }
}

#[test]
fn a_data_object_of_the_recorded_size_is_replaced_only_if_its_bytes_are() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let workspace = Workspace::copy_of(&scenario.before);
    run(&workspace, &bucket, &[]).success();
    let objects = bucket.objects();
    let (key, bytes) = objects.iter().find(|(key, _)| key.starts_with("x/out/data/")).unwrap();
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    bucket.replace(key, &*changed);
    let refused = run(&workspace, &bucket, &["--set", "stages.filter.keep_fraction=0.75"]);
    assert!(refused.expect(2).stderr.contains("which was changed after a run wrote it"));
    assert_eq!(bucket.objects()[key], changed);
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    let scenario = Scenario::first_run();
    for (header, says) in
        [("if-none-match", "ignores `If-None-Match`"), ("if-match", "ignores `If-Match`")]
    {
        let bucket = Bucket::new();
        bucket.inject(move |_, _| Some(Fault::Unconditional(header)));
        let workspace = Workspace::copy_of(&scenario.before);
        // The second run finds the lease of the first.
        for _ in 0..2 {
            let refused = run(&workspace, &bucket, &[]).expect(2).stderr;
            assert!(refused.contains(says), "{refused}");
        }
    }
}

#[test]
fn a_store_without_conditional_writes_is_refused_at_once() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let is_conditional = |asked: &Request| {
        let is = |name| asked.headers.contains_key(name);
        asked.method == "PUT" && (is("if-none-match") || is("if-match"))
    };
    bucket.inject(move |_, request| {
        is_conditional(request).then_some(Fault::Status(501, "NotImplemented"))
    });
    let answer = run(&scenario.before, &bucket, &[]);
    assert!([2, 4].contains(&answer.code), "{}", answer.stderr);
    let refused = answer.stderr;
    for part in ["501", "conditional writes, as supported by Amazon S3, MinIO, Ceph"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(bucket.take_requests().iter().filter(|asked| is_conditional(asked)).count(), 1);
}

#[test]
fn a_store_that_refuses_its_own_versions_ends_the_run() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    bucket.inject(|_, _| Some(Fault::Unconditional("if-match")));
    // Leaves its lease.
    run(&scenario.before, &bucket, &[]).expect(2);
    bucket.inject(|_, request| {
        let replaces = request.method == "PUT" && request.headers.contains_key("if-match");
        replaces.then_some(Fault::Status(412, "PreconditionFailed"))
    });
    bucket.take_requests();
    let refused = run(&scenario.before, &bucket, &[]).expect(4).stderr;
    assert!(refused.contains("refuses to replace this version"), "{refused}");
    assert!(bucket.take_requests().len() < 50);
}

#[test]
fn a_bucket_holds_the_files_of_a_folder() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    bucket.set_page_size(3);
    let workspace = Workspace::copy_of(&scenario.before);
    let summary = run(&workspace, &bucket, &[]).success().summary();
    check_accounting(&summary);
    assert_eq!(summary["run_dir"], "s3://bucket/x/out.run");
    assert_eq!(results(&bucket), scenario.results);
    check_nothing_is_left(&bucket);
    let events = bucket.objects().into_iter().filter(|(key, _)| key.contains("/events/"));
    let events: Vec<u8> = events.flat_map(|(_, bytes)| bytes).collect();
    let events = String::from_utf8(events).unwrap();
    assert!(events.ends_with('\n') && events.contains("selection_committed"), "{events}");
    assert!(!workspace.path("out").exists() && !workspace.path("s3:").exists());

    let again = run(&workspace, &bucket, &[]).success().summary();
    assert_eq!(again["status"], "nothing_to_do");
    let directory = "s3://bucket/x/out.run";
    let status = bucket.longsift(&workspace, &["status", directory, "--format", "json"]);
    let status: Value = serde_json::from_str(&status.success().stdout).unwrap();
    assert_eq!(status["state"], "finished");
    bucket.longsift(&workspace, &["verify", directory]).success();
    let repeated = bucket.longsift(&workspace, &["run", directory]).success().summary();
    assert_eq!(repeated["status"], "nothing_to_do");

    // Another selection replaces the first, and `--fresh` replaces both.
    let widened = ["--set", "stages.filter.keep_fraction=0.9"];
    let summary = run(&workspace, &bucket, &widened).success().summary();
    assert_eq!(summary["windows_scored"], 0);
    assert_ne!(results(&bucket), scenario.results);
    let fresh = run(&workspace, &bucket, &["--fresh"]).success().summary();
    assert_eq!(fresh["windows_reused"], 0);
    assert_eq!(results(&bucket), scenario.results);
    check_nothing_is_left(&bucket);
}

#[test]
fn a_damaged_object_is_found() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    run(&scenario.before, &bucket, &[]).success();
    let (key, mut bytes) =
        bucket.objects().into_iter().find(|(key, _)| key.contains("/scores/")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bucket.put(&key, bytes);
    let answer = bucket.longsift(&scenario.before, &["verify", "s3://bucket/x/out.run"]).expect(3);
    assert!(answer.stdout.contains("SHA-256"), "{}", answer.stdout);
}

#[test]
fn shards_share_a_bucket() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let workspaces = [(); 3].map(|()| Workspace::copy_of(&scenario.before));
    // As on machines that share only the bucket and the input: file times are part of a unit's identity.
    let phase = |index: usize, more: &[&str]| run(&workspaces[index], &bucket, more);
    let missing = phase(2, &["--phase", "select"]).expect(4);
    assert!(missing.stderr.contains("have no scores"), "{}", missing.stderr);
    for phases in [["score", "0/2", "1/2"], ["write", "0/2", "1/2"]] {
        std::thread::scope(|scope| {
            for (index, shard) in phases[1..].iter().enumerate() {
                let arguments = ["--phase", phases[0], "--shard", shard];
                scope.spawn(move || phase(index, &arguments).success());
            }
        });
    }
    let summary = phase(2, &["--phase", "select"]).success().summary();
    check_accounting(&summary);
    assert_eq!((&summary["status"], &summary["windows_scored"]), (&json!("done"), &json!(0)));
    assert_eq!(results(&bucket), scenario.results);
    check_nothing_is_left(&bucket);
}

#[test]
fn a_unit_that_two_processes_score_counts_once() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let whole = ["--phase", "score", "--shard", "0/1"];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let workspace = Workspace::copy_of(&scenario.before);
                run(&workspace, &bucket, &whole).success();
            });
        }
    });
    run(&scenario.before, &bucket, &["--phase", "select"]).success();
    assert_eq!(results(&bucket), scenario.results);
}

#[test]
fn a_run_directory_in_use_is_not_changed() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    // The first process is paused with a valid lease until the second has been rejected.
    let (refused, held) = channel::<()>();
    let held = Mutex::new(held);
    bucket.inject(move |_, request| {
        if request.method == "PUT" && request.path.ends_with("plan.json") {
            let _ = held.lock().unwrap().recv();
        }
        None
    });
    let arguments = ["run", "pipeline.yaml", "--set", OUTPUT];
    let workspace = Workspace::copy_of(&scenario.before);
    let mut first = workspace.command(&arguments);
    let first = bucket.serve(&mut first).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut first = first.spawn().unwrap();
    assert!(wait_until(&mut first, || bucket.objects().contains_key("x/out.run/lock")));
    let second = run(&scenario.before, &bucket, &[]).expect(4);
    let number = format!("is in use by process {}", first.id());
    assert!(second.stderr.contains(&number), "{}", second.stderr);
    drop(refused);
    Answer::from_output(first.wait_with_output().unwrap()).success();
    assert_eq!(results(&bucket), scenario.results);
}

fn lease_of_another_machine() -> Value {
    json!({
        "pid": 1, "host": "gone", "started": "2026-11-20T00:00:00Z", "place": "elsewhere",
        "number": 1, "beats": 3,
    })
}

/// Runs until the store refuses to write the file `name`.
fn fail_at(scenario: &Scenario, bucket: &Bucket, name: &'static str) {
    bucket.inject(move |_, request| {
        let writes = request.method == "PUT" && request.path.ends_with(name);
        writes.then_some(Fault::Status(403, "AccessDenied"))
    });
    run(&scenario.before, bucket, &[]).expect(4);
    bucket.clear_faults();
}

#[test]
fn a_run_whose_machine_failed_does_not_run() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    fail_at(&scenario, &bucket, "intent.json");
    let claim = lease_of_another_machine();
    for (minutes, state) in [(1, "running"), (11, "unfinished")] {
        bucket.put_aged("x/out.run/lock", claim.to_string(), Duration::from_mins(minutes));
        let mut command = scenario.before.command(&["status", "s3://bucket/x/out.run"]);
        let answer = Answer::from_output(bucket.serve(&mut command).output().unwrap()).success();
        assert!(answer.stdout.starts_with(state), "{}", answer.stdout);
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn an_unrenewed_lease_expires() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let claim = lease_of_another_machine();
    for lease in [claim.to_string(), String::new()] {
        bucket.put("x/out.run/lock", lease);
        bucket.take_requests();
        let arguments = ["run", "pipeline.yaml", "--set", OUTPUT, "--fresh"];
        let mut command = scenario.before.interposed(&arguments);
        // Sleeping takes no time: the clock jumps forward.
        command.env("LONGSIFT_CLOCK_SLEEPS", "1");
        Answer::from_output(bucket.serve(&mut command).output().unwrap()).success();
        let asked = bucket.take_requests();
        let of_lease = |asked: &&Request| asked.path.ends_with("x/out.run/lock");
        let polls = asked.iter().filter(of_lease).take_while(|asked| {
            // Up to the request that takes over the previous lease.
            !(asked.method == "PUT" && asked.headers.contains_key("if-match"))
        });
        let polls = polls.filter(|asked| asked.method == "GET").count();
        assert!(polls >= 20, "{polls} polls, one a second");
        assert_eq!(results(&bucket), scenario.results);
        check_nothing_is_left(&bucket);
    }
}

#[test]
fn a_run_that_failed_after_its_plan_is_continued() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    fail_at(&scenario, &bucket, "pipeline.lock");
    run(&scenario.before, &bucket, &[]).success();
    assert_eq!(results(&bucket), scenario.results);
}

#[test]
fn a_run_that_lost_its_lease_commits_nothing() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    bucket.inject(|_, request| {
        let renewed =
            request.path.ends_with("out.run/lock") && request.headers.contains_key("if-match");
        renewed.then_some(Fault::Status(412, "PreconditionFailed"))
    });
    let answer = run(&scenario.before, &bucket, &[]).expect(4);
    assert!(answer.stderr.contains("another process acquired it"), "{}", answer.stderr);
    assert!(!bucket.objects().keys().any(|key| key.starts_with("x/out/")));
    bucket.clear_faults();
    let kept = bucket.objects().into_iter().filter(|(key, _)| !key.ends_with("/lock"));
    let bucket = Bucket::new();
    kept.for_each(|(key, bytes)| bucket.put(&key, bytes));
    let summary = run(&scenario.before, &bucket, &[]).success().summary();
    assert_eq!(summary["windows_scored"], 0, "recorded units are reused");
    assert_eq!(results(&bucket), scenario.results);
}

#[test]
fn only_one_of_two_commits_succeeds() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    bucket.inject(|_, request| {
        let commits = request.method == "PUT" && request.path.ends_with("intent.json");
        commits.then_some(Fault::Status(412, "PreconditionFailed"))
    });
    let answer = run(&scenario.before, &bucket, &[]).expect(4);
    assert!(answer.stderr.contains("another process has begun a commit"), "{}", answer.stderr);
    bucket.clear_faults();
    run(&scenario.before, &bucket, &[]).success();
    assert_eq!(results(&bucket), scenario.results);
    check_nothing_is_left(&bucket);
}

#[test]
fn store_faults_are_retried_in_the_output() {
    let scenario = Scenario::first_run();
    // An undisturbed run counts the requests.
    let counted = Bucket::new();
    run(&Workspace::copy_of(&scenario.before), &counted, &[]).success();
    let requests = counted.take_requests().len();
    for (step, fault) in [
        (3, Fault::Status(503, "SlowDown")),
        (4, Fault::Status(500, "InternalError")),
        (4, Fault::Slow(Duration::from_millis(50))),
        (9, Fault::Status(400, "ExpiredToken")),
        (11, Fault::Status(403, "ExpiredToken")),
        (5, Fault::Reset),
        (7, Fault::ResetAfter),
    ] {
        let bucket = Bucket::new();
        let injected = fault.clone();
        // A rejected HEAD has no explanation.
        bucket.inject(move |count, request| {
            (count % step == 1 && request.method != "HEAD").then(|| injected.clone())
        });
        let workspace = Workspace::copy_of(&scenario.before);
        let answer = run(&workspace, &bucket, &[]);
        assert_eq!(answer.code, 0, "{fault:?} of {requests} requests: {}", answer.stderr);
        assert_eq!(results(&bucket), scenario.results, "{fault:?}");
    }
}

#[test]
fn a_failed_copy_with_the_status_of_success_is_a_failure() {
    let scenario = Scenario::first_run();
    let fails = |code: &'static str, failures: usize| {
        let (workspace, bucket) = (Workspace::copy_of(&scenario.before), Bucket::new());
        let copies = AtomicUsize::new(0);
        bucket.inject(move |_, asked| {
            let is_copy = asked.method == "PUT" && asked.headers.contains_key("x-amz-copy-source");
            let is_last = asked.method == "POST" && asked.path.contains("uploadId=");
            let fails = (is_copy || is_last) && copies.fetch_add(1, Ordering::Relaxed) < failures;
            fails.then_some(Fault::Status(200, code))
        });
        let answer = run(&workspace, &bucket, &[]);
        (answer, results(&bucket))
    };
    for code in ["ServiceUnavailable", "InternalError", "OperationAborted"] {
        let (answer, results) = fails(code, 3);
        answer.success();
        assert_eq!(results, scenario.results, "{code}");
    }
    let refused = fails("AccessDenied", usize::MAX).0.expect(4).stderr;
    assert!(refused.contains("AccessDenied"), "{refused}");
}

#[test]
fn a_staged_object_that_is_denied_for_a_moment_is_copied() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let workspace = Workspace::copy_of(&scenario.before);
    run(&workspace, &bucket, &["--set", "stages.filter.keep_fraction=0.9"]).success();
    let denied = Mutex::new(std::collections::BTreeSet::new());
    bucket.inject(move |_, asked| {
        let is_staged = asked.method == "HEAD" && asked.path.contains("/staging/");
        let is_first = is_staged && denied.lock().unwrap().insert(asked.path.clone());
        is_first.then_some(Fault::Status(404, "NoSuchKey"))
    });
    run(&workspace, &bucket, &[]).success();
    assert_eq!(results(&bucket), scenario.results);
    bucket.clear_faults();
    bucket.longsift(&workspace, &["verify", "s3://bucket/x/out.run"]).success();
}

#[test]
fn a_unit_scored_twice_for_another_selection_counts_once() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let workspace = Workspace::copy_of(&scenario.before);
    run(&workspace, &bucket, &["--set", "stages.filter.keep_fraction=0.9"]).success();
    let denied = AtomicBool::new(false);
    // The record is not seen once, so the unit is scored again.
    bucket.inject(move |_, asked| {
        let is_record = asked.method == "GET" && asked.path.contains("/units/");
        let is_first = is_record && !denied.swap(true, Ordering::Relaxed);
        is_first.then_some(Fault::Status(404, "NoSuchKey"))
    });
    run(&workspace, &bucket, &[]).success();
    assert_eq!(results(&bucket), scenario.results);
}

#[test]
fn a_signal_ends_the_wait_for_a_store() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    bucket.inject(|_, request| {
        let is_record = request.method == "PUT" && request.path.contains("/units/");
        is_record.then_some(Fault::Status(503, "SlowDown"))
    });
    let mut command = scenario.before.command(&["run", "pipeline.yaml", "--set", OUTPUT]);
    let run = bucket.serve(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let is_record = |asked: &Request| asked.path.contains("/units/") && asked.method == "PUT";
    assert!(wait_until(&mut run, || bucket.take_requests().iter().any(is_record)));
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    let answer = Answer::from_output(run.wait_with_output().unwrap()).expect(143);
    assert!(answer.stderr.contains("SlowDown"), "{}", answer.stderr);
    bucket.clear_faults();
    run_again(&scenario, &bucket);
}

/// Finishes the stopped run with the same command.
fn run_again(scenario: &Scenario, bucket: &Bucket) {
    run(&scenario.before, bucket, &[]).success();
    assert_eq!(results(bucket), scenario.results);
    check_nothing_is_left(bucket);
}

#[test]
fn missing_write_permission_is_reported() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    bucket.inject(|_, request| {
        (request.method == "PUT").then_some(Fault::Status(403, "AccessDenied"))
    });
    let answer = run(&scenario.before, &bucket, &[]).expect(4);
    for part in ["s3://bucket/x/out.run/lock", "AccessDenied", "hint: check the credentials"] {
        assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
    }
    assert_eq!(bucket.objects(), BTreeMap::new());
}

/// Text, and a column of incompressible bytes: more than one part of an upload.
fn large() -> Workspace {
    let scenario = Scenario::first_run();
    let workspace = Workspace::copy_of(&scenario.before);
    let random = |seed: u64| -> String {
        let bytes = Random(seed).bytes(12_000_000).into_iter();
        bytes.map(|byte| char::from(b'!' + byte % 90)).collect()
    };
    fs::remove_dir_all(workspace.path("input")).unwrap();
    let text = "The amber box stood behind the birch door. ".repeat(20);
    let input = table(&[
        ("id", strings(["a", "b"])),
        ("text", labels(&[Some(&text), Some(&text)])),
        ("more", strings([random(1), random(2)])),
    ]);
    write_parquet(&workspace.path("input/large.parquet"), &input, 2);
    workspace
}

#[test]
fn large_files_are_uploaded_in_parts_and_atomically() {
    let (workspace, bucket) = (large(), Bucket::new());
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let expected = workspace.results();
    run(&workspace, &bucket, &["-q"]).success();
    assert_eq!(results(&bucket), expected);
    let parts = |bucket: &Bucket| {
        bucket.take_requests().iter().filter(|asked| asked.path.contains("partNumber=")).count()
    };
    assert!(parts(&bucket) >= 2);
    check_nothing_is_left(&bucket);

    // A failed upload is aborted and leaves nothing visible.
    let bucket = Bucket::new();
    bucket.inject(|_, request| {
        let second = request.path.contains("partNumber=2");
        second.then_some(Fault::Status(403, "AccessDenied"))
    });
    run(&workspace, &bucket, &["-q"]).expect(4);
    assert!(!bucket.objects().keys().any(|key| key.ends_with("train-00000-of-00001.parquet")));
    assert_eq!(bucket.open_uploads(), Vec::<String>::new());
    // A store that completes an upload without an answer.
    let lost = AtomicBool::new(false);
    bucket.inject(move |_, request| {
        let completes = request.method == "POST" && request.path.contains("uploadId=");
        (completes && !lost.swap(true, Ordering::Relaxed)).then_some(Fault::ResetAfter)
    });
    run(&workspace, &bucket, &["-q"]).success();
    assert_eq!(results(&bucket), expected);
}

#[test]
fn objects_of_earlier_runs_are_reused() {
    let (scenario, bucket) = (Scenario::first_run(), Bucket::new());
    let workspace = Workspace::copy_of(&scenario.before);
    run(&workspace, &bucket, &[]).success();
    let (directory, here) = ("s3://bucket/x/out.run", "output.path=selected");
    let arguments = ["run", "pipeline.yaml", "--scores-from", directory, "--set", here];
    let summary = bucket.longsift(&workspace, &arguments).success().summary();
    assert_eq!(summary["windows_scored"], 0);
    let data =
        |folder: &str| -> Vec<String> { workspace.hashes(&[folder]).into_values().collect() };
    let stored = results(&bucket).into_iter().filter(|(key, _)| key.starts_with("out/data/"));
    assert_eq!(data("selected/data"), stored.map(|(_, hash)| hash).collect::<Vec<_>>());

    crate::support::scenarios::write_input(&workspace, "later", &[14, 3]);
    let since = [
        "--set",
        "input.since=s3://bucket/x/out.run",
        "--set",
        "stages.score.calibration=s3://bucket/x/out.run/calibration.json",
        "--set",
        "output.path=s3://bucket/later/out",
    ];
    let arguments = [&["run", "pipeline.yaml"], &since[..]].concat();
    let summary = bucket.longsift(&workspace, &arguments).success().summary();
    assert_eq!(summary["rows_in"], 2, "only the new file");
    let again: Value = bucket.longsift(&workspace, &arguments).success().summary();
    assert_eq!(again["status"], "nothing_to_do");
}
