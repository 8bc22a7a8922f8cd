//! Small data sets for the tests of this module, and tests of the whole module.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeListBuilder, Float32Builder, Int32Builder, ListBuilder, MapBuilder, StringBuilder,
};
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Date64Array, Decimal128Array,
    DictionaryArray, FixedSizeBinaryArray, Float64Array, Int8Array, Int64Array,
    IntervalDayTimeArray, LargeStringArray, RecordBatch, StringArray, StringViewArray, StructArray,
    Time64MicrosecondArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow_select::concat::concat_batches;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;

use super::documents::{ContentColumn, DocumentColumns, DocumentContent, read_documents};
use super::input::*;
use super::lost_row_groups::LostRowGroups;
use super::part::PartWriter;
use super::rows::{RowBatches, read_faulty_rows, read_rows};
use super::types;
use crate::base::diagnostic::Blame;
use crate::base::stop::Stop;
use crate::spec::pipeline::ParquetCompression;

/// Returns a batch with the given columns, all nullable.
pub(super) fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let field =
        |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
    let fields: Vec<_> = columns.iter().map(field).collect();
    RecordBatch::try_new(
        Arc::new(Schema::new(fields)),
        columns.into_iter().map(|(_, array)| array).collect(),
    )
    .unwrap()
}

/// Returns a batch with one text column.
pub(super) fn texts(values: &[Option<&str>]) -> RecordBatch {
    batch(vec![("text", Arc::new(StringArray::from(values.to_vec())))])
}

/// Writes Parquet as other tools do, with `group_rows` rows per row group.
pub(super) fn write(path: &Path, batch: &RecordBatch, group_rows: usize) {
    write_with(
        path,
        batch,
        WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build(),
    );
}

pub(super) fn write_with(path: &Path, batch: &RecordBatch, properties: WriterProperties) {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    crate::storage::atomic::write_atomic(path, &bytes).unwrap();
}

/// Creates a folder with one file per batch: `0.parquet` and so on.
pub(super) fn folder_of(batches: &[RecordBatch], group_rows: usize) -> (TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    for (index, batch) in batches.iter().enumerate() {
        write(&folder.path().join(format!("{index}.parquet")), batch, group_rows);
    }
    let dataset = Dataset::open(folder.path()).unwrap();
    (folder, dataset)
}

/// Returns `rows` rows with nulls, in columns of most Parquet types.
pub(super) fn everything(rows: usize) -> RecordBatch {
    let (mut tags, mut pairs) = (
        ListBuilder::new(StringBuilder::new()),
        MapBuilder::new(None, StringBuilder::new(), Int32Builder::new()),
    );
    let mut points = FixedSizeListBuilder::new(Float32Builder::new(), 2);
    for row in 0..rows {
        for tag in 0..row % 4 {
            tags.values().append_option((tag != 1).then(|| format!("tag {tag} of {row}")));
        }
        tags.append(row % 5 != 3);
        (0..row % 3).for_each(|key| {
            pairs.keys().append_value(format!("key {key}"));
            pairs.values().append_option((key == 0).then_some(row as i32));
        });
        pairs.append(row % 7 != 2).unwrap();
        points.values().append_value(row as f32);
        points.values().append_value(-(row as f32));
        points.append(row % 6 != 1);
    }
    let name = |row: usize| (row % 9 != 4).then(|| format!("name {}", row % 11));
    let names = || (0..rows).map(name);
    let number = |row: usize| (row % 8 != 5).then_some(row as i64 * 1_000_003);
    let numbers = || (0..rows).map(number);
    let meta = StructArray::from(vec![
        (
            Arc::new(Field::new("licence", DataType::Utf8, true)),
            Arc::new(names().collect::<StringArray>()) as ArrayRef,
        ),
        (
            Arc::new(Field::new("n", DataType::Int64, true)),
            Arc::new(numbers().collect::<Int64Array>()),
        ),
    ]);
    let small: DictionaryArray<Int8Type> =
        names().map(|name| name.map(|name| name.leak() as &str)).collect();
    let large: DictionaryArray<Int32Type> =
        names().map(|name| name.map(|name| name.leak() as &str)).collect();
    batch(vec![
        ("id", Arc::new((0..rows as i64).collect::<Int64Array>())),
        (
            "text",
            Arc::new(
                (0..rows)
                    .map(|row| Some(format!("text of row {row} ").repeat(row % 13 + 1)))
                    .collect::<LargeStringArray>(),
            ),
        ),
        ("view", Arc::new(names().collect::<StringViewArray>())),
        ("small", Arc::new(small)),
        ("large", Arc::new(large)),
        (
            "flag",
            Arc::new(
                (0..rows)
                    .map(|row| (row % 3 != 0).then_some(row % 2 == 0))
                    .collect::<BooleanArray>(),
            ),
        ),
        ("real", Arc::new((0..rows).map(|row| row as f64 / 3.0).collect::<Float64Array>())),
        (
            "bytes",
            Arc::new(
                (0..rows)
                    .map(|row| (row % 4 != 0).then(|| vec![row as u8, 255]))
                    .collect::<BinaryArray>(),
            ),
        ),
        (
            "time",
            Arc::new(
                numbers().collect::<TimestampMicrosecondArray>().with_timezone("Europe/Berlin"),
            ),
        ),
        (
            "money",
            Arc::new(
                numbers()
                    .map(|value| value.map(i128::from))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(20, 2)
                    .unwrap(),
            ),
        ),
        ("tags", Arc::new(tags.finish())),
        ("pairs", Arc::new(pairs.finish())),
        ("points", Arc::new(points.finish())),
        ("meta", Arc::new(meta)),
    ])
}

