//! Settings of the filter, and the selection within a group.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budgets::{self, Budget};
use super::guards::Guard;
use super::{KeepTokens, ranked};
use crate::contract::{BrokenRule, Column, Decimal, Kind};
use crate::measures::statistics;

/// Keeps the best samples that pass all `guards`, by exactly one of `keep_fraction`, `keep_tokens`, `budgets` and
/// `min_score`. The ranking is stable: equal scores keep their input order. Output is in input order. With
/// `score.calibration`, the stored threshold and guards decide instead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Bounds on statistics, applied before the ranking. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Guard>,
    /// Share of samples to keep, 0 to 1, rounded down to whole samples, within each group. The denominator includes
    /// samples that a guard rejects and those that a `sample_fraction` left unmeasured, but none that lack a statistic of
    /// the score or a guard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub keep_fraction: Option<Decimal>,
    /// Token budget of the output, without added BOS tokens: samples are kept in rank order until the next would exceed
    /// it. One number for every group, or a map from group to number (groups that it does not name keep nothing).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_tokens: Option<KeepTokens>,
    /// Token budgets by group and length: the first entry that matches a sample's group and length applies. A sample
    /// without a match is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub budgets: Option<Vec<Budget>>,
    /// Minimum score of a kept sample, any finite number: z-scores are around 0, min-max scores between -alpha and 1,
    /// percentiles between 0 and 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f64>,
    /// Treatment of samples without a score because a measure with a `sample_fraction` skipped them: `drop` (default,
    /// since their quality is unknown) counts them as `not_measured`; `keep` keeps them in addition to the fraction or
    /// budget and counts them separately. Samples that a guard rejects are never kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<NotMeasured>,
    /// Whether to write all samples, with the columns `longsift_kept` and `longsift_reason`, instead of the kept ones
    /// only: to inspect a filter, or for a trainer that decides later. An input row without a sample is written once,
    /// whole. Counts, lists of dropped rows and calibrations do not change. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mark_only: bool,
}

/// Treatment of samples that a measure skipped because of sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NotMeasured {
    /// Drops them.
    #[default]
    Drop,
    /// Keeps them.
    Keep,
}

impl Filter {
    /// Returns whether samples that were not measured, because of sampling, are kept.
    pub fn keeps_not_measured(&self) -> bool {
        self.not_measured == Some(NotMeasured::Keep)
    }

    /// Selects samples of one group by the setting that is present; keeps all that pass the guards if none is.
    ///
    /// `scores`, `passes` (all guards), `tokens` (charged to a budget): `[samples]`, in input order. `group` is the
    /// value of the `within` column, `None` for a null and without one. Samples with a `NaN` score are never kept and
    /// do not count towards the fraction; those that fail a guard are never kept, but count. Cost: one sort.
    pub fn keep(
        &self,
        scores: &[f64],
        passes: &[bool],
        tokens: &[u64],
        group: Option<&str>,
    ) -> Vec<bool> {
        let ranking = ranked(scores);
        let scored = ranking.len() as u64;
        let mut kept: Vec<usize> = ranking.into_iter().filter(|&sample| passes[sample]).collect();
        if let Some(min_score) = self.min_score {
            kept.retain(|&sample| scores[sample] >= min_score);
        } else if let Some(fraction) = self.keep_fraction {
            kept.truncate(usize::try_from(fraction.floor_of(scored)).unwrap_or(usize::MAX));
        } else if let Some(budget) = &self.keep_tokens {
            let (budget, mut spent) = (budget.for_group(group), 0u64);
            kept.retain(|&sample| {
                spent = spent.saturating_add(tokens[sample]);
                spent <= budget
            });
        } else if let Some(budgets) = &self.budgets {
            let mut left: Vec<_> = budgets.iter().map(|budget| Some(budget.keep_tokens)).collect();
            kept.retain(|&sample| {
                let index = budgets::matching(budgets, group, tokens[sample]);
                index.is_some_and(|index| charge(&mut left[index], tokens[sample]))
            });
        }
        let mut keep = vec![false; scores.len()];
        for sample in kept {
            keep[sample] = true;
        }
        keep
    }

