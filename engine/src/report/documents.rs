//! Outcomes of documents in runs, and their comparison between two runs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;

use super::overview::choice::SelectionSettings;
use crate::base::error::Result;
use crate::base::text::{count, line_safe};
use crate::dataset::documents::is_id_of_row;
use crate::run_directory::dropped::{self, NOT_SELECTED};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::units::{Part, UnitRecord};
use crate::run_directory::{quarantine, scores, selected};

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
    /// Documents that both runs have, in different files; they are also counted above.
    pub moved: u64,
    /// Pairs with the same id.
    pub matched_by_id: u64,
    /// Pairs with the same file and row, because a document has no id or its id is not unique.
    pub matched_by_row: u64,
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
    /// Location in the second run, if the document is in another file there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<MovedTo>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovedTo {
    pub file: String,
    pub row: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DocumentOutcome {
    /// `kept`, `not_selected`, the reason for which it was dropped, or `quarantined: <code>`.
    pub fate: String,
    pub windows: u64,
    pub kept: u64,
    /// Highest score of a sample; null if no sample has a score.
    pub score: Option<f64>,
    /// Digest of the raw statistics and scores of all windows, for comparison.
    #[serde(skip)]
    digest_of_values: u64,
    /// Like `digest_of_values`, of the statistics that both runs have for all their windows.
    #[serde(skip)]
    common_digest: u64,
    /// Digest of `samples`.
    #[serde(skip)]
    decisions: u64,
    /// Decisions for the samples; empty for a document that is compared across files.
    #[serde(skip)]
    samples: Vec<SampleDecision>,
}

#[derive(Clone, Debug, Hash, PartialEq)]
struct SampleDecision {
    /// `None` if the sample is a whole document.
    window: Option<i32>,
    /// Reason for which it is not kept; `None` if it is kept.
    reason: Option<Box<str>>,
}

/// Bits of a missing statistic or score; no number has them.
const NONE: u64 = u64::MAX;

impl DocumentChanges {
    pub(super) fn changed(&self) -> u64 {
        self.other_fate + self.other_score + self.only_in_first + self.only_in_second
    }

    /// Counts a document and keeps the change if it may be among the first `limit`.
    fn add(&mut self, change: DocumentChange, limit: usize) {
        self.moved += u64::from(change.moved_to.is_some());
        match (&change.first, &change.second) {
            (Some(first), Some(second)) if first == second => {
                self.same += 1;
                return;
            }
            (Some(first), Some(second))
                if (&first.fate, first.decisions) != (&second.fate, second.decisions) =>
            {
                self.other_fate += 1;
            }
            (Some(_), Some(_)) => self.other_score += 1,
            (Some(_), None) => self.only_in_first += 1,
            (None, _) => self.only_in_second += 1,
        }
        self.listed.push(change);
        if self.listed.len() / 2 > limit.max(512) {
            self.cut(limit);
        }
    }

    /// Keeps the first `limit` changes in input order.
    fn cut(&mut self, limit: usize) {
        // Per file, documents of the first run precede those that only the second run has.
        self.listed.sort_by(|one, other| one.order().cmp(&other.order()));
        self.listed.truncate(limit);
    }

    fn matching(&self) -> String {
        match (self.matched_by_id, self.matched_by_row) {
            (0, 0) => String::new(),
            (_, 0) => " (matched by id)".to_owned(),
            (0, _) => " (matched by file and row)".to_owned(),
            (ids, rows) => format!(
                " ({} matched by id, {} by file and row: no id, or one that is not unique)",
                count(ids),
                count(rows)
            ),
        }
    }
}

type RunWithManifest<'a> = (&'a RunDirectory, &'a Manifest);

/// A run with its records indexed: a corpus has tens of thousands of files and parts.
struct Records<'a> {
    directory: &'a RunDirectory,
    /// Run directory of the scores: its own, or that of `--scores-from`.
    scores: RunDirectory,
    /// Work units by input file, in the order of the manifest.
    units: BTreeMap<&'a str, Vec<&'a UnitRecord>>,
    selection: HashMap<&'a str, &'a Part>,
    choice: SelectionSettings,
}

impl<'a> Records<'a> {
    fn new((directory, manifest): RunWithManifest<'a>) -> Result<Self> {
        let mut units: BTreeMap<&str, Vec<&UnitRecord>> = BTreeMap::new();
        for record in &manifest.units {
            units.entry(&record.file).or_default().push(record);
        }
        let selection = manifest.selection.iter().map(|part| (part.path.as_str(), part)).collect();
        let scores = manifest.scores_directory(directory)?;
        let choice = SelectionSettings::from_manifest(manifest, &scores)?;
        Ok(Self { directory, scores, units, selection, choice })
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

    /// Returns the documents in the order of their rows, each with its id if it has one.
    fn into_documents(self) -> impl Iterator<Item = (i64, Option<String>, DocumentOutcome)> {
        let ids = self.rows_by_id.into_iter().map(|(id, row)| (row, id));
        let mut ids: HashMap<i64, String> = ids.collect();
        self.by_row.into_iter().map(move |(row, outcome)| (row, ids.remove(&row), outcome))
    }
}

/// Document that the other run does not have in the same file.
struct UnmatchedDocument<'a> {
    file: &'a str,
    row: i64,
    id: Option<String>,
    outcome: DocumentOutcome,
}

