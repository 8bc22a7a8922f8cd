//! Invariants of the dispatcher, on devices with simulated memory and time: every window is measured exactly once, no device is
//! over-committed, and all devices finish at about the same time, however memory changes meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longsift_stages::contract::compute::DeviceFailure;
use longsift_stages::shard_across_devices::ShardBy;
use proptest::prelude::*;

use super::dispatch::Dispatcher;
use super::dispatch::terms::{DeviceProperties, Next, Piece, PieceOutcome, Policy, Unit};
use super::ledger::{Ledger, Memory, MemorySource};

const GB: u64 = 1_000_000_000;

/// A GPU that another program uses as well, and on which pieces hold what they reserved.
struct Card {
    total: u64,
    neighbour: Arc<AtomicU64>,
    held: Arc<AtomicU64>,
}

impl MemorySource for Card {
    fn read(&self) -> Result<Memory, String> {
        let used = self.neighbour.load(Ordering::SeqCst) + self.held();
        Ok(Memory { total: self.total, used })
    }
    fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }
}

/// Events other than windows being measured.
#[derive(Clone, Debug)]
enum WorldEvent {
    /// Another program allocates or frees bytes of a device.
    Neighbour {
        device: usize,
        bytes: i64,
    },
    /// The next piece that ends on a device ran out of memory.
    OutOfMemory {
        device: usize,
    },
    /// The next piece that ends on a device failed.
    Failed {
        device: usize,
    },
    Lost {
        device: usize,
    },
}

struct World {
    totals: Vec<u64>,
    workers: Vec<usize>,
    /// Bytes of each device that another program uses at the start.
    neighbour: u64,
    /// Tokens of each window.
    windows: Vec<usize>,
    key_heads: usize,
    resident: u64,
    bytes_per_token_and_head: u64,
    by: ShardBy,
    memory_wait: Duration,
    /// In ticks of the clock.
    events: Vec<(u64, WorldEvent)>,
}

impl World {
    fn even(devices: usize, windows: Vec<usize>) -> Self {
        Self {
            totals: vec![80 * GB; devices],
            workers: vec![1; devices],
            neighbour: 0,
            windows,
            key_heads: 8,
            resident: GB,
            bytes_per_token_and_head: 1000,
            by: ShardBy::Windows,
            memory_wait: Duration::from_mins(10),
            events: Vec::new(),
        }
    }
}

/// Result of a simulation.
#[derive(Debug)]
struct History {
    measured: Vec<Vec<Range<usize>>>,
    given_up: BTreeMap<u64, &'static str>,
    dead: Option<String>,
    steps: HashMap<&'static str, usize>,
    makespan: f64,
    most_committed: Vec<f64>,
}

/// Duration of a piece: one tick per 1024² pairs.
fn ticks(tokens: usize, heads: usize) -> u64 {
    ((tokens as u64).pow(2) * heads as u64).div_ceil(1 << 20)
}

