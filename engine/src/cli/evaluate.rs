//! `longsift evaluate`.

use std::fmt::Write;

use super::answer::{answer_with, check_output_paths, command_line, write_requested};
use super::planned::{make_plan, refuse_without_effect, start_threads};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{DONE, Result};
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::base::text::{count, json_safe};
use crate::cli::{Cli, EvaluateArguments};
use crate::storage::files;
use crate::storage::marked::{self, Mark};
use crate::storage::store::is_address;
use crate::tools::evaluate::{self, DryRun};

pub(super) fn evaluate(cli: &Cli, arguments: &EvaluateArguments, bars: bool) -> Result<u8> {
    refuse_without_effect(
        &arguments.plan,
        "an evaluation",
        ["its windows are not those of a run", "it samples the whole input"],
    )?;
    start_threads(&arguments.plan)?;
    let plan = make_plan(cli, &arguments.plan)?;
    let options = &arguments.options;
    let stop = Stop::on_signals()?;
    let progress = Progress::new(bars);
    let folder = evaluate::folder(&plan, options)?;
    if is_address(&folder) {
        let message = format!("`{}` is not a folder on this machine", folder.display());
        return Err(Diagnostic::error(Blame::Pipeline, message)
            .hint(
                "an evaluation stores its measurements on this machine: name a folder with `--out`",
            )
            .into());
    }
    let file = folder.join("evaluation.json");
    check_output_paths([(arguments.html.as_deref(), Mark::PAGE), (Some(&file), EVALUATION)])?;
    files::create_folder(&folder)?;
    if arguments.dry_run {
        let would = evaluate::dry_run(&plan, options, &progress, &stop)?;
        progress.finish();
        return answer_with(arguments.format, || dry(&would), &would);
    }
    let found = evaluate::evaluate(&plan, options, &progress, &stop)?;
    progress.finish();
    let json = serde_json::to_value(&found).expect("plain data");
    marked::write(&file, EVALUATION, json_safe(&format!("{json:#}\n")).as_bytes())?;
    answer_with(arguments.format, || found.text(arguments.details), &json)?;
    let page = || found.page(&command_line()).into_bytes();
    write_requested(arguments.html.as_deref(), Mark::PAGE, page)?;
    Ok(DONE)
}

const EVALUATION: Mark = Mark::Keys(&["pipeline", "seed"]);

fn dry(would: &DryRun) -> String {
    let mut text = String::new();
    for (tokens, of) in &would.lengths {
        let _ = writeln!(
            text,
            "windows of {} tokens: {} documents, at most {} windows, {} tokens",
            count(*tokens),
            count(of.documents),
            count(of.windows),
            count(of.tokens)
        );
        for (measure, seconds) in &of.seconds {
            let _ = writeln!(text, "  {measure}: about {seconds:.1} s");
        }
    }
    text
}
