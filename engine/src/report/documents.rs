//! Outcomes of documents in runs, and their comparison between two runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{Array, Float64Array, Int32Array, Int64Array, StringArray};
use arrow_schema::DataType;
use serde::Serialize;

use super::overview::choice::Choice;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text::{count, line_safe};
use crate::run_directory::dropped::NOT_SELECTED;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::scores;
use crate::run_directory::table::Table;
use crate::run_directory::units::{Part, UnitRecord};

/// Documents by whether their outcome changed between two runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DocumentChanges {
    /// Same statistics, score and outcome.
    pub same: u64,
    /// Different outcome: kept, dropped or quarantined.
    pub other_fate: u64,
    /// Same outcome, different statistics or score.
    pub other_score: u64,
    /// Documents that only the first run has.
    pub only_in_first: u64,
    /// Documents that only the second run has.
    pub only_in_second: u64,
    /// First changed documents, in input order.
    pub listed: Vec<DocumentChange>,
}

/// A document that changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DocumentChange {
    pub file: String,
    /// Row in the file.
    pub row: i64,
    /// Outcome in the first run; null if it has no such document.
    pub first: Option<DocumentOutcome>,
    /// Outcome in the second run; null if it has no such document.
    pub second: Option<DocumentOutcome>,
}

/// Outcome of a document.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DocumentOutcome {
    /// `kept`, `not_selected`, the reason for which it was dropped, or `quarantined: <code>`.
    pub fate: String,
    /// Number of measured windows.
    pub windows: u64,
    /// Number of kept samples.
    pub kept: u64,
    /// Highest score of a sample; null if no sample has a score.
    pub score: Option<f64>,
    /// Bits of the raw statistics and scores of all windows, for comparison.
    #[serde(skip)]
    figures: Vec<u64>,
    /// Decisions by sample.
    #[serde(skip)]
    samples: Vec<SampleDecision>,
}

/// Decision about a sample.
#[derive(Clone, Debug, PartialEq)]
struct SampleDecision {
    /// `None` if the sample is a whole document.
    window: Option<i32>,
    /// Reason for which it is not kept; `None` if it is kept.
    reason: Option<Box<str>>,
}

/// Bits of a missing statistic or score; no number has them.
const NONE: u64 = u64::MAX;

impl DocumentChanges {
    /// Returns whether nothing changed.
    pub fn is_none(&self) -> bool {
        self.other_fate + self.other_score + self.only_in_first + self.only_in_second == 0
    }

    fn add(&mut self, change: DocumentChange, limit: usize) {
        match (&change.first, &change.second) {
            (Some(first), Some(second)) if first == second => {
                self.same += 1;
                return;
            }
            (Some(first), Some(second))
                if (&first.fate, &first.samples) != (&second.fate, &second.samples) =>
            {
                self.other_fate += 1;
            }
            (Some(_), Some(_)) => self.other_score += 1,
            (Some(_), None) => self.only_in_first += 1,
            (None, _) => self.only_in_second += 1,
        }
        if self.listed.len() < limit {
            self.listed.push(change);
        }
    }
}

type Run<'a> = (&'a RunDirectory, &'a Manifest);

/// A run with its records indexed: a corpus has tens of thousands of files and parts.
struct Records<'a> {
    run: Run<'a>,
    /// Run directory of the scores: its own, or that of `--scores-from`.
    scores: RunDirectory,
    /// Work units by input file, in the order of the manifest.
    units: BTreeMap<&'a str, Vec<&'a UnitRecord>>,
    /// Tables of samples that were not selected, by path.
    dropped: HashMap<&'a str, &'a Part>,
    kept: KeptScores<'a>,
    choice: Choice,
}

impl<'a> Records<'a> {
    fn new(run: Run<'a>) -> Result<Self> {
        let (directory, manifest) = run;
        let mut units: BTreeMap<&str, Vec<&UnitRecord>> = BTreeMap::new();
        for record in &manifest.units {
            units.entry(&record.file).or_default().push(record);
        }
        let dropped = manifest.dropped.iter().map(|part| (part.path.as_str(), part)).collect();
        let scores = manifest.scores_directory(directory)?;
        let choice = Choice::from_manifest(manifest, &scores)?;
        Ok(Self { run, scores, units, dropped, kept: KeptScores::new(run), choice })
    }

