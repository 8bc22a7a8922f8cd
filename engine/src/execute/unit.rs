//! Scores one work unit: read → tokenise → windows → statistics → parts → record.
//!
//! A thread reads and tokenises the next batch, of this unit or the next, while the windows of two others are measured; a
//! channel of one batch keeps them in step, so that at most four batches of documents are in memory however large the
//! units are.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::time::Duration;

use longsift_stages::first_layer_attention::{WindowStatistics, WindowTokens};
use longsift_stages::tokenize::windows::TokenWindow;

use super::journal::{Journal, WindowKey};
use super::prepare::{BadRow, CutDocument, Outcome, Prepared, prepare};
use super::{ScoredUnit, Tools};
use crate::accounting::{Counts, count};
use crate::dataset::{self, Faults, PartWriter, WorkUnit};
use crate::diagnostic::{Blame, Diagnostic};
use crate::dropped::{self, DroppedRow};
use crate::error::Result;
use crate::files;
use crate::quarantine;
use crate::schedule::News;
use crate::schedule::dispatch::GivenUp;
use crate::scores::{self, ScoreRow};
use crate::spec::pipeline::{Compression, OnBadRow};
use crate::units::{self, Part, UnitRecord};

/// Batches whose windows are being measured: the next one begins where the last one leaves devices idle.
const BATCHES_IN_WORK: usize = 2;
/// How often a stop signal is looked for while windows are measured.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// What a reader hands over, unit by unit, in order.
pub(super) enum Ahead {
    /// Documents of the unit, tokenised and cut; or why there are no more.
    Batch(Result<Vec<Prepared>>),
    /// The unit has no more documents; what of it could not be used.
    End(Faults),
}

/// Reads and tokenises `units` until all are read, one fails, or the other side has stopped.
pub(super) fn read_ahead(tools: &Tools<'_>, units: &[&WorkUnit], sender: &SyncSender<Ahead>) {
    // A closed channel means that the other side has stopped.
    let _ = units.iter().try_for_each(|unit| read_unit(tools, unit, sender));
}

fn read_unit(
    tools: &Tools<'_>,
    unit: &WorkUnit,
    sender: &SyncSender<Ahead>,
) -> std::result::Result<(), SendError<Ahead>> {
    let plan = tools.plan;
    let faults = match tools.progress.timed("check", || plan.faults(unit)) {
        Ok(faults) => faults,
        Err(problem) => return sender.send(Ahead::Batch(Err(problem))),
    };
    let bytes = plan.batch_bytes();
    let mut documents =
        match dataset::read_documents(&plan.dataset, unit, &plan.columns, bytes, faults.clone()) {
            Ok(documents) => documents,
            Err(problem) => return sender.send(Ahead::Batch(Err(problem.into()))),
        };
    while let Some(batch) = tools.progress.timed("read", || documents.next()) {
        let tokenize = |documents| {
            tools.progress.timed("tokenize", || prepare(plan, &unit.file_path, documents))
        };
        sender.send(Ahead::Batch(batch.map(tokenize).map_err(Into::into)))?;
    }
    sender.send(Ahead::End(faults))
}

/// Scores `unit` with a reader of its own and commits its record, unless another process does so first.
pub(super) fn score(tools: &Tools<'_>, unit: &WorkUnit) -> Result<ScoredUnit> {
    std::thread::scope(|scope| {
        let (sender, batches) = sync_channel(1);
        scope.spawn(move || read_ahead(tools, &[unit], &sender));
        let scored = score_from(tools, unit, &batches);
        // Without a receiver the reader has nobody to read for, and ends.
        drop(batches);
        scored
    })
}

