//! `longsift map`.

use super::answer::{answer, check_output_paths, command_line};
use super::planned::{make_plan_with, plan_options, refuse_without_effect, start_threads};
use crate::base::error::{DONE, Result};
use crate::base::progress::Progress;
use crate::cli::{Cli, MapArguments};
use crate::plan::options::{PlanOptions, Subject};
use crate::storage::marked::{self, Mark};
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
    let map = map::map(&plan, &arguments.options, &progress)?;
    progress.finish();
    answer(arguments.format, &map)?;
    // Last, so that the answer is printed even if a file cannot be written.
    if let Some(path) = &arguments.html {
        marked::write(path, Mark::PAGE, map.page(&command_line()).as_bytes())?;
    }
    if let Some(path) = &arguments.png {
        marked::write(path, Mark::IMAGE, &map.png())?;
    }
    if let Some(path) = &arguments.parquet {
        marked::write(path, Mark::TABLE, &map.parquet())?;
    }
    Ok(DONE)
}
