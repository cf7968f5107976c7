//! Programs from Debian's packages, unpacked into the cache with all that they depend on.
//!
//! An unpacked program runs with its own libraries through their loader, so it depends only on the machine's kernel. It
//! can be newer or older than the machine's system, and nothing is installed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::cache;
use super::packages::{self, Archive};
use crate::arch::Arch;
use crate::host;

/// Unpacked packages for the host's architecture.
pub(crate) struct Unpacked {
    /// The directory in which `usr` is.
    pub(super) root: PathBuf,
}

impl Unpacked {
    /// A package of this archive with its dependencies, in the entry of this name. Fetches them if the cache does not
    /// have them.
    pub(super) fn get(entry: &str, package: &str, archive: Archive) -> Result<Self> {
        let root = cache::entry(entry, |dir| {
            if host::which("apt-get").is_none() || host::which("dpkg-deb").is_none() {
                bail!("{package} is unpacked from Debian's packages, which takes apt-get and dpkg-deb");
            }
            host::step(format!("Fetching {entry}"));
            fetch(package, archive, dir)
        })?;
        Ok(Self { root })
    }

    /// The directory of the libraries, such as `usr/lib/x86_64-linux-gnu`.
    pub(super) fn libraries(&self) -> Result<PathBuf> {
        let dir = self.root.join("usr/lib").join(format!("{}-linux-gnu", Arch::host()?.name()));
        if !dir.is_dir() {
            bail!("the unpacked packages have no {}", dir.display());
        }
        Ok(dir)
    }

    /// The words that start a program of `usr/bin`.
    pub(crate) fn words(&self, program: &str) -> Result<Vec<OsString>> {
        let libraries = self.libraries()?;
        let loader = match Arch::host()? {
            Arch::X86_64 => libraries.join("ld-linux-x86-64.so.2"),
            Arch::Aarch64 => libraries.join("ld-linux-aarch64.so.1"),
        };
        let program = self.root.join("usr/bin").join(program);
        Ok(vec![loader.into(), "--library-path".into(), libraries.into(), program.into()])
    }

    /// A command that starts a program of `usr/bin`.
    pub(super) fn command(&self, program: &str) -> Result<Command> {
        let words = self.words(program)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }
}

fn fetch(package: &str, archive: Archive, dir: &Path) -> Result<()> {
    let downloads = dir.join("packages");
    std::fs::create_dir_all(&downloads)?;
    for name in ["lib", "lib64"] {
        std::fs::create_dir_all(dir.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), dir.join(name))?;
    }
    for file in archive.download(&[package], Arch::host()?, true, &downloads)? {
        packages::unpack(&file, dir)?;
    }
    std::fs::remove_dir_all(&downloads)?;
    Ok(())
}

/// The newest bpftrace of Debian, which benchmarks compare with.
pub(crate) fn newest_bpftrace() -> Result<Unpacked> {
    const PACKAGE: &str = "bpftrace";
    let archive = Archive::Suite("sid");
    let version = archive.version(PACKAGE, Arch::host()?)?;
    Unpacked::get(&format!("{PACKAGE}-{version}"), PACKAGE, archive)
}
