//! The manifest: what was read, run and written; enough to repeat the run and to check its files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::execute::Scored;
use crate::files;
use crate::lock::Lock;
use crate::output::Staged;
use crate::plan::{KnownFile, Plan};
use crate::report::TableUse;
use crate::run_directory::RunDirectory;
use crate::units::{Part, UnitRecord};

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file's format.
    pub version: u32,
    /// Version of longsift.
    pub longsift: String,
    /// When the selection was committed, UTC.
    pub committed: String,
    /// Settings, parameters and identities.
    pub lock: Lock,
    /// What the selection depended on besides the scores.
    pub select_settings: Map<String, Value>,
    /// Decides whether another run would write the same.
    pub selection_fingerprint: String,
    /// The device that measured windows.
    pub device: Value,
    /// The layer-zero table, as far as the committing run used it; null where it measured nothing.
    #[serde(default)]
    pub table: Option<TableUse>,
    /// The input files: path, size, rows, footer hash.
    pub input: Vec<Value>,
    /// Files of the input that could not be opened and are left out: path, size, what is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bad_files: Vec<Value>,
    /// Their records in `quarantine/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_files: Option<Part>,
    /// The input files that `input.since` left out: filtered by the run it names, or before that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_before: Vec<KnownFile>,
    /// One record per work unit.
    pub units: Vec<UnitRecord>,
    /// The files of `data/`.
    pub data: Vec<Part>,
    /// The files of `dropped/` that belong to the selection.
    pub dropped: Vec<Part>,
}

impl Manifest {
    /// The manifest of a selection that is about to be committed.
    pub fn new(
        plan: &Plan,
        lock: &Lock,
        scored: &Scored,
        staged: &Staged,
        select_settings: Map<String, Value>,
        selection_fingerprint: String,
    ) -> Self {
        let input = plan.dataset.files.iter().map(|file| {
            json!({ "path": file.path, "size": file.size, "rows": file.rows, "footer_hash": file.footer_hash })
        });
        let bad_files = plan.dataset.bad_files.iter().map(
            |file| json!({ "path": file.path, "size": file.size, "message": file.problem.message }),
        );
        Self {
            version: 1,
            longsift: env!("CARGO_PKG_VERSION").to_owned(),
            committed: crate::clock::now_utc(),
            lock: lock.clone(),
            select_settings,
            selection_fingerprint,
            device: json!({ "name": plan.devices.names(), "kernel": plan.kernel().name() }),
            table: None,
            input: input.collect(),
            bad_files: bad_files.collect(),
            quarantined_files: staged.quarantined_files.clone(),
            input_before: plan.input_before.clone(),
            units: scored.records.clone(),
            data: staged.data.clone(),
            dropped: staged.dropped.clone(),
        }
    }

    /// Reads the manifest of a run directory, if it has one.
    pub fn read(directory: &RunDirectory) -> Result<Option<Self>> {
        let path = directory.manifest();
        let Some(bytes) = files::read_if_present(&path)? else { return Ok(None) };
        let manifest = serde_json::from_slice(&bytes).map_err(|error| {
            Diagnostic::error(
                Blame::Data,
                format!("the manifest `{}` cannot be read: {error}", path.display()),
            )
            .hint("it was damaged after it was written; `--fresh` starts the run anew")
        })?;
        Ok(Some(manifest))
    }

    /// The names of the files in `data/`.
    pub fn data_names(&self) -> Vec<String> {
        self.data.iter().map(|part| part.path.clone()).collect()
    }
}
