//! The lock: resolved settings, and the model, tokenizer and kernel by content.
//!
//! `longsift lock` writes it next to the pipeline file, and `--locked` compares with it. Every run directory also contains one,
//! which states how its scores were computed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::facts::{self, Identity};
use super::seal::sealed;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::storage::marked::{self, Mark};
use crate::storage::{atomic, files};

/// Format version of locks, records and manifests. Increased when older scores could be mistaken for current ones.
pub const VERSION: u32 = 2;

/// Settings and identities.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct PipelineLock {
    /// Version of this file's format.
    pub version: u32,
    /// Resolved settings, with defaults filled in.
    pub settings: Value,
    /// `--set` as given.
    pub overrides: Vec<String>,
    /// Values of the parameters.
    pub params: Map<String, Value>,
    /// Everything that results depend on, except the input.
    pub identity: Identity,
    /// Commits that branches and tags of the hub resolved to, by `hf://owner/name@branch`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hub_commits: BTreeMap<String, String>,
    /// Identity of the model folder, and the digest of its weights. Only in a run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelIdentity>,
    /// Identities of whole models, by measure. Only in a run directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub whole_models: BTreeMap<String, ModelIdentity>,
    /// Options of the command line that are not settings. Only in a run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
}

/// Values that are needed to repeat a run in addition to the settings.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Recorded {
    /// Absolute path of the pipeline file: paths in the settings are relative to its folder.
    pub pipeline: String,
    /// `--limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_rows: Option<u64>,
    /// `--scores-from`, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores_from: Option<String>,
}

/// Identity of a model folder, which detects changes without reading weights.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// Hash of what the first layer computes, of headers, sizes and modification times.
    pub identity: String,
    /// Hash of the tensors that results depend on.
    pub weights: String,
}

impl ModelIdentity {
    /// Returns the digest of the weights, if `identity` is that of this model.
    pub fn weights_of(&self, identity: &str) -> Option<String> {
        (self.identity == identity).then(|| self.weights.clone())
    }
}

impl PipelineLock {
    /// Reads a lock; `None` if it does not exist.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let hint = "remove it; `longsift lock` writes the one of a pipeline file, and the next run the one of a run directory";
        read_versioned(path, "lock", hint, |_| true)
    }

    /// Returns the values that are needed to repeat the run; an error if an older version wrote the lock.
    pub fn recorded(&self) -> Result<&Recorded> {
        self.recorded.as_ref().ok_or_else(|| {
            let message = "the run directory does not record its pipeline";
            Diagnostic::error(Blame::Pipeline, message)
                .hint("an older version of longsift wrote it; name the pipeline file")
                .into()
        })
    }

    pub const MARK: Mark = Mark::Keys(&["version", "settings", "identity"]);

    /// Writes the lock of a pipeline file.
    pub fn write_next_to(&self, path: &Path) -> Result<()> {
        marked::write(path, Self::MARK, &json(self))
    }

    /// Writes the lock of a run directory, with its digest.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_atomic(path, &json(&sealed(self)))?;
        Ok(())
    }

    /// Writes the lock of a run directory unless it exists, and returns whether it did: only one of several processes succeeds.
    pub fn write_new(&self, path: &Path) -> Result<bool> {
        Ok(atomic::write_new(path, &json(&sealed(self)))?)
    }

    pub fn check(&self, path: &Path) -> Result<()> {
        let Some(locked) = Self::read(path)? else {
            return Err(Diagnostic::error(
                Blame::Pipeline,
                format!("lock `{}` not found", path.display()),
            )
            .hint("`longsift lock PIPELINE` writes it")
            .into());
        };
        // The memory limit changes no result, and is lowered where less memory is available.
        let settings = |lock: &Self| {
            let mut settings = flat(&lock.settings);
            settings.remove("input.memory_limit_bytes");
            settings
        };
        let mut different = facts::differences(&settings(self), &settings(&locked));
        different.extend(facts::differences(&self.params, &locked.params));
        different.extend(self.identity.differences_of_scores(&locked.identity));
        // The settings are compared above, but not the content of the files that they name.
        let files =
            |lock: &Self| lock.identity.selection.only(&["score.calibration", "input.since"]);
        different.extend(files(self).differences(&files(&locked)));
        if different.is_empty() {
            return Ok(());
        }
        let message = format!("the pipeline differs from `{}`", path.display());
        Err(Diagnostic::error(Blame::Pipeline, message)
            .notes(different)
            .hint("`longsift lock PIPELINE` accepts the change")
            .into())
    }
}

fn json(lock: &impl Serialize) -> Vec<u8> {
    let mut json = serde_json::to_vec_pretty(lock).expect("a lock is plain data");
    json.push(b'\n');
    json
}

/// Reads a lock or a manifest; `None` if it does not exist. `hint`: for a file that cannot be read.
pub(super) fn read_versioned<T: DeserializeOwned>(
    path: &Path,
    what: &str,
    hint: &str,
    matches_digest: impl Fn(&[u8]) -> bool,
) -> Result<Option<T>> {
    let Some(bytes) = files::read_if_present(path)? else { return Ok(None) };
    if let Some(version) = stated_version(&bytes).filter(|version| *version != VERSION) {
        let message = format!(
            "`{}` has format {version}; this longsift ({}) reads format {VERSION}",
            path.display(),
            env!("CARGO_PKG_VERSION")
        );
        let hint = "start from scratch with `--fresh`, or use the longsift that wrote it; a lock next to a pipeline file is \
                    rewritten by `longsift lock`";
        return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
    }
    let damaged = |why: String| {
        let message = format!("the {what} `{}` cannot be read: {why}", path.display());
        Diagnostic::error(Blame::Data, message).hint(hint)
    };
    let content = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if !matches_digest(&bytes) {
        return Err(damaged("the digest in the file does not match its content".to_owned()).into());
    }
    Ok(Some(content))
}

/// Returns the version in the JSON of a record; `None` without a version.
pub(super) fn stated_version(bytes: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    serde_json::from_slice(bytes).ok().map(|Versioned { version }| version)
}

/// Path of the lock of a pipeline file: `demo.yaml` → `demo.lock`.
pub fn path_next_to(pipeline: &Path) -> PathBuf {
    pipeline.with_extension("lock")
}

/// Flattens nested settings to a map by dotted path, in which stages have their names instead of an index.
pub(crate) fn flat(settings: &Value) -> Map<String, Value> {
    fn add(prefix: &str, value: &Value, into: &mut Map<String, Value>) {
        let join =
            |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| add(&join(key), value, into)),
            Value::Array(items)
                if items.iter().all(|item| item.get("stage").is_some()) && !items.is_empty() =>
            {
                for item in items {
                    add(&join(item["stage"].as_str().unwrap_or_default()), item, into);
                }
            }
            other => drop(into.insert(prefix.to_owned(), other.clone())),
        }
    }
    let mut map = Map::new();
    add("", settings, &mut map);
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_changed_setting_is_named_by_its_path() {
        let settings =
            |alpha: f64| json!({ "name": "p", "stages": [{ "stage": "score", "alpha": alpha }] });
        let now = flat(&settings(1.0));
        assert_eq!(
            facts::differences(&now, &flat(&settings(0.5))),
            ["stages.score.alpha: 1.0, was 0.5"]
        );
    }
}
