//! Scans a file of lines once: counts rows, records the offsets of line ranges, and infers the columns from the first
//! lines.

use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use longsift_stages::contract::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::compression::FileCompression;
use super::decode::RowGroupInfo;
use super::line_format::LineFormat;
use super::line_reader::LineReader;
use super::shape::JsonShape;
use crate::base::parallel::lock;
use crate::base::stop::Stop;
use crate::dataset::problem::DataProblem;
use crate::dataset::source::OpenFile;

const MAX_SAMPLED_LINES: u64 = 1000;
/// A range has at least a thousandth of the file, within these bounds: few ranges in large files, fine ones in small.
const MAX_RANGES: u64 = 1024;
const MIN_RANGE_BYTES: u64 = 4 << 10;
const MAX_RANGE_BYTES: u64 = 1 << 20;
/// Longer lines are not used to infer columns.
const MAX_SAMPLED_LINE_BYTES: u64 = 64 << 20;
const LINES_PER_CHECK: u64 = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineSurvey {
    pub(crate) sha256: String,
    #[serde(rename = "stretches")]
    pub(super) ranges: Vec<LineRange>,
    /// Number of lines that are not blank.
    pub(crate) rows: u64,
    pub(super) bytes: u64,
    pub(crate) shape: JsonShape,
}

/// Start of a range of lines: decompressed offset, rows before it, lines before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LineRange {
    pub(super) start: u64,
    pub(super) first_row: u64,
    pub(super) lines_before: u64,
}

impl LineSurvey {
    /// Scans a file of `size` bytes. A compressed file is one range: it can only be read from its beginning.
    pub(crate) fn scan(
        file: &OpenFile,
        size: u64,
        line_format: LineFormat,
        compression: FileCompression,
    ) -> Result<Self, DataProblem> {
        let digest = Arc::new(Mutex::new(Sha256::new()));
        let hashed = HashingReader { inner: file.reader(0), digest: Arc::clone(&digest) };
        let range_bytes = match compression {
            FileCompression::None => (size / MAX_RANGES).clamp(MIN_RANGE_BYTES, MAX_RANGE_BYTES),
            _ => u64::MAX,
        };
        let failed = |error: &io::Error| match file.refused() {
            Some(refused) => DataProblem::unread(refused),
            None if error.kind() == io::ErrorKind::Interrupted => {
                DataProblem::machine("interrupted while its lines were counted")
            }
            None if error.kind() == io::ErrorKind::OutOfMemory => {
                DataProblem::settings(error.to_string())
            }
            None => DataProblem::data(format!("it does not decompress: {error}"))
                .with_hint("rewrite the file, or exclude it from the input"),
        };
        let reader = compression.reader(hashed).map_err(|error| failed(&error))?;
        let mut survey =
            scan_lines(reader, line_format, range_bytes).map_err(|error| failed(&error))?;
        survey.sha256 = hex(&lock(&digest).finalize_reset());
        if survey.shape == JsonShape::default() && survey.rows > 0 {
            return Err(DataProblem::data(format!(
                "none of its first {} lines is {}",
                survey.rows.min(MAX_SAMPLED_LINES),
                line_format.line()
            ))
            .with_hint(
                "each line must be one JSON object; set `input.format` for files with other names",
            ));
        }
        Ok(survey)
    }

    pub(crate) fn row_groups(&self, size: u64) -> Vec<RowGroupInfo> {
        let ends = self.ranges.iter().skip(1).map(|next| (next.start, next.first_row));
        let ends = ends.chain([(self.bytes, self.rows)]);
        let group = |(range, (end, end_row)): (&LineRange, (u64, u64))| {
            let bytes = end - range.start;
            RowGroupInfo {
                first_row: range.first_row,
                rows: end_row - range.first_row,
                uncompressed_bytes: bytes,
                compressed_bytes: bytes.min(size),
            }
        };
        self.ranges.iter().zip(ends).map(group).collect()
    }
}

fn scan_lines(
    reader: impl io::BufRead,
    line_format: LineFormat,
    range_bytes: u64,
) -> io::Result<LineSurvey> {
    let mut reader = LineReader::new(reader, 0, 0);
    let (mut rows, mut shape) = (0_u64, JsonShape::default());
    let mut ranges: Vec<LineRange> = Vec::new();
    let mut line = Vec::new();
    loop {
        if rows.is_multiple_of(LINES_PER_CHECK) && Stop::global().check().is_err() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let looked_at = rows < MAX_SAMPLED_LINES;
        line.clear();
        let into = looked_at.then_some(&mut line);
        let Some(read) = reader.next(into, MAX_SAMPLED_LINE_BYTES)? else { break };
        if looked_at && let Some(seen) = line_format.shape(&line) {
            shape = shape.merge(seen);
        }
        if ranges.last().is_none_or(|last| read.start - last.start >= range_bytes) {
            let (start, lines_before) = (read.start, read.number - 1);
            ranges.push(LineRange { start, first_row: rows, lines_before });
        }
        rows += 1;
    }
    Ok(LineSurvey { sha256: String::new(), ranges, rows, bytes: reader.offset, shape })
}

struct HashingReader<R> {
    inner: R,
    digest: Arc<Mutex<Sha256>>,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        lock(&self.digest).update(&bytes[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_at_lines_and_contain_all_rows() {
        let lines: Vec<String> = (0..50).map(|row| format!("{{\"n\": {row}}}\n\n")).collect();
        let lines = lines.concat();
        let survey = scan_lines(lines.as_bytes(), LineFormat::Json, 100).unwrap();
        assert_eq!((survey.rows, survey.bytes), (50, lines.len() as u64));
        let groups = survey.row_groups(survey.bytes);
        assert!(groups.len() > 4, "{groups:?}");
        assert_eq!(groups.iter().map(|group| group.rows).sum::<u64>(), 50);
        assert_eq!(groups.iter().map(|group| group.compressed_bytes).sum::<u64>(), survey.bytes);
        for range in &survey.ranges {
            assert!(
                lines[range.start as usize..]
                    .starts_with(&format!("{{\"n\": {}}}", range.first_row))
            );
            assert_eq!(range.lines_before, 2 * range.first_row);
        }
        assert_eq!(scan_lines(&b""[..], LineFormat::Json, 100).unwrap().row_groups(0), []);
    }
}