/// Scores `unit` from what [`read_ahead`] gives of it, and commits its record, unless another process does so first.
pub(super) fn score_from(
    tools: &Tools<'_>,
    unit: &WorkUnit,
    batches: &Receiver<Ahead>,
) -> Result<ScoredUnit> {
    let journal_path = tools.directory.journal().join(unit.name());
    let fingerprint = units::fingerprint(&tools.plan.dataset, unit, tools.score_fingerprint);
    let (journal, finished) = Journal::open(&journal_path, &fingerprint)?;
    let journal_path = journal.path().to_owned();
    if let Some(record) = standing(tools, unit)? {
        files::remove_file(&journal_path)?;
        // What was read of it is not the next unit's.
        while let Ok(Ahead::Batch(Ok(_))) = batches.recv() {}
        return Ok(ScoredUnit { record, windows_measured: 0, by_another: true });
    }
    let mut open = OpenUnit::create(tools, unit, journal, finished)?;
    let scored = open.take(batches);
    let faults = match scored {
        Ok(faults) => faults,
        Err(failure) => {
            if let Err(also) = open.drain().and_then(|()| open.journal.sync()) {
                tracing::warn!("the journal of an open unit is not on disk: {also}");
            }
            return Err(failure);
        }
    };
    let windows_measured = open.windows_measured;
    let (record, by_another) = open.finish(&faults)?;
    files::remove_file(&journal_path)?;
    Ok(ScoredUnit { record, windows_measured, by_another })
}

/// The record of a unit, if it stands by now.
fn standing(tools: &Tools<'_>, unit: &WorkUnit) -> Result<Option<UnitRecord>> {
    let (dataset, fingerprint) = (&tools.plan.dataset, tools.score_fingerprint);
    units::standing_of(tools.directory, dataset, unit, fingerprint)
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
    /// Windows of the journal that no batch has asked for yet.
    finished: HashMap<WindowKey, WindowStatistics>,
    /// Windows that the scheduler has, by its numbers, with their tokens.
    submitted: BTreeMap<u64, (WindowKey, u64)>,
    /// Windows of the batches in work that have ended.
    measured: HashMap<WindowKey, std::result::Result<WindowStatistics, GivenUp>>,
    windows_measured: u64,
}

