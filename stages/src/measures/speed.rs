//! How fast windows are measured, beside a general compressor on the same text in the same seconds.

use std::hint::black_box;
use std::time::Duration;

use longsift_kernels::recurrence::Scan;
use rustix::time::{ClockId, clock_gettime};

use super::compression::zlib_bytes;
use super::recurrence::Recurrence;

/// Rates of one core: by the processor time of the calling thread, which other programs do not lengthen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Tokens a second of recurrence.
    pub tokens: f64,
    /// Bytes a second of recurrence: of the text that the tokens stand for.
    pub text: f64,
    /// Bytes a second of a zlib stream of level 6 for each window.
    pub zlib: f64,
}

/// Measures the recurrence of windows, and compresses their text, in turn: ids and text of each window. Takes about twice
/// `each` of processor time, and once over all windows at least.
pub fn recurrence_speed(windows: &[(&[u32], &[u8])], each: Duration) -> Speed {
    let (settings, mut scan) = (Recurrence::default(), Scan::default());
    let (mut recurrence, mut zlib) = (Timed::default(), Timed::default());
    let tokens: usize = windows.iter().map(|(ids, _)| ids.len()).sum();
    let bytes: usize = windows.iter().map(|(_, text)| text.len()).sum();
    while recurrence.spent <= each || zlib.spent <= each {
        // Whichever is behind: both take the same time, the faster one in more rounds.
        if recurrence.spent <= zlib.spent {
            recurrence.round(|| {
                for (ids, _) in windows {
                    black_box(settings.counts(ids, &mut scan));
                }
            });
        } else {
            zlib.round(|| {
                for (_, text) in windows {
                    black_box(zlib_bytes(text));
                }
            });
        }
    }
    Speed { tokens: recurrence.rate(tokens), text: recurrence.rate(bytes), zlib: zlib.rate(bytes) }
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
        assert!(speed.zlib.is_finite() && speed.zlib > 0.0, "{speed:?}");
    }
}
