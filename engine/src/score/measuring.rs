//! Measures every window of a unit: reuses statistics of the journal, computes attention on devices, and runs the
//! other measures on the thread pool.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Instant;

use longsift_stages::contract::{Evidence, Measure, RowError, StatisticValues, Value, Window};
use longsift_stages::tokenize::windows::TokenWindow;
use rayon::prelude::*;

use super::context::{OnDevices, ScoreContext};
use super::journal::{Journal, NOT_MEASURED, StatisticsKey, WindowKey};
use super::passes::{Measured, STOP_INTERVAL, devices_failed, statistics};
use super::prepare::{CutDocument, Preparation, Prepared};
use super::programs::{Question, QuestionContent};
use crate::base::error::Result;
use crate::devices::scheduler::SchedulerMessage;
use crate::plan::cascade::PrecedingGuard;
use crate::plan::sampling;

pub(super) struct Measuring<'a> {
    context: &'a ScoreContext<'a>,
    journal: Journal,
    /// Indexes of retained measures that the plan does not have.
    retained: Range<u16>,
    /// For each retained measure, whether statistics that may have existed are missing.
    pub(super) lost: Vec<bool>,
    /// Statistics of the journal that no batch has used yet.
    finished: HashMap<StatisticsKey, StatisticValues>,
    /// Windows submitted to the scheduler, by its ids.
    submitted: BTreeMap<u64, StatisticsKey>,
    next_id: u64,
    windows: HashMap<WindowKey, OpenWindow>,
    /// Windows whose last missing statistics were computed by this run.
    pub(super) measured: Vec<WindowKey>,
}

struct OpenWindow {
    /// Tokens of the scored sequence, including BOS.
    tokens: u64,
    /// By measure: those of the plan, `None` until it has finished, then the retained ones.
    values: Vec<Option<Measured>>,
    /// By measure of the plan, whether a guard before it skips the window, which may have statistics nevertheless.
    skipped: Vec<bool>,
    new: bool,
}

impl OpenWindow {
    fn lacks(&self, measure_index: u16) -> bool {
        self.values[usize::from(measure_index)].is_none()
    }

    fn is_whole(&self) -> bool {
        self.values.iter().all(Option::is_some)
    }
}

impl<'a> Measuring<'a> {
    pub(super) fn new(
        context: &'a ScoreContext<'a>,
        journal: Journal,
        retained: usize,
        finished: HashMap<StatisticsKey, StatisticValues>,
    ) -> Self {
        let planned = context.plan.measures.indices().end;
        Self {
            context,
            journal,
            retained: planned..planned + retained as u16,
            lost: vec![false; retained],
            finished,
            submitted: BTreeMap::new(),
            next_id: 0,
            windows: HashMap::new(),
            measured: Vec::new(),
        }
    }

    /// Starts measuring the windows of a batch: runs the measures that attention waits for, submits windows to the devices, and
    /// runs the other measures while the devices work. Returns the scheduler's ids of the submitted windows.
    pub(super) fn submit(&mut self, documents: &[Prepared]) -> Result<Range<u64>> {
        let (first, plan) = (self.next_id, self.context.plan);
        for (key, cut, window) in windows_to_measure(documents) {
            let mut finished = |measure_index| self.finished.remove(&(key, measure_index));
            let planned = plan.measures.indices();
            let mut values: Vec<_> = planned.map(|index| finished(index).map(Ok)).collect();
            let skipped = vec![false; values.len()];
            for (measure_index, lost) in self.retained.clone().zip(&mut self.lost) {
                let finished = finished(measure_index);
                *lost |= finished.is_none();
                values.push(Some(Ok(finished.unwrap_or(NOT_MEASURED))));
            }
            let tokens = window.token_end - window.token_start + u64::from(plan.bos.count);
            self.windows.insert(key, OpenWindow { tokens, values, skipped, new: false });
            for (measure_index, values) in &cut.answers {
                if self.windows[&key].lacks(*measure_index) {
                    self.record_result((key, *measure_index), Ok(values.clone()))?;
                }
            }
        }
        plan.cascade.first.iter().try_for_each(|round| self.measure_here(documents, round))?;
        for (measure_index, measure) in plan.measures() {
            if measure.needs().attention().is_some() {
                self.skip_rejected(documents, measure_index);
            }
        }
        for (key, cut, window) in windows_to_measure(documents) {
            self.submit_attention(key, cut, window)?;
        }
        plan.cascade.rest.iter().try_for_each(|round| self.measure_here(documents, round))?;
        Ok(first..self.next_id)
    }

