//! Writes the manual pages and the completions of `tracer` into a directory, for packages.

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: tracer-pages DIR");
        return ExitCode::from(2);
    };
    match tracer_user::cli::write_pages(Path::new(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tracer-pages: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}
