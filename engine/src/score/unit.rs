//! Scores one work unit: read → tokenize → windows → statistics → parts → record.
//!
//! A thread reads and tokenizes the next batch, of this unit or the next, while the windows of two batches are measured. A
//! channel of one batch connects them, so that at most four batches of documents are in memory, however large the units are.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};

use longsift_stages::contract::RowError;

use super::context::{ScoreContext, ScoredUnit};
use super::documents::Judge;
use super::journal::RetainedMeasure;
use super::measuring::Measuring;
use super::passes::STOP_INTERVAL;
use super::prepare::{CutDocument, Preparation, Prepared, prepare};
use super::reopen::{self, OpenJournal};
use crate::base::counts::{Counts, count};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::text::{quoted, quoted_group};
use crate::dataset::lost_row_groups::LostRowGroups;
use crate::dataset::part::PartWriter;
use crate::dataset::read::{ReadError, RowGroupError};
use crate::dataset::units::WorkUnit;
use crate::dataset::{documents, labels};
use crate::plan::calibrated_groups::{self, CalibratedGroups};
use crate::plan::sampling;
use crate::run_directory::dropped::{self, DroppedRow};
use crate::run_directory::facts::MeasuredBy;
use crate::run_directory::quarantine::{self, BadRow};
use crate::run_directory::scores::{self, MeasureColumns, ScoreRow};
use crate::run_directory::units::{self, Part, UnitRecord};
use crate::spec::pipeline::{OnBadRow, ParquetCompression};
use crate::storage::files;

/// Maximum batches in progress: the second uses devices that the first leaves idle.
const MAX_OPEN_BATCHES: usize = 2;

/// Messages of a reader, unit by unit, in order.
pub(super) enum FromReader {
    /// Documents of the unit, tokenized and cut, or the error that ends reading.
    Batch(Result<Vec<Prepared>>),
    /// A row group cannot be used, but some of its documents may have been sent: the unit is read again without it.
    Restart,
    /// End of the unit, with its row groups that could not be used.
    End(LostRowGroups),
}

/// Reads and tokenizes all usable row groups of a unit. Fails if the receiver has stopped.
pub(super) fn read_unit(
    context: &ScoreContext<'_>,
    unit: &WorkUnit,
    sender: &SyncSender<FromReader>,
) -> Result<()> {
    let mut lost = LostRowGroups::default();
    while let Some(failed) = read_without(context, unit, &lost, sender)? {
        lost = context.plan.more_lost_row_groups(unit, lost, *failed)?;
        send(sender, FromReader::Restart)?;
    }
    send(sender, FromReader::End(lost))
}

fn send(sender: &SyncSender<FromReader>, message: FromReader) -> Result<()> {
    // Never shown: the receiver has stopped.
    sender.send(message).map_err(|_| Failure::Problems(Vec::new()))
}

/// Returns the error of a row group; others may be readable.
fn row_group_error(error: ReadError) -> Result<Option<Box<RowGroupError>>> {
    match error {
        ReadError::File(problem) => Err(problem.into()),
        ReadError::RowGroup(error) => Ok(Some(error)),
    }
}

/// Sends the documents of a unit without those of lost row groups. Returns the error of another row group that is lost.
fn read_without(
    context: &ScoreContext<'_>,
    unit: &WorkUnit,
    lost: &LostRowGroups,
    sender: &SyncSender<FromReader>,
) -> Result<Option<Box<RowGroupError>>> {
    let (plan, progress) = (context.plan, context.progress);
    let bytes = plan.batch_bytes();
    let opened = documents::read_documents(&plan.dataset, unit, &plan.columns, bytes, lost.clone());
    let mut documents = match opened {
        Ok(documents) => documents,
        Err(error) => return row_group_error(error),
    };
    let groups = match plan.spec.score().within.as_deref().filter(|_| context.calibrated.is_some())
    {
        Some(column) => match labels::read_labels(&plan.dataset, unit, column, &lost.rows()) {
            Ok(groups) => groups,
            Err(error) => return row_group_error(error),
        },
        None => Vec::new(),
    };
    let mut judge = Judge::open(context, unit)?;
    while let Some(batch) = progress.timed("read", || documents.next()) {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => return row_group_error(error),
        };
        let judged = judge.judge(batch)?;
        let prepared = progress.timed("tokenize", || prepare(plan, &unit.file_path, judged));
        if let Some(known) = context.calibrated {
            refuse_unknown_group(context, unit, known, &groups, &prepared)?;
        }
        send(sender, FromReader::Batch(Ok(prepared)))?;
    }
    judge.finish().map(|()| None)
}

