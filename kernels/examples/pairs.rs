//! Causal (query, key) pairs a second of every kernel on one thread, beside the processor's own limit.
//!
//! Seconds are the thread's processor time where Linux tells it, so that other programs disturb the figures less.
//!
//! `cargo run --release -p longsift-kernels --example pairs [TOKENS]`
#![expect(clippy::print_stdout, reason = "the table is what the program is for")]

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use longsift_kernels::{
    AttentionShape, Kernel, LogitRules, Measure, QueryKeySource, attention_statistics, project,
};

const KEY_HEADS: usize = 2;
const GROUP: usize = 4;

struct Waves {
    head_dim: usize,
}

impl Waves {
    fn fill(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            for (d, value) in out.iter_mut().enumerate() {
                let bits = (row * 7919 + d * 104_729 + head * 31).wrapping_mul(2_654_435_761) >> 7
                    & 0xFFFF;
                *value = bits as f32 / 32768.0 - 1.0;
            }
        }
    }
}

impl QueryKeySource for Waves {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(head, rows, out);
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(100 + head, rows, out);
    }
}

/// A stopwatch of this thread's processor time, or of the wall's where that is not known.
struct Clock {
    wall: Instant,
    processor: Option<u64>,
}

impl Clock {
    fn start() -> Self {
        Self { wall: Instant::now(), processor: processor_nanoseconds() }
    }

    fn seconds(&self) -> f64 {
        match (self.processor, processor_nanoseconds()) {
            (Some(start), Some(end)) if end > start => (end - start) as f64 / 1e9,
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }
}

fn processor_nanoseconds() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

/// Multiply-adds a second of twelve independent chains of 256-bit fused operations.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_peak() -> f64 {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps};
    const ROUNDS: usize = 100_000_000;
    let (factor, term) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
    let mut chains = [_mm256_set1_ps(1.0); 12];
    let start = Clock::start();
    for _ in 0..ROUNDS {
        for chain in &mut chains {
            *chain = _mm256_fmadd_ps(*chain, factor, term);
        }
    }
    let seconds = start.seconds();
    black_box(chains);
    (ROUNDS * 12 * 8) as f64 / seconds
}

fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if Kernel::Avx2F32.is_supported() {
        // SAFETY: the line above saw AVX2 and FMA.
        return unsafe { fma_peak() };
    }
    f64::NAN
}

/// The best of three: the machine's neighbours only ever slow it down.
fn best(mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let start = Clock::start();
        run();
        start.seconds()
    };
    (0..3).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min)
}

fn main() {
    let tokens = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4096);
    let pool =
        rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool of one starts");
    pool.install(|| table(tokens));
}

fn table(tokens: usize) {
    println!("{tokens} tokens, one thread\n");
    println!("kernel        head_dim   Gpairs/s   GFMA/s   of the AVX2 limit");
    for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported()) {
        for head_dim in [64, 128] {
            let shape = AttentionShape {
                tokens,
                query_heads: KEY_HEADS * GROUP,
                key_heads: KEY_HEADS,
                head_dim,
            };
            let measure = Measure { distance: tokens - 3 * (tokens / 4), rows: false };
            let rules = LogitRules::causal(head_dim);
            let limit = peak();
            let seconds = best(|| {
                black_box(attention_statistics(
                    kernel,
                    &shape,
                    &rules,
                    &measure,
                    &Waves { head_dim },
                ));
            });
            let limit = limit.max(peak());
            let pairs = (tokens * (tokens + 1) / 2 * shape.query_heads) as f64 / seconds;
            line(
                kernel,
                &format!("{head_dim:8}   {:8.3}", pairs / 1e9),
                pairs * head_dim as f64,
                limit,
            );
        }
    }
    println!("\nprojection, 512 rows of 2048 to 1024");
    let (rows, hidden, outputs) = (512, 2048, 1024);
    let (x, weights) = (vec![0.5_f32; rows * hidden], vec![0.25_f32; outputs * hidden]);
    let mut out = vec![0.0; rows * outputs];
    for &kernel in Kernel::ALL.iter().filter(|kernel| kernel.is_supported()) {
        let limit = peak();
        let seconds = best(|| project(kernel, &x, &weights, None, hidden, black_box(&mut out)));
        line(
            kernel,
            &" ".repeat(19),
            (rows * hidden * outputs) as f64 / seconds,
            limit.max(peak()),
        );
    }
}

fn line(kernel: Kernel, middle: &str, rate: f64, limit: f64) {
    println!(
        "{:13} {middle} {:8.1}   {:5.1} % of {:.1}",
        kernel.name(),
        rate / 1e9,
        100.0 * rate / limit,
        limit / 1e9
    );
}
