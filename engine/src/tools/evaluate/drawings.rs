//! Conversion of statistics to charts, tables and cells of a page.

use std::collections::{BTreeMap, BTreeSet};

use super::estimates::IntervalEstimate;
use super::report::{Cell, Matrix};
use super::statistics::GuardRejections;
use crate::base::text::count;
use crate::report::page::drawing::{Drawing, Swatch, colour};
use crate::report::page::heat::{ColourScale, HeatMap};
use crate::report::page::numbers::or_dash;
use crate::report::page::{Bar, Bars, Block, Section};

/// Height of the line of a series in pixels.
const LINE: u32 = 12;

/// Draws statistics from 0 to 1 with their intervals, one row each with a line for every series. Leaves out rows without values.
pub(super) fn intervals(
    series: &[&str],
    rows: impl Iterator<Item = (String, Vec<Option<IntervalEstimate>>)>,
    chance: f64,
) -> Bars {
    let row = |(name, estimates): (String, Vec<Option<IntervalEstimate>>)| {
        let mut layer = Drawing::new(LINE * series.len() as u32);
        layer.mark(chance);
        for (index, (estimate, stroke)) in estimates.iter().zip(colour::SERIES).enumerate() {
            let Some(IntervalEstimate { value: Some(value), interval }) = estimate else {
                continue;
            };
            let y = f64::from(LINE) * (index as f64 + 0.5);
            let title = format!("{}: {}", series[index], with_interval(estimate.as_ref()));
            if let Some(ends) = interval {
                layer.line(&ends.map(|end| (end, y)), stroke, title.clone());
            }
            layer.dot((*value, y), stroke, title);
        }
        let values = estimates.iter().map(|estimate| with_interval(estimate.as_ref()));
        Bar { name, values: values.collect(), layer }
    };
    let has_value = |(_, estimates): &(String, Vec<Option<IntervalEstimate>>)| {
        estimates.iter().flatten().any(|of| of.value.is_some())
    };
    let swatches =
        series.iter().zip(colour::SERIES).map(|(name, stroke)| Swatch::new(*name, stroke));
    let dashed = Swatch::dashed(format!("chance, {chance:.2}"));
    Bars {
        legend: swatches.chain([dashed]).collect(),
        rows: rows.filter(has_value).map(row).collect(),
        scale: vec!["0", "0.25", "0.5", "0.75", "1"],
        in_table: false,
    }
}

/// Draws values between `low` and `high`: blue above the middle, orange below.
pub(super) fn diverging(
    columns: Vec<String>,
    rows: impl Iterator<Item = (String, Vec<Option<f64>>)>,
    (low, high): (f64, f64),
) -> Block {
    let has_value = |(_, cells): &(String, Vec<Option<f64>>)| cells.iter().any(Option::is_some);
    let (corner, rows) = (String::new(), rows.filter(has_value).collect());
    Block::Heat(HeatMap { corner, columns, rows, scale: ColourScale::Diverging { low, high } })
}

pub(super) fn descriptions(statistics: &BTreeMap<String, String>) -> Block {
    Block::List(statistics.iter().map(|(name, doc)| format!("{name}: {doc}")).collect())
}

/// Renders a matrix as a table; `None` if it is empty.
pub(super) fn matrix_table(matrix: &Matrix) -> Option<Block> {
    let kinds: BTreeSet<&String> = matrix.values().flat_map(BTreeMap::keys).collect();
    let header =
        std::iter::once("score".to_owned()).chain(kinds.iter().map(|kind| (*kind).clone()));
    let row = |(name, cells): (&String, &BTreeMap<String, Cell>)| {
        let cells = kinds.iter().map(|kind| cell(cells.get(*kind)));
        std::iter::once(name.clone()).chain(cells).collect()
    };
    let rows = by_importance(matrix).map(row).collect();
    (!kinds.is_empty()).then(|| Block::Table { header: header.collect(), rows })
}

/// Creates the section of a window length.
pub(super) fn section(
    tokens: u64,
    id: &str,
    title: &str,
    lead: &str,
    blocks: Vec<Block>,
) -> Section {
    let title = format!("{title} · {} tokens", count(tokens));
    Section::new(&format!("{id}{tokens}"), &title, lead, blocks)
}

/// Formats the share of a kind or class that each guard rejects.
pub(super) fn rejected_shares<'g>(
    guards: &'g [GuardRejections],
    kind: &'g str,
) -> impl Iterator<Item = String> + 'g {
    guards.iter().map(move |guard| or_dash(guard.kinds.get(kind), |of| whole_percent(of.share())))
}

pub(super) fn whole_percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

pub(super) fn with_interval(estimate: Option<&IntervalEstimate>) -> String {
    let Some(IntervalEstimate { value: Some(value), interval }) = estimate else {
        return "–".into();
    };
    match interval {
        Some([low, high]) => format!("{value:.2} ({low:.2}-{high:.2})"),
        None => format!("{value:.2}"),
    }
}

pub(super) fn two_decimals(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{value:.2}"))
}

/// Formats a cell: `pass 0.93`.
fn cell(cell: Option<&Cell>) -> String {
    or_dash(cell, |of| format!("{} {}", of.outcome.name(), two_decimals(of.estimate.value)))
}

/// Sorts results by their names: the score first, then the others, layer 2 before layer 10.
pub(super) fn by_importance<T>(
    results: &BTreeMap<String, T>,
) -> impl Iterator<Item = (&String, &T)> {
    let mut results: Vec<(&String, &T)> = results.iter().collect();
    results.sort_by_cached_key(|(name, _)| (*name != "score", words(name)));
    results.into_iter()
}

fn words(name: &str) -> Vec<(&str, u64)> {
    name.split('_').map(|word| word.parse().map_or((word, 0), |number| ("", number))).collect()
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::*;

    #[test]
    fn intervals_have_a_legend_and_a_scale_and_escape_names() {
        let estimate = IntervalEstimate { value: Some(0.25), interval: Some([0.2, 0.31]) };
        let rows = [("<script>".to_owned(), vec![Some(estimate)]), ("b".to_owned(), vec![None])];
        let html = Block::Bars(intervals(&["a"], rows.into_iter(), 0.5)).render().unwrap();
        assert!(html.contains("&#60;script&#62; <span class=\"soft\">0.25 (0.20-0.31)"), "{html}");
        assert!(html.contains("chance, 0.50") && html.contains("<span>0.75</span>"), "{html}");
        assert!(html.contains("M200.0 6.0L310.0 6.0") && !html.contains(">b "), "{html}");
    }

    #[test]
    fn missing_values_leave_empty_cells() {
        let rows = [("a".to_owned(), vec![None, Some(1.0)]), ("b".to_owned(), vec![None, None])];
        let columns = vec!["x".to_owned(), "y".to_owned()];
        let html = diverging(columns, rows.into_iter(), (0.0, 1.0)).render().unwrap();
        assert_eq!((html.matches("<td></td>").count(), html.matches("<tr>").count()), (1, 2));
    }

    #[test]
    fn layers_are_listed_by_their_numbers() {
        let names =
            ["layer_10", "layer_2", "copy_share", "layer_2_heads_1", "score", "layer_9_negated"];
        let results = BTreeMap::from(names.map(|name| (name.to_owned(), 0)));
        assert_eq!(
            by_importance(&results).map(|(name, _)| name).collect::<Vec<_>>(),
            ["score", "copy_share", "layer_2", "layer_2_heads_1", "layer_9_negated", "layer_10"]
        );
    }
}