    /// Returns the groups named in budgets, sorted; once per budget.
    pub fn named_groups(&self) -> Vec<&str> {
        let of_map = match &self.keep_tokens {
            Some(KeepTokens::PerGroup(budgets)) => budgets.keys().map(String::as_str).collect(),
            Some(KeepTokens::Same(_)) | None => Vec::new(),
        };
        let of_list = self.budgets.iter().flatten().filter_map(|budget| budget.group.as_deref());
        let mut groups: Vec<&str> = of_map.into_iter().chain(of_list).collect();
        groups.sort_unstable();
        groups
    }

    /// Returns every constraint that the settings violate among themselves. `has_groups`: whether the score has a
    /// `within` column. `measures`: those of the pipeline, in its order, with their columns.
    pub fn broken_rules(
        &self,
        has_groups: bool,
        measures: &[(&str, Vec<Column>)],
    ) -> Vec<BrokenRule> {
        let columns: Vec<Column> =
            measures.iter().flat_map(|(_, columns)| columns.clone()).collect();
        let mut broken = Vec::new();
        for (index, guard) in self.guards.iter().enumerate() {
            let setting = format!("guards.{index}");
            let statistic = format!("{setting}.statistic");
            broken.extend(statistics::scalar(&statistic, &guard.statistic, &columns).err());
            broken.extend(guard.broken_rules(&setting));
            broken.extend(before_another_measure(&setting, guard, measures));
            broken.extend(excluded(&setting, guard, &self.guards[..index]));
        }
        broken
            .extend(budgets::broken_rules(self.budgets.as_deref().unwrap_or_default(), has_groups));
        broken
    }
}

/// Subtracts the tokens of a sample from a budget; if they exceed it, no later sample fits, and the result is `false`.
fn charge(left: &mut Option<u64>, tokens: u64) -> bool {
    *left = left.and_then(|left| left.checked_sub(tokens));
    left.is_some()
}

/// Reports a guard that no value can pass together with the guards before it.
fn excluded(setting: &str, guard: &Guard, others: &[Guard]) -> Option<BrokenRule> {
    let above =
        |low: Option<f64>, high: Option<f64>| low.zip(high).filter(|(low, high)| low > high);
    let same = others.iter().enumerate().filter(|(_, other)| other.statistic == guard.statistic);
    let mut excluding = same.filter_map(|(index, other)| {
        let own_min = above(guard.min, other.max).map(|bounds| ("min", bounds));
        let of_max = || above(other.min, guard.max).map(|bounds| ("max", bounds));
        Some((index, own_min.or_else(of_max)?))
    });
    let (index, (end, (low, high))) = excluding.next()?;
    let message = format!(
        "this guard and `guards.{index}` reject every `{}`: together they require at least {low} and at most {high}",
        guard.statistic
    );
    let hint = "write one guard with both bounds, or remove one of the two";
    Some(BrokenRule::new(format!("{setting}.{end}"), message, hint))
}