/// Refuses the first measured document whose group the calibration lacks. `groups`: of all rows of the unit.
fn refuse_unknown_group(
    context: &ScoreContext<'_>,
    unit: &WorkUnit,
    known: &CalibratedGroups,
    groups: &[Option<String>],
    prepared: &[Prepared],
) -> Result<()> {
    let measured = prepared.iter().filter(|of| matches!(of.outcome, Preparation::Measure(_)));
    for Prepared { row, .. } in measured {
        let group = &groups[(row - unit.first_row) as usize];
        if !known.contains(group) {
            let name = quoted_group(group.as_deref());
            let group = format!("{name} ({}, row {row})", quoted(&unit.file_path));
            return Err(calibrated_groups::missing(&context.plan.spec, &group).into());
        }
    }
    Ok(())
}

/// Scores `unit` from the messages of [`read_unit`] and commits its record, unless another process does so first.
pub(super) fn score(
    context: &ScoreContext<'_>,
    unit: &WorkUnit,
    batches: &Receiver<FromReader>,
) -> Result<ScoredUnit> {
    let mut measured = Vec::new();
    loop {
        let retained = context.exclusive.then(Vec::new);
        let opened =
            reopen::open_journal(context.plan, context.directory, context.wanted, unit, retained)?;
        let journal_path = opened.journal.path.clone();
        let serves = |record: &UnitRecord| record.serves(context.wanted);
        let dataset = &context.plan.dataset;
        // Another process may have committed the unit.
        if !context.exclusive
            && let Some(record) = units::usable_record(context.directory, dataset, unit, serves)?
        {
            files::remove_file(&journal_path)?;
            let windows_measured = measured.len() as u64;
            return Ok(ScoredUnit { record, windows_measured, by_another: true });
        }
        let mut open = OpenUnit::create(context, unit, opened)?;
        let scored = open.measure_batches(batches);
        measured.append(&mut open.measuring.measured);
        match scored {
            Ok(Some(lost)) => {
                let (record, by_another) = open.finish(&lost)?;
                files::remove_file(&journal_path)?;
                // Windows of row groups that were lost later are not counted, and no window is counted twice.
                measured.retain(|(row, _)| lost.problem(*row).is_none());
                measured.sort_unstable();
                measured.dedup();
                let windows_measured = measured.len() as u64;
                // With exclusive access, an earlier record is this run's own, from before a file of the unit was lost.
                let by_another = by_another && !context.exclusive;
                return Ok(ScoredUnit { record, windows_measured, by_another });
            }
            // The results are in the journal and are not computed again.
            Ok(None) => open.measuring.drain()?,
            Err(failure) => {
                if let Err(also) = open.measuring.drain() {
                    tracing::warn!("the journal of an open unit cannot be written: {also}");
                }
                return Err(failure);
            }
        }
    }
}

struct OpenUnit<'a> {
    context: &'a ScoreContext<'a>,
    unit: &'a WorkUnit,
    scores: PartWriter,
    files_name: String,
    dropped: Vec<DroppedRow>,
    bad: Vec<BadRow>,
    counts: Counts,
    /// Columns of the plan's measures, then of the retained ones.
    measures: Vec<MeasureColumns>,
    retained: Vec<RetainedMeasure>,
    /// Counts of windows without statistics, by measure of the plan.
    measured_by: Vec<MeasuredBy>,
    measuring: Measuring<'a>,
}

