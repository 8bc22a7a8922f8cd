//! Runs with input, output and run directory in a bucket: killed at any request, or with any request failing once,
//! they end with the bytes of a run on a disk.

use std::collections::BTreeMap;
use std::fs::{DirEntry, File};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, BinaryArray};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::bucket::{Bucket, Fault, Snapshot, results_of};
use crate::support::faults::wait_until;
use crate::support::tables::{corpus, document, strings, table, token_lists, write_parquet};
use crate::support::{Answer, Pipeline, Random, Tiny, Workspace, check_accounting, files_below};

/// Default requests per scenario and disturbance; `LONGSIFT_STORE_KILLS` overrides it with a number or `all`.
const SAMPLE: usize = 3;

const RUN: [&str; 5] = ["run", "pipeline.yaml", "-q", "--threads", "1"];

type Objects = BTreeMap<String, Vec<u8>>;
type Results = BTreeMap<String, String>;

/// Disturbance of a command at a request.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// The process is killed, and the request is not executed.
    KilledBefore,
    /// The process is killed, and the request is executed.
    KilledAfter,
    /// The store is busy.
    Busy,
    /// The connection is closed, and the request is not executed.
    Reset,
    /// The connection is closed, and the request is executed.
    AnswerLost,
    /// The answer is cut.
    AnswerCut,
}

impl Disturbance {
    const ALL: [Self; 6] = [
        Self::KilledBefore,
        Self::KilledAfter,
        Self::Busy,
        Self::Reset,
        Self::AnswerLost,
        Self::AnswerCut,
    ];

    fn kills(self) -> bool {
        matches!(self, Self::KilledBefore | Self::KilledAfter)
    }

    fn fault(self) -> Fault {
        match self {
            Self::KilledBefore | Self::Reset => Fault::Reset,
            Self::KilledAfter | Self::AnswerLost => Fault::ResetAfter,
            Self::Busy => Fault::Status(503, "SlowDown"),
            Self::AnswerCut => Fault::Cut(10),
        }
    }
}

/// Input and output addresses of a run.
#[derive(Clone, Copy)]
struct Addresses {
    input: &'static str,
    output: &'static str,
}

const DISK: Addresses = Addresses { input: "input", output: "out" };
const BUCKET: Addresses = Addresses { input: "s3://bucket/in", output: "s3://bucket/out" };

/// Twelve documents in two files and six units; one is bad, one too short.
fn small(addresses: Addresses) -> Workspace {
    let workspace = Workspace::new();
    for name in ["a", "sub/b"] {
        let path = workspace.path(&format!("input/{name}.parquet"));
        let bad = usize::from(name != "a");
        write_parquet(&path, &corpus(name, &[300, 150, 280 * bad, 20, 400, 256]), 2);
    }
    with_pipeline(workspace, addresses)
}

/// Four documents in one unit, with 5 MiB of incompressible data each: their file is a multipart upload.
fn large(addresses: Addresses) -> Workspace {
    let workspace = Workspace::new();
    let mut random = Random(5);
    let payloads: Vec<Vec<u8>> = (0..4).map(|_| random.bytes(5 << 20)).collect();
    let payloads: ArrayRef = Arc::new(BinaryArray::from_iter_values(&payloads));
    let documents = (0..4).map(|seed| document(seed, 300)).collect::<Vec<_>>();
    let ids = ["a", "b", "c", "d"];
    let columns =
        [("id", strings(ids)), ("tokens", token_lists(&documents)), ("payload", payloads)];
    write_parquet(&workspace.path("input/a.parquet"), &table(&columns), 4);
    with_pipeline(workspace, addresses)
}

