//! Facts that a result depends on, as JSON objects with a fingerprint and readable differences.
//!
//! `plan/identity.rs` builds them. The lock, records, the manifest, calibrations and `longsift diff` store and compare only
//! facts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base::counts::is_zero;
use crate::base::text;

/// Facts that a result depends on, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Facts(Map<String, Value>);

/// Prefix of the names of facts about stages that process documents before they are cut into windows.
pub const DOCUMENTS_PREFIX: &str = "documents.";

impl Facts {
    /// Converts a JSON object to facts sorted by name; any other value becomes empty.
    pub fn new(object: Value) -> Self {
        let Value::Object(mut facts) = object else { return Self::default() };
        facts.sort_keys();
        Self(facts)
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter()
    }

    #[must_use]
    pub fn without(&self, names: &[&str]) -> Self {
        self.filtered(|name| !names.contains(&name))
    }

    #[must_use]
    pub fn only(&self, names: &[&str]) -> Self {
        self.filtered(|name| names.contains(&name))
    }

    fn filtered(&self, keeps: impl Fn(&str) -> bool) -> Self {
        let kept = self.0.iter().filter(|(name, _)| keeps(name));
        Self(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all windows that pass the bounds `other` also pass these bounds.
    ///
    /// True if each of these bounds exists in `other`, on the same statistic, and is at least as strict there. The bounds that
    /// decide which windows have the statistic are compared in the same way.
    pub fn is_no_stricter_than(&self, other: &Self) -> bool {
        are_bounds_no_stricter(&self.0, &other.0)
    }

    /// Fingerprints of the facts called `documents.<stage>.…`, by stage.
    fn document_fingerprints(&self) -> BTreeMap<String, String> {
        let mut stages: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for (name, value) in &self.0 {
            let Some(rest) = name.strip_prefix(DOCUMENTS_PREFIX) else { continue };
            let (stage, fact) = rest.split_once('.').unwrap_or((rest, ""));
            stages.entry(stage.to_owned()).or_default().insert(fact.to_owned(), value.clone());
        }
        stages.into_iter().map(|(stage, facts)| (stage, Self(facts).fingerprint())).collect()
    }

    /// Returns the SHA-256 of the facts as JSON; empty without facts.
    pub fn fingerprint(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        text::sha256_hex(Value::Object(self.0.clone()).to_string().as_bytes())
    }

    /// Lists the differences from `before`: `window_tokens: 4096, was 2048`.
    pub fn differences(&self, before: &Self) -> Vec<String> {
        differences(&self.0, &before.0)
    }
}

/// Facts that the statistics of a measure depend on.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct MeasureFacts {
    /// Facts that a statistic depends on in addition to its window.
    pub facts: Facts,
    /// Conditions that a window must meet to have these statistics. They never change values; empty if all windows have them.
    #[serde(default)]
    pub only: Facts,
}

/// Everything that a run's results depend on, except its input. It has three parts, because a changed selection needs no new
/// measurement, and a changed measure needs no new windows.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Identity {
    /// Facts that windows depend on: the document's column, the tokenizer, how windows are cut.
    pub windows: Facts,
    /// Facts that statistics depend on, by measure.
    pub measures: BTreeMap<String, MeasureFacts>,
    /// Facts that the selection and the written samples depend on in addition to the statistics.
    pub selection: Facts,
}

impl Identity {
    /// Computes the fingerprints that are stored in records and journals of work units.
    pub fn fingerprints(&self) -> Fingerprints {
        let measure = |facts: &MeasureFacts| MeasuredBy {
            fingerprint: facts.facts.fingerprint(),
            only: facts.only.clone(),
            ..MeasuredBy::default()
        };
        Fingerprints {
            windows: self.windows.fingerprint(),
            documents: self.windows.document_fingerprints(),
            measures: self
                .measures
                .iter()
                .map(|(name, facts)| (name.clone(), measure(facts)))
                .collect(),
        }
    }

    pub fn find_in_measures(&self, name: &str) -> Option<&Value> {
        self.measures.values().find_map(|measure| measure.facts.get(name))
    }

    /// Lists the measures that exist in both and differ, with their differences: `mask: causal, was unmasked`.
    pub fn changed_measures(&self, before: &Self) -> Vec<(String, Vec<String>)> {
        let changed = self.measures.iter().filter_map(|(name, now)| {
            let lines = now.facts.differences(&before.measures.get(name)?.facts);
            (!lines.is_empty()).then(|| (name.clone(), lines))
        });
        changed.collect()
    }

    /// Lists the differences in windows and in measures that exist in both.
    pub fn differences_of_scores(&self, before: &Self) -> Vec<String> {
        let mut lines = self.windows.differences(&before.windows);
        lines.extend(self.changed_measures(before).into_iter().flat_map(|(_, lines)| lines));
        lines
    }

    pub fn differences(&self, before: &Self) -> Vec<String> {
        let mut lines = self.differences_of_scores(before);
        let names = self.measures.keys().chain(before.measures.keys());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            match (self.measures.get(name), before.measures.get(name)) {
                (Some(_), None) => lines.push(format!("{name}: measured, was not measured")),
                (None, Some(_)) => lines.push(format!("{name}: not measured, was measured")),
                (Some(now), Some(before)) => lines.extend(now.only.differences(&before.only)),
                (None, None) => {}
            }
        }
        lines.extend(self.selection.differences(&before.selection));
        lines
    }
}

/// Fingerprints of windows and measures, which decide whether existing statistics can be reused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprints {
    pub windows: String,
    /// Fingerprint of each stage that processes documents, by name. Included in `windows`.
    pub documents: BTreeMap<String, String>,
    pub measures: BTreeMap<String, MeasuredBy>,
}

