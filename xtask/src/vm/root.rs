//! The guest's root file system: a few Debian packages of the host's release, unpacked into an image.
//!
//! The packages are unpacked, not installed, because maintainer scripts would need root, and emulation for arm64.
//! This module performs the necessary actions of those scripts itself. The release is the host's, so that programs
//! built on the host find their libc.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::packages::{self, Archive};
use super::{cache, image};
use crate::arch::Arch;
use crate::host;

/// The requested packages; apt adds their dependencies.
const PACKAGES: [&str; 26] = [
    "base-files",
    "base-passwd",
    "bash",
    // Cases of the kernel's suite need its readelf.
    "binutils",
    "bpftool",
    "busybox-static",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    // A case of the kernel's suite needs its strtonum().
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "iputils-ping",
    "kmod",
    "libc-bin",
    "libgcc-s1",
    "mount",
    "procps",
    "sed",
    "tar",
    "trace-cmd",
    // Replaces the usrmerge program and its Perl.
    "usr-is-merged",
    "util-linux",
    "zstd",
];

/// Directories that Debian has merged into `/usr`.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Free space in bytes for a job's files outside `/tmp`.
const FREE: u64 = 512 << 20;

/// A root file system in the cache.
#[derive(Debug)]
pub(super) struct Root {
    /// The ext4 image.
    pub(super) image: PathBuf,
    /// Its statically linked busybox, for the initramfs.
    pub(super) busybox: PathBuf,
}

/// The root for an architecture; creates it if it is not cached.
pub(super) fn get(arch: Arch) -> Result<Root> {
    let dir = cache::entry(&cache_name(arch), |dir| make(arch, dir))?;
    Ok(Root { image: dir.join("root.img"), busybox: dir.join("busybox") })
}

/// A cache name that depends on the release, the list of packages and this recipe's version.
fn cache_name(arch: Arch) -> String {
    const RECIPE: u32 = 1;
    let mut hasher = DefaultHasher::new();
    (RECIPE, PACKAGES).hash(&mut hasher);
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release.lines().find_map(|l| l.strip_prefix("VERSION_CODENAME=")).unwrap_or("unknown");
    format!("root-{codename}-{}-{:08x}", arch.name(), hasher.finish() as u32)
}

fn make(arch: Arch, dir: &Path) -> Result<()> {
    host::step(format!("Making the guest's root file system ({})", arch.name()));
    let downloads = dir.join("packages");
    let root = dir.join("root");
    for sub in [&downloads, &root] {
        std::fs::create_dir_all(sub)?;
    }
    for name in MERGED {
        std::fs::create_dir_all(root.join("usr").join(name))?;
        symlink(format!("usr/{name}"), root.join(name))?;
    }
    for package in Archive::Host.download(&PACKAGES, arch, true, &downloads)? {
        packages::unpack(&package, &root)?;
    }
    configure(&root).context("cannot complete the guest's root")?;
    std::fs::copy(root.join("usr/bin/busybox"), dir.join("busybox"))?;
    image::ext4(&root, &dir.join("root.img"), FREE)?;
    std::fs::remove_dir_all(&downloads)?;
    std::fs::remove_dir_all(&root)?;
    Ok(())
}

/// Performs the necessary actions of the packages' scripts.
fn configure(root: &Path) -> Result<()> {
    let etc = root.join("etc");
    for (name, master) in [("passwd", "passwd.master"), ("group", "group.master")] {
        std::fs::copy(root.join("usr/share/base-passwd").join(master), etc.join(name))?;
    }
    std::fs::write(etc.join("hostname"), "tracer-vm\n")?;
    std::fs::write(etc.join("hosts"), "127.0.0.1 localhost tracer-vm\n::1 localhost\n")?;
    for (link, target) in [("awk", "gawk"), ("sh", "dash"), ("which", "which.debianutils")] {
        let link = root.join("usr/bin").join(link);
        if link.symlink_metadata().is_err() {
            symlink(target, link)?;
        }
    }
    for dir in ["dev", "proc", "sys", "run", "tmp", "root", "usr/lib/modules"] {
        std::fs::create_dir_all(root.join(dir))?;
    }
    for bulk in ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"] {
        let _ = std::fs::remove_dir_all(root.join(bulk));
    }
    Ok(())
}
