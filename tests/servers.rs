//! Faulty stores, web servers and collectors: incomplete data is never used, one result has one version of each file,
//! and secrets never reach another server or a file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::bucket::Bucket;
use crate::support::faults::wait_until;
use crate::support::server::{Reply, Request, Server};
use crate::support::tables::{read_parquet, write_parquet};
use crate::support::{Answer, Pipeline, Workspace, demo_model, files_below, repository};

/// Placed everywhere a secret can be.
const SECRET: &str = "hunter2pw";
const MODIFIED: &str = "Wed, 25 Nov 2020 08:00:00 GMT";

/// A pipeline that reads `input`, without a model.
fn workspace(input: &str) -> Workspace {
    let workspace = Workspace::new();
    write_input(&workspace, input);
    workspace
}

fn write_input(workspace: &Workspace, input: &str) {
    let mut pipeline = Pipeline::text(demo_model().to_str().unwrap(), 256);
    pipeline.input = format!("path: '{input}', text_column: text, id_column: id");
    workspace.write("pipeline.yaml", pipeline.to_string());
}

/// Some rows of the demo corpus as a Parquet file.
fn parquet(first: usize, rows: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let corpus = read_parquet(&repository().join("datasets/demo/corpus.parquet"));
    let path = folder.path().join("x.parquet");
    write_parquet(&path, &corpus.slice(first, rows), 4);
    fs::read(path).unwrap()
}

/// A run with credentials of a store, and without a proxy.
fn command_with(workspace: &Workspace, variables: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = workspace.command(&[&["run", "pipeline.yaml", "-q"], arguments].concat());
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "someone"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
    ] {
        command.env(name, value);
    }
    command.envs(variables.iter().copied()).env_remove("HTTP_PROXY").env_remove("http_proxy");
    command
}

fn run_with(workspace: &Workspace, variables: &[(&str, &str)]) -> Answer {
    Answer::from_output(command_with(workspace, variables, &[]).output().unwrap())
}

fn run(workspace: &Workspace) -> Answer {
    run_with(workspace, &[])
}

#[test]
fn an_exact_key_takes_precedence_over_a_pattern() {
    let (bucket, wanted) = (Bucket::new(), parquet(0, 12));
    for key in ["d/a[1].parquet", "run[1]/x.parquet", "both"] {
        bucket.put(key, wanted.clone());
    }
    for key in ["d/a1.parquet", "run1/x.parquet", "both/x.parquet"] {
        bucket.put(key, "no Parquet");
    }
    let web = format!("{}/bucket", bucket.url());
    for input in [
        "s3://bucket/d/a[1].parquet",
        "s3://bucket/run[1]/*.parquet",
        "s3://bucket/run[1]",
        "s3://bucket/both",
        format!("{web}/d/a[1].parquet").as_str(),
    ] {
        let workspace = workspace(input);
        let mut command = workspace.command(&["run", "pipeline.yaml", "-q"]);
        let answer = Answer::from_output(bucket.serve(&mut command).output().unwrap());
        assert_eq!(answer.success().summary()["rows_in"], 12, "{input}");
    }
}

/// A page of a list with two objects.
fn page(more: &str) -> Reply {
    page_of(&["d/a.parquet", "d/b.parquet"], more)
}

fn page_of(keys: &[&str], more: &str) -> Reply {
    let object = |key: &&str| {
        format!(
            "<Contents><Key>{key}</Key><Size>100</Size><ETag>\"x\"</ETag><LastModified>2026-11-25T08:00:00.000Z</LastModified></Contents>"
        )
    };
    let objects: String = keys.iter().map(object).collect();
    let xml = format!("<ListBucketResult>{more}{objects}</ListBucketResult>");
    Reply::whole(xml.as_bytes()).with_header("Content-Type", "application/xml")
}

#[test]
fn an_endless_or_truncated_list_is_rejected() {
    let turn = AtomicUsize::new(0);
    let token = |text: &str| {
        format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{text}</NextContinuationToken>"
        )
    };
    let (same, next) = (token("same"), token("turn"));
    let servers = [
        Server::new(|_| page("")),
        Server::new(|_| page("<IsTruncated>true</IsTruncated>")),
        Server::new(move |_| page(&same)),
        // New tokens for the same page.
        Server::new(move |_| {
            page(&next.replace("turn", &turn.fetch_add(1, Ordering::Relaxed).to_string()))
        }),
    ];
    for server in servers {
        let answer = run_with(&workspace("s3://bucket/d"), &[("AWS_ENDPOINT_URL", &server.url())]);
        let answer = answer.expect(2);
        assert!(answer.stderr.contains("the list of objects is not complete"), "{}", answer.stderr);
        assert!(server.take_requests().len() <= 3);
    }
}

