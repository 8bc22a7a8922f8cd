//! Runs windows through a whole model: groups of them share each read of a layer's weights, and the scheduler distributes
//! groups, or parts of one, to devices.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longsift_stages::contract::compute::{DeviceFailure, ForwardResult};
use longsift_stages::contract::{
    Evidence, ForwardStatistics, Measure, RowError, StatisticValues, Window,
};
use longsift_stages::shard_across_devices::ShardBy;

use super::watch::Watch;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::parallel::lock;
use crate::base::stop::Stop;
use crate::devices::device::Device;
use crate::devices::dispatch::terms::{Policy, Unit, WindowBytes};
use crate::devices::scheduler::{Scheduler, SchedulerMessage, Work};
use crate::plan::whole_models::WholeModelPlan;

pub(crate) const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum tokens of a piece of a group: with fewer, a pass mostly reads weights.
const MIN_PIECE_TOKENS: u64 = 1 << 11;

/// Windows that may run through a model together.
pub(crate) type Group = Vec<Vec<u32>>;

pub(crate) type PassScheduler<'a> = Scheduler<'a, Group, ForwardResult>;

/// Statistics of a window, or the reason why they are missing.
pub(crate) type Measured = std::result::Result<StatisticValues, RowError>;

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
        let tokens = self.whole.window_tokens.max(1);
        let policy = Policy {
            by: ShardBy::Windows,
            memory_wait: self.whole.memory_wait,
            key_heads_at_once: None,
            min_piece_cost: tokens * tokens * (MIN_PIECE_TOKENS / tokens).max(1),
            unit: Unit::Window,
        };
        Scheduler::new(&self.whole.devices.list, self, policy)
    }
}

/// Groups consecutive items, given their sizes: by at most `max_items`, and unless a single one is larger, by `max_size`.
pub(super) fn consecutive(
    sizes: impl Iterator<Item = u64>,
    max_items: usize,
    max_size: u64,
) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut size = 0;
    for (index, own) in sizes.enumerate() {
        match groups.last_mut() {
            Some(group) if group.len() < max_items && size + own <= max_size => {
                group.end += 1;
                size += own;
            }
            _ => {
                groups.push(index..index + 1);
                size = own;
            }
        }
    }
    groups
}

impl Work<Group, ForwardResult> for Passes<'_> {
    fn piece_bytes(&self, _: &[Device]) -> Box<WindowBytes> {
        let memory = self.whole.memory_of();
        let known: Mutex<HashMap<(usize, usize), u64>> = Mutex::default();
        Box::new(move |_, tokens, windows| {
            let mut known = lock(&known);
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

pub(crate) struct ModelOnDevices<'a> {
    pub(crate) measure_index: u16,
    pub(crate) passes: &'a Passes<'a>,
    pub(crate) scheduler: &'a PassScheduler<'a>,
    /// Monitor of the devices; `None` for the processor.
    pub(crate) watch: Option<Watch<'a>>,
}

impl ModelOnDevices<'_> {
    /// Computes statistics. Calls `on_result` with the index and result of each window, and with `None` at intervals.
    pub(crate) fn run(
        &self,
        measure: &dyn Measure,
        windows: &[&[u32]],
        on_result: &mut dyn FnMut(Option<(usize, Measured)>) -> Result<()>,
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
        on_result: &mut dyn FnMut(Option<(usize, Measured)>) -> Result<()>,
    ) -> Result<()> {
        let mut known = Vec::new();
        for (index, ids) in windows.iter().enumerate() {
            let vocabulary = self.passes.whole.model.spec().vocabulary_size;
            match out_of_vocabulary(ids, " of the window", vocabulary) {
                Some(why) => on_result(Some((index, Err(why))))?,
                None => known.push(index),
            }
        }
        // Each group has at most as many tokens as the full windows that share a read.
        let max_tokens = self.passes.whole.windows_at_once * self.passes.whole.window_tokens;
        let tokens = known.iter().map(|index| windows[*index].len() as u64);
        let mut open: HashMap<u64, &[usize]> = HashMap::new();
        let submit = |indices: &[usize]| {
            self.scheduler.submit(indices.iter().map(|index| windows[*index].to_vec()).collect())
        };
        for group in consecutive(tokens, usize::MAX, max_tokens) {
            open.insert(submit(&known[group.clone()]), &known[group]);
        }
        while !open.is_empty() {
            match self.scheduler.wait(STOP_INTERVAL) {
                Some(SchedulerMessage::Window { id, result }) => {
                    let Some(indices) = open.remove(&id) else { continue };
                    match result {
                        Ok((_, made)) => {
                            let made = finished(made, self.passes.stop)?;
                            for (index, made) in indices.iter().zip(made) {
                                let evidence = Evidence::Forward(made);
                                let result = statistics(measure, windows[*index], evidence);
                                on_result(Some((*index, result)))?;
                            }
                        }
                        Err(why) if indices.len() == 1 => {
                            on_result(Some((indices[0], Err(why))))?;
                        }
                        // Shorter windows of the group may fit.
                        Err(_) => {
                            for one in indices.chunks(1) {
                                open.insert(submit(one), one);
                            }
                        }
                    }
                }
                Some(SchedulerMessage::Step(step)) => {
                    self.watch.as_ref().map_or(Ok(()), |watch| watch.step(step))?;
                }
                Some(SchedulerMessage::Failed(blame, why)) => {
                    return Err(devices_failed(blame, &why));
                }
                None => {}
            }
            on_result(None)?;
        }
        Ok(())
    }
}

/// Returns the error of a [`SchedulerMessage::Failed`].
pub(crate) fn devices_failed(blame: Blame, why: &str) -> Failure {
    if blame == Blame::Bug {
        return Diagnostic::error(blame, format!("a device's thread panicked: {why}")).into();
    }
    let message = format!("no device is left to measure windows on: {why}");
    let hint = "results so far are kept; check the devices and run the same command to resume";
    Diagnostic::error(blame, message).hint(hint).into()
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

/// Computes the statistics of a window from `evidence`.
pub(crate) fn statistics(measure: &dyn Measure, ids: &[u32], evidence: Evidence) -> Measured {
    measure.statistics(&Window { ids, evidence: &[evidence], ..Window::default() })
}

/// Runs one window through a whole model on the first device.
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

fn finished(made: ForwardResult, stop: &Stop) -> Result<Vec<ForwardStatistics>> {
    let made = made.map_err(|why| Failure::from(Diagnostic::from(why)))?;
    if made.is_none() {
        stop.check()?;
    }
    Ok(made.expect("only a signal stops a pass that is awaited"))
}
