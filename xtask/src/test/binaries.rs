//! Builds the tests and reads the paths of the binaries from cargo's messages.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::selection::{self, Groups};
use crate::arch::Arch;
use crate::build::{self, Profile};
use crate::{host, lint};

/// The package whose tests also run in virtual machines.
const INTEGRATION: &str = "tracer-tests";

/// A test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestBinary {
    /// Display name: package, kind and target.
    pub(super) name: String,
    /// The target: the name of a group of integration tests.
    pub(super) target: String,
    /// The modules of a group; none if the binary runs as a whole.
    pub(super) modules: Vec<String>,
    pub(super) path: PathBuf,
    /// The package's directory, the working directory of its tests.
    pub(super) dir: PathBuf,
    /// Whether it is an integration test, which needs root and a kernel to trace.
    pub(super) integration: bool,
}

/// The tests of one process: a test binary, or one module of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct TestProcess<'a> {
    pub(super) binary: &'a TestBinary,
    module: Option<&'a str>,
}

impl TestBinary {
    /// The processes that run this binary.
    pub(super) fn processes(&self) -> Vec<TestProcess<'_>> {
        if self.modules.is_empty() {
            return vec![TestProcess { binary: self, module: None }];
        }
        self.modules.iter().map(|module| TestProcess { binary: self, module: Some(module) }).collect()
    }
}

impl TestProcess<'_> {
    /// The name that selects it, such as `trust::deadlines`.
    pub(super) fn name(&self) -> String {
        let target = &self.binary.target;
        self.module.map_or_else(|| target.clone(), |module| format!("{target}::{module}"))
    }

    /// Arguments of the test harness that select its tests whose names contain one of `words`; all of them without
    /// words.
    pub(super) fn arguments(&self, words: &[String]) -> Vec<String> {
        selection::arguments(self.module, &self.binary.modules, words)
    }
}

/// The result of a build.
#[derive(Debug, Default)]
pub(super) struct Built {
    pub(super) tests: Vec<TestBinary>,
    /// Programs for the tests: tracer itself and the programs that the tests start.
    pub(super) programs: Vec<PathBuf>,
    /// Number of different warnings about the workspace.
    pub(super) warnings: usize,
    /// Whether clippy's are among them.
    pub(super) is_linted: bool,
}

impl Built {
    /// The program `tracer`.
    pub(super) fn tracer(&self) -> Result<&Path> {
        let is_it = |path: &&PathBuf| path.file_name().is_some_and(|name| name == "tracer");
        self.programs.iter().find(is_it).map(PathBuf::as_path).context("no tracer was built")
    }

    /// Integration tests with these targets and modules, for tests.
    #[cfg(test)]
    pub(super) fn of(tests: &[(&str, &[&str])]) -> Self {
        let test = |(target, modules): &(&str, &[&str])| TestBinary {
            name: format!("tracer-tests test {target}"),
            target: (*target).to_owned(),
            modules: modules.iter().map(|module| (*module).to_owned()).collect(),
            path: format!("/x/{target}-1").into(),
            dir: "/".into(),
            integration: true,
        };
        Self { tests: tests.iter().map(test).collect(), ..Self::default() }
    }
}

/// Builds programs and tests for `arch`: all tests, or only the integration tests. For this machine's architecture
/// clippy's compiler builds them where it is installed, so that one compilation lints too.
pub(super) fn build(arch: Arch, profile: Profile, all: bool) -> Result<Built> {
    host::step(format!("Building the tests ({})", arch.name()));
    let (mut cargo, _) = build::user_cargo(arch)?;
    // One command for programs and tests, so that dependencies are compiled once.
    cargo.args(["build", "--workspace", "--bins", "--examples"]);
    // With `--all-targets` cargo would also build the tests of libraries that have none.
    cargo.args(if all { &["--tests", "--bench", "*"][..] } else { &["--test", "*"] });
    cargo.args(profile.flag());
    let rendered = if std::io::stderr().is_terminal() { ",json-diagnostic-rendered-ansi" } else { "" };
    cargo.arg(format!("--message-format=json{rendered}"));
    if arch.is_foreign() {
        cargo.args(["--exclude", "xtask"]);
    }
    let clippy = lint::clippy_driver().filter(|_| !arch.is_foreign());
    if let Some(clippy) = &clippy {
        // Only the packages of the workspace are compiled by the wrapper.
        cargo.env("RUSTC_WORKSPACE_WRAPPER", clippy);
    }
    eprintln!("  $ {}", host::display(&cargo));
    let groups = Groups::read(host::root())?;
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let messages = BufReader::new(child.stdout.take().context("cargo's messages")?);
    let built = read(messages.lines().map_while(Result::ok), &groups, |text| eprint!("{text}"));
    let status = child.wait().context("cargo")?;
    ensure!(status.success(), "the tests do not build");
    Ok(Built { is_linted: clippy.is_some(), ..built })
}

