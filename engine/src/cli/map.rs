//! `longsift map`.

use super::answer::{answer, check_output_paths, command_line, write_requested};
use super::planned::{
    make_plan_with, named_run, plan_options, refuse_without_effect, start_threads,
};
use crate::base::error::{DONE, Result};
use crate::base::progress::Progress;
use crate::cli::{Cli, MapArguments};
use crate::plan::options::{PlanOptions, Subject};
use crate::storage::marked::Mark;
use crate::tools::map;

pub(super) fn map(cli: &Cli, arguments: &MapArguments, bars: bool) -> Result<u8> {
    let needless =
        ["the document is measured again", "the document is searched in the whole input"];
    refuse_without_effect(&arguments.plan, "a map", needless)?;
    start_threads(&arguments.plan)?;
    // Signals are not caught: one pass leaves nothing to resume.
    let options = PlanOptions {
        subject: arguments
            .options
            .messages
            .clone()
            .map_or(Subject::Document, Subject::Conversation),
        ..plan_options(&arguments.plan)
    };
    check_output_paths([
        (arguments.html.as_deref(), Mark::PAGE),
        (arguments.png.as_deref(), Mark::IMAGE),
        (arguments.parquet.as_deref(), Mark::TABLE),
    ])?;
    let plan = make_plan_with(cli, &arguments.plan, options)?;
    let progress = Progress::new(bars);
    let run = named_run(&arguments.plan)?;
    let map = map::map(&plan, run.as_ref(), &arguments.options, &progress)?;
    progress.finish();
    answer(arguments.format, &map)?;
    let page = || map.page(&command_line()).into_bytes();
    write_requested(arguments.html.as_deref(), Mark::PAGE, page)?;
    write_requested(arguments.png.as_deref(), Mark::IMAGE, || map.png())?;
    write_requested(arguments.parquet.as_deref(), Mark::TABLE, || map.parquet())?;
    Ok(DONE)
}
