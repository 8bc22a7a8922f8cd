//! Document scores from columns of the input.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_cast::cast;
use arrow_schema::DataType;

use super::estimates::agreement::inside_categories;
use super::report::{Report, ResultInput};
use super::sample::{InputRow, SampledDocument, each_batch};
use super::statistics::OrientedStatistic;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::text::suggest;
use crate::dataset::formats::type_names;
use crate::plan::Plan;

/// Refuses missing, non-numeric and duplicate columns. Reports all of them at once.
pub(super) fn check(plan: &Plan, columns: &[String]) -> Result<()> {
    let schema = &plan.dataset.schema;
    let names = || schema.fields().iter().map(|field| field.name().as_str());
    let mut problems = Vec::new();
    for (index, column) in columns.iter().enumerate() {
        let (message, hint) = match schema.field_with_name(column) {
            Ok(_) if columns[..index].contains(column) => {
                (format!("`--scores` names the column `{column}` twice"), "name it once".to_owned())
            }
            Ok(field) if field.data_type().is_numeric() => continue,
            Ok(field) => {
                let message = format!(
                    "the column `{column}` has the type {}, expected numbers",
                    type_names::name(field.data_type())
                );
                (message, "`--scores` takes columns of numbers".to_owned())
            }
            Err(_) => {
                let hint = match suggest(column, names()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("its columns are {}", names().collect::<Vec<_>>().join(", ")),
                };
                (format!("the input has no column `{column}`"), hint)
            }
        };
        problems.push(Diagnostic::error(Blame::Data, message).hint(hint));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Problems(problems)) }
}

/// Reads the values of a column for documents, in order; `None` for null and non-finite values.
pub(super) fn read(
    plan: &Plan,
    column: &str,
    found: &[&SampledDocument],
) -> Result<Vec<Option<f64>>> {
    let mut rows: Vec<InputRow> = found.iter().map(|found| found.row).collect();
    rows.sort_unstable();
    let index = plan.dataset.schema.index_of(column).expect("checked");
    let mut values = BTreeMap::new();
    each_batch(plan, &rows, &mut |rows, batch| {
        let numbers = cast(batch.column(index), &DataType::Float64).map_err(|why| {
            Diagnostic::error(Blame::Data, format!("the column `{column}`: {why}"))
        })?;
        let numbers = numbers.as_primitive::<Float64Type>().iter();
        let finite = numbers.map(|number| number.filter(|number| number.is_finite()));
        values.extend(rows.iter().copied().zip(finite));
        Ok(())
    })?;
    Ok(found.iter().map(|found| values.get(&found.row).copied().flatten()).collect())
}

/// Evaluates a document score, given by category and document. A document counts once: it is represented by the first
/// of its whole windows and the mean of a statistic over all of them. Returns the report, the agreement with the statistics and
/// with itself (1, or `None` without values), and the values by window.
pub(super) fn results(
    windows: &ResultInput<'_>,
    name: &str,
    statistics: &[OrientedStatistic],
    values: &[Vec<Option<f64>>],
) -> (Report, BTreeMap<String, Option<f64>>, Vec<Option<f64>>) {
    let origins = &windows.measured.origins;
    let document = |window: usize| (origins[window].category, origins[window].document);
    let of_whole = |window: usize| {
        let (category, document) = document(window);
        values[category][document].filter(|_| origins[window].is_whole())
    };
    let of_first = |window: usize| of_whole(window).filter(|_| origins[window].start == 0);
    let means = |statistic: &OrientedStatistic| {
        let mut sums: BTreeMap<(usize, usize), (f64, u64)> = BTreeMap::new();
        for (window, value) in statistic.values.iter().enumerate() {
            if let Some(value) = value.filter(|_| origins[window].is_whole()) {
                let sum = sums.entry(document(window)).or_default();
                *sum = (sum.0 + value, sum.1 + 1);
            }
        }
        let means = sums.into_iter().map(|(key, (sum, number))| (key, sum / number as f64));
        means.collect::<BTreeMap<_, _>>()
    };
    let agreement = statistics.iter().map(|statistic| {
        let means = means(statistic);
        let mean = |window: usize| means.get(&document(window)).copied();
        (statistic.name.clone(), inside_categories(origins, of_first, mean))
    });
    let own = inside_categories(origins, of_first, of_first);
    let by_window: Vec<Option<f64>> = (0..origins.len()).map(of_first).collect();
    let report = Report { explained: windows.explained(&by_window), ..Report::default() };
    let agreement = agreement.chain([(name.to_owned(), own)]).collect();
    (report, agreement, (0..origins.len()).map(of_whole).collect())
}
