//! Counts of the samples that each guard rejects, and the groups that lose more than half of theirs to it.

use super::criteria::Criteria;
use super::rank::Totals;
use crate::run_directory::summary::{GuardUse, GuardedGroup};

/// Groups listed for each guard: those that lose the most samples.
const MAX_GROUPS: usize = 100;

pub(super) struct GuardCounts(Vec<GuardUse>);

impl GuardCounts {
    pub(super) fn new(criteria: &Criteria) -> Self {
        let guards = criteria.guards.iter().enumerate().map(|(index, (guard, _))| GuardUse {
            setting: format!("stages.filter.guards.{index}"),
            statistic: guard.statistic.clone(),
            bounds: guard.in_words(),
            rejected: 0,
            missing: 0,
            samples: 0,
            groups: Vec::new(),
            groups_left_out: 0,
        });
        Self(guards.collect())
    }

    /// Adds the totals of a group with this value of the `within` column.
    pub(super) fn add(&mut self, value: Option<&String>, samples: u64, totals: &Totals) {
        let counts = totals.rejected.iter().copied().zip(totals.missing.iter().copied());
        for (guard, (rejected, missing)) in self.0.iter_mut().zip(counts) {
            guard.rejected += rejected;
            guard.missing += missing;
            guard.samples += samples;
            if 2 * (rejected + missing) > samples {
                let value = value.cloned();
                guard.groups.push(GuardedGroup { value, rejected, missing, samples });
                if guard.groups.len() >= 2 * MAX_GROUPS {
                    cut(guard);
                }
            }
        }
    }

    pub(super) fn finish(mut self) -> Vec<GuardUse> {
        self.0.iter_mut().for_each(cut);
        self.0
    }
}

/// Keeps the groups with the most samples that do not pass a guard.
fn cut(guard: &mut GuardUse) {
    guard.groups.sort_by_key(|group| std::cmp::Reverse(group.rejected + group.missing));
    guard.groups_left_out += guard.groups.len().saturating_sub(MAX_GROUPS) as u64;
    guard.groups.truncate(MAX_GROUPS);
}
