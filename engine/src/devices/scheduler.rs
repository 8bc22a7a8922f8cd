//! Runs jobs on any number of devices: admission by memory, placement, one thread per running piece.
//!
//! [`dispatch`] decides, [`ledger`] accounts for memory, and the threads here run the work. One thread submits jobs and
//! receives the results and messages. A job is a window of layer 0 with its key heads as units, or a group of windows of a whole
//! model with the windows as units.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longsift_kernels::HeadSums;
use longsift_stages::contract::RowError;
use longsift_stages::contract::compute::DeviceFailure;
use longsift_stages::first_layer_attention::{FirstLayer, WindowTokens};

use super::device::Device;
use super::dispatch::Dispatcher;
use super::dispatch::terms::{
    DeviceProperties, Next, Piece, PieceOutcome, Policy, Step, WindowBytes,
};
use super::ledger::Reservation;
use crate::base::diagnostic::Blame;
use crate::base::error::panic_message;
use crate::base::parallel::lock;

/// Work that devices do on jobs `J` with results `R`.
pub trait Work<J, R>: Sync {
    fn resident_bytes(&self, _device: &Device) -> u64 {
        0
    }
    fn load(&self, _device: &Device) -> Result<(), DeviceFailure> {
        Ok(())
    }
    fn piece_bytes(&self, devices: &[Device]) -> Box<WindowBytes>;
    /// Tokens of the longest window of a job, and the number of its units.
    fn size(&self, job: &J) -> (usize, usize);
    /// Tokens of some units; parts of a window count in proportion.
    fn tokens(&self, job: &J, units: &Range<usize>) -> f64;
    /// Runs some units of a job on a device; blocks until it is done.
    fn measure(&self, device: &Device, job: &J, units: Range<usize>) -> Result<R, DeviceFailure>;
    /// Joins the results of all units, in order.
    fn join(&self, parts: Vec<R>) -> R;
}

impl Work<WindowTokens, HeadSums> for FirstLayer {
    fn resident_bytes(&self, device: &Device) -> u64 {
        device.compute.resident_bytes(self.spec(), self.table().bytes())
    }

    fn load(&self, device: &Device) -> Result<(), DeviceFailure> {
        device.compute.load(self)
    }

    fn piece_bytes(&self, devices: &[Device]) -> Box<WindowBytes> {
        let computes: Vec<_> = devices.iter().map(|device| Arc::clone(&device.compute)).collect();
        let spec = self.spec().clone();
        Box::new(move |device, tokens, key_heads| {
            computes[device].window_bytes(&spec, tokens, 0..key_heads)
        })
    }

    fn size(&self, window: &WindowTokens) -> (usize, usize) {
        (window.ids.len(), self.spec().key_heads as usize)
    }

    fn tokens(&self, window: &WindowTokens, key_heads: &Range<usize>) -> f64 {
        (window.ids.len() * key_heads.len()) as f64 / self.spec().key_heads as f64
    }

    fn measure(
        &self,
        device: &Device,
        window: &WindowTokens,
        key_heads: Range<usize>,
    ) -> Result<HeadSums, DeviceFailure> {
        device.compute.measure(self, window, key_heads)
    }

    fn join(&self, parts: Vec<HeadSums>) -> HeadSums {
        let mut sums = HeadSums::default();
        for part in &parts {
            sums.append(part);
        }
        sums
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceUsage {
    /// Windows, or pieces of windows, that succeeded.
    pub pieces: u64,
    /// Tokens of those windows; a piece counts in proportion to its heads.
    pub tokens: f64,
    /// Time in which at least one was running.
    pub busy: Duration,
}

#[derive(Debug)]
pub enum SchedulerMessage<J = WindowTokens, R = HeadSums> {
    Window {
        id: u64,
        result: Result<(Arc<J>, R), RowError>,
    },
    Step(Step),
    /// No device is left ([`Blame::Machine`]), or a thread of a device panicked: the remaining windows are not measured.
    Failed(Blame, String),
}

/// Scheduler: takes jobs, by default windows of layer 0, and returns their results, by default sums of heads.
pub struct Scheduler<'a, J = WindowTokens, R = HeadSums> {
    pub(crate) devices: &'a [Device],
    work_on: &'a dyn Work<J, R>,
    state: Mutex<SchedulerState<J, R>>,
    /// Signals device threads that the state has changed.
    work: Condvar,
    has_messages: Condvar,
    started: Instant,
}

enum Task<J> {
    Load(Reservation),
    Measure(Piece, Arc<J>),
}

struct SchedulerState<J, R> {
    dispatcher: Dispatcher,
    tasks: Vec<VecDeque<Task<J>>>,
    /// Jobs, and the results of their parts by first unit.
    jobs: HashMap<u64, (Arc<J>, BTreeMap<usize, R>)>,
    messages: VecDeque<SchedulerMessage<J, R>>,
    next_id: u64,
    check_at: Option<Instant>,
    closing: bool,
    dead: bool,
    /// By device; the last entry has the time in which at least one of them was busy.
    work: Vec<DeviceUsage>,
    /// Number of running pieces, and the start of the current busy period, likewise.
    busy: Vec<(usize, Instant)>,
}

impl<'a, J: Send + Sync, R: Send> Scheduler<'a, J, R> {
    /// Runs `work` with a scheduler over `devices`; their threads end when `work` does.
    pub fn run<T>(
        devices: &'a [Device],
        work_on: &'a dyn Work<J, R>,
        policy: Policy,
        work: impl FnOnce(&Scheduler<'_, J, R>) -> T,
    ) -> T {
        let scheduler = Scheduler::new(devices, work_on, policy);
        Self::run_all(std::slice::from_ref(&scheduler), || work(&scheduler))
    }

    pub fn run_all<T>(schedulers: &[Self], work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            for scheduler in schedulers {
                for (index, device) in scheduler.devices.iter().enumerate() {
                    for _ in 0..device.workers.max(1) {
                        scope.spawn(move || scheduler.serve(index));
                    }
                }
            }
            // The threads must end even if `work` panics.
            let _close = CloseGuard(schedulers);
            work()
        })
    }

