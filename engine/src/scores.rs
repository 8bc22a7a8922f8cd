//! The score table: raw statistics of every window, a Parquet file per work unit.
//!
//! It holds nothing of the selection, so that another alpha, fraction or grouping never touches the model.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Float64Builder, Int32Array, Int64Array, ListArray,
    ListBuilder, RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, Float64Type, Schema, SchemaRef};
use longsift_stages::first_layer_attention::{StandardErrors, WindowStatistics};

use crate::error::Result;
use crate::tables::Table;

/// One measured window.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreRow {
    /// Row of the document in its file.
    pub input_row: u64,
    /// The document's id; `<file>:<row>` where the input has none.
    pub id: String,
    /// Index of the window in the document, by position.
    pub window: u32,
    /// How many windows the document has.
    pub windows: u32,
    /// First token, in document tokens without BOS.
    pub token_start: u64,
    /// Behind the last token.
    pub token_end: u64,
    /// First byte of the window's text; none for pre-tokenised input.
    pub byte_start: Option<u64>,
    /// Behind the last byte.
    pub byte_end: Option<u64>,
    /// Tokens of the document.
    pub tokens_total: u64,
    /// Tokens of the scored sequence, BOS included.
    pub tokens_scored: u64,
    /// The far distance `k`.
    pub distance: u64,
    /// Hash of the document's text or tokens, to recognise it at the second read.
    pub content_hash: String,
    /// What was measured.
    pub statistics: WindowStatistics,
}

/// The schema of the score table.
pub fn schema() -> SchemaRef {
    let list = || DataType::List(Arc::new(Field::new("item", DataType::Float64, false)));
    let not_null = |name: &str, kind: DataType| Field::new(name, kind, false);
    Arc::new(Schema::new(vec![
        not_null("input_file", DataType::Utf8),
        not_null("input_row", DataType::Int64),
        not_null("id", DataType::Utf8),
        not_null("window", DataType::Int32),
        not_null("windows", DataType::Int32),
        not_null("token_start", DataType::Int64),
        not_null("token_end", DataType::Int64),
        Field::new("byte_start", DataType::Int64, true),
        Field::new("byte_end", DataType::Int64, true),
        not_null("tokens_total", DataType::Int64),
        not_null("tokens_scored", DataType::Int64),
        not_null("distance", DataType::Int64),
        not_null("dependency_strength", DataType::Float64),
        not_null("far_variance", DataType::Float64),
        Field::new("dependency_strength_se", DataType::Float64, true),
        Field::new("far_variance_se", DataType::Float64, true),
        not_null("dependency_strength_by_head", list()),
        not_null("far_variance_by_head", list()),
        Field::new("distance_histogram", list(), true),
        not_null("content_hash", DataType::Utf8),
    ]))
}

/// What the footer of a score file says about its columns.
pub fn metadata() -> Vec<(String, String)> {
    vec![(
        "longsift.distance_histogram_edges".to_owned(),
        "bin 0 is distance 0, bin b is [2^(b-1), 2^b)".to_owned(),
    )]
}

