//! Checks that existing scores were made with the same settings.

use longsift_kernels::Kernel;
use longsift_stages::model::BackendName;
use serde_json::Value;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::Plan;
use crate::run_directory::facts::Identity;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::pipeline_lock::PipelineLock;

/// Describes why `plan` would mix scores of other settings with those in `scores`. Measures in `remeasure` may differ.
pub(super) fn incompatible_scores(
    plan: &Plan,
    scores: &RunDirectory,
    now: &Identity,
    remeasure: &[String],
) -> Result<Option<Diagnostic>> {
    if let Some(unknown) = remeasure.iter().find(|name| !now.measures.contains_key(*name)) {
        let known: Vec<String> = now.measures.keys().map(|name| format!("`{name}`")).collect();
        let message = format!("the pipeline has no measure `{unknown}` to measure again");
        let hint = format!("its measures are {}", known.join(", "));
        return Ok(Some(Diagnostic::error(Blame::Pipeline, message).hint(hint)));
    }
    let path = scores.lock_file();
    let Some(before) = PipelineLock::read(&path)? else {
        let message = format!("lock `{}` not found", path.display());
        let missing = Diagnostic::error(Blame::Pipeline, message)
            .hint("`--scores-from` takes the run directory of another run");
        return Ok(plan.options.scores_from.is_some().then_some(missing));
    };
    let missing = now.measures.keys().filter(|name| !before.identity.measures.contains_key(*name));
    let missing: Vec<String> = missing.map(|name| format!("`{name}`")).collect();
    if plan.options.scores_from.is_some() && !missing.is_empty() {
        let (root, names) = (scores.root.display(), missing.join(", "));
        let message = format!("the run in `{root}` did not measure {names}");
        let hint = "add the stage to the pipeline of that run and run it again, or remove it here";
        return Ok(Some(Diagnostic::error(Blame::Pipeline, message).hint(hint)));
    }
    let windows = now.windows.differences(&before.identity.windows).into_iter();
    let in_words = |line: String| match line.strip_prefix("min_tokens: ") {
        Some(values) => shortest_window(plan, values),
        None => line,
    };
    let windows: Vec<String> = windows.map(in_words).collect();
    let mut measures = now.changed_measures(&before.identity);
    measures.retain(|(name, _)| !remeasure.contains(name));
    let mut different = windows.clone();
    for (name, lines) in &measures {
        different.extend(lines.iter().map(|line| format!("{name}: {line}")));
    }
    if different.is_empty() || (plan.options.scores_from.is_none() && !scores.has_units()?) {
        return Ok(None);
    }
    if scores.read_intact::<Value>(&path)?.is_none() {
        let message = format!("the lock `{}` was changed after it was written", path.display());
        let hint = "remove it and run again; scores that fit the pipeline are kept";
        return Ok(Some(Diagnostic::error(Blame::Data, message).hint(hint)));
    }
    let what = format!("the scores in `{}` were made with other settings", scores.root.display());
    let mut problem = Diagnostic::error(Blame::Pipeline, what).notes(different);
    if let Some((removed, replacement)) = removed_kernel(&measures) {
        problem = problem.note(format!(
            "the kernel `{removed}` was removed: `--kernel {}` replaces it",
            replacement.name()
        ));
    }
    Ok(Some(problem.hint(if windows.is_empty() {
        let again = measures.iter().map(|(name, _)| format!("--remeasure {name}"));
        let finish = match options_before(&measures) {
            Some(options) => format!("finish the run with its original `{options}`, "),
            None => String::new(),
        };
        format!(
            "{finish}use another `output.path`, or measure again with `{}`",
            again.collect::<Vec<_>>().join(" ")
        )
    } else {
        "use another `output.path`, or start from scratch with `--fresh`".to_owned()
    })))
}

fn removed_kernel(measures: &[(String, Vec<String>)]) -> Option<(&str, Kernel)> {
    measures.iter().flat_map(|(_, lines)| lines).find_map(|line| {
        let (_, recorded) = parse_kernels(line)?;
        Some((recorded, Kernel::replacement_of(recorded)?))
    })
}

/// Returns the current and the recorded kernel, or backend, from a line of differences.
fn parse_kernels(line: &str) -> Option<(&str, &str)> {
    let values = line.strip_prefix("kernel: ").or_else(|| line.strip_prefix("model_kernel: "))?;
    values.split_once(", was ")
}

/// Returns the options that select the recorded kernel or backend, if nothing else differs and this machine supports it.
fn options_before(measures: &[(String, Vec<String>)]) -> Option<String> {
    let mut lines = measures.iter().flat_map(|(_, lines)| lines);
    let (now, before) = lines.clone().find_map(|line| parse_kernels(line))?;
    let only_kernel_differs = lines.all(|line| {
        line.starts_with("table_kernel: ")
            || parse_kernels(line).is_some_and(|(_, recorded)| recorded == before)
    });
    let backends = [now, before].map(BackendName::recorded);
    let options = match backends {
        [BackendName::Own, BackendName::Candle] if cfg!(feature = "candle") => {
            "--backend candle".to_owned()
        }
        [_, BackendName::Candle] => return None,
        _ if !Kernel::from_name(before)?.is_supported() => return None,
        [BackendName::Candle, _] => format!("--backend own --kernel {before}"),
        [BackendName::Own, _] => format!("--kernel {before}"),
    };
    only_kernel_differs.then_some(options)
}

/// Explains a difference in `min_tokens`, which is not a setting but follows from the measures of a pipeline.
fn shortest_window(plan: &Plan, values: &str) -> String {
    let measures = plan.measures().zip(&plan.measures.columns);
    let min = plan.measures.min_tokens;
    let names = measures.filter(|((_, measure), _)| measure.min_tokens() == min);
    let names: Vec<String> = names.map(|(_, columns)| format!("`{}`", columns.measure)).collect();
    let why =
        if names.is_empty() { String::new() } else { format!(", for {}", names.join(" and ")) };
    format!("shortest window that is measured, in tokens: {values}{why}")
}
