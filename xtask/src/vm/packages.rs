//! Finds, downloads and unpacks Debian packages with the tools of apt and dpkg. It never installs them.
//!
//! This works without root. apt resolves dependencies for an empty machine of the requested architecture, so the
//! host's installed packages do not matter. Only its package lists matter, which are fetched again if they lack a
//! package.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};

use crate::arch::Arch;
use crate::host;

/// Held while the package lists are fetched, because two virtual machines may be prepared at once.
static LISTS: Mutex<bool> = Mutex::new(false);

/// Makes apt take names literally. Without it, apt takes the name of an unknown package as a regular expression:
/// `linux-source-6.1` then matches `linux-source-6.12`.
const EXACT: &str = "APT::Cmd::Pattern-Only=true";

/// Names of packages that start with `prefix`. If there are none, updates the package lists once and tries again.
pub(super) fn names(prefix: &str, arch: Arch) -> Result<Vec<String>> {
    let ask = || -> Result<Vec<String>> {
        let text = host::output(Command::new("apt-cache").args(options(arch)).args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let found = ask()?;
    if !found.is_empty() {
        return Ok(found);
    }
    update_lists()?;
    ask()
}

/// Fetches the package lists, at most once per run.
pub(super) fn update_lists() -> Result<()> {
    let mut done = LISTS.lock().expect("no holder of the lock panics");
    if !*done {
        host::step("Reading the package lists");
        host::run(host::as_root("apt-get")?.args(["update", "-q"]))?;
        *done = true;
    }
    Ok(())
}

/// Whether apt has a download candidate for a package, `NAME` or `NAME:ARCHITECTURE`.
pub(crate) fn is_available(package: &str) -> bool {
    host::output(Command::new("apt-cache").args(["-o", EXACT, "policy", package]))
        .is_ok_and(|text| text.contains("Candidate: ") && !text.contains("Candidate: (none)"))
}

/// apt's options for an empty machine of this architecture.
fn options(arch: Arch) -> Vec<String> {
    let arch = arch.debian();
    [format!("APT::Architecture={arch}"), format!("APT::Architectures={arch}")]
        .into_iter()
        .chain(["Dir::State::status=/dev/null", "Debug::NoLocking=1", EXACT].map(str::to_owned))
        .flat_map(|option| ["-o".to_owned(), option])
        .collect()
}

/// Downloads packages into `dir` and returns the files; `closure` includes their dependencies.
pub(super) fn download(packages: &[&str], arch: Arch, closure: bool, dir: &Path) -> Result<Vec<PathBuf>> {
    let fetch = || {
        let mut command = Command::new("apt-get");
        command.current_dir(dir).args(options(arch)).arg("-qq");
        if closure {
            // apt requires this subdirectory in its archive directory.
            std::fs::create_dir_all(dir.join("partial"))?;
            command.arg("-o").arg(format!("Dir::Cache::archives={}", dir.display()));
            command.args(["--no-install-recommends", "--yes", "--download-only", "install"]);
        } else {
            command.arg("download");
        }
        host::output(command.args(packages)).map(drop)
    };
    if let Err(error) = fetch() {
        // Outdated lists name files that the archive no longer has.
        eprintln!("{error:#}");
        update_lists()?;
        fetch()?;
    }
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "deb"));
    files.sort();
    if files.is_empty() {
        bail!("apt-get downloaded nothing for {}", packages.join(" "));
    }
    Ok(files)
}

/// Unpacks a package's files below `dir`; follows symbolic links to directories there.
pub(super) fn unpack(package: &Path, dir: &Path) -> Result<()> {
    use std::process::Stdio;
    let mut tarfile = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start dpkg-deb")?;
    let pipe = tarfile.stdout.take().expect("stdout is a pipe");
    let mut tar = Command::new("tar");
    tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]).arg(dir).stdin(pipe);
    let unpacked = tar.status().context("cannot start tar")?;
    let read = tarfile.wait()?;
    if !unpacked.success() || !read.success() {
        bail!("cannot unpack {}", package.display());
    }
    Ok(())
}
