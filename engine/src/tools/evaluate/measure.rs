//! Measurement of windows with every measure of the pipeline, on the devices that the pipeline uses.
//!
//! Each window is its own document. Results are kept in a journal in the evaluation's folder by the SHA-256 of the window's
//! content, so that a later evaluation measures only new windows.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use longsift_stages::contract::{Evidence, Measure, RowError, StatisticValues, Value, Window};
use longsift_stages::tokenize::TokenBytes;
use rayon::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::text::sha256_hex;
use crate::devices::scheduler::{Scheduler, SchedulerMessage};
use crate::plan::Plan;
use crate::plan::programs::Program;
use crate::run_directory::facts::Identity;
use crate::score::journal::{self, Header, Journal, RetainedMeasure, StatisticsKey, WindowKey};
use crate::score::passes::{Measured, ModelOnDevices, STOP_INTERVAL, devices_failed, statistics};
use crate::score::programs::{Programs, Question, QuestionContent};

/// Version of the results, raised if the same measures return different ones for a constructed window.
const VERSION: u32 = 1;
const JOURNAL: &str = "figures.journal";

/// Statistics of a window by measure; `None` if the measure does not support windows of this length.
pub(crate) type MeasuredValues = Vec<Option<StatisticValues>>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowContent {
    /// Token ids without BOS.
    pub(crate) ids: Vec<u32>,
    /// Text of a window that is a slice of a document, if a measure reads text.
    pub(crate) slice: Option<Slice>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) bytes: Vec<u8>,
    /// Byte at which the second half of the tokens begins.
    pub(crate) half: usize,
}

impl WindowContent {
    /// Creates a window whose text is the bytes of its tokens.
    pub(crate) fn from_tokens(ids: Vec<u32>) -> Self {
        Self { ids, slice: None }
    }

    /// Returns its text and the byte at which the second half of its tokens begins.
    fn text(&self, bytes: Option<&TokenBytes>) -> Option<(Cow<'_, [u8]>, usize)> {
        if let Some(Slice { bytes, half }) = &self.slice {
            return Some((Cow::Borrowed(bytes), *half));
        }
        let bytes = bytes?;
        let first_half = &self.ids[..self.ids.len() / 2];
        let half = first_half.iter().map(|id| bytes.bytes_of(*id).len()).sum();
        Some((Cow::Owned(bytes.joined(&self.ids)), half))
    }

    /// Returns the first 96 bits of the SHA-256 of ids and slice. Among 10^7 windows, a collision has a probability of 10^-15.
    fn key(&self) -> WindowKey {
        let mut hash = Sha256::new();
        if let Some(Slice { bytes, half }) = &self.slice {
            hash.update(b"slice");
            for size in [bytes.len(), *half] {
                hash.update((size as u64).to_le_bytes());
            }
            hash.update(bytes);
        }
        self.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        let digest = hash.finalize();
        let (first, rest) = digest.split_first_chunk::<8>().expect("32 bytes");
        let (second, _) = rest.split_first_chunk::<4>().expect("24 bytes");
        (u64::from_le_bytes(*first), u32::from_le_bytes(*second))
    }
}

pub(crate) struct Measurer<'a> {
    plan: &'a Plan,
    scheduler: Option<&'a Scheduler<'a>>,
    models: &'a [ModelOnDevices<'a>],
    pub(crate) bytes: Option<&'a TokenBytes>,
    programs: &'a Programs<'a>,
    journal: Journal,
    finished: HashMap<StatisticsKey, StatisticValues>,
    /// By window length and measure, the number of windows without a result, and the first reason.
    pub(crate) unmeasured: BTreeMap<(u64, u16), (u64, RowError)>,
    /// Whether the journal is neither read nor written, because only the time matters.
    pub(crate) only_timed: bool,
    /// By measure, total time on this processor's threads, and number of windows.
    pub(crate) took: Vec<(Duration, u64)>,
}

