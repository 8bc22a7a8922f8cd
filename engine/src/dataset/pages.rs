//! Reads the pages of a column chunk with a limit on their decompressed size: a page of a few bytes can announce two
//! gigabytes, and one compressed with gzip, Brotli or LZ4 can hold more than it announces.

use std::io::Read;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;

use super::formats::decode::DecodeError;
use super::source::OpenFile;
use super::thrift::{INT32, STRUCT, ThriftReader};

const BUFFER_BYTES: usize = 8192;
/// Magic number of an LZ4 frame. Other LZ4 pages have a length before each block, which the library respects.
const LZ4_FRAME: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
const DICTIONARY_PAGE: i64 = 2;
/// Page type number of an index page, which the library skips.
const INDEX_PAGE: i64 = 1;

struct PageSizes {
    kind: i64,
    header: u64,
    /// Size of the uncompressed levels of a version 2 page.
    levels: u64,
    /// Compressed size, including levels.
    compressed: u64,
    /// Uncompressed size, including levels.
    uncompressed: u64,
}

/// Limit of a page, and the page that exceeded it: the library reduces every error to a text.
#[derive(Clone)]
pub(super) struct PageLimit {
    pub(super) bytes: u64,
    pub(super) exceeded: Arc<OnceLock<DecodeError>>,
}

/// Page reader of one column chunk.
///
/// Memory: the compressed bytes of one page, which are bytes of the file, and its decompressed bytes, at most
/// `limit.bytes` and at most the size in its header.
pub(super) struct BoundedPages {
    /// Reads pages, and decompresses them unless [`decompressed_here`].
    pages: SerializedPageReader<OpenFile>,
    file: OpenFile,
    codec: Compression,
    limit: PageLimit,
    /// Offset of the next header; `start` and `end`: offsets of the chunk.
    position: u64,
    start: u64,
    end: u64,
}

impl BoundedPages {
    pub(super) fn new(
        file: &OpenFile,
        chunk: &ColumnChunkMetaData,
        rows: usize,
        limit: PageLimit,
    ) -> Result<Self> {
        let codec = chunk.compression();
        let (start, length) = chunk.byte_range();
        let (position, end) = (start, start.saturating_add(length));
        let source = Arc::new(file.clone());
        let pages = if decompressed_here(codec) {
            // The library then returns the compressed bytes.
            let builder = chunk.clone().into_builder();
            let chunk = builder.set_compression(Compression::UNCOMPRESSED).build()?;
            SerializedPageReader::new(source, &chunk, rows, None)?
        } else {
            SerializedPageReader::new(source, chunk, rows, None)?
        };
        Ok(Self { pages, file: file.clone(), codec, limit, position, start, end })
    }

    /// Reads the header of the next page and moves past the page; `None` at the end of the chunk.
    fn advance(&mut self) -> Result<Option<(u64, PageSizes)>> {
        while self.position < self.end {
            let position = self.position;
            let page = read_header(&self.file, position).map_err(|why| {
                damaged(format!("the page header at byte {position} does not decode: {why}"))
            })?;
            let next = (position + page.header).saturating_add(page.compressed);
            if next > self.end {
                return Err(damaged(format!(
                    "the page at byte {position} claims {} bytes, but its column chunk ends at {}",
                    page.compressed, self.end
                )));
            }
            self.position = next;
            if page.kind == INDEX_PAGE {
                continue;
            }
            if page.kind == DICTIONARY_PAGE && position > self.start {
                return Err(damaged(format!(
                    "the page at byte {position} is a dictionary, which must be the first page"
                )));
            }
            return Ok(Some((position, page)));
        }
        Ok(None)
    }

    fn check_limit(&self, position: u64, page: &PageSizes) -> Result<()> {
        let PageSizes { compressed, uncompressed, .. } = page;
        let limit = self.limit.bytes;
        if *uncompressed <= limit {
            return Ok(());
        }
        let message = format!(
            "the page at byte {position} would decompress from {compressed} to {uncompressed} bytes; the limit is {limit} (four times `max_document_bytes`)"
        );
        let hint = format!(
            "set `input.max_document_bytes` to at least {}, or write the file with smaller pages (pyarrow: `write_table(…, write_batch_size=16)`)",
            uncompressed.div_ceil(4)
        );
        let (code, text, hint) = ("page_too_large", message.clone(), Some(hint));
        let _ = self.limit.exceeded.set(DecodeError { code, message: text, hint });
        Err(ParquetError::General(message))
    }

