//! What the pages of a column chunk claim to become, checked before anything is decompressed: a page of a few bytes may
//! announce two gigabytes, and one compressed with gzip, Brotli or LZ4 may hold more than it announces.

use std::io::Read;

use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;

use super::source::OpenFile;
use super::thrift::{INT32, STRUCT, Thrift};

/// Bytes that a decompressor reads at once.
const BUFFER_BYTES: usize = 8192;

/// The number of dictionary pages among the types of pages.
const DICTIONARY_PAGE: i64 = 2;

/// The sizes in the header of a page, in bytes.
struct PageSizes {
    /// Whether it is a dictionary: values that other pages name by their position.
    is_dictionary: bool,
    /// Of the header itself.
    header: u64,
    /// Of what stands before the compressed part: the levels of a page of the second version.
    levels: u64,
    /// Levels included.
    compressed: u64,
    /// Levels included.
    uncompressed: u64,
}

/// Why pages are not read.
#[derive(Debug)]
pub(super) enum PageFault {
    /// They are not what their headers say.
    Damaged(String),
    /// A page is whole, and larger than the limit: what is wrong, and what to do.
    TooLarge(String, String),
}

impl From<String> for PageFault {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

/// That no page of `chunk` becomes larger than `largest` bytes, nor larger than its header says.
///
/// Reads the headers; the pages themselves only where the decompressor would not stop by itself.
pub(super) fn check(
    file: &OpenFile,
    chunk: &ColumnChunkMetaData,
    largest: u64,
) -> Result<(), PageFault> {
    let (first, length) = chunk.byte_range();
    let mut position = first;
    let end = position.saturating_add(length);
    while position < end {
        let page = read_header(file, position)
            .map_err(|why| format!("the page header at byte {position} does not decode: {why}"))?;
        let start = position + page.header;
        let next = start.saturating_add(page.compressed);
        if next > end {
            let claimed = page.compressed;
            let why = format!(
                "the page at byte {position} claims {claimed} bytes, its column chunk ends at {end}"
            );
            return Err(why.into());
        }
        if page.is_dictionary && position > first {
            let why = format!("the page at byte {position} is a dictionary, which comes first");
            return Err(why.into());
        }
        if page.uncompressed > largest {
            let (from, to) = (page.compressed, page.uncompressed);
            return Err(PageFault::TooLarge(
                format!(
                    "the page at byte {position} would decompress from {from} to {to} bytes; at most {largest} are read (four times `max_document_bytes`)"
                ),
                format!(
                    "set `input.max_document_bytes` to at least {}, or write the file with smaller pages (pyarrow: `write_table(…, write_batch_size=16)`)",
                    to.div_ceil(4)
                ),
            ));
        }
        if overflows(file, chunk.compression(), start, &page)? {
            let said = page.uncompressed;
            let why = format!(
                "the page at byte {position} decompresses to more than the {said} bytes that its header says"
            );
            return Err(why.into());
        }
        position = next;
    }
    Ok(())
}

/// The length that no value of `chunk` exceeds if its values stand in a dictionary: that of the whole dictionary.
/// Nothing where there is none. Rows may name the longest value as often as they like.
pub(super) fn longest_in_dictionary(file: &OpenFile, chunk: &ColumnChunkMetaData) -> Option<u64> {
    let page = read_header(file, chunk.byte_range().0).ok()?;
    page.is_dictionary.then_some(page.uncompressed)
}

fn read_header(file: &OpenFile, position: u64) -> Result<PageSizes, String> {
    let mut thrift = Thrift::new(file.get_read(position).map_err(|error| error.to_string())?);
    let (mut kind_of_page, mut uncompressed, mut compressed, mut levels) = (-1, -1, -1, 0);
    let mut last = 0;
    while let Some((field, kind)) = thrift.field(&mut last)? {
        match (field, kind) {
            (1, INT32) => kind_of_page = thrift.integer()?,
            (2, INT32) => uncompressed = thrift.integer()?,
            (3, INT32) => compressed = thrift.integer()?,
            (8, STRUCT) => levels = read_levels(&mut thrift)?,
            _ => thrift.skip(kind)?,
        }
    }
    let size = |size: i64| u64::try_from(size).map_err(|_| "a size is missing or negative");
    let sizes = PageSizes {
        is_dictionary: kind_of_page == DICTIONARY_PAGE,
        header: thrift.position,
        levels: size(levels)?,
        compressed: size(compressed)?,
        uncompressed: size(uncompressed)?,
    };
    if sizes.levels > sizes.compressed.min(sizes.uncompressed) {
        return Err("its levels are longer than the page".into());
    }
    Ok(sizes)
}

/// The bytes of the levels in the header of a page of the second version.
fn read_levels<R: Read>(thrift: &mut Thrift<R>) -> Result<i64, String> {
    let (mut levels, mut last) = (0_i64, 0);
    while let Some((field, kind)) = thrift.field(&mut last)? {
        match (field, kind) {
            (5 | 6, INT32) => levels = levels.saturating_add(thrift.integer()?),
            _ => thrift.skip(kind)?,
        }
    }
    Ok(levels)
}

/// Whether the page holds more than it announces, for the codecs whose decompressors in the Parquet library go on to
/// the end of their input. Nothing is kept of what comes out. What does not decompress at all is left to the reader.
fn overflows(
    file: &OpenFile,
    codec: Compression,
    start: u64,
    page: &PageSizes,
) -> Result<bool, String> {
    if !matches!(codec, Compression::GZIP(_) | Compression::BROTLI(_) | Compression::LZ4) {
        return Ok(false);
    }
    let compressed = file.get_read(start + page.levels).map_err(|error| error.to_string())?;
    let compressed = compressed.take(page.compressed - page.levels);
    let mut decompressed: Box<dyn Read> = match codec {
        Compression::GZIP(_) => Box::new(flate2::read::MultiGzDecoder::new(compressed)),
        Compression::BROTLI(_) => Box::new(brotli::Decompressor::new(compressed, BUFFER_BYTES)),
        _ => Box::new(lz4_flex::frame::FrameDecoder::new(compressed)),
    };
    let most = page.uncompressed - page.levels;
    let mut out = 0;
    let mut buffer = vec![0; 64 << 10];
    while out <= most {
        match decompressed.read(&mut buffer) {
            Ok(0) | Err(_) => return Ok(false),
            Ok(read) => out += read as u64,
        }
    }
    Ok(true)
}