    /// Whether the scheduler still has windows of a batch.
    pub(super) fn is_open(&self, batch: &Range<u64>) -> bool {
        self.submitted.range(batch.clone()).next().is_some()
    }

    /// Submits a window to the devices for each measure that needs attention and has no statistics of the window.
    fn submit_attention(
        &mut self,
        key: WindowKey,
        cut: &CutDocument,
        window: &TokenWindow,
    ) -> Result<()> {
        let plan = self.context.plan;
        let Some(OnDevices { attention, scheduler, .. }) = self.context.devices else {
            return Ok(());
        };
        for (measure_index, measure) in plan.measures() {
            let needs = measure.needs();
            let Some(request) = needs.attention() else { continue };
            if !self.windows[&key].lacks(measure_index) {
                continue;
            }
            let ids = plan.bos.prepend_to(cut.ids_of(window));
            match request.window(ids, attention.model.spec().vocabulary_size) {
                Ok(window) => {
                    let id = scheduler.submit(window);
                    self.submitted.insert(id, (key, measure_index));
                    self.next_id = id + 1;
                }
                Err(why) => self.record_result((key, measure_index), Err(why))?,
            }
        }
        Ok(())
    }

    /// Skips a measure for windows of a batch that are outside its sample, or that a guard before it rejects. Windows that a
    /// guard rejects are skipped by dependent measures as well.
    ///
    /// Statistics computed with other guards are kept if this process has exclusive access. Otherwise they are discarded,
    /// because several processes must produce the same parts.
    fn skip_rejected(&mut self, documents: &[Prepared], measure_index: u16) {
        let (plan, cascade) = (self.context.plan, &self.context.plan.cascade);
        let sample = plan.measure(measure_index).sample();
        for (document, cut) in to_measure(documents).filter(|_| sample.is_some()) {
            for window in &cut.windows {
                if !sampling::contains(sample, &document.id, window.index) {
                    let key = (document.row, window.index);
                    self.store_result((key, measure_index), Ok(NOT_MEASURED));
                }
            }
        }
        if cascade.before(measure_index).is_empty() {
            return;
        }
        for (document, cut) in to_measure(documents) {
            let key = |window: &TokenWindow| (document.row, window.index);
            let keys: Vec<WindowKey> = cut.windows.iter().map(key).collect();
            for sample in cascade.samples.split(&keys) {
                if !cascade.skips(measure_index, &|guard| self.guard_values(guard, sample)) {
                    continue;
                }
                for key in sample {
                    let open = self.windows.get_mut(key).expect("windows of the batch are open");
                    open.skipped[usize::from(measure_index)] = true;
                    if open.lacks(measure_index) || !self.context.exclusive {
                        self.store_result((*key, measure_index), Ok(NOT_MEASURED));
                    }
                }
            }
        }
    }

    /// Values of a guard's statistic, of the windows of a sample that its measure runs on.
    fn guard_values(&self, guard: &PrecedingGuard, sample: &[WindowKey]) -> Vec<f64> {
        let values = sample.iter().map(|key| &self.windows[key].values[usize::from(guard.reads)]);
        let measured = values.filter(|values| **values != Some(Ok(NOT_MEASURED)));
        let value = |values: &Option<Measured>| {
            let values = values.as_ref()?.as_ref().ok()?;
            values.0.get(guard.column).and_then(Value::finite)
        };
        measured.map(|values| value(values).unwrap_or(f64::NAN)).collect()
    }