/// Rows of one file as a record batch of [`schema`].
pub fn to_batch(input_file: &str, rows: &[ScoreRow]) -> RecordBatch {
    let int64 = |value: &dyn Fn(&ScoreRow) -> u64| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(value(row) as i64)).collect::<Int64Array>())
    };
    let optional = |value: &dyn Fn(&ScoreRow) -> Option<u64>| -> ArrayRef {
        Arc::new(rows.iter().map(|row| value(row).map(|byte| byte as i64)).collect::<Int64Array>())
    };
    let int32 = |value: &dyn Fn(&ScoreRow) -> u32| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(value(row) as i32)).collect::<Int32Array>())
    };
    let float = |value: &dyn Fn(&WindowStatistics) -> f64| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(value(&row.statistics))).collect::<Float64Array>())
    };
    let error = |value: &dyn Fn(&StandardErrors) -> f64| -> ArrayRef {
        let errors = rows.iter().map(|row| row.statistics.standard_errors.as_ref().map(value));
        Arc::new(errors.collect::<Float64Array>())
    };
    let text = |value: &dyn Fn(&ScoreRow) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(value)))
    };
    // Only a histogram is ever empty: that of a window whose rows were sampled.
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| input_file))),
        int64(&|row| row.input_row),
        text(&|row| &row.id),
        int32(&|row| row.window),
        int32(&|row| row.windows),
        int64(&|row| row.token_start),
        int64(&|row| row.token_end),
        optional(&|row| row.byte_start),
        optional(&|row| row.byte_end),
        int64(&|row| row.tokens_total),
        int64(&|row| row.tokens_scored),
        int64(&|row| row.distance),
        float(&WindowStatistics::dependency_strength),
        float(&WindowStatistics::far_variance),
        error(&|errors| errors.dependency_strength),
        error(&|errors| errors.far_variance),
        lists(rows, |statistics| &statistics.dependency_strength_by_head),
        lists(rows, |statistics| &statistics.far_variance_by_head),
        lists(rows, |statistics| &statistics.distance_histogram),
        text(&|row| &row.content_hash),
    ];
    RecordBatch::try_new(schema(), columns).expect("the columns are those of the schema")
}

fn lists(rows: &[ScoreRow], figures: impl Fn(&WindowStatistics) -> &Vec<f64>) -> ArrayRef {
    let item = Arc::new(Field::new("item", DataType::Float64, false));
    let mut builder = ListBuilder::new(Float64Builder::new()).with_field(item);
    for row in rows {
        let figures = figures(&row.statistics);
        builder.values().append_slice(figures);
        builder.append(!figures.is_empty());
    }
    let lists: ListArray = builder.finish();
    Arc::new(lists)
}

/// What the selection needs of a measured window; everything else stays on disk.
#[derive(Clone, Debug)]
pub struct ScoredWindow {
    /// Row of the document in its file.
    pub input_row: u64,
    /// The document's id.
    pub id: String,
    /// Index of the window in the document.
    pub window: u32,
    /// How many windows the document has.
    pub windows: u32,
    /// First and last token, in document tokens without BOS.
    pub tokens: (u64, u64),
    /// First and last byte of the window's text; none for pre-tokenised input.
    pub bytes: Option<(u64, u64)>,
    /// Tokens of the document.
    pub tokens_total: u64,
    /// Tokens of the scored sequence, BOS included.
    pub tokens_scored: u64,
    /// Mean over heads.
    pub dependency_strength: f64,
    /// Mean over heads.
    pub far_variance: f64,
    /// Its standard error; none where all rows were measured.
    pub far_variance_error: Option<f64>,
    /// Hash of the document's text or tokens.
    pub content_hash: String,
}

/// Columns of the score table that a selection does not read.
const HEAVY_COLUMNS: [&str; 4] =
    ["input_file", "dependency_strength_by_head", "far_variance_by_head", "distance_histogram"];

/// Reads a score file, without the per-head figures, and hands over its windows batch by batch.
pub fn read(path: &Path, mut each: impl FnMut(ScoredWindow) -> Result<()>) -> Result<()> {
    let table = table(path);
    table.read(
        |name| !HEAVY_COLUMNS.contains(&name),
        |batch| {
            let columns = Columns::of(batch).ok_or_else(|| table.damaged(&OTHER_COLUMNS))?;
            (0..batch.num_rows()).try_for_each(|row| each(columns.window(row)))
        },
    )
}

/// Reads the figures of a score file: row, index of the window, what was measured.
pub fn read_statistics(
    path: &Path,
    mut each: impl FnMut(u64, u32, WindowStatistics) -> Result<()>,
) -> Result<()> {
    let table = table(path);
    table.read(
        |name| STATISTICS_COLUMNS.contains(&name),
        |batch| {
            let columns = Statistics::of(batch).ok_or_else(|| table.damaged(&OTHER_COLUMNS))?;
            (0..batch.num_rows()).try_for_each(|row| {
                let (input_row, window) = columns.key(row);
                each(input_row, window, columns.statistics(row))
            })
        },
    )
}