/// Runs the dispatcher with a simulated clock, one microsecond per tick.
fn simulate(world: &World) -> History {
    let neighbours: Vec<_> =
        world.totals.iter().map(|_| Arc::new(AtomicU64::new(world.neighbour))).collect();
    let held: Vec<_> = world.totals.iter().map(|_| Arc::new(AtomicU64::new(0))).collect();
    let headroom = |total: u64| total / 10;
    let sites = world.totals.iter().enumerate().map(|(device, &total)| {
        let (neighbour, held) = (Arc::clone(&neighbours[device]), Arc::clone(&held[device]));
        let card = Arc::new(Card { total, neighbour, held });
        DeviceProperties {
            name: format!("cuda:{device}"),
            ledger: Ledger::new(card, headroom(total)),
            workers: world.workers[device],
            resident_bytes: world.resident,
        }
    });
    let per_token = world.bytes_per_token_and_head;
    let bytes = move |_: usize, tokens: usize, heads: usize| per_token * (tokens * heads) as u64;
    let policy = Policy {
        by: world.by,
        memory_wait: world.memory_wait,
        key_heads_at_once: None,
        min_piece_cost: 0,
        unit: Unit::KeyHead,
    };
    let mut dispatcher = Dispatcher::new(sites.collect(), Box::new(bytes), policy);
    for (id, &tokens) in world.windows.iter().enumerate() {
        dispatcher.submit(id as u64, tokens, world.key_heads);
    }
    let mut history = History {
        measured: vec![Vec::new(); world.windows.len()],
        given_up: BTreeMap::new(),
        dead: None,
        steps: HashMap::new(),
        makespan: 0.0,
        most_committed: vec![0.0; world.totals.len()],
    };
    let mut events = world.events.clone();
    events.sort_by_key(|(at, _)| Reverse(*at));
    let mut pending: HashMap<usize, Vec<DeviceFailure>> = HashMap::new();
    let mut lost = vec![false; world.totals.len()];
    let mut running: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut pieces: HashMap<u64, Piece> = HashMap::new();
    let (mut clock, mut serial) = (0_u64, 0_u64);
    loop {
        let wake = loop {
            match dispatcher.next(Duration::from_micros(clock)) {
                Next::Load { device, reservation } => {
                    held[device].fetch_add(reservation.bytes(), Ordering::SeqCst);
                    dispatcher.loaded(device, reservation, Ok(()), Duration::from_micros(clock));
                }
                Next::Start(piece) => {
                    let (device, heads) = (piece.device, piece.key_heads.len());
                    let bytes = per_token * (piece.tokens * heads) as u64;
                    let now = held[device].fetch_add(bytes, Ordering::SeqCst) + bytes;
                    let total = world.totals[device];
                    let all = now + neighbours[device].load(Ordering::SeqCst) + headroom(total);
                    let committed = all as f64 / total as f64;
                    history.most_committed[device] = history.most_committed[device].max(committed);
                    serial += 1;
                    running.push(Reverse((clock + ticks(piece.tokens, heads), serial)));
                    pieces.insert(serial, piece);
                }
                Next::GiveUp { window, why } => {
                    assert!(history.given_up.insert(window, why.code).is_none());
                }
                Next::Wait(wake) => break wake,
                Next::NoDeviceLeft(why) => {
                    history.dead = Some(why);
                    break None;
                }
            }
        };
        for step in dispatcher.take_steps() {
            *history.steps.entry(step.name).or_default() += 1;
        }
        let next_end = running.peek().map(|Reverse((at, _))| *at);
        let next_event = events.last().map(|(at, _)| *at);
        let next_check = wake.map(|wake| clock + (wake.as_micros() as u64).max(1));
        if next_end.is_none() && (history.dead.is_some() || next_check.is_none()) {
            break;
        }
        let at = [next_end, next_event, next_check].into_iter().flatten().min();
        clock = at.expect("an event is scheduled").max(clock);
        while let Some((_, event)) = events.pop_if(|(at, _)| *at <= clock) {
            match event {
                WorldEvent::Neighbour { device, bytes } => {
                    let used = neighbours[device].load(Ordering::SeqCst) as i64 + bytes;
                    // The other program can only allocate free memory.
                    let free = world.totals[device] - held[device].load(Ordering::SeqCst);
                    let used = u64::try_from(used.max(0)).unwrap_or(0).min(free);
                    neighbours[device].store(used, Ordering::SeqCst);
                }
                WorldEvent::OutOfMemory { device } => {
                    let failure = DeviceFailure::OutOfMemory { wanted: 1, free: 0 };
                    pending.entry(device).or_default().push(failure);
                }
                WorldEvent::Failed { device } => {
                    let failure = DeviceFailure::Failed("an error".to_owned());
                    pending.entry(device).or_default().push(failure);
                }
                WorldEvent::Lost { device } => lost[device] = true,
            }
        }
        while let Some(Reverse((end, serial))) = running.pop() {
            if end > clock {
                running.push(Reverse((end, serial)));
                break;
            }
            let piece = pieces.remove(&serial).unwrap();
            let (device, window, key_heads) = (piece.device, piece.window, piece.key_heads.clone());
            let bytes = per_token * (piece.tokens * key_heads.len()) as u64;
            held[device].fetch_sub(bytes, Ordering::SeqCst);
            let result = if lost[device] {
                Err(DeviceFailure::Lost("it fell off the bus".to_owned()))
            } else {
                pending.entry(device).or_default().pop().map_or(Ok(()), Err)
            };
            let well = result.is_ok();
            match dispatcher.ended(piece, result, Duration::from_micros(clock)) {
                PieceOutcome::GivenUp(why) => {
                    assert!(history.given_up.insert(window, why.code).is_none());
                }
                _ if well => history.measured[window as usize].push(key_heads),
                _ => {}
            }
            history.makespan = clock as f64;
        }
    }
    history
}

