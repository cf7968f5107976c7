//! `cargo xtask vm`: runs a command in a virtual machine with a Debian kernel.
//!
//! A machine consists of a kernel ([`kernel`]), a root file system ([`root`]) and a payload that is built for each
//! run. The payload contains the built binaries and the other files of the job. Files of the tree have the same paths
//! as on the host, so that the tests find them in the guest. Kernel and root are cached outside the tree. All writes
//! of the guest are discarded, except the files in [`Job::keep`].

mod cache;
mod cpio;
mod emulator;
mod image;
mod kernel;
mod packages;
mod qemu;
mod root;
pub(crate) mod samples;
mod tsc;
mod unpacked;

pub(crate) use cache::{dir as cache_dir, entry as cache_entry};
pub(crate) use kernel::cached as cached_kernel;
pub(crate) use unpacked::newest_bpftrace;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::arch::Arch;
use crate::build::{self, Profile};
use crate::host;
use crate::setup::{self, Group};

/// Directory of binaries in the guest, relative to the tree's path.
pub(crate) const BIN: &str = ".vm/bin";

/// An output stream of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The configuration of a virtual machine.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Machine {
    /// Version of Debian's kernel, 6.1, 6.12 or 7.3; or the files of a kernel's packages, separated by commas; or the
    /// file of an image (with a slash) with virtio drivers and ext4 built in, such as `cargo xtask kernel` builds
    #[arg(long = "kernel", default_value = "6.12", value_name = "VERSION")]
    pub(crate) version: String,
    /// Architecture of the guest
    #[arg(long, value_enum, default_value = host::arch())]
    pub(crate) arch: Arch,
    /// Number of CPUs
    #[arg(long, default_value_t = 2)]
    pub(crate) cpus: u32,
    /// Memory in MiB
    #[arg(long, default_value_t = 1536)]
    pub(crate) memory: u32,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 3600)]
    pub(crate) timeout: u64,
    /// Look for a newer kernel than the cached one
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Words for the kernel's command line
    #[arg(long, default_value = "", value_name = "WORDS")]
    pub(crate) append: String,
    /// Use KVM (default: software emulation, which works everywhere)
    #[arg(long)]
    pub(crate) kvm: bool,
    /// Let a nanosecond pass in the guest for each instruction, so that what it measures is a number of instructions
    #[arg(long, conflicts_with = "kvm")]
    pub(crate) icount: bool,
}

impl Machine {
    /// A machine with default settings.
    pub(crate) fn of(version: &str, arch: Arch) -> Self {
        Self {
            version: version.to_owned(),
            arch,
            cpus: 2,
            memory: 1536,
            timeout: 3600,
            fresh: false,
            append: String::new(),
            kvm: false,
            icount: false,
        }
    }
}

/// A job for a machine.
#[derive(Debug, Default)]
pub(crate) struct Job {
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Additional environment variables.
    pub(crate) env: Vec<(String, String)>,
    /// Files and directories of the host, and their destinations relative to the tree's path in the guest.
    pub(crate) payload: Vec<(PathBuf, PathBuf)>,
    /// Modules to load first; built-in ones are allowed.
    pub(crate) modules: Vec<String>,
    /// Files of the guest, and their destinations on the host.
    pub(crate) keep: Vec<(PathBuf, PathBuf)>,
}

/// The result of a job.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The command's exit code.
    pub(crate) code: u8,
    /// The kernel's release.
    pub(crate) release: String,
    /// Time from power-on to the command's start, by the guest's clock.
    pub(crate) boot: Duration,
    /// Duration of the command, by the guest's clock.
    pub(crate) time: Duration,
}

/// Downloads the package of a version's sources into a directory.
pub(crate) fn download_sources(version: &str, dir: &Path) -> Result<PathBuf> {
    let name = format!("linux-source-{version}");
    let files = kernel::archive(version)?.download(&[&name], Arch::host()?, false, dir)?;
    files.into_iter().next().context("a package")
}

/// Whether the package of a version's sources can be downloaded.
pub(crate) fn has_sources(version: &str) -> bool {
    let name = format!("linux-source-{version}");
    let names = || kernel::archive(version)?.names(&name, Arch::host()?);
    names().is_ok_and(|names| names.contains(&name))
}

