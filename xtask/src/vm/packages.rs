//! Finds, downloads and unpacks Debian packages with the tools of apt and dpkg. It never installs them.
//!
//! This works without root. apt resolves dependencies for an empty machine of the requested architecture, so the
//! host's installed packages do not matter. Only package lists matter: the host's own, or those of one suite, which
//! are kept in the cache. They are fetched again if they lack a package.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, Result, anyhow, bail};

use super::cache;
use crate::arch::Arch;
use crate::host;

/// The archives whose package lists were fetched in this run. Locked while lists are fetched, because two virtual
/// machines may be prepared at once.
static FETCHED: Mutex<Vec<Archive>> = Mutex::new(Vec::new());

/// Makes apt take names literally. Without it, apt takes the name of an unknown package as a regular expression:
/// `linux-source-6.1` then matches `linux-source-6.12`.
const EXACT: &str = "APT::Cmd::Pattern-Only=true";
/// The keys of Debian's archives, from the package `debian-archive-keyring`.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where packages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Archive {
    /// The archives that the host is configured for.
    Host,
    /// A suite of Debian, such as `bookworm-security`, on the server that the host is configured for.
    Suite(&'static str),
}

impl Archive {
    /// Names of packages that start with `prefix`. If there are none, fetches the package lists once and tries again.
    pub(super) fn names(self, prefix: &str, arch: Arch) -> Result<Vec<String>> {
        let ask = || -> Result<Vec<String>> {
            let text = host::output(self.tool("apt-cache", arch)?.args(["pkgnames", prefix]))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        let found = ask()?;
        if !found.is_empty() {
            return Ok(found);
        }
        self.update_lists()?;
        ask()
    }

    /// Fetches the package lists, at most once per run.
    pub(super) fn update_lists(self) -> Result<()> {
        let mut fetched = FETCHED.lock().expect("no holder of the lock panics");
        if fetched.contains(&self) {
            return Ok(());
        }
        match self {
            Self::Host => {
                host::step("Reading the package lists");
                host::run(host::as_root("apt-get")?.args(["update", "-q"]))?;
            }
            Self::Suite(suite) => {
                host::step(format!("Reading the package lists of {suite}"));
                let dir = lists_of(suite)?;
                for sub in ["lists/partial", "archives/partial"] {
                    std::fs::create_dir_all(dir.join(sub))?;
                }
                std::fs::write(dir.join("sources.list"), source_line(suite)?)?;
                host::output(self.tool("apt-get", Arch::host()?)?.args(["update", "-q"]))?;
            }
        }
        fetched.push(self);
        Ok(())
    }

    /// Whether there is a package, according to the lists that are here.
    pub(super) fn has(self, package: &str, arch: Arch) -> bool {
        let policy = || host::output(self.tool("apt-cache", arch)?.args(["policy", package]));
        policy().is_ok_and(|text| candidate(&text).is_some())
    }

    /// The version of a package, according to the lists that are here. Fetches the lists if they lack the package.
    pub(super) fn version(self, package: &str, arch: Arch) -> Result<String> {
        let ask = || -> Result<Option<String>> {
            let text = host::output(self.tool("apt-cache", arch)?.args(["policy", package]))?;
            Ok(candidate(&text))
        };
        // Without lists there is no file that says where they come from.
        if let Ok(Some(version)) = ask() {
            return Ok(version);
        }
        self.update_lists()?;
        ask()?.ok_or_else(|| anyhow!("the archive has no {package}"))
    }

    /// A command of apt for an empty machine of this architecture.
    fn tool(self, name: &str, arch: Arch) -> Result<Command> {
        let mut options =
            ["Dir::State::status=/dev/null", "Debug::NoLocking=1", EXACT].map(str::to_owned).to_vec();
        match self {
            Self::Host => {
                let arch = arch.debian();
                options.extend([format!("APT::Architecture={arch}"), format!("APT::Architectures={arch}")]);
            }
            Self::Suite(suite) => {
                let dir = lists_of(suite)?;
                let of_all = Arch::ALL.map(Arch::debian).join(",");
                options.extend([
                    format!("APT::Architecture={}", arch.debian()),
                    format!("APT::Architectures={of_all}"),
                    format!("Dir::Etc::sourcelist={}", dir.join("sources.list").display()),
                    "Dir::Etc::sourceparts=/dev/null".to_owned(),
                    format!("Dir::State::lists={}", dir.join("lists").display()),
                    format!("Dir::Cache={}", dir.display()),
                    // The user of the sandbox cannot enter the cache.
                    "APT::Sandbox::User=root".to_owned(),
                ]);
            }
        }
        let mut command = Command::new(name);
        for option in options {
            command.args(["-o", &option]);
        }
        Ok(command)
    }

    /// Downloads packages into `dir` and returns the files; `closure` includes their dependencies.
    pub(super) fn download(
        self,
        packages: &[&str],
        arch: Arch,
        closure: bool,
        dir: &Path,
    ) -> Result<Vec<PathBuf>> {
        let fetch = || {
            let mut command = self.tool("apt-get", arch)?;
            command.current_dir(dir).arg("-qq");
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
            self.update_lists()?;
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
}

/// The version that `apt-cache policy` would install.
fn candidate(policy: &str) -> Option<String> {
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (candidate != "(none)").then(|| candidate.to_owned())
}

/// Directory of a suite's package lists.
fn lists_of(suite: &str) -> Result<PathBuf> {
    Ok(cache::dir()?.join("apt").join(suite))
}

/// The line for apt that names a suite. The server is the one that the host is configured for.
fn source_line(suite: &str) -> Result<String> {
    // One line for each package list: server, origin and label.
    let format = "$(REPO_URI)|$(ORIGIN)|$(LABEL)";
    let targets = host::output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        format,
        "Created-By: Packages",
    ]))?;
    let uri = server_of(suite, &targets)
        .ok_or_else(|| anyhow!("apt is not configured for Debian, where {suite} would come from"))?;
    let archs = Arch::ALL.map(Arch::debian).join(",");
    let keys = if Path::new(KEYS).is_file() { format!(" signed-by={KEYS}") } else { String::new() };
    Ok(format!("deb [arch={archs}{keys}] {uri} {suite} main\n"))
}

