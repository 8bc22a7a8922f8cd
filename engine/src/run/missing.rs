//! Refuses a selection whose scores are incomplete.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::{parallel, text};
use crate::plan::{Plan, shard};
use crate::run_directory::facts::Fingerprints;
use crate::run_directory::units::{self, UnitRecord};

const MAX_LISTED: usize = 20;

/// Refuses a selection while work units lack scores or statistics: names the first ones, and lists all in `missing.json`.
pub(super) fn refuse_missing(
    plan: &Plan,
    valid: &[Option<UnitRecord>],
    wanted: &Fingerprints,
) -> Result<()> {
    let list = plan.directory.missing();
    let missing: Vec<usize> = (0..valid.len()).filter(|&unit| valid[unit].is_none()).collect();
    if missing.is_empty() {
        return plan.directory.remove_missing_list();
    }
    let count = plan
        .directory
        .read_json::<Value>(&plan.directory.plan())?
        .and_then(|plan| u32::try_from(plan["shards"].as_u64()?).ok())
        .filter(|&count| count > 0);
    let shards = count.map(|count| shard::shards_of(&plan.units, count));
    let shard = |unit: usize| shards.as_ref().map(|shards| shards[unit]);
    let lines = missing.iter().map(|&index| {
        let unit = &plan.units[index];
        json!({
            "unit": unit.name(),
            "file": unit.file_path,
            "row_groups": [unit.row_groups.start, unit.row_groups.end],
            "shard": shard(index),
        })
    });
    let all = json!({ "shards": count, "missing": lines.collect::<Vec<_>>() });
    plan.directory.write_json(&list, &all)?;
    let (opened, windows) = missing_statistics(plan, &missing, wanted)?;
    let what =
        if opened == missing.len() { "lack statistics of a measure" } else { "have no scores" };
    let mut problem = Diagnostic::error(
        Blame::Machine,
        format!(
            "{} of {} work units in `{}` {what}",
            text::count(missing.len() as u64),
            text::count(valid.len() as u64),
            plan.directory.root.display()
        ),
    );
    problem = problem.notes(windows.into_iter().map(|(measure, windows)| {
        format!("`{measure}` is missing for up to {} windows", text::count(windows))
    }));
    problem = problem.notes(missing.iter().take(MAX_LISTED).map(|&index| {
        let shard = shard(index).map_or(String::new(), |shard| format!(", shard {shard}"));
        format!("{}{shard}", plan.units[index].described_rows())
    }));
    if missing.len() > MAX_LISTED {
        problem = problem.note(format!("the complete list is in `{}`", list.display()));
    }
    let hint = match count {
        Some(count) => {
            let shards: BTreeSet<u32> = missing.iter().filter_map(|&index| shard(index)).collect();
            let more = if shards.len() > MAX_LISTED { ", …" } else { "" };
            let shards: Vec<String> = shards.iter().take(MAX_LISTED).map(u32::to_string).collect();
            format!(
                "score them first: `--phase score --shard i/{count}` with i = {}{more}",
                shards.join(", ")
            )
        }
        None => "score them first: `--phase score --shard i/n` for every i below n".to_owned(),
    };
    Err(problem.hint(hint).into())
}

/// Counts the units that have scores but lack some statistics; and by measure, the windows that lack statistics at most.
fn missing_statistics(
    plan: &Plan,
    missing: &[usize],
    wanted: &Fingerprints,
) -> Result<(usize, BTreeMap<String, u64>)> {
    let records = parallel::in_order(missing.len(), plan.directory.concurrency(1), |index| {
        let unit = &plan.units[missing[index]];
        let must_reopen = |record: &UnitRecord| record.must_reopen(wanted);
        units::usable_record(&plan.directory, &plan.dataset, unit, must_reopen)
    })?;
    let (mut opened, mut by_measure) = (0, BTreeMap::<String, u64>::new());
    for record in records.into_iter().flatten() {
        opened += 1;
        for (measure, windows) in record.missing(wanted) {
            *by_measure.entry(measure).or_default() += windows;
        }
    }
    Ok((opened, by_measure))
}
