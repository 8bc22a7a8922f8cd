//! Reads tables of a run directory: Parquet files that longsift wrote, and that may have been damaged since.

use std::fmt::Display;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::{FieldRef, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::dataset::source::{OpenFile, guarded};

const BATCH_ROWS: usize = 8192;

/// Table file, with the hint for a damaged one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    pub(crate) path: &'a Path,
    /// Noun for messages: `score file`.
    pub(crate) what: &'a str,
    /// Message if a column is missing or has another type.
    pub(crate) other_columns: &'a str,
    pub(crate) hint: &'a str,
}

/// Returns a column of a batch; `None` if it is missing or has another type.
pub(super) fn column<'a, A: 'static>(batch: &'a RecordBatch, name: &str) -> Option<&'a A> {
    batch.column_by_name(name)?.as_any().downcast_ref()
}

/// Hint for a damaged table of a unit.
pub(super) const SCORE_AGAIN: &str =
    "remove it and the unit's record in `units/`, and run again: the unit is then scored again";

/// Whether fields begin with those of a table.
pub(super) fn begin_with(found: &[FieldRef], wanted: &[FieldRef]) -> bool {
    let is_same = |(found, wanted): (&FieldRef, &FieldRef)| {
        found.name() == wanted.name() && found.data_type() == wanted.data_type()
    };
    found.len() >= wanted.len() && found.iter().zip(wanted).all(is_same)
}

impl Table<'_> {
    /// Reads the columns whose names satisfy `wanted` and calls `each` for every batch.
    pub(crate) fn read(
        &self,
        wanted: impl Fn(&str) -> bool,
        mut each: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let file = OpenFile::open(self.path)?;
        let source = file.clone();
        let failed = |why: String| self.failed(&source, &why);
        let reader = guarded(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
            let fields = builder.schema().fields().iter().enumerate();
            let roots = fields.filter(|(_, field)| wanted(field.name())).map(|(index, _)| index);
            let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
            builder.with_projection(mask).with_batch_size(BATCH_ROWS).build()
        });
        let mut reader = reader.map_err(failed)?;
        while let Some(batch) = guarded(|| reader.next().transpose()).map_err(failed)? {
            each(&batch)?;
        }
        Ok(())
    }

    /// Reads the schema and the number of rows from the footer.
    pub(crate) fn shape(&self) -> Result<(SchemaRef, u64)> {
        let file = OpenFile::open(self.path)?;
        let source = file.clone();
        let builder = guarded(|| ParquetRecordBatchReaderBuilder::try_new(file))
            .map_err(|why| self.failed(&source, &why))?;
        let rows = builder.metadata().file_metadata().num_rows();
        let rows =
            u64::try_from(rows).map_err(|_| self.damaged(&"its number of rows is negative"))?;
        Ok((builder.schema().clone(), rows))
    }

    pub(super) fn columns<'b, A: 'static, const N: usize>(
        &self,
        batch: &'b RecordBatch,
        names: [&str; N],
    ) -> Result<[&'b A; N]> {
        let found: Option<Vec<&A>> = names.iter().map(|name| column(batch, name)).collect();
        let found = found.and_then(|found| found.try_into().ok());
        found.ok_or_else(|| self.unexpected_columns())
    }

    pub(super) fn unexpected_columns(&self) -> Failure {
        self.damaged(&self.other_columns)
    }

    /// Error of a failed read: the machine could not read the bytes of `source`, or they are not a table.
    fn failed(&self, source: &OpenFile, why: &dyn Display) -> Failure {
        match source.refused() {
            Some(refused) => self.problem(Blame::Machine, refused),
            None => self.damaged(why),
        }
    }

    pub(crate) fn damaged(&self, why: &dyn Display) -> Failure {
        self.problem(Blame::Data, why)
    }

    fn problem(&self, blame: Blame, why: &dyn Display) -> Failure {
        let message = format!("the {} `{}` cannot be read: {why}", self.what, self.path.display());
        Diagnostic::error(blame, message).hint(self.hint).into()
    }
}
