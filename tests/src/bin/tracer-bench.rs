//! The benchmarks: `tracer-bench [--rounds N] [--tools LIST] [--only LIST] [--write FILE]`, run by `cargo xtask
//! bench`. The victim process runs the same binary, as `tracer-bench victim KIND [DIRECTORY]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tracer_tests::bench::{Kind, Part, Plan, Tool, run, serve, write_between_marks};

const HELP: &str = "\
Measures tracer against the kernel's own tracefs and bpftrace, and prints markdown tables.

usage: tracer-bench [options]

  --rounds N     rounds of every measurement (default 9)
  --tools LIST   of tracefs,bpftrace,tracer (default: all that are there)
  --only LIST    of cost,probes,events,first,throughput,all (default: all of these)
  --rows TEXT    of `probes` only those lines that have this in their names
  --write FILE   put the tables between the marks of FILE, too, each in the place of the one with its title; not with
                 --rows, as a table is of one run

`tracer` is looked for beside this binary, or where TRACER_BIN says. Needs root.
";

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tracer-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "victim") {
        let kind = arguments.get(1).and_then(|name| Kind::of(name)).context("which victim?")?;
        return serve(kind, arguments.get(2).map(Path::new));
    }
    let mut tools: Vec<Tool> = Tool::ALL.into_iter().filter(|tool| tool.is_there()).collect();
    let mut plan = Plan { rounds: 9, tools: Vec::new(), parts: Part::ALL.to_vec(), rows: String::new() };
    let mut write = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().with_context(|| format!("{argument} wants a value"));
        match argument.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            "--rounds" => plan.rounds = value()?.parse().context("--rounds")?,
            "--tools" => {
                let names = value()?;
                tools = Tool::ALL.into_iter().filter(|t| names.split(',').any(|n| n == t.name())).collect();
            }
            "--only" => {
                let parts = value()?;
                let parts: Vec<&str> = parts.split(',').collect();
                plan.parts = Part::ALL.into_iter().filter(|part| parts.contains(&part.name())).collect();
            }
            "--rows" => plan.rows.clone_from(value()?),
            "--write" => write = Some(PathBuf::from(value()?)),
            other => bail!("what is {other}? --help tells what there is"),
        }
    }
    plan.tools = tools;
    if write.is_some() && !plan.rows.is_empty() {
        bail!("--write with --rows would make a table of several runs");
    }
    let tables = run(&plan, |table| print!("{table}"))?;
    if let Some(path) = write {
        write_between_marks(&path, &tables)?;
    }
    Ok(())
}
