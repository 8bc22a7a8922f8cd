//! Conversion of statistics to charts and tables of a page.

use super::figures::Figure;
use super::grid::{by_importance, cell, kinds};
use super::matrix::Matrix;
use crate::report::page::Block;
use crate::report::page::figures::Interval;

pub(super) fn interval(figure: &Figure) -> Option<Interval> {
    Some(Interval { value: figure.value?, from_to: figure.interval })
}

/// Renders a matrix as a table; `None` if it is empty.
pub(super) fn matrix_table(matrix: &Matrix) -> Option<Block> {
    let kinds = kinds(matrix);
    let header =
        std::iter::once("score".to_owned()).chain(kinds.iter().map(|kind| (*kind).clone()));
    let row = |name: &String| {
        let cells = kinds.iter().map(|kind| cell(matrix[name].get(*kind)));
        std::iter::once(name.clone()).chain(cells).collect()
    };
    let rows = by_importance(matrix.keys()).into_iter().map(row).collect();
    (!kinds.is_empty()).then(|| Block::Table { header: header.collect(), rows })
}