/// Reads cargo's messages, one JSON object per line, and shows the compiler's.
fn read(messages: impl Iterator<Item = String>, groups: &Groups, mut show: impl FnMut(&str)) -> Built {
    let mut built = Built::default();
    // A library is compiled with and without its tests.
    let mut shown = BTreeSet::new();
    for message in messages.filter_map(|line| serde_json::from_str::<Value>(&line).ok()) {
        let (of_compiler, target) = (&message["message"], &message["target"]);
        if let Some(text) = of_compiler["rendered"].as_str() {
            // A message without a place in the sources counts the others, and is not the same in both compilations.
            let has_place = of_compiler["spans"].as_array().is_some_and(|spans| !spans.is_empty());
            let is_new = has_place && shown.insert(text.to_owned());
            if is_new || of_compiler["level"] == "error" {
                show(text);
            }
            built.warnings += usize::from(is_new && of_compiler["level"] == "warning");
        }
        let Some(path) = message["executable"].as_str().map(PathBuf::from) else { continue };
        let kind = target["kind"][0].as_str().unwrap_or_default();
        if kind == "bench" {
            continue;
        }
        if message["profile"]["test"] == true {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            let dir = manifest.parent().unwrap_or(Path::new("/")).to_path_buf();
            let package = message["package_id"].as_str().unwrap_or_default();
            let target = target["name"].as_str().unwrap_or_default().to_owned();
            let integration = kind == "test" && package_name(package) == INTEGRATION;
            let name = format!("{} {kind} {target}", package_name(package));
            let modules = if integration { groups.modules(&target).to_vec() } else { Vec::new() };
            built.tests.push(TestBinary { name, target, modules, path, dir, integration });
        } else if matches!(kind, "bin" | "example") && !built.programs.contains(&path) {
            built.programs.push(path);
        }
    }
    // Cargo reports the binaries in the order in which it finished them, which differs from run to run.
    built.tests.sort_by(|a, b| (!a.integration, &a.name).cmp(&(!b.integration, &b.name)));
    built
}

/// The package's name in an identifier such as `path+file:///src/tests#tracer-tests@0.1.0`. The identifier omits the
/// name if it equals the directory's name.
fn package_name(id: &str) -> &str {
    let (path, fragment) = id.split_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_in_both_ways() {
        assert_eq!(package_name("path+file:///src/tests#tracer-tests@0.1.0"), "tracer-tests");
        assert_eq!(package_name("path+file:///src/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn tests_and_programs_are_distinguished() {
        let messages = r#"
{"reason":"compiler-artifact","package_id":"path+file:///s/tests#tracer-tests@0.1.0","manifest_path":"/s/tests/Cargo.toml","target":{"kind":["test"],"name":"record"},"profile":{"test":true},"executable":"/t/deps/record-1"}
{"reason":"compiler-artifact","package_id":"path+file:///s/tests#tracer-tests@0.1.0","manifest_path":"/s/tests/Cargo.toml","target":{"kind":["lib"],"name":"tracer_tests"},"profile":{"test":true},"executable":"/t/deps/lib-1"}
{"reason":"compiler-artifact","package_id":"path+file:///s/u#tracer-user@0.1.0","manifest_path":"/s/u/Cargo.toml","target":{"kind":["bin"],"name":"tracer"},"profile":{"test":false},"executable":"/t/tracer"}
{"reason":"compiler-artifact","package_id":"path+file:///s/u#tracer-user@0.1.0","target":{"kind":["lib"],"name":"x"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///s/tests#tracer-tests@0.1.0","target":{"kind":["bench"],"name":"render"},"profile":{"test":true},"executable":"/t/deps/render-1"}
{"reason":"build-finished","success":true}
"#;
        let modules = ["raw", "workload"].map(str::to_owned);
        let built = read(messages.lines().map(str::to_owned), &Groups::of("record", &modules), |text| {
            panic!("no message of the compiler: {text}")
        });
        assert_eq!(built.programs, [PathBuf::from("/t/tracer")]);
        assert_eq!(built.tests.len(), 2);
        assert_eq!(built.tests[0].name, "tracer-tests test record");
        assert_eq!(built.tests[0].dir, Path::new("/s/tests"));
        assert!(built.tests[0].integration);
        assert!(!built.tests[1].integration, "unit tests of the test library");
        let names =
            |binary: &TestBinary| binary.processes().iter().map(TestProcess::name).collect::<Vec<_>>();
        assert_eq!(names(&built.tests[0]), ["record::raw", "record::workload"]);
        assert_eq!(names(&built.tests[1]), ["tracer_tests"]);
    }

    #[test]
    fn warnings_are_shown_and_counted_once() {
        let message = |level: &str, text: &str, spans: &str| {
            let text = format!(r#"{{"rendered":"{text}","level":"{level}","spans":[{spans}]}}"#);
            format!(
                r#"{{"reason":"compiler-message","message":{text},"target":{{"kind":["lib"],"name":"x"}}}}"#
            )
        };
        let place = r#"{"file_name":"a.rs"}"#;
        let messages = [
            message("warning", "unused", place),
            message("warning", "unused", place),
            message("warning", "needless", place),
            message("warning", "2 warnings emitted", ""),
            message("error", "aborting", ""),
        ];
        let mut shown = Vec::new();
        let built =
            read(messages.into_iter(), &Groups::of("record", &[]), |text| shown.push(text.to_owned()));
        assert_eq!(
            (shown, built.warnings),
            (["unused", "needless", "aborting"].map(str::to_owned).to_vec(), 2)
        );
    }
}