impl<'a> UnmatchedDocument<'a> {
    /// Shortens an outcome for the comparison across files, which may have other statistics.
    fn new(file: &'a str, (row, id, mut outcome): (i64, Option<String>, DocumentOutcome)) -> Self {
        outcome.digest_of_values = outcome.common_digest;
        outcome.samples = Vec::new();
        Self { file, row, id, outcome }
    }
}

/// Compares documents by id, in the same file or in any other, and by file and row where the input has no ids or an id is
/// not unique. Memory: the documents of one input file, and those that are not in the same file of both runs.
pub(super) fn compare(
    a: RunWithManifest<'_>,
    b: RunWithManifest<'_>,
    listed: usize,
) -> Result<DocumentChanges> {
    let runs = [Records::new(a)?, Records::new(b)?];
    let mut changes = DocumentChanges::default();
    let names: BTreeSet<&str> = runs.iter().flat_map(|run| run.units.keys()).copied().collect();
    let mut files: BTreeMap<&str, [Option<BTreeSet<String>>; 2]> = BTreeMap::new();
    for file in names {
        files.insert(file, [statistics(&runs[0], file)?, statistics(&runs[1], file)?]);
    }
    let common = intersection(files.values().flatten().flatten());
    let mut unmatched = [Vec::new(), Vec::new()];
    // Output files are in the order of the units, which are sorted by input file name.
    for (file, measured) in &files {
        // Statistics that only one run has are differences of settings, not of documents.
        let both = intersection(measured.iter().flatten());
        let first = outcomes_of_file(&runs[0], file, &both, &common)?;
        let mut second = outcomes_of_file(&runs[1], file, &both, &common)?;
        let rows_with_ids: BTreeSet<i64> = second.rows_by_id.values().copied().collect();
        for (row, id, outcome) in first.into_documents() {
            let other = match &id {
                Some(id) => second.rows_by_id.get(id).copied(),
                None => Some(row).filter(|row| !rows_with_ids.contains(row)),
            };
            let Some(other) = other.and_then(|row| second.by_row.remove(&row)) else {
                unmatched[0].push(UnmatchedDocument::new(file, (row, id, outcome)));
                continue;
            };
            changes.matched_by_id += u64::from(id.is_some());
            changes.matched_by_row += u64::from(id.is_none());
            let (file, first, second) = ((*file).to_owned(), Some(outcome), Some(other));
            changes.add(DocumentChange { file, row, first, second, moved_to: None }, listed);
        }
        let rest = second.into_documents();
        unmatched[1].extend(rest.map(|document| UnmatchedDocument::new(file, document)));
    }
    compare_unmatched(&runs, unmatched, &mut changes, listed)?;
    changes.cut(listed);
    Ok(changes)
}