/// Reads all rows of a data set through [`read_rows`].
pub(super) fn all_rows(dataset: &Dataset, unit_bytes: u64) -> RecordBatch {
    let mut batches = Vec::new();
    for unit in dataset.units(unit_bytes, None) {
        let rows: Vec<u64> = (unit.first_row..unit.first_row + unit.rows).collect();
        let read = read_rows(dataset, &unit, &rows, 100).unwrap().map(|result| result.unwrap().1);
        batches.extend(read);
    }
    concat_batches(&dataset.schema, &batches).unwrap()
}

/// Converts every column to its output type.
pub(super) fn in_output_types(batch: &RecordBatch, schema: &SchemaRef) -> RecordBatch {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns =
        columns.map(|(column, field)| types::conform(column, field.data_type()).unwrap()).collect();
    RecordBatch::try_new(Arc::clone(schema), columns).unwrap()
}

/// Returns the folder of the shared corpora.
fn corpora() -> PathBuf {
    let sibling = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let folder = std::env::var_os("LONGSIFT_SHARED").map_or(sibling, PathBuf::from).join("corpora");
    folder.canonicalize().unwrap()
}

#[test]
fn every_type_passes_through_reading_and_writing_unchanged() {
    let input = everything(500);
    let (folder, dataset) = folder_of(std::slice::from_ref(&input), 128);
    let expected = in_output_types(&input, &dataset.schema);
    let read = all_rows(&dataset, 1);
    assert_eq!(read, expected);
    let path = folder.path().join("out/part.parquet");
    crate::storage::files::create_folder(path.parent().unwrap()).unwrap();
    let mut part =
        PartWriter::create(&path, &dataset.schema, &dataset.metadata, ParquetCompression::Zstd)
            .unwrap();
    part.write(&read).unwrap();
    assert_eq!(part.finish().unwrap().rows, 500);
    let written = Dataset::open(&path).unwrap();
    assert_eq!(written.files[0].schema, dataset.files[0].schema);
    assert_eq!(all_rows(&written, u64::MAX), expected);
}