impl<'a> OpenUnit<'a> {
    fn create(
        context: &'a ScoreContext<'a>,
        unit: &'a WorkUnit,
        opened: OpenJournal,
    ) -> Result<Self> {
        let OpenJournal { journal, finished, retained } = opened;
        let planned = context.plan.measures.columns.iter();
        let measured_by =
            planned.clone().map(|columns| context.wanted.measures[&columns.measure].clone());
        let retained_columns = retained.iter().map(RetainedMeasure::columns);
        let measures: Vec<MeasureColumns> = planned.cloned().chain(retained_columns).collect();
        let wanted = context.wanted.measures.iter().map(|(name, of)| (name, &of.fingerprint));
        let more = retained.iter().map(|of| (&of.measure, &of.by.fingerprint));
        let metadata = scores::metadata(&context.wanted.windows, wanted.chain(more));
        let files_name = units::files_name(unit, context.committed);
        let path = context.directory.root.join(units::scores_path(&files_name));
        let scores = PartWriter::create(
            &path,
            &scores::schema(&measures),
            &metadata,
            ParquetCompression::Zstd,
        )?;
        let (dropped, bad, counts) = (Vec::new(), Vec::new(), Counts::default());
        Ok(Self {
            context,
            unit,
            scores,
            files_name,
            dropped,
            bad,
            counts,
            measured_by: measured_by.collect(),
            measuring: Measuring::new(context, journal, retained.len(), finished),
            measures,
            retained,
        })
    }

