//! `longsift explain`.

use super::answer::{answer, check_output_paths, command_line, write_requested};
use super::planned::{make_plan, named_run, refuse_without_effect, start_threads};
use crate::base::error::{DONE, Result};
use crate::cli::{Cli, ExplainArguments};
use crate::storage::marked::Mark;
use crate::tools::explain;

pub(super) fn explain(cli: &Cli, arguments: &ExplainArguments) -> Result<u8> {
    let needless = ["the window is measured again", "the window is searched in the whole input"];
    refuse_without_effect(&arguments.plan, "one window", needless)?;
    check_output_paths([(arguments.html.as_deref(), Mark::PAGE)])?;
    start_threads(&arguments.plan)?;
    let plan = make_plan(cli, &arguments.plan)?;
    let run = named_run(&arguments.plan)?;
    let found = explain::explain(&plan, run.as_ref(), &arguments.sample, arguments.layer)?;
    answer(arguments.format, &found)?;
    let page = || found.page(&command_line()).into_bytes();
    write_requested(arguments.html.as_deref(), Mark::PAGE, page)?;
    Ok(DONE)
}