#[test]
fn string_widths_of_several_files_become_the_widest_in_the_order_of_the_first() {
    let plain = |column: ArrayRef, label: ArrayRef| vec![("text", column), ("label", label)];
    let strings = || Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef;
    let views = Arc::new(StringViewArray::from(vec!["c", "d"])) as ArrayRef;
    let large = Arc::new(LargeStringArray::from(vec!["e", "f"])) as ArrayRef;
    let dictionary =
        || Arc::new(["x", "y"].into_iter().collect::<DictionaryArray<Int32Type>>()) as ArrayRef;
    let mut third = plain(large, dictionary());
    third.reverse();
    let (_folder, dataset) = folder_of(
        &[batch(plain(strings(), dictionary())), batch(plain(views, strings())), batch(third)],
        10,
    );
    assert_eq!(dataset.column_names(), ["text", "label"]);
    assert_eq!(dataset.column("text").unwrap().data_type(), &DataType::LargeUtf8);
    assert_eq!(dataset.column("label").unwrap().data_type(), &DataType::Utf8);
    let rows = all_rows(&dataset, 1);
    let expected = batch(vec![
        ("text", Arc::new(LargeStringArray::from(vec!["a", "b", "c", "d", "e", "f"]))),
        ("label", Arc::new(StringArray::from(vec!["x", "y", "a", "b", "x", "y"]))),
    ]);
    assert_eq!(rows, expected);
}

#[test]
fn a_column_that_is_nullable_in_one_file_is_nullable() {
    let required = Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8, false)]));
    let required =
        RecordBatch::try_new(required, vec![Arc::new(StringArray::from(vec!["a"]))]).unwrap();
    let (_folder, dataset) = folder_of(&[required.clone(), texts(&[None])], 10);
    assert!(dataset.column("text").unwrap().is_nullable());
    assert_eq!(all_rows(&dataset, 1).num_rows(), 2);
    let (_folder, dataset) = folder_of(&[required], 10);
    assert!(!dataset.column("text").unwrap().is_nullable());
}

#[test]
fn every_incompatible_file_is_listed_with_its_problem() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(&path("a.parquet"), &everything(20), 10);
    let whole = crate::storage::files::read_limited(&path("a.parquet"), 1 << 20).unwrap();
    let add = |name: &str, bytes: &[u8]| {
        drop(crate::storage::atomic::write_atomic(&path(name), bytes).unwrap());
    };
    add("cut.parquet", &whole[..whole.len() / 2]);
    add("empty.parquet", b"");
    add("garbage.parquet", b"this is not a Parquet file");
    add("encrypted.parquet", b"PAR1.......\x04\0\0\0PARE");
    add("length.parquet", b"PAR1.......\xff\xff\xff\x7fPAR1");
    add("thrift.parquet", b"PAR1\xff\xff\xff\xff\x04\0\0\0PAR1");
    add("middle.parquet", &[&whole[..4], &whole[whole.len() / 2..]].concat());
    write(
        &path("other.parquet"),
        &batch(vec![
            ("text", Arc::new(Int64Array::from(vec![1]))),
            ("more", Arc::new(Int64Array::from(vec![1]))),
        ]),
        10,
    );
    let problems = Dataset::open(folder.path()).unwrap_err();
    let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
    let of = |name: &str| {
        text.iter()
            .find(|text| text.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {text:#?}"))
    };
    assert_eq!(problems.len(), 8, "{text:#?}");
    // A valid file with other columns is the pipeline's fault; the others are damaged.
    for problem in &problems {
        let whole = problem.to_string().starts_with("other.parquet");
        let blame = if whole { Blame::Pipeline } else { Blame::Data };
        assert_eq!(problem.blame, blame, "{problem}");
    }
    assert!(of("cut.parquet").contains("truncated"));
    assert!(of("empty.parquet").contains("0 bytes"));
    assert!(of("garbage.parquet").contains("PAR1"));
    assert!(of("encrypted.parquet").contains("encrypted"));
    assert!(of("length.parquet").contains("2147483647 bytes"));
    assert!(of("thrift.parquet").contains("does not decode"));
    assert!(of("middle.parquet").contains("the data ends at"));
    assert!(of("other.parquet").contains("column `id` is missing"));
    assert!(of("other.parquet").contains("column `text` is int64 instead of large_string"));
    assert!(of("other.parquet").contains("column `more` is not in the first file"));
}

#[test]
fn other_than_regular_files_are_rejected_before_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("b.parquet")).unwrap();
    let problems = Dataset::open(folder.path()).unwrap_err();
    let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "a.parquet: it is a named pipe, not a regular file",
            "b.parquet: it is a socket, not a regular file"
        ]
    );
    assert!(problems.iter().all(|problem| problem.blame == Blame::Data));
}

