//! The object store, tested with handwritten requests: conditions, pages, parts and injected faults.
#![allow(clippy::unwrap_used, reason = "tests panic if their setup fails")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use testkit::bucket::{Bucket, Fault, Snapshot};

#[derive(Debug, Default)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Sends one request on its own connection; `None` if the connection is closed before the answer is complete.
fn send(bucket: &Bucket, request: &str, headers: &[&str], body: &[u8]) -> Option<Answer> {
    let url = bucket.url();
    let mut connection = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    let headers: Vec<String> = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let headers = headers.concat();
    let length = body.len();
    write!(connection, "{request} HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n").unwrap();
    connection.write_all(body).unwrap();
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut answer = Answer { status: line.split(' ').nth(1)?.parse().ok()?, ..Answer::default() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        answer.headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = answer.headers["content-length"].parse().unwrap();
    answer.body = vec![0; if request.starts_with("HEAD") { 0 } else { length }];
    reader.read_exact(&mut answer.body).ok()?;
    Some(answer)
}

fn put(bucket: &Bucket, key: &str, headers: &[&str], body: &str) -> u16 {
    send(bucket, &format!("PUT /bucket/{key}"), headers, body.as_bytes()).unwrap().status
}

#[test]
fn one_of_many_conditional_creations_succeeds() {
    let bucket = Bucket::new();
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let bucket = &bucket;
        let each = |who: usize| {
            scope.spawn(move || put(bucket, "a", &["If-None-Match: *"], &who.to_string()))
        };
        let all: Vec<_> = (0..16).map(each).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let won: Vec<usize> = (0..16).filter(|who| answers[*who] == 200).collect();
    assert!(
        won.len() == 1 && answers.iter().all(|status| [200, 412].contains(status)),
        "{answers:?}"
    );
    assert_eq!(bucket.objects()["a"], won[0].to_string().as_bytes());
}

#[test]
fn an_object_is_replaced_only_if_its_tag_matches() {
    let bucket = Bucket::new();
    assert_eq!(put(&bucket, "a", &["If-Match: \"x\""], "1"), 404, "the object does not exist");
    assert_eq!(put(&bucket, "a", &[], "1"), 200);
    let tag = send(&bucket, "HEAD /bucket/a", &[], b"").unwrap().headers["etag"].clone();
    assert_eq!(put(&bucket, "a", &[&format!("If-Match: {tag}")], "2"), 200);
    assert_eq!(put(&bucket, "a", &[&format!("If-Match: {tag}")], "3"), 412, "the tag has changed");
    assert_eq!(bucket.objects()["a"], b"2");
    let get = |headers: &[&str]| send(&bucket, "GET /bucket/a", headers, b"").unwrap();
    assert_eq!(get(&[&format!("If-Match: {tag}")]).status, 412);
    assert_eq!(get(&[&format!("If-None-Match: {}", get(&[]).headers["etag"])]).status, 304);
}

#[test]
fn a_range_response_names_its_range() {
    let bucket = Bucket::new();
    bucket.put("a", "0123456789");
    let get = |range: &str| {
        send(&bucket, "GET /bucket/a", &[&format!("Range: bytes={range}")], b"").unwrap()
    };
    for (range, text, content_range) in [
        ("2-4", "234", "2-4/10"),
        ("7-", "789", "7-9/10"),
        ("-3", "789", "7-9/10"),
        ("8-99", "89", "8-9/10"),
    ] {
        let answer = get(range);
        assert_eq!((answer.status, answer.text()), (206, text), "{range}");
        assert_eq!(answer.headers["content-range"], format!("bytes {content_range}"));
    }
    assert_eq!(get("10-").status, 416);
    assert_eq!(send(&bucket, "GET /bucket/b", &[], b"").unwrap().status, 404);
    assert_eq!(send(&bucket, "GET /other/a", &[], b"").unwrap().status, 404);
}

#[test]
fn list_pages_are_complete_and_disjoint() {
    let bucket = Bucket::new();
    bucket.set_page_size(2);
    for key in ["a/1", "a/2", "a/b/1", "a/b/2", "a/c", "b"] {
        bucket.put(key, key);
    }
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let request =
            format!("GET /bucket?list-type=2&prefix=a/&delimiter=/&continuation-token={token}");
        let page = send(&bucket, &request, &[], b"").unwrap();
        let texts = |element: &str| -> Vec<String> {
            let start = format!("<{element}>");
            let parts = page.text().split(&start).skip(1);
            parts.map(|part| part.split('<').next().unwrap().to_owned()).collect()
        };
        names.extend([texts("Key"), texts("Prefix")].concat());
        assert!(texts("Key").len() + texts("Prefix").len() <= 2);
        match texts("NextContinuationToken").pop() {
            Some(next) => token = next,
            None => break,
        }
    }
    assert_eq!(
        names,
        ["a/1", "a/2", "a/c", "a/b/"].map(str::to_owned),
        "a folder is listed as one name"
    );
}

