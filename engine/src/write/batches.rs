//! Builds output rows: the columns of the input and those of longsift, or token ids.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, LargeListArray, RecordBatch,
    StringArray, UInt32Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, SchemaRef};
use arrow_select::take::take;
use rayon::prelude::*;

use super::output_rows::OutputRow;
use super::slices::slices;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::dataset::documents::{DocumentContent, document_contents};
use crate::dataset::units::WorkUnit;
use crate::run_directory::scores::ScoredWindow;
use crate::select::Sample;
use crate::spec::pipeline::Samples;
use crate::write::Writer;

impl Writer<'_> {
    pub(super) fn batch(
        &self,
        unit: &WorkUnit,
        schema: &SchemaRef,
        input: &RecordBatch,
        rows: &[OutputRow<'_>],
    ) -> Result<RecordBatch> {
        let bug = |error: ArrowError| {
            Diagnostic::error(Blame::Bug, format!("{}: {error}", unit.file_path))
        };
        let positions = UInt32Array::from_iter_values(rows.iter().map(|row| row.position as u32));
        let content = self.plan.content_column();
        let in_windows = self.plan.spec.pipeline.output.samples == Samples::Windows;
        let mut columns = Vec::with_capacity(schema.fields().len());
        for (column, (field, target)) in
            input.columns().iter().zip(input.schema().fields().iter().zip(schema.fields()))
        {
            columns.push(if in_windows && field.name() == content {
                slices(column, target.data_type(), rows).map_err(bug)?
            } else {
                take(column, &positions, None).map_err(bug)?
            });
        }
        columns.extend(self.longsift_columns(unit, rows));
        Ok(RecordBatch::try_new(Arc::clone(schema), columns).map_err(bug)?)
    }

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
                Ok(DocumentContent::Text(text)) => self
                    .plan
                    .tokenize(location.clone(), text)?
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
        let lists =
            LargeListArray::try_new(item, offsets, Arc::new(values), None).and_then(|lists| {
                RecordBatch::try_new(Arc::clone(schema), vec![Arc::new(lists) as ArrayRef])
            });
        Ok(lists.map_err(|error| Diagnostic::error(Blame::Bug, error.to_string()))?)
    }

    fn longsift_columns(&self, unit: &WorkUnit, rows: &[OutputRow<'_>]) -> Vec<ArrayRef> {
        let int32 = |value: &dyn Fn(&ScoredWindow) -> u32| -> ArrayRef {
            let values = rows.iter().map(|row| row.window.map(|window| value(window) as i32));
            Arc::new(values.collect::<Int32Array>())
        };
        let int64 = |value: &dyn Fn(&ScoredWindow) -> Option<u64>| -> ArrayRef {
            let values = rows.iter().map(|row| row.window.and_then(value));
            Arc::new(values.map(|value| value.map(|value| value as i64)).collect::<Int64Array>())
        };
        let float = |value: &dyn Fn(&Sample) -> f64| -> ArrayRef {
            let values = rows.iter().map(|row| row.sample.map(value));
            Arc::new(
                values.map(|value| value.filter(|value| !value.is_nan())).collect::<Float64Array>(),
            )
        };
        let ids = rows.iter().map(|row| self.sample_id(unit, row));
        let tokens_total = rows.iter().map(|row| row.tokens_total.map(|tokens| tokens as i64));
        let first: [ArrayRef; 2] =
            [Arc::new(StringArray::from_iter_values(ids)), float(&|sample| sample.score)];
        let statistics =
            (0..self.selection.statistics()).map(|index| float(&|sample| sample.statistics[index]));
        let last: [ArrayRef; 7] = [
            int32(&|window| window.window),
            int32(&|window| window.windows),
            int64(&|window| Some(window.tokens.0)),
            int64(&|window| Some(window.tokens.1)),
            int64(&|window| window.bytes.map(|bytes| bytes.0)),
            int64(&|window| window.bytes.map(|bytes| bytes.1)),
            Arc::new(tokens_total.collect::<Int64Array>()),
        ];
        let mut columns: Vec<ArrayRef> = first.into_iter().chain(statistics).chain(last).collect();
        if self.marks() {
            let kept = rows.iter().map(|row| Some(row.reason.is_none()));
            columns.push(Arc::new(kept.collect::<BooleanArray>()));
            columns.push(Arc::new(rows.iter().map(|row| row.reason).collect::<StringArray>()));
        }
        columns
    }

    /// Returns `<id>#<window>`, with file and row if the id is repeated or could be that of another sample.
    fn sample_id(&self, unit: &WorkUnit, row: &OutputRow<'_>) -> String {
        let mut id = row.id.to_owned();
        let without_window =
            row.window.is_none() && self.plan.spec.pipeline.output.samples == Samples::Windows;
        let location = id.rsplit_once('@').map_or("", |(_, location)| location);
        let is_ambiguous = (without_window || self.selection.has_repeated_ids())
            && has_number_after(location, ':')
            || without_window && has_number_after(&id, '#');
        if is_ambiguous || self.selection.is_repeated(&id) {
            // Escapes `@`, so that the last one in the id precedes the location.
            let file = unit.file_path.replace('%', "%25").replace('@', "%40");
            id = format!("{id}@{file}:{}", row.row);
        }
        match row.window {
            Some(window) => format!("{id}#{}", window.window),
            None => id,
        }
    }
}

fn has_number_after(text: &str, separator: char) -> bool {
    let number = text.rsplit_once(separator).map(|(_, number)| number);
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
}
