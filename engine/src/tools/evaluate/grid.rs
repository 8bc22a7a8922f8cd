//! Cells of evaluation tables, and the order of their rows.

use std::collections::BTreeMap;

use super::figures::IntervalEstimate;
use super::matrix::{Cell, Matrix};

pub(super) fn with_interval(figure: Option<&IntervalEstimate>) -> String {
    let Some(IntervalEstimate { value: Some(value), interval }) = figure else {
        return "–".into();
    };
    match interval {
        Some([low, high]) => format!("{value:.2} ({low:.2}-{high:.2})"),
        None => format!("{value:.2}"),
    }
}

pub(super) fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.2}"))
}

/// Formats a cell: `pass 0.93`.
pub(super) fn cell(cell: Option<&Cell>) -> String {
    cell.map_or_else(
        || "–".to_owned(),
        |of| format!("{} {}", of.outcome.name(), number(of.figure.value)),
    )
}

pub(super) fn kinds(matrix: &Matrix) -> Vec<&String> {
    let mut kinds: Vec<&String> = matrix.values().flat_map(BTreeMap::keys).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Sorts names: the score first, then the others by name, layer 2 before layer 10.
pub(super) fn by_importance<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut names: Vec<&String> = names.collect();
    names.sort_by_cached_key(|name| (*name != "score", words(name)));
    names
}

/// Splits a name into words, with numbers parsed.
fn words(name: &str) -> Vec<(&str, u64)> {
    name.split('_').map(|word| word.parse().map_or((word, 0), |number| ("", number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_listed_by_their_numbers() {
        let names =
            ["layer_10", "layer_2", "copy_share", "layer_2_heads_1", "score", "layer_9_negated"];
        let names = names.map(str::to_owned);
        assert_eq!(
            by_importance(names.iter()),
            ["score", "copy_share", "layer_2", "layer_2_heads_1", "layer_9_negated", "layer_10"]
        );
    }
}
