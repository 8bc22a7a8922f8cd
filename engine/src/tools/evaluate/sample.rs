//! Sampling of documents: of each category those with the smallest hash of their id, so that the sample does not
//! depend on the order, partitioning or names of files.
//!
//! One pass over ids and categories keeps the smallest hashes of each category; their texts are read and tokenized until every
//! length has enough documents. Otherwise, the next pass starts above the largest hash kept.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::RecordBatch;
use longsift_stages::tokenize::encoder::EncodedText;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;

use super::measure::{Slice, WindowContent};
use crate::base::diagnostic::{Blame, Diagnostic, DiagnosticLocation};
use crate::base::error::Result;
use crate::base::random::{key, mix};
use crate::base::text::bytes;
use crate::dataset::documents::{DocumentContent, DocumentText, content_digest, document_contents};
use crate::dataset::labels::{read_labels, values};
use crate::dataset::rows::read_rows;
use crate::plan::Plan;

/// Ids of a category that the first pass keeps; each further pass keeps twice as many. The sample does not depend on them.
const FIRST_PASS_IDS: usize = 256;
const MAX_IDS_PER_PASS: usize = 1 << 16;
const DOCUMENTS_PER_BATCH: usize = 32;
const ROWS_PER_READ: usize = 16;
const MAX_LISTED: usize = 20;
/// Maximum number of left-out categories counted, to bound memory.
const MAX_COUNTED: usize = 100_000;

#[derive(Clone, Debug)]
pub(crate) struct SampleOptions {
    /// Window lengths in tokens, ascending.
    pub(crate) lengths: Vec<usize>,
    pub(crate) documents: usize,
    pub(crate) categories: usize,
    pub(crate) seed: u64,
    /// Column of the categories; without it all documents are in one category.
    pub(crate) by: Option<String>,
    /// Whether rows without a category form the category `null` or are left out.
    pub(crate) null_is_category: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct EvaluationSample {
    /// By category, the documents that are long enough for a length, in sample order.
    pub(crate) categories: BTreeMap<String, Vec<SampledDocument>>,
    /// Rows left out because another row of their category has the same id.
    pub(crate) equal_ids: u64,
    pub(crate) left_out: OmittedCategories,
}

/// Categories that were left out because there are too many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "LeftOut")]
pub(crate) struct OmittedCategories {
    pub(crate) number: u64,
    /// Whether there are more categories than were counted.
    pub(crate) at_least: bool,
    /// First categories by name.
    pub(crate) names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampledDocument {
    pub(crate) id: String,
    /// Name for other commands: the id, or `FILE:ROW` without `input.id_column`.
    pub(crate) name: String,
    pub(crate) row: InputRow,
    pub(crate) tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputRow {
    pub(crate) unit: usize,
    pub(crate) row: u64,
}

impl SampleOptions {
    /// Returns the documents of a category for one length: the first ones that are long enough.
    pub(crate) fn for_length<'d>(
        &self,
        tokens: usize,
        documents: &'d [SampledDocument],
    ) -> Vec<&'d SampledDocument> {
        documents.iter().filter(|found| found.tokens >= tokens).take(self.documents).collect()
    }
}

type SortKey = (u64, String);

/// A category whose sample is incomplete.
#[derive(Debug, Default)]
struct OpenCategory {
    /// Rows of the smallest keys of this pass.
    rows: BTreeMap<SortKey, Vec<InputRow>>,
    /// Largest key that has been examined.
    floor: Option<SortKey>,
    max: usize,
    /// Whether the pass left out ids above the largest one kept.
    more: bool,
    sampled: Vec<SampledDocument>,
}

impl OpenCategory {
    fn offer(&mut self, key: SortKey, row: InputRow) {
        if self.floor.as_ref().is_some_and(|floor| key <= *floor) {
            return;
        }
        let full = self.rows.len() == self.max;
        if full && self.rows.last_key_value().is_some_and(|(last, _)| key > *last) {
            self.more = true;
            return;
        }
        self.rows.entry(key).or_default().push(row);
        if self.rows.len() > self.max {
            self.rows.pop_last();
            self.more = true;
        }
    }

