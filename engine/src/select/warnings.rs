//! Warnings about a selection. Each lists groups instead of being repeated for each group.

use longsift_stages::Filter;
use longsift_stages::score::Score;
use longsift_stages::score::presets::Formula;
use longsift_stages::score::settings::RelativeError;
use longsift_stages::score::terms::Term;

use super::criteria::Criteria;
use super::drift;
use super::gather::GatheredSamples;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text::{count, counted, quoted_group};
use crate::plan::Plan;
use crate::run_directory::calibration::GroupDrift;
use crate::run_directory::summary::GuardUse;
use crate::run_directory::units::UnitRecord;

const MAX_LISTED: usize = 10;

/// Lists the first names and the number of the others.
pub(super) fn listed(mut things: Vec<String>) -> String {
    let more = things.len().saturating_sub(MAX_LISTED);
    things.truncate(MAX_LISTED);
    let named = things.join(", ");
    if more > 0 { format!("{named} and {} more", count(more as u64)) } else { named }
}

/// Warnings about the samples, before anything is selected.
pub(super) fn sample_warnings(gathered: &GatheredSamples) -> Vec<Diagnostic> {
    let warning = |message: String, hint: &str| {
        Diagnostic::warning(Blame::Pipeline, message).hint(hint.to_owned())
    };
    let mut warnings = Vec::new();
    if let Some(different) = different_lengths(gathered) {
        warnings.push(warning(
            format!("{different}: scores of different lengths are not comparable"),
            "use `windows: disjoint` or `both-ends` with `short_documents: drop`, or `score.within` a length class",
        ));
    }
    if gathered.totals.overlapping > 0 {
        let share = 100.0 * gathered.totals.overlapping as f64 / gathered.totals.windows as f64;
        warnings.push(warning(
            format!(
                "{} of {} windows ({share:.1} %) overlap the window before them, because of `windows: both-ends`",
                gathered.totals.overlapping, gathered.totals.windows
            ),
            "use `windows: disjoint` if no training token may occur twice",
        ));
    }
    let repeated = gathered.repeated_ids.count;
    if repeated > 0 {
        warnings.push(warning(
            format!(
                "{} more than once: `longsift_sample_id` gets the file and the row",
                if repeated == 1 {
                    "1 id occurs".to_owned()
                } else {
                    format!("{} ids occur", count(repeated))
                }
            ),
            "a unique `input.id_column` makes sample ids shorter and joins safe",
        ));
    }
    warnings
}

/// Warnings about random scores: documents that share an id, and documents without one.
pub(super) fn random_score_warnings(plan: &Plan, gathered: &GatheredSamples) -> Vec<Diagnostic> {
    let is_drawn = plan.spec.score().random_seed().is_some()
        || plan.spec.pipeline.output.compare.contains(&Formula::Random);
    let mut warnings = Vec::new();
    let mut warn = |message: String| {
        let hint = "give every document a unique id (`input.id_column`)";
        warnings.push(Diagnostic::warning(Blame::Data, message).hint(hint));
    };
    let (documents, ids) = (gathered.repeated_ids.documents, gathered.repeated_ids.count);
    if is_drawn && documents > 0 {
        let ids = counted(ids, "id");
        warn(format!(
            "{} documents share {ids}, and so their random scores: they are kept or left out together",
            count(documents)
        ));
    }
    let without = gathered.totals.without_id;
    if let (true, Some(column)) = (is_drawn && without > 0, &plan.spec.pipeline.input.id_column) {
        let documents = if without == 1 { "document has" } else { "documents have" };
        warn(format!(
            "{} {documents} no id in `{column}`: their random scores follow from file and row, and change when files do",
            count(without)
        ));
    }
    warnings
}