    /// Runs measures of a batch that need no device: on the thread pool, then external programs and whole models.
    fn measure_here(&mut self, documents: &[Prepared], indices: &[u16]) -> Result<()> {
        let plan = self.context.plan;
        for measure_index in indices {
            self.skip_rejected(documents, *measure_index);
        }
        let all =
            indices.iter().map(|measure_index| (*measure_index, plan.measure(*measure_index)));
        let (elsewhere, here): (Vec<_>, Vec<_>) =
            all.partition(|(_, measure)| !measure.needs().evidence.is_empty());
        let windows = &self.windows;
        let of_document = |(document, cut): (&Prepared, &CutDocument)| {
            let shared: Vec<Vec<Value>> = here
                .iter()
                .map(|(_, measure)| match &cut.text {
                    Some(text) if measure.needs().document_text => {
                        measure.document(text.as_bytes())
                    }
                    _ => Vec::new(),
                })
                .collect();
            let of_window = |window: &TokenWindow| {
                let key = (document.row, window.index);
                let missing = here.iter().zip(&shared);
                let missing = missing.filter(|((index, _), _)| windows[&key].lacks(*index));
                let ids = plan.bos.prepend_to(cut.ids_of(window));
                let (text, text_half) = cut.text_of(window, plan.bos);
                let results = missing.map(|((measure_index, measure), document)| {
                    let window = Window { ids: &ids, text, text_half, document, evidence: &[] };
                    ((key, *measure_index), measure.statistics(&window))
                });
                results.collect::<Vec<_>>()
            };
            cut.windows.par_iter().flat_map_iter(of_window).collect::<Vec<_>>()
        };
        let measured: Vec<(StatisticsKey, Measured)> =
            self.context.progress.timed("measures", || {
                let all: Vec<_> = to_measure(documents).collect();
                all.into_par_iter().flat_map_iter(of_document).collect()
            });
        measured.into_iter().try_for_each(|(key, values)| self.record_result(key, values))?;
        elsewhere.into_iter().try_for_each(|(measure_index, measure)| {
            match plan.whole_models.get(&measure_index) {
                Some(_) => self.run_whole_model(documents, measure_index, measure),
                None => self.query_program(documents, measure_index, measure),
            }
        })
    }

    fn query_program(
        &mut self,
        documents: &[Prepared],
        measure_index: u16,
        measure: &dyn Measure,
    ) -> Result<()> {
        let (plan, progress) = (self.context.plan, self.context.progress);
        let program = plan.program(measure_index);
        let mut questions = Vec::new();
        for ((row, window_index), cut, window) in self.missing(documents, measure_index) {
            let content = match cut.text_of(window, plan.bos) {
                (Some(text), _) if program.reads_text => {
                    QuestionContent::Text(String::from_utf8_lossy(text))
                }
                _ => QuestionContent::Ids(Cow::Owned(plan.bos.prepend_to(cut.ids_of(window)))),
            };
            questions.push(Question { row, window: window_index, content });
        }
        let programs = self.context.programs;
        progress.timed("external", || {
            programs.query(program, &questions, &mut |answer| {
                let Some((index, answer)) = answer else { return self.poll() };
                let Question { row, window, .. } = questions[index];
                let values = answer
                    .and_then(|reply| statistics(measure, &[], Evidence::Answers(reply.values)));
                self.record_result(((row, window), measure_index), values)
            })
        })
    }

    fn run_whole_model(
        &mut self,
        documents: &[Prepared],
        measure_index: u16,
        measure: &dyn Measure,
    ) -> Result<()> {
        let plan = self.context.plan;
        let missing = self.missing(documents, measure_index);
        let missing = missing
            .map(|(key, cut, window)| (key, plan.bos.prepend_to(cut.ids_of(window))))
            .collect::<Vec<_>>();
        let ids: Vec<&[u32]> = missing.iter().map(|(_, ids)| &ids[..]).collect();
        let mut models = self.context.models.iter();
        let model = models.find(|model| model.measure_index == measure_index);
        let model = model.expect("a run starts the devices of every whole model");
        self.context.progress.timed("language-model", || {
            model.run(measure, &ids, &mut |result| {
                let Some((index, values)) = result else { return self.poll() };
                self.record_result((missing[index].0, measure_index), values)
            })
        })
    }