    /// Returns a scheduler whose threads [`Self::run_all`] starts.
    pub fn new(devices: &'a [Device], work_on: &'a dyn Work<J, R>, policy: Policy) -> Self {
        let site = |device: &Device| DeviceProperties {
            name: device.compute.name().to_owned(),
            ledger: Arc::clone(&device.ledger),
            workers: device.workers,
            resident_bytes: work_on.resident_bytes(device),
        };
        let sites = devices.iter().map(site).collect();
        let now = Instant::now();
        let state = SchedulerState {
            dispatcher: Dispatcher::new(sites, work_on.piece_bytes(devices), policy),
            tasks: devices.iter().map(|_| VecDeque::new()).collect(),
            jobs: HashMap::new(),
            messages: VecDeque::new(),
            next_id: 0,
            check_at: Some(now),
            closing: false,
            dead: false,
            work: vec![DeviceUsage::default(); devices.len() + 1],
            busy: vec![(0, now); devices.len() + 1],
        };
        Self {
            devices,
            work_on,
            state: Mutex::new(state),
            work: Condvar::new(),
            has_messages: Condvar::new(),
            started: now,
        }
    }

    pub fn submit(&self, job: J) -> u64 {
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        let (tokens, units) = self.work_on.size(&job);
        state.dispatcher.submit(id, tokens, units);
        state.jobs.insert(id, (Arc::new(job), BTreeMap::new()));
        self.dispatch_work(&mut state);
        id
    }

