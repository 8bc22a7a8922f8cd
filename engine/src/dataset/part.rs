//! Writes one Parquet file whose bytes depend only on its rows.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt64Array, new_null_array};
use arrow_schema::{Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowWriter, encode_arrow_schema};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::footer::Footer;
use super::problem::DataProblem;
use super::row_bytes::row_bytes;
use super::source::guarded;
use super::types;
use crate::spec::pipeline::{OutputFormat, ParquetCompression};
use crate::storage::atomic::AtomicFile;
use crate::storage::error::StorageError;

/// Rows per call of the Parquet writer. Pages end between such pieces, so the size is part of the format.
const PIECE_ROWS: u64 = 1024;
const PIECE_BYTES: u64 = 16 << 20;
/// Limits of a row group: rows, and bytes before encoding.
const GROUP_ROWS: u64 = 122_880;
const GROUP_BYTES: u64 = 100 << 20;
pub(super) const ZSTD_LEVEL: i32 = 3;

/// Writes one Parquet file atomically.
///
/// The same rows give the same bytes, however the caller splits them into batches: rows are split again at fixed
/// positions, and dictionaries and views are written by value. Memory: the encoded row group, at most about 100 MB
/// before encoding, and one piece.
pub struct PartWriter {
    writer: ArrowWriter<AtomicFile>,
    path: PathBuf,
    /// Types passed to the Parquet writer.
    storage: SchemaRef,
    /// Columns with small dictionary keys, and their values in this row group.
    dictionaries: Vec<SmallDictionary>,
    pending: Vec<RecordBatch>,
    pending_rows: u64,
    pending_bytes: u64,
    group_rows: u64,
    group_bytes: u64,
    rows: u64,
}

pub fn endings() -> impl Iterator<Item = &'static str> {
    OutputFormat::ALL.into_iter().flat_map(|format| format.endings(true)).copied()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPart {
    pub bytes: u64,
    pub sha256: String,
    pub rows: u64,
}

impl PartWriter {
    /// Creates a table of the run itself: always compressed with Zstandard, without additional key-values.
    pub fn table(path: &Path, schema: &SchemaRef) -> Result<Self, DataProblem> {
        Self::create(path, schema, &[], ParquetCompression::Zstd)
    }

    /// Creates a file in an existing folder. `metadata`: key-values for the footer, in addition to the Arrow schema.
    pub fn create(
        path: &Path,
        schema: &SchemaRef,
        metadata: &[(String, String)],
        compression: ParquetCompression,
    ) -> Result<Self, DataProblem> {
        let fields =
            schema.fields().iter().map(|field| types::map_field(field, types::storage_type));
        let storage = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let copied = || metadata.iter().filter(|(key, _)| key != ARROW_SCHEMA_META_KEY).cloned();
        let (declared, limits): (Vec<_>, Vec<_>) =
            schema.fields().iter().map(types::written_field).unzip();
        // Some readers use only the key-values of the Arrow schema, others only those of the footer.
        let pairs: HashMap<_, _> = copied().collect();
        let arrow_schema = encode_arrow_schema(&Schema::new_with_metadata(declared, pairs));
        let mut key_values: Vec<_> =
            copied().map(|(key, value)| KeyValue::new(key, value)).collect();
        key_values.push(KeyValue::new(ARROW_SCHEMA_META_KEY.into(), arrow_schema));
        let properties = WriterProperties::builder()
            .set_compression(codec(compression))
            .set_key_value_metadata(Some(key_values))
            .set_max_row_group_row_count(None)
            .set_max_row_group_bytes(None)
            .build();
        let options =
            ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let file = AtomicFile::create(path)?;
        let writer = ArrowWriter::try_new_with_options(file, Arc::clone(&storage), options)
            .map_err(|error| problem(path, error))?;
        Ok(Self {
            writer,
            path: path.to_path_buf(),
            storage,
            dictionaries: limits.iter().enumerate().filter_map(SmallDictionary::new).collect(),
            pending: Vec::new(),
            pending_rows: 0,
            pending_bytes: 0,
            group_rows: 0,
            group_bytes: 0,
            rows: 0,
        })
    }

