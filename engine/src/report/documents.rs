//! Outcomes of documents in runs, and their comparison between two runs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use serde::Serialize;

use super::overview::choice::SelectionSettings;
use crate::base::error::Result;
use crate::base::text::{count, line_safe};
use crate::dataset::documents::is_id_of_row;
use crate::run_directory::dropped::{self, NOT_SELECTED};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::scores;
use crate::run_directory::selected;
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
    pub only_in_first: u64,
    pub only_in_second: u64,
    /// First changed documents, in input order.
    pub listed: Vec<DocumentChange>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DocumentChange {
    pub file: String,
    pub row: i64,
    /// Outcome in the first run; null if it has no such document.
    pub first: Option<DocumentOutcome>,
    /// Outcome in the second run; null if it has no such document.
    pub second: Option<DocumentOutcome>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DocumentOutcome {
    /// `kept`, `not_selected`, the reason for which it was dropped, or `quarantined: <code>`.
    pub fate: String,
    pub windows: u64,
    pub kept: u64,
    /// Highest score of a sample; null if no sample has a score.
    pub score: Option<f64>,
    /// Bits of the raw statistics and scores of all windows, for comparison.
    #[serde(skip)]
    figures: Vec<u64>,
    #[serde(skip)]
    samples: Vec<SampleDecision>,
}

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

type RunWithManifest<'a> = (&'a RunDirectory, &'a Manifest);

/// A run with its records indexed: a corpus has tens of thousands of files and parts.
struct Records<'a> {
    run: RunWithManifest<'a>,
    /// Run directory of the scores: its own, or that of `--scores-from`.
    scores: RunDirectory,
    /// Work units by input file, in the order of the manifest.
    units: BTreeMap<&'a str, Vec<&'a UnitRecord>>,
    selection: HashMap<&'a str, &'a Part>,
    choice: SelectionSettings,
}

impl<'a> Records<'a> {
    fn new(run: RunWithManifest<'a>) -> Result<Self> {
        let (directory, manifest) = run;
        let mut units: BTreeMap<&str, Vec<&UnitRecord>> = BTreeMap::new();
        for record in &manifest.units {
            units.entry(&record.file).or_default().push(record);
        }
        let selection = manifest.selection.iter().map(|part| (part.path.as_str(), part)).collect();
        let scores = manifest.scores_directory(directory)?;
        let choice = SelectionSettings::from_manifest(manifest, &scores)?;
        Ok(Self { run, scores, units, selection, choice })
    }

    /// Returns whether a statistic belongs to a measure that runs after a guard.
    fn is_guarded(&self, statistic: &str) -> bool {
        let of = self.choice.columns.iter().find(|(_, column)| column.name == statistic);
        of.is_some_and(|(measure, _)| self.choice.is_guarded(measure))
    }
}

#[derive(Default)]
struct FileOutcomes {
    by_row: BTreeMap<i64, DocumentOutcome>,
    /// First row of each id of the input. Quarantined rows have no id.
    rows_by_id: HashMap<String, i64>,
}

impl FileOutcomes {
    /// Records the id of a document, unless it was made from its file and row.
    fn add_id(&mut self, file: &str, row: u64, id: String) {
        if !is_id_of_row(&id, file, row) {
            self.rows_by_id.entry(id).or_insert(row as i64);
        }
    }

    /// Returns the rows of documents that another run of the file may have too: its rows of the same ids, and the
    /// same rows where one of the two has no id.
    fn places_in(&self, other: &Self) -> HashMap<i64, i64> {
        let same = |(id, row): (&String, &i64)| Some((*row, *other.rows_by_id.get(id)?));
        let mut places: HashMap<i64, i64> = self.rows_by_id.iter().filter_map(same).collect();
        let taken: HashSet<i64> = places.values().copied().collect();
        let [own, others] = [self, other]
            .map(|file| -> HashSet<i64> { file.rows_by_id.values().copied().collect() });
        for row in self.by_row.keys().filter(|row| !taken.contains(row)) {
            if !(own.contains(row) && others.contains(row)) {
                places.entry(*row).or_insert(*row);
            }
        }
        places
    }
}

