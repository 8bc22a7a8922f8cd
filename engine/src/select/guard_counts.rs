//! How many samples each guard rejects, and of which groups it rejects more than half.

use super::criteria::Criteria;
use crate::run_directory::summary::{GuardUse, GuardedGroup};

/// Groups that are named of each guard: those of which it rejects most.
const MAX_GROUPS: usize = 100;

/// Counts of the guards, while groups are decided of.
pub(super) struct GuardCounts(Vec<GuardUse>);

impl GuardCounts {
    pub(super) fn new(criteria: &Criteria) -> Self {
        let guards = criteria.guards.iter().enumerate().map(|(index, (guard, _))| GuardUse {
            setting: format!("stages.filter.guards.{index}"),
            statistic: guard.statistic.clone(),
            bounds: guard.in_words(),
            rejected: 0,
            samples: 0,
            groups: Vec::new(),
            groups_left_out: 0,
        });
        Self(guards.collect())
    }

    /// Adds a group with so many samples, of which each guard rejects so many.
    pub(super) fn add(&mut self, value: Option<&String>, samples: u64, rejected: &[u64]) {
        for (guard, rejected) in self.0.iter_mut().zip(rejected.iter().copied()) {
            guard.rejected += rejected;
            guard.samples += samples;
            if 2 * rejected > samples {
                guard.groups.push(GuardedGroup { value: value.cloned(), rejected, samples });
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

/// Leaves the groups of which a guard rejects most.
fn cut(guard: &mut GuardUse) {
    guard.groups.sort_by_key(|group| std::cmp::Reverse(group.rejected));
    guard.groups_left_out += guard.groups.len().saturating_sub(MAX_GROUPS) as u64;
    guard.groups.truncate(MAX_GROUPS);
}
