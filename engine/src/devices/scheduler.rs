//! Measures windows on any number of devices: admission by memory, placement, one thread per running window.
//!
//! [`dispatch`] decides, [`ledger`] accounts for memory, and the threads here run the work. One thread submits windows and
//! receives the results and messages.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longsift_kernels::HeadSums;
use longsift_stages::contract::RowError;
use longsift_stages::contract::compute::DeviceFailure;
use longsift_stages::first_layer_attention::{FirstLayer, WindowTokens};

use super::device::Device;
use super::dispatch::Dispatcher;
use super::dispatch::terms::{DeviceProperties, Next, Piece, PieceOutcome, Policy};
use super::ledger::Reservation;
use super::steps::Step;

/// Work that a device has done so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceUsage {
    /// Windows, or pieces of windows, that succeeded.
    pub pieces: u64,
    /// Tokens of those windows; a piece counts in proportion to its heads.
    pub tokens: f64,
    /// Time in which at least one was running.
    pub busy: Duration,
}

/// Message to the owner of the windows.
#[derive(Debug)]
pub enum SchedulerMessage {
    Window {
        id: u64,
        result: Result<(Arc<WindowTokens>, HeadSums), RowError>,
    },
    /// The scheduler took a step, on a device or on all of them.
    Step {
        device: Option<usize>,
        step: Step,
    },
    /// No device is left; the remaining windows were not measured.
    NoDeviceLeft(String),
    /// A thread of a device panicked: a bug.
    Bug(String),
}

/// Scheduler: takes windows and returns sums of heads.
pub struct Scheduler<'a> {
    devices: &'a [Device],
    layer: &'a FirstLayer,
    state: Mutex<SchedulerState>,
    /// Signals device threads that the state has changed.
    work: Condvar,
    has_messages: Condvar,
    started: Instant,
}

enum Task {
    Load(Reservation),
    Measure(Piece, Arc<WindowTokens>),
}

struct RunningWindow {
    tokens: Arc<WindowTokens>,
    /// By first key head.
    parts: BTreeMap<usize, HeadSums>,
}

struct SchedulerState {
    dispatcher: Dispatcher,
    tasks: Vec<VecDeque<Task>>,
    windows: HashMap<u64, RunningWindow>,
    messages: VecDeque<SchedulerMessage>,
    next_id: u64,
    check_at: Option<Instant>,
    closing: bool,
    dead: bool,
    work: Vec<DeviceUsage>,
    /// By device, and in total: number of running pieces, and the start of the current busy period.
    busy: Vec<(usize, Instant)>,
    busy_total: (usize, Instant),
    total_busy_time: Duration,
}

