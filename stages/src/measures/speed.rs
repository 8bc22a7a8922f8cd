//! Speed of the recurrence measure, compared with a general compressor on the same text at the same time.

use std::hint::black_box;
use std::time::Duration;

use longsift_kernels::bench::Clock;
use longsift_kernels::recurrence::RecurrenceScan;

pub use super::compression::LEVEL;
use super::compression::zlib_bytes;
use super::recurrence::Recurrence;

/// Rates of one core, by processor time of the calling thread, which excludes other programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// Tokens per second of recurrence.
    pub tokens: f64,
    /// Bytes of text per second of recurrence.
    pub text: f64,
    /// Time of recurrence relative to counting without the four shares of the whole window: 1.4 is 40 % more.
    pub window_counts: f64,
    /// Bytes per second of a zlib stream of level 6 for each window by zlib-rs, which computes the gzip ratio here and is
    /// about twice as fast as zlib.
    pub zlib_rs: f64,
}

/// Measures the recurrence of windows and compresses their text, alternately. `windows`: ids and text of each. Takes
/// about three times `each` of processor time, and at least one pass over all windows.
pub fn recurrence_speed(windows: &[(&[u32], &[u8])], each: Duration) -> Speed {
    let mut contenders = contenders();
    loop {
        // The contender with the least time goes next, so that all take equal time and the faster ones do more
        // rounds.
        let next = contenders.iter_mut().min_by_key(|contender| contender.spent);
        let next = next.expect("there are three contenders");
        if next.spent > each {
            break;
        }
        next.round(windows);
    }
    let tokens: usize = windows.iter().map(|(ids, _)| ids.len()).sum();
    let bytes: usize = windows.iter().map(|(_, text)| text.len()).sum();
    let [recurrence, without_window_counts, zlib_rs] = contenders;
    Speed {
        tokens: recurrence.rate(tokens),
        text: recurrence.rate(bytes),
        window_counts: without_window_counts.rate(tokens) / recurrence.rate(tokens),
        zlib_rs: zlib_rs.rate(bytes),
    }
}

/// Recurrence, recurrence without counts over the whole window, and the compressor.
fn contenders() -> [Contender; 3] {
    let (settings, mut scan) = (Recurrence::default(), RecurrenceScan::default());
    let recurrence = Contender::new(move |ids, _| {
        black_box(settings.all_counts(ids, &mut scan));
    });
    let (settings, mut scan) = (Recurrence::default(), RecurrenceScan::default());
    let without_window_counts = Contender::new(move |ids, _| {
        black_box(settings.counts(ids, &mut scan));
    });
    let zlib_rs = Contender::new(|_, text| {
        black_box(zlib_bytes(text));
    });
    [recurrence, without_window_counts, zlib_rs]
}

/// Work on the ids and the text of a window.
type WindowWork = Box<dyn FnMut(&[u32], &[u8])>;

/// Rounds of the same work.
struct Contender {
    work: WindowWork,
    rounds: u32,
    spent: Duration,
}

impl Contender {
    fn new(work: impl FnMut(&[u32], &[u8]) + 'static) -> Self {
        Self { work: Box::new(work), rounds: 0, spent: Duration::ZERO }
    }

    fn round(&mut self, windows: &[(&[u32], &[u8])]) {
        let clock = Clock::start();
        for (ids, text) in windows {
            (self.work)(ids, text);
        }
        self.rounds += 1;
        self.spent += Duration::from_secs_f64(clock.seconds());
    }

    fn rate(&self, of_a_round: usize) -> f64 {
        f64::from(self.rounds) * of_a_round as f64 / self.spent.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_measured_on_the_same_text() {
        let ids: Vec<u32> = (0..4096).map(|id| id * id % 977).collect();
        let text = vec![b'a'; 3 * ids.len()];
        let speed = recurrence_speed(&[(&ids, &text)], Duration::from_millis(1));
        assert!((speed.text / speed.tokens - 3.0).abs() < 1e-9, "{speed:?}");
        assert!(speed.window_counts.is_finite() && speed.window_counts > 0.0, "{speed:?}");
        assert!(speed.zlib_rs.is_finite() && speed.zlib_rs > 0.0, "{speed:?}");
    }
}
