//! Load: memory and open files are constant for any number of documents, tokens or files.
//!
//! `cargo test --release -p longsift-engine --test integration -- --ignored --nocapture --test-threads 1 soak` prints
//! time and memory; `LONGSIFT_SOAK_PERCENT` makes the loads smaller.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::tables::{strings, table, token_lists, write_parquet};
use crate::support::{Answer, Pipeline, Random, Tiny, Workspace, check_accounting, count};

/// Maximum open files of a run at any load; exceeding it ends the run.
const MAX_FILES: u32 = 48;

/// Resources used by a run.
#[derive(Debug)]
struct RunCost {
    /// Documents, files or tokens.
    load: usize,
    seconds: f64,
    /// Resident memory at each tenth of the run, in MB.
    memory: Vec<u64>,
    /// Peak resident memory, in MB, as reported by the run.
    peak: u64,
}

/// Resident memory of a process in MB.
fn memory(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

/// Runs the pipeline and observes it.
fn watch(workspace: &Workspace, load: usize) -> RunCost {
    let begun = Instant::now();
    let limit = format!("ulimit -n {MAX_FILES} && exec");
    let mut command = workspace.command_after(&limit, &["run", "pipeline.yaml", "-q"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let mut samples = vec![0];
    while child.try_wait().unwrap().is_none() {
        samples.extend(memory(child.id()));
        std::thread::sleep(Duration::from_millis(5));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let summary = Answer::from_output(child.wait_with_output().unwrap()).success().summary();
    check_accounting(&summary);
    assert!(count(&summary, "kept") > 0);
    let memory = (0..10).map(|tenth| samples[(samples.len() - 1) * (tenth + 1) / 10]).collect();
    RunCost { load, seconds, memory, peak: count(&summary, "peak_memory_bytes") >> 20 }
}

/// Runs each load in turn, the largest last: memory may not grow by more than this from one to the next, and open
/// files stay below a bound. Prints time and memory.
fn soak(
    what: &str,
    loads: &[usize],
    max_memory_growth_mb: u64,
    prepare: impl Fn(&Workspace, usize),
) {
    let percent = std::env::var("LONGSIFT_SOAK_PERCENT").map_or(100, |text| text.parse().unwrap());
    let loads = loads.iter().map(|load| (load * percent / 100).max(4));
    let costs: Vec<RunCost> = loads
        .map(|load| {
            let workspace = Workspace::new();
            Tiny::new().write(&workspace.path("model"));
            prepare(&workspace, load);
            watch(&workspace, load)
        })
        .collect();
    for run in &costs {
        println!(
            "{:>9} {what}: {:>7.2} s, at most {} MB, with {MAX_FILES} open files allowed; MB at each tenth {:?}",
            run.load, run.seconds, run.peak, run.memory
        );
    }
    let [.., before, all] = &costs[..] else { panic!("two loads or more") };
    assert!(
        all.peak <= before.peak + max_memory_growth_mb,
        "memory grows with {what}: {} MB, then {} MB",
        before.peak,
        all.peak
    );
}

/// Writes documents with tokens that are cheap to generate.
fn write_documents(workspace: &Workspace, file: &str, seed: u64, lengths: &[usize], group: usize) {
    let mut random = Random(seed);
    let document = |length: &usize| (0..*length).map(|_| 2 + random.below(95) as u32).collect();
    let documents: Vec<Vec<u32>> = lengths.iter().map(document).collect();
    let ids = (0..lengths.len()).map(|row| format!("{seed}-{row}"));
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(&documents))]);
    write_parquet(&workspace.path(&format!("input/{file}.parquet")), &input, group);
}

#[test]
#[ignore = "takes minutes; .ci/nightly runs it"]
fn soak_of_small_documents() {
    soak(
        "documents of 100 to 300 tokens",
        &[25_000, 50_000, 100_000],
        64,
        |workspace, documents| {
            for (file, start) in (0..documents).step_by(5000).enumerate() {
                let lengths: Vec<usize> = (start..documents.min(start + 5000))
                    .map(|row| 100 + row * 7919 % 200)
                    .collect();
                write_documents(workspace, &format!("{file:05}"), file as u64, &lengths, 1000);
            }
            workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
        },
    );
}

#[test]
#[ignore = "takes minutes; .ci/nightly runs it"]
fn soak_of_long_documents() {
    soak("documents of 1,000,000 tokens", &[12, 25, 50], 64, |workspace, documents| {
        for file in 0..documents {
            write_documents(workspace, &format!("{file:05}"), file as u64, &[1_000_000], 1);
        }
        let pipeline = Pipeline::tokens("model", 1024).tokenize("windows: disjoint");
        workspace.write("pipeline.yaml", pipeline.to_string());
    });
}

#[test]
#[ignore = "takes minutes; .ci/nightly runs it"]
fn soak_of_many_files() {
    soak("files of two documents", &[2500, 5000, 10_000], 64, |workspace, files| {
        for file in 0..files {
            write_documents(workspace, &format!("{file:05}"), file as u64, &[90, 150], 2);
        }
        workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    });
}

#[test]
fn a_small_load_keeps_memory_and_files_flat() {
    soak("files of two documents (small)", &[24, 96], 24, |workspace, files| {
        for file in 0..files {
            write_documents(workspace, &format!("{file:05}"), file as u64, &[90, 150], 2);
        }
        workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    });
}