/// A batch whose windows are being measured: its documents, and the scheduler's numbers of the windows.
struct OpenBatch {
    documents: Vec<Prepared>,
    windows: Range<u64>,
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
            submitted: BTreeMap::new(),
            measured: HashMap::new(),
            windows_measured: 0,
        })
    }

    /// Measures every document of the unit. Returns what of it could not be used.
    fn take(&mut self, batches: &Receiver<Ahead>) -> Result<Faults> {
        let mut in_work = VecDeque::new();
        let faults = loop {
            match batches.recv().expect("a reader says when it is at the end of a unit") {
                Ahead::End(faults) => break faults,
                Ahead::Batch(batch) => {
                    self.tools.stop.check()?;
                    in_work.push_back(self.submit(batch?));
                    if in_work.len() == BATCHES_IN_WORK {
                        self.finish_batch(in_work.pop_front().expect("it has just been filled"))?;
                    }
                }
            }
        };
        in_work.into_iter().try_for_each(|batch| self.finish_batch(batch))?;
        Ok(faults)
    }

    /// Hands the windows of a batch to the scheduler, but for those that the journal has.
    fn submit(&mut self, documents: Vec<Prepared>) -> OpenBatch {
        let first = self.submitted.last_key_value().map_or(0, |(last, _)| last + 1);
        let mut windows = first..first;
        for document in &documents {
            let Outcome::Measure(cut) = &document.outcome else { continue };
            for window in &cut.windows {
                let key = (document.row, window.index);
                if let Some(found) = self.finished.remove(&key) {
                    self.measured.insert(key, Ok(found));
                    continue;
                }
                let window = self.window(cut, window);
                let tokens = window.ids.len() as u64;
                let id = self.tools.scheduler.submit(window);
                self.submitted.insert(id, (key, tokens));
                windows.end = id + 1;
            }
        }
        OpenBatch { documents, windows }
    }

    fn window(&self, cut: &CutDocument, window: &TokenWindow) -> WindowTokens {
        let plan = self.tools.plan;
        let tokens = &cut.ids[window.token_start as usize..window.token_end as usize];
        let ids = plan.bos.before(tokens);
        plan.spec.first_layer_attention().window(ids)
    }

    /// Waits for the windows of a batch of documents and writes what came out.
    fn finish_batch(&mut self, batch: OpenBatch) -> Result<()> {
        while self.submitted.range(batch.windows.clone()).next().is_some() {
            self.tools.stop.check()?;
            if let Some(news) = self.tools.scheduler.wait(STOP_INTERVAL) {
                self.hear(news)?;
            }
            self.tools.watch.look(self.tools.scheduler)?;
        }
        let mut rows = Vec::new();
        for document in batch.documents {
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
                    self.document(document.row, &document.id, &cut, &mut rows)?;
                }
            }
        }
        self.counts.windows_dropped.retain(|_, windows| *windows > 0);
        if !rows.is_empty() {
            self.scores.write(&scores::to_batch(&self.unit.file_path, &rows))?;
        }
        Ok(())
    }

    /// Keeps what the scheduler says.
    fn hear(&mut self, news: News) -> Result<()> {
        match news {
            News::Window { id, result } => {
                let Some((key, tokens)) = self.submitted.remove(&id) else { return Ok(()) };
                if let Ok(statistics) = &result {
                    self.journal.append(key, statistics)?;
                    self.windows_measured += 1;
                    self.tools.progress.windows_done(1, tokens);
                }
                self.measured.insert(key, result);
                Ok(())
            }
            News::Step { device, step } => self.tools.watch.step(device, &step),
            News::Dead(why) => Err(Diagnostic::error(
                Blame::Machine,
                format!("no device is left to measure windows on: {why}"),
            )
            .hint("what was measured is kept; see to the devices and run the same command again")
            .into()),
            News::Bug(panic) => {
                Err(Diagnostic::error(Blame::Bug, format!("a device's thread panicked: {panic}"))
                    .into())
            }
        }
    }

    /// Takes windows that no device has begun back, and keeps those that are under way.
    fn drain(&mut self) -> Result<()> {
        self.tools.scheduler.withdraw();
        while self.tools.scheduler.is_busy() {
            match self.tools.scheduler.wait(STOP_INTERVAL) {
                // The run ends for another reason already.
                None | Some(News::Dead(_) | News::Bug(_)) => {}
                Some(news) => self.hear(news)?,
            }
        }
        Ok(())
    }

    /// One document with all its windows measured.
    fn document(
        &mut self,
        row: u64,
        id: &str,
        cut: &CutDocument,
        rows: &mut Vec<ScoreRow>,
    ) -> Result<()> {
        let tokens_total = cut.ids.len() as u64;
        let mut statistics = Vec::with_capacity(cut.windows.len());
        let mut problem = None;
        for window in &cut.windows {
            let ended = self.measured.remove(&(row, window.index));
            match ended.expect("every window of a finished batch has ended") {
                Ok(figures) if figures.is_finite() => statistics.push(figures),
                Ok(_) => {
                    let message =
                        format!("window {} has a score that is not a finite number", window.index);
                    problem = problem.or(Some(("score_not_finite", message)));
                }
                Err(why) => {
                    let message = format!("window {}: {}", window.index, why.message);
                    problem = problem.or(Some((why.code, message)));
                }
            }
        }
        if let Some((code, message)) = problem {
            return self.quarantine(BadRow { row, stage: "first-layer-attention", code, message });
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
        for (window, statistics) in cut.windows.iter().zip(statistics) {
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
                statistics,
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

    /// Writes the parts and, last, the record that makes them count. Returns the record that counts, and whether it is
    /// another process's.
    fn finish(self, faults: &Faults) -> Result<(UnitRecord, bool)> {
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
        if let Some(violation) = record.violations().first() {
            let message = format!("{}: {violation}", unit.file_path);
            return Err(Diagnostic::error(Blame::Bug, message).into());
        }
        match units::commit(tools.directory, &tools.plan.dataset, unit, &record)? {
            Some(earlier) => Ok((earlier, true)),
            None => Ok((record, false)),
        }
    }
}