impl History {
    /// Checks that every head of every window that was not given up is measured exactly once.
    fn check_each_once(&self, world: &World) {
        for (window, ranges) in self.measured.iter().enumerate() {
            if self.given_up.contains_key(&(window as u64)) || self.dead.is_some() {
                continue;
            }
            let mut ranges = ranges.clone();
            ranges.sort_by_key(|range| range.start);
            let mut next = 0;
            for range in ranges {
                assert_eq!(range.start, next, "window {window}");
                next = range.end;
            }
            assert_eq!(next, world.key_heads, "window {window}");
        }
    }

    fn check_never_over_committed(&self) {
        for (device, committed) in self.most_committed.iter().enumerate() {
            assert!(*committed <= 1.0, "device {device} was committed to {committed}");
        }
    }

    fn steps(&self, name: &str) -> usize {
        self.steps.get(name).copied().unwrap_or(0)
    }
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let equal = (1_usize..200).prop_map(|count| vec![32_768; count]);
    let mixed = prop::collection::vec(2048_usize..65_536, 1..200);
    let few_long = (1_usize..4, prop::collection::vec(2048_usize..8192, 0..60)).prop_map(
        |(long, mut short)| {
            short.extend(std::iter::repeat_n(262_144, long));
            short
        },
    );
    prop_oneof![equal, mixed, few_long]
}

proptest! {
    #[test]
    fn devices_finish_at_about_the_same_time(devices in 1_usize..=8, windows in lengths()) {
        let world = World::even(devices, windows);
        let history = simulate(&world);
        history.check_each_once(&world);
        history.check_never_over_committed();
        let costs: Vec<u64> = world.windows.iter().map(|tokens| ticks(*tokens, 8)).collect();
        let longest = *costs.iter().max().unwrap() as f64;
        let even = costs.iter().sum::<u64>() as f64 / devices as f64;
        let bound = even.max(longest);
        prop_assert!(history.makespan <= 1.1 * bound + 1.0, "{} over {bound}", history.makespan);
        // The longest windows are split by heads, so they do not delay the end either.
        let one_head = longest / 8.0;
        prop_assert!(history.makespan <= even + one_head + 1.0, "{} over {even}", history.makespan);
    }

    #[test]
    fn changing_memory_only_costs_time(
        totals in prop::collection::vec(4_u64..=80, 1..=8),
        workers in prop::collection::vec(1_usize..=4, 8),
        windows in lengths(),
        events in prop::collection::vec((0_u64..4_000_000, 0_usize..8, -60_i64..60), 0..40),
        by in prop_oneof![Just(ShardBy::Windows), Just(ShardBy::Heads)],
    ) {
        let devices = totals.len();
        let events = events.into_iter().map(|(at, device, gigabytes)| {
            let bytes = gigabytes * GB as i64;
            (at, WorldEvent::Neighbour { device: device % devices, bytes })
        });
        // All other programs have ended by then.
        let last = (0..devices).map(|device| {
            (5_000_000, WorldEvent::Neighbour { device, bytes: i64::MIN / 2 })
        });
        let world = World {
            totals: totals.iter().map(|total| total * GB).collect(),
            workers: workers[..devices].to_vec(),
            events: events.chain(last).collect(),
            by,
            ..World::even(devices, windows)
        };
        let history = simulate(&world);
        history.check_each_once(&world);
        prop_assert!(history.given_up.is_empty() && history.dead.is_none(), "{history:?}");
        // Only admissions are checked: other programs may allocate while a window runs.
        history.check_never_over_committed();
    }

    #[test]
    fn no_window_is_lost_while_one_device_works(
        devices in 2_usize..=8,
        windows in prop::collection::vec(2048_usize..65_536, 1..100),
        faults in prop::collection::vec((0_u64..100_000, 0_usize..8), 0..60),
        deaths in prop::collection::vec((0_u64..100_000, 1_usize..8), 0..8),
    ) {
        let fault = |(at, device)| (at, WorldEvent::OutOfMemory { device: device % devices });
        let faults = faults.into_iter().map(fault);
        let deaths = deaths.into_iter().filter(|(_, device)| *device < devices);
        let deaths = deaths.map(|(at, device)| (at, WorldEvent::Lost { device }));
        let world = World { events: faults.chain(deaths).collect(), ..World::even(devices, windows) };
        let history = simulate(&world);
        history.check_each_once(&world);
        prop_assert!(history.given_up.is_empty() && history.dead.is_none(), "{history:?}");
    }

    #[test]
    fn every_window_is_measured_given_up_or_left_to_the_next_run(
        totals in prop::collection::vec(1_u64..=80, 1..=4),
        windows in prop::collection::vec(2048_usize..400_000, 1..60),
        faults in prop::collection::vec((0_u64..200_000, 0_usize..4, 0_u8..4), 0..80),
        wait in 0_u64..3,
    ) {
        let devices = totals.len();
        let fault = |(at, device, kind): (u64, usize, u8)| {
            let device = device % devices;
            (at, match kind {
                0 => WorldEvent::OutOfMemory { device },
                1 => WorldEvent::Failed { device },
                2 => WorldEvent::Neighbour { device, bytes: 60 * GB as i64 },
                _ => WorldEvent::Lost { device },
            })
        };
        let world = World {
            totals: totals.iter().map(|total| total * GB).collect(),
            events: faults.into_iter().map(fault).collect(),
            memory_wait: Duration::from_secs(wait),
            ..World::even(devices, windows)
        };
        let history = simulate(&world);
        history.check_each_once(&world);
        history.check_never_over_committed();
        let given_up = history.steps("window_given_up");
        prop_assert_eq!(given_up, history.given_up.len());
    }
}

