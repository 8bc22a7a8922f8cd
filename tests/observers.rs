//! Run observers: metrics for Prometheus, lineage events, a summary with the run's name.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;

use crate::support::tables::{corpus, write_parquet};
use crate::support::{Answer, Pipeline, Tiny, Workspace, count};

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[96, 160, 20]), 1);
    workspace.write("web.yaml", Pipeline::tokens("model", 32).to_string());
    workspace
}

/// Runs the command with environment variables.
fn run(workspace: &Workspace, variables: &[(&str, &str)], arguments: &[&str]) -> Answer {
    let mut command = workspace.command(&[&["run", "web.yaml"], arguments].concat());
    let output = command.envs(variables.iter().copied()).output().unwrap();
    Answer {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A collector on the loopback address: its URL, and its requests (first line, headers, body). It answers each with
/// `status`.
fn collector(status: &'static str) -> (String, Receiver<(String, Vec<String>, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                lines.push(line.trim().to_owned());
            }
            let length = lines.iter().find_map(|line| {
                line.to_lowercase().strip_prefix("content-length: ")?.parse().ok()
            });
            let mut body = vec![0; length.unwrap()];
            reader.read_exact(&mut body).unwrap();
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            let first = lines.remove(0);
            let _ = sender.send((first, lines, serde_json::from_slice(&body).unwrap()));
        }
    });
    (url, requests)
}

