//! Map as files: an image with one square of equal size for each pair of blocks, and a Parquet table with a row for each.
//!
//! The PNG is written here with the engine's deflate and checksum, because the crate `png` would add two versions of
//! another deflate.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::Map;
use crate::dataset::part::codec;
use crate::report::page::heat::ColourScale;
use crate::spec::pipeline::ParquetCompression;

const MIN_SIDE: usize = 768;
const INVISIBLE: [u8; 3] = [255, 255, 255];

impl Map {
    /// Renders the shares of attention as a PNG in the colours of the page, with query blocks from top to bottom.
    pub(crate) fn png(&self) -> Vec<u8> {
        let blocks = self.blocks.len();
        let each = MIN_SIDE.div_ceil(blocks);
        let scale =
            ColourScale::shares(self.matrix.block_attention.iter().flatten().flatten().copied());
        let side = blocks * each;
        let mut pixels = Vec::with_capacity(side * (3 * side + 1));
        for (shares, seen) in self.matrix.block_attention.iter().zip(&self.matrix.lift) {
            let cells = shares.iter().zip(seen).map(|(share, lift)| match (share, lift) {
                (Some(share), Some(_)) => scale.rgb(*share),
                _ => INVISIBLE,
            });
            let line: Vec<u8> = cells.flat_map(|colour| [colour].repeat(each)).flatten().collect();
            for _ in 0..each {
                pixels.push(0); // no filter
                pixels.extend_from_slice(&line);
            }
        }
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        let size = u32::try_from(side).expect("the number of blocks bounds the side").to_be_bytes();
        // Eight bits for each of three colours, no interlacing.
        chunk(&mut file, *b"IHDR", &[&size[..], &size, &[8, 2, 0, 0, 0]].concat());
        chunk(&mut file, *b"tEXt", b"Software\0longsift");
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        let packed = encoder.write_all(&pixels).and_then(|()| encoder.finish());
        chunk(&mut file, *b"IDAT", &packed.expect("writing to memory does not fail"));
        chunk(&mut file, *b"IEND", &[]);
        file
    }

    /// Returns the bytes of the file. The rest of the answer is JSON under the footer's key `longsift_map`.
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

fn chunk(file: &mut Vec<u8>, name: [u8; 4], content: &[u8]) {
    let length = u32::try_from(content.len()).expect("the image has a few megabytes");
    file.extend_from_slice(&length.to_be_bytes());
    let start = file.len();
    file.extend_from_slice(&name);
    file.extend_from_slice(content);
    let check = crc32fast::hash(&file[start..]);
    file.extend_from_slice(&check.to_be_bytes());
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