    /// Measures every document of the unit. Returns the lost row groups; `None` if it must be restarted without one of them.
    fn measure_batches(&mut self, batches: &Receiver<FromReader>) -> Result<Option<LostRowGroups>> {
        // Documents of the batches whose windows are being measured, and the scheduler's ids of the windows.
        let mut in_work = VecDeque::new();
        let lost = loop {
            self.measuring.poll()?;
            match batches.recv_timeout(STOP_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("a reader sends `End` after each unit")
                }
                Ok(FromReader::Restart) => break None,
                Ok(FromReader::End(lost)) => break Some(lost),
                Ok(FromReader::Batch(batch)) => {
                    let documents = batch?;
                    let windows = self.measuring.submit(&documents)?;
                    in_work.push_back((documents, windows));
                    if in_work.len() == MAX_OPEN_BATCHES {
                        self.finish_batch(in_work.pop_front().expect("it has just been filled"))?;
                    }
                }
            }
        };
        in_work.into_iter().try_for_each(|batch| self.finish_batch(batch))?;
        Ok(lost)
    }

    /// Waits for the windows of a batch of documents and writes their results.
    fn finish_batch(&mut self, (documents, windows): (Vec<Prepared>, Range<u64>)) -> Result<()> {
        while self.measuring.is_open(&windows) {
            self.measuring.wait()?;
        }
        let mut rows = Vec::new();
        for document in documents {
            self.counts.rows += 1;
            match document.outcome {
                Preparation::Quarantine(bad) => self.quarantine(bad)?,
                Preparation::Drop { reason, tokens_total, windows } => {
                    self.counts.tokens_total += tokens_total;
                    count(&mut self.counts.windows_dropped, &reason, windows);
                    count(&mut self.counts.rows_dropped, &reason, 1);
                    self.dropped.push(DroppedRow::row(document.row, document.id, &reason));
                }
                Preparation::TimedOut(failure) => return Err(failure),
                Preparation::Measure(cut) => {
                    self.document(document.row, &document.id, &cut, &mut rows)?;
                }
            }
        }
        self.counts.windows_dropped.retain(|_, windows| *windows > 0);
        if !rows.is_empty() {
            self.scores.write(&scores::to_batch(&self.unit.file_path, &rows, &self.measures))?;
        }
        Ok(())
    }

    fn document(
        &mut self,
        row: u64,
        id: &str,
        cut: &CutDocument,
        rows: &mut Vec<ScoreRow>,
    ) -> Result<()> {
        let tokens_total = cut.ids.len() as u64;
        let mut all = Vec::with_capacity(cut.windows.len());
        let mut problem = None;
        for window in &cut.windows {
            match self.measuring.take_window((row, window.index)) {
                Ok(taken) => all.push(taken),
                Err((measure_index, why)) => {
                    let message = format!("window {}: {}", window.index, why.message);
                    problem = problem.or(Some((measure_index, RowError::new(why.code, message))));
                }
            }
        }
        if let Some((measure_index, error)) = problem {
            let stage = self.context.plan.measures.columns[measure_index].measure.clone();
            return self.quarantine(BadRow { row, stage: stage.into(), error });
        }
        self.counts.rows_scored += 1;
        self.counts.tokens_total += tokens_total;
        self.counts.windows += cut.windows.len() as u64;
        count(&mut self.counts.windows_dropped, "too_short", cut.windows_too_short);
        let windows = cut.windows.len() as u32;
        let samples: Vec<_> =
            self.context.plan.measures().map(|(_, measure)| measure.sample()).collect();
        for (window, (values, skipped)) in cut.windows.iter().zip(all) {
            for ((sample, skipped), by) in samples.iter().zip(skipped).zip(&mut self.measured_by) {
                let holds = sampling::contains(*sample, id, window.index);
                by.not_sampled += u64::from(!holds);
                by.not_measured += u64::from(holds && skipped);
            }
            let bytes = cut.bytes_of(window);
            let tokens_scored =
                window.token_end - window.token_start + u64::from(self.context.plan.bos.count);
            self.counts.tokens_scored += tokens_scored;
            rows.push(ScoreRow {
                input_row: row,
                id: id.to_owned(),
                window: window.index,
                windows,
                tokens: (window.token_start, window.token_end),
                bytes: bytes.map(|range| (range.start as u64, range.end as u64)),
                tokens_total,
                tokens_scored,
                content_hash: cut.content_hash.clone(),
                statistics: values,
            });
        }
        Ok(())
    }

    fn quarantine(&mut self, bad: BadRow) -> Result<()> {
        if self.context.plan.spec.pipeline.input.on_bad_row == OnBadRow::Fail {
            return Err(Diagnostic::error(Blame::Data, format!(
                "{}, row {}: {} ({})",
                self.unit.file_path, bad.row, bad.error.message, bad.error.code
            ))
            .hint("fix the row, or set `input.on_bad_row: quarantine` to quarantine such rows and continue")
            .into());
        }
        count(&mut self.counts.quarantined, bad.error.code, 1);
        self.bad.push(bad);
        Ok(())
    }

    /// Writes the parts and then the record. Returns the valid record, and whether another process committed it.
    fn finish(self, lost: &LostRowGroups) -> Result<(UnitRecord, bool)> {
        let Self { context, unit, bad, counts, files_name, .. } = self;
        if counts.rows != unit.rows {
            return Err(Diagnostic::error(
                Blame::Data,
                format!("{}: expected {} rows, read {}", unit.file_path, unit.rows, counts.rows),
            )
            .hint("the file is damaged or was replaced while it was read; restore it and run again")
            .into());
        }
        let mut programs = context.plan.programs.iter();
        programs.try_for_each(|program| context.programs.check_unedited(program))?;
        let dataset = &context.plan.dataset;
        units::remove_record(context.directory, dataset, unit, context.wanted, &files_name)?;
        let scores = Part::new(units::scores_path(&files_name), &self.scores.finish()?);
        let dropped = dropped::write(
            &context.directory.root,
            format!("dropped/score-{files_name}.parquet"),
            &unit.file_path,
            &self.dropped,
        )?;
        let path = format!("quarantine/part-{files_name}.parquet");
        let quarantine = quarantine::write(context.directory, path, dataset, unit, &bad, lost)?;
        let measured_by = |(MeasureColumns { measure, .. }, by): (&MeasureColumns, MeasuredBy)| {
            let quarantined = bad.iter().filter(|bad| bad.stage == *measure).count() as u64;
            (measure.clone(), MeasuredBy { quarantined, ..by })
        };
        let planned = context.plan.measures.columns.iter();
        let measures = planned.zip(self.measured_by).map(measured_by);
        let retained =
            self.retained.into_iter().zip(&self.measuring.lost).map(|(retained, lost)| {
                let RetainedMeasure { measure, by, .. } = retained;
                (measure, MeasuredBy { incomplete: by.incomplete || *lost, ..by })
            });
        let record = UnitRecord {
            unit: unit.name(),
            file: unit.file_path.clone(),
            row_groups: (unit.row_groups.start, unit.row_groups.end),
            first_row: unit.first_row,
            input: units::identity(dataset, unit),
            windows: context.wanted.windows.clone(),
            measures: measures.chain(retained).collect(),
            counts,
            scores,
            dropped,
            quarantine,
            unreadable: lost.rows().into_iter().map(|rows| (rows.start, rows.end)).collect(),
        };
        if let Some(violation) = record.violations().first() {
            let message = format!("{}: {violation}", unit.file_path);
            return Err(Diagnostic::error(Blame::Bug, message).into());
        }
        match units::commit(context.directory, dataset, unit, context.wanted, &record)? {
            Some(earlier) => Ok((earlier, true)),
            None => Ok((record, false)),
        }
    }
}