#[test]
fn an_extension_type_of_only_one_file_is_dropped() {
    let key = "ARROW:extension:name";
    let column = |name: &str, extension: Option<&str>| {
        let metadata = extension.map(|extension| (key.to_string(), extension.to_string()));
        Field::new(name, DataType::Int8, true)
            .with_metadata(metadata.into_iter().collect::<HashMap<_, _>>())
    };
    let file = |both: &str, one: Option<&str>, values: Vec<i8>| {
        let fields = vec![column("both", Some(both)), column("one", one)];
        let values: ArrayRef = Arc::new(Int8Array::from(values));
        RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![Arc::clone(&values), values])
            .unwrap()
    };
    for truths_first in [true, false] {
        let mut files =
            [file("x.y", Some("arrow.bool8"), vec![0, 1]), file("x.y", None, vec![5, -7])];
        if !truths_first {
            files.reverse();
        }
        let (_folder, dataset) = folder_of(&files, 10);
        let extension = |name: &str| dataset.column(name).unwrap().metadata().get(key).cloned();
        assert_eq!(extension("both").as_deref(), Some("x.y"));
        assert_eq!(extension("one"), None, "its values are any numbers");
    }
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let column = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    let folder = tempfile::tempdir().unwrap();
    write(
        &folder.path().join("a.parquet"),
        &batch(vec![("a", column()), ("b", column()), ("a", column())]),
        10,
    );
    let problems = Dataset::open(folder.path()).unwrap_err();
    assert_eq!(problems[0].to_string(), "a.parquet: two columns have the same name: `a`");
}

#[test]
fn two_columns_of_an_arrow_file_with_the_same_name_are_rejected() {
    let numbers = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    let twice = batch(vec![("a", numbers()), ("a", numbers())]);
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = Vec::new();
    let mut writer = arrow_ipc::writer::FileWriter::try_new(&mut bytes, &twice.schema()).unwrap();
    writer.write(&twice).unwrap();
    writer.finish().unwrap();
    drop(writer);
    crate::storage::atomic::write_atomic(&folder.path().join("a.arrow"), &bytes).unwrap();
    let problems = Dataset::open(folder.path()).unwrap_err();
    assert_eq!(problems[0].to_string(), "a.arrow: two columns have the same name: `a`");
}

#[test]
fn an_input_without_files_has_no_rows_and_no_units() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = Dataset::open(folder.path()).unwrap();
    assert_eq!(
        (dataset.rows(), dataset.units(1, None).len(), dataset.column_names().len()),
        (0, 0, 0)
    );
}

#[test]
fn a_missing_or_mistyped_column_lists_the_existing_ones() {
    let (_folder, dataset) = folder_of(&[everything(10)], 10);
    let problem = dataset.check_text_column("txt").unwrap_err();
    assert!(
        problem.message.starts_with("column `txt` does not exist; the input has: id, text, view"),
        "{problem}"
    );
    assert_eq!(problem.hint.as_deref(), Some("did you mean `text`?"));
    assert_eq!(problem.blame, Blame::Pipeline);
    let nested = dataset.check_text_column("meta.url").unwrap_err().hint.unwrap();
    assert!(
        nested.starts_with("`meta` is struct<") && nested.contains("its fields are not columns"),
        "{nested}"
    );
    let problem = dataset.check_text_column("id").unwrap_err();
    assert!(problem.message.starts_with("column `id` is int64; accepted: string"), "{problem}");
    assert_eq!(
        problem.hint.as_deref(),
        Some("columns with an accepted type: `text`, `view`, `small`, `large`, `bytes`")
    );
    assert!(
        ["text", "view", "small", "large"]
            .iter()
            .all(|name| dataset.check_text_column(name).is_ok())
    );
    assert!(
        dataset.check_tokens_column("tags").is_err() && dataset.check_label_column("meta").is_err()
    );
    assert!(
        ["id", "small", "time", "money", "bytes"]
            .iter()
            .all(|name| dataset.check_label_column(name).is_ok())
    );
}

