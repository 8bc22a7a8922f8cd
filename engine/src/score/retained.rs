//! Retained measures: statistics of measures that the plan no longer has stay in the new part of an open or reopened unit.

use std::path::Path;

use longsift_stages::contract::Column;
use serde::{Deserialize, Serialize};

use crate::base::error::Result;
use crate::run_directory::facts::MeasuredBy;
use crate::run_directory::scores::{self, MeasureColumns};
use crate::run_directory::units::UnitRecord;

/// Measure whose statistics stay in a unit even if the plan no longer has the measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedMeasure {
    /// Name in the pipeline that measured it.
    pub measure: String,
    pub by: MeasuredBy,
    /// Columns as declared in a score file, without rules.
    columns: Vec<Column>,
}

impl RetainedMeasure {
    /// Returns a measure that lacks some statistics.
    pub fn unfinished(columns: MeasureColumns, fingerprint: String) -> Self {
        let MeasureColumns { measure, columns } = columns;
        let by = MeasuredBy { fingerprint, incomplete: true, ..MeasuredBy::default() };
        let declared = |Column { name, kind, unit, doc, .. }: Column| Column {
            kind,
            ..Column::number(name, unit, doc)
        };
        Self { measure, by, columns: columns.into_iter().map(declared).collect() }
    }

    /// Whether both are the same measure with the same fingerprint.
    pub fn is_same_measure(&self, other: &Self) -> bool {
        self.measure == other.measure && self.by.fingerprint == other.by.fingerprint
    }

    pub fn columns(&self) -> MeasureColumns {
        MeasureColumns { measure: self.measure.clone(), columns: self.columns.clone() }
    }
}

/// Returns the measures of a record that are not among `planned`, with their columns in the record's part `path`. A measure
/// that quarantined rows is incomplete: it lacks the statistics of those rows.
pub(super) fn from_record(
    path: &Path,
    record: &UnitRecord,
    planned: &[MeasureColumns],
) -> Result<Vec<RetainedMeasure>> {
    let is_planned = |name: &str| planned.iter().any(|measure| measure.measure == name);
    if record.measures.keys().all(|name| is_planned(name)) {
        return Ok(Vec::new());
    }
    let retained =
        scores::measures(path)?.into_iter().filter_map(|MeasureColumns { measure, columns }| {
            let by = record.measures.get(&measure)?.clone();
            let by = MeasuredBy {
                incomplete: by.incomplete || by.quarantined > 0,
                quarantined: 0,
                ..by
            };
            Some(RetainedMeasure { measure, by, columns })
        });
    Ok(without_conflicts(retained, planned))
}

/// Drops duplicates and all measures whose name or columns collide with those of a planned measure.
pub(super) fn without_conflicts(
    retained: impl IntoIterator<Item = RetainedMeasure>,
    planned: &[MeasureColumns],
) -> Vec<RetainedMeasure> {
    let mut taken: Vec<String> = Vec::new();
    for MeasureColumns { measure, columns } in planned {
        taken.push(measure.clone());
        taken.extend(columns.iter().map(|column| column.name.clone().into_owned()));
    }
    let mut left = Vec::new();
    for measure in retained {
        let names = measure.columns.iter().map(|column| column.name.clone().into_owned());
        let names: Vec<String> = names.chain([measure.measure.clone()]).collect();
        if names.iter().all(|name| !taken.contains(name)) {
            taken.extend(names);
            left.push(measure);
        }
    }
    left
}