    /// Returns whether a statistic belongs to a measure that runs after a guard.
    fn is_guarded(&self, statistic: &str) -> bool {
        let of = self.choice.columns.iter().find(|(_, column)| column.name == statistic);
        of.is_some_and(|(measure, _)| self.choice.is_guarded(measure))
    }
}

/// Compares documents file by file. Memory: the documents of one input file.
pub(super) fn compare(a: Run<'_>, b: Run<'_>, listed: usize) -> Result<DocumentChanges> {
    let (mut a, mut b) = (Records::new(a)?, Records::new(b)?);
    let mut changes = DocumentChanges::default();
    let files: BTreeSet<&str> = a.units.keys().chain(b.units.keys()).copied().collect();
    // Output files are in the order of the units, which are sorted by input file name.
    for file in files {
        // Statistics that only one run has are differences of settings, not of documents.
        let measured = [statistics(&a, file)?, statistics(&b, file)?];
        let [of_a, of_b] = &measured;
        let both: Vec<&str> = match (of_a, of_b) {
            (Some(one), Some(other)) => one.intersection(other).map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let mut of_b = outcomes_of_file(&mut b, file, &both)?;
        for (row, first) in outcomes_of_file(&mut a, file, &both)? {
            let second = of_b.remove(&row);
            let file = file.to_owned();
            changes.add(DocumentChange { file, row, first: Some(first), second }, listed);
        }
        for (row, second) in of_b {
            let file = file.to_owned();
            changes.add(DocumentChange { file, row, first: None, second: Some(second) }, listed);
        }
    }
    Ok(changes)
}

/// Returns the outcomes of the documents of a run with one input file, by row.
pub(crate) fn document_outcomes(
    directory: &RunDirectory,
    manifest: &Manifest,
) -> Result<BTreeMap<i64, DocumentOutcome>> {
    let mut records = Records::new((directory, manifest))?;
    let files: BTreeSet<&str> = records.units.keys().copied().collect();
    let mut all = BTreeMap::new();
    for file in files {
        all.append(&mut outcomes_of_file(&mut records, file, &[])?);
    }
    Ok(all)
}

/// Scores of the kept samples in input order, the order of the output's rows.
struct KeptScores<'a> {
    run: Run<'a>,
    /// Remaining output files, the next one last.
    files: Vec<&'a str>,
    scores: std::vec::IntoIter<f64>,
}

impl<'a> KeptScores<'a> {
    fn new(run: Run<'a>) -> Self {
        let files = run.1.data.iter().rev().map(|part| part.path.as_str()).collect();
        Self { run, files, scores: Vec::new().into_iter() }
    }

    fn next(&mut self) -> Result<Option<f64>> {
        loop {
            if let Some(score) = self.scores.next() {
                return Ok(Some(score));
            }
            let Some(file) = self.files.pop() else { return Ok(None) };
            if !file.ends_with(".parquet") {
                let message = format!(
                    "`{}` contains `{file}`: only Parquet outputs can be compared",
                    self.run.0.data().display()
                );
                return Err(Diagnostic::error(Blame::Pipeline, message)
                    .hint("compare their tables in `selection/`, or runs with `format: parquet`")
                    .into());
            }
            let path = self.run.0.data().join(file);
            let mut scores = Vec::new();
            if self.run.1.mark_only {
                read(&path, &["longsift_score", "longsift_kept"], |columns| {
                    let column: &Float64Array = columns[0].as_primitive();
                    let rows = column.values().iter().zip(columns[1].as_boolean());
                    scores.extend(
                        rows.filter(|(_, kept)| *kept == Some(true)).map(|(score, _)| score),
                    );
                })?;
            } else {
                read(&path, &["longsift_score"], |columns| {
                    let column: &Float64Array = columns[0].as_primitive();
                    scores.extend(column.values());
                })?;
            }
            self.scores = scores.into_iter();
        }
    }
}

