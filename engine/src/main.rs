//! `longsift`: parses the command line, calls the library and exits with the command's exit code.

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::Parser;
use longsift_engine::base::error::{BUG, exit_when_machine_runs_out};
use longsift_engine::cli::{Cli, commands};

fn main() -> ExitCode {
    let cli = Cli::parse();
    exit_when_machine_runs_out();
    // A panic is a bug in longsift: its message is printed and the exit code is `BUG`.
    let code = std::panic::catch_unwind(AssertUnwindSafe(|| commands::main(&cli)));
    ExitCode::from(code.unwrap_or(BUG))
}