#[test]
fn window_of_a_million_tokens_is_measured_in_groups_of_heads() {
    // 8 key heads of 1,048,576 tokens: 134 GB at once on an 80 GB GPU.
    let world = World { bytes_per_token_and_head: 16_000, ..World::even(1, vec![1 << 20]) };
    let history = simulate(&world);
    history.check_each_once(&world);
    history.check_never_over_committed();
    assert!(history.steps("head_groups") > 0 && history.measured[0].len() > 1);
    assert!(history.given_up.is_empty());
}

#[test]
fn oversized_window_is_given_up_at_once() {
    let world =
        World { bytes_per_token_and_head: 80_000, ..World::even(2, vec![4096, 1 << 20, 4096]) };
    let history = simulate(&world);
    assert_eq!(history.given_up, BTreeMap::from([(1, "window_exceeds_device_memory")]));
    history.check_each_once(&world);
    assert_eq!(history.steps("memory_wait"), 0);
}

#[test]
fn dispatcher_waits_for_memory_of_other_programs() {
    // One key head takes 12.5 GB; 80 − 8 of headroom − 60 − 1 of the table leaves 11.
    let back = (30_000_000, WorldEvent::Neighbour { device: 0, bytes: -60 * GB as i64 });
    let world = World {
        neighbour: 60 * GB,
        events: vec![back],
        bytes_per_token_and_head: 190_000,
        ..World::even(1, vec![65_536; 4])
    };
    let history = simulate(&world);
    history.check_each_once(&world);
    history.check_never_over_committed();
    assert_eq!((history.steps("memory_wait"), history.steps("memory_back")), (1, 1));
    assert!(history.given_up.is_empty() && history.makespan > 30_000_000.0);
    // If the memory is not freed, windows are given up one at a time, each after the full wait.
    let history = simulate(&World { events: Vec::new(), ..world });
    assert!(history.given_up.values().all(|code| *code == "device_memory_short"), "{history:?}");
    assert_eq!((history.given_up.len(), history.steps("memory_wait")), (4, 4));
}

#[test]
fn out_of_memory_reduces_windows_then_heads_then_pauses() {
    let world = World {
        workers: vec![3],
        events: (0..6).map(|_| (1, WorldEvent::OutOfMemory { device: 0 })).collect(),
        ..World::even(1, vec![32_768; 100])
    };
    let history = simulate(&world);
    history.check_each_once(&world);
    assert_eq!(history.steps("out_of_memory"), 6);
    assert!(history.steps("fewer_in_flight") >= 2 && history.steps("head_groups") >= 3);
    assert!(history.steps("more_in_flight") >= 1, "the limit is raised again after successes");
    assert!(history.given_up.is_empty());
}