    /// Counts the bytes in an LZ4 frame: the library would decompress the whole frame.
    fn check_frame(&self, position: u64, page: &PageSizes) -> Result<()> {
        let start = position + page.header + page.levels;
        let compressed = self.file.get_bytes(start, (page.compressed - page.levels) as usize)?;
        if self.codec != Compression::LZ4 || !compressed.starts_with(&LZ4_FRAME) {
            return Ok(());
        }
        let max = page.uncompressed - page.levels;
        let frames = lz4_flex::frame::FrameDecoder::new(&compressed[..]);
        let counted = std::io::copy(&mut frames.take(max + 1), &mut std::io::sink());
        // The library reports frames that do not decompress.
        if counted.is_ok_and(|bytes| bytes > max) { Err(overflow(page)) } else { Ok(()) }
    }
}

/// Whether pages of a codec are decompressed here: the library would decompress their whole input.
fn decompressed_here(codec: Compression) -> bool {
    matches!(codec, Compression::GZIP(_) | Compression::BROTLI(_))
}

fn decompressed(codec: Compression, bytes: &Bytes, page: &PageSizes) -> Result<Bytes> {
    let (levels, compressed) = bytes
        .split_at_checked(page.levels as usize)
        .ok_or_else(|| damaged("its levels are longer than the page".to_owned()))?;
    let size = page.uncompressed as usize;
    // A page without values has nothing to decompress.
    if size == levels.len() {
        return Ok(bytes.slice(..size));
    }
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(levels);
    let max = (size - levels.len()) as u64 + 1;
    match codec {
        Compression::BROTLI(_) => {
            brotli::Decompressor::new(compressed, BUFFER_BYTES).take(max).read_to_end(&mut out)?
        }
        _ => flate2::read::MultiGzDecoder::new(compressed).take(max).read_to_end(&mut out)?,
    };
    if out.len() > size {
        return Err(overflow(page));
    }
    if out.len() < size {
        let found = out.len();
        return Err(damaged(format!(
            "a page decompresses to {found} bytes, but its header states {size}"
        )));
    }
    Ok(out.into())
}

fn overflow(page: &PageSizes) -> ParquetError {
    let size = page.uncompressed;
    damaged(format!("a page decompresses to more than the {size} bytes in its header"))
}

fn damaged(why: String) -> ParquetError {
    ParquetError::General(why)
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some((position, sizes)) = self.advance()? else { return Ok(None) };
        self.check_limit(position, &sizes)?;
        if self.codec == Compression::LZ4 {
            self.check_frame(position, &sizes)?;
        }
        let mut page = self.pages.get_next_page()?;
        if decompressed_here(self.codec)
            && let Some(
                Page::DataPage { buf, .. }
                | Page::DictionaryPage { buf, .. }
                | Page::DataPageV2 { buf, is_compressed: true, .. },
            ) = &mut page
        {
            *buf = decompressed(self.codec, buf, &sizes)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.advance()?;
        self.pages.skip_next_page()
    }
}

/// Returns an upper limit of the length of the values in `chunk`'s dictionary: the size of the dictionary. `None`
/// without a dictionary. Any number of rows can use the longest value.
pub(super) fn longest_in_dictionary(file: &OpenFile, chunk: &ColumnChunkMetaData) -> Option<u64> {
    let page = read_header(file, chunk.byte_range().0).ok()?;
    (page.kind == DICTIONARY_PAGE).then_some(page.uncompressed)
}

fn read_header(file: &OpenFile, position: u64) -> std::result::Result<PageSizes, String> {
    let mut thrift = ThriftReader::new(file.get_read(position).map_err(|error| error.to_string())?);
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
        kind: kind_of_page,
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

/// Returns the bytes of the levels from the header of a version 2 page.
fn read_levels<R: Read>(thrift: &mut ThriftReader<R>) -> std::result::Result<i64, String> {
    let (mut levels, mut last) = (0_i64, 0);
    while let Some((field, kind)) = thrift.field(&mut last)? {
        match (field, kind) {
            (5 | 6, INT32) => levels = levels.saturating_add(thrift.integer()?),
            _ => thrift.skip(kind)?,
        }
    }
    Ok(levels)
}