/// Returns the statistics that a run has for all windows of a file; `None` if it has no scores of the file.
fn statistics(records: &Records<'_>, file: &str) -> Result<Option<BTreeSet<String>>> {
    let mut all: Option<BTreeSet<String>> = None;
    for record in records.units.get(file).into_iter().flatten() {
        let own = scores::statistics(&records.scores.root.join(&record.scores.path))?;
        let own: BTreeSet<String> = own.into_iter().collect();
        all = Some(match all {
            Some(all) => all.intersection(&own).cloned().collect(),
            None => own,
        });
    }
    Ok(all)
}

/// Returns the outcomes of the documents of a file, by row. `compared`: statistics that are compared.
fn outcomes_of_file(
    records: &mut Records<'_>,
    file: &str,
    compared: &[&str],
) -> Result<BTreeMap<i64, DocumentOutcome>> {
    let guarded: Vec<bool> = compared.iter().map(|name| records.is_guarded(name)).collect();
    let Records {
        run: (directory, manifest),
        scores: of_units,
        units,
        dropped: not_kept,
        kept,
        choice,
    } = records;
    let mut outcomes: BTreeMap<i64, DocumentOutcome> = BTreeMap::new();
    let documents = manifest.lock.settings["output"]["samples"] == "documents";
    for record in units.get(file).into_iter().flatten() {
        if let Some(part) = &record.quarantine {
            let names = ["longsift_row", "longsift_code"];
            read(&of_units.root.join(&part.path), &names, |columns| {
                let rows: &Int64Array = columns[0].as_primitive();
                let codes: &StringArray = columns[1].as_string();
                for (row, code) in rows.iter().zip(codes) {
                    let fate = format!("quarantined: {}", code.unwrap_or_default());
                    outcomes.insert(
                        row.unwrap_or(-1),
                        DocumentOutcome { fate, ..DocumentOutcome::default() },
                    );
                }
            })?;
        }
        if let Some(part) = &record.dropped {
            dropped(&of_units.root.join(&part.path), |row, _, reason, _| {
                outcomes.insert(
                    row,
                    DocumentOutcome { fate: reason.to_owned(), ..DocumentOutcome::default() },
                );
            })?;
        }
        let mut not_selected = BTreeMap::new();
        let select = format!("dropped/select-{}.parquet", record.unit);
        if let Some(part) = not_kept.get(select.as_str()) {
            dropped(&directory.root.join(&part.path), |row, window, reason, score| {
                not_selected.insert((row, window), (reason.to_owned(), score));
            })?;
        }
        let mut document = -1;
        let path = of_units.root.join(&record.scores.path);
        scores::read(&path, compared, |window| {
            let row = window.input_row as i64;
            let fate = outcomes.entry(row).or_default();
            fate.windows += 1;
            let sample = (!documents).then_some(window.window as i32);
            let decided = not_selected.get(&(row, sample));
            // Another run of the same scores with other guards may have measured some skipped windows; nothing depends
            // on them.
            let skipped = decided.is_some_and(|(reason, _)| choice.is_early_rejection(reason));
            let figures = window.statistics.iter().zip(&guarded);
            fate.figures.extend(figures.map(|(figure, guarded)| match figure {
                Some(figure) if !(skipped && *guarded) => figure.to_bits(),
                _ => NONE,
            }));
            // A document is one sample, however many windows it has.
            if documents && std::mem::replace(&mut document, row) == row {
                return Ok(());
            }
            let reason = decided.map(|(reason, _)| reason.as_str());
            fate.samples.push(SampleDecision { window: sample, reason: reason.map(Box::from) });
            let score = if let Some((reason, score)) = decided {
                // A row without kept samples counts as ranked if any of its samples was ranked.
                if fate.kept == 0 && (fate.fate.is_empty() || reason == NOT_SELECTED) {
                    fate.fate.clone_from(reason);
                }
                *score
            } else {
                fate.kept += 1;
                "kept".clone_into(&mut fate.fate);
                kept.next()?
            };
            fate.figures.push(score.map_or(NONE, f64::to_bits));
            fate.score = match (fate.score, score) {
                (Some(before), Some(now)) => Some(before.max(now)),
                (before, now) => before.or(now),
            };
            Ok(())
        })?;
    }
    Ok(outcomes)
}

