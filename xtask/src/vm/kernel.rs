//! Debian's kernels for the cloud, downloaded and unpacked: one release of each version, its modules and its first
//! drivers. Alternatively the files of other packages, or a custom image with all necessary drivers built in.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::packages::{self, Archive};
use super::{cache, image};
use crate::arch::Arch;
use crate::host;

/// Drivers that the root disk and the ports need; some kernels have them built in.
const FIRST: [&str; 3] = ["virtio_pci", "virtio_blk", "virtio_console"];

/// A version of Debian's kernel.
#[derive(Debug)]
struct Version {
    /// The first two numbers.
    name: &'static str,
    /// The release, as in `uname -r`, without flavour and architecture. Machines use it until this table changes.
    release: &'static str,
    /// The suite that has it, and the sources of this version.
    suite: &'static str,
}

/// The versions that machines have by name.
const VERSIONS: [Version; 3] = [
    Version { name: "6.1", release: "6.1.0-57", suite: "bookworm-security" },
    Version { name: "6.12", release: "6.12.117+deb12", suite: "bookworm-security" },
    Version { name: "7.3", release: "7.3.4+deb13", suite: "trixie-backports" },
];

impl Version {
    /// Looks a version up by its name.
    fn of(name: &str) -> Result<&'static Self> {
        let found = VERSIONS.iter().find(|version| version.name == name);
        found.ok_or_else(|| {
            let known = VERSIONS.map(|version| version.name).join(", ");
            anyhow!("there is no machine with Linux {name}: known are {known}; others need the files of their packages")
        })
    }

    /// The name of the release in `uname -r`.
    fn release(&self, arch: Arch) -> String {
        format!("{}{}", self.release, flavour(arch))
    }
}

/// The end of the releases of Debian's kernels for the cloud.
fn flavour(arch: Arch) -> String {
    format!("-cloud-{}", arch.debian())
}

/// The archive that has packages of a version: its kernel, headers and sources.
pub(super) fn archive(version: &str) -> Result<Archive> {
    Ok(Archive::Suite(Version::of(version)?.suite))
}

/// A kernel in the cache.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Its release, as in `uname -r`.
    pub(super) release: String,
    /// The image that QEMU boots.
    pub(super) vmlinuz: PathBuf,
    /// ext4 image of `/lib/modules`.
    pub(super) modules: PathBuf,
    /// The drivers for the initramfs, uncompressed, in load order.
    pub(super) first: Vec<PathBuf>,
}

/// The kernel of `version`, downloaded if it is not cached: the release in [`VERSIONS`], or with `fresh` the newest one
/// of the suite. Other texts name files: an image, or packages separated by commas.
pub(super) fn get(version: &str, arch: Arch, fresh: bool) -> Result<Kernel> {
    if Path::new(version).extension().is_some_and(|extension| extension == "deb") {
        return of_packages(version);
    }
    if version.contains('/') {
        return given(Path::new(version));
    }
    let wanted = Version::of(version)?;
    let release = match cached(version, arch)? {
        Some(release) if !fresh && release == wanted.release(arch) => release,
        _ => available(wanted, arch, fresh)?,
    };
    let name = prefix(arch) + &release;
    if cache::find(&name)?.is_none() {
        host::step(format!("Fetching Linux {release}"));
    }
    let dir = cache::entry(&name, |dir| fetch(&release, wanted, arch, dir))?;
    in_entry(release, &dir)
}

/// A kernel in its entry of the cache.
fn in_entry(release: String, dir: &Path) -> Result<Kernel> {
    let list = dir.join("first");
    let mut first: Vec<PathBuf> = std::fs::read_dir(&list)
        .with_context(|| format!("cannot read {}", list.display()))?
        .flatten()
        .map(|e| e.path())
        .collect();
    first.sort();
    Ok(Kernel { release, vmlinuz: dir.join("vmlinuz"), modules: dir.join("modules.img"), first })
}

/// Prefix of the kernels' names in the cache.
fn prefix(arch: Arch) -> String {
    format!("kernel-{}-", arch.name())
}

/// The cached release of `version`: that of [`VERSIONS`], else the newest.
pub(crate) fn cached(version: &str, arch: Arch) -> Result<Option<String>> {
    let prefix = prefix(arch);
    let names = cache::names(&prefix)?;
    let releases: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix(&prefix)).collect();
    let wanted = Version::of(version)?.release(arch);
    let found = releases.iter().copied().find(|release| *release == wanted);
    Ok(found.or_else(|| newest(releases.iter().copied(), version)).map(str::to_owned))
}