/// The server of a suite among lines of server, origin and label, separated by `|`. Servers of Debian have its security
/// archive beside the other.
fn server_of(suite: &str, targets: &str) -> Option<String> {
    let labelled = |label: &str| {
        targets.lines().find_map(|line| {
            let mut parts = line.split('|');
            let uri = parts.next()?.trim_end_matches('/');
            (parts.next()? == "Debian" && parts.next()? == label).then_some(uri)
        })
    };
    let of_debian = || labelled("Debian").map(str::to_owned);
    if suite.ends_with("-security") {
        let configured = labelled("Debian-Security").map(str::to_owned);
        return configured.or_else(|| of_debian().map(|uri| uri + "-security"));
    }
    of_debian()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_version() {
        let policy = "bpftrace:\n  Installed: (none)\n  Candidate: 0.27.1-1\n  Version table:\n";
        assert_eq!(candidate(policy).as_deref(), Some("0.27.1-1"));
        assert_eq!(candidate("x:\n  Installed: (none)\n  Candidate: (none)\n"), None);
    }

    #[test]
    fn a_suite_comes_from_the_configured_server() {
        let targets = "http://other/|Other|Debian\n\
                       http://mirror/debian/|Debian|Debian\n\
                       http://mirror/debian-security/|Debian|Debian-Security\n";
        let server = |suite| server_of(suite, targets);
        assert_eq!(server("trixie-backports").as_deref(), Some("http://mirror/debian"));
        assert_eq!(server("bookworm-security").as_deref(), Some("http://mirror/debian-security"));
        let only = "http://mirror/debian/|Debian|Debian\n";
        assert_eq!(server_of("bookworm-security", only).as_deref(), Some("http://mirror/debian-security"));
        assert_eq!(server_of("sid", "http://other/|Other|Debian\n"), None);
        assert_eq!(server_of("sid", ""), None);
    }
}
