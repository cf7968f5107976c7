//! Unpacks the kernel's sources from Debian's `linux-source` packages: the kernel's own tests and samples.
//!
//! An installed package is used; otherwise the package is downloaded but not installed. The sources are never
//! committed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::{host, vm};

/// Versions whose programs for user_events run on the host, and the path of their user_events header.
const VERSIONS: [(&str, &str); 2] =
    [("6.12", "include/uapi/linux/user_events.h"), ("6.1", "include/linux/user_events.h")];
/// Tests and samples, relative to the top directory of a version.
const TESTS: [&str; 7] = [
    "tools/testing/selftests/ftrace",
    "tools/testing/selftests/user_events",
    "tools/testing/selftests/kselftest.h",
    "tools/testing/selftests/kselftest_harness.h",
    "samples/trace_events",
    "samples/trace_printk",
    "samples/user_events/example.c",
];
/// Name prefix of the cache entries of [`tests_of`].
const TESTS_OF: &str = "selftests-";

/// The kernel's tests and samples of a version, unpacked once. Their paths are those of the kernel's tree.
pub(crate) fn tests_of(version: &str) -> Result<PathBuf> {
    vm::cache_entry(&format!("{TESTS_OF}{version}"), |dir| {
        host::step(format!("Unpacking the kernel's own tests of Linux {version}"));
        let header = VERSIONS.iter().find(|(known, _)| *known == version).map(|(_, header)| *header);
        let inside = |path: &str| format!("linux-source-{version}/{path}");
        let paths: Vec<String> = TESTS.into_iter().chain(header).map(inside).collect();
        unpack(version, dir, &paths)
    })
}

/// Unpacks the programs of user_events, which the host's tests compile, of all versions that are available. Returns the
/// directory that contains the entries of [`tests_of`].
pub(crate) fn programs() -> Result<PathBuf> {
    for (version, _) in VERSIONS.iter().filter(|(version, _)| is_available(version)) {
        tests_of(version)?;
    }
    vm::cache_dir()
}

/// Whether the sources of a version are here, or in the archive that has its kernel.
pub(crate) fn is_available(version: &str) -> bool {
    let is_kept = vm::cache_dir().is_ok_and(|dir| dir.join(format!("{TESTS_OF}{version}")).is_dir());
    is_kept || installed(version).is_file() || vm::has_sources(version)
}

/// The archive of an installed package.
fn installed(version: &str) -> PathBuf {
    format!("/usr/src/linux-source-{version}.tar.xz").into()
}

/// Unpacks a version's sources into a directory, limited by `arguments` to tar.
pub(crate) fn unpack(version: &str, dir: &Path, arguments: &[String]) -> Result<()> {
    let installed = installed(version);
    let mut tar = Command::new("tar");
    tar.args(["-xJ", "-f", "-", "--strip-components=1", "-C"]).arg(dir).args(arguments);
    if installed.is_file() {
        tar.stdin(std::fs::File::open(&installed)?);
        return host::run(&mut tar);
    }
    let downloads = dir.join("package");
    std::fs::create_dir_all(&downloads)?;
    let package = &vm::download_sources(version, &downloads)?;
    // An archive within an archive; both are read through pipes.
    let mut outer =
        Command::new("dpkg-deb").arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn()?;
    let mut middle = Command::new("tar")
        .args(["-xO", "-f", "-", &format!(".{}", installed.display())])
        .stdin(outer.stdout.take().context("a pipe")?)
        .stdout(Stdio::piped())
        .spawn()?;
    tar.stdin(middle.stdout.take().context("a pipe")?);
    let unpacked = host::run(&mut tar);
    ensure!(middle.wait()?.success() && outer.wait()?.success(), "{} is broken", package.display());
    unpacked?;
    std::fs::remove_dir_all(&downloads)?;
    Ok(())
}
