//! `cargo xtask fresh`: runs README's two commands in bare Debian systems, as root and as a user with sudo.
//!
//! A system is a folder that debootstrap fills with Debian's essential packages and sudo. It runs on this machine's
//! kernel, in a mount namespace of its own whose root is the folder. It has Debian's package lists and a clone of the
//! commit that is checked out here. From this machine it gets only what a proxy needs, the packages that apt and cargo
//! have downloaded before, and `/dev`, `/proc` and `/sys`. It is removed if both commands succeed.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::setup::{self, Group};
use crate::{host, vm};

/// The command that does the main job: it builds tracer and traces a program.
const RUN: &str = r#"./x run -- record -q -e 'sched:sched_switch if prev_comm == "sleep"' -- sleep 0.1"#;
/// A part of its output.
const TRACED: &str = "sched_switch: prev_comm=sleep";
/// The command that passes the tests.
const TEST: &str = "./x test";
/// Debian's releases.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
/// Where the packages come from.
const MIRROR: &str = "http://deb.debian.org";
/// The name and the number of the user.
const USER: (&str, u32) = ("dev", 1000);
/// Makes `$1` the root of a new mount namespace, and runs the command `$3` as the user `$2`. `$4` is a directory
/// with packages that apt has downloaded.
const ENTER: &str = r#"set -e
mount --bind "$1" "$1"
for dir in dev proc sys; do mount --rbind "/$dir" "$1/$dir"; done
mount --bind "$4" "$1/var/cache/apt/archives"
cd "$1"
mkdir -p old
pivot_root . old
umount -l old
rmdir old
exec su --login --whitelist-environment=http_proxy,https_proxy,no_proxy --command "$3" "$2""#;

/// A bare system and its user, `RELEASE-root` or `RELEASE-user`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct System {
    release: &'static str,
    is_root: bool,
}

/// All systems.
pub(crate) fn systems() -> impl Iterator<Item = System> {
    RELEASES.into_iter().flat_map(|release| [false, true].map(|is_root| System { release, is_root }))
}

impl Display for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.release, if self.is_root { "root" } else { "user" })
    }
}

impl FromStr for System {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = || systems().map(|system| system.to_string()).collect::<Vec<_>>().join(", ");
        systems().find(|system| system.to_string() == text).with_context(|| format!("known are {}", known()))
    }
}

/// Runs a program as root without its output.
fn as_root<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Result<()> {
    host::output(host::as_root(program)?.args(arguments)).map(drop)
}

/// Removes a folder of files that belong to root.
fn remove(dir: &Path) -> Result<()> {
    as_root("rm", [OsStr::new("-rf"), OsStr::new("--one-file-system"), OsStr::new("--"), dir.as_os_str()])
}

