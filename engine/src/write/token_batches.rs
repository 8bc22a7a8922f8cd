//! Token ids of samples, for formats without other columns.

use std::sync::Arc;

use arrow_array::{ArrayRef, LargeListArray, RecordBatch, UInt32Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, SchemaRef};
use rayon::prelude::*;

use super::output_rows::OutputRow;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::dataset::documents::{DocumentContent, document_contents};
use crate::dataset::units::WorkUnit;
use crate::plan::encoded::tokenize;
use crate::write::Writer;

impl Writer<'_> {
    /// Builds the token ids of samples, without BOS; windows are slices of their document's tokens.
    pub(super) fn token_batch(
        &self,
        unit: &WorkUnit,
        schema: &SchemaRef,
        input: &RecordBatch,
        rows: &[OutputRow<'_>],
    ) -> Result<RecordBatch> {
        let contents = document_contents(&self.plan.dataset, input, &self.plan.columns)?;
        let mut needed: Vec<(usize, u64)> =
            rows.iter().map(|row| (row.position, row.row)).collect();
        needed.dedup();
        let encode = |(position, row): &(usize, u64)| -> Result<(usize, Vec<u32>)> {
            let location = format!("{}, row {row}", unit.file_path);
            let failed =
                |why: String| Diagnostic::error(Blame::Data, format!("{location}: {why}")).into();
            let ids: Result<Vec<u32>> = match &contents[*position] {
                Ok(DocumentContent::Tokens(ids)) => Ok(ids.clone()),
                Ok(DocumentContent::Text(text)) => tokenize(self.plan, location.clone(), text)
                    .map_err(|timed_out| *timed_out)?
                    .map(|encoded| encoded.ids)
                    .map_err(|error| failed(error.message)),
                Err(error) => Err(failed(error.message.clone())),
            };
            ids.map(|ids| (*position, ids))
        };
        let ids: Vec<(usize, Vec<u32>)> = needed.par_iter().map(encode).collect::<Result<_>>()?;
        let row_ids = |row: &OutputRow<'_>| {
            let index = ids.partition_point(|(position, _)| *position < row.position);
            let ids = &ids[index].1;
            match row.window {
                Some(window) => &ids[window.tokens.0 as usize..window.tokens.1 as usize],
                None => &ids[..],
            }
        };
        let offsets = OffsetBuffer::<i64>::from_lengths(rows.iter().map(|row| row_ids(row).len()));
        let values =
            UInt32Array::from_iter_values(rows.iter().flat_map(|row| row_ids(row).iter().copied()));
        let item = Arc::new(Field::new("item", DataType::UInt32, false));
        let lists: ArrayRef = Arc::new(
            LargeListArray::try_new(item, offsets, Arc::new(values), None)
                .map_err(|error| bug(&error))?,
        );
        Ok(RecordBatch::try_new(Arc::clone(schema), vec![lists]).map_err(|error| bug(&error))?)
    }
}

fn bug(error: &arrow_schema::ArrowError) -> Diagnostic {
    Diagnostic::error(Blame::Bug, error.to_string())
}
