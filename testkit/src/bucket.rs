//! In-memory S3 server on 127.0.0.1, with one bucket named `bucket`, that can inject a fault at any request.
//!
//! Requests are executed one after the other and atomically. Signatures are not checked.

mod objects;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::server::{Reply, Request, Server};
use crate::{Answer, Workspace, hex, result_folders};
use objects::Objects;
pub use objects::Snapshot;

/// Fault at a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Rejected with this status and S3 error code.
    Status(u16, &'static str),
    /// Rejected as busy, with a `Retry-After` of so many seconds.
    Busy(u64),
    /// Not executed; the connection is closed.
    Reset,
    /// Executed; the connection is closed without an answer.
    ResetAfter,
    /// Executed after a delay.
    Slow(Duration),
    /// Executed; the answer's body is cut after so many bytes.
    Cut(usize),
    /// Executed without this header, `if-match` or `if-none-match`.
    Unconditional(&'static str),
}

type Hook = dyn Fn(usize, &Request) -> Option<Fault> + Send + Sync;

struct State {
    objects: Mutex<Objects>,
    hook: Mutex<(usize, Arc<Hook>)>,
    /// Number of requests that are being answered.
    active: AtomicUsize,
}

impl State {
    fn answer(&self, request: &Request) -> Reply {
        self.active.fetch_add(1, Ordering::AcqRel);
        let reply = self.answer_active(request);
        self.active.fetch_sub(1, Ordering::AcqRel);
        reply
    }

    fn answer_active(&self, request: &Request) -> Reply {
        let (count, hook) = {
            let mut hook = self.hook.lock().unwrap();
            hook.0 += 1;
            (hook.0 - 1, Arc::clone(&hook.1))
        };
        let fault = hook(count, request);
        match fault {
            Some(Fault::Status(status, code)) => return objects::refusal(status, code),
            Some(Fault::Busy(seconds)) => {
                let refusal = objects::refusal(503, "SlowDown");
                return refusal.with_header("Retry-After", &seconds.to_string());
            }
            Some(Fault::Reset) => return Reply { reset: true, ..Reply::default() },
            Some(Fault::Slow(delay)) => std::thread::sleep(delay),
            _ => {}
        }
        let mut executed = request.clone();
        if let Some(Fault::Unconditional(header)) = fault {
            executed.headers.remove(header);
        }
        let reply = self.objects.lock().unwrap().answer(&executed);
        match fault {
            Some(Fault::ResetAfter) => Reply { reset: true, ..reply },
            Some(Fault::Cut(bytes)) => Reply { cut: Some(bytes), ..reply },
            _ => reply,
        }
    }
}

/// Server with one bucket, which runs until the tests end.
pub struct Bucket {
    server: Server,
    state: Arc<State>,
}

impl Bucket {
    pub fn new() -> Self {
        let hook: Arc<Hook> = Arc::new(|_, _| None);
        let (objects, hook) = (Mutex::default(), Mutex::new((0, hook)));
        let state = Arc::new(State { objects, hook, active: AtomicUsize::new(0) });
        let answering = Arc::clone(&state);
        Self { server: Server::new(move |request| answering.answer(request)), state }
    }

    /// Installs a hook that chooses faults by the number of requests since this call (from 0) and the request.
    pub fn inject(&self, hook: impl Fn(usize, &Request) -> Option<Fault> + Send + Sync + 'static) {
        *self.state.hook.lock().unwrap() = (0, Arc::new(hook));
    }

    /// Removes the hook.
    pub fn clear_faults(&self) {
        self.inject(|_, _| None);
    }

    /// Waits until the requests that have arrived are executed.
    pub fn wait_until_idle(&self) {
        let start = Instant::now();
        while self.state.active.load(Ordering::Acquire) > 0 {
            assert!(start.elapsed() < Duration::from_mins(1), "a request is never answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Points a command to this server, with arbitrary credentials.
    pub fn serve<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("AWS_ENDPOINT_URL", self.url())
            .env("AWS_ACCESS_KEY_ID", "someone")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
            .env_remove("HTTP_PROXY")
            .env_remove("http_proxy")
    }

    /// Runs a command with this server.
    pub fn longsift(&self, workspace: &Workspace, arguments: &[&str]) -> Answer {
        Answer::from_output(self.serve(&mut workspace.command(arguments)).output().unwrap())
    }

    /// Returns SHA-256 of the results of a run with the output `out` below `prefix`, as [`Workspace::results`] does.
    pub fn results(&self, prefix: &str) -> BTreeMap<String, String> {
        results_of(&self.objects(), prefix)
    }

    /// Returns the requests since the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        self.server.take_requests()
    }

    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        // Backdated, since recently written files may not count as settled.
        self.put_aged(key, bytes, Duration::from_mins(1));
    }

    /// Writes an object whose last change was `age` ago.
    pub fn put_aged(&self, key: &str, bytes: impl Into<Vec<u8>>, age: Duration) {
        self.state.objects.lock().unwrap().insert(key.to_owned(), bytes.into(), age);
    }

    /// Replaces an object at this moment, whereas [`put`](Self::put) backdates it.
    pub fn replace(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.state.objects.lock().unwrap().replace(key, bytes.into());
    }

    pub fn remove(&self, key: &str) {
        self.state.objects.lock().unwrap().remove(key);
    }

    /// Returns all objects, for [`restore`](Self::restore).
    pub fn snapshot(&self) -> Snapshot {
        self.state.objects.lock().unwrap().snapshot()
    }

    /// Replaces the content by a snapshot of this or another bucket, and drops unfinished uploads.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.state.objects.lock().unwrap().restore(snapshot);
    }

    /// Returns the bytes of all objects, by key.
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.state.objects.lock().unwrap().all()
    }

    /// Returns the keys of multipart uploads that are neither completed nor aborted.
    pub fn open_uploads(&self) -> Vec<String> {
        self.state.objects.lock().unwrap().open_uploads()
    }

    /// Sets the number of keys per page of a list; 1000 by default.
    pub fn set_page_size(&self, keys: usize) {
        self.state.objects.lock().unwrap().page = keys;
    }
}

/// Like [`Bucket::results`], of some objects.
pub fn results_of(objects: &BTreeMap<String, Vec<u8>>, prefix: &str) -> BTreeMap<String, String> {
    let folders = result_folders("out").map(|folder| format!("{folder}/"));
    let judged = |key: &str| folders.iter().any(|folder| key.starts_with(folder));
    let below = objects.iter().filter_map(|(key, bytes)| Some((key.strip_prefix(prefix)?, bytes)));
    let results = below.filter(|(key, _)| judged(key));
    results.map(|(key, bytes)| (key.to_owned(), hex(&Sha256::digest(bytes)))).collect()
}
