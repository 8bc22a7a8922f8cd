//! Scores one work unit: read → tokenise → windows → statistics → parts → record.
//!
//! A thread reads and tokenises the next batch while this one is measured; a channel of one batch keeps them in step,
//! so that at most three batches of documents are in memory however large the unit is.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use longsift_stages::first_layer_attention::{WindowStatistics, WindowTokens};

use super::Tools;
use super::journal::{Journal, WindowKey};
use super::prepare::{BadRow, CutDocument, Outcome, Prepared, prepare};
use crate::accounting::{Counts, count};
use crate::dataset::{self, Faults, PartWriter, WorkUnit};
use crate::diagnostic::{Blame, Diagnostic};
use crate::dropped::{self, DroppedRow};
use crate::error::Result;
use crate::files;
use crate::quarantine;
use crate::scores::{self, ScoreRow};
use crate::spec::pipeline::{Compression, OnBadRow};
use crate::units::{self, Part, UnitRecord};

/// Scores `unit` and commits its record. Returns the record and how many windows were measured rather than found in
/// the unit's journal.
pub(super) fn score(tools: &Tools<'_>, unit: &WorkUnit) -> Result<(UnitRecord, u64)> {
    let faults = tools.progress.timed("check", || tools.plan.faults(unit))?;
    let journal_path = tools.directory.journal().join(unit.name());
    let fingerprint = units::fingerprint(&tools.plan.dataset, unit, tools.score_fingerprint);
    let (journal, finished) = Journal::open(&journal_path, &fingerprint)?;
    let mut open = OpenUnit::create(tools, unit, journal, finished)?;
    let scored = std::thread::scope(|scope| {
        let (sender, batches) = sync_channel(1);
        let faults = faults.clone();
        scope.spawn(move || read_ahead(tools, unit, faults, &sender));
        open.take(&batches)
    });
    if let Err(failure) = scored {
        open.journal.sync()?;
        return Err(failure);
    }
    let windows_measured = open.windows_measured;
    let record = open.finish(&faults)?;
    files::remove_file(&journal_path)?;
    Ok((record, windows_measured))
}

fn read_ahead(
    tools: &Tools<'_>,
    unit: &WorkUnit,
    faults: Faults,
    sender: &SyncSender<Result<Vec<Prepared>>>,
) {
    let plan = tools.plan;
    let bytes = plan.batch_bytes();
    let mut documents =
        match dataset::read_documents(&plan.dataset, unit, &plan.columns, bytes, faults) {
            Ok(documents) => documents,
            Err(problem) => return drop(sender.send(Err(problem.into()))),
        };
    while let Some(batch) = tools.progress.timed("read", || documents.next()) {
        let tokenize = |documents| {
            tools.progress.timed("tokenize", || prepare(plan, &unit.file_path, documents))
        };
        let prepared = batch.map(tokenize).map_err(Into::into);
        let failed = prepared.is_err();
        // A closed channel means that the other side has stopped.
        if sender.send(prepared).is_err() || failed {
            return;
        }
    }
}

/// A unit while it is being scored.
struct OpenUnit<'a> {
    tools: &'a Tools<'a>,
    unit: &'a WorkUnit,
    scores: PartWriter,
    scores_path: String,
    dropped: Vec<DroppedRow>,
    bad: Vec<BadRow>,
    counts: Counts,
    journal: Journal,
    finished: HashMap<WindowKey, WindowStatistics>,
    windows_measured: u64,
}

impl<'a> OpenUnit<'a> {
    fn create(
        tools: &'a Tools<'a>,
        unit: &'a WorkUnit,
        journal: Journal,
        finished: HashMap<WindowKey, WindowStatistics>,
    ) -> Result<Self> {
        let scores_path = format!("scores/part-{}.parquet", unit.name());
        let path = tools.directory.root.join(&scores_path);
        let scores =
            PartWriter::create(&path, &scores::schema(), &scores::metadata(), Compression::Zstd)?;
        let (dropped, bad, counts) = (Vec::new(), Vec::new(), Counts::default());
        Ok(Self {
            tools,
            unit,
            scores,
            scores_path,
            dropped,
            bad,
            counts,
            journal,
            finished,
            windows_measured: 0,
        })
    }

    fn take(&mut self, batches: &Receiver<Result<Vec<Prepared>>>) -> Result<()> {
        for batch in batches {
            self.tools.stop.check()?;
            self.batch(batch?)?;
        }
        Ok(())
    }

    /// Measures the windows of a batch of documents and writes what came out.
    fn batch(&mut self, batch: Vec<Prepared>) -> Result<()> {
        let measured = self.measure(&batch)?;
        let mut rows = Vec::new();
        for document in batch {
            self.counts.rows += 1;
            match document.outcome {
                Outcome::Quarantine(bad) => self.quarantine(bad)?,
                Outcome::Drop { reason, tokens_total, windows } => {
                    self.counts.tokens_total += tokens_total;
                    *self.counts.windows_dropped.entry(reason.to_owned()).or_default() += windows;
                    count(&mut self.counts.rows_dropped, reason);
                    self.dropped.push(DroppedRow::row(document.row, document.id, reason));
                }
                Outcome::Measure(cut) => {
                    self.document(document.row, &document.id, &cut, &measured, &mut rows)?;
                }
            }
        }
        self.counts.windows_dropped.retain(|_, windows| *windows > 0);
        if !rows.is_empty() {
            self.scores.write(&scores::to_batch(&self.unit.file_path, &rows))?;
        }
        Ok(())
    }

