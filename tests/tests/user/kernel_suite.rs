//! The kernel's own programs for user events, compiled unchanged: tests and sample of 6.12 (addresses) and of 6.1
//! (status page). Each runs in `tracer exec`, which places the mirror where they look for tracefs.
//!
//! Their sources come from Debian's `linux-source` packages and are not part of the repository: `cargo xtask test`
//! unpacks them (`TRACER_KERNEL_PROGRAMS`), or a package is installed. `perf_test` is omitted: it passes the event's
//! id to perf_event_open(2), and the kernel has no event with that id.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tracer_tests::host;

/// The files of a package that the test uses, below its top directory.
const SUITE: &str = "tools/testing/selftests/user_events";
const HARNESS: [&str; 2] =
    ["tools/testing/selftests/kselftest.h", "tools/testing/selftests/kselftest_harness.h"];
const SAMPLE: &str = "samples/user_events/example.c";

/// Number of tries of a program. Its tests give a child process one second to see a bit, which a busy machine may
/// exceed, so there is a second try.
const TRIES: usize = 2;

/// A version of the kernel's programs.
struct Version {
    name: &'static str,
    header: &'static str,
    /// Programs, and the number of tests of each.
    programs: &'static [(&'static str, usize)],
}

const VERSIONS: [Version; 2] = [
    Version {
        name: "6.12",
        header: "include/uapi/linux/user_events.h",
        programs: &[("abi_test", 6), ("ftrace_test", 6), ("dyn_test", 4)],
    },
    Version {
        name: "6.1",
        header: "include/linux/user_events.h",
        programs: &[("ftrace_test", 5), ("dyn_test", 5)],
    },
];

fn run(version: &Version) {
    if !host::root_or_skip() {
        return;
    }
    let Some(dir) = unpacked(version).unwrap_or_else(|error| panic!("{error:#}")) else { return };
    test(version, &dir).unwrap_or_else(|error| panic!("{error:#}"));
}

/// The sources of a version, unpacked once; `None` where they are not available.
fn unpacked(version: &Version) -> Result<Option<PathBuf>> {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let given = std::env::var_os("TRACER_KERNEL_PROGRAMS").map(PathBuf::from);
    let given = given.map(|dir| dir.join(format!("selftests-{}", version.name)));
    let archive = format!("/usr/src/linux-source-{}.tar.xz", version.name);
    let is_packed = Path::new(&archive).is_file() && is_there("xz");
    if !is_there("cc") {
        host::skip("compiler", "no cc");
        return Ok(None);
    }
    if !is_packed && !given.as_ref().is_some_and(|dir| dir.is_dir()) {
        let feature = format!("sources-{}", version.name);
        host::skip(&feature, format_args!("neither in TRACER_KERNEL_PROGRAMS nor {archive}"));
        return Ok(None);
    }
    let below = host::cache_dir()?;
    let dir = below.join(format!("user_events-{}", version.name));
    if !dir.join(SAMPLE).is_file() {
        let whole = below.join(format!("user_events-{}-{}", version.name, std::process::id()));
        std::fs::create_dir_all(&whole)?;
        if let Some(given) = given.filter(|dir| dir.is_dir()) {
            let copied = Command::new("cp").arg("-rT").args([&given, &whole]).status()?;
            ensure!(copied.success(), "{} cannot be copied", given.display());
        } else {
            let mut tar = Command::new("tar");
            tar.args(["-xJf", &archive, "--strip-components=1", "-C"]).arg(&whole);
            tar.args(
                [SUITE, version.header, SAMPLE]
                    .iter()
                    .chain(&HARNESS)
                    .map(|path| format!("linux-source-{}/{path}", version.name)),
            );
            ensure!(tar.status()?.success(), "{archive} lacks something");
        }
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::rename(&whole, &dir)?;
    }
    Ok(Some(dir))
}

/// Compiles a program unchanged.
fn compiled(version: &Version, dir: &Path, source: &str) -> Result<PathBuf> {
    // The header's location when it is installed.
    let include = dir.join("installed");
    std::fs::create_dir_all(include.join("linux"))?;
    std::fs::copy(dir.join(version.header), include.join("linux/user_events.h"))?;
    let program = dir.join(Path::new(source).file_stem().context("a source")?);
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(&include).arg("-o").arg(&program).arg(dir.join(source)).args([
        "-lpthread",
        "-lrt",
        "-lm",
    ]);
    let output = cc.output()?;
    ensure!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}

fn exec() -> Result<Command> {
    let mut command = Command::new(host::binary("tracer", "TRACER_BIN")?);
    command.args(["exec", "--"]);
    Ok(command)
}

fn test(version: &Version, dir: &Path) -> Result<()> {
    for (name, tests) in version.programs {
        let program = compiled(version, dir, &format!("{SUITE}/{name}.c"))?;
        let passed = format!("# PASSED: {tests} / {tests} tests passed.");
        let mut reports = Vec::new();
        while reports.len() < TRIES {
            let output = exec()?.arg(&program).output()?;
            let all = [output.stdout, output.stderr].concat();
            let report = String::from_utf8_lossy(&all).into_owned();
            if output.status.success() && report.contains(&passed) {
                break;
            }
            let attempt = reports.len() + 1;
            println!("{name} of {}, try {attempt} of {TRIES}: {}\n{report}", version.name, output.status);
            reports.push(report);
        }
        ensure!(reports.len() < TRIES, "{name} of {}, time and again:\n{}", version.name, reports.join("\n"));
        println!("{name} of {}: {tests} of {tests} passed in try {}", version.name, reports.len() + 1);
    }
    sample(&compiled(version, dir, SAMPLE)?)
}

/// The steps for the sample, which never ends by itself: `$0` is the program, `$1` a directory. The sample waits for
/// a key, checks whether its event is enabled, writes if so, and counts its writes.
const STEPS: &str = r#"
    cd /sys/kernel/tracing && mkfifo "$1/keys" || exit 1
    stdbuf -oL "$0" < "$1/keys" > "$1/out" &
    exec 3> "$1/keys"
    until [ -e events/user_events/test/enable ]; do sleep 0.02; done
    asked() { until [ "$(grep -c Press "$1/out")" -ge "$2" ]; do sleep 0.02; done; }
    asked "$1" 1; echo >&3; asked "$1" 2
    echo 1 > events/user_events/test/enable
    echo >&3; asked "$1" 3; echo >&3; asked "$1" 4
    echo 0 > events/user_events/test/enable
    echo >&3; asked "$1" 5
    grep -o 'test: count=.*' trace
    grep -c Something "$1/out"
    kill $!
"#;

fn sample(program: &Path) -> Result<()> {
    let dir = program.with_extension(format!("steps-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    // No step takes long, but a sample that never reads a key would block the test.
    let mut limited = Command::new("timeout");
    limited.arg("120").arg(host::binary("tracer", "TRACER_BIN")?).args(["exec", "--", "sh", "-c", STEPS]);
    let output = limited.arg(program).arg(&dir).output()?;
    std::fs::remove_dir_all(&dir)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    ensure!(output.status.success(), "{}: {text}", output.status);
    let [zero, one, "2"] = lines[..] else { anyhow::bail!("{text}") };
    ensure!(zero.contains("count=0x0 (0)") && one.contains("count=0x1 (1)"), "{text}");
    println!("{}: two records", program.display());
    Ok(())
}

#[test]
fn programs_of_6_12_pass() {
    run(&VERSIONS[0]);
}

#[test]
fn programs_of_6_1_pass() {
    run(&VERSIONS[1]);
}