#[test]
fn metrics_show_how_the_last_run_ended() {
    let workspace = workspace();
    let arguments = ["-q", "--metrics-textfile", "web.prom"];
    let summary = run(&workspace, &[], &arguments).success().summary();
    let metric = |name: &str| -> f64 {
        let text = fs::read_to_string(workspace.path("web.prom")).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name} in\n{text}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let kept = count(&summary, "rows_kept") as f64;
    assert!((metric(r#"longsift_rows{pipeline="web",fate="kept"}"#) - kept).abs() < 0.5);
    let short = r#"longsift_rows{pipeline="web",fate="dropped",reason="short_document"}"#;
    assert!((metric(short) - 1.0).abs() < 0.5);
    assert!(metric(r#"longsift_exit_code{pipeline="web"}"#).abs() < 0.5);
    let succeeded = metric(r#"longsift_last_success_timestamp_seconds{pipeline="web"}"#);
    let wrong = [&arguments[..], &["--set", "stages.tokenize.window_tokens=1"]].concat();
    run(&workspace, &[], &wrong).expect(2);
    assert!((metric(r#"longsift_exit_code{pipeline="web"}"#) - 2.0).abs() < 0.5);
    let still = metric(r#"longsift_last_success_timestamp_seconds{pipeline="web"}"#);
    assert!((still - succeeded).abs() < 0.5, "the time of the last success is kept");
    let names: Vec<String> = fs::read_dir(workspace.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(!names.iter().any(|name| name.starts_with('.')), "{names:?}");
}

#[test]
fn metrics_that_cannot_be_written_are_a_warning() {
    let answer =
        run(&workspace(), &[], &["--metrics-textfile", "no/such/folder/web.prom"]).success();
    assert!(answer.stderr.contains("cannot write metrics: cannot create"), "{}", answer.stderr);
}

/// Both would be opened to read the previous metrics, and neither has an end.
#[test]
fn metrics_are_not_written_to_a_device_or_a_named_pipe() {
    let workspace = workspace();
    Command::new("mkfifo").arg(workspace.path("pipe")).status().unwrap();
    for (path, what) in [("/dev/full", "device"), ("pipe", "named pipe")] {
        let answer = run(&workspace, &[], &["--metrics-textfile", path]).success();
        let says = format!(
            "cannot write metrics: cannot read `{path}`: it is a {what}, not a regular file"
        );
        assert!(answer.stderr.contains(&says), "{}", answer.stderr);
    }
}

#[test]
fn a_run_has_its_given_name() {
    let workspace = workspace();
    let summary = run(&workspace, &[], &["-q", "--run-id", "web-20261120"]).success().summary();
    assert_eq!(summary["run_id"], "web-20261120");
    let failed = run(&workspace, &[], &["-q", "--run-id", "x", "--set", "input.path=absent"]);
    assert_eq!(failed.expect(2).summary()["run_id"], "x");
}

#[test]
fn a_collector_gets_start_and_complete_with_both_datasets() {
    let workspace = workspace();
    let (url, requests) = collector("201 Created");
    let parent = "airflow/daily.sift/01939761-6c68-7b13-b1ec-000000000000";
    let variables = [
        ("OPENLINEAGE_URL", url.as_str()),
        ("OPENLINEAGE_NAMESPACE", "corpora"),
        ("OPENLINEAGE_API_KEY", "secret"),
        ("OPENLINEAGE_PARENT_ID", parent),
    ];
    let answer = run(&workspace, &variables, &["-q", "--run-id", "web-1"]).success();
    let (start, complete) = (requests.recv().unwrap(), requests.recv().unwrap());
    assert_eq!(start.0, "POST /api/v1/lineage HTTP/1.1");
    assert!(start.1.iter().any(|line| line.eq_ignore_ascii_case("Authorization: Bearer secret")));
    for (_, _, event) in [&start, &complete] {
        assert_eq!(
            (&event["job"]["namespace"], &event["job"]["name"]),
            (&"corpora".into(), &"web".into())
        );
        assert_eq!(event["run"]["runId"], start.2["run"]["runId"]);
        assert_eq!(event["run"]["facets"]["parent"]["job"]["name"], "daily.sift");
        let dataset = |list: &str| event[list][0]["name"].as_str().unwrap().to_owned();
        let folder = fs::canonicalize(workspace.path("")).unwrap().display().to_string();
        assert_eq!(dataset("inputs"), format!("{folder}/input"));
        assert_eq!(dataset("outputs"), format!("{folder}/out/data"));
        for facet in [&event["inputs"][0]["facets"]["schema"], &event["run"]["facets"]["parent"]] {
            assert!(facet["_producer"].is_string() && facet["_schemaURL"].is_string(), "{facet}");
        }
    }
    assert_eq!(
        (&start.2["eventType"], &complete.2["eventType"]),
        (&"START".into(), &"COMPLETE".into())
    );
    let rows = &complete.2["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"];
    assert_eq!(*rows, answer.summary()["kept"]);
    assert_eq!(complete.2["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"], 3);
    // A file in the folder of the pipeline.
    fs::copy(workspace.path("input/a.parquet"), workspace.path("a.parquet")).unwrap();
    run(&workspace, &variables, &["-q", "--set", "input.path=a.parquet", "--set", "output.path=b"])
        .success();
    for event in [requests.recv().unwrap().2, requests.recv().unwrap().2] {
        let folder = fs::canonicalize(workspace.path("")).unwrap().display().to_string();
        assert_eq!(event["inputs"][0]["name"], folder);
    }
    // A shard publishes nothing and reads parts of files.
    let shard = ["-q", "--phase", "score", "--shard", "0/1", "--set", "output.path=c"];
    run(&workspace, &variables, &shard).success();
    let (_, complete) = (requests.recv().unwrap(), requests.recv().unwrap().2);
    assert_eq!(
        (&complete["job"]["name"], complete["eventType"].as_str()),
        (&"web.score.0".into(), Some("COMPLETE"))
    );
    assert!(complete["outputs"][0]["outputFacets"].is_null(), "{complete}");
    let statistics = complete["inputs"][0]["inputFacets"]["inputStatistics"].as_object().unwrap();
    assert!(statistics["rowCount"] == 3 && !statistics.contains_key("size"), "{complete}");
    // A retry of the same logical date is the same run.
    run(&workspace, &variables, &["-q", "--run-id", "web-1"]).success();
    assert_eq!(requests.recv().unwrap().2["run"]["runId"], start.2["run"]["runId"]);
}

#[test]
fn a_line_end_in_a_key_injects_no_header() {
    let (url, requests) = collector("201 Created");
    let with_key = |key: &str| {
        let variables = [("OPENLINEAGE_URL", url.as_str()), ("OPENLINEAGE_API_KEY", key)];
        run(&workspace(), &variables, &["-q"]).success()
    };
    with_key("secret\r\n");
    for _event in ["START", "COMPLETE"] {
        let (_, headers, _) = requests.recv().unwrap();
        let is_key = |line: &&String| line.to_lowercase().starts_with("authorization:");
        let keys: Vec<&String> = headers.iter().filter(is_key).collect();
        assert!(keys.len() == 1 && keys[0].ends_with(" Bearer secret"), "{headers:?}");
    }
    let answer = with_key("secret\r\nX-Evil: one");
    let says = "lineage is off: OPENLINEAGE_API_KEY has the character U+000D";
    assert!(answer.stderr.contains(says), "{}", answer.stderr);
    assert!(!answer.stderr.contains("secret"), "{}", answer.stderr);
    assert!(requests.try_recv().is_err(), "nothing is sent");
}

#[test]
fn an_endless_answer_of_a_collector_is_not_read() {
    const PIECE: usize = 1 << 16;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, taken) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            assert!(stream.read(&mut vec![0; PIECE]).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let piece = vec![b' '; PIECE];
            let pieces = (0..4096).take_while(|_| stream.write_all(&piece).is_ok());
            let _ = sender.send(pieces.count() * PIECE);
        }
    });
    let answer = run(&workspace(), &[("OPENLINEAGE_URL", &url)], &["-q"]).success();
    assert!(!answer.stderr.contains("lineage event"), "{}", answer.stderr);
    for _event in ["START", "COMPLETE"] {
        // Some megabytes wait in the connection.
        let bytes = taken.recv().unwrap();
        assert!(bytes < 64 << 20, "{bytes}");
    }
}

#[test]
fn a_failed_run_sends_fail_with_the_reason() {
    let workspace = workspace();
    let log = workspace.path("lineage.jsonl");
    let url = format!("file://{}", log.display());
    let variables = [("OPENLINEAGE_URL", url.as_str())];
    run(&workspace, &variables, &["-q", "--set", "input.path=absent"]).expect(2);
    fs::create_dir_all(workspace.path("out/data")).unwrap();
    fs::write(workspace.path("out/data/mine.parquet"), "mine").unwrap();
    run(&workspace, &variables, &["-q"]).expect(2);
    let text = fs::read_to_string(&log).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> =
        events.iter().map(|event| event["eventType"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["FAIL", "START", "FAIL"], "the first run failed before it had a plan");
    for (event, why) in [(&events[0], "absent"), (&events[2], "mine.parquet")] {
        let message = event["run"]["facets"]["errorMessage"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn lineage_never_fails_a_run() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let (refusing, _requests) = collector("500 Broken");
    for (url, why) in [
        (closed.as_str(), "cannot send lineage event \"START\""),
        (refusing.as_str(), "returned 500"),
        ("ftp://collector", "OPENLINEAGE_URL does not begin with http://, file://"),
    ] {
        let answer = run(&workspace(), &[("OPENLINEAGE_URL", url)], &[]).success();
        assert!(answer.stderr.contains(why), "{}", answer.stderr);
        assert_eq!(answer.summary()["status"], "done");
    }
}

#[test]
fn the_summary_file_is_written_for_every_outcome() {
    let workspace = workspace();
    let file = |arguments: &[&str]| {
        let all =
            [&["-q", "--run-id", "web-1", "--summary-file", "return.json"], arguments].concat();
        let answer = run(&workspace, &[], &all);
        let text = fs::read_to_string(workspace.path("return.json")).unwrap();
        assert_eq!(text.lines().last(), answer.stdout.lines().last());
        (answer, serde_json::from_str::<Value>(&text).unwrap())
    };
    let (answer, summary) = file(&[]);
    assert_eq!((answer.code, &summary["status"]), (0, &Value::from("done")), "{}", answer.stderr);
    assert_eq!(summary["run_id"], "web-1");
    let (_, summary) = file(&[]);
    assert_eq!(summary["status"], "nothing_to_do");
    let (answer, summary) = file(&["--set", "input.path=absent"]);
    assert_eq!((answer.code, &summary["exit_code"]), (2, &Value::from(2)));
}

#[test]
fn an_unwritable_summary_path_is_rejected_before_the_run() {
    let workspace = workspace();
    Command::new("mkfifo").arg(workspace.path("pipe")).status().unwrap();
    for (path, why) in [
        ("model", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("no/such/summary.json", "is in a folder that does not exist"),
    ] {
        let answer = run(&workspace, &[], &["--summary-file", path]).expect(2);
        assert!(answer.stderr.contains(why), "{path}: {}", answer.stderr);
        assert!(!workspace.path("out.run").exists(), "nothing has begun");
    }
}

/// The summary of an earlier run must not be mistaken for that of a killed run.
#[test]
fn an_old_summary_is_removed_when_a_run_begins() {
    let workspace = workspace();
    let summary = ["--summary-file", "return.json"];
    run(&workspace, &[], &summary).success();
    let is_of = |answer: &Answer| {
        let text = fs::read_to_string(workspace.path("return.json")).unwrap();
        assert_eq!(Some(text.trim_end()), answer.stdout.lines().last());
    };
    // A command line that is rejected before the run begins also counts as a failure.
    is_of(&run(&workspace, &[], &[&summary[..], &["--shard", "0/2"]].concat()).expect(2));
    run(&workspace, &[], &summary).success();
    workspace.write("web.yaml", "version: 2");
    is_of(&run(&workspace, &[], &summary).expect(2));
}

#[test]
fn every_log_line_names_the_run() {
    for format in ["text", "json"] {
        let answer =
            run(&workspace(), &[], &["-v", "--run-id", "web-1", "--log-format", format]).success();
        let lines: Vec<&str> =
            answer.stderr.lines().filter(|line| line.contains("unit scored")).collect();
        assert!(!lines.is_empty(), "{}", answer.stderr);
        for line in lines {
            match format {
                "json" => {
                    let event: Value = serde_json::from_str(line).unwrap();
                    assert_eq!(event["run_id"], "web-1", "{line}");
                }
                _ => assert!(line.ends_with(" run_id=web-1"), "{line}"),
            }
        }
    }
}
