//! Columns of the output, shared by planning, writing and reading of outputs.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use longsift_stages::contract::{Column, Kind};

use crate::plan::Plan;
use crate::spec::pipeline::Samples;

pub const COLUMNS: [&str; 9] = [
    "longsift_sample_id",
    "longsift_score",
    "longsift_window",
    "longsift_windows",
    "longsift_token_start",
    "longsift_token_end",
    "longsift_byte_start",
    "longsift_byte_end",
    "longsift_tokens_total",
];

/// Additional columns of an output that includes rejected samples (`filter.mark_only`).
pub const MARKS: [&str; 2] = ["longsift_kept", "longsift_reason"];

/// Returns the statistics in the output: single numbers except standard errors.
pub fn output_statistics(statistics: &[Column]) -> impl Iterator<Item = &Column> {
    let is_error = |column: &Column| {
        let mut errors = statistics.iter().filter_map(|of| of.error);
        errors.any(|error| error == column.name)
    };
    statistics.iter().filter(move |column| column.kind == Kind::Number && !is_error(column))
}

/// Whether a statistic of this name would collide with a column of the output.
pub fn is_output_column(statistic: &str) -> bool {
    let own = |column: &&str| column.strip_prefix("longsift_") == Some(statistic);
    COLUMNS.iter().chain(&MARKS).any(own)
}

pub fn statistic_column(column: &Column) -> String {
    format!("longsift_{}", column.name)
}

/// Returns the columns that the output has in addition to the input's. Statistics that the score does not require are
/// nullable. If the output includes rejected or unmeasured samples, all statistics and the score are nullable as well.
pub fn added(plan: &Plan) -> Vec<Field> {
    let statistics = plan.measures.statistics();
    let filter = plan.spec.filter();
    let marks = filter.mark_only;
    let unscored = marks || filter.keeps_not_measured();
    let (terms, _) = plan.spec.score().terms(&statistics);
    let of_statistics = output_statistics(&statistics).map(|column| {
        let mut required = terms.iter().filter(|term| !term.optional);
        let is_required = required.any(|term| term.statistic == column.name);
        Field::new(statistic_column(column), DataType::Float64, unscored || !is_required)
    });
    let [id, score, positions @ .., tokens] = COLUMNS;
    let field = |(name, kind, nullable): (&str, DataType, bool)| Field::new(name, kind, nullable);
    let first = [(id, DataType::Utf8, false), (score, DataType::Float64, unscored)].map(field);
    let positions = positions.into_iter().enumerate().map(|(index, name)| {
        let kind = if index < 2 { DataType::Int32 } else { DataType::Int64 };
        field((name, kind, true))
    });
    let [kept, reason] = MARKS;
    let marked = [(kept, DataType::Boolean, false), (reason, DataType::Utf8, true)].map(field);
    let last = [field((tokens, DataType::Int64, marks))];
    let last = last.into_iter().chain(marked.into_iter().filter(|_| marks));
    first.into_iter().chain(of_statistics).chain(positions).chain(last).collect()
}

/// Returns the schema of the output: the input's columns, with texts of windows as plain strings, and the added ones.
pub fn schema(plan: &Plan) -> SchemaRef {
    let in_windows = plan.spec.pipeline.output.samples == Samples::Windows;
    let mut fields: Vec<Arc<Field>> = plan
        .dataset
        .schema
        .fields()
        .iter()
        .map(|field| {
            if in_windows && field.name() == plan.content_column() {
                Arc::new(field.as_ref().clone().with_data_type(sliced(field.data_type())))
            } else {
                Arc::clone(field)
            }
        })
        .collect();
    fields.extend(added(plan).into_iter().map(Arc::new));
    Arc::new(Schema::new(fields))
}

/// Returns the type of a column of windows: plain instead of dictionaries, variable instead of fixed length.
fn sliced(documents: &DataType) -> DataType {
    match documents {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        DataType::FixedSizeList(item, _) => DataType::List(Arc::clone(item)),
        other => other.clone(),
    }
}
