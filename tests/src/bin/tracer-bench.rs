//! The benchmarks, run by `cargo xtask bench`; `--help` lists the options. The victim process runs the same binary, as `tracer-bench victim KIND [DIRECTORY]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tracer_tests::bench::{Kind, Part, Plan, Tool, run, serve, write_page};

const HELP: &str = "\
Measures tracer against the kernel's own tracefs and bpftrace, and prints markdown tables.

usage: tracer-bench [options]

  --rounds N     rounds of every measurement (default 9)
  --tools LIST   of tracefs,bpftrace,newest-bpftrace,tracer (default: all that are there)
  --only LIST    of cost,untraced,consumers,probes,functions,events,first,unread,throughput,all,
                 delays,parts
                 (default: all of these)
  --rows TEXT    of `cost` and `probes` only those lines that have this in their names
  --json FILE    write the values of all rounds
  --place TEXT   append this to the title of each table
  --save FILE    write the tables
  --with FILE    add the tables of a run with --save to those of --write
  --write FILE   write the page with the tables; it keeps those of its tables that this run does not replace. Not
                 with --rows, because a table is of one run

`tracer` is looked for beside this binary, or where TRACER_BIN says. The command of the newest bpftrace is in
BPFTRACE_NEWEST, one word a line. Needs root.
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
    let mut plan = Plan {
        rounds: 9,
        tools: Vec::new(),
        parts: Part::ALL.to_vec(),
        rows: String::new(),
        place: String::new(),
    };
    let [mut json, mut save, mut with, mut write]: [Option<PathBuf>; 4] = [const { None }; 4];
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().with_context(|| format!("{argument} requires a value"));
        match argument.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            "--rounds" => plan.rounds = value()?.parse().context("--rounds")?,
            "--tools" => {
                tools = value()?
                    .split(',')
                    .map(|name| {
                        let tool = Tool::ALL.into_iter().find(|tool| tool.name() == name);
                        tool.with_context(|| format!("--tools: there is no tool {name}"))
                    })
                    .collect::<Result<_>>()?;
            }
            "--only" => {
                plan.parts = value()?
                    .split(',')
                    .filter(|name| !name.is_empty())
                    .map(|name| {
                        let part = Part::ALL.into_iter().find(|part| part.name() == name);
                        part.with_context(|| format!("--only: there is no part {name}"))
                    })
                    .collect::<Result<_>>()?;
            }
            "--rows" => plan.rows.clone_from(value()?),
            "--place" => plan.place.clone_from(value()?),
            "--json" => json = Some(PathBuf::from(value()?)),
            "--save" => save = Some(PathBuf::from(value()?)),
            "--with" => with = Some(PathBuf::from(value()?)),
            "--write" => write = Some(PathBuf::from(value()?)),
            other => bail!("unknown argument {other}: see --help"),
        }
    }
    plan.tools = tools;
    if write.is_some() && !plan.rows.is_empty() {
        bail!("--write with --rows would make a table of several runs");
    }
    let mut tables = match with {
        Some(path) => std::fs::read_to_string(&path).with_context(|| path.display().to_string())?,
        None => String::new(),
    };
    let new = run(&plan, json.as_deref(), save.as_deref(), |table| print!("{table}"))?;
    tables.push_str(&new);
    if let Some(path) = write {
        write_page(&path, &tables)?;
    }
    Ok(())
}