    /// Appends rows. Columns are matched by index; string width, views and dictionary encoding may differ.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DataProblem> {
        let batch = self.store(batch)?;
        let mut start = 0;
        for (row, bytes) in row_bytes(batch.columns(), batch.num_rows()).into_iter().enumerate() {
            if self.dictionaries.iter().any(|dictionary| !dictionary.fits(&batch, row)) {
                self.pending.push(batch.slice(start, row - start));
                start = row;
                self.write_piece()?;
                self.end_group()?;
            }
            self.dictionaries.iter_mut().for_each(|dictionary| dictionary.add(&batch, row));
            self.pending_rows += 1;
            self.pending_bytes += bytes;
            if self.pending_rows == PIECE_ROWS || self.pending_bytes >= PIECE_BYTES {
                self.pending.push(batch.slice(start, row + 1 - start));
                start = row + 1;
                self.write_piece()?;
            }
        }
        if start < batch.num_rows() {
            self.pending
                .push(compact(batch.slice(start, batch.num_rows() - start), self.pending_bytes));
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Writes the pending rows and the footer, and moves the file to its path.
    pub fn finish(mut self) -> Result<WrittenPart, DataProblem> {
        self.write_piece()?;
        self.writer.finish().map_err(|error| problem(&self.path, error))?;
        let written = self.writer.inner_mut().commit()?;
        Ok(WrittenPart { bytes: written.bytes, sha256: written.sha256, rows: self.rows })
    }

    fn store(&self, batch: &RecordBatch) -> Result<RecordBatch, DataProblem> {
        let unfit = |why: String| {
            DataProblem::data(format!("cannot write `{}`: {why}", self.path.display()))
        };
        if batch.num_columns() != self.storage.fields().len() {
            let (found, expected) = (batch.num_columns(), self.storage.fields().len());
            return Err(unfit(format!("expected {expected} columns, got {found}")));
        }
        let fields = self.storage.fields().iter();
        let columns = batch.columns().iter().zip(fields).map(|(column, field)| {
            types::conform(column, field.data_type())
                .map_err(|why| unfit(format!("column `{}`: {why}", field.name())))
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(Arc::clone(&self.storage), columns)
            .map_err(|why| unfit(why.to_string()))
    }

    fn write_piece(&mut self) -> Result<(), DataProblem> {
        if self.pending_rows == 0 {
            return Ok(());
        }
        let pieces = std::mem::take(&mut self.pending);
        let (rows, bytes) =
            (std::mem::take(&mut self.pending_rows), std::mem::take(&mut self.pending_bytes));
        let piece = concat_batches(&self.storage, &pieces)
            .map_err(|why| problem(&self.path, ParquetError::ArrowError(why.to_string())))?;
        if self.group_rows + rows > GROUP_ROWS
            || (self.group_rows > 0 && self.group_bytes + bytes > GROUP_BYTES)
        {
            self.end_group()?;
            // The dictionaries still count the values of this piece, so the group may end early.
        }
        self.writer.write(&piece).map_err(|error| problem(&self.path, error))?;
        self.group_rows += rows;
        self.group_bytes += bytes;
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), DataProblem> {
        self.writer.flush().map_err(|error| problem(&self.path, error))?;
        (self.group_rows, self.group_bytes) = (0, 0);
        self.dictionaries.iter_mut().for_each(|dictionary| dictionary.values.clear());
        Ok(())
    }
}

/// Distinct values of a column with small dictionary keys in a row group: readers build one dictionary per group.
struct SmallDictionary {
    column: usize,
    limit: usize,
    values: HashSet<Box<[u8]>>,
}

impl SmallDictionary {
    fn new((column, limit): (usize, &Option<usize>)) -> Option<Self> {
        Some(Self { column, limit: (*limit)?, values: HashSet::new() })
    }

    fn fits(&self, batch: &RecordBatch, row: usize) -> bool {
        self.values.len() < self.limit
            || self.value(batch, row).is_none_or(|value| self.values.contains(value))
    }

    fn add(&mut self, batch: &RecordBatch, row: usize) {
        if let Some(value) = self.value(batch, row)
            && !self.values.contains(value)
        {
            self.values.insert(value.into());
        }
    }

    fn value<'a>(&self, batch: &'a RecordBatch, row: usize) -> Option<&'a [u8]> {
        types::bytes_at(batch.column(self.column).as_ref(), row)
    }
}

/// Copies a slice that keeps much more memory alive than the `bytes` it needs.
fn compact(slice: RecordBatch, bytes: u64) -> RecordBatch {
    if slice.get_array_memory_size() as u64 <= 4 * bytes + (1 << 20) {
        return slice;
    }
    let all = UInt64Array::from_iter_values(0..slice.num_rows() as u64);
    take_record_batch(&slice, &all).unwrap_or(slice)
}

/// Lists columns that Parquet cannot hold or our reader rejects, such as lists nested a hundred deep, each with the reason.
pub fn unsupported_columns(schema: &Schema) -> Vec<String> {
    schema.fields().iter().filter_map(unsupported_column).collect()
}

/// Returns why Parquet cannot hold a column or our reader rejects it. Cost: writes a null in memory and reads its footer.
pub fn unsupported_column(field: &Arc<Field>) -> Option<String> {
    let stored = types::map_field(field, types::storage_type);
    let stored = stored.as_ref().clone().with_nullable(true);
    let written = || {
        let column = new_null_array(stored.data_type(), 1);
        let of_one = Arc::new(Schema::new(vec![stored.clone()]));
        let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&of_one), None)?;
        writer.write(&RecordBatch::try_new(of_one, vec![column])?)?;
        writer.into_inner()
    };
    let attempt = || match written() {
        Ok(file) => Footer::parse_file(&file).map(drop).map_err(|problem| problem.to_string()),
        Err(ParquetError::NYI(_)) => Err("Parquet does not support it".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    Some(types::unsupported(field, guarded(attempt).err()?))
}

pub(crate) fn codec(compression: ParquetCompression) -> Codec {
    match compression {
        ParquetCompression::Zstd => {
            Codec::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL).expect("3 is a level of Zstandard"))
        }
        ParquetCompression::Snappy => Codec::SNAPPY,
        ParquetCompression::Lz4 => Codec::LZ4_RAW,
        ParquetCompression::None => Codec::UNCOMPRESSED,
    }
}

