//! Lookup of documents of a pipeline's input by id, and their comparison with the documents that a run scored.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use arrow_array::RecordBatch;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::base::text::{count, quoted};
use crate::dataset::documents::{Document, content_hash, document_contents, id_of_row};
use crate::dataset::labels::read_labels;
use crate::dataset::rows::read_row;
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::plan::identity::{Digests, identity, whole_model_digests};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::scores;
use crate::run_directory::units::UnitRecord;

const MAX_LOCATIONS: usize = 3;
/// Facts of a measure that come from the files of a model.
const MODEL_FACTS: [&str; 4] = ["weights", "layer", "model", "model_weights"];

/// A finished run whose input is read again.
pub(super) struct FinishedRun {
    pub(super) directory: RunDirectory,
    pub(super) manifest: Manifest,
    /// Run directory of the score tables: its own, or that of `--scores-from`.
    pub(super) scores: RunDirectory,
}

impl FinishedRun {
    /// Fails if the run is not finished or its tables were changed.
    pub(super) fn read(directory: &RunDirectory) -> Result<Self> {
        Self::new(directory, Manifest::read_with_tables(directory)?)
    }

    pub(super) fn read_if_present(directory: &RunDirectory) -> Result<Option<Self>> {
        let manifest = Manifest::read(directory)?;
        manifest.map(|manifest| Self::new(directory, manifest)).transpose()
    }

    fn new(directory: &RunDirectory, manifest: Manifest) -> Result<Self> {
        let scores = manifest.scores_directory(directory)?;
        Ok(Self { directory: directory.clone(), manifest, scores })
    }

    /// Fails if the plan has another tokenizer than the run, or files name another first token. Settings may differ.
    pub(super) fn check_tokenizer(&self, plan: &Plan) -> Result<()> {
        self.check_files(plan, &Digests::new(plan, None, BTreeMap::new())?, &[])
    }

    /// Fails if the plan has another tokenizer or other models than the run. Reads weights if their files have other times.
    pub(super) fn check_tokenizer_and_models(&self, plan: &Plan) -> Result<()> {
        let lock = &self.manifest.lock;
        let weights_of = |attention: &Attention| {
            let recorded = lock.model.as_ref();
            match recorded.and_then(|model| model.weights_of(&attention.model.identity())) {
                Some(weights) => Ok(weights),
                None => Ok(plan.open_table(attention, &|_, _| {})?.weights_digest),
            }
        };
        let weights: Option<Result<String>> = plan.attention.as_ref().map(weights_of);
        let whole = whole_model_digests(&plan.whole_models, &lock.whole_models, &Stop::global())?;
        self.check_files(plan, &Digests::new(plan, weights.transpose()?, whole)?, &MODEL_FACTS)
    }

    /// Compares the facts of the run's windows and measures that come from files.
    fn check_files(&self, plan: &Plan, digests: &Digests, of_measures: &[&str]) -> Result<()> {
        let (now, then) = (identity(plan, digests), &self.manifest.lock.identity);
        let is_token_set = plan.spec.tokenize().bos.is_some();
        let mut changes = now.windows.differences(&then.windows);
        changes.retain(|line| match line.split_once(": ") {
            Some(("tokenizer", _)) => true,
            Some(("bos", _)) => !is_token_set,
            Some(("bos_id", values)) => !values.contains("null"),
            _ => false,
        });
        for (name, lines) in now.changed_measures(then) {
            let is_of_file = |line: &&String| {
                of_measures.iter().any(|fact| line.starts_with(&format!("{fact}: ")))
            };
            changes.extend(lines.iter().filter(is_of_file).map(|line| format!("{name}: {line}")));
        }
        if changes.is_empty() {
            return Ok(());
        }
        let message =
            "the tokenizer or the model differs from that with which the run scored its documents";
        let hint = "name the pipeline file instead of the run directory to use the present files and settings";
        Err(Diagnostic::error(Blame::Data, message).notes(changes).hint(hint).into())
    }

    /// Returns the records of the work units with these rows of a file, which the plan may divide differently.
    pub(super) fn records(
        &self,
        file: &str,
        rows: Range<u64>,
    ) -> impl Iterator<Item = &UnitRecord> {
        self.manifest.units.iter().filter(move |record| {
            let end = record.first_row.saturating_add(record.counts.rows);
            record.file == file && record.first_row < rows.end && rows.start < end
        })
    }

    /// Fails if the run scored other content in the row of this document.
    pub(super) fn check_unchanged(&self, file: &str, document: &Document) -> Result<()> {
        self.content_hashes(file, document.row..document.row + 1)?.check(file, document)
    }

    /// Reads the content hashes of the documents in these rows of a file.
    pub(super) fn content_hashes(&self, file: &str, rows: Range<u64>) -> Result<ContentHashes> {
        let mut hashes = HashMap::new();
        for record in self.records(file, rows) {
            scores::read(&self.scores.root.join(&record.scores.path), &[], |window| {
                hashes.insert(window.input_row, window.content_hash);
                Ok(())
            })?;
        }
        Ok(ContentHashes(hashes))
    }
}