#[test]
fn three_failures_give_up_a_window_or_retire_a_device() {
    let failures = |count: usize| World {
        events: (0..count).map(|_| (1, WorldEvent::Failed { device: 0 })).collect(),
        ..World::even(1, vec![32_768; 10])
    };
    let history = simulate(&failures(3));
    assert_eq!(history.given_up.len(), 1, "{history:?}");
    history.check_each_once(&failures(3));
    let history = simulate(&failures(9));
    assert!(
        history.dead.as_ref().is_some_and(|why| why.contains("3 windows in a row")),
        "{history:?}"
    );
}

#[test]
fn losing_all_devices_ends_the_run_without_giving_up_windows() {
    let events = vec![(5, WorldEvent::Lost { device: 0 }), (900, WorldEvent::Lost { device: 1 })];
    let world = World { events, ..World::even(2, vec![32_768; 40]) };
    let history = simulate(&world);
    assert!(history.given_up.is_empty());
    let why = history.dead.expect("no device is left");
    assert!(why.contains("cuda:0: ") && why.contains("cuda:1: "), "{why}");
}

#[test]
fn sharding_by_heads_spreads_each_window_over_all_devices() {
    let world = World { by: ShardBy::Heads, ..World::even(4, vec![65_536; 3]) };
    let history = simulate(&world);
    history.check_each_once(&world);
    assert!(history.measured.iter().all(|pieces| pieces.len() == 4), "{history:?}");
}

#[test]
fn worker_limits_apply_per_device() {
    let world = World { workers: vec![2, 1], ..World::even(2, vec![16_384; 64]) };
    let history = simulate(&world);
    history.check_each_once(&world);
    // Two concurrent windows on a device take twice the memory of one.
    let window = 8.0 * 16_384.0 * 1000.0 / 80e9;
    let beyond = |device: usize| history.most_committed[device] - 0.1 - 1.0 / 80.0;
    assert!((beyond(0) - 2.0 * window).abs() < 1e-9, "{history:?}");
    assert!((beyond(1) - window).abs() < 1e-9, "{history:?}");
}

#[test]
fn queue_without_room_is_searched_once() {
    let (neighbour, held) = (Arc::new(AtomicU64::new(70 * GB)), Arc::new(AtomicU64::new(0)));
    let card = Arc::new(Card { total: 80 * GB, neighbour: Arc::clone(&neighbour), held });
    let ledger = Ledger::new(card, 8 * GB);
    let site =
        DeviceProperties { name: "cuda:0".to_owned(), ledger, workers: 1, resident_bytes: GB };
    let size_calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&size_calls);
    let bytes = move |_: usize, tokens: usize, heads: usize| {
        counted.fetch_add(1, Ordering::SeqCst);
        2 * GB + 1000 * (tokens * heads) as u64
    };
    let policy = Policy {
        by: ShardBy::Windows,
        memory_wait: Duration::from_hours(1),
        key_heads_at_once: None,
        min_piece_cost: 0,
        unit: Unit::KeyHead,
    };
    let mut dispatcher = Dispatcher::new(vec![site], Box::new(bytes), policy);
    for window in 0..100 {
        dispatcher.submit(window, 1000 + window as usize, 1);
    }
    let Next::Load { device, reservation } = dispatcher.next(Duration::ZERO) else {
        panic!("expected the table to be loaded first");
    };
    dispatcher.loaded(device, reservation, Ok(()), Duration::ZERO);
    for second in 0..50 {
        let next = dispatcher.next(Duration::from_secs(second));
        assert!(matches!(next, Next::Wait(_)), "{next:?}");
    }
    // Each window once, plus the numbers of the message at every check.
    assert!(size_calls.load(Ordering::SeqCst) <= 100 + 50, "{size_calls:?}");
    neighbour.store(0, Ordering::SeqCst);
    let next = dispatcher.next(Duration::from_mins(1));
    assert!(matches!(&next, Next::Start(piece) if piece.tokens == 1099), "{next:?}");
}
