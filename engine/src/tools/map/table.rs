//! Map as a Parquet table: a row for each pair of blocks.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::Map;
use crate::dataset::part::codec;
use crate::spec::pipeline::ParquetCompression;

impl Map {
    /// Returns the bytes of the file, about 100 per pair before compression; it fits in memory and can be written to a
    /// pipe. The rest of the answer is JSON under the footer's key `longsift_map`.
    pub(crate) fn parquet(&self) -> Vec<u8> {
        let blocks = self.blocks.len();
        let pairs = (0..blocks * blocks).map(|cell| (cell / blocks, cell % blocks));
        let (queries, keys): (Vec<usize>, Vec<usize>) = pairs.unzip();
        let numbers = |of: &[usize], number: &dyn Fn(usize) -> u64| -> ArrayRef {
            Arc::new(of.iter().map(|block| number(*block)).collect::<UInt64Array>())
        };
        let index = |block: usize| block as u64;
        let start = |block: usize| self.blocks[block].start;
        let end = |block: usize| self.blocks[block].end;
        let label = |of: &[usize]| -> ArrayRef {
            let labels = of.iter().map(|block| self.blocks[*block].label.as_deref());
            Arc::new(labels.collect::<StringArray>())
        };
        let cells = |cells: &[Vec<Option<f64>>]| -> ArrayRef {
            Arc::new(cells.iter().flatten().copied().collect::<Float64Array>())
        };
        let columns = [
            ("query_block", numbers(&queries, &index)),
            ("key_block", numbers(&keys, &index)),
            ("query_start", numbers(&queries, &start)),
            ("query_end", numbers(&queries, &end)),
            ("key_start", numbers(&keys, &start)),
            ("key_end", numbers(&keys, &end)),
            ("query_label", label(&queries)),
            ("key_label", label(&keys)),
            ("share", cells(&self.matrix.block_attention)),
            ("uniform_share", cells(&self.matrix.uniform_attention)),
            ("lift", cells(&self.matrix.lift)),
        ];
        let field = |(name, column): &(&str, ArrayRef)| {
            let nullable = !matches!(column.data_type(), DataType::UInt64);
            Field::new(*name, column.data_type().clone(), nullable)
        };
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        let batch =
            RecordBatch::try_new(Arc::clone(&schema), columns).expect("columns have equal lengths");
        let mut about = serde_json::to_value(self).expect("plain data");
        for matrix in ["block_attention", "uniform_attention", "lift"] {
            about.as_object_mut().map(|about| about.remove(matrix));
        }
        let about = KeyValue::new("longsift_map".to_owned(), about.to_string());
        file(&batch, about).expect("writing to memory does not fail")
    }
}

fn file(batch: &RecordBatch, about: KeyValue) -> Result<Vec<u8>, ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(codec(ParquetCompression::Zstd))
        .set_key_value_metadata(Some(vec![about]))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
    writer.write(batch)?;
    writer.into_inner()
}