impl System {
    /// The user's name.
    fn user(self) -> &'static str {
        if self.is_root { "root" } else { USER.0 }
    }

    /// The user's home directory, relative to the root.
    fn home(self) -> String {
        if self.is_root { "root".to_owned() } else { format!("home/{}", USER.0) }
    }

    /// An archive of the bare system, made once.
    fn archive(self) -> Result<PathBuf> {
        let dir = vm::cache_entry(&format!("debian-{}", self.release), |dir| {
            host::step(format!("Making a bare Debian {}", self.release));
            let (root, file) = (dir.join("root"), dir.join("root.tar"));
            let mut make = host::as_root("debootstrap")?;
            make.args(["--variant=minbase", "--include=sudo", self.release])
                .arg(&root)
                .arg(format!("{MIRROR}/debian"));
            let packed = host::output(&mut make).and_then(|_| {
                as_root(
                    "tar",
                    [
                        "-c".as_ref(),
                        "-f".as_ref(),
                        file.as_os_str(),
                        "-C".as_ref(),
                        root.as_os_str(),
                        ".".as_ref(),
                    ],
                )
            });
            remove(&root)?;
            packed
        })?;
        Ok(dir.join("root.tar"))
    }

    /// Unpacks the system into `root`, and adds the user, the package lists' addresses, packages and the clone.
    fn make(self, root: &Path) -> Result<()> {
        remove(root)?;
        let archive = self.archive()?;
        as_root("mkdir", [OsStr::new("-p"), root.as_os_str()])?;
        as_root("tar", ["-x".as_ref(), "-f".as_ref(), archive.as_os_str(), "-C".as_ref(), root.as_os_str()])?;
        let release = self.release;
        let sources = format!(
            "deb {MIRROR}/debian {release} main\ndeb {MIRROR}/debian {release}-updates main\n\
             deb {MIRROR}/debian-security {release}-security main\n"
        );
        write(&root.join("etc/apt/sources.list"), &sources)?;
        let apt = host::output(Command::new("apt-config").args(["dump", "Acquire"]))?;
        write(&root.join("etc/apt/apt.conf.d/90acquire"), &apt)?;
        let resolver = std::fs::read_to_string("/etc/resolv.conf").context("/etc/resolv.conf")?;
        write(&root.join("etc/resolv.conf"), &resolver)?;
        let (user, id) = USER;
        if !self.is_root {
            as_root(
                "useradd",
                [
                    "--root".as_ref(),
                    root.as_os_str(),
                    "--create-home".as_ref(),
                    "--shell=/bin/bash".as_ref(),
                    format!("--uid={id}").as_ref(),
                    user.as_ref(),
                ],
            )?;
            write(&root.join("etc/sudoers.d/user"), &format!("{user} ALL=(ALL) NOPASSWD: ALL\n"))?;
        }
        let home = root.join(self.home());
        Self::copy_crates(&home)?;
        let clone = home.join("tracer");
        let arguments = ["-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks"].map(OsStr::new);
        as_root("git", arguments.into_iter().chain([host::root().as_os_str(), clone.as_os_str()]))?;
        if !self.is_root {
            as_root("chown", ["-R".as_ref(), OsStr::new(&format!("{id}:{id}")), home.as_os_str()])?;
        }
        Ok(())
    }

    /// Copies the crates that cargo has downloaded, and its configuration, into the user's home.
    fn copy_crates(home: &Path) -> Result<()> {
        let Some(cargo) = host::cargo_bin().and_then(|bin| Some(bin.parent()?.to_owned())) else {
            return Ok(());
        };
        for (from, to) in
            [("registry/cache", "registry"), ("registry/index", "registry"), ("config.toml", "")]
        {
            let (from, to) = (cargo.join(from), home.join(".cargo").join(to));
            if from.exists() {
                as_root("mkdir", [OsStr::new("-p"), to.as_os_str()])?;
                as_root("cp", [OsStr::new("-r"), from.as_os_str(), to.as_os_str()])?;
            }
        }
        Ok(())
    }

    /// Runs a command in the system's clone, and appends its output to `log`. Returns how long it took.
    fn run(self, root: &Path, command: &str, log: &Path) -> Result<Duration> {
        let packages = vm::cache_entry(&format!("debian-{}-packages", self.release), |_| Ok(()))?;
        // apt downloads as a user of its own.
        as_root("chown", [OsStr::new("0:0"), packages.as_os_str()])?;
        let output = std::fs::File::options().create(true).append(true).open(log)?;
        host::step(format!("{self}: {command}"));
        let start = Instant::now();
        let mut enter = host::as_root("unshare")?;
        enter.args(["--mount", "--propagation=private", "sh", "-c", ENTER, "sh"]).arg(root).arg(self.user());
        enter.arg(format!("cd tracer && {command}")).arg(packages);
        enter.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let status = enter.status().context("cannot start unshare")?;
        ensure!(status.success(), "{command} in {self}: {status}; {}", last_lines(log)?);
        Ok(start.elapsed())
    }

    /// Tries the two commands. Returns a line with what they took.
    pub(crate) fn check(self) -> Result<String> {
        let dir = host::root().join("target/fresh");
        std::fs::create_dir_all(&dir)?;
        let (root, log) = (dir.join(self.to_string()), dir.join(format!("{self}.log")));
        std::fs::write(&log, "")?;
        host::step(format!("Making {self}"));
        self.make(&root)?;
        let main = self.run(&root, RUN, &log)?;
        let text = std::fs::read_to_string(&log)?;
        ensure!(text.contains(TRACED), "{RUN} in {self} shows no event; {}", last_lines(&log)?);
        let tests = self.run(&root, TEST, &log)?;
        self.run(&root, "./x test --was-green", &log)?;
        let text = std::fs::read_to_string(&log)?;
        let result = text.lines().rev().find(|line| line.ends_with(" skipped")).unwrap_or_default();
        remove(&root)?;
        let minutes = |time: Duration| format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60);
        Ok(format!("{self}: main job {}, tests {}: {result}", minutes(main), minutes(tests)))
    }
}

/// Writes a file that belongs to root.
fn write(file: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let mut command = host::as_root("tee")?;
    let mut child = command.arg(file).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    child.stdin.take().context("a pipe")?.write_all(text.as_bytes())?;
    ensure!(child.wait()?.success(), "cannot write {}", file.display());
    Ok(())
}

/// The end of a log.
fn last_lines(log: &Path) -> Result<String> {
    const LINES: usize = 40;
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    Ok(format!("the end of {}:\n{last}", log.display()))
}

/// Options of `cargo xtask fresh`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these, such as bookworm-user
    systems: Vec<System>,
}

/// Runs the verb `fresh`. The log of each system is in `target/fresh`.
pub(crate) fn verb(options: &Options) -> Result<ExitCode> {
    setup::ensure(&[Group::Fresh])?;
    let all: Vec<System> = systems().collect();
    let chosen = if options.systems.is_empty() { &all } else { &options.systems };
    let mut failed = Vec::new();
    let mut done = Vec::new();
    for system in chosen {
        match system.check() {
            Ok(line) => done.push(line),
            Err(error) => {
                eprintln!("{error:#}");
                failed.push(system.to_string());
            }
        }
    }
    for line in done {
        println!("{line}");
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_read() {
        assert_eq!(systems().count(), 4);
        for system in systems() {
            assert_eq!(system.to_string().parse::<System>().unwrap(), system);
        }
        let error = "sid-root".parse::<System>().unwrap_err();
        assert!(error.to_string().contains("bookworm-user, bookworm-root"), "{error}");
    }

    #[test]
    fn the_commands_are_those_of_readme() {
        let readme = std::fs::read_to_string(host::root().join("README.md")).unwrap();
        for command in [RUN, TEST] {
            assert!(readme.lines().any(|line| line.trim() == command), "{command}");
        }
    }
}
