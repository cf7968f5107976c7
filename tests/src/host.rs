//! Properties of the test machine: privileges, the kernel's tracefs, the binaries under test.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::mount::{MountFlags, UnmountFlags};
use tracer_user::kernel::Btf;
use tracer_user::kernel::features::{self, Feature};

/// Customary mount point of tracefs.
const TRACEFS: &str = "/sys/kernel/tracing";

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The features of `tracer doctor` that hook functions of the kernel; one of them suffices.
pub const FUNCTION_HOOKS: &str = "prog_tracing+kprobe_multi+perf_kprobe";

/// Reports that a test cannot run because a feature is absent. A feature is one of `tracer doctor --json`, several of
/// them with `+` between them, or one of the environment that `xtask/src/test/skips.rs` names. A test run fails if the
/// feature is there.
pub fn skip(feature: &str, why: impl fmt::Display) {
    eprintln!("skipped: {feature}: {why}");
}

/// Whether this process is root. Otherwise it prints that the test is skipped. `cargo xtask test` runs tests that
/// trace as root.
pub fn root_or_skip() -> bool {
    let root = is_root();
    if !root {
        skip("cap_sys_admin", "not root");
    }
    root
}

/// Runs a test that needs root; skips it when this process is not root.
///
/// # Panics
/// When the test returns an error, with that error.
pub fn as_root(test: impl FnOnce() -> Result<()>) {
    if root_or_skip() {
        test().unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Factor by which an emulated machine may be slower than a real machine. Measured: 10 to 20.
const EMULATED: u32 = 20;

/// The time limit on this machine for an operation that may take `time` on a real machine.
pub fn patience(time: Duration) -> Duration {
    if std::env::var_os("TRACER_TESTS_PART").is_some() { EMULATED * time } else { time }
}

/// The divisor of the generated cases: a test runs every `n`th case. It is 1 (all cases) unless `TRACER_TESTS_PART`
/// sets another number. Virtual machines run fewer cases, because emulation is 10 to 20 times slower than the host.
pub fn part() -> u32 {
    let part = std::env::var("TRACER_TESTS_PART").ok().and_then(|part| part.parse().ok());
    part.unwrap_or(1).max(1)
}

/// Number of the `cases` with fixed seeds that a test runs, at least one.
pub fn share(cases: u32) -> u32 {
    (cases / part()).max(1)
}

/// An example of the library, built with the tests.
///
/// # Errors
/// When there is none.
pub fn example(name: &str) -> Result<PathBuf> {
    binary(&format!("examples/{name}"), &format!("TRACER_EXAMPLE_{}", name.to_uppercase()))
}

/// The binary of this name, built with the tests. The environment variable `variable` has its path; otherwise it is
/// in the directory of the running program or the directory above.
///
/// # Errors
/// When there is no such binary, with instructions.
pub fn binary(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe().context("where is the running test?")?;
    // The test is target/PROFILE/deps/TEST-HASH or target/PROFILE/BINARY.
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    match found {
        Some(path) => Ok(path),
        None => bail!("no {name} near {}; `cargo xtask build` makes it, or set {variable}", own.display()),
    }
}

/// Returns a command that runs a binary of the tests, found as by [`binary`], as another user and group. Such a user
/// may not be able to enter the directories above the binary, for example `/root`. So the command executes a
/// descriptor, and the process's name is the descriptor's number.
///
/// # Errors
/// When there is no such binary, or it cannot be opened.
pub fn binary_as(user: u32, group: u32, name: &str, variable: &str) -> Result<Command> {
    /// One descriptor for each binary. They stay open, because a command opens its program when it starts.
    static PROGRAMS: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());
    let path = binary(name, variable)?;
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let program = match programs.entry(path) {
        Entry::Occupied(open) => open.into_mut(),
        Entry::Vacant(new) => {
            let file = File::open(new.key()).with_context(|| new.key().display().to_string())?;
            new.insert(file)
        }
    };
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.uid(user).gid(group);
    Ok(command)
}

/// Kills a process, and waits up to ten seconds for its end. A process with memory of a blocked file system ends only
/// when that is released, which a failed test may do later.
pub fn kill(process: &mut Child) {
    let _ = process.kill();
    for _ in 0..1000 {
        if !matches!(process.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the directory for test files that are expensive to create. It is in the directory of the running program.
///
/// # Errors
/// If the directory cannot be created.
pub fn cache_dir() -> Result<PathBuf> {
    let own = std::env::current_exe().context("where is the running test?")?;
    let dir = own.with_file_name("kept");
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Returns the tree of the running program: the tree that contains the current directory, or else the program's file.
/// Cargo and `cargo xtask test` start tests in the directory of their package.
///
/// # Errors
/// If neither is in a tree.
pub fn tree() -> Result<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let found = starts.iter().flatten().find_map(|start| tree_around(start));
    found.context("neither the current directory nor this program is in a tree of tracer's")
}

/// Returns the nearest directory at or above `start` that has the files of the tests. A virtual machine has only
/// these files of the tree.
fn tree_around(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|dir| dir.join("tests/facts").is_dir()).map(Path::to_path_buf)
}

/// Runs modprobe(8) and returns whether it succeeded.
pub fn modprobe(arguments: &[&str]) -> bool {
    let status = Command::new("modprobe").args(arguments).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The name of a test in the test harness; `module` is `module_path!()`.
pub fn test_name(module: &str, test: &str) -> String {
    let below = module.split_once("::").map_or("", |(_, below)| below);
    format!("{below}::{test}")
}

/// The tracefs mount of the tests. If this process mounted tracefs, dropping the last value unmounts it.
#[derive(Debug)]
pub struct Tracefs {
    root: PathBuf,
}

/// Number of [`Tracefs`] values, and whether this process mounted tracefs.
static MOUNT: Mutex<(usize, bool)> = Mutex::new((0, false));

impl Tracefs {
    /// Finds tracefs in `/proc/self/mounts`, or mounts it.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn find_or_mount() -> Result<Self> {
        let mut state = MOUNT.lock().unwrap_or_else(PoisonError::into_inner);
        let root = if let Some(root) = mounted()? {
            root
        } else {
            rustix::mount::mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None)
                .with_context(|| format!("cannot mount tracefs at {TRACEFS}"))?;
            state.1 = true;
            PathBuf::from(TRACEFS)
        };
        state.0 += 1;
        Ok(Self { root })
    }

    /// The directory of the mount.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every `system:name` of this kernel.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn events(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(self.root.join("available_events")).context("available_events")?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The text of an event's format file.
    ///
    /// # Errors
    /// When there is no such event.
    pub fn format(&self, event: &str) -> Result<String> {
        let path = self.root.join("events").join(event.replace(':', "/")).join("format");
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        let mut state = MOUNT.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 -= 1;
        if state.0 == 0 && state.1 {
            // The unmount fails as busy when another process uses the mount; then the mount stays.
            let _ = rustix::mount::unmount(&self.root, UnmountFlags::empty());
            state.1 = false;
        }
    }
}

/// Whether this kernel counts the hits at perf tracepoints for which it runs no program. Kernels from 6.7 on do. The
/// same patch series added a miss count to kprobe-multi links. BTF shows that member, so this function looks for it.
pub fn counts_missed() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| {
        let btf = Btf::running().ok().flatten();
        btf.is_some_and(|btf| matches!(btf.member("bpf_link_info", "kprobe_multi.missed"), Ok(Some(_))))
    })
}