impl<'a> Scheduler<'a> {
    /// Runs `work` with a scheduler over `devices`; their threads end when `work` does.
    pub fn run<T>(
        devices: &'a [Device],
        layer: &'a FirstLayer,
        policy: Policy,
        work: impl FnOnce(&Scheduler<'_>) -> T,
    ) -> T {
        let scheduler = Scheduler::new(devices, layer, policy);
        std::thread::scope(|scope| {
            for (index, device) in devices.iter().enumerate() {
                for _ in 0..device.workers.max(1) {
                    let scheduler = &scheduler;
                    scope.spawn(move || scheduler.serve(index));
                }
            }
            // The threads must end even if `work` panics.
            let _close = CloseGuard(&scheduler);
            work(&scheduler)
        })
    }

    fn new(devices: &'a [Device], layer: &'a FirstLayer, policy: Policy) -> Self {
        let table_bytes = layer.table().bytes();
        let site = |device: &Device| DeviceProperties {
            name: device.compute.name().to_owned(),
            ledger: Arc::clone(&device.ledger),
            workers: device.workers,
            resident_bytes: device.compute.resident_bytes(layer.spec(), table_bytes),
        };
        let computes: Vec<_> = devices.iter().map(|device| Arc::clone(&device.compute)).collect();
        let spec = layer.spec().clone();
        let window_bytes = move |device: usize, tokens: usize, key_heads: usize| {
            computes[device].window_bytes(&spec, tokens, 0..key_heads)
        };
        let sites = devices.iter().map(site).collect();
        let now = Instant::now();
        let state = SchedulerState {
            dispatcher: Dispatcher::new(sites, Box::new(window_bytes), policy),
            tasks: devices.iter().map(|_| VecDeque::new()).collect(),
            windows: HashMap::new(),
            messages: VecDeque::new(),
            next_id: 0,
            check_at: Some(now),
            closing: false,
            dead: false,
            work: vec![DeviceUsage::default(); devices.len()],
            busy: vec![(0, now); devices.len()],
            busy_total: (0, now),
            total_busy_time: Duration::ZERO,
        };
        Self {
            devices,
            layer,
            state: Mutex::new(state),
            work: Condvar::new(),
            has_messages: Condvar::new(),
            started: now,
        }
    }

    pub fn devices(&self) -> &[Device] {
        self.devices
    }

    /// Queues a window and returns its id.
    pub fn submit(&self, tokens: WindowTokens) -> u64 {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let key_heads = self.layer.spec().key_heads as usize;
        state.dispatcher.submit(id, tokens.ids.len(), key_heads);
        let window = RunningWindow { tokens: Arc::new(tokens), parts: BTreeMap::new() };
        state.windows.insert(id, window);
        self.dispatch_work(&mut state);
        id
    }

    /// Waits for the next message; `None` after `time` without one.
    pub fn wait(&self, time: Duration) -> Option<SchedulerMessage> {
        let mut state = self.lock();
        if state.messages.is_empty() {
            let waited = self.has_messages.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.messages.pop_front()
    }

    /// Cancels queued windows; running ones continue.
    pub fn withdraw(&self) {
        self.lock().dispatcher.withdraw();
    }

    /// Whether windows are running or messages are pending.
    pub fn is_busy(&self) -> bool {
        let state = self.lock();
        state.dispatcher.in_flight() > 0 || !state.messages.is_empty()
    }

    /// Number of pieces running on each device.
    pub fn in_flight(&self) -> Vec<usize> {
        let state = self.lock();
        (0..self.devices.len()).map(|device| state.dispatcher.in_flight_on(device)).collect()
    }

    /// Reason for retiring each device; `None` if it is active.
    pub fn retired(&self) -> Vec<Option<String>> {
        let state = self.lock();
        let reason = |device| state.dispatcher.retired(device).map(str::to_owned);
        (0..self.devices.len()).map(reason).collect()
    }

    /// Work that each device has done so far.
    pub fn work(&self) -> Vec<DeviceUsage> {
        let (state, now) = (self.lock(), Instant::now());
        let mut work = state.work.clone();
        for (work, (pieces, since)) in work.iter_mut().zip(&state.busy) {
            if *pieces > 0 {
                work.busy += now - *since;
            }
        }
        work
    }

    /// Time in which at least one device was busy.
    pub fn busy(&self) -> Duration {
        let state = self.lock();
        let (pieces, since) = state.busy_total;
        state.total_busy_time + if pieces > 0 { since.elapsed() } else { Duration::ZERO }
    }

    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Main loop of one device thread.
    fn serve(&self, device: usize) {
        while let Some(task) = self.next_task(device) {
            match task {
                Task::Load(reservation) => {
                    let result = self.guarded(|| self.devices[device].compute.load(self.layer));
                    let mut state = self.lock();
                    state.dispatcher.loaded(device, reservation, result, self.started.elapsed());
                    self.dispatch_work(&mut state);
                }
                Task::Measure(piece, tokens) => {
                    let heads = piece.key_heads.clone();
                    let compute = &self.devices[device].compute;
                    let result = self.guarded(|| compute.measure(self.layer, &tokens, heads));
                    let mut state = self.lock();
                    let key_heads = self.layer.spec().key_heads;
                    state.ended(piece, result, key_heads, self.started.elapsed());
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
            let message = panic_message(panic.as_ref());
            self.lock().messages.push_back(SchedulerMessage::Bug(message.clone()));
            Err(DeviceFailure::Failed(format!("panicked: {message}")))
        })
    }

    fn next_task(&self, device: usize) -> Option<Task> {
        let mut state = self.lock();
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
    fn dispatch_work(&self, state: &mut SchedulerState) {
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
                        state.messages.push_back(SchedulerMessage::NoDeviceLeft(why));
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

impl SchedulerState {
    fn start(&mut self, piece: Piece, now: Instant) {
        for (pieces, since) in [&mut self.busy[piece.device], &mut self.busy_total] {
            if *pieces == 0 {
                *since = now;
            }
            *pieces += 1;
        }
        let tokens = Arc::clone(&self.windows[&piece.window].tokens);
        self.tasks[piece.device].push_back(Task::Measure(piece, tokens));
    }

    fn ended(
        &mut self,
        piece: Piece,
        result: Result<HeadSums, DeviceFailure>,
        key_heads: u64,
        now: Duration,
    ) {
        let (id, device, heads) = (piece.window, piece.device, piece.key_heads.clone());
        let work = &mut self.work[device];
        for ((pieces, since), time) in [
            (&mut self.busy[device], &mut work.busy),
            (&mut self.busy_total, &mut self.total_busy_time),
        ] {
            *pieces -= 1;
            if *pieces == 0 {
                *time += since.elapsed();
            }
        }
        let result = match (result, self.windows.get_mut(&id)) {
            (Ok(sums), Some(window)) => {
                work.pieces += 1;
                work.tokens += (window.tokens.ids.len() * heads.len()) as f64 / key_heads as f64;
                window.parts.insert(heads.start, sums);
                Ok(())
            }
            (result, _) => result.map(drop),
        };
        let ended = self.dispatcher.ended(piece, result, now);
        // Steps are sent before the result of the window, because the receiver may stop after the last result.
        self.take_steps();
        match ended {
            PieceOutcome::Done => {
                let window = self.windows.remove(&id).expect("a completed window was running");
                let mut sums = HeadSums::default();
                for part in window.parts.values() {
                    sums.append(part);
                }
                self.messages
                    .push_back(SchedulerMessage::Window { id, result: Ok((window.tokens, sums)) });
            }
            PieceOutcome::GivenUp(why) => self.give_up(id, why),
            PieceOutcome::Open | PieceOutcome::Gone => {}
        }
    }

    fn give_up(&mut self, id: u64, why: RowError) {
        self.take_steps();
        self.windows.remove(&id);
        self.messages.push_back(SchedulerMessage::Window { id, result: Err(why) });
    }

    fn take_steps(&mut self) {
        let steps = self.dispatcher.take_steps();
        self.messages.extend(
            steps.into_iter().map(|(device, step)| SchedulerMessage::Step { device, step }),
        );
    }
}

struct CloseGuard<'a, 'b>(&'a Scheduler<'b>);

impl Drop for CloseGuard<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().closing = true;
        self.0.work.notify_all();
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}
