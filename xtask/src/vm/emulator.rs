//! The source of QEMU: the machine's own, or Debian's packages unpacked into the cache.
//!
//! The packages are unpacked because an installation of QEMU would remove a newer `qemu-utils`. The unpacked program
//! includes its libraries and their loader, so it depends only on the machine's kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::cache;
use super::packages::{self, Archive};
use crate::arch::Arch;
use crate::host;

/// Directories of firmware and option ROMs in the packages.
const FIRMWARE: [&str; 3] = ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"];

/// A command that starts the emulator of `arch`. Downloads the emulator if neither the machine nor the cache has it.
pub(super) fn get(arch: Arch) -> Result<Command> {
    let program = format!("qemu-system-{}", arch.name());
    match host::which(&program) {
        Some(path) => Ok(Command::new(path)),
        None => unpacked(arch, &program),
    }
}

/// The emulator from the cache.
fn unpacked(arch: Arch, program: &str) -> Result<Command> {
    let package = match arch {
        Arch::X86_64 => "qemu-system-x86",
        Arch::Aarch64 => "qemu-system-arm",
    };
    let root = cache::entry(package, |dir| {
        if host::which("apt-get").is_none() || host::which("dpkg-deb").is_none() {
            bail!("{program} is not here, and this is not Debian: install QEMU");
        }
        host::step(format!("Fetching QEMU ({})", arch.name()));
        fetch(package, dir)
    })?;
    let libraries = library_dir(&root)?;
    let loader = match Arch::host()? {
        Arch::X86_64 => libraries.join("ld-linux-x86-64.so.2"),
        Arch::Aarch64 => libraries.join("ld-linux-aarch64.so.1"),
    };
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(&libraries).arg(root.join("usr/bin").join(program));
    for dir in FIRMWARE.map(|dir| root.join(dir)).iter().filter(|dir| dir.is_dir()) {
        command.arg("-L").arg(dir);
    }
    command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
    Ok(command)
}

/// The directory of the unpacked libraries, such as `usr/lib/x86_64-linux-gnu`.
fn library_dir(root: &Path) -> Result<PathBuf> {
    let dir = root.join("usr/lib").join(format!("{}-linux-gnu", Arch::host()?.name()));
    if !dir.is_dir() {
        bail!("the unpacked QEMU has no {}", dir.display());
    }
    Ok(dir)
}

fn fetch(package: &str, dir: &Path) -> Result<()> {
    let downloads = dir.join("packages");
    std::fs::create_dir_all(&downloads)?;
    for name in ["lib", "lib64"] {
        std::fs::create_dir_all(dir.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), dir.join(name))?;
    }
    for file in Archive::Host.download(&[package], Arch::host()?, true, &downloads)? {
        packages::unpack(&file, dir)?;
    }
    std::fs::remove_dir_all(&downloads)?;
    Ok(())
}