/// Page of a list of a store or of the hub: a file, and the address of the next page. It ends after half a minute, so that
/// a client that does not stop ends as well.
fn next_page(request: &Request, number: usize) -> Reply {
    let is_last = number > 3000;
    let reply = if request.method == "HEAD" {
        Reply::status(404)
    } else if request.path.starts_with("/bucket") {
        let next = format!("<NextContinuationToken>{number}</NextContinuationToken>");
        let more = if is_last { "" } else { &next };
        let flag = format!("<IsTruncated>{}</IsTruncated>", !is_last);
        page_of(&[&format!("d/{number}.parquet")], &(flag + more))
    } else {
        let file = format!(r#"[{{"type": "file", "size": 100, "path": "{number}.parquet"}}]"#);
        let link = format!("<?cursor={number}>; rel=\"{}\"", if is_last { "prev" } else { "next" });
        Reply::whole(file.as_bytes()).with_header("Link", &link)
    };
    Reply { delay: Duration::from_millis(10), ..reply }
}

#[test]
fn a_signal_ends_a_run_between_pages_of_a_list() {
    for input in ["s3://bucket/d", "hf://datasets/o/d@0123456789abcdef0123456789abcdef01234567"] {
        let pages = Arc::new(AtomicUsize::new(0));
        let sent = Arc::clone(&pages);
        let server =
            Server::new(move |request| next_page(request, sent.fetch_add(1, Ordering::Relaxed)));
        let workspace = workspace(input);
        let address = server.url();
        let variables = [("AWS_ENDPOINT_URL", address.as_str()), ("HF_ENDPOINT", &address)];
        let mut command = command_with(&workspace, &variables, &[]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert!(wait_until(&mut child, || pages.load(Ordering::Relaxed) > 10), "{input}");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let since = Instant::now();
        let answer = Answer::from_output(child.wait_with_output().unwrap());
        assert!(since.elapsed() < Duration::from_secs(7), "{input}: {:?}", since.elapsed());
        answer.expect(143);
    }
}

#[test]
fn a_huge_page_of_a_list_is_rejected() {
    let huge = format!("<IsTruncated>false</IsTruncated>{}", " ".repeat(65 << 20));
    let server = Server::new(move |_| page(&huge));
    let answer = run_with(&workspace("s3://bucket/d"), &[("AWS_ENDPOINT_URL", &server.url())]);
    let answer = answer.expect(2);
    assert!(answer.stderr.contains("a page has more than 67,108,864 bytes"), "{}", answer.stderr);
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn an_object_that_cannot_be_read_by_ranges_is_not_requested_repeatedly() {
    let (data, object) = (parquet(0, 12), "<Key>d/a.parquet</Key>");
    let archived = "<Error><Code>InvalidObjectState</Code></Error>";
    for (reply, says) in [
        (Reply::whole(&data), "use a store that supports range requests"),
        (Reply { status: 403, ..Reply::whole(archived.as_bytes()) }, "restore the object"),
    ] {
        let list = format!(
            "<ListBucketResult><IsTruncated>false</IsTruncated><Contents>{object}<Size>{}</Size>\
             <LastModified>2026-11-25T08:00:00.000Z</LastModified></Contents></ListBucketResult>",
            data.len()
        );
        let data = data.clone();
        let server = Server::new(move |request| {
            let is_file = request.path.starts_with("/bucket/d/a.parquet");
            let reply = match request.method.as_str() {
                "HEAD" if !is_file => return Reply::status(404),
                "HEAD" => Reply::whole(&data),
                _ if is_file => reply.clone(),
                _ => Reply::whole(list.as_bytes()),
            };
            reply.with_header("ETag", "\"1\"").with_header("Last-Modified", MODIFIED)
        });
        let answer = run_with(&workspace("s3://bucket/d"), &[("AWS_ENDPOINT_URL", &server.url())]);
        let answer = answer.expect(2);
        assert!(answer.stderr.contains(says), "{}", answer.stderr);
        assert!(server.take_requests().len() <= 8);
    }
}

#[test]
fn a_block_of_another_length_than_requested_is_rejected() {
    // Lines of equal length: a block without its last line, or with another one, is whole lines as well.
    let line = |row: u32| {
        format!("{{\"id\": \"{row:04}\", \"text\": \"{}\"}}\n", "some words ".repeat(40))
    };
    let data: Vec<u8> = (0..1150).flat_map(|row| line(row).into_bytes()).collect();
    for (range, is_longer, code, says) in [
        ("bytes=0-524287", false, 2, "expected 524,288 bytes, got 523,821"),
        ("bytes=0-524287", true, 2, "expected 524,288 bytes, got 524,755"),
        ("bytes=-65536", false, 3, "expected 65,536 bytes, got 65,069"),
    ] {
        let (data, line) = (data.clone(), line(0));
        let server = Server::new(move |request| {
            if request.path.contains("list-type") {
                return page_of(&[], "<IsTruncated>false</IsTruncated>");
            }
            let mut reply = Reply::file(&data, request);
            // Content-Length fits the bytes that are sent, Content-Range does not.
            let is_changed = request.headers.get("range").is_some_and(|asked| asked == range);
            if is_changed && is_longer {
                reply.body.extend(line.bytes());
            } else if is_changed {
                reply.body.truncate(reply.body.len() - line.len());
            }
            reply.with_header("ETag", "\"1\"").with_header("Last-Modified", MODIFIED)
        });
        let workspace = workspace("s3://bucket/x.jsonl");
        let small_blocks = ["--set", "input.memory_limit_bytes=67108864"];
        let address = server.url();
        let variables = [("AWS_ENDPOINT_URL", address.as_str())];
        let mut command = command_with(&workspace, &variables, &small_blocks);
        let answer = Answer::from_output(command.output().unwrap()).expect(code);
        assert!(answer.stderr.contains(says), "{}", answer.stderr);
        assert!(server.take_requests().len() <= 5);
    }
}

#[test]
fn escapes_of_an_address_are_requested_as_written() {
    let data = parquet(0, 12);
    let server = Server::new(move |request| match request.path.as_str() {
        "/d/a%2Fb%20c.parquet" => Reply::file(&data, request).with_header("ETag", "\"1\""),
        _ => Reply::status(404),
    });
    let address = format!("{}/d/a%2Fb%20c.parquet", server.url());
    assert_eq!(run(&workspace(&address)).success().summary()["rows_in"], 12);
}

#[test]
fn a_result_has_one_version_of_a_file() {
    let old = parquet(0, 40);
    let new = {
        let mut bytes = parquet(0, 40);
        let middle = bytes.len() / 3;
        bytes[middle] ^= 1;
        bytes
    };
    // Version information of the server, and the message.
    for (etags, times, says) in [
        (None, false, "neither a strong ETag nor a Last-Modified in the past"),
        // A weak tag may stay the same.
        (Some(["W/\"1\""; 2]), false, "neither a strong ETag nor a Last-Modified in the past"),
        // An empty tag says nothing.
        (Some(["\"\""; 2]), false, "neither a strong ETag nor a Last-Modified in the past"),
        (Some([""; 2]), false, "neither a strong ETag nor a Last-Modified in the past"),
        (Some(["\"1\"", "\"2\""]), false, "another version"),
        (Some(["W/\"1\""; 2]), true, "another version"),
        (None, true, "another version"),
    ] {
        // Everything after the first answer is of the new version.
        let (old, new, count) = (old.clone(), new.clone(), AtomicUsize::new(0));
        let server = Server::new(move |request| {
            let is_old = count.fetch_add(1, Ordering::Relaxed) == 0;
            let mut reply = Reply::file(if is_old { &old } else { &new }, request);
            if let Some([first, second]) = etags {
                reply = reply.with_header("ETag", if is_old { first } else { second });
            }
            if times {
                let later = MODIFIED.replace("08:00", "09:00");
                reply = reply
                    .with_header("Last-Modified", if is_old { MODIFIED } else { later.as_str() });
            }
            reply
        });
        let answer = run(&workspace(&format!("{}/x.parquet", server.url()))).expect(3);
        assert!(answer.stderr.contains(says), "{etags:?} {times}: {}", answer.stderr);
    }
}

#[test]
fn credentials_are_not_sent_to_another_server() {
    let thief = Server::new(|_| Reply::status(200));
    let address = thief.url().replace("127.0.0.1", "localhost");
    for status in [301, 302, 307, 308] {
        let address = address.clone();
        let first = Server::new(move |_| {
            Reply::status(status).with_header("Location", &format!("{address}/x"))
        });
        let store = [("AWS_ENDPOINT_URL", first.url()), ("AWS_SESSION_TOKEN", SECRET.to_owned())];
        let store = store.each_ref().map(|(name, value)| (*name, value.as_str()));
        run_with(&workspace("s3://bucket/x"), &store).expect(2);
        assert!(!first.take_requests().is_empty());
        let corpus = repository().join("datasets/demo/corpus.parquet");
        let collector =
            [("OPENLINEAGE_URL", first.url()), ("OPENLINEAGE_API_KEY", SECRET.to_owned())];
        let collector = collector.each_ref().map(|(name, value)| (*name, value.as_str()));
        let answer = run_with(&workspace(corpus.to_str().unwrap()), &collector).success();
        assert!(answer.stderr.contains("redirects are not followed"), "{}", answer.stderr);
        let url = first.url().replace("http://", &format!("http://bob:{SECRET}@"));
        run(&workspace(&format!("{url}/x.parquet")));
        let shown = |asked: &Request| format!("{asked:?}").contains(SECRET);
        let asked = thief.take_requests();
        assert!(
            !asked.iter().any(shown)
                && asked.iter().all(|asked| !asked.headers.contains_key("authorization")),
            "{asked:?}"
        );
    }
}

/// Files of a folder and outputs of a command that contain the secret, except the pipeline itself.
fn leaks_of_secret(workspace: &Workspace, outputs: &[&str]) -> Vec<String> {
    let holds = |path: &Path| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
    };
    let files = files_below(&workspace.path("."));
    let files = files.into_iter().filter(|path| !path.ends_with("pipeline.yaml") && holds(path));
    let outputs = outputs.iter().filter(|text| text.contains(SECRET)).map(ToString::to_string);
    files.map(|path| path.display().to_string()).chain(outputs).collect()
}

#[test]
fn no_secret_of_an_address_is_shown_or_stored() {
    let data = parquet(0, 12);
    // Requires a user and a signature, as in presigned addresses.
    let server = Server::new(move |request| {
        let signed = request.path.ends_with(&format!("?X-Amz-Signature={SECRET}"));
        let user =
            request.headers.get("authorization").is_some_and(|value| value.starts_with("Basic "));
        match (signed, user) {
            (true, true) => Reply::file(&data, request).with_header("ETag", "\"1\""),
            _ => Reply::status(403),
        }
    });
    let collector = Server::new(|_| Reply::status(201));
    let address = server.url().replace("http://", &format!("http://bob:{SECRET}@"));
    let right = format!("{address}/d/x.parquet?X-Amz-Signature={SECRET}");
    for (input, set, code) in [
        (right.as_str(), "", 0),
        ("nothing", right.as_str(), 0),
        (format!("{address}/d/x.parquet?wrong={SECRET}").as_str(), "", 3),
        (format!("{address}/d/?x={SECRET}").as_str(), "", 2),
        (format!("{}/http://bob:{SECRET}@other/x.parquet", server.url()).as_str(), "", 2),
        (format!("{}/d/x.parquet#{SECRET}", server.url()).as_str(), "", 3),
        (format!("s3://key:{SECRET}@bucket/x").as_str(), "", 2),
        (format!("s3://key:{SECRET}@bucket/x?y={SECRET}").as_str(), "", 2),
        (format!("az://container/x?sv=1&sig={SECRET}").as_str(), "", 2),
    ] {
        let workspace = workspace(input);
        let mut outputs = Vec::new();
        for command in ["run", "plan", "explain"] {
            let mut arguments = vec![command, "pipeline.yaml"];
            let set = format!("input.path={set}");
            if set.len() > 11 {
                arguments.extend(["--set", &set]);
            }
            if command == "explain" {
                arguments = vec!["verify", "out.run"];
            }
            let mut command = workspace.command(&arguments);
            command
                .env("OPENLINEAGE_URL", collector.url())
                .env_remove("HTTP_PROXY")
                .env_remove("http_proxy");
            let answer = Answer::from_output(command.output().unwrap());
            if arguments[0] == "run" {
                assert_eq!(answer.code, code, "{input}: {}", answer.stderr);
            }
            outputs.push(answer.to_text());
        }
        outputs.push(format!("{:?}", collector.take_requests()));
        for body in collector.take_requests() {
            outputs.push(String::from_utf8_lossy(&body.body).into_owned());
        }
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        assert_eq!(leaks_of_secret(&workspace, &outputs), Vec::<String>::new(), "{input}");
    }
}

#[test]
fn no_secret_of_a_parameter_is_shown_or_stored() {
    let data = parquet(0, 12);
    let server = Server::new(move |request| {
        if request.path.ends_with(&format!("?sig={SECRET}")) {
            Reply::file(&data, request).with_header("ETag", "\"1\"")
        } else {
            Reply::status(403)
        }
    });
    let address = server.url().replace("http://", "http://bob:${user}@");
    let workspace = workspace(&format!("{address}/d/x.parquet?sig=${{sig}}"));
    let pipeline = fs::read_to_string(workspace.path("pipeline.yaml")).unwrap();
    let params = format!("params: {{user: {{default: {SECRET}}}, sig: {{}}}}\n{pipeline}");
    workspace.write("pipeline.yaml", params);
    let sig = format!("sig={SECRET}");
    let mut outputs = Vec::new();
    for arguments in [
        vec!["run", "pipeline.yaml", "--param", &sig],
        vec!["lock", "pipeline.yaml", "--param", &sig],
        vec!["run", "pipeline.yaml", "--locked", "--param", &sig],
        vec!["verify", "out.run"],
    ] {
        let mut command = workspace.command(&arguments);
        command.env_remove("HTTP_PROXY").env_remove("http_proxy");
        outputs.push(Answer::from_output(command.output().unwrap()).success().to_text());
    }
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    assert_eq!(leaks_of_secret(&workspace, &outputs), Vec::<String>::new());
    let lock = fs::read_to_string(workspace.path("pipeline.lock")).unwrap();
    assert!(lock.contains(r#""sig": "***""#), "{lock}");
}

#[test]
fn no_secret_of_the_environment_is_shown_or_stored() {
    // The answer repeats the headers of the request, as that of a proxy may.
    let refused = Server::new(|request| {
        let headers: Vec<&str> = request.headers.values().map(String::as_str).collect();
        let echo = format!("<html>{}</html>", headers.join(" "));
        Reply { status: 403, ..Reply::whole(echo.as_bytes()) }
            .with_header("X-Error-Code", &headers.join(" "))
    });
    let with_user = refused.url().replace("http://", &format!("http://bob:{SECRET}@"));
    let local = repository().join("datasets/demo/corpus.parquet").display().to_string();
    for (input, variables) in [
        ("s3://bucket/x", vec![("AWS_ENDPOINT_URL", with_user.clone())]),
        ("s3://bucket/x", vec![("AWS_ENDPOINT_URL", format!("{}?k={SECRET}", refused.url()))]),
        (
            "s3://bucket/x",
            vec![("AWS_ENDPOINT_URL", refused.url()), ("AWS_SESSION_TOKEN", SECRET.to_owned())],
        ),
        (
            "az://container/x",
            vec![
                ("AZURE_STORAGE_ACCOUNT_NAME", "account".to_owned()),
                ("IDENTITY_ENDPOINT", refused.url()),
                ("IDENTITY_HEADER", SECRET.to_owned()),
            ],
        ),
        ("hf://datasets/o/d", vec![("HF_ENDPOINT", with_user.clone())]),
        (
            "hf://datasets/o/d",
            vec![("HF_ENDPOINT", with_user.clone()), ("HF_TOKEN", SECRET.to_owned())],
        ),
        (
            "hf://datasets/o/d",
            vec![("HF_ENDPOINT", refused.url()), ("HF_TOKEN", SECRET.to_owned())],
        ),
        ("hf://datasets/o/d", vec![("HF_ENDPOINT", format!("bob:{SECRET}@host"))]),
        (local.as_str(), vec![("OPENLINEAGE_URL", format!("bob:{SECRET}@host"))]),
        (local.as_str(), vec![("OPENLINEAGE_URL", with_user)]),
        (local.as_str(), vec![("OPENLINEAGE_URL", format!("{}/?k={SECRET}", refused.url()))]),
        (
            &local,
            vec![("OPENLINEAGE_URL", refused.url()), ("OPENLINEAGE_API_KEY", SECRET.to_owned())],
        ),
    ] {
        let workspace = workspace(input);
        let set: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = run_with(&workspace, &set);
        assert_eq!(answer.code == 0, input == local.as_str(), "{}", answer.stderr);
        assert_eq!(
            leaks_of_secret(&workspace, &[&answer.to_text()]),
            Vec::<String>::new(),
            "{set:?}"
        );
    }
}

#[test]
fn secrets_are_trimmed_and_control_characters_rejected() {
    let (bucket, data) = (Bucket::new(), parquet(0, 12));
    bucket.put("x.parquet", data);
    let input = workspace("s3://bucket/x.parquet");
    for (name, value, code) in [
        ("AWS_ACCESS_KEY_ID", "someone\r\n", 0),
        ("AWS_REGION", " us-east-1\n", 0),
        ("AWS_ACCESS_KEY_ID", "some\nx-evil: one", 2),
        ("AWS_SESSION_TOKEN", "t\u{1}oken", 2),
    ] {
        let mut command = input.command(&["run", "pipeline.yaml", "-q"]);
        let answer =
            Answer::from_output(bucket.serve(&mut command).env(name, value).output().unwrap());
        let answer = answer.expect(code);
        assert!(code == 0 || answer.stderr.contains(name), "{}", answer.stderr);
    }
    for (input, name, value) in [
        ("az://container/x", "IDENTITY_HEADER", "header\n"),
        ("az://container/x", "IDENTITY_ENDPOINT", "169.254.169.254/x"),
        ("az://container/x", "AZURE_AUTHORITY_HOST", "login.example.com"),
        ("gs://bucket/x", "GCE_METADATA_HOST", "127.0.0.1\n"),
        ("gs://bucket/x", "GCE_METADATA_HOST", "127.0.0.1:1 "),
        ("gs://bucket/x", "GCE_METADATA_HOST", ""),
        ("az://container/x", "AZURITE_BLOB_STORAGE_URL", "azurite:10000"),
        ("gs://bucket/x", "GCE_METADATA_HOST", "http://127.0.0.1:1"),
        ("az://container/x", "IDENTITY_ENDPOINT", "http://127.0.0.1:1/a b"),
        ("s3://bucket/x", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/a b"),
        ("gs://bucket/x", "GOOGLE_BASE_URL", "localhost:3"),
        ("s3://bucket/x", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "localhost/keys"),
        ("s3://bucket/x", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "no slash"),
        ("s3://bucket/x", "AWS_WEB_IDENTITY_TOKEN_FILE", "/no/such/file"),
        ("az://container/x", "AZURE_FEDERATED_TOKEN_FILE", "/no/such/file"),
    ] {
        let variables = [(name, value), ("AWS_ACCESS_KEY_ID", ""), ("AWS_ROLE_ARN", "role")];
        let refused = run_with(&workspace(input), &variables).expect(2).stderr;
        assert!(refused.contains(name), "{refused}");
    }
    // An empty variable, and the token file of a client with a key, are not used.
    let server = Server::new(|_| Reply::status(403));
    let endpoint = server.url();
    for (input, variables) in [
        ("gs://bucket/x", [("GCE_METADATA_HOST", ""), ("GOOGLE_BASE_URL", &*endpoint)]),
        (
            "s3://bucket/x",
            [("AWS_WEB_IDENTITY_TOKEN_FILE", "/none"), ("AWS_ENDPOINT_URL", &*endpoint)],
        ),
    ] {
        let more = [("AWS_ACCESS_KEY_ID", "someone"), ("AWS_SECRET_ACCESS_KEY", "something")];
        let skip = ("GOOGLE_SKIP_SIGNATURE", "true");
        let variables = [&variables[..], &more, &[skip]].concat();
        let refused = run_with(&workspace(input), &variables);
        assert!(refused.stderr.contains("403"), "{}", refused.stderr);
    }
    let hub = Server::new(|_| Reply::status(404));
    let asked = |token: &str| {
        let variables = [("HF_ENDPOINT", hub.url()), ("HF_TOKEN", token.to_owned())];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        run_with(&workspace("hf://datasets/o/d"), &variables).expect(2).stderr
    };
    asked("hf_token\n");
    assert!(
        hub.take_requests().iter().all(|asked| asked.headers["authorization"] == "Bearer hf_token")
    );
    assert!(asked("hf_\ntoken").contains("HF_TOKEN"));
    assert!(hub.take_requests().is_empty());
}

#[test]
fn a_signal_ends_a_run_despite_hanging_servers() {
    let silent = Server::new(|_| {
        std::thread::sleep(Duration::from_secs(40));
        Reply::status(200)
    });
    for input in ["s3://bucket/x".to_owned(), format!("{}/x.parquet", silent.url())] {
        let workspace = workspace(&input);
        let address = silent.url();
        let variables = [("AWS_ENDPOINT_URL", address.as_str()), ("OPENLINEAGE_URL", &address)];
        let mut child = command_with(&workspace, &variables, &[]).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(2));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let since = Instant::now();
        child.wait().unwrap();
        assert!(since.elapsed() < Duration::from_secs(7), "{input}: {:?}", since.elapsed());
    }
}