    /// Statistics of all windows of a batch: from the journal where it has them, else measured and added to it.
    fn measure(&mut self, batch: &[Prepared]) -> Result<HashMap<WindowKey, WindowStatistics>> {
        let mut statistics = HashMap::new();
        let mut missing = Vec::new();
        for document in batch {
            let Outcome::Measure(cut) = &document.outcome else { continue };
            for window in &cut.windows {
                let key = (document.row, window.index);
                match self.finished.remove(&key) {
                    Some(found) => drop(statistics.insert(key, found)),
                    None => missing.push((key, cut, window)),
                }
            }
        }
        let plan = self.tools.plan;
        for some in missing.chunks(self.tools.device.windows_in_flight().max(1)) {
            self.tools.stop.check()?;
            let windows: Vec<WindowTokens> = some
                .iter()
                .map(|(_, cut, window)| {
                    let tokens = &cut.ids[window.token_start as usize..window.token_end as usize];
                    let ids = plan.bos.before(tokens);
                    let distance = plan.spec.first_layer_attention().distance(ids.len() as u64);
                    WindowTokens { ids, distance }
                })
                .collect();
            let (device, layer) = (self.tools.device, self.tools.layer);
            let measured = self
                .tools
                .progress
                .timed("first-layer-attention", || device.measure(layer, &windows));
            for ((key, ..), figures) in some.iter().zip(measured) {
                self.journal.append(*key, &figures)?;
                statistics.insert(*key, figures);
            }
            self.windows_measured += some.len() as u64;
            let tokens: usize = windows.iter().map(|window| window.ids.len()).sum();
            self.tools.progress.windows_done(some.len() as u64, tokens as u64);
        }
        Ok(statistics)
    }

    /// One document with all its windows measured.
    fn document(
        &mut self,
        row: u64,
        id: &str,
        cut: &CutDocument,
        measured: &HashMap<WindowKey, WindowStatistics>,
        rows: &mut Vec<ScoreRow>,
    ) -> Result<()> {
        let tokens_total = cut.ids.len() as u64;
        if let Some(window) =
            cut.windows.iter().find(|window| !measured[&(row, window.index)].is_finite())
        {
            let message =
                format!("window {} has a score that is not a finite number", window.index);
            return self.quarantine(BadRow {
                row,
                stage: "first-layer-attention",
                code: "score_not_finite",
                message,
            });
        }
        self.counts.rows_scored += 1;
        self.counts.tokens_total += tokens_total;
        self.counts.windows += cut.windows.len() as u64;
        if cut.windows_too_short > 0 {
            *self.counts.windows_dropped.entry("too_short".to_owned()).or_default() +=
                cut.windows_too_short;
        }
        let attention = self.tools.plan.spec.first_layer_attention();
        let windows = cut.windows.len() as u32;
        for window in &cut.windows {
            let bytes = cut.ends.as_ref().map(|ends| {
                ends.byte_range(
                    window.token_start as usize,
                    window.token_end as usize,
                    cut.text_bytes,
                )
            });
            let tokens_scored =
                window.token_end - window.token_start + u64::from(self.tools.plan.bos.count);
            self.counts.tokens_scored += tokens_scored;
            rows.push(ScoreRow {
                input_row: row,
                id: id.to_owned(),
                window: window.index,
                windows,
                token_start: window.token_start,
                token_end: window.token_end,
                byte_start: bytes.as_ref().map(|range| range.start as u64),
                byte_end: bytes.map(|range| range.end as u64),
                tokens_total,
                tokens_scored,
                distance: attention.distance(tokens_scored),
                content_hash: cut.content_hash.clone(),
                statistics: measured[&(row, window.index)].clone(),
            });
        }
        Ok(())
    }

    fn quarantine(&mut self, bad: BadRow) -> Result<()> {
        if self.tools.plan.spec.pipeline.input.on_bad_row == OnBadRow::Fail {
            return Err(Diagnostic::error(Blame::Data, format!(
                "{}, row {}: {} ({})",
                self.unit.file_path, bad.row, bad.message, bad.code
            ))
            .hint("mend the row, or set `input.on_bad_row: quarantine` to set such rows aside and go on")
            .into());
        }
        count(&mut self.counts.quarantined, bad.code);
        self.bad.push(bad);
        Ok(())
    }

    /// Writes the parts and, last, the record that makes them count.
    fn finish(self, faults: &Faults) -> Result<UnitRecord> {
        let Self { tools, unit, scores, scores_path, dropped, bad, counts, .. } = self;
        if counts.rows != unit.rows {
            return Err(Diagnostic::error(
                Blame::Data,
                format!(
                    "{}: {} rows were read, the footer promised {}",
                    unit.file_path, counts.rows, unit.rows
                ),
            )
            .hint("the file is damaged or was replaced while it was read; restore it and run again")
            .into());
        }
        counts.check().map_err(|violation| {
            Diagnostic::error(Blame::Bug, format!("{}: {violation}", unit.file_path))
        })?;
        let written = scores.finish()?;
        let scores = Part::new(scores_path, &written);
        let dropped = dropped::write(
            tools.directory,
            &format!("score-{}", unit.name()),
            &unit.file_path,
            &dropped,
        )?;
        let quarantine = quarantine::write(tools, unit, &bad, faults)?;
        let ranges = faults.unreadable_rows();
        let record = UnitRecord {
            unit: unit.name(),
            file: unit.file_path.clone(),
            row_groups: (unit.row_groups.start, unit.row_groups.end),
            first_row: unit.first_row,
            input: units::identity(&tools.plan.dataset, unit),
            score_fingerprint: tools.score_fingerprint.to_owned(),
            counts,
            scores,
            dropped,
            quarantine,
            unreadable: ranges.into_iter().map(|range| (range.start, range.end)).collect(),
        };
        units::commit(tools.directory, &record)?;
        Ok(record)
    }
}
