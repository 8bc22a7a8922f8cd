//! `longsift devices`: one survey of the devices, or one every few seconds.

use std::io::{IsTerminal, Write};

use super::answer::{answer, check_output_paths, watch};
use crate::base::error::Result;
use crate::cli::DevicesArguments;
use crate::devices::survey::{CSV_HEADER, Survey};
use crate::report::page::chart::Polls;
use crate::storage::marked::{self, Mark};
use crate::storage::{error, files};
use crate::tools::monitor;

pub(super) fn devices(arguments: &DevicesArguments) -> Result<u8> {
    check_output_paths([
        (arguments.html.as_deref(), Mark::PAGE),
        (arguments.csv.as_deref(), Mark::Start(CSV_HEADER)),
    ])?;
    if !arguments.watch {
        return answer(arguments.format, &poll(arguments)?);
    }
    let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let mut polls = Polls::default();
    watch(arguments.seconds, arguments.count, || {
        let survey = poll(arguments)?;
        if let Some(path) = &arguments.html {
            polls.add(survey.clone());
            marked::write(path, Mark::PAGE, monitor::page(&polls).as_bytes())?;
        }
        Ok((format!("{clear}{}\n{survey}\n", survey.time), false))
    })
}

/// Surveys the devices, and appends the result to the CSV file, after a header if the file is empty.
fn poll(arguments: &DevicesArguments) -> Result<Survey> {
    let survey = Survey::now(arguments.headroom_fraction);
    if let Some(path) = &arguments.csv {
        let length = files::size(path)?.unwrap_or(0);
        let mut file = files::open_for_append(path, length)?;
        let header = if length == 0 { CSV_HEADER } else { "" };
        let lines = format!("{header}{}", survey.csv());
        file.write_all(lines.as_bytes()).map_err(error::failed("write", path))?;
    }
    Ok(survey)
}
