//! Token budgets by group and length.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::BrokenRule;

/// A budget of tokens for samples of some groups and lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Value of the `within` column. Default: any group, the null group included; each group then has its own budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Minimum tokens of a sample of this budget. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u64>,
    /// Maximum tokens of a sample of this budget, inclusive. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Budget in tokens: samples are kept in rank order until the next would exceed it.
    pub keep_tokens: u64,
}

impl Budget {
    /// Returns whether both budgets apply to the same samples, regardless of their amounts.
    pub fn has_same_scope(&self, other: &Self) -> bool {
        self.group == other.group && self.lengths() == other.lengths()
    }

    /// Returns the minimum and maximum tokens of a sample of this budget.
    fn lengths(&self) -> (u64, u64) {
        (self.min_tokens.unwrap_or(0), self.max_tokens.unwrap_or(u64::MAX))
    }

    /// Returns whether a sample may belong to both budgets.
    fn overlaps(&self, other: &Self) -> bool {
        let same = self.group.is_none() || other.group.is_none() || self.group == other.group;
        let ((min, max), (other_min, other_max)) = (self.lengths(), other.lengths());
        same && min <= other_max && other_min <= max
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "group `{group}`")?,
            None => f.write_str("any group")?,
        }
        match (self.min_tokens, self.max_tokens) {
            (Some(min), Some(max)) => write!(f, ", {min} to {max} tokens"),
            (Some(min), None) => write!(f, ", {min} tokens or more"),
            (None, Some(max)) => write!(f, ", at most {max} tokens"),
            (None, None) => Ok(()),
        }
    }
}

/// Returns two overlapping budgets if the first takes precedence now, but not in the previous `order`.
pub fn changed_precedence(budgets: &[Budget], order: &[usize]) -> Option<(usize, usize)> {
    let pairs = (0..order.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    let mut changed = pairs.filter(|(first, second)| {
        order[*first] > order[*second] && budgets[*first].overlaps(&budgets[*second])
    });
    changed.next()
}

/// Returns the index of the budget that applies to a sample: the first that matches its group and length.
pub fn matching(budgets: &[Budget], group: Option<&str>, tokens: u64) -> Option<usize> {
    budgets.iter().position(|budget| {
        let (min, max) = budget.lengths();
        budget.group.as_deref().is_none_or(|wanted| group == Some(wanted))
            && (min..=max).contains(&tokens)
    })
}

/// Returns every constraint that `budgets` violate. `has_groups`: whether the score has a `within` column.
pub fn broken_rules(budgets: &[Budget], has_groups: bool) -> Vec<BrokenRule> {
    let mut broken = Vec::new();
    for (index, budget) in budgets.iter().enumerate() {
        let mut refuse = |setting: &str, message: String, hint: &str| {
            broken.push(BrokenRule::new(format!("budgets.{index}.{setting}"), message, hint));
        };
        if let (Some(min), Some(max)) = (budget.min_tokens, budget.max_tokens)
            && min > max
        {
            let message =
                format!("`min_tokens` {min} exceeds `max_tokens` {max}: no sample matches");
            refuse("min_tokens", message, "swap them, or remove one");
        }
        if let Some(group) = &budget.group
            && !has_groups
        {
            refuse(
                "group",
                format!("this budget names group `{group}`, but the score has no groups"),
                "name the column of the groups with `within:` in stage `score`, or remove `group`",
            );
        }
        let hides = |earlier: &Budget| {
            let ((min, max), (own_min, own_max)) = (earlier.lengths(), budget.lengths());
            let reaches = earlier.group.is_none() || earlier.group == budget.group;
            reaches && min <= own_min && max >= own_max
        };
        if let Some(earlier) = budgets[..index].iter().position(hides) {
            refuse(
                "keep_tokens",
                format!(
                    "no sample reaches this budget: budget {} of the list matches all of them first",
                    earlier + 1
                ),
                "the first matching budget applies: move this one before it, or remove it",
            );
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;

    fn budgets(text: &str) -> Vec<Budget> {
        serde_json::from_str(text).unwrap()
    }

    fn kept(budgets: &[Budget], group: Option<&str>, samples: &[u64]) -> Vec<bool> {
        let filter = Filter { budgets: Some(budgets.to_vec()), ..Filter::default() };
        let equal = vec![0.0; samples.len()];
        filter.keep(&equal, &vec![true; samples.len()], samples, group)
    }

    #[test]
    fn a_budget_ends_at_the_first_sample_that_would_exceed_it() {
        let budgets = budgets(r#"[{"keep_tokens": 25}]"#);
        assert_eq!(kept(&budgets, None, &[10, 10, 10, 1]), [true, true, false, false]);
        assert_eq!(kept(&budgets, None, &[10, 15, 1]), [true, true, false]);
        assert_eq!(kept(&budgets, None, &[u64::MAX, 1]), [false, false]);
    }

    #[test]
    fn the_first_matching_budget_decides() {
        let budgets = budgets(
            r#"[{"group": "books", "min_tokens": 100, "keep_tokens": 200}, {"max_tokens": 99, "keep_tokens": 50}]"#,
        );
        assert_eq!(
            kept(&budgets, Some("books"), &[100, 99, 50, 100, 100]),
            [true, false, false, true, false]
        );
        assert_eq!(kept(&budgets, Some("books"), &[50, 100, 1, 100]), [true, true, false, true]);
        assert_eq!(kept(&budgets, Some("code"), &[100, 50]), [false, true]);
        assert_eq!(
            kept(&budgets, None, &[100, 50]),
            [false, true],
            "a budget for any group applies to samples without a group"
        );
    }

    #[test]
    fn meaningless_budgets_are_reported() {
        let broken = |text: &str, has_groups| {
            let rules = broken_rules(&budgets(text), has_groups);
            rules
                .into_iter()
                .map(|rule| format!("{}: {}", rule.setting, rule.message))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            broken(
                r#"[{"group": "a", "min_tokens": 9, "max_tokens": 8, "keep_tokens": 1}]"#,
                false
            ),
            [
                "budgets.0.min_tokens: `min_tokens` 9 exceeds `max_tokens` 8: no sample matches",
                "budgets.0.group: this budget names group `a`, but the score has no groups",
            ]
        );
        let hidden = r#"[{"max_tokens": 9, "keep_tokens": 1}, {"group": "a", "max_tokens": 8, "keep_tokens": 1},
                         {"max_tokens": 10, "keep_tokens": 1}]"#;
        assert_eq!(
            broken(hidden, true),
            [
                "budgets.1.keep_tokens: no sample reaches this budget: budget 1 of the list matches all of them first"
            ]
        );
        assert_eq!(
            broken(r#"[{"group": "a", "keep_tokens": 1}, {"keep_tokens": 1}]"#, true),
            [""; 0]
        );
    }
}
