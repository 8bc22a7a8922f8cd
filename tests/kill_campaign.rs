//! Kills at random times: after any number of kills, a run ends with the same bytes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::scenarios::check_nothing_is_left;
use crate::support::tables::{corpus, write_parquet};
use crate::support::{Pipeline, Random, Tiny, Workspace, check_accounting, count, files_below};

/// Default number of kills; `LONGSIFT_KILLS` overrides it.
const KILLS: usize = 12;

/// Default seed of the choices; `LONGSIFT_SEED` overrides it. Times are fractions of a run's duration.
const SEED: u64 = 20_261_122;

/// Maximum kills of one run before it may finish.
const KILLS_OF_A_RUN: usize = 10;

const RUN: [&str; 3] = ["run", "pipeline.yaml", "-q"];
const ANOTHER: [&str; 5] =
    ["run", "pipeline.yaml", "-q", "--set", "stages.filter.keep_fraction=0.9"];

/// Twenty work units in five files, three measures; one row is bad, one too short.
fn workload() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new()
        .with("hidden_size", json!(64))
        .with("num_attention_heads", json!(8))
        .with("num_key_value_heads", json!(2))
        .write(&workspace.path("model"));
    for name in ["a", "b", "c", "sub/d", "sub/e"] {
        let bad = usize::from(name != "b");
        let lengths = [2500, 1700, 900 * bad, 3000, 100, 2048, 2600, 1500];
        let path = workspace.path(&format!("input/{name}.parquet"));
        write_parquet(&path, &corpus(name, &lengths), 2);
    }
    let pipeline = Pipeline::tokens("model", 1024)
        .input("unit_bytes: 1024, max_quarantined_fraction: 0.5")
        .measure("recurrence")
        .measure("lexical");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace
}

/// Campaign against one command.
struct Campaign {
    random: Random,
    kills: usize,
    drained: usize,
}

impl Campaign {
    /// Starts the command and stops it after a random part of `whole`. Returns whether it was still running.
    fn stop_once(&mut self, workspace: &Workspace, arguments: &[&str], whole: Duration) -> bool {
        let threads = (1 + self.random.below(4)).to_string();
        let mut child = workspace.start(&[arguments, &["--threads", &threads]].concat());
        let delay = whole.mul_f64(self.random.below(1 << 20) as f64 / f64::from(1 << 20));
        let begun = Instant::now();
        while begun.elapsed() < delay {
            if let Some(status) = child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let kindly = self.random.below(5) == 0;
        let signal = if kindly { Signal::TERM } else { Signal::KILL };
        // It may have ended already; the signal is then harmless, since the process is not reaped yet.
        let sent = kill_process(Pid::from_child(&child), signal);
        let status = child.wait().unwrap();
        assert!(sent.is_ok() || status.success());
        if status.success() {
            return false;
        }
        self.kills += usize::from(!kindly);
        self.drained += usize::from(kindly);
        true
    }

    /// Stops the command repeatedly, then lets it finish.
    fn finish(
        &mut self,
        workspace: &Workspace,
        arguments: &[&str],
        whole: Duration,
        results: &BTreeMap<String, String>,
    ) {
        for _ in 0..=self.random.below(KILLS_OF_A_RUN as u64) {
            if !self.stop_once(workspace, arguments, whole) {
                break;
            }
        }
        check_accounting(&workspace.longsift(arguments).success().summary());
        assert_eq!(workspace.results(), *results, "after {} kills", self.kills);
        check_nothing_is_left(workspace, "after kills");
    }
}

#[test]
fn a_run_killed_at_random_times_ends_in_the_same_bytes() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let wanted = number("LONGSIFT_KILLS").map_or(KILLS, |kills| kills as usize);
    let seed = number("LONGSIFT_SEED").unwrap_or(SEED);
    println!("LONGSIFT_SEED={seed} repeats the choices of this campaign");
    let before = workload();
    let undisturbed = Workspace::copy_of(&before);
    let timed = |arguments: &[&str]| {
        let begun = Instant::now();
        let summary = undisturbed.longsift(arguments).success().summary();
        (begun.elapsed(), undisturbed.results(), summary)
    };
    let (whole, results, summary) = timed(&RUN);
    assert_eq!(files_below(&undisturbed.path("out.run/units")).len(), 20);
    assert!(count(&summary, "quarantined") > 0 && count(&summary, "windows_kept") > 20);
    let (another_whole, another_results, _) = timed(&ANOTHER);
    let mut campaign = Campaign { random: Random(seed), kills: 0, drained: 0 };
    let (mut runs, begun) = (0, Instant::now());
    while campaign.kills < wanted {
        let workspace = Workspace::copy_of(&before);
        campaign.finish(&workspace, &RUN, whole, &results);
        runs += 1;
        if campaign.random.below(3) == 0 {
            campaign.finish(&workspace, &ANOTHER, another_whole, &another_results);
            runs += 1;
        }
    }
    println!(
        "{} kills and {} drains over {runs} runs of 20 units (one takes {:.1} s) in {:.0} s: every run ended in the \
         bytes of an undisturbed one",
        campaign.kills,
        campaign.drained,
        whole.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
}
