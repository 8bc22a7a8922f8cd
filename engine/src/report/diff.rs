//! `longsift diff`: compares two runs and lists the documents that changed.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::documents::{self, DocumentChanges};
use crate::base::counts::Counts;
use crate::base::error::{DIFFERENT, DONE, Result};
use crate::base::text::{count, line_safe};
use crate::run_directory::facts;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::pipeline_lock::{self, PipelineLock};

/// Differences between two runs, the first of which is `a`.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    pub runs: [String; 2],
    /// Versions of longsift and of the measures, kernel and device, a line each.
    pub program: Vec<String>,
    /// Resolved settings and parameters by path, a line each. `output.path` is ignored.
    pub settings: Vec<String>,
    /// Digests of model and tokenizer.
    pub model: Vec<String>,
    /// Input files, a line each.
    pub inputs: Vec<String>,
    /// Counts of rows, windows and tokens, a line each.
    pub counts: Vec<String>,
    pub documents: DocumentChanges,
}

impl Difference {
    /// Returns whether the runs have the same inputs, settings and model, and the same outcome for every document.
    pub fn is_none(&self) -> bool {
        self.parts().iter().all(|(_, lines)| lines.is_empty()) && self.documents.changed() == 0
    }

    /// Returns 0 for equal runs, 5 for different ones.
    pub fn exit_code(&self) -> u8 {
        if self.is_none() { DONE } else { DIFFERENT }
    }

    fn parts(&self) -> [(&'static str, &Vec<String>); 5] {
        [
            ("program", &self.program),
            ("settings", &self.settings),
            ("model", &self.model),
            ("inputs", &self.inputs),
            ("counts", &self.counts),
        ]
    }
}

/// Compares two finished runs and lists at most `listed` changed documents.
pub fn diff(a: &RunDirectory, b: &RunDirectory, listed: usize) -> Result<Difference> {
    let (manifest_a, manifest_b) = (Manifest::read_with_tables(a)?, Manifest::read_with_tables(b)?);
    let (lock_a, lock_b) = (&manifest_a.lock, &manifest_b.lock);
    let flat = |lock: &PipelineLock| {
        let mut settings = pipeline_lock::flat(&lock.settings);
        settings.shift_remove("output.path");
        settings.extend(lock.params.clone());
        settings
    };
    // A run that measured nothing does not know the devices that did.
    let devices_are_known =
        !manifest_a.device["name"].is_null() && !manifest_b.device["name"].is_null();
    let program = |manifest: &Manifest| {
        let mut program = Map::new();
        program.insert("longsift".to_owned(), manifest.longsift.clone().into());
        if devices_are_known {
            program.insert("device".to_owned(), manifest.device["name"].clone());
        }
        let identity = &manifest.lock.identity;
        for fact in ["kernel", "table_kernel"] {
            let value = identity.find_in_measures(fact).cloned();
            program.extend(value.map(|value| (fact.to_owned(), value)));
        }
        for (name, measure) in &identity.measures {
            let version = measure.facts.get("version").cloned().unwrap_or_default();
            program.insert(format!("version of {name}"), version);
            let files = measure.facts.iter().filter(|(fact, _)| fact.starts_with("file "));
            program
                .extend(files.map(|(file, digest)| (format!("{file} of {name}"), digest.clone())));
        }
        program
    };
    let model = |lock: &PipelineLock| {
        let facts = ["weights", "layer"].map(|fact| (fact, lock.identity.find_in_measures(fact)));
        let tokenizer = ("tokenizer", lock.identity.windows.get("tokenizer"));
        let all = facts.into_iter().chain([tokenizer]);
        let all = all.filter_map(|(fact, value)| Some((fact.to_owned(), value?.clone())));
        let mut all: Map<String, Value> = all.collect();
        for (name, measure) in &lock.identity.measures {
            for fact in ["model", "model_weights"] {
                let value = measure.facts.get(fact).cloned();
                all.extend(value.map(|value| (format!("{fact} of {name}"), value)));
            }
        }
        all
    };
    let difference = Difference {
        runs: [a.absolute(), b.absolute()],
        program: facts::differences(&program(&manifest_b), &program(&manifest_a)),
        settings: facts::differences(&flat(lock_b), &flat(lock_a)),
        model: facts::differences(&model(lock_b), &model(lock_a)),
        inputs: inputs(&manifest_a, &manifest_b),
        counts: facts::differences(&counts(b, &manifest_b)?, &counts(a, &manifest_a)?),
        documents: documents::compare((a, &manifest_a), (b, &manifest_b), listed)?,
    };
    manifest_a.check_current(a)?;
    manifest_b.check_current(b)?;
    Ok(difference)
}

/// Returns the input files that only one run has, or that differ.
fn inputs(a: &Manifest, b: &Manifest) -> Vec<String> {
    let files = |manifest: &Manifest| -> BTreeMap<String, Value> {
        let all = manifest.input.iter().chain(&manifest.bad_files);
        all.map(|file| (file["path"].as_str().unwrap_or_default().to_owned(), file.clone()))
            .collect()
    };
    let (a, b) = (files(a), files(b));
    let mut lines = Vec::new();
    for (path, before) in &a {
        match b.get(path) {
            None => lines.push(format!("{path}: only in the first run")),
            Some(now) => {
                let keys = ["size", "rows", "footer_hash", "message"];
                let changed: Vec<&str> =
                    keys.into_iter().filter(|key| now.get(key) != before.get(key)).collect();
                if !changed.is_empty() {
                    lines.push(format!("{path}: different {}", changed.join(", ")));
                }
            }
        }
    }
    let added = b.keys().filter(|path| !a.contains_key(*path));
    lines.extend(added.map(|path| format!("{path}: only in the second run")));
    lines
}

/// Returns the counts of the score phase, and those of the selection from the summary.
fn counts(directory: &RunDirectory, manifest: &Manifest) -> Result<Map<String, Value>> {
    let mut counts = Counts::default();
    manifest.units.iter().for_each(|record| counts.add(&record.counts));
    let mut counts = object(&counts);
    let summary = manifest.read_summary(directory)?;
    let selected = ["kept", "rows_kept", "rows_dropped", "windows_kept", "windows_dropped"];
    let summary = object(&summary).into_iter();
    counts.extend(summary.filter(|(name, _)| selected.contains(&&**name)));
    Ok(pipeline_lock::flat(&Value::Object(counts)))
}

fn object(value: &impl Serialize) -> Map<String, Value> {
    let value = serde_json::to_value(value).expect("plain data");
    value.as_object().cloned().unwrap_or_default()
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            writeln!(f, "no differences in {} documents", count(self.documents.same))?;
            if self.runs[0] == self.runs[1] {
                writeln!(
                    f,
                    "  both are the same run directory; to compare with an earlier selection, copy its directory before the run"
                )?;
            }
            return Ok(());
        }
        for (name, lines) in self.parts() {
            if !lines.is_empty() {
                writeln!(f, "{name}")?;
                lines.iter().try_for_each(|line| writeln!(f, "  {}", line_safe(line)))?;
            }
        }
        write!(f, "{}", self.documents)
    }
}
