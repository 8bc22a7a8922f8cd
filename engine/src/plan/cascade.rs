//! Guards that are checked before a measure: which windows skip the measure, and the order of measures.

use longsift_stages::Reads;
use longsift_stages::contract::{Column, Merge};
use longsift_stages::filter::guards::{Bounds, Guard, Verdict};
use longsift_stages::score::DocumentScore;
use serde_json::{Map, Value, json};

use super::findings::Findings;
use super::measures::Measures;
use crate::run_directory::facts::Facts;
use crate::spec::Spec;
use crate::spec::pipeline::Samples;

#[derive(Clone, Debug)]
pub struct PrecedingGuard {
    /// Index among the guards of the filter.
    pub guard: usize,
    pub reads: u16,
    /// Index of the statistic among the columns of that measure.
    pub column: usize,
    statistic: String,
    bounds: Bounds,
    /// Aggregation of window values to a document's value; `None` if the guard checks windows.
    merge: Option<Merge>,
}

impl PrecedingGuard {
    /// Whether a sample with these window values is rejected. A sample without a value is dropped later.
    fn rejects(&self, windows: &[f64]) -> bool {
        let value = match &self.merge {
            Some(merge) => merge.merge_windows(windows),
            None => windows.first().copied().unwrap_or(f64::NAN),
        };
        self.bounds.judge(value) == Verdict::Refused
    }
}

#[derive(Clone, Debug, Default)]
pub struct Cascade {
    /// Guards by index of the measure that they precede.
    before: Vec<Vec<PrecedingGuard>>,
    /// Samples that guards check.
    pub samples: Samples,
    /// Measures that need no device and that device measures wait for, in rounds: a round begins after the previous one.
    pub first: Vec<Vec<u16>>,
    /// Rounds of the other measures that need no device.
    pub rest: Vec<Vec<u16>>,
}

impl Cascade {
    pub fn new(spec: &Spec, measures: &Measures) -> Self {
        let mut before: Vec<Vec<PrecedingGuard>> = vec![Vec::new(); measures.columns.len()];
        for (index, guard) in spec.filter().guards.iter().enumerate() {
            if let Some((measure, guard)) = guard_before(spec, measures, index, guard) {
                before[usize::from(measure)].push(guard);
            }
        }
        let samples = spec.pipeline.output.samples;
        let mut cascade = Self { before, samples, first: Vec::new(), rest: Vec::new() };
        let stages = &spec.pipeline.stages;
        let needs_device =
            |measure: &u16| measures.get(stages, *measure).needs().attention().is_some();
        let (on_devices, here): (Vec<u16>, Vec<u16>) = measures.indices().partition(needs_device);
        let awaited = cascade.with_preceding(on_devices);
        let (first, rest) = here.into_iter().partition(|measure| awaited.contains(measure));
        (cascade.first, cascade.rest) = (cascade.rounds(first), cascade.rounds(rest));
        cascade
    }

    pub fn before(&self, measure: u16) -> &[PrecedingGuard] {
        self.before.get(usize::from(measure)).map_or(&[], Vec::as_slice)
    }

    /// Whether a sample skips a measure: a guard before it rejects the sample, or the sample skips the measure that the guard
    /// reads. `values`: values of a guard's statistic, of the windows of the sample that its measure runs on.
    pub fn skips(&self, measure: u16, values: &dyn Fn(&PrecedingGuard) -> Vec<f64>) -> bool {
        self.before(measure)
            .iter()
            .any(|guard| self.skips(guard.reads, values) || guard.rejects(&values(guard)))
    }

    /// Describes the guards before a measure, for example `copy_share at most 0.4`.
    pub fn in_words(&self, measure: u16) -> Option<String> {
        let bound = |guard: &PrecedingGuard| {
            let low = guard.bounds.low.map(|low| format!("at least {low}"));
            let high = guard.bounds.high.map(|high| format!("at most {high}"));
            let both: Vec<String> = low.into_iter().chain(high).collect();
            format!("{} {}", guard.statistic, both.join(" and "))
        };
        let guards: Vec<String> = self.before(measure).iter().map(bound).collect();
        (!guards.is_empty()).then(|| guards.join(" and "))
    }

    /// Returns the conditions under which windows have statistics of a measure; empty without guards. `fingerprint`:
    /// returns the identity of the statistics of the measure at an index.
    pub fn conditions(&self, measure: u16, fingerprint: &dyn Fn(u16) -> String) -> Facts {
        let mut only = Map::new();
        for guard in self.before(measure) {
            let PrecedingGuard { guard: _, reads, column: _, statistic, bounds, merge } = guard;
            let merge = merge.as_ref().map(|merge| format!("{merge:?}").to_lowercase());
            let bounds = match only.get(statistic) {
                Some(Value::Object(other)) => stricter(*bounds, other),
                _ => *bounds,
            };
            let facts = json!({
                "min": bounds.low,
                "max": bounds.high,
                "of": fingerprint(*reads),
                "only": self.conditions(*reads, fingerprint),
                "merge": merge,
            });
            only.insert(statistic.clone(), facts);
        }
        Facts::new(only.into())
    }

