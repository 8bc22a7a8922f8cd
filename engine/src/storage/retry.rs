//! Retries of requests to stores and servers: deadlines and delays.

use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{Either, select};

use super::error::{ErrorKind, StorageError};
use crate::base::stop::Stop;

/// Interval between two checks for a signal.
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// Time for a pending request to finish after a signal.
const STOP_GRACE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// Delay before the second attempt; doubled for each further one.
    pub(crate) first_wait: Duration,
    pub(crate) max_wait: Duration,
    /// Maximum time without progress over all attempts.
    pub(crate) deadline: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_millis(250),
            max_wait: Duration::from_secs(30),
            deadline: Duration::from_mins(5),
        }
    }
}

impl RetryPolicy {
    /// Returns the delay before the next attempt, `elapsed` after the first; `None` if it would exceed the deadline. A delay
    /// that the server requests never shortens `delay`: a server may repeatedly request 0 seconds.
    fn wait(
        &self,
        delay: Duration,
        requested: Option<Duration>,
        elapsed: Duration,
    ) -> Option<Duration> {
        let wait = delay.min(self.max_wait).max(requested.unwrap_or_default());
        (elapsed.saturating_add(wait) <= self.deadline).then_some(wait)
    }
}

pub(super) struct Retry<'a> {
    policy: &'a RetryPolicy,
    stop: &'a Stop,
    since: Instant,
    wait: Duration,
}

impl<'a> Retry<'a> {
    pub(super) fn new(policy: &'a RetryPolicy, stop: &'a Stop) -> Self {
        Self { policy, stop, since: Instant::now(), wait: policy.first_wait }
    }

    /// Waits before the next attempt. Fails if the failure is permanent, the deadline has passed, or a signal was received.
    pub(super) async fn wait(&mut self, error: StorageError) -> Result<(), StorageError> {
        if error.kind != ErrorKind::Transient {
            return Err(error);
        }
        let Some(wait) = self.policy.wait(self.wait, error.retry_after, self.since.elapsed())
        else {
            let tried = self.since.elapsed().as_secs();
            let source = format!("{}; tried for {tried} s", error.source).into();
            return Err(StorageError { source, ..error });
        };
        tracing::warn!("{error}; trying again in {:.1} s", wait.as_secs_f64());
        let until = Instant::now() + wait;
        while let Some(rest) = until.checked_duration_since(Instant::now()) {
            if self.stop.check().is_err() {
                let source = format!("{}; stopped by a signal", error.source).into();
                return Err(StorageError { kind: ErrorKind::Stopped, source, hint: None, ..error });
            }
            tokio::time::sleep(rest.min(STOP_INTERVAL)).await;
        }
        self.wait = (self.wait * 2).min(self.policy.max_wait);
        Ok(())
    }
}

pub(super) async fn retry<T, F: Future<Output = Result<T, StorageError>>>(
    stop: &Stop,
    policy: &RetryPolicy,
    stopped: impl Fn() -> StorageError,
    mut attempt: impl FnMut() -> F,
) -> Result<T, StorageError> {
    let mut retry = Retry::new(policy, stop);
    loop {
        match unless_stopped(stop, &stopped, attempt()).await {
            Ok(done) => return Ok(done),
            Err(error) => retry.wait(error).await?,
        }
    }
}

/// Returns the answer, or `stopped` some time after a signal, even if the server does not respond.
pub(super) async fn unless_stopped<T>(
    stop: &Stop,
    stopped: impl FnOnce() -> StorageError,
    answer: impl Future<Output = Result<T, StorageError>>,
) -> Result<T, StorageError> {
    let signal = async {
        while stop.check().is_ok() {
            tokio::time::sleep(STOP_INTERVAL).await;
        }
        tokio::time::sleep(STOP_GRACE).await;
    };
    match select(pin!(answer), pin!(signal)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(stopped()),
    }
}

/// Parses `Retry-After`: seconds, or a date (zero if it has passed). Other text is ignored.
pub(super) fn retry_after(value: Option<&str>) -> Option<Duration> {
    retry_after_at(value, SystemTime::now())
}

fn retry_after_at(value: Option<&str>, now: SystemTime) -> Option<Duration> {
    let value = value?.trim();
    let seconds = value.parse().ok().map(Duration::from_secs);
    let date = || httpdate::parse_http_date(value).ok();
    seconds.or_else(|| Some(date()?.duration_since(now).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_delays_are_respected_up_to_the_deadline() {
        let policy = RetryPolicy::default();
        let seconds = Duration::from_secs;
        let wait = |own, requested: Option<u64>, elapsed| {
            policy.wait(seconds(own), requested.map(seconds), seconds(elapsed))
        };
        assert_eq!(wait(1, None, 0), Some(seconds(1)));
        assert_eq!(wait(60, None, 0), Some(seconds(30)));
        assert_eq!(wait(1, Some(0), 0), Some(seconds(1)));
        assert_eq!(wait(8, Some(2), 0), Some(seconds(8)));
        assert_eq!(wait(1, Some(120), 0), Some(seconds(120)));
        assert_eq!(wait(1, Some(120), 180), Some(seconds(120)));
        assert_eq!(wait(1, Some(120), 181), None);
        assert_eq!(wait(1, Some(u64::MAX), 1), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let requested = |value| retry_after_at(Some(value), now).map(|wait| wait.as_secs());
        assert_eq!(requested(" 120 "), Some(120));
        assert_eq!(requested("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0));
        assert_eq!(requested("Sun, 06 Nov 1994 08:51:00 GMT"), Some(83));
        assert_eq!(requested("Sat, 06 Nov 1993 08:49:37 GMT"), Some(0), "the date has passed");
        for nothing in ["", "soon", "-1", "1.5", "99999999999999999999"] {
            assert_eq!(requested(nothing), None, "{nothing}");
        }
        assert_eq!(retry_after_at(None, now), None);
    }
}
