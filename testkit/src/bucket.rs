//! An S3 server in memory, on 127.0.0.1, with one bucket of the name `bucket`. At any request something may go wrong.
//!
//! Requests are carried out one after the other, each whole or not at all. Signatures are not looked at.

mod objects;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::server::{Reply, Request, Server};
use crate::{Answer, Workspace, hex, result_folders};
use objects::Objects;
pub use objects::Snapshot;

/// What goes wrong at a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not done; this status and S3's code of an error are answered.
    Status(u16, &'static str),
    /// It is not done; the server is busy for so many seconds, and says so.
    Busy(u64),
    /// It is not done; the connection is closed.
    Reset,
    /// It is done; the connection is closed without an answer.
    ResetAfter,
    /// It is done after a while.
    Slow(Duration),
    /// It is done; of the answer's body so many bytes come.
    Cut(usize),
}

type Hook = dyn Fn(usize, &Request) -> Option<Fault> + Send + Sync;

struct State {
    objects: Mutex<Objects>,
    hook: Mutex<(usize, Arc<Hook>)>,
}

impl State {
    fn answer(&self, request: &Request) -> Reply {
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
                return refusal.with("Retry-After", &seconds.to_string());
            }
            Some(Fault::Reset) => return Reply { reset: true, ..Reply::default() },
            Some(Fault::Slow(delay)) => std::thread::sleep(delay),
            _ => {}
        }
        let reply = self.objects.lock().unwrap().answer(request);
        match fault {
            Some(Fault::ResetAfter) => Reply { reset: true, ..reply },
            Some(Fault::Cut(bytes)) => Reply { cut: Some(bytes), ..reply },
            _ => reply,
        }
    }
}

/// A server with a bucket, which runs until the tests end.
pub struct Bucket {
    server: Server,
    state: Arc<State>,
}

impl Bucket {
    /// With nothing in the bucket.
    pub fn new() -> Self {
        let hook: Arc<Hook> = Arc::new(|_, _| None);
        let state = Arc::new(State { objects: Mutex::default(), hook: Mutex::new((0, hook)) });
        let answering = Arc::clone(&state);
        Self { server: Server::new(move |request| answering.answer(request)), state }
    }

    /// From now on `hook` says what goes wrong, from the count of requests since now (0 for the first) and the request.
    pub fn on(&self, hook: impl Fn(usize, &Request) -> Option<Fault> + Send + Sync + 'static) {
        *self.state.hook.lock().unwrap() = (0, Arc::new(hook));
    }

    /// From now on nothing goes wrong.
    pub fn calm(&self) {
        self.on(|_, _| None);
    }

    /// `http://127.0.0.1:port`
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Makes a command use it, with credentials that it does not look at.
    pub fn serve<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("AWS_ENDPOINT_URL", self.url())
            .env("AWS_ACCESS_KEY_ID", "someone")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
            .env_remove("HTTP_PROXY")
            .env_remove("http_proxy")
    }

    /// Runs a command on it, to its end.
    pub fn longsift(&self, workspace: &Workspace, arguments: &[&str]) -> Answer {
        Answer::of(self.serve(&mut workspace.command(arguments)).output().unwrap())
    }

    /// SHA-256 of what a run is judged by whose output is `out` below `prefix`, as [`Workspace::results`] gives it.
    pub fn results(&self, prefix: &str) -> BTreeMap<String, String> {
        results_of(&self.objects(), prefix)
    }

    /// What was asked since the last time.
    pub fn asked(&self) -> Vec<Request> {
        self.server.asked()
    }

    /// Puts an object.
    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.state.objects.lock().unwrap().insert(key.to_owned(), bytes.into());
    }

    /// Removes an object.
    pub fn remove(&self, key: &str) {
        self.state.objects.lock().unwrap().remove(key);
    }

    /// All objects, to [restore](Self::restore) them.
    pub fn snapshot(&self) -> Snapshot {
        self.state.objects.lock().unwrap().snapshot()
    }

    /// Puts back all objects as they were, here or in another bucket; there are no others, and no unfinished uploads.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.state.objects.lock().unwrap().restore(snapshot);
    }

    /// The bytes of all objects, by key.
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        self.state.objects.lock().unwrap().all()
    }

    /// The keys of uploads in parts that were begun and neither completed nor given up.
    pub fn open_uploads(&self) -> Vec<String> {
        self.state.objects.lock().unwrap().open_uploads()
    }

    /// Lists come in pages of at most `keys` keys; 1000 if this is not called.
    pub fn page(&self, keys: usize) {
        self.state.objects.lock().unwrap().page = keys;
    }
}

/// The same of some objects.
pub fn results_of(objects: &BTreeMap<String, Vec<u8>>, prefix: &str) -> BTreeMap<String, String> {
    let folders = result_folders("out").map(|folder| format!("{folder}/"));
    let judged = |key: &str| folders.iter().any(|folder| key.starts_with(folder));
    let below = objects.iter().filter_map(|(key, bytes)| Some((key.strip_prefix(prefix)?, bytes)));
    let results = below.filter(|(key, _)| judged(key));
    results.map(|(key, bytes)| (key.to_owned(), hex(&Sha256::digest(bytes)))).collect()
}
