//! Malformed Parquet files: invalid text, wrong footers, checksums.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::metadata::{
    ColumnChunkMetaDataBuilder, FileMetaData, ParquetMetaData, ParquetMetaDataReader,
    ParquetMetaDataWriter,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Column of byte strings, declared as text.
pub type RawColumn<'a> = (&'a str, Vec<&'a [u8]>);

/// Settings of [`write_raw`].
#[derive(Clone, Copy)]
pub struct Raw {
    pub group_rows: usize,
    pub page_rows: usize,
    /// Whether values are in a dictionary.
    pub dictionary: bool,
    pub compression: Compression,
}

impl Raw {
    /// Returns settings for one uncompressed page without a dictionary.
    pub fn plain() -> Self {
        let compression = Compression::UNCOMPRESSED;
        Self { group_rows: 1 << 20, page_rows: 1 << 20, dictionary: false, compression }
    }
}

/// Writes columns of texts without validating their bytes.
pub fn write_raw(path: &Path, columns: &[RawColumn<'_>], raw: Raw) {
    let fields: Vec<String> =
        columns.iter().map(|(name, _)| format!("required binary {name} (STRING);")).collect();
    let schema = parse_message_type(&format!("message schema {{ {} }}", fields.join(" "))).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(raw.dictionary)
        .set_data_page_row_count_limit(raw.page_rows)
        .set_write_batch_size(1)
        .set_compression(raw.compression)
        .build();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create(path).unwrap();
    let mut writer =
        SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).unwrap();
    let rows = columns[0].1.len();
    for start in (0..rows).step_by(raw.group_rows) {
        let end = (start + raw.group_rows).min(rows);
        let mut group = writer.next_row_group().unwrap();
        for (_, values) in columns {
            let values: Vec<ByteArray> =
                values[start..end].iter().map(|value| ByteArray::from(value.to_vec())).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Returns the bytes before the footer of a file, and the footer.
pub fn split(path: &Path) -> (Vec<u8>, ParquetMetaData) {
    let mut bytes = fs::read(path).unwrap();
    let length = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let footer = bytes.len() - 8 - length;
    let metadata = ParquetMetaDataReader::decode_metadata(&bytes[footer..footer + length]).unwrap();
    bytes.truncate(footer);
    (bytes, metadata)
}

/// Writes data followed by a footer.
pub fn join(path: &Path, data: &[u8], footer: &ParquetMetaData) {
    let mut bytes = data.to_vec();
    let mut written = Vec::new();
    ParquetMetaDataWriter::new(&mut written, footer).finish().unwrap();
    bytes.extend(written);
    fs::write(path, bytes).unwrap();
}

/// Changes the footer's entry for the first column of the first row group.
pub fn edit_column_chunk(
    path: &Path,
    change: impl Fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder,
) {
    let (data, footer) = split(path);
    let mut groups = footer.row_groups().to_vec();
    let mut columns = groups[0].columns().to_vec();
    columns[0] = change(columns[0].clone().into_builder()).build().unwrap();
    groups[0] = groups[0].clone().into_builder().set_column_metadata(columns).build().unwrap();
    join(path, &data, &ParquetMetaData::new(footer.file_metadata().clone(), groups));
}

/// Changes the number of rows in the footer, of its first row group and in total.
pub fn claim_rows(path: &Path, rows: i64) {
    let (data, footer) = split(path);
    let mut groups = footer.row_groups().to_vec();
    groups[0] = groups[0].clone().into_builder().set_num_rows(rows).build().unwrap();
    let file = footer.file_metadata();
    let all = groups.iter().map(parquet::file::metadata::RowGroupMetaData::num_rows).sum();
    let columns = file.schema_descr_ptr();
    let file = FileMetaData::new(file.version(), all, None, None, columns, None);
    join(path, &data, &ParquetMetaData::new(file, groups));
}

/// Adds a checksum to every page of the first row group of a file of one column.
pub fn add_checksums(path: &Path) {
    let (data, footer) = split(path);
    let chunk = footer.row_group(0).column(0);
    let (start, length) = chunk.byte_range();
    let mut out = data[..start as usize].to_vec();
    let mut at = start as usize;
    while at < (start + length) as usize {
        // Field 1 (the type) and field 2 (the size) are one header byte and one number each, field 3 is the size.
        let mut end = at;
        let mut size = 0;
        for _ in 0..3 {
            end += 1;
            let (value, bytes) = varint(&data[end..]);
            size = (value >> 1) as usize;
            end += bytes;
        }
        let header = at..header_end(&data, at);
        let page = &data[header.end..header.end + size];
        let checksum = crc32fast::hash(page) as i32;
        out.extend_from_slice(&data[at..end]);
        out.push(0x15);
        let mut zigzag = ((checksum << 1) ^ (checksum >> 31)) as u32;
        while zigzag >= 0x80 {
            out.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        out.push(zigzag as u8);
        assert_eq!(data[end], 0x2c, "the next field is number 5, the header of a data page");
        out.push(0x1c);
        out.extend_from_slice(&data[end + 1..header.end]);
        out.extend_from_slice(page);
        at = header.end + size;
    }
    out.extend_from_slice(&data[at..]);
    let added = (out.len() - data.len()) as i64;
    let groups = footer.row_groups().iter().enumerate().map(|(index, group)| {
        let chunk = group.column(0);
        let (length, offset) = (chunk.compressed_size(), chunk.data_page_offset());
        let (longer, moved) = if index == 0 { (added, 0) } else { (0, added) };
        let chunk = chunk
            .clone()
            .into_builder()
            .set_total_compressed_size(length + longer)
            .set_data_page_offset(offset + moved)
            .set_offset_index_offset(None)
            .set_offset_index_length(None)
            .set_column_index_offset(None)
            .set_column_index_length(None);
        let columns = vec![chunk.build().unwrap()];
        group.clone().into_builder().set_column_metadata(columns).build().unwrap()
    });
    join(path, &out, &ParquetMetaData::new(footer.file_metadata().clone(), groups.collect()));
}

fn varint(bytes: &[u8]) -> (u64, usize) {
    let (mut value, mut count) = (0, 0);
    for byte in bytes {
        value |= u64::from(byte & 0x7f) << (7 * count);
        count += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    (value, count)
}

/// Returns the end of the header of the page at `at`, after its data page header, a structure of numbers and
/// statistics.
fn header_end(data: &[u8], at: usize) -> usize {
    fn structure(data: &[u8], mut at: usize) -> usize {
        loop {
            let kind = data[at] & 0xf;
            at += 1;
            match kind {
                0 => return at,
                1 | 2 => {}
                4..=6 => at += varint(&data[at..]).1,
                8 => {
                    let (length, bytes) = varint(&data[at..]);
                    at += bytes + length as usize;
                }
                12 => at = structure(data, at),
                other => panic!("type {other} in a page header"),
            }
        }
    }
    structure(data, at)
}
