//! Text tables of evaluation results.

use std::collections::BTreeMap;
use std::fmt;

use super::figures::IntervalEstimate;
use super::matrix::{Cell, Matrix};
use crate::base::text::{line_safe, table};

/// Maximum width of a matrix in columns of a terminal.
const WIDTH: usize = 110;

pub(super) fn with_interval(figure: Option<&IntervalEstimate>) -> String {
    let Some(IntervalEstimate { value: Some(value), interval }) = figure else { return "-".into() };
    match interval {
        Some([low, high]) => format!("{value:.2} ({low:.2}-{high:.2})"),
        None => format!("{value:.2}"),
    }
}

pub(super) fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}

/// Writes right-aligned rows under a header.
pub(super) fn grid(
    f: &mut fmt::Formatter<'_>,
    header: &[String],
    rows: &[(String, Vec<String>)],
) -> fmt::Result {
    let row = |name: &str, cells: &[String]| {
        std::iter::once(name.to_owned()).chain(cells.iter().cloned()).collect()
    };
    let rows = rows.iter().map(|(name, cells)| row(name, cells));
    let rows: Vec<Vec<String>> = std::iter::once(row("", header)).chain(rows).collect();
    table(&rows).iter().try_for_each(|line| writeln!(f, "  {line}"))
}

/// Writes a matrix under its title, the score first, and nothing if it is empty. Kinds that do not fit into a line are
/// continued in another table.
pub(super) fn matrix(f: &mut fmt::Formatter<'_>, title: &str, matrix: &Matrix) -> fmt::Result {
    let kinds = kinds(matrix);
    if kinds.is_empty() {
        return Ok(());
    }
    let names = by_importance(matrix.keys());
    let widest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    writeln!(f, "\n{title}")?;
    let mut rest = &kinds[..];
    while !rest.is_empty() {
        let mut width = widest + 2;
        let fits = rest.iter().take_while(|kind| {
            width += 2 + line_safe(kind).chars().count().max(CELL);
            width <= WIDTH
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        let header: Vec<String> = now.iter().map(|kind| line_safe(kind)).collect();
        let row = |name: &&String| {
            let cells = now.iter().map(|kind| cell(matrix[*name].get(*kind)));
            (line_safe(name), cells.collect())
        };
        grid(f, &header, &names.iter().map(row).collect::<Vec<_>>())?;
        rest = later;
    }
    Ok(())
}

/// Width of `pass 0.93`.
const CELL: usize = 9;

/// Formats a cell: `pass 0.93`.
pub(super) fn cell(cell: Option<&Cell>) -> String {
    cell.map_or_else(
        || "-".to_owned(),
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