/// The first two numbers of the kernel's version.
pub fn kernel() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether this kernel and these privileges provide a feature, by its name in `tracer doctor`.
///
/// # Panics
/// When there is no feature of that name.
pub fn offers(name: &str) -> bool {
    static FEATURES: OnceLock<Vec<Feature>> = OnceLock::new();
    let all = FEATURES.get_or_init(features::probe);
    let feature = all.iter().find(|feature| feature.name == name);
    feature.unwrap_or_else(|| panic!("no feature {name}")).answer.is_yes()
}

/// Whether this kernel can probe functions at all. If so, the refusal of a probe is a test failure.
pub fn hooks_functions() -> bool {
    ["fentry_attach", "kprobe_multi", "perf_kprobe"].into_iter().any(offers)
}

/// The mount point of tracefs, if it is mounted.
fn mounted() -> Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    Ok(mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        (kind == "tracefs").then(|| PathBuf::from(at))
    }))
}

/// Number of the last online CPU, independent of the caller's CPU affinity.
///
/// # Errors
/// When sysfs does not report it.
pub fn last_cpu() -> Result<usize> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").context("which CPUs are online?")?;
    let last = online.trim().rsplit([',', '-']).next().and_then(|number| number.parse().ok());
    last.with_context(|| format!("CPUs that are online: {online}"))
}

/// Resident memory of a process in bytes: the peak (`VmHWM`) and the current value (`VmRSS`).
///
/// # Errors
/// When the process is gone.
pub fn resident(pid: u32) -> Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("status of the process")?;
    let value = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    match (value("VmHWM:"), value("VmRSS:")) {
        (Some(peak), Some(now)) => Ok((peak, now)),
        _ => bail!("no resident memory in the status of {pid}"),
    }
}
