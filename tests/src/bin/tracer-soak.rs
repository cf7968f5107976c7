//! Runs [`tracer_tests::soak`] for a number of seconds with a seed, for `cargo xtask soak`.

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(seconds)), Some(Ok(seed))) = (arguments.next(), arguments.next()) else {
        eprintln!("tracer-soak SECONDS SEED");
        return ExitCode::from(2);
    };
    match tracer_tests::soak::run(Duration::from_secs(seconds), seed, |report| println!("{report:?}")) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seed {seed}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
