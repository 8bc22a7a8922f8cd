//! How long failures are borne, and the waits between attempts.

use std::time::{Duration, Instant};

use longsift_stages::model::ModelProblem;
use reqwest::Url;

use super::Client;
use super::answers::{Trouble, shown};

/// How long one is willing to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Before the second attempt; each further wait is twice as long.
    pub(crate) first_wait: Duration,
    /// The longest wait between two attempts.
    pub(crate) longest_wait: Duration,
    /// For the next byte of an answer.
    pub(crate) silence: Duration,
    /// Without any progress, over all attempts.
    pub(crate) deadline: Duration,
    /// Bytes of a file that may be read in vain from a server that ignores ranges.
    pub(crate) most_skipped_bytes: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            silence: Duration::from_secs(30),
            deadline: Duration::from_mins(5),
            most_skipped_bytes: 16 << 30,
        }
    }
}

/// The attempts at one thing.
pub(super) struct Waiting<'a> {
    client: &'a Client,
    since: Instant,
    wait: Duration,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self { client, since: Instant::now(), wait: client.patience.first_wait }
    }

    /// Waits before the next attempt, or says why there is none.
    pub(super) fn wait(&mut self, url: &Url, trouble: Trouble) -> Result<(), ModelProblem> {
        let (why, asked) = match trouble {
            Trouble::Never(problem) => return Err(problem),
            Trouble::Again(why, asked) => (why, asked),
            Trouble::Expired(why) => (why, None),
        };
        let patience = &self.client.patience;
        let wait = asked.unwrap_or(self.wait).min(patience.longest_wait);
        if self.since.elapsed() + wait > patience.deadline {
            let message = format!(
                "`{}` cannot be read: {why}; tried for {} s",
                shown(url),
                self.since.elapsed().as_secs()
            );
            return Err(ModelProblem::machine(message)
                .with_hint("run again; with `--offline` only what is already here is used"));
        }
        tracing::warn!("`{}`: {why}; trying again in {:.1} s", shown(url), wait.as_secs_f64());
        let until = Instant::now() + wait;
        while let Some(rest) = until.checked_duration_since(Instant::now()) {
            if let Err(Trouble::Never(problem)) = self.client.check_stop() {
                return Err(problem);
            }
            std::thread::sleep(rest.min(Duration::from_millis(100)));
        }
        self.wait = (self.wait * 2).min(patience.longest_wait);
        Ok(())
    }
}
