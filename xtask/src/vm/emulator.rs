//! The source of QEMU: the machine's own, or Debian's packages unpacked into the cache.
//!
//! The packages are unpacked because an installation of QEMU would remove a newer `qemu-utils`.

use std::process::Command;

use anyhow::Result;

use super::packages::Archive;
use super::unpacked::Unpacked;
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
    let packages = Unpacked::get(package, package, Archive::Host)?;
    let mut command = packages.command(program)?;
    for dir in FIRMWARE.map(|dir| packages.root.join(dir)).iter().filter(|dir| dir.is_dir()) {
        command.arg("-L").arg(dir);
    }
    command.env("QEMU_MODULE_DIR", packages.libraries()?.join("qemu"));
    Ok(command)
}