/// A custom image, without modules.
fn given(file: &Path) -> Result<Kernel> {
    let none = cache::entry("modules-none", |dir| {
        let empty = dir.join("empty");
        std::fs::create_dir_all(&empty)?;
        image::ext4(&empty, &dir.join("modules.img"), 0)
    })?;
    let image = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let release = release_of(&image).unwrap_or("unknown").to_owned();
    Ok(Kernel { release, vmlinuz: file.to_owned(), modules: none.join("modules.img"), first: Vec::new() })
}

/// The kernel in these packages, the files of which are separated by commas.
fn of_packages(files: &str) -> Result<Kernel> {
    let files: Vec<PathBuf> = files.split(',').map(PathBuf::from).collect();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        let about = file.metadata().with_context(|| format!("cannot read {}", file.display()))?;
        (file, about.len(), about.modified()?).hash(&mut hasher);
    }
    // Not the prefix of kernels that a version selects.
    let name = format!("packages-{:016x}", hasher.finish());
    let dir = cache::entry(&name, |dir| {
        let release = make(&files, dir)?;
        Ok(std::fs::write(dir.join("release"), release)?)
    })?;
    in_entry(std::fs::read_to_string(dir.join("release"))?, &dir)
}

/// The release in the header of an x86 image (Documentation/arch/x86/boot.rst: `kernel_version`).
fn release_of(image: &[u8]) -> Option<&str> {
    const HEADER: usize = 0x202;
    const VERSION: usize = 0x20e;
    if image.get(HEADER..HEADER + 4)? != b"HdrS" {
        return None;
    }
    let at = usize::from(u16::from_le_bytes(image.get(VERSION..VERSION + 2)?.try_into().ok()?)) + 0x200;
    let text = image.get(at..)?.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok()?.split(' ').next()
}

/// The release of a version that its suite has: that of [`VERSIONS`], or the newest if it is gone or `fresh` is set.
fn available(version: &Version, arch: Arch, fresh: bool) -> Result<String> {
    let archive = Archive::Suite(version.suite);
    let wanted = version.release(arch);
    if !fresh {
        let package = format!("linux-image-{wanted}");
        if !archive.has(&package, arch) {
            archive.update_lists()?;
        }
        if archive.has(&package, arch) {
            return Ok(wanted);
        }
    }
    let names = archive.names(&format!("linux-image-{}.", version.name), arch)?;
    let flavour = flavour(arch);
    let releases = names
        .iter()
        .filter_map(|n| n.strip_prefix("linux-image-"))
        // `pkgnames` ignores the architecture, and includes names that another package only mentions.
        .filter(|release| {
            release.ends_with(&flavour) && archive.has(&format!("linux-image-{release}"), arch)
        });
    let Some(newest) = newest(releases, version.name) else {
        bail!("{} has no package linux-image-{}.*{flavour}", version.suite, version.name);
    };
    if newest != wanted {
        eprintln!("warning: Linux {newest} in place of {wanted} (VERSIONS in xtask/src/vm/kernel.rs)");
    }
    Ok(newest.to_owned())
}

/// The newest of the releases that belong to `version`.
fn newest<'a>(releases: impl Iterator<Item = &'a str>, version: &str) -> Option<&'a str> {
    let prefix = format!("{version}.");
    releases.filter(|r| r.starts_with(&prefix)).max_by_key(|r| numbers(r))
}

