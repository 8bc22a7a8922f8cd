//! Shared code of these tests on top of the test kit: workspaces for the `longsift` of this build, and checks of
//! every run.

pub(crate) mod pages;
pub(crate) mod scenarios;

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub(crate) use testkit::{
    Answer, Pipeline, Random, Tiny, copy_folder, damage, disk, fake_nvml, faults, files_below, hex,
    no_network, result_folders, tables,
};
#[cfg(feature = "cloud")]
pub(crate) use testkit::{bucket, server};

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The demo model: small, trained, with a tokenizer.
pub(crate) fn demo_model() -> PathBuf {
    repository().join("datasets/demo/model")
}

/// Path in the shared test data, which not every checkout has: `LONGSIFT_SHARED`, or `shared` next to the repository.
/// Tests that need it are ignored unless the cfg `longsift_shared` is set.
pub(crate) fn shared(path: &str) -> PathBuf {
    let folder = std::env::var_os("LONGSIFT_SHARED")
        .map_or_else(|| repository().join("../shared"), PathBuf::from);
    let found = folder.join(path);
    assert!(
        found.exists(),
        "`{}` is not found; LONGSIFT_SHARED names another folder",
        found.display()
    );
    found
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Folder of one test for the `longsift` of this build.
pub(crate) struct Workspace(testkit::Workspace);

impl Deref for Workspace {
    type Target = testkit::Workspace;

    fn deref(&self) -> &testkit::Workspace {
        &self.0
    }
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self(testkit::Workspace::new(env!("CARGO_BIN_EXE_longsift")))
    }

    /// Two files of documents of tokens in three groups, one of them without a name, that repeat themselves more or
    /// less; and a model.
    pub(crate) fn with_three_groups() -> Self {
        let workspace = Self::new();
        Tiny::new().write(&workspace.path("model"));
        for (file, first) in [("a", 0), ("b", 20)] {
            let documents: Vec<usize> = (first..first + 20).collect();
            let tokens = |document: &usize| {
                let again = |index: usize| index % (16 + document % 50);
                let token = |index| (again(index) * 7 + document * 13) % 60 + 2;
                (0..64 + document % 7 * 32).map(|index| token(index) as u32).collect()
            };
            let lists: Vec<Vec<u32>> = documents.iter().map(tokens).collect();
            let group = |index: &usize| [Some("books"), None, Some("code")][index % 3];
            let groups: Vec<Option<&str>> = documents.iter().map(group).collect();
            let ids = documents.iter().map(|document| format!("document-{document}"));
            let columns = [
                ("id", tables::strings(ids)),
                ("group", tables::labels(&groups)),
                ("tokens", tables::token_lists(&lists)),
            ];
            let path = workspace.path(&format!("input/{file}.parquet"));
            tables::write_parquet(&path, &tables::table(&columns), 5);
        }
        workspace
    }

    /// Copies another workspace with its modification times.
    pub(crate) fn copy_of(other: &testkit::Workspace) -> Self {
        Self(testkit::Workspace::copy_of(other))
    }

    /// Writes `pipeline.yaml` and runs it, which must succeed. Returns the summary after checking both accounting
    /// equations.
    pub(crate) fn run(&self, pipeline: &Pipeline) -> Value {
        self.run_with(pipeline, &[])
    }

    /// Like [`Workspace::run`], with more arguments.
    pub(crate) fn run_with(&self, pipeline: &Pipeline, arguments: &[&str]) -> Value {
        self.write("pipeline.yaml", pipeline.to_string());
        let summary = self
            .longsift(&[&["run", "pipeline.yaml", "-q"], arguments].concat())
            .success()
            .summary();
        check_accounting(&summary);
        check_tables(&summary);
        summary
    }

    /// Replaces paths in this folder and the repository, times and versions by placeholders.
    pub(crate) fn filtered(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (path, name) in [
            (self.path("").canonicalize().unwrap(), "[folder]"),
            (self.path(""), "[folder]"),
            (repository(), "[repository]"),
        ] {
            text = text.replace(path.to_str().unwrap(), name);
        }
        text
    }
}

/// A count of the summary.
pub(crate) fn count(summary: &Value, key: &str) -> u64 {
    summary[key].as_u64().unwrap_or_else(|| panic!("{key} in {summary}"))
}

/// Checks that the tables of a run agree with its summary.
fn check_tables(summary: &Value) {
    let run = Path::new(summary["run_dir"].as_str().unwrap());
    let output = run.with_extension("");
    let rows = |folder: &Path| -> u64 {
        files_below(folder).iter().map(|file| tables::count_rows(file)).sum()
    };
    if summary["status"] != "done" {
        return;
    }
    assert_eq!(rows(&output.join("data")), count(summary, "kept"), "{summary}");
    let counter = |key: &str| summary[key].as_u64().unwrap_or(0);
    assert!(
        counter("rows_kept") <= counter("kept") && counter("kept") <= counter("windows_kept"),
        "{summary}"
    );
    let scored = counter("windows_scored") + counter("windows_reused");
    let too_short = summary["windows_dropped"]["too_short"].as_u64().unwrap_or(0);
    assert_eq!(scored + too_short, counter("windows_total"), "{summary}");
}

/// Checks rows in = kept + dropped + quarantined, and windows = kept + dropped.
pub(crate) fn check_accounting(summary: &Value) {
    let sum = |key: &str| -> u64 {
        summary[key].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
    };
    assert_eq!(
        count(summary, "rows_in"),
        count(summary, "rows_kept") + sum("rows_dropped") + count(summary, "quarantined"),
        "{summary}"
    );
    assert_eq!(
        count(summary, "windows_total"),
        count(summary, "windows_kept") + sum("windows_dropped"),
        "{summary}"
    );
}

/// Names of the backends of this build that compute the whole model in `folder`.
pub(crate) fn backends(folder: &Path) -> &'static [&'static str] {
    let own_only = read_json(&folder.join("config.json"))["model_type"] == "gla";
    if cfg!(feature = "candle") && !own_only { &["own", "candle"] } else { &["own"] }
}
