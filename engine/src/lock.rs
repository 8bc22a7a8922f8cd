//! The lock: settings as resolved, and the model, tokenizer and kernel they meant, by content.
//!
//! `longsift lock` writes it beside the pipeline file, `--locked` compares with it; every run directory has one of its
//! own, by which a resumed run knows what its scores were made with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::files;
use crate::plan::{Plan, identity};

/// Settings and identities.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Lock {
    /// Version of this file's format.
    pub version: u32,
    /// Settings as resolved, with defaults filled in.
    pub settings: Value,
    /// `--set` as given.
    pub overrides: Vec<String>,
    /// Values of the parameters.
    pub params: Map<String, Value>,
    /// Everything a score depends on besides the input.
    pub score_settings: Map<String, Value>,
    /// Digest of the calibration file, where the pipeline uses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
    /// The commits that branches and tags of the hub meant, by `hf://owner/name@branch`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hub_commits: BTreeMap<String, String>,
    /// Cheap identities of the model folder, and the digest of what was read there. Only in a run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelIdentity>,
    /// What the command line said besides the settings. Only in a run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
}

/// What a run needs besides its settings to be repeated.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Recorded {
    /// The pipeline file, absolute: paths in the settings are relative to its folder.
    pub pipeline: String,
    /// `--limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_rows: Option<u64>,
    /// `--scores-from`, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores_from: Option<String>,
}

/// What tells that a model folder still holds what it held, without reading its weights.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// Hash of config and headers, sizes and modification times.
    pub identity: String,
    /// Hash of the tensors that matter.
    pub digest: String,
}

impl Lock {
    /// The lock of a plan whose model has this digest.
    ///
    /// # Errors
    /// The calibration file that the pipeline uses cannot be read.
    pub fn of(plan: &Plan, model_digest: &str) -> Result<Self> {
        let params = plan
            .spec
            .params
            .iter()
            .map(|(name, value)| (name.clone(), Value::from(value.clone())))
            .collect();
        Ok(Self {
            version: 1,
            settings: plan.spec.resolved_json(),
            overrides: plan.spec.overrides.clone(),
            params,
            score_settings: identity::score_settings(plan, model_digest),
            calibration: identity::calibration_digest(plan)?,
            hub_commits: plan.pins.clone(),
            model: None,
            recorded: None,
        })
    }

    /// The same with what it takes to repeat the run.
    #[must_use]
    pub fn with_command(mut self, plan: &Plan) -> Self {
        let absolute = |path: &Path| {
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
        };
        self.recorded = Some(Recorded {
            pipeline: absolute(Path::new(plan.spec.name())),
            limit_rows: plan.options.limit_rows,
            scores_from: plan.options.scores_from.as_deref().map(absolute),
        });
        self
    }

    /// The same, for a run directory.
    #[must_use]
    pub fn with_model(mut self, plan: &Plan, model_digest: &str) -> Self {
        self.model = Some(ModelIdentity {
            identity: plan.model.identity(),
            digest: model_digest.to_owned(),
        });
        self
    }

    /// Reads a lock, if there is one.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let Some(bytes) = files::read_if_present(path)? else { return Ok(None) };
        let lock = serde_json::from_slice(&bytes).map_err(|error| {
            Diagnostic::error(Blame::Data, format!("the lock `{}` cannot be read: {error}", path.display()))
                .hint("remove it, or write it anew with `longsift lock`; a run directory is started anew by `--fresh`")
        })?;
        Ok(Some(lock))
    }

    /// Writes the lock.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut json = serde_json::to_vec_pretty(self).expect("a lock is plain data");
        json.push(b'\n');
        files::write_atomic(path, &json)?;
        Ok(())
    }

    /// Refuses a run that is not what the lock beside the pipeline says.
    pub fn check(&self, path: &Path) -> Result<()> {
        let Some(locked) = Self::read(path)? else {
            return Err(Diagnostic::error(
                Blame::Pipeline,
                format!("there is no lock `{}`", path.display()),
            )
            .hint("`longsift lock PIPELINE` writes it")
            .into());
        };
        let mut different = identity::differences(&flat(&self.settings), &flat(&locked.settings));
        different.extend(identity::differences(&self.params, &locked.params));
        different.extend(identity::differences(&self.score_settings, &locked.score_settings));
        let calibration = |lock: &Self| {
            let digest =
                lock.calibration.clone().map(|digest| ("calibration".to_owned(), digest.into()));
            digest.into_iter().collect::<Map<String, Value>>()
        };
        different.extend(identity::differences(&calibration(self), &calibration(&locked)));
        if different.is_empty() {
            return Ok(());
        }
        let mut problem = Diagnostic::error(
            Blame::Pipeline,
            format!("the pipeline is not what `{}` locks", path.display()),
        );
        for line in different {
            problem = problem.note(line);
        }
        Err(problem.hint("`longsift lock PIPELINE` accepts the change").into())
    }
}

/// The lock of a pipeline file: `demo.yaml` → `demo.lock`.
pub fn path_beside(pipeline: &Path) -> PathBuf {
    pipeline.with_extension("lock")
}

/// Nested settings as one map from dotted paths to values; stages by name.
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
            identity::differences(&now, &flat(&settings(0.5))),
            ["stages.score.alpha: 1.0, was 0.5"]
        );
    }
}
