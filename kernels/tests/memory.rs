//! Compares `window_bytes` with the heap memory of a window. The only test of its binary, because the allocator counts
//! the whole process.

#[path = "common/heap.rs"]
mod heap;

use std::ops::Range;

use longsift_kernels::{
    AttentionShape, ElementType, Kernel, LogitRules, QueryKeySource, attention_statistics,
    window_bytes,
};

struct Flat;

impl QueryKeySource for Flat {
    fn queries(&self, _: usize, _: Range<usize>, out: &mut [f32]) {
        out.fill(0.25);
    }
    fn keys(&self, _: usize, _: Range<usize>, out: &mut [f32]) {
        out.fill(0.25);
    }
}

/// Returns the peak heap memory of one window on `pool`, excluding what was allocated before.
fn peak(pool: &rayon::ThreadPool, kernel: Kernel, shape: &AttentionShape) -> u64 {
    let rules = LogitRules::causal(shape.head_dim);
    let distance = shape.tokens / 4;
    let measured = || attention_statistics(kernel, shape, &rules, distance, &Flat);
    heap::peak_of(|| pool.install(measured)).0
}

#[test]
fn a_window_stays_within_its_estimate_and_near_it() {
    let pool_of = |threads: usize| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool starts")
    };
    for threads in [1, 2] {
        let pool = pool_of(threads);
        // After a first run, the memory that rayon and the threads keep is allocated.
        let first = AttentionShape { tokens: 1500, query_heads: 8, key_heads: 4, head_dim: 64 };
        peak(&pool, Kernel::PortableF32, &first);
        for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported()) {
            // Several key heads packed together, then one at a time; large and odd groups; windows of one block.
            for (tokens, query_heads, key_heads, head_dim) in [
                (1500, 8, 4, 64),
                (26_000, 1, 1, 16),
                (900, 32, 1, 64),
                (40, 12, 12, 128),
                (40, 7, 1, 4),
                (40, 1, 1, 8),
                (96, 71, 1, 64),
            ] {
                let shape = AttentionShape { tokens, query_heads, key_heads, head_dim };
                let used = peak(&pool, kernel, &shape);
                // A small window may be finished before a second thread wakes up.
                let min = window_bytes(kernel, &shape, 1) * 6 / 10;
                let max = window_bytes(kernel, &shape, threads);
                assert!(
                    (min..=max).contains(&used),
                    "{} {shape:?} on {threads} threads: used {used}, expected {min} to {max}",
                    kernel.name()
                );
            }
        }
    }
    // 32,768 tokens of Llama 3.1 8B: key heads take turns, so one of the eight is representative.
    let whole = AttentionShape { tokens: 32_768, query_heads: 32, key_heads: 8, head_dim: 128 };
    let one = AttentionShape { query_heads: 4, key_heads: 1, ..whole };
    let used = peak(&pool_of(2), Kernel::detect(ElementType::F32), &one);
    for &kernel in Kernel::ALL.iter().filter(|kernel| !kernel.is_cuda()) {
        for threads in [1, 2, 16, 64] {
            let bytes = window_bytes(kernel, &whole, threads);
            assert!(bytes < 200_000_000, "{} {threads} threads: {bytes}", kernel.name());
        }
    }
    assert!(used < 100_000_000, "one head of eight used {used}");
}
