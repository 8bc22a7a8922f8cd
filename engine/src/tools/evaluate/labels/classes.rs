//! Classes of a label column, checked before anything is measured.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::text::{count, quoted, quoted_value, suggest};
use crate::dataset::labels::read_labels;
use crate::plan::Plan;

/// Maximum number of classes: a column with more contains ids or numbers, and its table would not be legible.
const MAX_CLASSES: usize = 64;
/// Number of distinct values after which counting stops, to bound memory.
const MAX_COUNTED: usize = 10_000;
const MAX_LISTED: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct LabelClasses {
    pub(crate) column: String,
    pub(crate) good: BTreeSet<String>,
    pub(crate) rows: BTreeMap<String, u64>,
    pub(crate) null_rows: u64,
}

/// Reads the labels of all rows. `good`: values that are worth keeping.
pub(crate) fn classes(plan: &Plan, column: &str, good: &[String]) -> Result<LabelClasses> {
    plan.dataset.check_label_column(column)?;
    let (mut rows, mut null_rows) = (BTreeMap::new(), 0);
    for unit in &plan.units {
        plan.options.stop.check()?;
        let (labels, unreadable) = plan.read_usable(unit, |lost| {
            let labels = read_labels(&plan.dataset, unit, column, &lost.rows())?;
            Ok((labels, lost.rows()))
        })?;
        for (row, label) in (unit.first_row..).zip(labels) {
            match label {
                Some(label) => *rows.entry(label).or_insert(0) += 1,
                None if unreadable.iter().any(|range| range.contains(&row)) => {}
                None => null_rows += 1,
            }
        }
        if rows.len() > MAX_COUNTED {
            break;
        }
    }
    let (column, good) = (column.to_owned(), good.iter().cloned().collect());
    let classes = LabelClasses { column, good, rows, null_rows };
    let problems = classes.problems();
    if problems.is_empty() { Ok(classes) } else { Err(Failure::Problems(problems)) }
}

impl LabelClasses {
    fn problems(&self) -> Vec<Diagnostic> {
        let column = quoted(&self.column);
        let problem = |message: String, hint: &str| {
            vec![Diagnostic::error(Blame::Pipeline, message).hint(hint)]
        };
        let values = self.listed();
        match self.rows.len() {
            0 => {
                let message = format!(
                    "the column {column} has no labels: its {} rows are null",
                    count(self.null_rows)
                );
                return problem(message, "`--labels` requires a column of classes");
            }
            1 => {
                let message = format!(
                    "the column {column} has one value, {values}: there is no other class to compare with"
                );
                return problem(message, "`--labels` requires a column of at least two classes");
            }
            number if number > MAX_CLASSES => {
                let at_least = if number > MAX_COUNTED { "at least " } else { "" };
                let message = format!(
                    "the column {column} has {at_least}{} values, more than {MAX_CLASSES}: {values}",
                    count(number as u64)
                );
                let hint = format!(
                    "`--labels` takes at most {MAX_CLASSES} classes: group the values in a column of your own"
                );
                return problem(message, &hint);
            }
            _ => {}
        }
        let mut problems = Vec::new();
        for good in self.good.iter().filter(|good| !self.rows.contains_key(*good)) {
            let message =
                format!("`--good`: {} is not a value of the column {column}", quoted(good));
            let meant = suggest(good, self.rows.keys().map(String::as_str));
            let meant =
                meant.map_or_else(String::new, |meant| format!("did you mean {}? ", quoted(meant)));
            problems.extend(problem(message, &format!("{meant}its values are {values}")));
        }
        if self.rows.keys().all(|class| self.good.contains(class)) {
            let message = format!(
                "`--good` names all values of the column {column}, {values}: there is no other class to compare with"
            );
            problems.extend(problem(message, "leave out at least one of them"));
        }
        problems
    }

    /// Lists the values for a message, with the rows of each.
    fn listed(&self) -> String {
        let value =
            |(class, rows): (&String, &u64)| format!("{} ({})", quoted_value(class), count(*rows));
        let mut listed: Vec<String> = self.rows.iter().take(MAX_LISTED).map(value).collect();
        if self.rows.len() > MAX_LISTED {
            listed.push("…".to_owned());
        }
        listed.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(classes: &[&str], good: &[&str]) -> Vec<String> {
        let rows = classes.iter().map(|class| ((*class).to_owned(), 3)).collect();
        let good = good.iter().map(|class| (*class).to_owned()).collect();
        let classes = LabelClasses { column: "kind".into(), good, rows, null_rows: 12 };
        classes.problems().iter().map(|problem| format!("{problem:?}")).collect()
    }

    #[test]
    fn columns_without_two_classes_are_refused_with_their_values() {
        assert_eq!(problems(&["a", "b"], &["a"]), [""; 0]);
        let [nothing, one, all] =
            [problems(&[], &["a"]), problems(&["a"], &["a"]), problems(&["a", "b"], &["b", "a"])];
        assert!(nothing[0].contains("`kind` has no labels: its 12 rows are null"), "{nothing:?}");
        assert!(one[0].contains("has one value, `a` (3)"), "{one:?}");
        assert!(
            all[0].contains("names all values of the column `kind`, `a` (3), `b` (3)"),
            "{all:?}"
        );
        let names: Vec<String> = (10..75).map(|index| format!("v{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let many = problems(&names, &["v10"]);
        assert!(many[0].contains("has 65 values, more than 64: `v10` (3), "), "{many:?}");
        assert_eq!(problems(&names[..64], &["v10"]), [""; 0]);
    }

    #[test]
    fn unknown_good_values_are_reported() {
        let unknown = problems(&["books", "logs"], &["boks", "zz"]);
        assert_eq!(unknown.len(), 2, "{unknown:?}");
        assert!(
            unknown[0].contains("`boks` is not a value")
                && unknown[0].contains("did you mean `books`?")
        );
        assert!(unknown[1].contains("its values are `books` (3), `logs` (3)"), "{unknown:?}");
    }
}