/// Reads a table of dropped rows: row, window, reason, score.
fn dropped(path: &Path, mut each: impl FnMut(i64, Option<i32>, &str, Option<f64>)) -> Result<()> {
    read(path, &["input_row", "window", "reason", "score"], |columns| {
        let rows: &Int64Array = columns[0].as_primitive();
        let windows: &Int32Array = columns[1].as_primitive();
        let reasons: &StringArray = columns[2].as_string();
        let scores: &Float64Array = columns[3].as_primitive();
        for row in 0..rows.len() {
            let window = windows.is_valid(row).then(|| windows.value(row));
            let score = scores.is_valid(row).then(|| scores.value(row));
            each(rows.value(row), window, reasons.value(row), score);
        }
    })
}

/// Reads columns of a table of a run directory in the order of `names`, and checks their types.
fn read(path: &Path, names: &[&str], mut each: impl FnMut(&[&dyn Array])) -> Result<()> {
    let table = Table { path, what: "table", hint: "`longsift verify` lists all damaged files" };
    table.read(
        |name| names.contains(&name),
        |batch| {
            let columns: Option<Vec<&dyn Array>> =
                names.iter().map(|name| Some(batch.column_by_name(name)?.as_ref())).collect();
            let right = |columns: &Vec<&dyn Array>| {
                columns.iter().zip(names).all(|(column, name)| *column.data_type() == type_of(name))
            };
            match columns.filter(right) {
                Some(columns) => {
                    each(&columns);
                    Ok(())
                }
                None => Err(table.damaged(&"expected the columns that longsift writes")),
            }
        },
    )
}

/// Returns the expected type of a column.
fn type_of(name: &str) -> DataType {
    match name {
        "input_row" | "longsift_row" => DataType::Int64,
        "window" => DataType::Int32,
        "reason" | "longsift_code" => DataType::Utf8,
        "longsift_kept" => DataType::Boolean,
        _ => DataType::Float64,
    }
}

impl fmt::Display for DocumentChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "documents")?;
        for (number, what) in [
            (self.same, "unchanged"),
            (self.other_fate, "with a different outcome"),
            (self.other_score, "with a different score"),
            (self.only_in_first, "only in the first run"),
            (self.only_in_second, "only in the second run"),
        ] {
            if number > 0 {
                writeln!(f, "  {} {what}", count(number))?;
            }
        }
        for change in &self.listed {
            let place = format!("{}, row {}", change.file, change.row);
            writeln!(f, "  {}", line_safe(&format!("{place}: {}", change.in_words())))?;
        }
        let changed = self.other_fate + self.other_score + self.only_in_first + self.only_in_second;
        let more = changed - self.listed.len() as u64;
        if more > 0 {
            writeln!(f, "  and {} more (`--documents N` lists N)", count(more))?;
        }
        Ok(())
    }
}

impl DocumentChange {
    fn in_words(&self) -> String {
        let show = |fate: &Option<DocumentOutcome>| {
            fate.as_ref().map_or("missing".to_owned(), DocumentOutcome::in_words)
        };
        let (first, second) = (show(&self.first), show(&self.second));
        let (Some(before), Some(now)) = (&self.first, &self.second) else {
            return format!("{first} → {second}");
        };
        let mut samples = before.samples.iter().zip(&now.samples);
        let other = samples.find(|(before, now)| before.window == now.window && before != now);
        let other = other.and_then(|(before, now)| Some((before.window?, before, now)));
        match other.filter(|_| before.kept == now.kept) {
            // The kept counts are equal, so the difference is which samples are kept.
            Some((window, before, now)) => {
                let [before, now] =
                    [before, now].map(|of| of.reason.as_deref().unwrap_or("kept").to_owned());
                format!("{first} → {second}, window {window} {before} → {now}")
            }
            None => format!("{first} → {second}"),
        }
    }
}

impl DocumentOutcome {
    pub(crate) fn in_words(&self) -> String {
        let windows = if self.windows > 1 && self.kept > 0 {
            format!(" {} of {}", self.kept, self.windows)
        } else {
            String::new()
        };
        let score = self.score.map_or(String::new(), |score| format!(" (score {score:.6})"));
        format!("{}{windows}{score}", self.fate)
    }
}