/// Downloads and builds the machine's components ahead of a run.
pub(crate) fn prepare(machine: &Machine) -> Result<()> {
    kernel::get(&machine.version, machine.arch, machine.fresh)?;
    root::get(machine.arch)?;
    emulator::get(machine.arch)?;
    Ok(())
}

/// Boots a machine and runs the job in it as root; `sink` receives the job's output.
///
/// # Errors
/// If the machine cannot be built, does not boot, panics or exceeds its time limit. The error then contains the
/// console's last lines, and the whole log stays in `target/vm`. A failing command is not an error here.
pub(crate) fn run(machine: &Machine, job: &Job, sink: &mut dyn FnMut(Stream, &[u8])) -> Result<Outcome> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let kernel = kernel::get(&machine.version, machine.arch, machine.fresh)?;
    let root = root::get(machine.arch)?;
    let emulator = emulator::get(machine.arch)?;
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let is_version = kernel::archive(&machine.version).is_ok();
    let version = if is_version { &machine.version } else { "own" };
    let name = format!("{version}-{}-{}.{number}", machine.arch.name(), std::process::id());
    let runs = host::root().join("target/vm");
    sweep(&runs);
    let dir = runs.join(name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let (initramfs, payload) = (dir.join("initramfs"), dir.join("payload.img"));
    let (console, report, kept) = (dir.join("console.log"), dir.join("report"), dir.join("kept.tar"));
    fs::write(&initramfs, make_initramfs(&kernel, &root, job)?)?;
    make_payload(machine.arch, job, &dir.join("payload"), &payload)?;
    let files = qemu::Files {
        vmlinuz: &kernel.vmlinuz,
        initramfs: &initramfs,
        root: &root.image,
        modules: &kernel.modules,
        payload: &payload,
        console: &console,
        report: &report,
        kept: &kept,
    };
    let timeout = Duration::from_secs(machine.timeout);
    let ended = qemu::run(&qemu::command(emulator, machine, &files), timeout, &report, sink);
    fs::remove_file(&payload).and_then(|()| fs::remove_file(&initramfs))?;
    let report = ended.with_context(|| last_words(&kernel.release, &console))?;
    let (Some(up), Some((code, end))) = (report.up, report.exit) else {
        let when = if report.up.is_some() { "while the command ran" } else { "while it booted" };
        return Err(GuestDied { when, last_words: last_words(&kernel.release, &console) }.into());
    };
    keep(job, &kept, &dir, code)?;
    fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    Ok(Outcome { code, release: kernel.release, boot: up, time: end.saturating_sub(up) })
}

/// The guest's kernel crashed, or the guest ended without a report.
#[derive(Debug, thiserror::Error)]
#[error("the guest died {when}\n{last_words}")]
pub(crate) struct GuestDied {
    when: &'static str,
    last_words: String,
}

/// Removes the files of interrupted runs, except the console logs.
fn sweep(runs: &Path) {
    for run in fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = run.file_name().to_string_lossy().into_owned();
        // VERSION-ARCH-PID.NUMBER
        let pid = name.rsplit('-').next().and_then(|last| last.split('.').next()).unwrap_or_default();
        if !pid.is_empty() && !Path::new("/proc").join(pid).exists() {
            for big in ["payload.img", "initramfs", "kept.tar"] {
                let _ = fs::remove_file(run.path().join(big));
            }
            for tree in ["payload", "kept"] {
                let _ = fs::remove_dir_all(run.path().join(tree));
            }
        }
    }
}

/// The end of the console's log, and the path of the whole log.
fn last_words(release: &str, console: &Path) -> String {
    let log = fs::read(console).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().map(str::trim_end).collect();
    let last = lines[lines.len().saturating_sub(40)..].join("\n");
    format!("Linux {release}, console in {}:\n{last}", console.display())
}

