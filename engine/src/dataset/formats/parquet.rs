//! Decodes Parquet one row group at a time into the requested types, texts as bytes.

use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{Field, Fields};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups, RowSelection};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Type as Physical;
use parquet::column::page::{PageIterator, PageReader};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::decode::{Decode, DecodeError, DecodeRequest, Decoded, RowGroupInfo};
use crate::dataset::footer::Footer;
use crate::dataset::pages::{BoundedPages, PageLimit, longest_in_dictionary};
use crate::dataset::source::{OpenFile, guarded};
use crate::dataset::{text, types};

/// Maximum bytes of a batch if every row had the longest value of its dictionary.
const DICTIONARY_BYTES: u64 = 64 << 20;

/// Creates a decoder. `page_bytes`: maximum decompressed size of a page.
///
/// Memory: per column one page of [`BoundedPages`] and a dictionary, plus one batch of `batch_rows` rows or of
/// [`DICTIONARY_BYTES`] if rows share values.
pub(crate) fn open(
    footer: &Footer,
    row_groups: &[RowGroupInfo],
    source: &OpenFile,
    wanted: &DecodeRequest,
    page_bytes: u64,
) -> Result<Box<dyn Decode>, DecodeError> {
    let mut groups = wanted.by_row_group(row_groups);
    let indices: Vec<usize> = groups.iter().map(|(group, _)| *group).collect();
    source.file.hint_ranges(footer.chunks(&indices, &wanted.positions));
    groups.reverse();
    let levels = guarded(|| field_levels(footer, wanted))
        .map_err(|why| format!("its schema cannot be read: {why}"))?;
    let limit = PageLimit { bytes: page_bytes, exceeded: Arc::default() };
    Ok(Box::new(ParquetDecoder {
        footer: footer.clone(),
        source: source.clone(),
        levels,
        limit,
        positions: wanted.positions.clone(),
        batch_rows: wanted.batch_rows,
        first_rows: row_groups.iter().map(|group| group.first_row).collect(),
        groups,
        current: None,
    }))
}

/// Returns the array types to decode into: the requested ones, texts as bytes, or the file's own if that fails.
fn field_levels(footer: &Footer, wanted: &DecodeRequest) -> parquet::errors::Result<FieldLevels> {
    let as_bytes = |field: &Arc<Field>| types::map_field(field, text::as_bytes);
    let mut fields: Vec<_> = footer.schema.fields().iter().map(as_bytes).collect();
    for (&position, wanted) in wanted.positions.iter().zip(&wanted.types) {
        let field = footer.schema.field(position);
        let data_type = text::as_bytes(&types::request(field.data_type(), wanted));
        fields[position] = Arc::new(field.clone().with_data_type(data_type));
    }
    let schema = footer.metadata.file_metadata().schema_descr();
    let mask = || ProjectionMask::roots(schema, wanted.positions.iter().copied());
    parquet_to_arrow_field_levels(schema, mask(), Some(&Fields::from(fields)))
        .or_else(|_| parquet_to_arrow_field_levels(schema, mask(), None))
}

struct ParquetDecoder {
    footer: Footer,
    source: OpenFile,
    levels: FieldLevels,
    limit: PageLimit,
    positions: Vec<usize>,
    batch_rows: usize,
    first_rows: Vec<u64>,
    /// Row groups still to read with their rows in the file, the next one last.
    groups: Vec<(usize, Vec<Range<u64>>)>,
    /// Reader of a row group, and its remaining rows.
    current: Option<(ParquetRecordBatchReader, u64)>,
}

impl Decode for ParquetDecoder {
    fn next(&mut self) -> Result<Option<Decoded>, DecodeError> {
        let batch = guarded(|| self.next_batch());
        let limit = &self.limit.exceeded;
        let batch = batch.map_err(|why| limit.get().cloned().unwrap_or_else(|| why.into()))?;
        Ok(batch.map(|batch| Decoded { batch, bad: Vec::new() }))
    }
}

impl ParquetDecoder {
    fn next_batch(&mut self) -> Result<Option<arrow_array::RecordBatch>, String> {
        loop {
            let Some((reader, left)) = &mut self.current else {
                let Some((group, rows)) = self.groups.pop() else { return Ok(None) };
                let count = rows.iter().map(|rows| rows.end - rows.start).sum();
                self.current = Some((self.reader(group, &rows)?, count));
                continue;
            };
            let Some(batch) = reader.next().transpose().map_err(|error| error.to_string())? else {
                if *left > 0 {
                    return Err("a column has fewer rows than its footer states".to_owned());
                }
                self.current = None;
                continue;
            };
            *left = left
                .checked_sub(batch.num_rows() as u64)
                .ok_or("a column has more rows than its footer states")?;
            return Ok(Some(batch));
        }
    }

    fn reader(
        &self,
        group: usize,
        rows: &[Range<u64>],
    ) -> Result<ParquetRecordBatchReader, String> {
        let first = self.first_rows[group];
        let metadata = self.footer.metadata.row_group(group);
        let all = usize::try_from(metadata.num_rows()).map_err(|error| error.to_string())?;
        let ranges =
            rows.iter().map(|rows| (rows.start - first) as usize..(rows.end - first) as usize);
        let selection = RowSelection::from_consecutive_ranges(ranges, all);
        let row_group = RowGroup {
            metadata: &self.footer.metadata,
            group: metadata,
            source: &self.source,
            limit: &self.limit,
        };
        let batch_rows = self.batch_rows.min(self.rows_of_dictionaries(metadata)).max(1);
        ParquetRecordBatchReader::try_new_with_row_groups(
            &self.levels,
            &row_group,
            batch_rows,
            Some(selection),
        )
        .map_err(|error| error.to_string())
    }

    /// Returns the maximum rows of a batch: the footer does not record how often a long dictionary value is used.
    fn rows_of_dictionaries(&self, group: &RowGroupMetaData) -> usize {
        let longest_of = |position: &usize| {
            let chunks = self.footer.leaves(*position).map(|leaf| group.column(leaf));
            let bytes = chunks.filter(|chunk| chunk.column_type() == Physical::BYTE_ARRAY);
            bytes.filter_map(|chunk| longest_in_dictionary(&self.source, chunk)).max().unwrap_or(0)
        };
        let bytes = self.positions.iter().map(longest_of).fold(0, u64::saturating_add);
        usize::try_from(DICTIONARY_BYTES / bytes.max(1)).unwrap_or(usize::MAX)
    }
}

struct RowGroup<'a> {
    metadata: &'a ParquetMetaData,
    group: &'a RowGroupMetaData,
    source: &'a OpenFile,
    limit: &'a PageLimit,
}

impl RowGroups for RowGroup<'_> {
    fn num_rows(&self) -> usize {
        self.group.num_rows() as usize
    }

    fn column_chunks(&self, leaf: usize) -> parquet::errors::Result<Box<dyn PageIterator>> {
        let (chunk, limit) = (self.group.column(leaf), self.limit.clone());
        let pages = BoundedPages::new(self.source, chunk, self.num_rows(), limit)?;
        Ok(Box::new(OneChunk(Some(Box::new(pages)))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.group))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}

/// Column chunks of one column: the one of a single row group.
struct OneChunk(Option<Box<dyn PageReader>>);

impl Iterator for OneChunk {
    type Item = parquet::errors::Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for OneChunk {}
