//! `longsift`: parses the command line, calls the library and exits with the command's exit code.

use std::process::ExitCode;
use std::thread;

use longsift_engine::base::error::{BUG, exit_if_out_of_resources, exit_when_machine_runs_out};
use longsift_engine::cli::commands;

/// Stack of a command. The stack of a process's first thread may be smaller (`ulimit -s`), and an overflow ends the process.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    exit_when_machine_runs_out();
    let command = thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES);
    // A panic is a bug in longsift: its message is printed and the exit code is `BUG`.
    let code = match command.spawn(commands::main) {
        Ok(command) => command.join().unwrap_or(BUG),
        Err(error) => {
            exit_if_out_of_resources(&error.to_string());
            BUG
        }
    };
    ExitCode::from(code)
}
