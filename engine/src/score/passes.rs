//! Runs windows through a whole model: groups of them share each read of a layer's weights, and the scheduler distributes
//! groups, or parts of one, to devices.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use longsift_stages::contract::compute::{DeviceFailure, ForwardResult};
use longsift_stages::contract::{
    Evidence, ForwardStatistics, Measure, RowError, StatisticValues, Window,
};
use longsift_stages::shard_across_devices::ShardBy;

use super::watch::Watch;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::stop::Stop;
use crate::devices::device::Device;
use crate::devices::dispatch::terms::{Policy, Unit, WindowBytes};
use crate::devices::scheduler::{Scheduler, SchedulerMessage, Work};
use crate::plan::whole_models::WholeModelPlan;

/// Interval of checks for a stop signal while windows are measured.
pub(crate) const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum tokens of a piece of a group: with fewer, a pass mostly reads weights.
const MIN_PIECE_TOKENS: u64 = 1 << 11;

/// Windows that may run through a model together.
pub(crate) type Group = Vec<Vec<u32>>;

pub(crate) type PassScheduler<'a> = Scheduler<'a, Group, ForwardResult>;

type PassResult = std::result::Result<StatisticValues, RowError>;

/// Whole model of a plan as work for devices.
pub(crate) struct Passes<'a> {
    whole: &'a WholeModelPlan,
    stop: &'a Stop,
    /// Whether running passes should stop because their results are not needed.
    abandoned: AtomicBool,
}

impl<'a> Passes<'a> {
    pub(super) fn new(whole: &'a WholeModelPlan, stop: &'a Stop) -> Self {
        Self { whole, stop, abandoned: AtomicBool::new(false) }
    }

    /// Returns a scheduler whose threads do not run yet.
    pub(super) fn scheduler(&'a self) -> PassScheduler<'a> {
        Scheduler::new(&self.whole.devices.list, self, self.policy())
    }

    fn policy(&self) -> Policy {
        let tokens = self.whole.window_tokens.max(1);
        Policy {
            by: ShardBy::Windows,
            memory_wait: self.whole.memory_wait,
            key_heads_at_once: None,
            min_piece_cost: tokens * tokens * (MIN_PIECE_TOKENS / tokens).max(1),
            unit: Unit::Window,
        }
    }

    /// Groups consecutive windows: each group has at most as many tokens as the full windows that share a read.
    fn groups(&self, windows: &[&[u32]]) -> Vec<Range<usize>> {
        let max = self.whole.windows_at_once * self.whole.window_tokens;
        let mut groups = Vec::new();
        let (mut first, mut tokens) = (0, 0);
        for (index, ids) in windows.iter().enumerate() {
            let own = ids.len() as u64;
            if index > first && tokens + own > max {
                groups.push(first..index);
                (first, tokens) = (index, 0);
            }
            tokens += own;
        }
        groups.push(first..windows.len());
        groups
    }
}

impl Work<Group, ForwardResult> for Passes<'_> {
    fn piece_bytes(&self, _: &[Device]) -> Box<WindowBytes> {
        let memory = self.whole.memory_of();
        let known: Mutex<HashMap<(usize, usize), u64>> = Mutex::default();
        Box::new(move |_, tokens, windows| {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            *known.entry((tokens, windows)).or_insert_with(|| memory(tokens, windows).peak_bytes)
        })
    }

    fn size(&self, group: &Group) -> (usize, usize) {
        (group.iter().map(Vec::len).max().unwrap_or(0), group.len())
    }

    fn tokens(&self, group: &Group, windows: &Range<usize>) -> f64 {
        group[windows.clone()].iter().map(Vec::len).sum::<usize>() as f64
    }

    fn measure(
        &self,
        device: &Device,
        group: &Group,
        windows: Range<usize>,
    ) -> std::result::Result<ForwardResult, DeviceFailure> {
        let windows: Vec<&[u32]> = group[windows].iter().map(Vec::as_slice).collect();
        let should_continue =
            || !self.abandoned.load(Ordering::Relaxed) && self.stop.check().is_ok();
        let tokens = self.size(group).0;
        device.compute.forward(&self.whole.pass(&windows, tokens, &should_continue))
    }

    fn join(&self, parts: Vec<ForwardResult>) -> ForwardResult {
        let mut all = Vec::new();
        for part in parts {
            let Some(part) = part? else { return Ok(None) };
            all.extend(part);
        }
        Ok(Some(all))
    }
}

/// Running scheduler of a whole model.
#[derive(Clone, Copy)]
pub(crate) struct ModelOnDevices<'a> {
    pub(crate) measure_index: u16,
    pub(crate) passes: &'a Passes<'a>,
    pub(crate) scheduler: &'a PassScheduler<'a>,
    /// Monitor of the devices; `None` for the processor.
    pub(crate) watch: Option<&'a Watch<'a>>,
}