    /// Returns `measures`, then the measures that guards before any of them read, directly or not.
    fn with_preceding(&self, mut measures: Vec<u16>) -> Vec<u16> {
        let mut next = 0;
        while let Some(measure) = measures.get(next) {
            for guard in self.before(*measure) {
                if !measures.contains(&guard.reads) {
                    measures.push(guard.reads);
                }
            }
            next += 1;
        }
        measures
    }

    /// Groups measures into rounds that depend only on earlier rounds or on devices.
    fn rounds(&self, mut left: Vec<u16>) -> Vec<Vec<u16>> {
        let mut rounds = Vec::new();
        while !left.is_empty() {
            let waits = |measure: &u16| {
                self.before(*measure).iter().any(|guard| left.contains(&guard.reads))
            };
            let (later, now): (Vec<u16>, Vec<u16>) =
                left.iter().partition(|measure| waits(measure));
            // The plan rejects cycles.
            if now.is_empty() {
                return rounds;
            }
            rounds.push(now);
            left = later;
        }
        rounds
    }

    /// Returns the index of the first guard of a cycle: a measure that would precede itself.
    fn cycle(&self) -> Option<usize> {
        (0..self.before.len() as u16).find_map(|measure| {
            let all = self.with_preceding(vec![measure]);
            let mut guards = all.iter().flat_map(|preceding| self.before(*preceding));
            guards.find(|guard| guard.reads == measure).map(|guard| guard.guard)
        })
    }
}

/// Combines two bounds of one statistic to the stricter ones.
fn stricter(bounds: Bounds, other: &Map<String, Value>) -> Bounds {
    let (low, high) = (other["min"].as_f64(), other["max"].as_f64());
    Bounds {
        low: bounds.low.into_iter().chain(low).max_by(f64::total_cmp),
        high: bounds.high.into_iter().chain(high).min_by(f64::total_cmp),
    }
}

/// Returns the measure that a guard precedes, if both its measure and its statistic are in the pipeline.
fn guard_before(
    spec: &Spec,
    measures: &Measures,
    index: usize,
    guard: &Guard,
) -> Option<(u16, PrecedingGuard)> {
    let name = guard.before.as_ref()?;
    let measure = measures.columns.iter().position(|measure| measure.measure == *name)?;
    let (reads, column) = measures.index_of(&guard.statistic)?;
    let declared = &measures.columns[usize::from(reads)].columns[column];
    let before = PrecedingGuard {
        guard: index,
        reads,
        column,
        statistic: guard.statistic.clone(),
        bounds: guard.bounds(None, None),
        merge: (spec.pipeline.output.samples == Samples::Documents)
            .then(|| document_merge(declared, spec.score().document_score)),
    };
    Some((measure as u16, before))
}

/// Returns the aggregation of a statistic from windows to documents.
pub fn document_merge(column: &Column, document_score: Option<DocumentScore>) -> Merge {
    match document_score {
        Some(DocumentScore::Mean) => Merge::Mean,
        Some(DocumentScore::Max) => Merge::Max,
        None => column.merge.clone(),
    }
}

/// Reports guards before measures that read a measure of a device or a whole model, and cycles of measures.
pub(super) fn check(measures: &Measures, cascade: &Cascade, found: &mut Findings<'_>) {
    let stages = &found.spec.pipeline.stages;
    for (guards, measure) in cascade.before.iter().zip(measures.indices()) {
        for guard in guards {
            let path = format!("stages.filter.guards.{}.before", guard.guard);
            if measures.get(stages, measure).needs().answers() == Some(Reads::Document) {
                let message = "`before` cannot name a stage that reads documents, because guards check windows";
                found.error(&path, message, "remove `before`");
            }
            let needs = measures.get(stages, guard.reads).needs();
            let reason = match (needs.attention(), needs.forward()) {
                (Some(_), _) => "is measured on devices",
                (None, Some(_)) => "is measured by a whole model",
                (None, None) => continue,
            };
            let message = format!(
                "`before` is not possible for a guard on `{}`, which {reason}",
                guard.statistic
            );
            let hint = "remove `before`: the guard is then checked after all measures";
            found.error(&path, message, hint);
        }
    }
    if let Some(guard) = cascade.cycle() {
        let path = format!("stages.filter.guards.{guard}.before");
        let message = "the guards form a cycle: a measure would have to precede itself";
        found.error(&path, message, "remove one `before` of the cycle");
    }
}