/// Describes groups that have windows of different lengths.
fn different_lengths(gathered: &GatheredSamples) -> Option<String> {
    let lengths = gathered.groups.iter().map(|(value, group)| {
        let (shortest, longest) = gathered.group_totals[*group as usize].lengths;
        (value, shortest, longest)
    });
    let different: Vec<_> = lengths.filter(|(_, shortest, longest)| shortest != longest).collect();
    match &different[..] {
        [] => None,
        [(_, shortest, longest)] if gathered.is_one_group() => {
            Some(format!("the input has windows of {shortest} to {longest} tokens"))
        }
        [(value, shortest, longest)] => {
            let group = quoted_group(value.as_deref());
            Some(format!("group {group} has windows of {shortest} to {longest} tokens"))
        }
        several => {
            let group = |(value, shortest, longest): &(&Option<String>, u64, u64)| {
                format!("{} ({shortest} to {longest})", quoted_group(value.as_deref()))
            };
            let groups = count(several.len() as u64);
            let named = listed(several.iter().map(group).collect());
            Some(format!("{groups} groups have windows of different numbers of tokens: {named}"))
        }
    }
}

/// Warns if the filter names groups without samples.
pub(super) fn absent_group_warning(
    filter: &Filter,
    gathered: &GatheredSamples,
) -> Option<Diagnostic> {
    let mut absent: Vec<String> = filter
        .named_groups()
        .into_iter()
        .filter(|group| !gathered.groups.contains_key(&Some((*group).to_owned())))
        .map(|group| quoted_group(Some(group)))
        .collect();
    absent.dedup();
    if absent.is_empty() {
        return None;
    }
    let groups = gathered.groups.keys().map(|group| quoted_group(group.as_deref())).collect();
    let message = format!("the filter names {}, but no sample has this group", listed(absent));
    let hint = format!("the groups of this input are {}", listed(groups));
    Some(Diagnostic::warning(Blame::Pipeline, message).hint(hint))
}

/// Warns about groups in which fewer samples have a score and pass the guards than `keep_fraction` asks for. `groups`: name,
/// number of kept samples, and number of samples that the fraction refers to. A fraction of 1 means everything that passes.
pub(super) fn unfilled_fraction_warning<'a>(
    plan: &Plan,
    groups: impl Iterator<Item = (&'a Option<String>, u64, u64)>,
) -> Option<Diagnostic> {
    let fraction = plan.spec.filter().keep_fraction.filter(|fraction| fraction.0 < 1.0)?;
    let is_grouped = plan.spec.score().within.is_some();
    let unfilled = groups.filter_map(|(group, kept, counted)| {
        let wanted = fraction.floor_of(counted);
        let of_group = if is_grouped {
            format!(" of group {}", quoted_group(group.as_deref()))
        } else {
            String::new()
        };
        (0 < kept && kept < wanted)
            .then(|| format!("{} of {}{of_group}", count(kept), count(wanted)))
    });
    let unfilled: Vec<String> = unfilled.collect();
    if unfilled.is_empty() {
        return None;
    }
    let message = format!(
        "fewer {} were kept than `keep_fraction` asks for, because no more have a score and pass the guards: {}",
        plan.spec.pipeline.output.samples.name(),
        listed(unfilled)
    );
    let hint = "the fraction is of all samples, also of those that were rejected or not measured: relax a guard, or measure more windows";
    let setting = "stages.filter.keep_fraction";
    Some(plan.spec.warning(setting, message).hint(hint))
}

pub(super) fn empty_group_warning(
    gathered: &GatheredSamples,
    empty: Vec<String>,
    records: &[UnitRecord],
) -> Option<Diagnostic> {
    let has_rows = || records.iter().any(|record| record.counts.rows > 0);
    let message = if gathered.groups.is_empty() && has_rows() {
        "nothing was kept: no row of the input has a sample".to_owned()
    } else if empty.is_empty() {
        return None;
    } else if gathered.is_one_group() {
        "nothing was kept".to_owned()
    } else {
        format!("nothing was kept of group {}", listed(empty))
    };
    Some(Diagnostic::warning(Blame::Pipeline, message))
}