#[test]
fn metadata_of_all_files_is_kept_and_differences_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let pair = |key: &str, value: &str| {
        parquet::file::metadata::KeyValue::new(key.to_string(), value.to_string())
    };
    let add = |name: &str, pairs| {
        let properties = WriterProperties::builder().set_key_value_metadata(Some(pairs)).build();
        write_with(&folder.path().join(name), &texts(&[Some("a")]), properties);
    };
    add("a.parquet", vec![pair("z", "1"), pair("licence", "CC0")]);
    add("b.parquet", vec![pair("licence", "MIT"), pair("extra", "x")]);
    let dataset = Dataset::open(folder.path()).unwrap();
    let expected = [("z", "1"), ("licence", "CC0"), ("extra", "x")]
        .map(|(key, value)| (key.to_string(), value.to_string()));
    assert_eq!(dataset.metadata, expected);
    assert_eq!(
        dataset.notes,
        ["metadata `licence` of `b.parquet` differs; the value of `a.parquet` is kept"]
    );
}

#[test]
fn days_declared_as_date64_stay_days() {
    let days = Date64Array::from(vec![Some(0), None, Some(86_400_000)]);
    let folder = tempfile::tempdir().unwrap();
    let properties = WriterProperties::builder().set_coerce_types(true).build();
    write_with(&folder.path().join("a.parquet"), &batch(vec![("day", Arc::new(days))]), properties);
    let dataset = Dataset::open(folder.path()).unwrap();
    assert_eq!(dataset.column("day").unwrap().data_type(), &DataType::Date32);
    let expected = Date32Array::from(vec![Some(0), None, Some(1)]);
    assert_eq!(all_rows(&dataset, 1).column(0).as_ref(), &expected);
}

