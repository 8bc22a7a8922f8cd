//! Output files for the rows of a range of units.

use std::path::Path;

use arrow_array::RecordBatch;

use super::cuts::UnitRange;
use super::formats::{Format, OpenPart};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::run_directory::units::Part;

/// Files of a range while they are written, one after the other, with equal numbers of rows.
pub(super) struct OutputFiles<'a> {
    pub(super) names: &'a [String],
    pub(super) folder: &'a Path,
    pub(super) format: &'a Format<'a>,
    expected: u64,
    pub(super) written: u64,
    open: Option<OpenPart>,
    parts: usize,
    finished: Vec<Part>,
}

impl<'a> OutputFiles<'a> {
    /// Starts without an open file. `expected`: rows of all files together.
    pub(super) fn new(
        range: &'a UnitRange,
        expected: u64,
        folder: &'a Path,
        format: &'a Format<'a>,
    ) -> Self {
        let (open, parts, finished) = (None, 0, Vec::new());
        let names = &range.files;
        Self { names, folder, format, expected, written: 0, open, parts, finished }
    }

    /// Appends rows, and finishes each file once it has all its rows.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut first = 0;
        while first < batch.num_rows() {
            let file = self.parts;
            let Some(name) = self.names.get(file) else {
                let message =
                    format!("expected {} rows of a range of units, got more", self.expected);
                return Err(Diagnostic::error(Blame::Bug, message).into());
            };
            let mut writer = match self.open.take() {
                Some(writer) => writer,
                None => self.format.create(self.folder, name)?,
            };
            let left = self.end(file) - self.written;
            let rows = usize::try_from(left).unwrap_or(usize::MAX).min(batch.num_rows() - first);
            writer.write(&batch.slice(first, rows))?;
            first += rows;
            self.written += rows as u64;
            if self.written == self.end(file) {
                self.finished.extend(writer.finish()?);
                self.parts += 1;
            } else {
                self.open = Some(writer);
            }
        }
        Ok(())
    }

    /// Finishes after all rows were written. If no row was kept, creates an empty file that defines the columns.
    pub(super) fn finish(mut self) -> Result<Vec<Part>> {
        if let ([name], 0) = (self.names, self.expected) {
            self.finished = self.format.create(self.folder, name)?.finish()?;
            return Ok(self.finished);
        }
        if self.open.is_some() || self.parts != self.names.len() {
            let (expected, written) = (self.expected, self.written);
            let message = format!("expected {expected} rows of a range of units, got {written}");
            return Err(Diagnostic::error(Blame::Bug, message).into());
        }
        Ok(self.finished)
    }

    /// Returns the number of rows up to the end of a file.
    fn end(&self, file: usize) -> u64 {
        let rows = u128::from(self.expected) * (file as u128 + 1);
        (rows / self.names.len() as u128) as u64
    }
}