/// Warns about each guard that rejects more than half of all samples or of those of a group.
pub(super) fn guard_warnings(plan: &Plan, guards: &[GuardUse]) -> Vec<Diagnostic> {
    let samples = plan.spec.pipeline.output.samples.name();
    let warning = |guard: &GuardUse| {
        let message = format!("the guard {}", guard.in_words(samples));
        let hint = format!(
            "to keep this text, change its bound or remove `{}`; `longsift report` shows rejected {samples}",
            guard.setting
        );
        plan.spec.warning(&guard.setting, message).hint(hint)
    };
    guards.iter().filter(|guard| guard.rejects_most()).map(warning).collect()
}

/// Warns about groups without a score in the calibration. `groups`: their values, and the number of samples that pass the
/// guards.
pub(super) fn unscored_groups_warning<'a>(
    plan: &Plan,
    groups: impl Iterator<Item = (&'a Option<String>, u64)>,
) -> Option<Diagnostic> {
    let samples = plan.spec.pipeline.output.samples.name();
    let named: Vec<String> = groups
        .map(|(value, passed)| format!("{} ({})", quoted_group(value.as_deref()), count(passed)))
        .collect();
    if named.is_empty() {
        return None;
    }
    let message = format!(
        "{samples} that pass the guards get no score, because the calibration has no score of their group: {}",
        listed(named)
    );
    let hint = "to keep some of them, calibrate again on a corpus in which samples of every group pass the guards";
    Some(plan.spec.warning("stages.score.calibration", message).hint(hint))
}

/// Warns if scores have moved far from the calibration.
pub(crate) fn drift_warning(drift: &[GroupDrift]) -> Option<Diagnostic> {
    let much = drift.iter().filter(|group| group.count >= 100);
    let much: Vec<(&GroupDrift, f64)> = much
        .filter_map(|group| {
            Some((group, group.stability_index.filter(|&index| index > drift::WARNING_INDEX)?))
        })
        .collect();
    let (first, index) = much.first()?;
    let (scores, index) = match (&first.value, much.len()) {
        (_, 2..) => {
            let group = |(group, index): &(&GroupDrift, f64)| {
                format!("{} ({index:.2})", quoted_group(group.value.as_deref()))
            };
            let named = listed(much.iter().map(group).collect());
            (format!(" of {} groups", count(much.len() as u64)), format!("indices {named}"))
        }
        (Some(value), _) => {
            (format!(" of group {}", quoted_group(Some(value))), format!("index {index:.2}"))
        }
        (None, _) => (String::new(), format!("index {index:.2}")),
    };
    let message = format!(
        "the scores{scores} have moved from the calibration: stability {index}, above the limit of {}",
        drift::WARNING_INDEX
    );
    let hint = "check what has changed in the input; to accept it, calibrate again on a corpus that includes the change";
    Some(Diagnostic::warning(Blame::Data, message).hint(hint))
}

/// Refuses terms that are mostly noise. `errors`: by term.
pub(super) fn check_noise(
    score: &Score,
    criteria: &Criteria,
    errors: &[RelativeError],
) -> Result<()> {
    let max = score.max_relative_error;
    let noisy = |(term, error): (&Term, &RelativeError)| {
        let noise = error.root_mean_square();
        if term.weight == 0.0 || noise <= max {
            return None;
        }
        let message = format!(
            "the {} of sampled rows is off by {:.0} % (root mean square over {} windows), but \
             `score.max_relative_error` allows {:.0} %",
            term.statistic.replace('_', " "),
            100.0 * noise,
            count(error.windows),
            100.0 * max
        );
        let without = if score.terms.is_none() && term.statistic == "far_variance" {
            "set `alpha: 0` to rank by dependency strength alone"
        } else {
            "leave the term out"
        };
        Some(Diagnostic::error(Blame::Pipeline, message).hint(format!(
            "the scores are kept: {without}, or raise `max_relative_error` to accept the noise; more rows or \
             `rows: all` require a new measurement",
        )))
    };
    let problems: Vec<_> = criteria.terms.iter().zip(errors).filter_map(noisy).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.into()) }
}