/// Compares documents file by file, by id, or by row where the input has no ids. Memory: the documents of one input
/// file.
pub(super) fn compare(
    a: RunWithManifest<'_>,
    b: RunWithManifest<'_>,
    listed: usize,
) -> Result<DocumentChanges> {
    let (a, b) = (Records::new(a)?, Records::new(b)?);
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
        let of_a = outcomes_of_file(&a, file, &both)?;
        let mut of_b = outcomes_of_file(&b, file, &both)?;
        let places = of_a.places_in(&of_b);
        for (row, first) in of_a.by_row {
            let second = places.get(&row).and_then(|row| of_b.by_row.remove(row));
            let file = file.to_owned();
            changes.add(DocumentChange { file, row, first: Some(first), second }, listed);
        }
        for (row, second) in of_b.by_row {
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
    let records = Records::new((directory, manifest))?;
    let files: BTreeSet<&str> = records.units.keys().copied().collect();
    let mut all = BTreeMap::new();
    for file in files {
        all.append(&mut outcomes_of_file(&records, file, &[])?.by_row);
    }
    Ok(all)
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

/// Returns the outcomes of the documents of a file. `compared`: statistics that are compared.
fn outcomes_of_file(records: &Records<'_>, file: &str, compared: &[&str]) -> Result<FileOutcomes> {
    let guarded: Vec<bool> = compared.iter().map(|name| records.is_guarded(name)).collect();
    let Records { run: (directory, manifest), scores: of_units, units, selection, choice } =
        records;
    let mut outcomes = FileOutcomes::default();
    let documents = manifest.lock.settings["output"]["samples"] == "documents";
    let of_fate = |fate: String| DocumentOutcome { fate, ..DocumentOutcome::default() };
    for record in units.get(file).into_iter().flatten() {
        if let Some(part) = &record.quarantine {
            read_codes(&of_units.root.join(&part.path), |row, code| {
                outcomes.by_row.insert(row, of_fate(format!("quarantined: {code}")));
            })?;
        }
        if let Some(part) = &record.dropped {
            for row in dropped::read(&of_units.root.join(&part.path))? {
                outcomes.by_row.insert(row.input_row as i64, of_fate(row.reason.to_string()));
                outcomes.add_id(file, row.input_row, row.id);
            }
        }
        let mut decisions = HashMap::new();
        let path = format!("selection/part-{}.parquet", record.unit);
        if let Some(part) = selection.get(path.as_str()) {
            selected::read(&directory.root.join(&part.path), |sample| {
                let score = Some(sample.score).filter(|score| !score.is_nan());
                let window = sample.window.map(|window| window as i32);
                let reason = sample.reason.map(Box::from);
                decisions.insert((sample.input_row as i64, window), (reason, score));
                Ok(())
            })?;
        }
        let (mut document, mut last_row) = (-1, -1);
        let path = of_units.root.join(&record.scores.path);
        scores::read(&path, compared, |window| {
            let row = window.input_row as i64;
            if std::mem::replace(&mut last_row, row) != row {
                outcomes.add_id(file, window.input_row, window.id);
            }
            let fate = outcomes.by_row.entry(row).or_default();
            fate.windows += 1;
            let sample = (!documents).then_some(window.window as i32);
            let Some((reason, score)) = decisions.get(&(row, sample)) else { return Ok(()) };
            // Another run of the same scores with other guards may have measured some skipped windows; nothing depends
            // on them.
            let skipped = reason.as_ref().is_some_and(|reason| choice.is_early_rejection(reason));
            let figures = window.statistics.iter().zip(&guarded);
            fate.figures.extend(figures.map(|(figure, guarded)| match figure {
                Some(figure) if !(skipped && *guarded) => figure.to_bits(),
                _ => NONE,
            }));
            // A document is one sample, however many windows it has.
            if documents && std::mem::replace(&mut document, row) == row {
                return Ok(());
            }
            fate.samples.push(SampleDecision { window: sample, reason: reason.clone() });
            if let Some(reason) = reason {
                // A row without kept samples counts as ranked if any of its samples was ranked.
                if fate.kept == 0 && (fate.fate.is_empty() || **reason == *NOT_SELECTED) {
                    fate.fate = reason.to_string();
                }
            } else {
                fate.kept += 1;
                "kept".clone_into(&mut fate.fate);
            }
            fate.figures.push(score.map_or(NONE, f64::to_bits));
            fate.score = match (fate.score, *score) {
                (Some(before), Some(now)) => Some(before.max(now)),
                (before, now) => before.or(now),
            };
            Ok(())
        })?;
    }
    Ok(outcomes)
}

/// Reads the rows of a quarantine table and their codes.
fn read_codes(path: &Path, mut each: impl FnMut(i64, &str)) -> Result<()> {
    let table = Table { path, what: "table", hint: "`longsift verify` lists all damaged files" };
    let names = ["longsift_row", "longsift_code"];
    table.read(
        |name| names.contains(&name),
        |batch| {
            let [rows, codes] = names.map(|name| batch.column_by_name(name));
            let rows = rows.and_then(|column| column.as_primitive_opt::<Int64Type>());
            let codes = codes.and_then(|column| column.as_string_opt::<i32>());
            let Some((rows, codes)) = rows.zip(codes) else {
                return Err(table.damaged(&"expected the columns that longsift writes"));
            };
            for (row, code) in rows.iter().zip(codes) {
                each(row.unwrap_or(-1), code.unwrap_or_default());
            }
            Ok(())
        },
    )
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