/// Compares the documents that are not in the same file of both runs: by ids that are unique in both runs, then by file and
/// row where one of the two has no id.
fn compare_unmatched(
    runs: &[Records<'_>; 2],
    [first, second]: [Vec<UnmatchedDocument<'_>>; 2],
    changes: &mut DocumentChanges,
    listed: usize,
) -> Result<()> {
    let unique = unique_ids(runs, &first, &second)?;
    let mut by_id: HashMap<String, usize> = HashMap::new();
    let mut by_row: HashMap<(&str, i64), usize> = HashMap::new();
    for (index, document) in second.iter().enumerate() {
        by_row.insert((document.file, document.row), index);
        by_id.extend(document.id.clone().filter(|id| unique.contains(id)).map(|id| (id, index)));
    }
    let mut second: Vec<Option<UnmatchedDocument<'_>>> = second.into_iter().map(Some).collect();
    let mut partners = Vec::with_capacity(first.len());
    for document in &first {
        let index = document.id.as_ref().and_then(|id| by_id.get(id));
        partners.push(index.and_then(|index| second[*index].take()));
    }
    changes.matched_by_id += partners.iter().flatten().count() as u64;
    for (document, partner) in first.into_iter().zip(partners) {
        let in_row = || {
            let index = by_row.get(&(document.file, document.row))?;
            let has_ids =
                |other: &UnmatchedDocument<'_>| document.id.is_some() && other.id.is_some();
            second[*index].take_if(|other| !has_ids(other))
        };
        let is_by_id = partner.is_some();
        let partner = partner.or_else(in_row);
        changes.matched_by_row += u64::from(!is_by_id && partner.is_some());
        let moved = partner.as_ref().filter(|partner| partner.file != document.file);
        let moved_to = moved.map(|to| MovedTo { file: to.file.to_owned(), row: to.row });
        let (file, row) = (document.file.to_owned(), document.row);
        let (first, second) = (Some(document.outcome), partner.map(|partner| partner.outcome));
        changes.add(DocumentChange { file, row, first, second, moved_to }, listed);
    }
    for UnmatchedDocument { file, row, outcome, .. } in second.into_iter().flatten() {
        let (file, second) = (file.to_owned(), Some(outcome));
        changes.add(DocumentChange { file, row, first: None, second, moved_to: None }, listed);
    }
    Ok(())
}

/// Returns the ids of documents in both lists that no other document of either run has.
fn unique_ids(
    runs: &[Records<'_>; 2],
    first: &[UnmatchedDocument<'_>],
    second: &[UnmatchedDocument<'_>],
) -> Result<BTreeSet<String>> {
    let ids = |documents: &[UnmatchedDocument<'_>]| -> BTreeSet<String> {
        documents.iter().filter_map(|document| document.id.clone()).collect()
    };
    let in_both = ids(first).intersection(&ids(second)).cloned().collect::<BTreeSet<_>>();
    if in_both.is_empty() {
        return Ok(in_both);
    }
    let mut counts: HashMap<String, [u64; 2]> =
        in_both.into_iter().map(|id| (id, [0, 0])).collect();
    for (index, run) in runs.iter().enumerate() {
        each_id(run, |id| {
            if let Some(counts) = counts.get_mut(id) {
                counts[index] += 1;
            }
        })?;
    }
    let unique = counts.into_iter().filter(|(_, counts)| *counts == [1, 1]);
    Ok(unique.map(|(id, _)| id).collect())
}

/// Calls `each` with the id of every document of a run that is not quarantined.
fn each_id(records: &Records<'_>, mut each: impl FnMut(&str)) -> Result<()> {
    for record in records.units.values().flatten() {
        if let Some(part) = &record.dropped {
            let rows = dropped::read(&records.scores.root.join(&part.path))?;
            for row in &rows {
                each(&row.id);
            }
        }
        let mut last_row = None;
        scores::read(&records.scores.root.join(&record.scores.path), &[], |window| {
            if last_row.replace(window.input_row) != Some(window.input_row) {
                each(&window.id);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Returns the names that all sets have; none without a set.
fn intersection<'s>(sets: impl Iterator<Item = &'s BTreeSet<String>>) -> BTreeSet<String> {
    sets.cloned().reduce(|all, own| &all & &own).unwrap_or_default()
}

/// Returns the outcomes of the documents of a run with one input file, by row.
pub(crate) fn document_outcomes(
    directory: &RunDirectory,
    manifest: &Manifest,
) -> Result<BTreeMap<i64, DocumentOutcome>> {
    let (records, none) = (Records::new((directory, manifest))?, BTreeSet::new());
    let mut all = BTreeMap::new();
    for file in records.units.keys() {
        all.append(&mut outcomes_of_file(&records, file, &none, &none)?.by_row);
    }
    Ok(all)
}

/// Returns the statistics that a run has for all windows of a file; `None` if it has no scores of the file.
fn statistics(records: &Records<'_>, file: &str) -> Result<Option<BTreeSet<String>>> {
    let own = |record: &&UnitRecord| -> Result<BTreeSet<String>> {
        let own = scores::statistics(&records.scores.root.join(&record.scores.path))?;
        Ok(own.into_iter().collect())
    };
    let all = records.units.get(file).into_iter().flatten().map(own);
    let all: Vec<BTreeSet<String>> = all.collect::<Result<_>>()?;
    Ok((!all.is_empty()).then(|| intersection(all.iter())))
}

/// `compared`: statistics that are compared with the same file; `common`: the part of them that all files have.
fn outcomes_of_file(
    records: &Records<'_>,
    file: &str,
    compared: &BTreeSet<String>,
    common: &BTreeSet<String>,
) -> Result<FileOutcomes> {
    let properties = compared.iter().map(|name| (records.is_guarded(name), common.contains(name)));
    let properties: Vec<(bool, bool)> = properties.collect();
    let compared: Vec<&str> = compared.iter().map(String::as_str).collect();
    let Records { directory, scores: of_units, units, selection, choice } = records;
    let mut outcomes = FileOutcomes::default();
    let documents = choice.documents;
    let of_outcome = |fate: String| DocumentOutcome { fate, ..DocumentOutcome::default() };
    for record in units.get(file).into_iter().flatten() {
        if let Some(part) = &record.quarantine {
            quarantine::read_codes(&of_units.root.join(&part.path), |row, code| {
                outcomes.by_row.insert(row, of_outcome(format!("quarantined: {code}")));
            })?;
        }
        if let Some(part) = &record.dropped {
            for row in dropped::read(&of_units.root.join(&part.path))? {
                outcomes.by_row.insert(row.input_row as i64, of_outcome(row.reason.to_string()));
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
        let mut last_row = -1;
        let path = of_units.root.join(&record.scores.path);
        scores::read(&path, &compared, |window| {
            let row = window.input_row as i64;
            let is_first = std::mem::replace(&mut last_row, row) != row;
            if is_first {
                outcomes.add_id(file, window.input_row, window.id);
            }
            let document = outcomes.by_row.entry(row).or_default();
            document.windows += 1;
            let sample = (!documents).then_some(window.window as i32);
            let Some((reason, score)) = decisions.get(&(row, sample)) else { return Ok(()) };
            // Another run of the same scores with other guards may have measured some skipped windows.
            let skipped = reason.as_ref().is_some_and(|reason| choice.is_early_rejection(reason));
            for (value, (guarded, is_common)) in window.statistics.iter().zip(&properties) {
                let bits = match value {
                    Some(value) if !(skipped && *guarded) => value.to_bits(),
                    _ => NONE,
                };
                document.add_value(bits, *is_common);
            }
            // A document is one sample, however many windows it has.
            if documents && !is_first {
                return Ok(());
            }
            let decision = SampleDecision { window: sample, reason: reason.clone() };
            document.decisions = digest(document.decisions, &decision);
            document.samples.push(decision);
            if let Some(reason) = reason {
                // A row without kept samples counts as ranked if any of its samples was ranked.
                if document.kept == 0 && (document.fate.is_empty() || **reason == *NOT_SELECTED) {
                    document.fate = reason.to_string();
                }
            } else {
                document.kept += 1;
                "kept".clone_into(&mut document.fate);
            }
            document.add_value(score.map_or(NONE, f64::to_bits), true);
            document.score = match (document.score, *score) {
                (Some(before), Some(now)) => Some(before.max(now)),
                (before, now) => before.or(now),
            };
            Ok(())
        })?;
    }
    Ok(outcomes)
}

fn digest(before: u64, value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, value).hash(&mut hasher);
    hasher.finish()
}

impl fmt::Display for DocumentChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "documents{}", self.matching())?;
        for (number, what) in [
            (self.same, "unchanged"),
            (self.other_fate, "with a different outcome"),
            (self.other_score, "with a different score"),
            (self.only_in_first, "only in the first run"),
            (self.only_in_second, "only in the second run"),
            (self.moved, "in another file"),
        ] {
            if number > 0 {
                writeln!(f, "  {} {what}", count(number))?;
            }
        }
        for change in &self.listed {
            let mut location = format!("{}, row {}", change.file, change.row);
            if let Some(to) = &change.moved_to {
                location = format!("{location} (now {}, row {})", to.file, to.row);
            }
            writeln!(f, "  {}", line_safe(&format!("{location}: {}", change.in_words())))?;
        }
        let more = self.changed() - self.listed.len() as u64;
        if more > 0 {
            writeln!(f, "  and {} more (`--documents N` lists N)", count(more))?;
        }
        Ok(())
    }
}

impl DocumentChange {
    fn order(&self) -> (&str, bool, i64) {
        (&self.file, self.first.is_none(), self.row)
    }

    fn in_words(&self) -> String {
        let show = |outcome: &Option<DocumentOutcome>| {
            outcome.as_ref().map_or("missing".to_owned(), DocumentOutcome::in_words)
        };
        let mut text = format!("{} → {}", show(&self.first), show(&self.second));
        let differ = |(one, other): &(&SampleDecision, &SampleDecision)| {
            one.window == other.window && one != other
        };
        // If the kept counts are equal, the difference is which samples are kept.
        if let (Some(first), Some(second)) = (&self.first, &self.second)
            && first.kept == second.kept
            && let Some((before, now)) = first.samples.iter().zip(&second.samples).find(differ)
            && let Some(window) = before.window
        {
            let [before, now] = [before, now].map(|of| of.reason.as_deref().unwrap_or("kept"));
            let _ = write!(text, ", window {window} {before} → {now}");
        }
        text
    }
}

impl DocumentOutcome {
    fn add_value(&mut self, bits: u64, is_common: bool) {
        self.digest_of_values = digest(self.digest_of_values, &bits);
        if is_common {
            self.common_digest = digest(self.common_digest, &bits);
        }
    }

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