/// Reports a guard whose `before` does not name another measure of the pipeline than the one it reads.
fn before_another_measure(
    setting: &str,
    guard: &Guard,
    measures: &[(&str, Vec<Column>)],
) -> Option<BrokenRule> {
    let before = guard.before.as_deref()?;
    let setting = format!("{setting}.before");
    let Some((_, computed)) = measures.iter().find(|(name, _)| *name == before) else {
        let names: Vec<_> = measures.iter().map(|(name, _)| format!("`{name}`")).collect();
        let message = format!("the pipeline has no measure `{before}`");
        let known = format!("the pipeline has {}", names.join(", "));
        let hint = match statistics::nearest(before, measures.iter().map(|(name, _)| *name)) {
            Some(meant) => format!("did you mean `{meant}`? {known}"),
            None => known,
        };
        return Some(BrokenRule::new(setting, message, hint));
    };
    let own = |column: &Column| column.kind != Kind::Numbers && column.name == guard.statistic;
    computed.iter().any(own).then(|| {
        let message = format!(
            "`{}` is computed by `{before}` itself, so the guard cannot run before it",
            guard.statistic
        );
        BrokenRule::new(setting, message, "name another measure, or remove `before`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Measure;
    use crate::first_layer_attention::FirstLayerAttention;
    use crate::measures::Recurrence;

    fn settings(text: &str) -> Filter {
        serde_json::from_str(text).unwrap()
    }

    fn kept(text: &str, scores: &[f64], passes: &[bool]) -> Vec<bool> {
        settings(text).keep(scores, passes, &vec![10; scores.len()], None)
    }

    #[test]
    fn a_fraction_counts_all_samples_with_a_score() {
        let scores = [9.0, 8.0, 7.0, 6.0, f64::NAN];
        let passes = [false, true, false, true, true];
        let got = kept(r#"{"keep_fraction": 0.25}"#, &scores, &passes);
        assert_eq!(got, [false, true, false, false, false]);
        let all = kept(r#"{"keep_fraction": 1}"#, &scores, &passes);
        assert_eq!(all, [false, true, false, true, false]);
    }

    #[test]
    fn rejected_samples_do_not_use_a_budget() {
        let scores = [9.0, 8.0, 7.0];
        for amount in [
            r#"{"keep_tokens": 10}"#,
            r#"{"budgets": [{"keep_tokens": 10}]}"#,
            r#"{"min_score": 7.5}"#,
        ] {
            let got = kept(amount, &scores, &[false, true, true]);
            assert_eq!(got, [false, true, false], "{amount}");
        }
    }

    #[test]
    fn without_an_amount_all_passing_samples_are_kept() {
        assert_eq!(kept("{}", &[1.0, f64::NAN, 2.0], &[true, true, false]), [true, false, false]);
    }

    #[test]
    fn every_mistake_of_a_filter_is_located() {
        let measures = [
            ("recurrence", Recurrence::default().columns()),
            ("first-layer-attention", FirstLayerAttention::default().columns()),
        ];
        let broken = |text: &str| {
            let rules = settings(text).broken_rules(false, &measures);
            rules.into_iter().map(|rule| (rule.setting, rule.message)).collect::<Vec<_>>()
        };
        let guards = |guards: &str| broken(&format!(r#"{{"guards": [{guards}]}}"#));
        assert_eq!(
            guards(r#"{"statistic": "copy_share", "max": 0.4, "before": "first-layer-attention"}"#),
            []
        );
        let named = |setting: &str, message: &str| (setting.to_owned(), message.to_owned());
        assert_eq!(
            guards(
                r#"{"statistic": "copy_shares", "min": 1, "max": 0.4},
                   {"statistic": "copy_share", "max": 0.4, "before": "first_layer_attention"},
                   {"statistic": "copy_share", "max": 0.4, "before": "recurrence"}"#
            ),
            [
                named(
                    "guards.0.statistic",
                    "no measure of the pipeline computes the statistic `copy_shares`"
                ),
                named("guards.0.min", "`min` 1 exceeds `max` 0.4: nothing passes"),
                named("guards.1.before", "the pipeline has no measure `first_layer_attention`"),
                named(
                    "guards.2.before",
                    "`copy_share` is computed by `recurrence` itself, so the guard cannot run before it"
                ),
            ]
        );
        assert_eq!(
            guards(
                r#"{"statistic": "copy_share", "min": 0.1, "max": 0.4},
                   {"statistic": "far_recurrence", "max": 0.05}, {"statistic": "copy_share", "min": 0.4},
                   {"statistic": "copy_share", "min": 0.5}, {"statistic": "copy_share", "max": 0.3}"#
            ),
            [
                named(
                    "guards.3.min",
                    "this guard and `guards.0` reject every `copy_share`: together they require at least 0.5 and at most 0.4"
                ),
                named(
                    "guards.4.max",
                    "this guard and `guards.2` reject every `copy_share`: together they require at least 0.4 and at most 0.3"
                ),
            ]
        );
        assert_eq!(
            broken(r#"{"budgets": [{"group": "books", "keep_tokens": 1}]}"#),
            [named(
                "budgets.0.group",
                "this budget names group `books`, but the score has no groups"
            )]
        );
    }
}