/// The initramfs: busybox, the first drivers, and the job.
fn make_initramfs(kernel: &kernel::Kernel, root: &root::Root, job: &Job) -> Result<Vec<u8>> {
    let tree = host::root().to_string_lossy();
    let mut cpio = cpio::Cpio::default();
    for dir in ["bin", "modules", "job"] {
        cpio.dir(dir);
    }
    cpio.file("init", 0o755, include_bytes!("../../guest/early.sh"));
    cpio.file("bin/busybox", 0o755, &fs::read(&root.busybox).context("the root has no busybox")?);
    for driver in &kernel.first {
        let name = driver.file_name().unwrap_or_default().to_string_lossy();
        cpio.file(&format!("modules/{name}"), 0o644, &fs::read(driver)?);
    }
    cpio.file("job/init", 0o755, include_bytes!("../../guest/init.sh"));
    cpio.file("job/tree", 0o644, tree.as_bytes());
    cpio.file("job/modprobe", 0o644, job.modules.join("\n").as_bytes());
    let kept: Vec<_> = job.keep.iter().map(|(guest, _)| relative(guest).to_string_lossy()).collect();
    cpio.file("job/out", 0o644, kept.join("\n").as_bytes());
    cpio.file("job/command", 0o755, script(&tree, job).as_bytes());
    Ok(cpio.finish())
}

/// The job as a shell script.
fn script(tree: &str, job: &Job) -> String {
    use std::fmt::Write as _;
    let mut text = "#!/bin/sh\n".to_owned();
    let _ = writeln!(text, "export PATH={}:$PATH", quote(&format!("{tree}/{BIN}")));
    for (name, value) in &job.env {
        let _ = writeln!(text, "export {name}={}", quote(value));
    }
    let words: Vec<String> = job.command.iter().map(|word| quote(word)).collect();
    let _ = writeln!(text, "cd {} || exit 127\nexec {}", quote(tree), words.join(" "));
    text
}

/// Quotes a word for the shell.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Assembles the payload in `staging` and builds an image of it.
fn make_payload(arch: Arch, job: &Job, staging: &Path, image: &Path) -> Result<()> {
    fs::create_dir_all(staging.join(BIN))?;
    for (from, to) in &job.payload {
        let to = staging.join(to);
        fs::create_dir_all(to.parent().unwrap_or(staging))?;
        copy(arch, from, &to).with_context(|| format!("cannot take {} along", from.display()))?;
    }
    image::ext4(staging, image, 256 << 20)?;
    fs::remove_dir_all(staging)?;
    Ok(())
}

/// Copies a file or a tree without nested build outputs; programs lose their debug information.
fn copy(arch: Arch, from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            if entry.file_name() != "target" {
                copy(arch, &entry.path(), &to.join(entry.file_name()))?;
            }
        }
        return Ok(());
    }
    let strip =
        if arch.is_foreign() { format!("{}-linux-gnu-strip", arch.name()) } else { "strip".to_owned() };
    let stripped = host::is_executable(from)
        && Command::new(strip)
            .args(["--strip-debug", "-o"])
            .args([to, from])
            .output()
            .is_ok_and(|out| out.status.success());
    if !stripped {
        fs::copy(from, to)?;
    }
    Ok(())
}

/// Copies the files that the job kept to their destinations. `code` is the command's exit code.
fn keep(job: &Job, archive: &Path, dir: &Path, code: u8) -> Result<()> {
    if job.keep.is_empty() {
        return Ok(());
    }
    let unpacked = dir.join("kept");
    fs::create_dir_all(&unpacked)?;
    host::output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&unpacked))?;
    for (guest, to) in &job.keep {
        let from = unpacked.join(relative(guest));
        // The command may have failed before it made the file; its exit code is reported then.
        if !from.exists() {
            ensure!(code != 0, "the guest has no {}", guest.display());
            continue;
        }
        host::output(Command::new("cp").arg("-rT").args([&from, to]))?;
    }
    Ok(())
}

/// A sink that passes everything on to this process's own outputs.
pub(crate) fn pass_on(stream: Stream, bytes: &[u8]) {
    // If the reader has closed the output, only the exit code remains useful.
    let _ = match stream {
        Stream::Out => std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush()),
        Stream::Err => std::io::stderr().write_all(bytes),
    };
}