/// Accounting of a measure for the windows of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct MeasuredBy {
    /// Fingerprint of the facts that its statistics depend on in addition to the window.
    pub fingerprint: String,
    /// Conditions that a window must meet to have statistics; empty if all windows have them. A run with other guards may have
    /// measured other windows as well.
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub only: Facts,
    /// Whether windows that meet `only` may lack statistics, because the measure was removed from the pipeline while the unit
    /// was open, or because their row was quarantined. Existing statistics are not computed again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Windows skipped by a guard before it.
    #[serde(default)]
    pub not_measured: u64,
    /// Windows outside its sample.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_sampled: u64,
    /// Rows that are quarantined because it could not measure them.
    #[serde(default)]
    pub quarantined: u64,
}

impl MeasuredBy {
    /// Whether the measure ran on every window of the scores, so that nulls are its results.
    pub fn covers_all_windows(&self) -> bool {
        !self.incomplete && self.not_measured == 0 && self.not_sampled == 0
    }

    /// Whether all wanted statistics exist, possibly for more windows than wanted.
    pub(super) fn has_statistics(&self, wanted: &Self) -> bool {
        self.fingerprint == wanted.fingerprint
            && !self.incomplete
            && self.only.is_no_stricter_than(&wanted.only)
    }
}

/// Implements [`Facts::is_no_stricter_than`] for bounds by statistic, each `{min, max, of, only, merge}`.
fn are_bounds_no_stricter(bounds: &Map<String, Value>, others: &Map<String, Value>) -> bool {
    bounds.iter().all(|(statistic, own)| {
        let Some(other) = others.get(statistic) else { return false };
        let number = |bound: &Value, key: &str| bound[key].as_f64();
        let within = |key: &str, reaches: fn(f64, f64) -> bool| match number(own, key) {
            None => true,
            Some(own) => number(other, key).is_some_and(|other| reaches(own, other)),
        };
        let before = match (own["only"].as_object(), other["only"].as_object()) {
            (Some(own), Some(other)) => are_bounds_no_stricter(own, other),
            (own, other) => own == other,
        };
        before
            && ["of", "merge"].iter().all(|key| own[*key] == other[*key])
            && within("min", |own, other| own <= other)
            && within("max", |own, other| own >= other)
    })
}

/// Lists the differences between two sets of settings: `window_tokens: 4096, was 2048`.
pub fn differences(now: &Map<String, Value>, before: &Map<String, Value>) -> Vec<String> {
    let gone = before.keys().filter(|key| !now.contains_key(*key));
    now.keys()
        .chain(gone)
        .filter(|key| now.get(*key) != before.get(*key))
        .map(|key| {
            let missing = if key.starts_with("file ") { "not found" } else { "not set" };
            let show =
                |settings: &Map<String, Value>| settings.get(key).map_or(missing.to_owned(), short);
            format!("{key}: {}, was {}", show(now), show(before))
        })
        .collect()
}

/// Formats a value on one line; shortens a digest.
fn short(value: &Value) -> String {
    match value {
        Value::String(text)
            if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            format!("{}…", &text[..12])
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_name_the_setting_and_both_values() {
        let before =
            Facts::new(json!({ "window_tokens": 2048, "mask": "causal", "model": "a".repeat(64) }));
        let now =
            Facts::new(json!({ "window_tokens": 4096, "mask": "causal", "model": "b".repeat(64) }));
        assert_eq!(
            now.differences(&before),
            ["model: bbbbbbbbbbbb…, was aaaaaaaaaaaa…", "window_tokens: 4096, was 2048"]
        );
        assert!(now.differences(&now).is_empty());
        let with_program = Facts::new(json!({ "file m.py": "c".repeat(64) }));
        let without = Facts::new(json!({}));
        assert_eq!(without.differences(&with_program), ["file m.py: not found, was cccccccccccc…"]);
        assert_ne!(now.fingerprint(), before.fingerprint());
        assert_eq!(now.without(&["model", "window_tokens"]), before.only(&["mask"]));
    }

    #[test]
    fn looser_bounds_accept_everything_that_stricter_ones_accept() {
        let only = |copied: Option<f64>, unique: f64, merge: Option<&str>| {
            let first = copied.map_or_else(
                || json!({}),
                |max| json!({ "copy_share": { "min": null, "max": max, "of": "r", "only": {}, "merge": merge } }),
            );
            Facts::new(json!({
                "unique_token_share": { "min": unique, "max": null, "of": "l", "only": first, "merge": merge }
            }))
        };
        let loose = only(Some(0.5), 0.2, None);
        for (stricter, passes) in [
            (only(Some(0.5), 0.2, None), true),
            (only(Some(0.4), 0.2, None), true),
            (only(Some(0.5), 0.3, None), true),
            (only(Some(0.6), 0.3, None), false),
            (only(Some(0.4), 0.1, None), false),
            (only(None, 0.2, None), false),
            (only(Some(0.5), 0.2, Some("mean")), false),
        ] {
            assert_eq!(loose.is_no_stricter_than(&stricter), passes, "{stricter:?}");
        }
        assert!(
            only(None, 0.2, None).is_no_stricter_than(&loose),
            "fewer bounds accept more windows"
        );
        assert!(
            Facts::default().is_no_stricter_than(&loose)
                && !loose.is_no_stricter_than(&Facts::default())
        );
    }

    #[test]
    fn added_and_removed_measures_are_listed_once() {
        let mut one = Identity::default();
        let other = one.clone();
        one.measures.insert("recurrence".to_owned(), MeasureFacts::default());
        assert_eq!(one.differences(&other), ["recurrence: measured, was not measured"]);
        assert_eq!(other.differences(&one), ["recurrence: not measured, was measured"]);
        assert_eq!(one.differences_of_scores(&other), [""; 0]);
    }
}