impl ModelOnDevices<'_> {
    /// Computes the statistics of windows. Calls `on_result` with the index and result of each window, in the order of
    /// windows within a group, and with `None` at intervals.
    ///
    /// # Errors
    /// A tensor of weights cannot be used, no device is left, or `on_result` failed.
    pub(crate) fn run(
        &self,
        measure: &dyn Measure,
        windows: &[&[u32]],
        on_result: &mut dyn FnMut(Option<(usize, PassResult)>) -> Result<()>,
    ) -> Result<()> {
        self.run_groups(measure, windows, on_result).inspect_err(|_| {
            self.passes.abandoned.store(true, Ordering::Relaxed);
            self.scheduler.withdraw();
        })
    }

    fn run_groups(
        &self,
        measure: &dyn Measure,
        windows: &[&[u32]],
        on_result: &mut dyn FnMut(Option<(usize, PassResult)>) -> Result<()>,
    ) -> Result<()> {
        let mut known = Vec::new();
        for (index, ids) in windows.iter().enumerate() {
            let vocabulary = self.passes.whole.model.spec().vocabulary_size;
            match out_of_vocabulary(ids, " of the window", vocabulary) {
                Some(why) => on_result(Some((index, Err(why))))?,
                None => known.push(index),
            }
        }
        let ids: Vec<&[u32]> = known.iter().map(|index| windows[*index]).collect();
        let mut open: HashMap<u64, &[usize]> = HashMap::new();
        let submit = |places: &[usize]| {
            self.scheduler.submit(places.iter().map(|index| windows[*index].to_vec()).collect())
        };
        for group in self.passes.groups(&ids).into_iter().filter(|group| !group.is_empty()) {
            open.insert(submit(&known[group.clone()]), &known[group]);
        }
        while !open.is_empty() {
            match self.scheduler.wait(STOP_INTERVAL) {
                Some(SchedulerMessage::Window { id, result }) => {
                    let Some(places) = open.remove(&id) else { continue };
                    match result {
                        Ok((_, made)) => {
                            for (index, made) in
                                places.iter().zip(finished(made, self.passes.stop)?)
                            {
                                let result = statistics(measure, windows[*index], made);
                                on_result(Some((*index, result)))?;
                            }
                        }
                        Err(why) if places.len() == 1 => {
                            on_result(Some((places[0], Err(why))))?;
                        }
                        // Shorter windows of the group may fit.
                        Err(_) => {
                            for place in places.chunks(1) {
                                open.insert(submit(place), place);
                            }
                        }
                    }
                }
                Some(SchedulerMessage::Step { device, step }) => {
                    if let Some(watch) = self.watch {
                        watch.step(device, &step)?;
                    }
                }
                Some(SchedulerMessage::NoDeviceLeft(why)) => return Err(no_device(&why)),
                Some(SchedulerMessage::Bug(panic)) => return Err(device_panicked(&panic)),
                None => {}
            }
            on_result(None)?;
        }
        Ok(())
    }
}

pub(crate) fn no_device(why: &str) -> Failure {
    let message = format!("no device is left to measure windows on: {why}");
    let hint = "results so far are kept; check the devices and run the same command to resume";
    Diagnostic::error(Blame::Machine, message).hint(hint).into()
}

pub(crate) fn device_panicked(panic: &str) -> Failure {
    Diagnostic::error(Blame::Bug, format!("a device's thread panicked: {panic}")).into()
}

/// Returns the error of a text with a token that the model does not know. `of`: name of the text after that of the token.
pub(super) fn out_of_vocabulary(ids: &[u32], of: &str, vocabulary: u64) -> Option<RowError> {
    let position = ids.iter().position(|id| u64::from(*id) >= vocabulary)?;
    let id = ids[position];
    let message = format!(
        "token {position}{of} is {id}, but the model's vocabulary has {vocabulary} entries"
    );
    Some(RowError { code: "token_out_of_range", message })
}

/// Computes the statistics of a measure from the output of a whole model.
pub(crate) fn statistics(
    measure: &dyn Measure,
    ids: &[u32],
    made: ForwardStatistics,
) -> PassResult {
    let evidence = [Evidence::Forward(made)];
    measure.statistics(&Window { ids, evidence: &evidence, ..Window::default() })
}

/// Runs one window through a whole model on the first device.
///
/// # Errors
/// The device fails, a tensor of weights cannot be used, or a signal stopped the run.
pub(crate) fn forward(
    whole: &WholeModelPlan,
    ids: &[u32],
    stop: &Stop,
) -> Result<std::result::Result<ForwardStatistics, RowError>> {
    let vocabulary = whole.model.spec().vocabulary_size;
    if let Some(why) = out_of_vocabulary(ids, " of the window", vocabulary) {
        return Ok(Err(why));
    }
    let (windows, should_continue) = ([ids], || stop.check().is_ok());
    let pass = whole.pass(&windows, ids.len(), &should_continue);
    let made = whole.devices.list[0].compute.forward(&pass);
    let made = made.map_err(|why| Diagnostic::error(Blame::Machine, why.to_string()))?;
    Ok(Ok(finished(made, stop)?.remove(0)))
}

/// Returns the results of a pass that was not abandoned.
fn finished(made: ForwardResult, stop: &Stop) -> Result<Vec<ForwardStatistics>> {
    let made = made.map_err(|why| Failure::from(Diagnostic::from(why)))?;
    if made.is_none() {
        stop.check()?;
    }
    Ok(made.expect("only a signal stops a pass that is awaited"))
}