    /// Waits for the next message; `None` after `time` without one.
    pub fn wait(&self, time: Duration) -> Option<SchedulerMessage<J, R>> {
        let mut state = lock(&self.state);
        if state.messages.is_empty() {
            let waited = self.has_messages.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.messages.pop_front()
    }

    /// Cancels queued windows; running ones continue.
    pub fn withdraw(&self) {
        lock(&self.state).dispatcher.withdraw();
    }

    /// Whether windows are running or messages are pending.
    pub fn is_busy(&self) -> bool {
        let state = lock(&self.state);
        state.dispatcher.in_flight().any(|pieces| pieces > 0) || !state.messages.is_empty()
    }

    pub fn in_flight(&self) -> Vec<usize> {
        lock(&self.state).dispatcher.in_flight().collect()
    }

    /// Reason for retiring each device; `None` if it is active.
    pub fn retired(&self) -> Vec<Option<String>> {
        let state = lock(&self.state);
        let reason = |device| state.dispatcher.retired(device).map(str::to_owned);
        (0..self.devices.len()).map(reason).collect()
    }

    /// Work that each device has done so far, then the time in which at least one was busy.
    pub fn work(&self) -> Vec<DeviceUsage> {
        let (state, now) = (lock(&self.state), Instant::now());
        let mut work = state.work.clone();
        for (work, (pieces, since)) in work.iter_mut().zip(&state.busy) {
            if *pieces > 0 {
                work.busy += now - *since;
            }
        }
        work
    }

    pub fn busy(&self) -> Duration {
        self.work().pop().map_or(Duration::ZERO, |total| total.busy)
    }

    fn serve(&self, device: usize) {
        while let Some(task) = self.next_task(device) {
            match task {
                Task::Load(reservation) => {
                    let result = self.guarded(|| self.work_on.load(&self.devices[device]));
                    let mut state = lock(&self.state);
                    state.dispatcher.loaded(device, reservation, result, self.started.elapsed());
                    self.dispatch_work(&mut state);
                }
                Task::Measure(piece, job) => {
                    let units = piece.key_heads.clone();
                    let on = &self.devices[device];
                    let result = self.guarded(|| self.work_on.measure(on, &job, units));
                    let mut state = lock(&self.state);
                    state.ended(piece, result, self.work_on, self.started.elapsed());
                    self.dispatch_work(&mut state);
                }
            }
        }
    }

    /// Reports a panic as a bug, so that no thread waits forever.
    fn guarded<T>(
        &self,
        work: impl FnOnce() -> Result<T, DeviceFailure>,
    ) -> Result<T, DeviceFailure> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref()).to_owned();
            let failed = SchedulerMessage::Failed(Blame::Bug, message.clone());
            lock(&self.state).messages.push_back(failed);
            Err(DeviceFailure::Failed(format!("panicked: {message}")))
        })
    }

    fn next_task(&self, device: usize) -> Option<Task<J>> {
        let mut state = lock(&self.state);
        loop {
            if state.closing {
                return None;
            }
            if let Some(task) = state.tasks[device].pop_front() {
                return Some(task);
            }
            if state.check_at.is_some_and(|at| at <= Instant::now()) {
                self.dispatch_work(&mut state);
                if !state.tasks[device].is_empty() {
                    continue;
                }
            }
            state = match state.check_at {
                Some(at) => {
                    let time = at.saturating_duration_since(Instant::now());
                    self.work.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Executes the dispatcher's decisions until it has to wait.
    fn dispatch_work(&self, state: &mut SchedulerState<J, R>) {
        let now = Instant::now();
        loop {
            match state.dispatcher.next(now - self.started) {
                Next::Load { device, reservation } => {
                    state.tasks[device].push_back(Task::Load(reservation));
                }
                Next::Start(piece) => state.start(piece, now),
                Next::GiveUp { window, why } => state.give_up(window, why),
                Next::Wait(time) => {
                    state.check_at = time.map(|time| now + time);
                    break;
                }
                Next::NoDeviceLeft(why) => {
                    if !std::mem::replace(&mut state.dead, true) {
                        state.take_steps();
                        state.messages.push_back(SchedulerMessage::Failed(Blame::Machine, why));
                    }
                    state.check_at = None;
                    break;
                }
            }
        }
        state.take_steps();
        self.work.notify_all();
        if !state.messages.is_empty() {
            self.has_messages.notify_all();
        }
    }
}

impl<J, R> SchedulerState<J, R> {
    fn start(&mut self, piece: Piece, now: Instant) {
        for index in [piece.device, self.busy.len() - 1] {
            let (pieces, since) = &mut self.busy[index];
            if *pieces == 0 {
                *since = now;
            }
            *pieces += 1;
        }
        let job = Arc::clone(&self.jobs[&piece.window].0);
        self.tasks[piece.device].push_back(Task::Measure(piece, job));
    }

    fn ended(
        &mut self,
        piece: Piece,
        result: Result<R, DeviceFailure>,
        work_on: &dyn Work<J, R>,
        now: Duration,
    ) {
        let (id, device, units) = (piece.window, piece.device, piece.key_heads.clone());
        for index in [device, self.busy.len() - 1] {
            let (pieces, since) = &mut self.busy[index];
            *pieces -= 1;
            if *pieces == 0 {
                self.work[index].busy += since.elapsed();
            }
        }
        let work = &mut self.work[device];
        let result = match (result, self.jobs.get_mut(&id)) {
            (Ok(part), Some((job, parts))) => {
                work.pieces += 1;
                work.tokens += work_on.tokens(job, &units);
                parts.insert(units.start, part);
                Ok(())
            }
            (result, _) => result.map(drop),
        };
        let ended = self.dispatcher.ended(piece, result, now);
        // Steps are sent before the result of the window, because the receiver may stop after the last result.
        self.take_steps();
        match ended {
            PieceOutcome::Done => {
                let (job, parts) = self.jobs.remove(&id).expect("a job that is done was open");
                let joined = work_on.join(parts.into_values().collect());
                self.messages.push_back(SchedulerMessage::Window { id, result: Ok((job, joined)) });
            }
            PieceOutcome::GivenUp(why) => self.give_up(id, why),
            PieceOutcome::Open => {}
        }
    }

    fn give_up(&mut self, id: u64, why: RowError) {
        self.take_steps();
        self.jobs.remove(&id);
        self.messages.push_back(SchedulerMessage::Window { id, result: Err(why) });
    }

    fn take_steps(&mut self) {
        self.messages.extend(self.dispatcher.take_steps().into_iter().map(SchedulerMessage::Step));
    }
}

struct CloseGuard<'a, 'b, J: Send + Sync, R: Send>(&'a [Scheduler<'b, J, R>]);

impl<J: Send + Sync, R: Send> Drop for CloseGuard<'_, '_, J, R> {
    fn drop(&mut self) {
        for scheduler in self.0 {
            lock(&scheduler.state).closing = true;
            scheduler.work.notify_all();
        }
    }
}
