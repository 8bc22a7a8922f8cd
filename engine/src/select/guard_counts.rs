//! Counts of the samples that each guard rejects, and the groups that lose more than half of theirs to it.

use std::cmp::Reverse;

use super::criteria::Criteria;
use super::rank::Totals;
use crate::run_directory::summary::{GuardUse, GuardedGroup};

/// Groups listed for each guard: those that lose the most samples.
const MAX_GROUPS: usize = 100;

/// Counts the samples that each guard rejects. `groups`: value of the `within` column, samples and totals of each group.
pub(super) fn count<'t>(
    criteria: &Criteria,
    groups: &(impl Iterator<Item = (&'t Option<String>, u64, &'t Totals)> + Clone),
) -> Vec<GuardUse> {
    let guards = criteria.guards.iter().enumerate().map(|(index, (guard, _))| {
        let (mut rejected, mut missing, mut all, mut most) = (0, 0, 0, Vec::new());
        for (value, samples, totals) in groups.clone() {
            let own = (totals.rejected[index], totals.missing[index]);
            (rejected, missing, all) = (rejected + own.0, missing + own.1, all + samples);
            if 2 * (own.0 + own.1) > samples {
                let (value, rejected, missing) = (value.clone(), own.0, own.1);
                most.push(GuardedGroup { value, rejected, missing, samples });
            }
        }
        most.sort_by_key(|group| Reverse(group.rejected + group.missing));
        let groups_left_out = most.len().saturating_sub(MAX_GROUPS) as u64;
        most.truncate(MAX_GROUPS);
        GuardUse {
            setting: format!("stages.filter.guards.{index}"),
            statistic: guard.statistic.clone(),
            bounds: guard.in_words(),
            rejected,
            missing,
            samples: all,
            groups: most,
            groups_left_out,
        }
    });
    guards.collect()
}