const OTHER_COLUMNS: &str = "its columns are not those of a score file";

fn table(path: &Path) -> Table<'_> {
    let hint =
        "remove it and the unit's record in `units/`, and run again: the unit is scored anew";
    Table { path, what: "score file", hint }
}

/// The columns that [`read_statistics`] reads.
const STATISTICS_COLUMNS: [&str; 7] = [
    "input_row",
    "window",
    "dependency_strength_se",
    "far_variance_se",
    "dependency_strength_by_head",
    "far_variance_by_head",
    "distance_histogram",
];

/// The figures in one batch of a score file.
struct Statistics<'a> {
    rows: &'a Int64Array,
    windows: &'a Int32Array,
    errors: [&'a Float64Array; 2],
    lists: [&'a ListArray; 3],
}

impl<'a> Statistics<'a> {
    fn of(batch: &'a RecordBatch) -> Option<Self> {
        let lists = [
            column::<ListArray>(batch, "dependency_strength_by_head")?,
            column(batch, "far_variance_by_head")?,
            column(batch, "distance_histogram")?,
        ];
        if lists.iter().any(|list| *list.values().data_type() != DataType::Float64) {
            return None;
        }
        Some(Self {
            rows: column(batch, "input_row")?,
            windows: column(batch, "window")?,
            errors: [column(batch, "dependency_strength_se")?, column(batch, "far_variance_se")?],
            lists,
        })
    }

    fn key(&self, row: usize) -> (u64, u32) {
        (self.rows.value(row) as u64, self.windows.value(row) as u32)
    }

    fn statistics(&self, row: usize) -> WindowStatistics {
        let figures = |list: usize| {
            if self.lists[list].is_null(row) {
                return Vec::new();
            }
            self.lists[list].value(row).as_primitive::<Float64Type>().values().to_vec()
        };
        let errors = self.errors.iter().all(|error| error.is_valid(row));
        WindowStatistics {
            dependency_strength_by_head: figures(0),
            far_variance_by_head: figures(1),
            distance_histogram: figures(2),
            standard_errors: errors.then(|| StandardErrors {
                dependency_strength: self.errors[0].value(row),
                far_variance: self.errors[1].value(row),
            }),
        }
    }
}

fn column<'a, A: Array + 'static>(batch: &'a RecordBatch, name: &str) -> Option<&'a A> {
    batch.column_by_name(name)?.as_any().downcast_ref()
}

/// The light columns of one batch of a score file.
struct Columns<'a> {
    text: [&'a StringArray; 2],
    int32: [&'a Int32Array; 2],
    int64: [&'a Int64Array; 7],
    float: [&'a Float64Array; 3],
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch) -> Option<Self> {
        Some(Self {
            text: [column(batch, "id")?, column(batch, "content_hash")?],
            int32: [column(batch, "window")?, column(batch, "windows")?],
            int64: [
                column(batch, "input_row")?,
                column(batch, "token_start")?,
                column(batch, "token_end")?,
                column(batch, "byte_start")?,
                column(batch, "byte_end")?,
                column(batch, "tokens_total")?,
                column(batch, "tokens_scored")?,
            ],
            float: [
                column(batch, "dependency_strength")?,
                column(batch, "far_variance")?,
                column(batch, "far_variance_se")?,
            ],
        })
    }

    fn window(&self, row: usize) -> ScoredWindow {
        let int64 = |column: usize| self.int64[column].value(row) as u64;
        ScoredWindow {
            input_row: int64(0),
            id: self.text[0].value(row).to_owned(),
            window: self.int32[0].value(row) as u32,
            windows: self.int32[1].value(row) as u32,
            tokens: (int64(1), int64(2)),
            bytes: self.int64[3].is_valid(row).then(|| (int64(3), int64(4))),
            tokens_total: int64(5),
            tokens_scored: int64(6),
            dependency_strength: self.float[0].value(row),
            far_variance: self.float[1].value(row),
            far_variance_error: self.float[2].is_valid(row).then(|| self.float[2].value(row)),
            content_hash: self.text[1].value(row).to_owned(),
        }
    }
}
