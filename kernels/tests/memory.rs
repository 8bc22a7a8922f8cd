//! `window_bytes` against the heap that a window really takes. Alone in its binary: the allocator counts everything.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use longsift_kernels::{
    AttentionShape, Kernel, LogitRules, Measure, QueryKeySource, attention_statistics, window_bytes,
};

/// The system's allocator, with a count of live bytes and their maximum.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters do not touch memory that is handed out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Flat;

impl QueryKeySource for Flat {
    fn queries(&self, _: usize, _: Range<usize>, out: &mut [f32]) {
        out.fill(0.25);
    }
    fn keys(&self, _: usize, _: Range<usize>, out: &mut [f32]) {
        out.fill(0.25);
    }
}

#[test]
fn a_window_stays_within_its_estimate_and_near_it() {
    const THREADS: usize = 2;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().expect("a pool starts");
    // Several key heads packed at once, then one at a time; a large group; a window of one block.
    for (tokens, query_heads, key_heads, head_dim) in
        [(1500, 8, 4, 64), (30_000, 1, 1, 16), (900, 32, 1, 64), (40, 12, 12, 128)]
    {
        let shape = AttentionShape { tokens, query_heads, key_heads, head_dim };
        let (rules, measure) =
            (LogitRules::causal(head_dim), Measure { distance: tokens / 4, rows: true });
        let run = || attention_statistics(Kernel::detect(), &shape, &rules, &measure, &Flat);
        pool.install(run); // what rayon and the threads keep for themselves is there after the first run
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        pool.install(run);
        let used = (PEAK.load(Ordering::Relaxed) - before) as u64;
        // A small window may be done before a second thread has woken.
        let (least, most) = (window_bytes(&shape, 1) * 6 / 10, window_bytes(&shape, THREADS));
        assert!(
            (least..=most).contains(&used),
            "{shape:?}: used {used}, expected {least} to {most}"
        );
    }
}
