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
    /// Bytes per second of a zlib stream of level 6 by zlib-rs, which computes the gzip ratio.
    pub zlib_rs: f64,
}

/// Measures the recurrence of windows and compresses their text, alternately. `windows`: ids and text of each. Takes
/// about three times `each` of processor time, and at least one pass over all windows.
pub fn recurrence_speed(windows: &[(&[u32], &[u8])], each: Duration) -> Speed {
    let (settings, mut scan, mut counts) =
        <(Recurrence, RecurrenceScan, RecurrenceScan)>::default();
    let mut work = |contender: usize, ids: &[u32], text: &[u8]| match contender {
        0 => _ = black_box(settings.all_counts(ids, &mut scan)),
        1 => _ = black_box(settings.counts(ids, &mut counts)),
        _ => _ = black_box(zlib_bytes(text)),
    };
    let (mut rounds, mut seconds) = ([0.0; 3], [0.0; 3]);
    // The contender with the least time goes next, so that all take equal time and the faster ones do more rounds.
    let least =
        |seconds: &[f64; 3]| (0..3_usize).min_by(|a, b| seconds[*a].total_cmp(&seconds[*b]));
    while let Some(next) = least(&seconds).filter(|next| seconds[*next] <= each.as_secs_f64()) {
        let clock = Clock::start();
        for (ids, text) in windows {
            work(next, ids, text);
        }
        rounds[next] += 1.0;
        seconds[next] += clock.seconds();
    }
    let tokens: usize = windows.iter().map(|(ids, _)| ids.len()).sum();
    let bytes: usize = windows.iter().map(|(_, text)| text.len()).sum();
    let rate =
        |contender: usize, amount: usize| rounds[contender] * amount as f64 / seconds[contender];
    Speed {
        tokens: rate(0, tokens),
        text: rate(0, bytes),
        window_counts: rate(1, tokens) / rate(0, tokens),
        zlib_rs: rate(2, bytes),
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
