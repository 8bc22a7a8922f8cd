//! Faults at any call of a device: the run continues without that device, fails with a message or is killed, and the
//! next run finishes it. The devices are simulated: `docs/devices.md`.

use crate::support::scenarios::Scenario;
use crate::support::{Answer, Workspace, check_accounting, count};

/// Default calls per fault; `LONGSIFT_FAULTS` overrides it with a number or `all`.
const SAMPLE: usize = 3;

/// Devices, one of them with a fault at the `{}`-th call; the exit code of the run, and the step that shows the
/// fault. The second device is so slow that the first gets enough pieces.
const FAULTS: [(&str, i32, Option<&str>); 6] = [
    ("1x64MB:killed={}", -1, None),
    ("1x64MB:killed={},1x64MB:milliseconds=50", -1, None),
    ("1x64MB:lost={}", 4, None),
    ("1x64MB:lost={},1x64MB:milliseconds=50", 0, Some("device_retired")),
    ("1x64MB:out_of_memory={}", 0, Some("out_of_memory")),
    ("1x64MB:failed={},1x64MB:milliseconds=50", 0, Some("device_failed")),
];

fn run(workspace: &Workspace, scenario: &Scenario, devices: &str) -> Answer {
    let mut command = workspace.command(&scenario.arguments);
    command.env("LONGSIFT_SIMULATED_DEVICES", devices).env_remove("CUDA_VISIBLE_DEVICES");
    Answer::from_output(command.output().unwrap())
}

/// Number of calls of a run to its only device.
fn calls(scenario: &Scenario) -> u64 {
    let workspace = Workspace::copy_of(&scenario.before);
    let summary = run(&workspace, scenario, "1x64MB").success().summary();
    assert_eq!(workspace.results(), scenario.results, "the bytes of the processor");
    count(&summary["devices"]["list"][0], "pieces")
}

#[test]
fn a_run_with_a_fault_at_any_device_call_can_be_finished() {
    let sample = match std::env::var("LONGSIFT_FAULTS") {
        Ok(all) if all == "all" => usize::MAX,
        Ok(number) => number.parse().unwrap(),
        Err(_) => SAMPLE,
    };
    let scenario = Scenario::first_run();
    let calls = calls(&scenario);
    assert!(calls > 3, "{calls}");
    for (devices, expected, step) in FAULTS {
        // Two devices share the calls, and the distribution varies.
        let single = !devices.contains(',');
        // These faults occur at every n-th call. At every call, a run would wait for memory, or have no device left
        // to try.
        let repeats = devices.contains("out_of_memory") || devices.contains("failed");
        let all: Vec<u64> = (1 + u64::from(repeats)..calls).collect();
        let chosen: Vec<u64> = all.iter().copied().step_by((all.len() / sample).max(1)).collect();
        let mut hit = 0;
        for at in &chosen {
            let when = devices.replace("{}", &at.to_string());
            let workspace = Workspace::copy_of(&scenario.before);
            let answer = run(&workspace, &scenario, &when);
            let met = if answer.code == 0 {
                let summary = answer.summary();
                check_accounting(&summary);
                assert_eq!(workspace.results(), scenario.results, "{when}");
                step.is_some_and(|step| summary["devices"]["steps"][step].as_u64() > Some(0))
            } else {
                assert_eq!(answer.code, expected, "{when}: {}", answer.to_text());
                let dead = answer.stderr.contains("no device is left");
                assert!(dead || answer.code == -1, "{when}: {}", answer.stderr);
                true
            };
            assert!(met || !single, "{when}: {}", answer.to_text());
            hit += usize::from(met);
            scenario.check_no_mixture(&workspace, &when);
            scenario.finish(&workspace, &when);
        }
        println!("{devices}: the fault occurred in {hit} of {} runs, all finished", chosen.len());
        assert!(hit > 0, "{devices}: the fault never occurred");
    }
}
