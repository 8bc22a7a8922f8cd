//! Columns of the output, shared by planning, writing and reading of outputs.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use longsift_stages::contract::{Column, Kind};

use crate::plan::Plan;
use crate::spec::pipeline::Samples;

/// Columns that every output has in addition to the input's.
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
    let [id, score, rest @ ..] = COLUMNS;
    let types = [
        (DataType::Int32, true),
        (DataType::Int32, true),
        (DataType::Int64, true),
        (DataType::Int64, true),
        (DataType::Int64, true),
        (DataType::Int64, true),
        (DataType::Int64, marks),
    ];
    let first =
        [Field::new(id, DataType::Utf8, false), Field::new(score, DataType::Float64, unscored)];
    let last = rest.into_iter().zip(types);
    let last = last.map(|(name, (kind, nullable))| Field::new(name, kind, nullable));
    let [kept, reason] = MARKS;
    let marked =
        [Field::new(kept, DataType::Boolean, false), Field::new(reason, DataType::Utf8, true)];
    let marked = marked.into_iter().filter(|_| marks);
    first.into_iter().chain(of_statistics).chain(last).chain(marked).collect()
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
