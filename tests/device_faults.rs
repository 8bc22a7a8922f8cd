//! A fault at any call of a device: the run goes on without that device, or it fails with a message or is killed, and the
//! next one finishes it. The devices are simulated: `docs/devices.md`.

use crate::support::scenarios::Scenario;
use crate::support::{Answer, Workspace, check_accounting, count};

/// Calls per fault where `LONGSIFT_FAULTS` says nothing else: another number, or `all`.
const SAMPLE: usize = 3;

/// Devices of which one meets the fault at the `{}`-th call, and how such a run ends.
const FAULTS: [(&str, i32); 6] = [
    ("1x64MB:killed={}", -1),
    ("1x64MB,1x64MB:killed={}", -1),
    ("1x64MB:lost={}", 4),
    ("1x64MB:lost={},1x64MB", 0),
    ("1x64MB:out_of_memory={}", 0),
    ("1x64MB:failed={},1x64MB", 0),
];

fn run(workspace: &Workspace, scenario: &Scenario, devices: &str) -> Answer {
    let mut command = workspace.command(&scenario.arguments);
    command.env("LONGSIFT_SIMULATED_DEVICES", devices).env_remove("CUDA_VISIBLE_DEVICES");
    Answer::of(command.output().unwrap())
}

/// How many calls a run makes to its one device.
fn calls(scenario: &Scenario) -> u64 {
    let workspace = Workspace::copy_of(&scenario.before);
    let summary = run(&workspace, scenario, "1x64MB").success().summary();
    assert_eq!(workspace.results(), scenario.results, "the bytes of the processor");
    count(&summary["devices"]["list"][0], "pieces")
}

#[test]
fn a_run_that_met_a_fault_at_any_call_of_a_device_is_finished_by_the_next_one() {
    let sample = match std::env::var("LONGSIFT_FAULTS") {
        Ok(all) if all == "all" => usize::MAX,
        Ok(number) => number.parse().unwrap(),
        Err(_) => SAMPLE,
    };
    let scenario = Scenario::first_run();
    let calls = calls(&scenario);
    assert!(calls > 3, "{calls}");
    for (devices, expected) in FAULTS {
        // With two devices the calls are shared, and which gets how many is chance.
        let chance = devices.contains(',');
        // These fall on every so many-th call: on every single one, a run waits for memory, or nothing is left to try.
        let repeats = devices.contains("out_of_memory") || devices.contains("failed");
        let all: Vec<u64> = (1 + u64::from(repeats)..calls).collect();
        let mut hit = 0;
        let chosen = all.iter().step_by((all.len() / sample).max(1));
        let tried = chosen.clone().count();
        for at in chosen {
            let when = devices.replace("{}", &at.to_string());
            let workspace = Workspace::copy_of(&scenario.before);
            let answer = run(&workspace, &scenario, &when);
            let met = answer.code == expected;
            assert!(met || (chance && answer.code == 0), "{when}: {}", answer.all());
            hit += usize::from(met);
            if answer.code == 0 {
                check_accounting(&answer.summary());
                assert_eq!(workspace.results(), scenario.results, "{when}");
            } else if answer.code > 0 {
                assert!(answer.stderr.contains("no device is left"), "{when}: {}", answer.stderr);
            }
            scenario.check_no_mixture(&workspace, &when);
            scenario.finish(&workspace, &when);
        }
        println!("{devices}: exit code {expected} in {hit} of {tried} runs, all finished");
    }
}
