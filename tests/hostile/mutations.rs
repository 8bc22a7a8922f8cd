//! The fuzzing targets, with a fixed number of mutated seeds each, the same every time.

use std::fs;
use std::path::PathBuf;

use crate::support::tables::{corpus, write_parquet};
use crate::support::{Pipeline, Random, Tiny, Workspace, files_below, repository};

#[path = "../../fuzz/targets.rs"]
mod targets;

/// Bytes that mutations insert: numbers at size limits, and characters with a meaning in YAML and JSON.
const PIECES: [&[u8]; 16] = [
    &[0xff; 8],
    &[0; 8],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 0, 0x80],
    &[0x80; 10],
    b"{",
    b"[",
    b"]}",
    b"\"",
    b": ",
    b"\n  ",
    b"&a *a",
    b"1e999",
    b"-1",
    b"18446744073709551616",
    b"\xc3",
];

/// Runs a target on every seed, including those of `fuzz/seeds`, and on `count` mutations of them.
fn mutate(name: &str, target: fn(&[u8]), mut seeds: Vec<Vec<u8>>, count: u64) {
    seeds.extend(self::seeds(&format!("fuzz/seeds/{name}"), |_| true));
    assert!(!seeds.is_empty());
    for seed in &seeds {
        target(seed);
    }
    for number in 0..count {
        let mut random = Random(number);
        let mut bytes = seeds[random.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=random.below(4) {
            mutate_once(&mut bytes, &mut random);
        }
        target(&bytes);
    }
}

fn mutate_once(bytes: &mut Vec<u8>, random: &mut Random) {
    // Headers and footers contain the sizes.
    let length = bytes.len() as u64;
    let at = match random.below(3) {
        0 => random.below(length.min(400) + 1),
        1 => length - random.below(length.min(400) + 1),
        _ => random.below(length + 1),
    } as usize;
    match random.below(5) {
        0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
        2 => bytes.truncate(at),
        3 => {
            let piece = PIECES[random.below(PIECES.len() as u64) as usize];
            let end = (at + piece.len() * random.below(2) as usize).min(bytes.len());
            bytes.splice(at..end, piece.iter().copied());
        }
        _ => {
            let end = (at + random.below(40) as usize).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
    }
}

/// The files of that name below a folder of the repository.
fn seeds(folder: &str, is_seed: impl Fn(&PathBuf) -> bool) -> Vec<Vec<u8>> {
    let files = files_below(&repository().join(folder)).into_iter().filter(is_seed);
    files.map(|file| fs::read(file).unwrap()).collect()
}

fn named(name: &'static str) -> impl Fn(&PathBuf) -> bool {
    move |path| path.file_name().is_some_and(|found| found == name)
}

#[test]
fn mutated_pipelines_are_read_or_refused() {
    let yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    let mut seeds = seeds("pipelines", yaml);
    seeds.extend(self::seeds("engine/src/spec", yaml));
    seeds.push(Pipeline::tokens("model", 64).to_string().into_bytes());
    mutate("pipeline", targets::pipeline, seeds, 300);
}

#[test]
fn mutated_configurations_are_read_or_refused() {
    let seeds = seeds("stages/tests/families", named("config.json"));
    mutate("config", targets::config, seeds, 3_000);
}

#[test]
fn mutated_safetensors_are_read_or_refused() {
    let folder = Workspace::new();
    Tiny::new().write(&folder.path("model"));
    let weights = fs::read(folder.path("model/model.safetensors")).unwrap();
    mutate("safetensors", targets::safetensors, vec![weights], 3_000);
}

#[test]
fn mutated_gguf_files_are_read_or_refused() {
    mutate("gguf", targets::gguf, seeds("stages/tests/forms", named("model.gguf")), 3_000);
}

#[test]
fn windows_of_any_size_tile_the_document() {
    let mut random = Random(7);
    let mut seeds: Vec<Vec<u8>> = (0..200)
        .map(|_| (0..60).map(|_| random.next() as u8 >> random.below(8)).collect())
        .collect();
    let head = [0, 1, 1, 16, 0, 0, 0, 128, 0, 0, 0];
    seeds.push([head.as_slice(), "grüße, 日本語".as_bytes()].concat());
    mutate("windows", targets::windows, seeds, 3_000);
}

/// A finished run, whose files are seeds.
fn run() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/a.parquet"), &corpus("a", &[64, 128, 64]), 2);
    workspace.run(&Pipeline::tokens("model", 64));
    workspace
}

#[test]
fn mutated_score_tables_are_read_or_refused() {
    let run = run();
    let files = files_below(&run.path("out.run/scores"));
    mutate("scores", targets::scores, vec![fs::read(&files[0]).unwrap()], 1_500);
}

#[test]
fn mutated_input_files_are_read_or_refused() {
    let run = run();
    let input = fs::read(run.path("input/a.parquet")).unwrap();
    mutate("table", targets::table, vec![input], 2_000);
}
