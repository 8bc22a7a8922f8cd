//! Calibrations: the figures a corpus was scored and filtered with, computed here or saved by an earlier run.

use longsift_stages::score::GroupFigures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ByGroup, Decided, Table, drift, name};
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::Result;
use crate::files;
use crate::plan::{Plan, identity};

/// The figures of a group, in `calibration.json`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct CalibratedGroup {
    /// Value of the `within` column; null for rows without one, and for the one group of a run without `within`.
    pub value: Option<String>,
    /// Its figures and threshold.
    pub figures: GroupFigures,
    /// Samples that were kept; null in a calibration of an older longsift.
    #[serde(default)]
    pub kept: Option<u64>,
    /// The nine scores that cut the group into ten parts of equal size; empty for a group without scores, and in a
    /// calibration of an older longsift.
    #[serde(default)]
    pub score_deciles: Vec<f64>,
}

/// What `calibration.json` holds: enough to score and filter an increment like the corpus before it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of this file's format.
    pub version: u32,
    /// The `score` settings.
    pub score: Value,
    /// What a sample was: `windows` or `documents`.
    pub samples: Value,
    /// Everything the raw statistics depended on: model and tokenizer digests, distance, window.
    pub score_settings: Map<String, Value>,
    /// One entry per group, ordered by value.
    pub groups: Vec<CalibratedGroup>,
}

/// Computes figures, scores and what is kept, group by group.
pub(super) fn own_calibration(
    plan: &Plan,
    score_settings: &Map<String, Value>,
    table: &Table,
    samples: &ByGroup,
    decided: &mut Decided,
) -> Calibration {
    let (score, filter) = (plan.spec.score(), plan.spec.filter());
    let mut groups = Vec::new();
    for (value, &group) in &table.groups {
        let (strengths, variances, tokens) = samples.of(group);
        let mut figures = score.figures(strengths, variances);
        let scores = score.scores(&figures, strengths, variances);
        let kept = filter.keep(&scores, tokens, value.as_deref());
        figures.threshold = kept.threshold;
        let score_deciles = drift::deciles(&scores);
        let number_kept = kept.keep.iter().filter(|&&keep| keep).count() as u64;
        decided.set(samples.order.range(group), &scores, &kept.keep);
        let value = value.clone();
        groups.push(CalibratedGroup { value, figures, kept: Some(number_kept), score_deciles });
    }
    Calibration {
        version: 1,
        score: serde_json::to_value(score).expect("settings are plain data"),
        samples: serde_json::to_value(plan.spec.pipeline.output.samples)
            .expect("settings are plain data"),
        score_settings: score_settings.clone(),
        groups,
    }
}

/// Reads a saved calibration and checks that it was made for these scores and knows all groups.
pub(super) fn saved_calibration(
    plan: &Plan,
    path: &str,
    score_settings: &Map<String, Value>,
    table: &Table,
) -> Result<Calibration> {
    let place = || plan.spec.at("stages.score.calibration");
    let bytes = files::read_limited(&plan.spec.resolve(path), 256 << 20)?;
    let calibration: Calibration = serde_json::from_slice(&bytes).map_err(|error| {
        Diagnostic::error(Blame::Pipeline, format!("`{path}` is not a calibration: {error}"))
            .at(place())
            .hint("give the `calibration.json` of a finished run directory")
    })?;
    let comparable = |settings: &Map<String, Value>| -> Map<String, Value> {
        let kept = ["model", "tokenizer", "window_tokens", "min_distance", "mask", "bos"];
        settings
            .iter()
            .filter(|(key, _)| kept.contains(&key.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    let mut different = identity::differences(
        &comparable(score_settings),
        &comparable(&calibration.score_settings),
    );
    let score = serde_json::to_value(plan.spec.score()).expect("settings are plain data");
    for key in ["alpha", "standardise", "within", "formula"] {
        if score.get(key) != calibration.score.get(key) {
            different.push(format!(
                "{key}: {}, was {}",
                show(score.get(key)),
                show(calibration.score.get(key))
            ));
        }
    }
    if !different.is_empty() {
        let mut problem = Diagnostic::error(
            Blame::Pipeline,
            format!("the calibration `{path}` was made with other settings"),
        )
        .at(place());
        for line in different {
            problem = problem.note(line);
        }
        return Err(problem.hint("use the settings it was made with, or calibrate anew").into());
    }
    let unknown: Vec<String> = table
        .groups
        .keys()
        .filter(|value| !calibration.groups.iter().any(|known| known.value == **value))
        .map(|value| name(value.as_deref()))
        .collect();
    if !unknown.is_empty() {
        return Err(Diagnostic::error(Blame::Pipeline, format!("the calibration `{path}` has no figures for group {}", unknown.join(", ")))
            .at(place())
            .hint("calibrate anew over a corpus that has all groups, or leave these rows out of the input")
            .into());
    }
    Ok(calibration)
}

fn show(value: Option<&Value>) -> String {
    value.map_or("not set".to_owned(), Value::to_string)
}
