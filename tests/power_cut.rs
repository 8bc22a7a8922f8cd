//! Power cuts at any step of a run: the synced data suffices for the next run to finish it.

use std::collections::BTreeMap;
use std::fs;

use crate::support::disk::{Disk, Seen, State, Survives, changes, workspace_after};
use crate::support::scenarios::Scenario;
use crate::support::{Answer, Workspace};

/// Default states per scenario; `LONGSIFT_POWER_CUTS` overrides it with a number or `all`.
const SAMPLE: usize = 8;

/// Files that must survive once a run has reported success.
const DURABLE_PATHS: [&str; 10] = [
    "out/data/",
    "out.run/scores/",
    "out.run/units/",
    "out.run/dropped/",
    "out.run/selection/",
    "out.run/quarantine/",
    "out.run/manifest.json",
    "out.run/summary.json",
    "out.run/calibration.json",
    "out.run/_SUCCESS",
];

fn durable_files(files: &State) -> BTreeMap<&String, &Vec<u8>> {
    let is_durable = |path: &str| DURABLE_PATHS.iter().any(|start| path.starts_with(start));
    files
        .iter()
        .filter(|(path, _)| is_durable(path))
        .map(|(path, bytes)| (path, &**bytes))
        .collect()
}

fn files_of(workspace: &Workspace) -> State {
    Disk::from_folder(&workspace.path("")).now()
}

/// Finishes the scenario from a sample of all possible states after a power cut.
fn check(scenario: &Scenario) {
    let sample = match std::env::var("LONGSIFT_POWER_CUTS") {
        Ok(all) if all == "all" => usize::MAX,
        Ok(number) => number.parse().unwrap(),
        Err(_) => SAMPLE,
    };
    let workspace = Workspace::copy_of(&scenario.before);
    let record = tempfile::NamedTempFile::new().unwrap();
    let mut command = workspace.interposed(&scenario.arguments);
    command.env("LONGSIFT_FAULT_RECORD", record.path());
    Answer::from_output(command.output().unwrap()).success();
    let changes = changes(&fs::read(record.path()).unwrap());
    let mut disk = Disk::from_folder(&scenario.before.path(""));
    let mut seen = Seen::default();
    let mut states = Vec::new();
    for (step, change) in (0..).zip(&changes) {
        disk.apply(change);
        for survives in [
            Survives::OnlySynced,
            Survives::AllNames,
            Survives::AllBytes,
            Survives::Some { seed: 2 * step },
            Survives::Some { seed: 2 * step + 1 },
            Survives::Apart { seed: 2 * step },
            Survives::Apart { seed: 2 * step + 1 },
        ] {
            let survived = disk.after_power_cut(survives);
            if seen.is_new(&survived) {
                states.push((format!("a power cut after {change:?}, {survives:?}"), survived));
            }
        }
    }
    let (recorded, found) = (disk.now(), files_of(&workspace));
    let differ: Vec<&String> = recorded
        .keys()
        .chain(found.keys())
        .filter(|path| recorded.get(*path) != found.get(*path))
        .collect();
    assert!(differ.is_empty(), "the record of changes lacks {differ:?}");
    let after_success = disk.after_power_cut(Survives::OnlySynced);
    assert_eq!(
        durable_files(&after_success).keys().collect::<Vec<_>>(),
        durable_files(&disk.now()).keys().collect::<Vec<_>>(),
        "{}: all durable files are on disk when the run ends",
        scenario.name
    );
    assert!(durable_files(&after_success) == durable_files(&disk.now()), "{}", scenario.name);
    let chosen: Vec<_> = states.iter().step_by((states.len() / sample).max(1)).collect();
    for (when, survived) in &chosen {
        scenario.finish(&workspace_after(&scenario.before, survived), when);
    }
    println!(
        "{}: {} changes, {} different states of the disk, {} restarted, {} finished",
        scenario.name,
        changes.len(),
        states.len(),
        chosen.len(),
        chosen.len()
    );
}

mod a_run_whose_power_failed_at_any_step_is_finished_by_the_next_one {
    crate::support::scenarios::for_each_scenario!(super::check);
}
