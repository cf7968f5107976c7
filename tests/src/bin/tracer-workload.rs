//! The workload's process: `tracer-workload PART... [--rounds N]`.
//!
//! The process writes a byte when it is ready, waits for a byte on its standard input, runs the parts and exits.
//! Children of the `process` part run the same binary, with `--exit CODE` or `--wait`.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use tracer_tests::workload::{PARTS, Part, Site, part};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--exit") => {
            let code = arguments.get(1).and_then(|code| code.parse().ok()).unwrap_or(0);
            return ExitCode::from(code);
        }
        Some("--wait") => {
            let _ = io::stdin().read(&mut [0]);
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") | None => {
            println!("usage: tracer-workload PART... [--rounds N]\n\nparts: all");
            for part in PARTS {
                println!("  {:10} {} events", part.name, part.provokes().len());
            }
            return ExitCode::SUCCESS;
        }
        Some(_) => {}
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tracer-workload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let mut parts: Vec<&Part> = Vec::new();
    let mut rounds = 1_u32;
    let (mut disk, mut shm) = (None, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().with_context(|| format!("{argument} requires a value"));
        match argument.as_str() {
            "--rounds" => rounds = value()?.parse().context("--rounds")?,
            "--disk" => disk = Some(PathBuf::from(value()?)),
            "--shm" => shm = Some(PathBuf::from(value()?)),
            "all" => parts.extend(PARTS),
            name => parts.push(part(name).with_context(|| format!("no part {name}"))?),
        }
    }
    let (site, own) = match (disk, shm) {
        (Some(dir), Some(shm)) => (Site { dir, shm }, false),
        _ => (Site::create().context("no scratch directory")?, true),
    };
    let result = wait_and_run(&parts, rounds, &site);
    if own {
        site.remove();
    }
    result
}

fn wait_and_run(parts: &[&Part], rounds: u32, site: &Site) -> anyhow::Result<()> {
    let mut output = io::stdout();
    output.write_all(b"\n").and_then(|()| output.flush())?;
    if io::stdin().read(&mut [0])? == 0 {
        return Ok(());
    }
    for _ in 0..rounds {
        for part in parts {
            part.run(site).context(part.name)?;
        }
    }
    Ok(())
}
