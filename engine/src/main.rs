//! `longsift`: reads the command line, calls the library, exits with its code.

use std::process::ExitCode;

use clap::Parser;
use longsift_engine::cli::{Cli, commands};

fn main() -> ExitCode {
    ExitCode::from(commands::main(&Cli::parse()))
}
