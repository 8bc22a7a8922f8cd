//! Decodes files of lines: JSON Lines, and tables with JSON in their second column, plain or compressed as a whole.
//!
//! A line that does not fit the columns becomes a bad row of nulls.

use std::io::BufRead;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_json::ReaderBuilder;
use arrow_schema::{ArrowError, SchemaRef};
use longsift_stages::contract::RowError;

use super::compression::FileCompression;
use super::decode::{Decode, DecodeError, DecodeRequest, Decoded};
use super::fits::ColumnValue;
use super::line_format::LineFormat;
use super::line_reader::{LinePosition, LineReader};
use super::survey::{LineRange, LineSurvey};
use super::survey_cache::SurveyCacheEntry;
use crate::dataset::source::{OpenFile, guarded};

const BATCH_BYTES: usize = 16 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Lines {
    pub(crate) line_format: LineFormat,
    pub(crate) compression: FileCompression,
    pub(crate) survey: Arc<LineSurvey>,
    pub(crate) cache_entry: SurveyCacheEntry,
    /// Whether the columns were inferred from the first lines: then a field without a column makes a line bad.
    pub(crate) inferred: bool,
    pub(crate) max_line_bytes: u64,
}

impl Lines {
    pub(crate) fn open(
        &self,
        source: &OpenFile,
        schema: &SchemaRef,
        wanted: &DecodeRequest,
    ) -> Result<Box<dyn Decode>, DecodeError> {
        let groups = self.survey.row_groups(u64::MAX);
        let rows = wanted.rows.iter().rev().cloned().collect();
        if self.compression == FileCompression::None {
            let wanted = wanted.by_row_group(&groups);
            // Includes the preceding line feed, which is checked.
            source.file.hint_ranges(wanted.iter().map(|(group, _)| {
                let start = self.survey.ranges[*group].start;
                let before = start.min(1);
                (start - before, groups[*group].uncompressed_bytes + before)
            }));
        }
        let schema = Arc::new(schema.project(&wanted.in_file_order())?);
        let strict = wanted.strict && self.inferred;
        let batch_rows = wanted.batch_rows.max(1);
        let lines = self.clone();
        let source = source.clone();
        Ok(Box::new(LinesDecoder { lines, source, schema, strict, batch_rows, rows, reader: None }))
    }
}

struct LinesDecoder {
    lines: Lines,
    source: OpenFile,
    schema: SchemaRef,
    strict: bool,
    batch_rows: usize,
    /// Row ranges still to read, the next one last.
    rows: Vec<Range<u64>>,
    /// Reader, and the index of its next row.
    reader: Option<(LineReader<Box<dyn BufRead + Send>>, u64)>,
}

#[derive(Default)]
struct LineBatch {
    text: Vec<u8>,
    /// Numbers of the lines, and their ranges in the text or the error of a line that is too long.
    lines: Vec<(u64, Result<Range<usize>, RowError>)>,
}

impl Decode for LinesDecoder {
    fn next(&mut self) -> Result<Option<Decoded>, DecodeError> {
        let lines = self.read()?;
        if lines.lines.is_empty() {
            return Ok(None);
        }
        Ok(Some(guarded(|| self.decode(&lines))?))
    }
}

impl LinesDecoder {
    fn read(&mut self) -> Result<LineBatch, DecodeError> {
        let mut lines = LineBatch::default();
        let limit = self.lines.max_line_bytes;
        while lines.lines.len() < self.batch_rows && lines.text.len() < BATCH_BYTES {
            let Some(rows) = self.rows.last_mut() else { break };
            let row = rows.start;
            rows.start += 1;
            if rows.is_empty() {
                self.rows.pop();
            }
            let next = self.rows.last().map(|rows| rows.start);
            let reader = self.reader_at(row)?;
            let before = lines.text.len();
            let line = reader.next(Some(&mut lines.text), limit)?;
            let Some(line) = line else { return Err(self.moved()) };
            self.check_start(row, line)?;
            if next != Some(row + 1) {
                self.check_end(row)?;
            }
            let number = line.number;
            let text = if line.bytes > limit {
                let message = format!(
                    "line {number} has {} bytes; the limit is {limit} (4 times `max_document_bytes`)",
                    line.bytes
                );
                Err(RowError::new("line_too_long", message))
            } else {
                Ok(before..lines.text.len())
            };
            lines.lines.push((number, text));
        }
        Ok(lines)
    }

    /// If `row` begins a range, checks that its line begins where the survey counted it.
    fn check_start(&self, row: u64, line: LinePosition) -> Result<(), DecodeError> {
        let ranges = &self.lines.survey.ranges;
        let Ok(index) = ranges.binary_search_by_key(&row, |range| range.first_row) else {
            return Ok(());
        };
        let LineRange { start, lines_before, .. } = ranges[index];
        let as_counted = (line.start, line.number) == (start, lines_before + 1);
        if as_counted { Ok(()) } else { Err(self.moved()) }
    }

