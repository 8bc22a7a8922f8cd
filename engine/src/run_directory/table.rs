//! Tables of a run directory, read back: Parquet that longsift wrote, and that anything may have happened to since.

use std::fmt::Display;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::dataset::source::{OpenFile, guarded};

/// Rows that are decoded at once.
const BATCH_ROWS: usize = 8192;

/// A table, and what to do where it is damaged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    /// The file.
    pub(crate) path: &'a Path,
    /// What it is, for messages: `score file`.
    pub(crate) what: &'a str,
    /// What to do if it cannot be read.
    pub(crate) hint: &'a str,
}

impl Table<'_> {
    /// Hands over the columns whose name is `wanted`, batch by batch.
    ///
    /// # Errors
    /// A file that cannot be read, by the machine's fault or its own, and whatever `each` returns.
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

    /// The columns and the number of rows, by the footer.
    ///
    /// # Errors
    /// A file that cannot be read, by the machine's fault or its own.
    pub(crate) fn shape(&self) -> Result<(SchemaRef, u64)> {
        let file = OpenFile::open(self.path)?;
        let source = file.clone();
        let builder = guarded(|| ParquetRecordBatchReaderBuilder::try_new(file))
            .map_err(|why| self.failed(&source, &why))?;
        let rows = builder.metadata().file_metadata().num_rows();
        let rows = u64::try_from(rows).map_err(|_| self.damaged(&"it claims negative rows"))?;
        Ok((builder.schema().clone(), rows))
    }

    /// Says why reading stopped: the machine did not hand over the bytes of `source`, or they are not a table.
    fn failed(&self, source: &OpenFile, why: &dyn Display) -> Failure {
        match source.refused() {
            Some(refused) => self.problem(Blame::Machine, refused),
            None => self.damaged(why),
        }
    }

    /// Says that the file is not the table it should be.
    pub(crate) fn damaged(&self, why: &dyn Display) -> Failure {
        self.problem(Blame::Data, why)
    }

    fn problem(&self, blame: Blame, why: &dyn Display) -> Failure {
        let message = format!("the {} `{}` cannot be read: {why}", self.what, self.path.display());
        Diagnostic::error(blame, message).hint(self.hint).into()
    }
}