/// Content hashes of the documents of a file that a run scored, by row.
#[derive(Default)]
pub(super) struct ContentHashes(HashMap<u64, String>);

impl ContentHashes {
    /// Fails if the run scored other content in the row of this document. A row without scores has no hash.
    pub(super) fn check(&self, file: &str, document: &Document) -> Result<()> {
        let Some(scored) = self.0.get(&document.row) else { return Ok(()) };
        if document.content.as_ref().is_ok_and(|content| content_hash(content) == *scored) {
            return Ok(());
        }
        let id = document.id.clone().unwrap_or_else(|| id_of_row(file, document.row));
        let message = format!("document {} has changed since the run scored it", quoted(&id));
        let hint =
            "name the pipeline file instead of the run directory to read the current document";
        Err(Diagnostic::error(Blame::Data, message).hint(hint).into())
    }
}

pub(super) struct FoundDocument {
    /// File of the document, relative to the input.
    pub(super) file: String,
    pub(super) row: u64,
    /// Id; `<file>:<row>` if the input has no id column.
    pub(super) id: String,
    /// Row of the document with all columns.
    pub(super) columns: RecordBatch,
}

impl FoundDocument {
    /// Reads the only document with this id, at `<file>:<row>`, or with a repeated id at `<id>@<file>:<row>`. Cost: one pass over
    /// the id column.
    pub(super) fn read(plan: &Plan, id: &str) -> Result<Self> {
        let (unit, row) = find(plan, id)?;
        let unit = &plan.units[unit];
        match read_row(&plan.dataset, unit, row)? {
            Ok(columns) => {
                Ok(Self { file: unit.file_path.clone(), row, id: id.to_owned(), columns })
            }
            Err(problem) => {
                let message = format!("{}, row {row}: {}", unit.file_path, problem.message);
                Err(Diagnostic::error(Blame::Data, message).into())
            }
        }
    }

    pub(super) fn document(&self, plan: &Plan) -> Result<Document> {
        let content = document_contents(&plan.dataset, &self.columns, &plan.columns)?.remove(0);
        Ok(Document { row: self.row, id: Some(self.id.clone()), content })
    }

    pub(super) fn location(&self) -> String {
        format!("{}, row {}", self.file, self.row)
    }
}

fn find(plan: &Plan, id: &str) -> Result<(usize, u64)> {
    let mut found: Vec<(usize, u64)> = Vec::new();
    let mut at_place = None;
    let location =
        id.rsplit_once(':').and_then(|(file, row)| Some((file, row.parse::<u64>().ok()?)));
    for (index, unit) in plan.units.iter().enumerate() {
        plan.options.stop.check()?;
        let rows = unit.first_row..unit.first_row + unit.rows;
        if let Some((file, row)) = location
            && file == unit.file_path
            && rows.contains(&row)
        {
            at_place = Some((index, row));
        }
        let Some(column) = &plan.columns.id else { continue };
        let labels =
            plan.read_usable(unit, |lost| read_labels(&plan.dataset, unit, column, &lost.rows()))?;
        // The id of a sample whose id several documents have.
        if let Some((before, row)) = location
            && let Some(repeated) = before.strip_suffix(&unit.file_path)
            && let Some(repeated) = repeated.strip_suffix('@')
            && rows.contains(&row)
            && labels[(row - unit.first_row) as usize].as_deref() == Some(repeated)
        {
            at_place = Some((index, row));
        }
        let of_id = rows.zip(labels).filter(|(_, label)| label.as_deref() == Some(id));
        found.extend(of_id.map(|(row, _)| (index, row)));
    }
    let is_place = at_place.is_some_and(|place| !found.contains(&place));
    found.extend(at_place.filter(|_| is_place));
    match &found[..] {
        [location] => Ok(*location),
        [] => {
            let rows = count(plan.rows());
            let message = format!(
                "document {} not found among the {rows} documents of the input",
                quoted(id)
            );
            let hint = match &plan.columns.id {
                Some(column) => format!(
                    "ids are the values of the column {}, or FILE:ROW, as in `part-0.parquet:12`; `longsift tokens` prints them",
                    quoted(column)
                ),
                None => "the pipeline has no `id_column`: name a document as FILE:ROW, as in `part-0.parquet:12`".to_owned(),
            };
            Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into())
        }
        several => {
            let locations: Vec<String> = several
                .iter()
                .take(MAX_LOCATIONS)
                .map(|(unit, row)| quoted(&format!("{}:{row}", plan.units[*unit].file_path)))
                .collect();
            let number = count(several.len() as u64);
            let what = if is_place { "the id or the place" } else { "the id" };
            let message = format!("{number} documents have {what} {}", quoted(id));
            let hint = format!("use FILE:ROW instead: {}", locations.join(", "));
            Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into())
        }
    }
}