    fn missing<'d>(
        &self,
        documents: &'d [Prepared],
        measure_index: u16,
    ) -> impl Iterator<Item = BatchWindow<'d>> {
        windows_to_measure(documents)
            .filter(move |(key, ..)| self.windows[key].lacks(measure_index))
    }

    fn record_result(&mut self, key: StatisticsKey, values: Measured) -> Result<()> {
        if let Ok(values) = &values {
            self.journal.append(key, values)?;
        }
        if let Some(open) = self.windows.get_mut(&key.0) {
            open.new |= values.is_ok();
        }
        self.store_result(key, values);
        Ok(())
    }

    fn store_result(&mut self, (window, measure_index): StatisticsKey, values: Measured) {
        let Some(open) = self.windows.get_mut(&window) else { return };
        let was_whole = open.is_whole();
        open.values[usize::from(measure_index)] = Some(values);
        // A window that no measure runs on counts as finished here.
        let planned = &open.values[..open.skipped.len()];
        let is_new = open.new || planned.iter().all(|of| *of == Some(Ok(NOT_MEASURED)));
        if is_new && !was_whole && open.is_whole() {
            self.measured.push(window);
            self.context.progress.windows_done(1, open.tokens);
        }
    }

    /// Waits briefly for the devices and handles a message; then polls.
    pub(super) fn wait(&mut self) -> Result<()> {
        let devices = self.context.devices;
        if let Some(message) = devices.and_then(|on| on.scheduler.wait(STOP_INTERVAL)) {
            self.receive(message)?;
        }
        self.poll()
    }

    /// Checks the stop signal, and syncs the journal and samples device memory if due.
    pub(super) fn poll(&mut self) -> Result<()> {
        self.context.stop.check()?;
        self.journal.sync_if_due(Instant::now())?;
        match self.context.devices {
            Some(OnDevices { scheduler, watch, .. }) => watch.poll(scheduler),
            None => Ok(()),
        }
    }

    fn receive(&mut self, message: SchedulerMessage) -> Result<()> {
        match message {
            SchedulerMessage::Window { id, result } => {
                let Some(key) = self.submitted.remove(&id) else { return Ok(()) };
                let measure = self.context.plan.measure(key.1);
                let values = result.and_then(|(window, sums)| {
                    statistics(measure, &window.ids, Evidence::Attention(sums))
                });
                self.record_result(key, values)
            }
            SchedulerMessage::Step(step) => match self.context.devices {
                Some(OnDevices { watch, .. }) => watch.step(step),
                None => Ok(()),
            },
            SchedulerMessage::Failed(blame, why) => Err(devices_failed(blame, &why)),
        }
    }

    /// Removes a window of a finished batch and returns its statistics by measure (those of the plan, then the retained ones)
    /// and, by measure of the plan, whether a guard before it skips the window; or a measure that failed, and the reason.
    pub(super) fn take_window(
        &mut self,
        window: WindowKey,
    ) -> std::result::Result<(Vec<StatisticValues>, Vec<bool>), (usize, RowError)> {
        let open = self.windows.remove(&window).expect("a window is taken once");
        let values = open.values.into_iter().enumerate().map(|(measure_index, values)| {
            let values = values.expect("every window of a finished batch has ended");
            values.map_err(|why| (measure_index, why))
        });
        Ok((values.collect::<std::result::Result<_, _>>()?, open.skipped))
    }

    /// Cancels queued windows, waits for active ones and syncs the journal.
    pub(super) fn drain(&mut self) -> Result<()> {
        if let Some(OnDevices { scheduler, .. }) = self.context.devices {
            scheduler.withdraw();
            while scheduler.is_busy() {
                match scheduler.wait(STOP_INTERVAL) {
                    // The run already ends for another reason.
                    None | Some(SchedulerMessage::Failed(..)) => {}
                    Some(message) => self.receive(message)?,
                }
            }
        }
        self.journal.sync()
    }
}

type BatchWindow<'d> = (WindowKey, &'d CutDocument, &'d TokenWindow);

fn windows_to_measure(documents: &[Prepared]) -> impl Iterator<Item = BatchWindow<'_>> {
    to_measure(documents).flat_map(|(document, cut)| {
        cut.windows.iter().map(move |window| ((document.row, window.index), cut, window))
    })
}

fn to_measure(documents: &[Prepared]) -> impl Iterator<Item = (&Prepared, &CutDocument)> {
    documents.iter().filter_map(|document| match &document.outcome {
        Preparation::Measure(cut) => Some((document, cut)),
        Preparation::Quarantine(_) | Preparation::Drop { .. } | Preparation::TimedOut(_) => None,
    })
}