impl<'a> Measurer<'a> {
    /// Opens the journal. `bytes`: bytes of the tokens, if a measure reads text.
    pub(crate) fn open(
        plan: &'a Plan,
        identity: &Identity,
        folder: &Path,
        (scheduler, models): (Option<&'a Scheduler<'a>>, &'a [ModelOnDevices<'a>]),
        bytes: Option<&'a TokenBytes>,
        programs: &'a Programs<'a>,
    ) -> Result<Self> {
        let tokenizer = plan.encoder.as_ref().map(longsift_stages::tokenize::Encoder::digest);
        let windows = json!({ "evaluation": VERSION, "tokenizer": tokenizer });
        let measures = plan.measures.columns.iter().map(|columns| {
            let fingerprint = identity.measures[&columns.measure].facts.fingerprint();
            RetainedMeasure::unfinished(columns.clone(), fingerprint)
        });
        let header = Header {
            windows: sha256_hex(windows.to_string().as_bytes()),
            measures: measures.collect(),
            retained: Vec::new(),
        };
        // Fails if another evaluation writes to the journal.
        let (journal, finished) = Journal::open(&folder.join(JOURNAL), &header, false)?;
        let measures = header.measures.len();
        Ok(Self {
            plan,
            scheduler,
            models,
            bytes,
            programs,
            journal,
            finished,
            unmeasured: BTreeMap::new(),
            only_timed: false,
            took: vec![(Duration::ZERO, 0); measures],
        })
    }

    /// Measures windows of the same number of tokens and returns their results in order.
    pub(crate) fn measure(&mut self, windows: &[WindowContent]) -> Result<Vec<MeasuredValues>> {
        self.plan.options.stop.check()?;
        let tokens = windows.first().map_or(0, |window| window.ids.len()) as u64;
        let keys: Vec<WindowKey> = windows.iter().map(WindowContent::key).collect();
        let plan = self.plan;
        let measures: Vec<(u16, &dyn Measure)> = plan.measures().collect();
        let mut values: Vec<MeasuredValues> = vec![vec![None; measures.len()]; windows.len()];
        for (measure_index, measure) in measures {
            let needs = measure.needs();
            let asked = needs.answers().map(|_| plan.program(measure_index));
            let of_text = asked.is_some_and(|program| program.reads_text);
            let needs_text = needs.window_text || needs.document_text || of_text;
            let has_text = self.bytes.is_some() || windows.iter().all(|of| of.slice.is_some());
            let without_text = needs_text && !has_text;
            if measure.min_tokens() > tokens || without_text {
                continue;
            }
            let mut missing = Vec::new();
            for (index, (key, window)) in keys.iter().zip(windows).enumerate() {
                match self.finished.get(&(*key, measure_index)).filter(|_| !self.only_timed) {
                    Some(known) => values[index][usize::from(measure_index)] = Some(known.clone()),
                    None => missing.push((index, window)),
                }
            }
            if missing.is_empty() {
                continue;
            }
            let started = Instant::now();
            let number = missing.len() as u64;
            let mut keep = |measurer: &mut Self, index: usize, taken: Measured| -> Result<()> {
                let taken = measurer.keep((keys[index], measure_index), tokens, taken)?;
                values[index][usize::from(measure_index)] = taken;
                Ok(())
            };
            if let Some(program) = asked {
                self.run_program(program, measure, &missing, &mut keep)?;
            } else if needs.evidence.is_empty() {
                let taken = self.measure_on_processor(measure, &missing);
                let mut all = missing.into_iter().zip(taken);
                all.try_for_each(|((index, _), taken)| keep(self, index, taken))?;
            } else if let Some(model) =
                self.models.iter().find(|model| model.measure_index == measure_index)
            {
                let ids: Vec<&[u32]> = missing.iter().map(|(_, window)| &window.ids[..]).collect();
                model.run(measure, &ids, &mut |result| match result {
                    Some((position, taken)) => keep(self, missing[position].0, taken),
                    None => self.plan.options.stop.check(),
                })?;
            } else {
                self.on_devices(measure, &missing, &mut keep)?;
            }
            let took = &mut self.took[usize::from(measure_index)];
            *took = (took.0 + started.elapsed(), took.1 + number);
        }
        self.journal.sync_if_due(Instant::now())?;
        Ok(values)
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.journal.sync()
    }

    /// Appends a result to the journal, or counts a window without one.
    fn keep(
        &mut self,
        key: StatisticsKey,
        tokens: u64,
        taken: Measured,
    ) -> Result<Option<StatisticValues>> {
        match taken {
            Ok(taken) => {
                if !self.only_timed {
                    self.journal.append(key, &taken)?;
                }
                Ok(Some(taken))
            }
            Err(why) => {
                let (number, _) = self.unmeasured.entry((tokens, key.1)).or_insert((0, why));
                *number += 1;
                Ok(None)
            }
        }
    }

    fn measure_on_processor(
        &self,
        measure: &dyn Measure,
        missing: &[(usize, &WindowContent)],
    ) -> Vec<Measured> {
        let needs = measure.needs();
        let needs_text = needs.window_text || needs.document_text;
        let one = |(_, window): &(usize, &WindowContent)| {
            let ids = &window.ids;
            let text = if needs_text { window.text(self.bytes) } else { None };
            let (text, text_half) = text.as_ref().map(|(text, half)| (&text[..], *half)).unzip();
            let document: Vec<Value> = match text {
                Some(text) if needs.document_text => measure.document(text),
                _ => Vec::new(),
            };
            measure.statistics(&Window { ids, text, text_half, document: &document, evidence: &[] })
        };
        missing.par_iter().map(one).collect()
    }

    /// Sends windows to a program, each as a document of its own, and calls `keep` with each answer.
    fn run_program(
        &mut self,
        program: &Program,
        measure: &dyn Measure,
        missing: &[(usize, &WindowContent)],
        keep: &mut dyn FnMut(&mut Self, usize, Measured) -> Result<()>,
    ) -> Result<()> {
        let questions = missing.iter().map(|(index, window)| {
            let text = if program.reads_text { window.text(self.bytes) } else { None };
            let content = match text {
                Some((text, _)) => {
                    QuestionContent::Text(String::from_utf8_lossy(&text).into_owned().into())
                }
                None => QuestionContent::Ids((&window.ids).into()),
            };
            Question { row: *index as u64, window: 0, content }
        });
        let questions: Vec<Question<'_>> = questions.collect();
        self.programs.query(program, &questions, &mut |answer| match answer {
            Some((position, answer)) => {
                let taken = answer
                    .and_then(|reply| statistics(measure, &[], Evidence::Answers(reply.values)));
                keep(self, missing[position].0, taken)
            }
            None => self.journal.sync_if_due(Instant::now()),
        })
    }

    fn on_devices(
        &mut self,
        measure: &dyn Measure,
        missing: &[(usize, &WindowContent)],
        keep: &mut dyn FnMut(&mut Self, usize, Measured) -> Result<()>,
    ) -> Result<()> {
        let needs = measure.needs();
        let (Some(request), Some(scheduler), Some(attention)) =
            (needs.attention(), self.scheduler, &self.plan.attention)
        else {
            unreachable!("a plan with such a measure has devices, and they are started");
        };
        let vocabulary = attention.model.spec().vocabulary_size;
        let mut submitted = HashMap::new();
        for (index, window) in missing {
            match request.window(window.ids.clone(), vocabulary) {
                Ok(window) => {
                    submitted.insert(scheduler.submit(window), *index);
                }
                Err(why) => keep(self, *index, Err(why))?,
            }
        }
        while !submitted.is_empty() {
            if let Err(stopped) = self.plan.options.stop.check() {
                scheduler.withdraw();
                return Err(stopped);
            }
            match scheduler.wait(STOP_INTERVAL) {
                Some(SchedulerMessage::Window { id, result }) => {
                    if let Some(index) = submitted.remove(&id) {
                        let taken = result.and_then(|(window, sums)| {
                            statistics(measure, &window.ids, Evidence::Attention(sums))
                        });
                        keep(self, index, taken)?;
                    }
                }
                Some(SchedulerMessage::Step(_)) | None => {}
                Some(SchedulerMessage::Failed(blame, why)) => {
                    return Err(devices_failed(blame, &why));
                }
            }
            self.journal.sync_if_due(Instant::now())?;
        }
        Ok(())
    }
}

/// Refuses a folder to which another process writes, or whose journal longsift did not write.
pub(crate) fn refuse_another(folder: &Path) -> Result<()> {
    journal::check_own(&folder.join(JOURNAL))?;
    if !journal::is_claimed(&folder.join(JOURNAL))? {
        return Ok(());
    }
    let message = format!("another evaluation is writing to `{}`", folder.display());
    let hint = "wait until it ends, or name another folder with `--out`";
    Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into())
}
