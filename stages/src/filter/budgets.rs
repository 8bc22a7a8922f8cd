//! Token budgets by group and length.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::BrokenRule;

/// A budget of tokens for samples of some groups and lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// A value of the `within` column. Default: any, the null group too; each group then has a budget of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The fewest tokens of a sample of this budget. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u64>,
    /// The most tokens of a sample of this budget, itself included. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The budget: samples are kept in rank order until the next would exceed it.
    pub keep_tokens: u64,
}

/// Remaining budgets of one group; samples are requested in rank order.
#[derive(Clone, Debug)]
pub struct Spending<'b> {
    budgets: Vec<(&'b Budget, Left)>,
}

/// Remainder of a budget.
#[derive(Clone, Copy, Debug)]
enum Left {
    Tokens(u64),
    /// A sample would have exceeded the budget: later ones are rejected even if they would fit.
    Nothing,
}

impl Budget {
    /// Returns whether both budgets apply to the same samples, regardless of their amounts.
    pub fn is_like(&self, other: &Self) -> bool {
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

    fn concerns(&self, group: Option<&str>) -> bool {
        self.group.as_deref().is_none_or(|wanted| group == Some(wanted))
    }

    fn is_for(&self, tokens: u64) -> bool {
        self.min_tokens.is_none_or(|min| tokens >= min)
            && self.max_tokens.is_none_or(|max| tokens <= max)
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

/// Returns the indices of two overlapping budgets of which the first now takes precedence, although the second did
/// before. `order`: previous indices.
pub fn changed_precedence(budgets: &[Budget], order: &[usize]) -> Option<(usize, usize)> {
    let pairs = (0..order.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    let mut changed = pairs.filter(|(first, second)| {
        order[*first] > order[*second] && budgets[*first].overlaps(&budgets[*second])
    });
    changed.next()
}

/// Returns the index of the budget that applies to a sample: the first that matches its group and length.
pub fn deciding(budgets: &[Budget], group: Option<&str>, tokens: u64) -> Option<usize> {
    budgets.iter().position(|budget| budget.concerns(group) && budget.is_for(tokens))
}

impl<'b> Spending<'b> {
    /// Returns the budgets that apply to a group: `None` for a null and without a `within` column.
    pub fn of_group(budgets: &'b [Budget], group: Option<&str>) -> Self {
        let whole = |budget: &'b Budget| (budget, Left::Tokens(budget.keep_tokens));
        Self {
            budgets: budgets.iter().filter(|budget| budget.concerns(group)).map(whole).collect(),
        }
    }

    /// Returns whether the next sample in rank order is kept, and charges it to the first budget that matches its
    /// length. A sample without a budget is not kept.
    pub fn keeps(&mut self, tokens: u64) -> bool {
        let Some((_, left)) = self.budgets.iter_mut().find(|(budget, _)| budget.is_for(tokens))
        else {
            return false;
        };
        *left = match *left {
            Left::Tokens(left) => left.checked_sub(tokens).map_or(Left::Nothing, Left::Tokens),
            Left::Nothing => Left::Nothing,
        };
        matches!(left, Left::Tokens(_))
    }
}

/// Returns every constraint that `budgets` violate. `has_groups`: whether the score has a `within` column.
pub fn broken_rules(budgets: &[Budget], has_groups: bool) -> Vec<BrokenRule> {
    let mut broken = Vec::new();
    for (index, budget) in budgets.iter().enumerate() {
        if let (Some(min), Some(max)) = (budget.min_tokens, budget.max_tokens)
            && min > max
        {
            let message = format!(
                "`min_tokens` {min} is above `max_tokens` {max}: no sample has such a length"
            );
            broken.push(BrokenRule::new(
                format!("budgets.{index}.min_tokens"),
                message,
                "swap them, or remove one",
            ));
        }
        if let Some(group) = &budget.group
            && !has_groups
        {
            broken.push(BrokenRule::new(
                format!("budgets.{index}.group"),
                format!("a budget of group `{group}`, but the score has no groups"),
                "name the column of the groups with `within:` in stage `score`, or remove `group`",
            ));
        }
        let hides = |earlier: &Budget| {
            let reaches = |group: &Option<String>| group.is_none() || *group == budget.group;
            reaches(&earlier.group)
                && earlier.min_tokens.unwrap_or(0) <= budget.min_tokens.unwrap_or(0)
                && earlier.max_tokens.unwrap_or(u64::MAX) >= budget.max_tokens.unwrap_or(u64::MAX)
        };
        if let Some(earlier) = budgets[..index].iter().position(hides) {
            broken.push(BrokenRule::new(
                format!("budgets.{index}.keep_tokens"),
                format!("no sample reaches this budget: number {} of the list is for all of them", earlier + 1),
                "the first budget that is for a sample decides: move this one before it, or remove it",
            ));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets(text: &str) -> Vec<Budget> {
        serde_json::from_str(text).unwrap()
    }

    fn kept(budgets: &[Budget], group: Option<&str>, samples: &[u64]) -> Vec<bool> {
        let mut spending = Spending::of_group(budgets, group);
        samples.iter().map(|tokens| spending.keeps(*tokens)).collect()
    }

    #[test]
    fn a_budget_ends_at_the_first_sample_that_would_exceed_it() {
        let budgets = budgets(r#"[{"keep_tokens": 25}]"#);
        assert_eq!(kept(&budgets, None, &[10, 10, 10, 1]), [true, true, false, false]);
        assert_eq!(kept(&budgets, None, &[10, 15, 1]), [true, true, false]);
        assert_eq!(kept(&budgets, None, &[u64::MAX, 1]), [false, false]);
    }

    #[test]
    fn the_first_budget_for_a_sample_decides_and_none_keeps_nothing() {
        let budgets = budgets(
            r#"[{"group": "books", "min_tokens": 100, "keep_tokens": 200}, {"max_tokens": 99, "keep_tokens": 50}]"#,
        );
        assert_eq!(
            kept(&budgets, Some("books"), &[100, 99, 50, 100, 100]),
            [true, false, false, true, false]
        );
        assert_eq!(kept(&budgets, Some("books"), &[50, 100, 1, 100]), [true, true, false, true]);
        assert_eq!(kept(&budgets, Some("code"), &[100, 50]), [false, true]);
        assert_eq!(kept(&budgets, None, &[100, 50]), [false, true], "the null group is any group");
    }

    #[test]
    fn budgets_that_cannot_be_meant_are_named() {
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
                "budgets.0.min_tokens: `min_tokens` 9 is above `max_tokens` 8: no sample has such a length",
                "budgets.0.group: a budget of group `a`, but the score has no groups",
            ]
        );
        let hidden = r#"[{"max_tokens": 9, "keep_tokens": 1}, {"group": "a", "max_tokens": 8, "keep_tokens": 1},
                         {"max_tokens": 10, "keep_tokens": 1}]"#;
        assert_eq!(
            broken(hidden, true),
            [
                "budgets.1.keep_tokens: no sample reaches this budget: number 1 of the list is for all of them"
            ]
        );
        assert_eq!(
            broken(r#"[{"group": "a", "keep_tokens": 1}, {"keep_tokens": 1}]"#, true),
            [""; 0]
        );
    }
}
