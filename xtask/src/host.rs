//! Shared functions of the verbs: the tree's root, the user, and commands that are shown, run and checked.
//!
//! The lowest of xtask's modules: it uses no toolchain, package or virtual machine.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// The workspace's root, found at each start. A compile-time path would be wrong after a checkout is moved, because
/// cargo does not rebuild then.
pub(crate) fn root() -> &'static Path {
    static ROOT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        // `cargo run` and `cargo test` set this variable for the program that they start.
        let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let starts = [package, std::env::current_dir().ok(), std::env::current_exe().ok()];
        starts.iter().flatten().find_map(|start| tree_around(start))
    });
    ROOT.as_deref().expect("run it by cargo, or somewhere in the tree")
}

/// The nearest directory at or above `start` that is a workspace's root.
fn tree_around(start: &Path) -> Option<PathBuf> {
    let is_root = |dir: &&Path| dir.join("xtask/Cargo.toml").is_file() && dir.join("Cargo.lock").is_file();
    start.ancestors().find(is_root).map(Path::to_path_buf)
}

/// Time since the first call.
pub(crate) fn elapsed() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// Reports the next step on standard error, so that standard output contains only the commands' output. A step that starts
/// after the first second shows when: `==> [4:11] Clippy`.
pub(crate) fn step(what: impl AsRef<str>) {
    let (what, seconds) = (what.as_ref(), elapsed().as_secs());
    match seconds {
        0 => eprintln!("==> {what}"),
        _ => eprintln!("==> [{}:{:02}] {what}", seconds / 60, seconds % 60),
    }
}

/// Whether this process runs as root: the owner of `/proc/self` is the effective user.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// The kernel's name of this machine's architecture.
pub(crate) fn arch() -> &'static str {
    std::env::consts::ARCH
}

/// A command that runs as root, through `sudo` if necessary.
pub(crate) fn as_root(program: impl AsRef<OsStr>) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    if which("sudo").is_none() {
        bail!("{} needs root, and there is no sudo here: run this as root", program.as_ref().display());
    }
    let mut command = Command::new("sudo");
    command.arg("--").arg(program);
    Ok(command)
}

/// Finds an executable on `PATH`, and in the system directories that an ordinary user's `PATH` may lack.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

/// Whether `file` is a regular file with an execute permission bit.
pub(crate) fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
}

/// The directory into which `cargo install` puts programs.
pub(crate) fn cargo_bin() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("bin"))
}

/// Searches for a program on `PATH` and in the directory of `cargo install`.
pub(crate) fn cargo_program(name: &str) -> Option<PathBuf> {
    which(name).or_else(|| Some(cargo_bin()?.join(name)).filter(|program| is_executable(program)))
}

/// The cargo that runs this task, for everything except eBPF.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    strip_cargo_env(&mut command);
    command
}

/// A git command for the repository at `tree`. It accepts any owner, because a job that runs as root may build
/// another user's checkout.
pub(crate) fn git(tree: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(tree).args(["-c", "safe.directory=*"]);
    command
}

/// Removes the variables that `cargo run` sets for the package it runs.
///
/// `CARGO_PKG_*` and `CARGO_MANIFEST_DIR` would invalidate the caches of build scripts that watch them, and the library
/// path belongs to one toolchain only.
pub(crate) fn strip_cargo_env(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST") {
            command.env_remove(&name);
        }
    }
    command.env_remove("LD_LIBRARY_PATH");
}

/// Prints the command and runs it with inherited input and output.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("  $ {}", display(command));
    let status = command.status().with_context(|| format!("cannot start {}", display(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", display(command));
    }
    Ok(())
}

/// Runs the command and returns its standard output; the error contains its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", display(command)))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        bail!("{} ended with {}: {}", display(command), out.status, why.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The command as a shell line: program and arguments, quoted where necessary.
pub(crate) fn display(command: &Command) -> String {
    let quote = |s: &OsStr| {
        let s = s.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
        if !s.is_empty() && s.chars().all(plain) {
            s.into_owned()
        } else {
            format!("'{}'", s.replace('\'', r"'\''"))
        }
    };
    std::iter::once(command.get_program()).chain(command.get_args()).map(quote).collect::<Vec<_>>().join(" ")
}

/// Writes a file only if its content changes, so that cargo does not rebuild crates that embed it.
pub(crate) fn write_if_changed(path: &Path, content: &[u8]) -> Result<bool> {
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_one_types_them() {
        let mut c = Command::new("sh");
        c.args(["-c", "echo 'a' b", "", "x=y"]);
        assert_eq!(display(&c), r"sh -c 'echo '\''a'\'' b' '' x=y");
    }

    #[test]
    fn root_is_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").is_file());
        assert!(root().join("tracer-abi").is_dir());
    }

    #[test]
    fn the_tree_is_found_from_any_directory_inside_it() {
        let place = std::env::temp_dir().join(format!("xtask a tree-{}", std::process::id()));
        let inside = place.join("xtask/src");
        std::fs::create_dir_all(&inside).unwrap();
        assert_eq!(tree_around(&inside), None, "no tree yet");
        for file in ["xtask/Cargo.toml", "Cargo.lock"] {
            std::fs::write(place.join(file), "").unwrap();
        }
        for start in [&inside, &place, &place.join("target/debug/xtask")] {
            assert_eq!(tree_around(start).as_deref(), Some(&*place), "{}", start.display());
        }
        // For a clone inside a clone the inner one is found.
        let inner = place.join("inner");
        std::fs::create_dir_all(inner.join("xtask")).unwrap();
        for file in ["xtask/Cargo.toml", "Cargo.lock"] {
            std::fs::write(inner.join(file), "").unwrap();
        }
        assert_eq!(tree_around(&inner.join("xtask")), Some(inner));
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn errors_of_commands_contain_their_standard_error() {
        let e = output(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"])).unwrap_err();
        assert!(e.to_string().ends_with("ended with exit status: 3: no luck"), "{e}");
    }
}