    /// Returns whether every length has enough documents.
    fn is_complete(&self, wanted: &SampleOptions) -> bool {
        let found = |tokens: &usize| wanted.for_length(*tokens, &self.sampled).len();
        wanted.lengths.iter().all(|tokens| found(tokens) == wanted.documents)
    }
}

pub(crate) fn find(plan: &Plan, wanted: &SampleOptions) -> Result<EvaluationSample> {
    let mut sample = EvaluationSample::default();
    let mut open: BTreeMap<String, OpenCategory> = BTreeMap::new();
    let (seed, max) = (wanted.seed, wanted.categories);
    let mut names = Categories { seed, max, ..Categories::default() };
    let mut first = true;
    while first || !open.is_empty() {
        pass(plan, wanted, &mut |category, key, row| {
            if first {
                if let Some(out) = names.offer(&category) {
                    open.remove(&out);
                    if out == category {
                        return;
                    }
                }
                let new = || OpenCategory { max: FIRST_PASS_IDS, ..OpenCategory::default() };
                open.entry(category).or_insert_with(new).offer(key, row);
            } else if let Some(of) = open.get_mut(&category) {
                of.offer(key, row);
            }
        })?;
        first = false;
        for (name, mut of) in std::mem::take(&mut open) {
            sample.equal_ids += read_candidates(plan, wanted, &mut of)?;
            if of.more && !of.is_complete(wanted) {
                of.more = false;
                of.max = (2 * of.max).min(MAX_IDS_PER_PASS);
                open.insert(name, of);
            } else {
                sample.categories.insert(name, of.sampled);
            }
        }
    }
    sample.left_out = names.left_out;
    Ok(sample)
}

/// Categories with the smallest hashes, up to the maximum.
#[derive(Default)]
struct Categories {
    seed: u64,
    max: usize,
    kept: BTreeSet<(u64, String)>,
    /// Names of left-out categories: bounded, to bound memory.
    out: BTreeSet<String>,
    left_out: OmittedCategories,
}

impl Categories {
    /// Adds a category; returns the one that it displaces, which may be itself.
    fn offer(&mut self, name: &str) -> Option<String> {
        let hashed = (mix(key(self.seed, &["category", name])), name.to_owned());
        if self.kept.contains(&hashed) {
            return None;
        }
        self.kept.insert(hashed);
        if self.kept.len() <= self.max {
            return None;
        }
        let (_, out) = self.kept.pop_last().expect("one too many");
        self.out.insert(out.clone());
        if self.out.len() > MAX_COUNTED {
            self.out.pop_last();
            self.left_out.at_least = true;
        }
        self.left_out.number = self.out.len() as u64;
        self.left_out.names = self.out.iter().take(MAX_LISTED).cloned().collect();
        Some(out)
    }
}

fn pass(
    plan: &Plan,
    wanted: &SampleOptions,
    offer: &mut dyn FnMut(String, SortKey, InputRow),
) -> Result<()> {
    for unit in &plan.units {
        plan.options.stop.check()?;
        let unreadable = plan.lost_row_groups(unit)?.rows();
        let labels = |column: &str| read_labels(&plan.dataset, unit, column, &unreadable);
        let categories = wanted.by.as_deref().map(labels).transpose()?;
        let ids = plan.columns.id.as_deref().map(labels).transpose()?;
        let mut nameless = Vec::new();
        for location in 0..unit.rows {
            let row = unit.first_row + location;
            if unreadable.iter().any(|range| range.contains(&row)) {
                continue;
            }
            let row = InputRow { unit: unit.index, row };
            let of = |labels: &Option<Vec<Option<String>>>| {
                labels.as_ref().and_then(|labels| labels[location as usize].clone())
            };
            let category = match of(&categories) {
                Some(category) => category,
                None if wanted.by.is_none() => String::new(),
                None if wanted.null_is_category => "null".to_owned(),
                None => continue,
            };
            match of(&ids) {
                Some(id) => offer(category, sort_key(wanted, id), row),
                None => nameless.push((row, category)),
            }
        }
        let rows: Vec<InputRow> = nameless.iter().map(|(row, _)| *row).collect();
        let mut categories = nameless.into_iter().map(|(_, category)| category);
        each_content(plan, &rows, &mut |row, content| {
            let category = categories.next().expect("one category per row");
            if let Some(content) = content {
                offer(category, sort_key(wanted, content_digest(&content)), row);
            }
            plan.options.stop.check()
        })?;
    }
    Ok(())
}

/// Reads the documents that a pass kept until every length has enough. Returns the rows left out because of equal ids.
fn read_candidates(plan: &Plan, wanted: &SampleOptions, open: &mut OpenCategory) -> Result<u64> {
    let rows = std::mem::take(&mut open.rows);
    open.floor = rows.last_key_value().map(|(key, _)| key.clone()).or(open.floor.take());
    let mut equal_ids = 0;
    let mut all = rows.into_iter().peekable();
    while all.peek().is_some() && !open.is_complete(wanted) {
        plan.options.stop.check()?;
        let batch: Vec<(SortKey, Vec<InputRow>)> = all.by_ref().take(DOCUMENTS_PER_BATCH).collect();
        let mut of_row = BTreeMap::new();
        for (index, (_, rows)) in batch.iter().enumerate() {
            of_row.extend(rows.iter().map(|row| (*row, index)));
        }
        let rows: Vec<InputRow> = of_row.keys().copied().collect();
        // Of rows with equal ids, the one with the smallest SHA-256 of its content is used, independent of its file.
        let mut smallest: Vec<Option<(String, InputRow, DocumentContent)>> =
            vec![None; batch.len()];
        each_content(plan, &rows, &mut |row, content| {
            let Some(content) = content else { return Ok(()) };
            let digest = content_digest(&content);
            let best = &mut smallest[of_row[&row]];
            equal_ids += u64::from(best.is_some());
            if best.as_ref().is_none_or(|(min, ..)| digest < *min) {
                *best = Some((digest, row, content));
            }
            plan.options.stop.check()
        })?;
        let chosen: Vec<_> = batch
            .into_iter()
            .zip(smallest)
            .filter_map(|(((_, id), _), found)| Some((id, found?)))
            .collect();
        let counted: Vec<Result<Option<SampledDocument>>> = chosen
            .into_par_iter()
            .map(|(id, (_, row, content))| {
                let encoded = encode(plan, row, content)?;
                let name = match plan.columns.id {
                    Some(_) => id.clone(),
                    None => format!("{}:{}", plan.units[row.unit].file_path, row.row),
                };
                Ok(encoded.map(|(ids, _)| SampledDocument { id, name, row, tokens: ids.len() }))
            })
            .collect();
        for found in counted {
            let long_enough = |found: &SampledDocument| found.tokens >= wanted.lengths[0];
            open.sampled.extend(found?.filter(long_enough));
        }
    }
    Ok(equal_ids)
}

/// Reads and tokenizes the documents of a sample, in order; fails if they take more than half of the memory limit.
pub(crate) fn read(plan: &Plan, found: &[&SampledDocument]) -> Result<Vec<EvaluatedDocument>> {
    let limit = plan.spec.pipeline.input.memory_limit_bytes / 2;
    let needed: u64 = found.iter().map(|found| 4 * found.tokens as u64).sum();
    if needed > limit {
        let message = format!(
            "the {} documents of a category take {}, more than half of `memory_limit_bytes`",
            found.len(),
            bytes(needed)
        );
        return Err(Diagnostic::error(Blame::Pipeline, message)
            .hint("lower `--documents-per-category`, or raise `input.memory_limit_bytes`")
            .into());
    }
    let mut documents = Vec::new();
    for batch in found.chunks(DOCUMENTS_PER_BATCH) {
        let read = read_batch(plan, batch)?.into_iter();
        documents.extend(read.map(|read| EvaluatedDocument { text: None, ..read }));
    }
    Ok(documents)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct EvaluatedDocument {
    pub(crate) id: String,
    /// Value of `score.within`; `None` if null or not set.
    pub(crate) group: Option<String>,
    /// Token ids without BOS.
    pub(crate) ids: Vec<u32>,
    pub(super) text: TokenizedText,
}

/// Text of a document with the ends of its tokens; `None` for pre-tokenized documents.
type TokenizedText = Option<(DocumentText, EncodedText)>;

impl EvaluatedDocument {
    /// Returns the window of `tokens` tokens from `start`; if `with_text`, with its slice of the text.
    pub(crate) fn window(&self, start: usize, tokens: usize, with_text: bool) -> WindowContent {
        let end = start + tokens;
        let slice = self.text.as_ref().filter(|_| with_text).map(|(text, ends)| {
            let of = ends.byte_range(start, end, text.len());
            let half = ends.byte_range(start + tokens / 2, end, text.len()).start - of.start;
            Slice { bytes: text.as_bytes()[of].to_vec(), half }
        });
        WindowContent { ids: self.ids[start..end].to_vec(), slice }
    }
}

pub(crate) fn read_batch(
    plan: &Plan,
    batch: &[&SampledDocument],
) -> Result<Vec<EvaluatedDocument>> {
    plan.options.stop.check()?;
    let mut rows: Vec<InputRow> = batch.iter().map(|found| found.row).collect();
    rows.sort_unstable();
    let within = plan.spec.score().within.as_ref();
    let within = within.map(|column| plan.dataset.schema.index_of(column).expect("checked"));
    let mut contents = BTreeMap::new();
    each_batch(plan, &rows, &mut |rows, batch| {
        let groups = within.map(|column| values(batch.column(column)));
        let groups = groups.unwrap_or_else(|| vec![None; rows.len()]);
        let of_rows = document_contents(&plan.dataset, batch, &plan.columns)?;
        for ((row, content), group) in rows.iter().zip(of_rows).zip(groups) {
            contents.extend(content.ok().map(|content| (*row, (content, group))));
        }
        Ok(())
    })?;
    let read: Vec<Result<EvaluatedDocument>> = batch
        .par_iter()
        .map(|found| {
            let Some((content, group)) = contents.get(&found.row).cloned() else {
                return Err(changed(plan, found.row));
            };
            match encode(plan, found.row, content)? {
                Some((ids, text)) if ids.len() == found.tokens => {
                    Ok(EvaluatedDocument { id: found.id.clone(), group, ids, text })
                }
                _ => Err(changed(plan, found.row)),
            }
        })
        .collect();
    read.into_iter().collect()
}

fn location(plan: &Plan, row: InputRow) -> String {
    format!("{}, row {}", plan.units[row.unit].file_path, row.row)
}

fn changed(plan: &Plan, row: InputRow) -> crate::base::error::Failure {
    Diagnostic::error(Blame::Data, "the row changed while it was read")
        .at(DiagnosticLocation::Data(location(plan, row)))
        .hint("run the command again when no other process writes to the input")
        .into()
}

/// Calls `receive` with the contents of ascending rows; `None` for rows that a run would quarantine.
fn each_content(
    plan: &Plan,
    rows: &[InputRow],
    receive: &mut dyn FnMut(InputRow, Option<DocumentContent>) -> Result<()>,
) -> Result<()> {
    each_batch(plan, rows, &mut |rows, batch| {
        let contents = document_contents(&plan.dataset, batch, &plan.columns)?;
        rows.iter().zip(contents).try_for_each(|(row, content)| receive(*row, content.ok()))
    })
}

/// Calls `receive` with batches of ascending rows, with all columns.
pub(super) fn each_batch(
    plan: &Plan,
    rows: &[InputRow],
    receive: &mut dyn FnMut(&[InputRow], &RecordBatch) -> Result<()>,
) -> Result<()> {
    for of_unit in rows.chunk_by(|a, b| a.unit == b.unit) {
        let unit = &plan.units[of_unit[0].unit];
        let numbers: Vec<u64> = of_unit.iter().map(|row| row.row).collect();
        for batch in read_rows(&plan.dataset, unit, &numbers, ROWS_PER_READ)? {
            let (numbers, batch) = batch?;
            let rows: Vec<InputRow> =
                numbers.into_iter().map(|row| InputRow { unit: unit.index, row }).collect();
            receive(&rows, &batch)?;
        }
    }
    Ok(())
}

fn sort_key(wanted: &SampleOptions, id: String) -> SortKey {
    (mix(key(wanted.seed, &["document", &id])), id)
}

/// Tokenizes a document and returns its token ids and its text; `None` if a run would quarantine it.
fn encode(
    plan: &Plan,
    row: InputRow,
    content: DocumentContent,
) -> Result<Option<(Vec<u32>, TokenizedText)>> {
    let text = match content {
        DocumentContent::Tokens(ids) => return Ok(Some((ids, None))),
        DocumentContent::Text(text) => text,
    };
    let encoded = plan.tokenize(location(plan, row), &text)?;
    Ok(encoded.ok().map(|mut encoded| {
        let ids = std::mem::take(&mut encoded.ids);
        (ids, Some((text, encoded)))
    }))
}