#[test]
fn an_upload_needs_completion_and_parts_of_minimum_size() {
    let bucket = Bucket::new();
    let post = |request: &str, body: &str| send(&bucket, request, &[], body.as_bytes()).unwrap();
    let begun = post("POST /bucket/a?uploads", "");
    let id = begun.text().split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
    let part = |number: usize, bytes: &[u8]| {
        let request = format!("PUT /bucket/a?partNumber={number}&uploadId={id}");
        send(&bucket, &request, &[], bytes).unwrap().headers["etag"].clone()
    };
    let complete = |tags: &[String]| {
        let parts: Vec<String> = (1..)
            .zip(tags)
            .map(|(number, tag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
            })
            .collect();
        let parts = parts.concat();
        post(
            &format!("POST /bucket/a?uploadId={id}"),
            &format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"),
        )
    };
    let small = [part(1, b"small"), part(2, b"end")];
    assert!(complete(&small).text().contains("EntityTooSmall"));
    let large = [part(1, &vec![7; 5 << 20]), part(2, b"end")];
    assert!(complete(&[large[0].clone(), "\"another\"".to_owned()]).text().contains("InvalidPart"));
    assert_eq!(bucket.open_uploads(), ["a"]);
    assert!(bucket.objects().is_empty());
    assert_eq!(complete(&large).status, 200);
    assert_eq!(bucket.objects()["a"].len(), (5 << 20) + 3);
    assert!(bucket.open_uploads().is_empty());
}

#[test]
fn each_fault_executes_the_request_or_not() {
    let try_it = |fault: Fault| {
        let bucket = Bucket::new();
        bucket.inject(move |count, _| (count == 1).then(|| fault.clone()));
        assert_eq!(put(&bucket, "before", &[], "x"), 200, "the first request has no fault");
        let answer = send(&bucket, "PUT /bucket/a", &[], b"text");
        assert_eq!(put(&bucket, "after", &[], "x"), 200, "the third request has no fault");
        (answer.map(|answer| answer.status), bucket.objects().contains_key("a"))
    };
    assert_eq!(try_it(Fault::Status(503, "SlowDown")), (Some(503), false));
    assert_eq!(try_it(Fault::Reset), (None, false));
    assert_eq!(try_it(Fault::ResetAfter), (None, true));
    assert_eq!(try_it(Fault::Slow(Duration::ZERO)), (Some(200), true));
    let bucket = Bucket::new();
    bucket.put("a", "0123456789");
    bucket.inject(|_, _| Some(Fault::Cut(4)));
    assert!(
        send(&bucket, "GET /bucket/a", &[], b"").is_none(),
        "the body is shorter than its declared length"
    );
    bucket.clear_faults();
    assert_eq!(send(&bucket, "GET /bucket/a", &[], b"").unwrap().body, b"0123456789");
    assert_eq!(bucket.take_requests().len(), 2);
}

#[test]
fn restoring_a_snapshot_drops_open_uploads() {
    let bucket = Bucket::new();
    bucket.put("a", "1");
    let before: Snapshot = bucket.snapshot();
    bucket.put("a", "2");
    bucket.put("b", "3");
    send(&bucket, "POST /bucket/c?uploads", &[], b"").unwrap();
    bucket.restore(&before);
    assert_eq!(bucket.objects(), BTreeMap::from([("a".to_owned(), b"1".to_vec())]));
    assert!(bucket.open_uploads().is_empty());
}
