//! How fast windows are measured, beside a general compressor on the same text in the same seconds.

use std::hint::black_box;
use std::time::Duration;

use longsift_kernels::bench::SystemZlib;
use longsift_kernels::recurrence::Scan;
use rustix::time::{ClockId, clock_gettime};

use super::compression::zlib_bytes;
use super::recurrence::Recurrence;

/// The level of the compressors.
pub const LEVEL: i32 = 6;

/// Rates of one core: by the processor time of the calling thread, which other programs do not lengthen.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Tokens a second of recurrence.
    pub tokens: f64,
    /// Bytes a second of recurrence: of the text that the tokens stand for.
    pub text: f64,
    /// Bytes a second of a zlib stream of level 6 for each window, by compressor: zlib-rs, which measures compression here and is two
    /// to three times as fast as zlib, and the zlib of this system where it has one.
    pub compressors: Vec<(String, f64)>,
}

/// Measures the recurrence of windows, and compresses their text, in turn: ids and text of each window. Takes about three times
/// `each` of processor time, and once over all windows at least.
pub fn recurrence_speed(windows: &[(&[u32], &[u8])], each: Duration) -> Speed {
    let (settings, mut scan) = (Recurrence::default(), Scan::default());
    let (system, mut room) = (SystemZlib::load(), Vec::new());
    let names = std::iter::once("zlib-rs".to_owned())
        .chain(system.iter().map(|zlib| format!("zlib {}", zlib.version())));
    let names: Vec<String> = names.collect();
    let mut turns: Vec<Timed> = (0..=names.len()).map(|_| Timed::default()).collect();
    loop {
        // Whoever is behind: all take the same time, the faster ones in more rounds.
        let place = (0..turns.len()).min_by_key(|place| turns[*place].spent);
        let place = place.expect("recurrence is there");
        if turns[place].spent > each {
            break;
        }
        turns[place].round(|| {
            for (ids, text) in windows {
                match (place, &system) {
                    (0, _) => _ = black_box(settings.counts(ids, &mut scan)),
                    (2, Some(zlib)) => {
                        black_box(zlib.compressed_bytes(text, LEVEL, &mut room));
                    }
                    _ => _ = black_box(zlib_bytes(text)),
                }
            }
        });
    }
    let tokens: usize = windows.iter().map(|(ids, _)| ids.len()).sum();
    let bytes: usize = windows.iter().map(|(_, text)| text.len()).sum();
    let rates = turns[1..].iter().map(|turns| turns.rate(bytes));
    Speed {
        tokens: turns[0].rate(tokens),
        text: turns[0].rate(bytes),
        compressors: names.into_iter().zip(rates).collect(),
    }
}

/// Rounds of the same work.
#[derive(Default)]
struct Timed {
    rounds: u32,
    spent: Duration,
}

impl Timed {
    fn round(&mut self, work: impl FnOnce()) {
        let start = processor_time();
        work();
        self.rounds += 1;
        self.spent += processor_time().saturating_sub(start);
    }

    fn rate(&self, of_a_round: usize) -> f64 {
        f64::from(self.rounds) * of_a_round as f64 / self.spent.as_secs_f64()
    }
}

/// Processor time of this thread so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_same_text() {
        let ids: Vec<u32> = (0..4096).map(|id| id * id % 977).collect();
        let text = vec![b'a'; 3 * ids.len()];
        let speed = recurrence_speed(&[(&ids, &text)], Duration::from_millis(1));
        assert!((speed.text / speed.tokens - 3.0).abs() < 1e-9, "{speed:?}");
        assert_eq!(speed.compressors[0].0, "zlib-rs");
        for (name, rate) in &speed.compressors {
            assert!(name.starts_with("zlib") && rate.is_finite() && *rate > 0.0, "{speed:?}");
        }
    }
}