    /// If `row`, which was just read, ends a range, checks that the next line begins where the survey counted it.
    fn check_end(&mut self, row: u64) -> Result<(), DecodeError> {
        let LineSurvey { ranges, rows, bytes, .. } = &*self.lines.survey;
        let (is_last, bytes) = (row + 1 == *rows, *bytes);
        let following = ranges.binary_search_by_key(&(row + 1), |next| next.first_row);
        if !is_last && following.is_err() {
            return Ok(());
        }
        let (reader, next) = self.reader.as_mut().expect("a row was just read with it");
        if following.is_ok_and(|index| ranges[index].start == reader.offset) {
            return Ok(());
        }
        let line = reader.next(None, 0)?;
        *next += 1;
        match line {
            Some(line) if !is_last => self.check_start(row + 1, line),
            None if is_last && reader.offset == bytes => Ok(()),
            _ => Err(self.moved()),
        }
    }

    /// Reports that lines have moved since the survey, and removes the survey from the cache.
    fn moved(&self) -> DecodeError {
        self.lines.cache_entry.remove();
        "its lines have moved since they were counted; run again to recount them".into()
    }

    fn reader_at(
        &mut self,
        row: u64,
    ) -> Result<&mut LineReader<Box<dyn BufRead + Send>>, DecodeError> {
        let ranges = &self.lines.survey.ranges;
        let range = ranges.partition_point(|range| range.first_row <= row).saturating_sub(1);
        let range = *ranges.get(range).ok_or_else(|| self.moved())?;
        let is_before_range = self.reader.as_ref().is_none_or(|(_, next)| *next < range.first_row);
        if is_before_range {
            // Compressed files are read from the beginning.
            let (start, before) = match self.lines.compression {
                FileCompression::None => (range.start, range.lines_before),
                _ => (0, 0),
            };
            if start > 0 {
                let mut before = [0];
                self.source.read_exact_at(&mut before, start - 1)?;
                if before != *b"\n" {
                    return Err(self.moved());
                }
            }
            let bytes = self.source.reader(start);
            let reader = self.lines.compression.reader(bytes)?;
            let reader = LineReader::new(reader, start, before);
            self.reader = Some((reader, range.first_row));
        }
        loop {
            let (reader, next) = self.reader.as_mut().expect("it was just put there");
            if *next >= row {
                break;
            }
            let skipped = reader.next(None, 0)?;
            let skipped_row = *next;
            *next += 1;
            match skipped {
                Some(line) => self.check_start(skipped_row, line)?,
                None => return Err(self.moved()),
            }
        }
        let (reader, next) = self.reader.as_mut().expect("it was just put there");
        *next += 1;
        Ok(reader)
    }

    fn decode(&self, lines: &LineBatch) -> Result<Decoded, ArrowError> {
        let columns = self.schema.fields();
        let (mut rows, mut bad) = (Vec::with_capacity(lines.lines.len()), Vec::new());
        let no_values = || ColumnValue::Object(Vec::new());
        for (position, (number, text)) in lines.lines.iter().enumerate() {
            let row = text.clone().and_then(|text| {
                self.lines.line_format.row(*number, &lines.text[text], columns, self.strict)
            });
            rows.push(row.unwrap_or_else(|problem| {
                bad.push((position, problem));
                no_values()
            }));
        }
        if let Ok(batch) = self.batch(&rows) {
            return Ok(Decoded { batch, bad });
        }
        // Instants that do not fit a column are found row by row.
        for (position, (number, _)) in lines.lines.iter().enumerate() {
            if let Err(why) = guarded(|| self.batch(std::slice::from_ref(&rows[position]))) {
                let message = format!("line {number}: {why}");
                bad.push((position, RowError::new("bad_line", message)));
                rows[position] = no_values();
            }
        }
        bad.sort_by_key(|(position, _)| *position);
        Ok(Decoded { batch: self.batch(&rows)?, bad })
    }

    /// Builds columns from rows. Missing fields are null.
    fn batch(&self, rows: &[ColumnValue<'_>]) -> Result<RecordBatch, ArrowError> {
        let reader = ReaderBuilder::new(Arc::clone(&self.schema)).with_batch_size(rows.len());
        let mut decoder = reader.build_decoder()?;
        decoder.serialize(rows)?;
        let batch = decoder.flush()?;
        batch.filter(|batch| batch.num_rows() == rows.len()).ok_or_else(|| {
            ArrowError::JsonError(format!("{} rows became another number of rows", rows.len()))
        })
    }
}
