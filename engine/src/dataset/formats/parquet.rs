//! Parquet: the library's reader, asked for the types that are wanted, texts as bytes.

use std::sync::Arc;

use arrow_schema::{Field, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelectionPolicy,
};
use parquet::basic::Type as Physical;

use super::decode::{Decode, Decoded, Wanted};
use crate::dataset::footer::Footer;
use crate::dataset::source::{OpenFile, guarded};
use crate::dataset::{pages, text, types};

/// Bytes of a batch if all its rows had the longest value of their dictionary.
const DICTIONARY_BYTES: u64 = 64 << 20;

/// Begins to decode what is wanted.
pub(in crate::dataset) fn open(
    footer: &Footer,
    source: &OpenFile,
    wanted: &Wanted,
) -> Result<Box<dyn Decode>, String> {
    source.want(footer.chunks(&wanted.row_groups, &wanted.positions));
    guarded(|| {
        let metadata = reader_metadata(footer, wanted)?;
        let mask =
            ProjectionMask::roots(metadata.parquet_schema(), wanted.positions.iter().copied());
        let mut builder =
            ParquetRecordBatchReaderBuilder::new_with_metadata(source.clone(), metadata)
                .with_row_groups(wanted.row_groups.clone())
                .with_projection(mask)
                .with_batch_size(
                    wanted.batch_rows.min(rows_of_dictionaries(source, footer, wanted)),
                )
                // The other policy decodes the pages between selected rows, which may be damaged.
                .with_row_selection_policy(RowSelectionPolicy::Selectors);
        if let Some(selection) = &wanted.selection {
            builder = builder.with_row_selection(selection.clone());
        }
        builder.build().map_err(|error| error.to_string())
    })
    .map(|reader| Box::new(ParquetDecoder(reader)) as Box<dyn Decode>)
}

struct ParquetDecoder(ParquetRecordBatchReader);

impl Decode for ParquetDecoder {
    fn next(&mut self) -> Result<Option<Decoded>, String> {
        let batch = guarded(|| self.0.next().transpose())?;
        Ok(batch.map(|batch| Decoded { batch, bad: Vec::new() }))
    }
}

/// The reader's schema. It decodes straight into the wanted widths, texts as bytes, where it can; where it cannot, into
/// the file's own.
fn reader_metadata(footer: &Footer, wanted: &Wanted) -> Result<ArrowReaderMetadata, String> {
    let as_bytes = |field: &Arc<Field>| types::map_field(field, text::as_bytes);
    let mut fields: Vec<_> = footer.schema.fields().iter().map(as_bytes).collect();
    for (&position, wanted) in wanted.positions.iter().zip(&wanted.types) {
        let field = footer.schema.field(position);
        let data_type = text::as_bytes(&types::request(field.data_type(), wanted));
        fields[position] = Arc::new(field.clone().with_data_type(data_type));
    }
    let load = |fields: Vec<_>| {
        let schema = Arc::new(Schema::new_with_metadata(fields, footer.schema.metadata().clone()));
        let options = ArrowReaderOptions::new().with_schema(schema);
        guarded(|| ArrowReaderMetadata::try_new(Arc::clone(&footer.metadata), options))
    };
    load(fields)
        .or_else(|_| {
            guarded(|| {
                ArrowReaderMetadata::try_new(
                    Arc::clone(&footer.metadata),
                    ArrowReaderOptions::new(),
                )
            })
        })
        .map_err(|why| format!("its schema cannot be read: {why}"))
}

/// Rows that a batch may have at most, because the footer does not say how often a long value of a dictionary is used.
fn rows_of_dictionaries(source: &OpenFile, footer: &Footer, wanted: &Wanted) -> usize {
    let longest_of = |position: usize| {
        let chunks = wanted.row_groups.iter().flat_map(|&group| {
            let group = footer.metadata.row_group(group);
            footer.leaves(position).map(|leaf| group.column(leaf))
        });
        let bytes = chunks.filter(|chunk| chunk.column_type() == Physical::BYTE_ARRAY);
        bytes.filter_map(|chunk| pages::longest_in_dictionary(source, chunk)).max().unwrap_or(0)
    };
    let longest = wanted.positions.iter().map(|position| longest_of(*position));
    let bytes = longest.fold(0, u64::saturating_add);
    usize::try_from(DICTIONARY_BYTES / bytes.max(1)).map_or(usize::MAX, |rows| rows.max(1))
}
