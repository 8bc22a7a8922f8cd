//! Tests that files are received completely from servers that misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testkit::Random;
use testkit::server::{Reply, Request, Server};

use crate::storage::http::*;

/// Returns three megabytes without repetitions.
fn content() -> Vec<u8> {
    Random(1).bytes(3_000_000)
}

const RANGES: [Range<u64>; 3] = [10..20, 1_000_000..1_400_000, 2_999_990..3_000_000];

fn wanted() -> Vec<u8> {
    let content = content();
    RANGES
        .iter()
        .flat_map(|range| content[range.start as usize..range.end as usize].to_vec())
        .collect()
}

fn client(token: Option<(&str, &str)>) -> HttpClient {
    let policy = RetryPolicy {
        first_wait: Duration::from_millis(1),
        max_wait: Duration::from_millis(20),
        deadline: Duration::from_millis(300),
    };
    let token = token.map(|(url, token)| (Url::parse(url).unwrap(), token.to_owned()));
    let client = HttpClient::new(token, ServerKind::HUB, Stop::default()).unwrap();
    HttpClient { policy, max_discarded_bytes: 4_000_000, ..client }
}

fn url(server: &Server, path: &str) -> Url {
    Url::parse(&server.url()).unwrap().join(path).unwrap()
}

/// Reads the ranges through a client.
fn read(client: &HttpClient, url: &Url) -> Result<Vec<u8>, StorageError> {
    let file = client.open(url, FIRST_BYTES)?.expect("the file exists");
    assert_eq!((file.length, file.first.len()), (3_000_000, 256 << 10));
    let mut bytes = Vec::new();
    client.read(&file, &RANGES, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

/// Starts a server of one file; `change` modifies each answer, given the number of earlier ones.
fn server(change: impl Fn(usize, &Request, Reply) -> Reply + Send + Sync + 'static) -> Server {
    let (content, count) = (content(), AtomicUsize::new(0));
    Server::new(move |request| {
        let reply = Reply::file(&content, request);
        change(count.fetch_add(1, Ordering::Relaxed), request, reply)
    })
}

#[test]
fn only_the_requested_ranges_are_fetched() {
    let server = server(|_, _, reply| reply);
    let client = client(None);
    assert!(read(&client, &url(&server, "x")).unwrap() == wanted());
    assert_eq!(client.received(), (256 << 10) + 400_020);
    let requested: Vec<_> =
        server.take_requests().iter().map(|request| request.range().unwrap()).collect();
    assert_eq!(requested[1..], [(10, 20), (1_000_000, 1_400_000), (2_999_990, 3_000_000)]);
}

#[test]
fn a_server_that_ignores_ranges_is_read_once_and_no_further_than_needed() {
    let server = server(|_, _, _| Reply::whole(&content()));
    assert!(read(&client(None), &url(&server, "x")).unwrap() == wanted());
    assert_eq!(server.take_requests().len(), 2);
    let mut strict = client(None);
    strict.max_discarded_bytes = 2_000_000;
    let problem = read(&strict, &url(&server, "x")).unwrap_err();
    assert_eq!(problem.kind, ErrorKind::Invalid);
    assert!(problem.to_string().contains("ignores ranges: 2,599,980 bytes"), "{problem}");
}

#[test]
fn a_truncated_answer_is_continued_where_it_stopped() {
    let half = server(|count, _, reply| match count % 2 {
        0 => reply,
        _ => Reply { cut: Some(reply.body.len() / 2), ..reply },
    });
    assert!(read(&client(None), &url(&half, "x")).unwrap() == wanted());
    let starts: Vec<_> =
        half.take_requests().iter().filter_map(|request| Some(request.range()?.0)).collect();
    assert!(starts.iter().any(|start| (1_000_001..1_400_000).contains(start)), "{starts:?}");
    // A server that sends the whole file again.
    let whole = server(|count, _, _| {
        let reply = Reply::whole(&content());
        if count == 1 { Reply { cut: Some(1_200_000), ..reply } } else { reply }
    });
    assert!(read(&client(None), &url(&whole, "x")).unwrap() == wanted());
}

#[test]
fn a_file_is_empty_only_if_the_server_says_so() {
    let server = server(|_, request, _| {
        let range = |text: &str, reply: Reply| reply.with_header("Content-Range", text);
        match request.path.as_str() {
            "/empty" => range("bytes */0", Reply::status(416)),
            "/unknown" => range("bytes */*", Reply::status(416)),
            "/silent" => Reply::status(416),
            "/contradiction" => {
                range("bytes 0-7/0", Reply { status: 206, ..Reply::whole(b"12345678") })
            }
            _ => range("bytes */30700", Reply::status(416)),
        }
    });
    let client = client(None);
    assert_eq!(client.open(&url(&server, "empty"), 8).unwrap().unwrap().length, 0);
    for path in ["x", "unknown", "silent", "contradiction"] {
        let problem = client.open(&url(&server, path), 8).err().unwrap();
        assert_eq!(problem.kind, ErrorKind::Invalid, "{path}");
    }
}

#[test]
fn a_server_may_send_less_than_the_range() {
    let server = server(|_, request, reply| {
        let range = request.range_of(wanted().len());
        let Some((start, _)) = range else { return reply };
        let end = wanted().len().min(start + 1000);
        Reply { status: 206, ..Reply::whole(&wanted()[start..end]) }
            .with_header("Content-Range", &format!("bytes {start}-{}/{}", end - 1, wanted().len()))
            .with_header("ETag", "\"1\"")
    });
    let file = client(None).open(&url(&server, "x"), 4000).unwrap().unwrap();
    assert_eq!((file.length, file.first.len()), (wanted().len() as u64, 1000));
    assert_eq!(file.first, wanted()[..1000]);
}

#[test]
fn a_server_that_compresses_its_answers_is_refused_at_once() {
    let server = server(|count, _, mut reply| {
        let is_first = count == 0;
        reply.body.truncate(if is_first { reply.body.len() } else { reply.body.len() / 2 });
        reply.with_header("Content-Encoding", "gzip")
    });
    let problem = read(&client(None), &url(&server, "x")).unwrap_err();
    assert_eq!(problem.kind, ErrorKind::Invalid);
    assert!(problem.to_string().contains("`Content-Encoding: gzip`"), "{problem}");
    assert_eq!(server.take_requests().len(), 2, "the second answer is not asked for again");
    let marked = self::server(|_, _, reply| reply.with_header("Content-Encoding", "gzip"));
    assert!(read(&client(None), &url(&marked, "x")).unwrap() == wanted());
}

#[test]
fn a_token_is_sent_to_the_hub_but_not_to_redirect_targets() {
    let store = Arc::new(server(|_, _, reply| reply));
    let target = format!("{}/blob?signature=secret", store.url());
    let hub = Server::new(move |request| match request.path.as_str() {
        "/old" => Reply::redirect("/new"),
        _ => Reply::redirect(&target),
    });
    let client = client(Some((&hub.url(), "hf_secret")));
    assert!(read(&client, &url(&hub, "old")).unwrap() == wanted());
    let seen = |server: &Server| {
        let tokens = server
            .take_requests()
            .into_iter()
            .map(|request| request.headers.get("authorization").cloned());
        tokens.collect::<Vec<_>>()
    };
    // The redirect is followed once and remembered.
    assert_eq!(seen(&hub), vec![Some("Bearer hf_secret".to_owned()); 2]);
    assert_eq!(seen(&store), vec![None; 4]);
}

#[test]
fn an_expired_link_is_requested_again() {
    let store = server(|_, request, reply| {
        let uses = request.path.rsplit('=').next().unwrap().parse::<usize>().unwrap();
        // The first link works once, for the first bytes.
        if uses == 0 && request.range().unwrap().0 > 0 { Reply::status(403) } else { reply }
    });
    let (store_url, count) = (store.url(), AtomicUsize::new(0));
    let hub = Server::new(move |_| {
        Reply::redirect(&format!(
            "{store_url}/blob?signature={}",
            count.fetch_add(1, Ordering::Relaxed)
        ))
    });
    assert!(read(&client(None), &url(&hub, "x")).unwrap() == wanted());
    assert_eq!(hub.take_requests().len(), 2);
}

#[test]
fn a_missing_file_after_a_redirect_is_not_found() {
    // A renamed repository, as the hub answers.
    let renamed = Server::new(|request| match request.path.strip_prefix("/old/") {
        Some(name) => Reply::redirect(&format!("/new/{name}")),
        None => Reply::status(404).with_header("X-Error-Code", "EntryNotFound"),
    });
    assert!(client(None).small(&url(&renamed, "old/x"), 10).unwrap().is_none());
    assert_eq!(renamed.take_requests().len(), 2);
    // Another name of a web server.
    let other = Server::new(|_| Reply::status(404));
    let store_url = other.url();
    let web = Server::new(move |request| Reply::redirect(&format!("{store_url}{}", request.path)));
    let client = HttpClient { kind: ServerKind::WEB, ..client(None) };
    assert!(client.small(&url(&web, "x"), 10).unwrap().is_none());
    assert_eq!(other.take_requests().len(), 1);
}

#[test]
fn a_busy_server_is_retried_until_the_deadline() {
    let busy = server(|count, _, reply| match count {
        0 | 2 => Reply::status(503).with_header("Retry-After", "0"),
        3 => Reply::status(429),
        _ => reply,
    });
    assert!(read(&client(None), &url(&busy, "x")).unwrap() == wanted());
    let down = Server::new(|_| Reply::status(500));
    let problem = client(None).small(&url(&down, "x?signature=secret"), 10).err().unwrap();
    assert_eq!(problem.kind, ErrorKind::Transient);
    assert!(problem.to_string().contains("/x`: the server answered 500"), "{problem}");
    assert!(down.take_requests().len() > 3);
    let closed_port = Url::parse("http://127.0.0.1:1/x").unwrap();
    let problem = client(None).small(&closed_port, 10).err().unwrap();
    assert!(problem.to_string().contains("the connection failed"), "{problem}");
}

#[test]
fn missing_and_forbidden_files_are_not_retried() {
    let server = Server::new(|request| match request.path.as_str() {
        "/gated" => Reply::status(403).with_header("X-Error-Code", "GatedRepo"),
        "/revision" => Reply::status(404).with_header("X-Error-Code", "RevisionNotFound"),
        "/long" => Reply::whole(&[0; 11]),
        "/unsupported" => Reply::status(501).with_header("Retry-After", "0"),
        "/round" => Reply::redirect("/round"),
        _ => Reply::status(404),
    });
    let fetch = |path| client(None).small(&url(&server, path), 10);
    assert!(fetch("none").unwrap().is_none());
    let gated = fetch("gated").err().unwrap();
    assert!(gated.to_string().ends_with(": the server answered 403 (GatedRepo)"), "{gated}");
    assert!(gated.hint().unwrap().contains("HF_TOKEN"));
    assert!(fetch("revision").err().unwrap().to_string().contains("RevisionNotFound"));
    assert!(fetch("long").err().unwrap().to_string().ends_with("has more than 10 bytes"));
    for (kind, hint) in
        [(ServerKind::HUB, "check HF_ENDPOINT"), (ServerKind::WEB, "check the address")]
    {
        let client = HttpClient { kind, ..client(None) };
        let refused = client.small(&url(&server, "unsupported"), 10).err().unwrap();
        assert_eq!(
            (refused.kind, refused.hint().as_deref()),
            (ErrorKind::Invalid, Some(hint)),
            "{refused}"
        );
    }
    assert_eq!(server.take_requests().len(), 6);
    assert!(fetch("round").err().unwrap().to_string().ends_with("redirects more than 10 times"));
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let changed = server(|count, request, reply| match count {
        0 => reply,
        _ => Reply::file(&content()[1..], request),
    });
    let problem = read(&client(None), &url(&changed, "x")).unwrap_err();
    assert_eq!(problem.kind, ErrorKind::Changed);
    let why = "expected 3,000,000 bytes, it now has 2,999,999";
    assert!(problem.to_string().ends_with(why), "{problem}");
}

#[test]
fn a_time_identifies_a_version_one_second_later() {
    const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let opened = |dates: &'static [&'static str]| {
        let server = server(move |count, _, reply| {
            let date = format!("Sun, 06 Nov 1994 08:49:{} GMT", dates[count.min(dates.len() - 1)]);
            reply.with_header("Last-Modified", MODIFIED).with_header("Date", &date)
        });
        let client = HttpClient { kind: ServerKind::WEB, ..client(None) };
        let opened = client.open(&url(&server, "x"), FIRST_BYTES).map(Option::unwrap);
        (opened.map_err(|error| (error.kind, error.to_string())), server.take_requests().len())
    };
    // Within the second of its change, a file may change again without a trace.
    let (file, requests) = opened(&["37", "37", "38"]);
    assert_eq!((file.unwrap().version, requests), (format!("3000000 {MODIFIED}"), 3));
    let (kind, why) = opened(&["37"]).0.err().unwrap();
    assert_eq!(kind, ErrorKind::Transient);
    assert!(why.contains("it changed less than a second ago"), "{why}");
    let (kind, why) = opened(&["36"]).0.err().unwrap();
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(why.contains("nor a Last-Modified in the past"), "{why}");
}

#[test]
fn a_truncated_small_file_is_fetched_again() {
    let count = AtomicUsize::new(0);
    let server = Server::new(move |_| {
        let reply = Reply::whole(b"0123456789");
        let first = count.fetch_add(1, Ordering::Relaxed) == 0;
        Reply { cut: first.then_some(4), ..reply }
    });
    let small = client(None).small(&url(&server, "x"), 10).unwrap().unwrap();
    assert_eq!(small.bytes, b"0123456789");
}
