//! The long tests, for `cargo xtask soak`: [`tracer_tests::soak`] for a number of seconds with a seed, then races of user
//! events with the same seed, and the end of a daemon with all events enabled.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tracer_tests::{races, soak};

/// Number of races after the load.
const RACES: u64 = 100_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let numbers: Vec<Option<u64>> = words.iter().map(|word| word.parse().ok()).collect();
    let done = match (&words[..], &numbers[..]) {
        // The races execute this program again.
        (["watch", _], [_, Some(micros)]) => return races::watch(Duration::from_micros(*micros), false),
        (["races", dir, ..], [_, _, Some(number), Some(seed), Some(micros)]) => {
            races::run(Path::new(dir), *number, *seed, *micros).map(|line| println!("{line}"))
        }
        (_, [Some(seconds), Some(seed)]) => test(*seconds, *seed),
        _ => {
            eprintln!("tracer-soak SECONDS SEED");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn test(seconds: u64, seed: u64) -> Result<()> {
    soak::run(Duration::from_secs(seconds), seed, |report| println!("{report:?}"))?;
    println!("{}", races::play(&std::env::current_exe()?, RACES, seed)?);
    println!("a daemon with all events ended after {:?}", soak::end_with_all_events()?);
    Ok(())
}