/// Returns the error of a write: a failed file operation is the machine's, otherwise rows do not fit Parquet.
fn problem(path: &Path, error: ParquetError) -> DataProblem {
    if let ParquetError::External(source) = error {
        let file_error = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let file_error = file_error.and_then(|inner| inner.downcast_ref::<StorageError>());
        let hint = file_error.and_then(StorageError::hint);
        let message = file_error.map_or_else(
            || format!("cannot write `{}`: {source}", path.display()),
            StorageError::to_string,
        );
        return DataProblem { hint, ..DataProblem::machine(message) };
    }
    DataProblem::data(format!("cannot write `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int8Type;
    use arrow_array::{ArrayRef, DictionaryArray, LargeStringArray};
    use arrow_cast::cast;
    use arrow_schema::DataType;
    use proptest::prelude::*;

    use super::*;
    use crate::dataset::input::Dataset;
    use crate::dataset::input_file::Contents;
    use crate::dataset::tests::{
        all_rows, batch, everything, in_output_types, write as write_file,
    };

    /// Writes `whole` in batches that end at `cuts`; returns the part and the file's bytes.
    fn write(
        whole: &RecordBatch,
        cuts: &[usize],
        compression: ParquetCompression,
    ) -> (WrittenPart, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part.parquet");
        let mut part =
            PartWriter::create(&path, &whole.schema(), &[("k".into(), "v".into())], compression)
                .unwrap();
        let mut start = 0;
        for &end in cuts.iter().chain([&whole.num_rows()]) {
            part.write(&whole.slice(start, end - start)).unwrap();
            start = end;
        }
        (part.finish().unwrap(), crate::storage::files::read_limited(&path, 1 << 30).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn the_bytes_do_not_depend_on_how_batches_are_cut(cuts in prop::collection::btree_set(0_usize..2500, 0..20)) {
            let whole = everything(2500);
            let cuts: Vec<_> = cuts.into_iter().collect();
            let (one, bytes) = write(&whole, &[], ParquetCompression::Zstd);
            prop_assert_eq!((one.bytes, one.rows), (bytes.len() as u64, 2500));
            prop_assert_eq!(&one.sha256, &crate::base::text::sha256_hex(&bytes));
            prop_assert_eq!(write(&whole, &cuts, ParquetCompression::Zstd), (one, bytes));
        }
    }

    #[test]
    fn columns_that_nest_deeper_than_readers_accept_are_unsupported() {
        let nested = |depth| {
            let lists = (0..depth).fold(DataType::Int64, |item, _| DataType::new_list(item, true));
            unsupported_columns(&Schema::new(vec![Field::new("x", lists, true)]))
        };
        assert!(nested(20).is_empty());
        let [problem] = <[String; 1]>::try_from(nested(100)).unwrap();
        assert!(problem.starts_with("`x` of the type list<list<"), "{problem}");
    }

    #[test]
    fn the_bytes_do_not_depend_on_how_strings_are_encoded_in_memory() {
        let whole = everything(1500);
        let text = whole.schema().index_of("text").unwrap();
        let (expected, _) = write(&whole, &[], ParquetCompression::Snappy);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part.parquet");
        let metadata = [("k".to_string(), "v".to_string())];
        let mut part =
            PartWriter::create(&path, &whole.schema(), &metadata, ParquetCompression::Snappy)
                .unwrap();
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for (start, data_type) in [(0, DataType::Utf8View), (700, dictionary)] {
            let slice = whole.slice(start, if start == 0 { 700 } else { 800 });
            let mut columns: Vec<(String, ArrayRef)> = Vec::new();
            for (field, column) in slice.schema().fields().iter().zip(slice.columns()) {
                columns.push((field.name().clone(), Arc::clone(column)));
            }
            columns[text].1 = cast(&columns[text].1, &data_type).unwrap();
            part.write(&RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        }
        assert_eq!(part.finish().unwrap(), expected);
    }

    #[test]
    fn every_compression_reads_back_equal() {
        let whole = everything(300);
        for compression in [
            ParquetCompression::Zstd,
            ParquetCompression::Snappy,
            ParquetCompression::Lz4,
            ParquetCompression::None,
        ] {
            let (_, bytes) = write(&whole, &[100], compression);
            let folder = tempfile::tempdir().unwrap();
            crate::storage::atomic::write_atomic(&folder.path().join("a.parquet"), &bytes).unwrap();
            let dataset = Dataset::open(folder.path()).unwrap();
            assert_eq!(all_rows(&dataset, u64::MAX), in_output_types(&whole, &dataset.schema));
            assert_eq!(dataset.metadata, [("k".to_string(), "v".to_string())]);
        }
    }

    #[test]
    fn huge_rows_end_pieces_and_row_groups_early_at_the_same_places() {
        let long = "0123456789abcdef".repeat(1 << 18);
        let text: LargeStringArray = (0..40).map(|row| Some(format!("{row:02}{long}"))).collect();
        let whole = batch(vec![("text", Arc::new(text))]);
        let (one, bytes) = write(&whole, &[], ParquetCompression::Lz4);
        let cuts: Vec<_> = (1..40).collect();
        assert_eq!(write(&whole, &cuts, ParquetCompression::Lz4).0, one);
        let folder = tempfile::tempdir().unwrap();
        crate::storage::atomic::write_atomic(&folder.path().join("a.parquet"), &bytes).unwrap();
        let groups = Dataset::open(folder.path()).unwrap().files[0].row_groups.clone();
        let rows: Vec<_> = groups.iter().map(|group| group.rows).collect();
        assert_eq!(rows, [24, 16], "rows of 4 MiB, pieces of 4, row groups of at most 100 MiB");
    }

    #[test]
    fn a_row_group_ends_before_its_values_outgrow_small_dictionary_keys() {
        let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for file in 0..3 {
            let label = (0..300).map(|row| format!("{}", file * 100 + row / 3));
            let label: Vec<_> = label.collect();
            let label: DictionaryArray<Int8Type> =
                label.iter().map(|label| Some(label.as_str())).collect();
            write_file(
                &folder.path().join(format!("{file}.parquet")),
                &batch(vec![("label", Arc::new(label))]),
                300,
            );
        }
        let dataset = Dataset::open(folder.path()).unwrap();
        let whole = all_rows(&dataset, 1);
        let path = out.path().join("part.parquet");
        let mut part =
            PartWriter::create(&path, &dataset.schema, &[], ParquetCompression::Zstd).unwrap();
        part.write(&whole).unwrap();
        part.finish().unwrap();
        let written = Dataset::open(&path).unwrap();
        let rows: Vec<_> = written.files[0].row_groups.iter().map(|group| group.rows).collect();
        assert_eq!(rows, [384, 384, 132], "128 values of 3 rows each");
        assert_eq!(written.files[0].schema.field(0), dataset.files[0].schema.field(0));
        assert_eq!(all_rows(&written, 1), whole);
    }

    #[test]
    fn key_values_are_in_the_footer_and_in_its_arrow_schema() {
        let (_, bytes) = write(&everything(3), &[], ParquetCompression::Zstd);
        let folder = tempfile::tempdir().unwrap();
        crate::storage::atomic::write_atomic(&folder.path().join("a.parquet"), &bytes).unwrap();
        let file = &Dataset::open(folder.path()).unwrap().files[0];
        let Contents::Parquet(footer, _) = &file.contents else { panic!("it is Parquet") };
        let footer = footer.metadata.file_metadata().key_value_metadata().unwrap();
        assert_eq!((footer[0].key.as_str(), footer[0].value.as_deref()), ("k", Some("v")));
        assert_eq!(file.schema.metadata().get("k").map(String::as_str), Some("v"));
    }

    #[test]
    fn a_file_without_rows_has_its_columns() {
        let (written, bytes) = write(&everything(0), &[], ParquetCompression::Zstd);
        assert_eq!(written.rows, 0);
        let folder = tempfile::tempdir().unwrap();
        crate::storage::atomic::write_atomic(&folder.path().join("a.parquet"), &bytes).unwrap();
        assert_eq!(Dataset::open(folder.path()).unwrap().column_names().len(), 14);
    }

    #[test]
    fn a_part_that_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let whole = everything(10);
        let path = folder.path().join("part.parquet");
        let mut part =
            PartWriter::create(&path, &whole.schema(), &[], ParquetCompression::Zstd).unwrap();
        part.write(&whole).unwrap();
        drop(part);
        assert!(crate::storage::files::list_folder(folder.path()).unwrap().is_empty());
    }

    #[test]
    fn a_batch_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let whole = everything(10);
        let mut part = PartWriter::create(
            &folder.path().join("a"),
            &whole.schema(),
            &[],
            ParquetCompression::Zstd,
        )
        .unwrap();
        let narrow = batch(vec![("id", Arc::clone(whole.column(0)))]);
        assert!(part.write(&narrow).unwrap_err().message.contains("expected 14 columns, got 1"));
    }

    #[test]
    fn a_full_disk_blames_the_machine_and_names_the_file() {
        let whole = everything(2000);
        let writer = ArrowWriter::try_new(FullDisk, whole.schema(), None);
        let error = writer
            .and_then(|mut writer| writer.write(&whole).and_then(|()| writer.close()))
            .unwrap_err();
        let problem = problem(Path::new("out/part.parquet"), error);
        assert_eq!(problem.blame, crate::base::diagnostic::Blame::Machine);
        assert!(problem.message.contains("out/part.parquet"), "{problem}");
    }

    struct FullDisk;

    impl std::io::Write for FullDisk {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
