//! The `tracer` command: everything is in the library's `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracer_user::cli::main()
}