#[test]
fn intervals_that_may_have_months_are_rejected_by_name() {
    let interval = IntervalDayTimeArray::from(vec![arrow_buffer::IntervalDayTime::new(2, 0)]);
    let input = batch(vec![("period", Arc::new(interval))]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let encode = |skip: bool| {
        let mut encoded = Vec::new();
        let options = ArrowWriterOptions::new().with_skip_arrow_metadata(skip);
        let mut writer =
            ArrowWriter::try_new_with_options(&mut encoded, input.schema(), options).unwrap();
        writer.write(&input).unwrap();
        writer.close().unwrap();
        crate::storage::atomic::write_atomic(&path, &encoded).unwrap();
        Dataset::open(&path)
    };
    let problem = encode(true).unwrap_err()[0].to_string();
    assert!(problem.contains("column `period` has the type INTERVAL"), "{problem}");
    let dataset = encode(false).unwrap();
    assert_eq!(all_rows(&dataset, 1).column(0), input.column(0), "Arrow declares days");
}

/// Writes Parquet without an Arrow schema.
fn write_plain(path: &Path, input: &RecordBatch) {
    let mut encoded = Vec::new();
    let options = ArrowWriterOptions::new().with_skip_arrow_metadata(true);
    let mut writer =
        ArrowWriter::try_new_with_options(&mut encoded, input.schema(), options).unwrap();
    writer.write(input).unwrap();
    writer.close().unwrap();
    crate::storage::atomic::write_atomic(path, &encoded).unwrap();
}

#[test]
fn times_of_day_in_utc_stay_in_utc() {
    let folder = tempfile::tempdir().unwrap();
    let (utc, local) = (folder.path().join("a.parquet"), folder.path().join("b.parquet"));
    let kind = DataType::Time64(TimeUnit::Microsecond);
    let times: ArrayRef = Arc::new(Time64MicrosecondArray::from(vec![1, 2]));
    let field = Field::new("time", kind, true);
    let in_utc = field.clone().with_metadata([("adjusted_to_utc".to_owned(), String::new())]);
    let one = |field: &Field, column: &ArrayRef| {
        let schema = Arc::new(Schema::new(vec![field.clone()]));
        RecordBatch::try_new(schema, vec![Arc::clone(column)]).unwrap()
    };
    write_plain(&utc, &one(&in_utc, &times));
    let read = Dataset::open(&utc).unwrap();
    let rows = all_rows(&read, 1);
    let written = folder.path().join("out/a.parquet");
    std::fs::create_dir(folder.path().join("out")).unwrap();
    let mut writer =
        PartWriter::create(&written, &read.schema, &read.metadata, ParquetCompression::None)
            .unwrap();
    writer.write(&rows).unwrap();
    writer.finish().unwrap();
    let file = std::fs::File::open(&written).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let logical = reader.parquet_schema().column(0).logical_type_ref().cloned();
    assert_eq!(
        logical,
        Some(parquet::basic::LogicalType::time(true, parquet::basic::TimeUnit::MICROS))
    );
    write_plain(&local, &one(&field, &times));
    let problem = Dataset::open(folder.path()).unwrap_err()[0].to_string();
    assert!(
        problem.contains("column `time` is time in µs instead of time in µs in UTC"),
        "{problem}"
    );
    let inside: ArrayRef = Arc::new(StructArray::from(vec![(Arc::new(in_utc), times)]));
    let outer = Field::new("outer", inside.data_type().clone(), true);
    write_plain(&local, &one(&outer, &inside));
    let problem = Dataset::open(&local).unwrap_err()[0].to_string();
    assert!(problem.contains("column `outer.time` has the type TIME WITH TIME ZONE"), "{problem}");
}

#[test]
fn a_uuid_that_only_the_parquet_type_declares_stays_a_uuid() {
    let bytes = FixedSizeBinaryArray::try_from_iter([[7_u8; 16], [8; 16]].iter()).unwrap();
    let key = ("ARROW:extension:name".to_string(), "arrow.uuid".to_string());
    let field = Field::new("id", DataType::FixedSizeBinary(16), true).with_metadata([key.clone()]);
    let input =
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(bytes)]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write_plain(&path, &input);
    let dataset = Dataset::open(&path).unwrap();
    assert_eq!(dataset.column("id").unwrap().metadata().get(&key.0), Some(&key.1));
    assert_eq!(all_rows(&dataset, 1).column(0), input.column(0));
}

#[test]
fn every_codec_version_and_encoding_of_pages_gives_the_same_rows() {
    use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
    use parquet::file::properties::WriterVersion;

    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ];
    let input = everything(60);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    for codec in codecs {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for dictionary in [false, true] {
                let properties = WriterProperties::builder()
                    .set_compression(codec)
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
                    .set_max_row_group_row_count(Some(25))
                    .set_data_page_row_count_limit(7)
                    .set_write_batch_size(7);
                write_with(&path, &input, properties.build());
                let dataset = Dataset::open(&path).unwrap();
                let expected = in_output_types(&input, &dataset.schema);
                let read = in_output_types(&all_rows(&dataset, u64::MAX), &dataset.schema);
                assert_eq!(read, expected, "{codec}, {version:?}, {dictionary}");
                // Rows with skipped pages between them.
                let unit = &dataset.units(u64::MAX, None)[0];
                let rows = [0, 1, 24, 40, 59];
                let read = read_rows(&dataset, unit, &rows, 3).unwrap();
                let numbers = read.flat_map(|batch| batch.unwrap().0);
                assert!(numbers.eq(rows), "{codec}, {version:?}, {dictionary}");
            }
        }
    }
}

