//! A map as a Parquet table: a row for each pair of blocks.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};

use super::Map;
use crate::base::error::Result;
use crate::dataset::part::PartWriter;
use crate::spec::pipeline::Compression;

impl Map {
    /// Writes the table. The footer's key `longsift_map` has the rest of the answer, as JSON.
    ///
    /// # Errors
    /// A place that cannot be written to.
    pub(crate) fn write_parquet(&self, path: &Path) -> Result<()> {
        let blocks = self.blocks.len();
        let pairs = (0..blocks * blocks).map(|cell| (cell / blocks, cell % blocks));
        let (queries, keys): (Vec<usize>, Vec<usize>) = pairs.unzip();
        let index = |of: &[usize]| -> ArrayRef {
            Arc::new(of.iter().map(|block| *block as u64).collect::<UInt64Array>())
        };
        let start = |of: &[usize]| -> ArrayRef {
            Arc::new(of.iter().map(|block| self.blocks[*block].start).collect::<UInt64Array>())
        };
        let end = |of: &[usize]| -> ArrayRef {
            Arc::new(of.iter().map(|block| self.blocks[*block].end).collect::<UInt64Array>())
        };
        let label = |of: &[usize]| -> ArrayRef {
            let labels = of.iter().map(|block| self.blocks[*block].label.as_deref());
            Arc::new(labels.collect::<StringArray>())
        };
        let cells = |cells: &[Vec<Option<f64>>]| -> ArrayRef {
            Arc::new(cells.iter().flatten().copied().collect::<Float64Array>())
        };
        let columns = [
            ("query_block", index(&queries)),
            ("key_block", index(&keys)),
            ("query_start", start(&queries)),
            ("query_end", end(&queries)),
            ("key_start", start(&keys)),
            ("key_end", end(&keys)),
            ("query_label", label(&queries)),
            ("key_label", label(&keys)),
            ("share", cells(&self.block_attention)),
            ("uniform_share", cells(&self.uniform_attention)),
            ("lift", cells(&self.lift)),
        ];
        let field = |(name, column): &(&str, ArrayRef)| {
            let nullable = !matches!(column.data_type(), DataType::UInt64);
            Field::new(*name, column.data_type().clone(), nullable)
        };
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        let batch =
            RecordBatch::try_new(Arc::clone(&schema), columns).expect("columns of one length");
        let mut about = serde_json::to_value(self).expect("plain data");
        for matrix in ["block_attention", "uniform_attention", "lift"] {
            about.as_object_mut().map(|about| about.remove(matrix));
        }
        let metadata = [("longsift_map".to_owned(), about.to_string())];
        let mut writer = PartWriter::create(path, &schema, &metadata, Compression::Zstd)?;
        writer.write(&batch)?;
        writer.finish()?;
        Ok(())
    }
}