/// Options of `cargo xtask vm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: Machine,
    /// Copy a file or directory out of the guest at the end; may be repeated
    #[arg(long = "out", value_name = "GUESTPATH:HOSTPATH", value_parser = parse_pair)]
    out: Vec<(PathBuf, PathBuf)>,
    /// Copy a file or directory into the guest, below the tree's path; may be repeated
    #[arg(long = "in", value_name = "HOSTPATH:GUESTPATH", value_parser = parse_pair)]
    into: Vec<(PathBuf, PathBuf)>,
    /// Load a kernel module first; may be repeated
    #[arg(long, value_name = "NAME")]
    modprobe: Vec<String>,
    /// Do not build tracer and do not include it
    #[arg(long)]
    bare: bool,
    /// Use the optimised build of tracer instead of the fast one
    #[arg(long, conflicts_with = "bare")]
    release: bool,
    /// The command to run as root in the guest; `tracer` is on its PATH
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

fn parse_pair(text: &str) -> Result<(PathBuf, PathBuf)> {
    let (a, b) = text.split_once(':').context("two paths with a colon between them are wanted")?;
    ensure!(!a.is_empty() && !b.is_empty(), "neither path may be empty");
    Ok((a.into(), b.into()))
}

/// The setup groups that a machine needs.
pub(crate) fn groups(arch: Arch) -> &'static [Group] {
    if arch.is_foreign() { &[Group::Build, Group::Vm, Group::Cross] } else { &[Group::Build, Group::Vm] }
}

/// Runs the verb `vm`; returns the command's exit code.
pub(crate) fn verb(options: &Options) -> Result<ExitCode> {
    let machine = &options.machine;
    setup::ensure(groups(machine.arch))?;
    let mut job = Job {
        command: options.command.clone(),
        payload: options.into.clone(),
        // FUSE is a module in some kernels, and the mirror of tracefs needs it.
        modules: std::iter::once("fuse".to_owned()).chain(options.modprobe.iter().cloned()).collect(),
        keep: options.out.clone(),
        ..Job::default()
    };
    if !options.bare {
        let profile = if options.release { Profile::Release } else { Profile::Dev };
        let tracer = build::tracer(machine.arch, profile, false)?;
        job.payload.push((tracer, Path::new(BIN).join("tracer")));
    }
    host::step(format!("Booting Linux {} ({})", machine.version, machine.arch.name()));
    let outcome = run(machine, &job, &mut pass_on)?;
    host::step(format!(
        "Linux {} booted in {:.1} s, the command took {:.1} s and ended with {}",
        outcome.release,
        outcome.boot.as_secs_f64(),
        outcome.time.as_secs_f64(),
        outcome.code
    ));
    Ok(ExitCode::from(outcome.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_quoted_for_the_shell() {
        let job = Job {
            command: vec!["echo".into(), "it's".into(), "$HOME".into()],
            env: vec![("A".into(), "b c".into())],
            ..Job::default()
        };
        let text = script("/src", &job);
        let (_, tail) = text.split_once("export A=").unwrap();
        assert_eq!(tail, "'b c'\ncd '/src' || exit 127\nexec 'echo' 'it'\\''s' '$HOME'\n");
    }

    #[test]
    fn remains_of_interrupted_runs_are_removed() {
        let runs = std::env::temp_dir().join(format!("xtask-sweep-{}", std::process::id()));
        let (dead, alive) =
            (runs.join("6.1-x86_64-4194305.0"), runs.join(format!("6.1-x86_64-{}.0", std::process::id())));
        for dir in [&dead, &alive] {
            fs::create_dir_all(dir.join("payload/x")).unwrap();
            for file in ["console.log", "payload.img"] {
                fs::write(dir.join(file), "").unwrap();
            }
        }
        sweep(&runs);
        let left = |dir: &Path| fs::read_dir(dir).unwrap().count();
        assert_eq!((left(&dead), left(&alive)), (1, 3));
        assert!(dead.join("console.log").exists());
        fs::remove_dir_all(&runs).unwrap();
    }

    #[test]
    fn pairs_of_paths_are_checked() {
        assert_eq!(parse_pair("/a:b").unwrap(), (PathBuf::from("/a"), PathBuf::from("b")));
        assert!(parse_pair("/a").is_err());
        assert!(parse_pair(":b").is_err());
    }
}