#[test]
fn after_any_changed_byte_every_row_is_read_or_quarantined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(20))
        .set_data_page_row_count_limit(5)
        .set_write_batch_size(5)
        .set_compression(parquet::basic::Compression::SNAPPY);
    write_with(&path, &everything(40), properties.build());
    let whole = crate::storage::files::read_limited(&path, 1 << 20).unwrap();
    let columns =
        DocumentColumns { id: Some("id".into()), content: ContentColumn::Text("text".into()) };
    let (mut opened, mut quarantined) = (0, 0);
    for offset in (0..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[offset] ^= 0x55;
        crate::storage::atomic::write_atomic(&path, &bytes).unwrap();
        let Ok(dataset) = Dataset::open(&path) else { continue };
        // A text column with a changed name or type is another pipeline, not damage.
        if dataset.check_text_column("text").is_err() || dataset.check_label_column("id").is_err() {
            continue;
        }
        opened += 1;
        for unit in dataset.units(1, None) {
            let lost = LostRowGroups::default()
                .with_others(&dataset, &unit, None, &Stop::default())
                .unwrap();
            let rows: Vec<u64> = (unit.first_row..unit.first_row + unit.rows).collect();
            // Each work unit is a row group: it is lost or read as a whole, except for texts that are not UTF-8.
            let documents = read_documents(&dataset, &unit, &columns, 1000, lost.clone()).unwrap();
            let documents: Vec<_> = documents
                .flat_map(|batch| batch.unwrap_or_else(|why| panic!("{offset}: {why:?}")))
                .collect();
            let found: Vec<u64> = documents.iter().map(|document| document.row).collect();
            assert_eq!(found, rows, "{offset}");
            let is_lost = lost.problem(rows[0]).is_some();
            assert_eq!(lost.rows().is_empty(), !is_lost, "{offset}");
            let read = |rows: RowBatches<'_>| -> Vec<u64> {
                rows.flat_map(|batch| batch.unwrap_or_else(|why| panic!("{offset}: {why:?}")).0)
                    .collect()
            };
            let bad = documents.iter().filter(|document| document.content.is_err());
            let bad: Vec<u64> = bad.map(|document| document.row).collect();
            quarantined += bad.len();
            let faulty = read_faulty_rows(&dataset, &unit, &bad, &lost, 16).unwrap();
            assert_eq!(read(faulty), bad, "{offset}");
            if is_lost {
                assert_eq!(bad, rows, "{offset}");
                let unaware = LostRowGroups::default();
                let mut documents =
                    read_documents(&dataset, &unit, &columns, 1000, unaware).unwrap();
                assert!(documents.any(|batch| batch.is_err()), "{offset}");
            } else {
                assert_eq!(read(read_rows(&dataset, &unit, &rows, 16).unwrap()), rows, "{offset}");
            }
        }
    }
    assert!(
        opened > 100 && quarantined > 100,
        "{opened} files opened, {quarantined} rows quarantined"
    );
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn the_corpora_mix_string_widths_and_read_as_one() {
    // The remaining file has other columns.
    let folder = corpora().join("[!n]*.parquet");
    let dataset = Dataset::open(&folder).unwrap();
    let files: Vec<_> = dataset.files.iter().map(|file| (file.path.as_str(), file.rows)).collect();
    assert_eq!(
        files,
        [
            ("books.parquet", 46),
            ("code.parquet", 22),
            ("mixed_short.parquet", 34),
            ("papers.parquet", 37)
        ]
    );
    assert_eq!(dataset.column("text").unwrap().data_type(), &DataType::LargeUtf8);
    let columns =
        DocumentColumns { id: Some("data_id".into()), content: ContentColumn::Text("text".into()) };
    let mut documents = 0;
    for unit in dataset.units(8 << 20, None) {
        let whole: Vec<u64> = (unit.first_row..unit.first_row + unit.rows).collect();
        let rows: Vec<_> =
            read_rows(&dataset, &unit, &whole, 1024).unwrap().map(Result::unwrap).collect();
        let rows = concat_batches(&dataset.schema, rows.iter().map(|(_, batch)| batch)).unwrap();
        let text = rows
            .column_by_name("text")
            .unwrap()
            .as_any()
            .downcast_ref::<LargeStringArray>()
            .unwrap()
            .clone();
        for document in read_documents(&dataset, &unit, &columns, 1 << 20, LostRowGroups::default())
            .unwrap()
            .flat_map(Result::unwrap)
        {
            let Ok(DocumentContent::Text(content)) = &document.content else {
                panic!("{document:?}")
            };
            assert_eq!(&**content, text.value((document.row - unit.first_row) as usize));
            assert!(document.id.is_some());
            documents += 1;
        }
    }
    assert_eq!(documents, 139);
}