fn with_pipeline(workspace: Workspace, addresses: Addresses) -> Workspace {
    Tiny::new().write(&workspace.path("model"));
    let mut pipeline =
        Pipeline::tokens("model", 128).input("unit_bytes: 1024, max_quarantined_fraction: 0.5");
    pipeline.input = pipeline.input.replace("path: input", &format!("path: '{}'", addresses.input));
    pipeline.output =
        pipeline.output.replace("path: out", &format!("path: '{}'", addresses.output));
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

/// A command on a state of a bucket.
struct BucketScenario {
    name: &'static str,
    workspace: Workspace,
    arguments: Vec<&'static str>,
    restart: Vec<&'static str>,
    before: Snapshot,
    results_before: Results,
    /// The names of all objects after an undisturbed command and the restart.
    names: Vec<String>,
    /// Results of the same commands on a disk.
    results: Results,
    /// Requests of the undisturbed command: method and path.
    requests: Vec<String>,
}

impl BucketScenario {
    /// A run with more arguments in a small workspace, after the runs `setup`.
    fn new(name: &'static str, setup: &[&[&'static str]], more: &[&'static str]) -> Self {
        Self::over(small, name, setup, more)
    }

    fn over(
        workspace: fn(Addresses) -> Workspace,
        name: &'static str,
        setup: &[&[&'static str]],
        more: &[&'static str],
    ) -> Self {
        let arguments = [&RUN, more].concat();
        // A plain run finishes a `--fresh` run and a shard.
        let selects = !more.iter().any(|argument| ["--fresh", "--shard"].contains(argument));
        let restart = if selects { arguments.clone() } else { RUN.to_vec() };
        let (disk, in_bucket) = (workspace(DISK), workspace(BUCKET));
        let bucket = Bucket::new();
        for file in files_below(&disk.path("input")) {
            let name = file.strip_prefix(disk.path("input")).unwrap().display().to_string();
            bucket.put(&format!("in/{name}"), std::fs::read(&file).unwrap());
        }
        let both = |arguments: &[&str]| {
            disk.longsift(arguments).success();
            bucket.longsift(&in_bucket, arguments).success();
        };
        for more in setup {
            both(&[&RUN, *more].concat());
        }
        let (before, results_before) = (bucket.snapshot(), bucket.results(""));
        bucket.take_requests();
        both(&arguments);
        let asked = bucket.take_requests().into_iter();
        let requests: Vec<String> =
            asked.map(|request| format!("{} {}", request.method, request.path)).collect();
        if restart != arguments {
            both(&restart);
        }
        let results = disk.results();
        assert!(results.len() > 2 && requests.len() > 10, "{name}: {results:?} {requests:?}");
        assert_eq!(bucket.results(""), results, "{name}, undisturbed");
        let names = names_of(&bucket.objects());
        Self {
            name,
            workspace: in_bucket,
            arguments,
            restart,
            before,
            results_before,
            names,
            results,
            requests,
        }
    }

    /// Disturbs the command at these requests, each in a run of its own.
    fn disturb_all(&self, planned: &[(usize, Disturbance)]) {
        let bucket = Bucket::new();
        for (at, disturbance) in planned {
            self.disturb(&bucket, *at, *disturbance);
        }
        let requests = self.requests.len();
        println!("{}: {requests} requests, disturbed {} times", self.name, planned.len());
    }

    /// Runs the command with a disturbance at a request, and finishes it.
    fn disturb(&self, bucket: &Bucket, at: usize, disturbance: Disturbance) {
        // The journals of open units are on the disk, below the cache.
        let workspace = Workspace::copy_of(&self.workspace);
        let request = &self.requests[at];
        let when = format!("{}, {disturbance:?} at request {at}, `{request}`", self.name);
        bucket.clear_faults();
        bucket.restore(&self.before);
        if disturbance.kills() {
            self.kill(&workspace, bucket, at, disturbance.fault());
            self.check_no_mixture(&bucket.objects(), &when);
        } else {
            bucket.inject(move |count, _| (count == at).then(|| disturbance.fault()));
            let answer = bucket.longsift(&workspace, &self.arguments);
            assert_eq!(answer.code, 0, "{when}:\n{}", answer.stderr);
        }
        bucket.clear_faults();
        if disturbance.kills() || self.restart != self.arguments {
            let answer = bucket.longsift(&workspace, &self.restart);
            assert_eq!(answer.code, 0, "restarted after {when}:\n{}", answer.stderr);
            check_accounting(&answer.summary());
        }
        assert_eq!(bucket.results(""), self.results, "{when}");
        assert_eq!(names_of(&bucket.objects()), self.names, "{when}");
        // Uploads of a killed process are unknown afterwards; the bucket must remove them.
        let unknown = usize::from(!matches!(disturbance, Disturbance::Busy | Disturbance::Reset));
        assert!(bucket.open_uploads().len() <= unknown, "{when}: {:?}", bucket.open_uploads());
        bucket.take_requests();
    }

    /// Runs the command and kills it at a request; later requests are not executed.
    fn kill(&self, workspace: &Workspace, bucket: &Bucket, at: usize, fault: Fault) {
        let process: Arc<Mutex<Option<Pid>>> = Arc::default();
        let killed = Arc::clone(&process);
        bucket.inject(move |count, _| {
            if count < at {
                return None;
            }
            // The lock is held while the process is started.
            let process = killed.lock().unwrap().take();
            let first = process.is_some();
            process.map(|process| kill_process(process, Signal::KILL));
            Some(if first && count == at { fault.clone() } else { Fault::Reset })
        });
        let mut started = process.lock().unwrap();
        let mut command = workspace.command(&self.arguments);
        let command = bucket.serve(&mut command).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        *started = Some(Pid::from_child(&child));
        drop(started);
        child.wait().unwrap();
    }

    /// Checks that `data/` holds the files of one run, or a commit is in progress.
    fn check_no_mixture(&self, objects: &Objects, when: &str) {
        let data = |mut results: Results| {
            results.retain(|key, _| key.starts_with("out/data/"));
            results
        };
        let before = data(self.results_before.clone());
        let after = data(self.results.clone());
        let now = data(results_of(objects, ""));
        let begun = objects.contains_key("out.run/intent.json");
        assert!(now == before || now == after || begun, "{when}: {now:#?}");
    }
}

/// The names of all objects except events, since each process has its own.
fn names_of(objects: &Objects) -> Vec<String> {
    objects.keys().filter(|key| !key.starts_with("out.run/events/")).cloned().collect()
}

fn sample() -> usize {
    match std::env::var("LONGSIFT_STORE_KILLS") {
        Ok(all) if all == "all" => usize::MAX,
        Ok(number) => number.parse().unwrap(),
        Err(_) => SAMPLE,
    }
}

/// Disturbs a sample of the requests of a scenario, in every way.
fn check(scenario: &BucketScenario) {
    let step = (scenario.requests.len() / sample()).max(1);
    let mut planned = Vec::new();
    for (offset, disturbance) in Disturbance::ALL.into_iter().enumerate() {
        // Different requests for each disturbance, so that a sample covers more of them.
        let first = offset * step / Disturbance::ALL.len();
        let requests = (first..scenario.requests.len()).step_by(step);
        planned.extend(requests.map(|at| (at, disturbance)));
    }
    scenario.disturb_all(&planned);
}

const WIDENED: &[&str] = &["--set", "stages.filter.keep_fraction=0.9"];
const SHARDS: [&[&str]; 2] =
    [&["--phase", "score", "--shard", "0/2"], &["--phase", "score", "--shard", "1/2"]];

mod a_run_that_is_disturbed_at_any_request_ends_in_the_same_bytes {
    use super::*;

    #[test]
    fn first_run() {
        check(&BucketScenario::new("a first run", &[], &[]));
    }

    #[test]
    fn shard() {
        check(&BucketScenario::new("a shard", &[], SHARDS[0]));
    }

    #[test]
    fn selection_of_shards() {
        let select = ["--phase", "select"];
        check(&BucketScenario::new("a selection of scored shards", &SHARDS, &select));
    }

    #[test]
    fn another_selection() {
        check(&BucketScenario::new("another selection", &[&[]], WIDENED));
    }

    #[test]
    fn fresh_start() {
        check(&BucketScenario::new("a fresh start", &[&[], WIDENED], &["--fresh"]));
    }
}

/// Files of another selection that runs while the command sleeps.
const MEANWHILE: [&str; 7] =
    ["run", "pipeline.yaml", "-q", "--threads", "1", "--set", "stages.filter.keep_fraction=0.7"];

/// Stops a process, and waits until all its threads are stopped.
fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let is_stopped = |thread: &DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let since = Instant::now();
    while !threads().all(|thread| is_stopped(&thread)) {
        assert!(since.elapsed() < Duration::from_mins(1), "process {process} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sleep of a process at a request.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    /// The store is busy, so that the request is repeated after the sleep.
    busy: bool,
    duration: Duration,
}

impl BucketScenario {
    /// Stops the process at a request until its lease expires, and wakes it after another selection. Returns its exit
    /// code.
    fn sleep(&self, bucket: &Bucket, at: usize, sleep: Sleep, meanwhile: &Results) -> i32 {
        let (workspace, other) =
            (Workspace::copy_of(&self.workspace), Workspace::copy_of(&self.workspace));
        let when = format!("{}, {sleep:?} at request {at}, `{}`", self.name, self.requests[at]);
        bucket.restore(&self.before);
        let process: Arc<Mutex<Option<Pid>>> = Arc::default();
        let (asleep, stopped) = (Arc::clone(&process), Arc::new(AtomicBool::new(false)));
        let says = Arc::clone(&stopped);
        bucket.inject(move |count, _| {
            if count != at {
                return None;
            }
            stop(asleep.lock().unwrap().unwrap());
            says.store(true, Ordering::Release);
            sleep.busy.then_some(Fault::Status(503, "SlowDown"))
        });
        let mut started = process.lock().unwrap();
        let clock = workspace.write("clock", 0_i64.to_le_bytes());
        let mut command = workspace.interposed(&self.arguments);
        command.env("LONGSIFT_CLOCK_FILE", &clock);
        let command = bucket.serve(&mut command).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = Pid::from_child(&child);
        *started = Some(pid);
        drop(started);
        // A process that has ended by then is not affected.
        wait_until(&mut child, || stopped.load(Ordering::Acquire));
        bucket.wait_until_idle();
        bucket.clear_faults();
        // Written in place: the clock is mapped.
        let moved = File::options().write(true).open(&clock).unwrap();
        let nanoseconds = i64::try_from(sleep.duration.as_nanos()).unwrap();
        moved.write_all_at(&nanoseconds.to_le_bytes(), 0).unwrap();
        bucket.remove("out.run/lock");
        let answer = bucket.longsift(&other, &MEANWHILE);
        assert_eq!(answer.code, 0, "meanwhile, {when}:\n{}", answer.stderr);
        bucket.take_requests();
        let _ = kill_process(pid, Signal::CONT);
        let woken = Answer::from_output(child.wait_with_output().unwrap());
        let found = bucket.results("");
        // A process that succeeded may have done so before the other began, or after it.
        let whole = found == *meanwhile || woken.code == 0 && found == self.results;
        let requests = bucket.take_requests();
        assert!(
            whole,
            "{when}, which ended with {}: {}\nrequests after it woke: {requests:#?}\n{found:#?}",
            woken.code, woken.stderr
        );
        woken.code
    }
}

#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn a_process_that_lost_its_lease_does_not_damage_another_selection() {
    let scenario = BucketScenario::new(
        "a selection",
        &[&["--set", "stages.filter.keep_fraction=0.9"]],
        &["--set", "stages.filter.keep_fraction=0.3"],
    );
    let disk = small(DISK);
    disk.longsift(&MEANWHILE).success();
    let meanwhile = disk.results();
    let step = (scenario.requests.len() / sample().saturating_mul(4)).max(1);
    let planned: Vec<usize> = (0..scenario.requests.len()).step_by(step).collect();
    let bucket = Bucket::new();
    let mut codes = BTreeMap::<i32, usize>::new();
    // Longer than a lease; shorter and longer than all retries.
    let sleeps = [(true, 60), (false, 60), (false, 3600)]
        .map(|(busy, seconds)| Sleep { busy, duration: Duration::from_secs(seconds) });
    for (at, sleep) in planned.into_iter().zip(sleeps.into_iter().cycle()) {
        *codes.entry(scenario.sleep(&bucket, at, sleep, &meanwhile)).or_default() += 1;
    }
    assert!(codes.contains_key(&4), "some processes detect the lost lease: {codes:?}");
    assert!(codes.keys().all(|code| [0, 4].contains(code)), "a retry helps: {codes:?}");
    println!("{} requests, exit codes of the paused processes: {codes:?}", scenario.requests.len());
}

#[test]
fn a_multipart_upload_is_atomic() {
    let scenario = BucketScenario::over(large, "a file in parts", &[], &[]);
    let of_uploads = |at: &usize| scenario.requests[*at].contains("upload");
    let requests: Vec<usize> = (0..scenario.requests.len()).filter(of_uploads).collect();
    assert!(requests.len() >= 4, "{:?}", scenario.requests);
    let planned: Vec<_> = requests
        .iter()
        .flat_map(|at| Disturbance::ALL.map(|disturbance| (*at, disturbance)))
        .collect();
    scenario.disturb_all(&planned);
}