/// The numbers in a release, for comparison.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// Downloads a release and makes its entry in `dir`.
fn fetch(release: &str, version: &Version, arch: Arch, dir: &Path) -> Result<()> {
    let archive = Archive::Suite(version.suite);
    let downloads = dir.join("package");
    std::fs::create_dir_all(&downloads)?;
    // From 7.0 on, `linux-image-*` only names three packages.
    let parts = ["linux-binary", "linux-modules", "linux-base"];
    let parts =
        if archive.has(&format!("{}-{release}", parts[0]), arch) { &parts[..] } else { &["linux-image"] };
    let names: Vec<String> = parts.iter().map(|part| format!("{part}-{release}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let files = archive.download(&names, arch, false, &downloads)?;
    let found = make(&files, dir)?;
    ensure!(found == release, "the packages of Linux {release} contain {found}");
    std::fs::remove_dir_all(&downloads)?;
    Ok(())
}

/// Fills an entry of the cache from the files of a kernel's packages. Returns the release.
fn make(packages: &[PathBuf], dir: &Path) -> Result<String> {
    let tree = dir.join("tree");
    let modules = tree.join("usr/lib/modules");
    std::fs::create_dir_all(&modules)?;
    // Debian 12's packages have modules in `lib`, later ones in `usr/lib`; depmod looks in `lib`.
    std::os::unix::fs::symlink("usr/lib", tree.join("lib"))?;
    for file in packages {
        packages::unpack(file, &tree)?;
    }
    let mut releases =
        std::fs::read_dir(&modules)?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let (Some(release), None) = (releases.next(), releases.next()) else {
        bail!("the packages do not contain the modules of one kernel");
    };
    for name in ["vmlinuz", "config"] {
        // Packages before 7.0 have these files in `boot`.
        let places = [tree.join("boot").join(format!("{name}-{release}")), modules.join(&release).join(name)];
        let file = places.iter().find(|place| place.is_file());
        let file = file.with_context(|| format!("the packages of Linux {release} have no {name}"))?;
        std::fs::rename(file, dir.join(name))?;
    }
    let Some(depmod) = host::which("depmod") else {
        bail!("depmod is not here: run `cargo xtask setup vm`");
    };
    host::output(Command::new(depmod).arg("-b").arg(&tree).arg(&release))?;
    first_drivers(&modules.join(&release), &dir.join("first"))?;
    image::ext4(&modules, &dir.join("modules.img"), 0)?;
    std::fs::remove_dir_all(&tree)?;
    Ok(release)
}

/// Copies the first drivers and their dependencies into `out`, uncompressed and numbered.
fn first_drivers(modules: &Path, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out)?;
    let dep = std::fs::read_to_string(modules.join("modules.dep"))?;
    for (number, path) in load_order(&dep, &FIRST).into_iter().enumerate() {
        let file = modules.join(&path);
        let name = module_name(&path);
        let content = if file.extension().is_some_and(|e| e == "xz") {
            let mut xz = Command::new("xz");
            let out = xz.args(["-dc"]).arg(&file).output().context("cannot start xz")?;
            if !out.status.success() {
                bail!("cannot uncompress {}", file.display());
            }
            out.stdout
        } else {
            std::fs::read(&file)?
        };
        std::fs::write(out.join(format!("{number:02}-{name}.ko")), content)?;
    }
    Ok(())
}

/// The module's name in a path such as `kernel/drivers/block/virtio_blk.ko.xz`.
fn module_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

/// Files to load for `wanted`, dependencies first, from the text of `modules.dep`. A module that is not listed is built
/// in.
///
/// A line of `modules.dep` contains all dependencies of a module, the nearest first.
fn load_order(dep: &str, wanted: &[&str]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    for name in wanted {
        let line = dep.lines().find_map(|l| l.split_once(':').filter(|(path, _)| module_name(path) == *name));
        let Some((path, needs)) = line else { continue };
        for file in needs.split_whitespace().rev().chain([path]) {
            if seen.insert(file) {
                order.push(file.to_owned());
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_is_chosen_by_its_numbers() {
        let all = ["6.12.9+deb12-cloud-amd64", "6.12.117+deb12-cloud-amd64", "6.1.0-56-cloud-amd64"];
        assert_eq!(newest(all.into_iter(), "6.12"), Some(all[1]));
        assert_eq!(newest(all.into_iter(), "6.1"), Some(all[2]));
        assert_eq!(newest(all.into_iter(), "5.10"), None);
    }

    #[test]
    fn versions_have_a_release_of_their_own() {
        for version in &VERSIONS {
            let release = version.release(Arch::X86_64);
            assert_eq!(newest([release.as_str()].into_iter(), version.name), Some(release.as_str()));
        }
        let error = Version::of("5.10").unwrap_err().to_string();
        assert!(error.contains("known are 6.1, 6.12, 7.3"), "{error}");
    }

    #[test]
    fn the_release_is_read_from_an_image() {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x314].copy_from_slice(b"6.12.9-own (me@here)");
        assert_eq!(release_of(&image), Some("6.12.9-own"));
        assert_eq!(release_of(&image[..0x250]), None);
        assert_eq!(release_of(b"MZ"), None);
    }

    #[test]
    fn drivers_load_after_their_dependencies() {
        let dep = "kernel/drivers/virtio/virtio.ko:\n\
                   kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n\
                   kernel/drivers/block/virtio_blk.ko.xz: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko\n";
        let order = load_order(dep, &["virtio_pci", "virtio_blk", "virtio_console"]);
        let names: Vec<&str> = order.iter().map(|p| module_name(p)).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "virtio_pci", "virtio_blk"]);
    }
}
