//! Faults at any file operation: the run fails with a message or tolerates the fault, and the next run finishes it.

use std::collections::BTreeMap;

use crate::support::Workspace;
use crate::support::faults::Fault;
use crate::support::scenarios::Scenario;

/// Default faults per scenario; `LONGSIFT_FAULTS` overrides it with a number or `all`.
const SAMPLE: usize = 16;

/// The faults possible at a kind of operation.
fn actions(kind: &str) -> &'static [&'static str] {
    match kind {
        "write" => &["kill", "torn", "short", "EINTR", "EIO", "ENOSPC"],
        "fsync" => &["kill", "EIO", "ENOSPC"],
        "create" => &["kill", "EACCES", "ENOSPC", "EMFILE", "EROFS"],
        "open" => &["EACCES", "EIO", "EMFILE"],
        "read" => &["kill", "short", "EINTR", "EIO"],
        "rename" | "link" => &["kill", "EIO", "ENOSPC", "EACCES"],
        "unlink" | "rmdir" => &["kill", "EIO", "EACCES"],
        "mkdir" => &["kill", "ENOSPC", "EACCES", "EROFS"],
        "truncate" => &["kill", "EIO"],
        "stat" | "list" => &["EACCES", "EIO"],
        "lock" => &["ENOLCK"],
        "map" => &["ENOMEM"],
        other => panic!("no faults for `{other}`"),
    }
}

fn kind(operation: &str) -> &str {
    operation.split(' ').next().unwrap()
}

/// Every fault at every operation of a scenario; errors once and permanently.
fn all_faults(operations: &[String]) -> Vec<Fault> {
    let faults_at = |(index, operation): (usize, &String)| {
        actions(kind(operation)).iter().flat_map(move |action| {
            let once = Fault { action, at: index + 1, ..Fault::default() };
            let permanent = matches!(*action, "EIO" | "ENOSPC" | "EROFS")
                .then(|| Fault { permanent: true, ..once.clone() });
            std::iter::once(once).chain(permanent)
        })
    };
    operations.iter().enumerate().flat_map(faults_at).collect()
}

/// Returns whether a run may continue normally after a fault.
fn is_harmless(action: &str) -> bool {
    matches!(action, "short" | "EINTR")
}

/// Injects one fault, checks the result and restarts. Returns the affected operation, and the exit code.
fn inject(scenario: &Scenario, fault: &Fault) -> Option<(String, i32)> {
    let workspace = Workspace::copy_of(&scenario.before);
    let traced = workspace.with_fault(&scenario.arguments, Some(fault));
    let operation = traced.operations.get(fault.at - 1)?.clone();
    let when =
        format!("{} at {} ({operation}), permanent: {}", fault.action, fault.at, fault.permanent);
    let answer = traced.answer;
    let message = &answer.stderr;
    // Reading ahead changes the order, so the fault may have hit a kind of operation to which it does not apply.
    let met = actions(kind(&operation)).contains(&fault.action);
    let expected: &[i32] = match fault.action {
        "kill" => &[-1],
        "torn" if met => &[-1],
        "torn" => &[0],
        harmless if is_harmless(harmless) && met => &[0],
        // The author of the pipeline or the owner of the data must fix permissions; other errors may be temporary.
        _ if fault.action == "EACCES" || kind(&operation) == "stat" => &[0, 2, 3, 4],
        _ => &[0, 4],
    };
    assert!(expected.contains(&answer.code), "{when}: exit {}\n{message}", answer.code);
    if answer.code > 0 {
        assert!(message.contains("error: "), "{when}:\n{message}");
    }
    if answer.code == 0 && scenario.is_whole() {
        assert_eq!(
            workspace.results(),
            scenario.results,
            "{when}: the results of an undisturbed run"
        );
    }
    scenario.check_no_mixture(&workspace, &when);
    scenario.finish(&workspace, &when);
    Some((operation, answer.code))
}

/// Injects a sample of all faults sequentially: libtest runs scenarios in parallel.
fn check(scenario: &Scenario) {
    let sample = match std::env::var("LONGSIFT_FAULTS") {
        Ok(all) if all == "all" => usize::MAX,
        Ok(number) => number.parse().unwrap(),
        Err(_) => SAMPLE,
    };
    let workspace = Workspace::copy_of(&scenario.before);
    let traced = workspace.with_fault(&scenario.arguments, None);
    traced.answer.success();
    let all = all_faults(&traced.operations);
    let chosen: Vec<&Fault> = all.iter().step_by((all.len() / sample).max(1)).collect();
    let mut outcomes = BTreeMap::<(String, &str), BTreeMap<i32, usize>>::new();
    for fault in &chosen {
        let Some((operation, code)) = inject(scenario, fault) else { continue };
        let key = (kind(&operation).to_owned(), fault.action);
        *outcomes.entry(key).or_default().entry(code).or_default() += 1;
    }
    let hit: usize = outcomes.values().flat_map(BTreeMap::values).sum();
    println!(
        "{}: {} operations, {} faults possible, {hit} injected, {hit} survived",
        scenario.name,
        traced.operations.len(),
        all.len()
    );
    for ((kind, action), codes) in outcomes {
        println!("  {kind:<9}{action:<8}exit code → times {codes:?}");
    }
    assert!(
        hit > 0 && hit * 10 >= chosen.len() * 9,
        "most faults hit their operation in every run"
    );
}

mod a_run_that_met_any_fault_is_finished_by_the_next_one {
    crate::support::scenarios::for_each_scenario!(super::check);
}

/// Regressions outside the sample: a journal whose lock failed was attributed to another process, and its statistics
/// were lost; a failed read of a footer was reported as damaged data.
#[test]
#[cfg_attr(not(longsift_preload), ignore = "needs LD_PRELOAD: Linux with glibc")]
fn lock_failures_and_failed_footer_reads_are_reported_correctly() {
    for (scenario, action, operation, after) in [
        (Scenario::measure_replaced(), "EIO", "read out.run/scores/", "stat out.run/scores/"),
        (Scenario::guard_tightened(), "ENOLCK", "lock out.run/journal/", ""),
    ] {
        let traced = Workspace::copy_of(&scenario.before).with_fault(&scenario.arguments, None);
        let is_meant = |fault: &Fault| {
            let before = fault.at.checked_sub(2).map_or("", |index| &traced.operations[index]);
            let affected = &traced.operations[fault.at - 1];
            let is_affected = affected.starts_with(operation) && before.starts_with(after);
            fault.action == action && !fault.permanent && is_affected
        };
        let meant = all_faults(&traced.operations).into_iter().filter(is_meant);
        let hit = meant.filter(|fault| inject(&scenario, fault).is_some()).count();
        assert!(hit > 2, "{action} at {operation}: {hit}");
    }
}
