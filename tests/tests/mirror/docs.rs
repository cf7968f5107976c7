//! Runs the commands of the pages in `docs/`: every line of a `console` block runs on the mirror and on the kernel's
//! tracefs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror::Mounted;
use tracer_tests::oracle::Oracle;

const EVENTS: &str = include_str!("../../../docs/guides/events.md");
const HISTOGRAMS: &str = include_str!("../../../docs/guides/histograms.md");
const TRIGGERS: &str = include_str!("../../../docs/guides/triggers.md");

/// A command of a page, and its expected output.
#[derive(Debug, Default)]
struct Line {
    number: usize,
    command: String,
    expected: Vec<String>,
}

/// The commands of a page's `console` blocks; commands of `console FILE` blocks are included when that file exists.
fn commands(page: &str, dir: &Path) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut inside = false;
    for (number, text) in (1..).zip(page.lines()) {
        if text.starts_with("```") {
            let console = text.strip_prefix("```console");
            inside = console.is_some_and(|file| file.is_empty() || dir.join(file.trim_start()).exists());
        } else if inside {
            if let Some(command) = text.strip_prefix("# ") {
                lines.push(Line { number, command: command.to_owned(), expected: Vec::new() });
            } else if let Some(last) = lines.last_mut() {
                last.expected.push(text.to_owned());
            }
        }
    }
    lines
}

/// Whether a text matches a pattern in which `...` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Runs a page's commands in one shell, in a directory.
fn run(page: &str, dir: &Path, whose: &str) -> Result<usize> {
    let lines = commands(page, dir);
    let mut script = String::new();
    for (index, line) in lines.iter().enumerate() {
        script.extend([line.command.as_str(), "\necho '<<<", &index.to_string(), ">>>'\n"]);
    }
    let mut shell = Command::new("bash")
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .arg("-c")
        .arg("exec 2>&1; . /dev/stdin")
        .spawn()?;
    let mut stdin = shell.stdin.take().context("stdin")?;
    let writer = std::thread::spawn(move || stdin.write_all(script.as_bytes()));
    let output = shell.wait_with_output()?;
    writer.join().expect("no panic")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut rest = said.as_str();
    let mut wrong = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some((text, behind)) = rest.split_once(&format!("<<<{index}>>>\n")) else {
            bail!("{whose}: the shell ended in line {}: {}\n{rest}", line.number, line.command);
        };
        rest = behind;
        let found: Vec<&str> = text.lines().collect();
        let same = found.len() == line.expected.len()
            && found.iter().zip(&line.expected).all(|(found, expected)| matches(expected, found));
        if !same {
            wrong.push(format!(
                "line {}: {}\n  {:?}\n  expected {:?}",
                line.number, line.command, found, line.expected
            ));
        }
    }
    ensure!(wrong.is_empty(), "{whose}:\n{}", wrong.join("\n"));
    Ok(lines.len())
}

#[test]
fn patterns_match() {
    assert!(
        matches("a...c", "a b c") && matches("...", "") && matches("x", "x") && matches("...b...", "abc")
    );
    assert!(!matches("a...c", "a b") && !matches("x", "xy") && !matches("...b", "ba"));
}

/// Runs a page on the mirror, in one of its instances, and on the kernel's tracefs.
fn check_page(page: &str) {
    if !host::root_or_skip() {
        return;
    }
    let test = || {
        let mounted = Mounted::start("docs")?;
        let instance = mounted.instance("docs")?;
        let count = run(page, &instance, "mirror, an instance")?;
        run(page, mounted.dir(), "mirror")?;
        if Oracle::names_tasks()? {
            let kernel = Oracle::create("docs")?;
            kernel.tracing(true)?;
            run(page, kernel.dir(), "kernel")?;
        }
        println!("{count} commands");
        Ok::<_, anyhow::Error>(())
    };
    test().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Synthetic events can be defined only in the top directory, so the test uses the kernel's top directory as well, if
/// the kernel has histograms.
#[test]
fn the_page_of_histograms_is_correct() {
    if !host::root_or_skip() {
        return;
    }
    let test = || {
        let mounted = Mounted::start("dochist")?;
        let count = run(HISTOGRAMS, mounted.dir(), "mirror")?;
        let tracefs = Tracefs::find_or_mount()?;
        let has = |file: &str| tracefs.root().join(file).exists();
        if has("synthetic_events") && has("events/sched/sched_switch/hist") {
            run(HISTOGRAMS, tracefs.root(), "kernel")?;
        } else {
            eprintln!("not compared: this kernel has no histograms or no synthetic events");
        }
        println!("{count} commands");
        Ok::<_, anyhow::Error>(())
    };
    test().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn the_page_of_events_is_correct() {
    check_page(EVENTS);
}

#[test]
fn the_page_of_triggers_is_correct() {
    check_page(TRIGGERS);
}
