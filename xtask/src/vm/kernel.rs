//! Debian's cloud kernels, downloaded and unpacked: the newest release of a version, its modules and its first drivers.
//! Alternatively a custom image with all necessary drivers built in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{cache, image, packages};
use crate::arch::Arch;
use crate::host;

/// Drivers that the root disk and the ports need; some kernels have them built in.
const FIRST: [&str; 3] = ["virtio_pci", "virtio_blk", "virtio_console"];

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

/// The newest cached kernel of `version`. If none is cached or `fresh` is set, downloads the newest kernel in Debian.
/// A version with a slash is the file of an image.
pub(super) fn get(version: &str, arch: Arch, fresh: bool) -> Result<Kernel> {
    if version.contains('/') {
        return given(Path::new(version));
    }
    let release = match cached(version, arch)? {
        Some(release) if !fresh => release,
        _ => available(version, arch)?,
    };
    let name = prefix(arch) + &release;
    if cache::find(&name)?.is_none() {
        host::step(format!("Fetching Linux {release}"));
    }
    let dir = cache::entry(&name, |dir| make(&release, arch, dir))?;
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

/// The release of the newest cached kernel of `version`.
pub(crate) fn cached(version: &str, arch: Arch) -> Result<Option<String>> {
    let prefix = prefix(arch);
    let names = cache::names(&prefix)?;
    Ok(newest(names.iter().filter_map(|name| name.strip_prefix(&prefix)), version).map(str::to_owned))
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

/// The newest release of `version` among Debian's packages.
fn available(version: &str, arch: Arch) -> Result<String> {
    let names = packages::names(&format!("linux-image-{version}."), arch)?;
    let suffix = format!("-cloud-{}", arch.debian());
    let releases = names
        .iter()
        .filter_map(|n| n.strip_prefix("linux-image-"))
        // `pkgnames` ignores the architecture, and includes names that another package only mentions.
        .filter(|release| {
            let package = format!("linux-image-{release}:{}", arch.debian());
            release.ends_with(&suffix) && packages::is_available(&package)
        });
    let Some(newest) = newest(releases, version) else {
        bail!(
            "no package linux-image-{version}.*{suffix} in the package lists: this needs Debian (bookworm has \
             6.1 and, in its security archive, 6.12), and `dpkg --add-architecture {}` for another architecture",
            arch.debian()
        );
    };
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

fn make(release: &str, arch: Arch, dir: &Path) -> Result<()> {
    let (downloads, tree) = (dir.join("package"), dir.join("tree"));
    let modules = tree.join("usr/lib/modules");
    for sub in [&downloads, &modules] {
        std::fs::create_dir_all(sub)?;
    }
    // Debian 12's packages have modules in `lib`, later ones in `usr/lib`; depmod looks in `lib`.
    std::os::unix::fs::symlink("usr/lib", tree.join("lib"))?;
    let package = format!("linux-image-{release}:{}", arch.debian());
    for file in packages::download(&[&package], arch, false, &downloads)? {
        packages::unpack(&file, &tree)?;
    }
    std::fs::rename(tree.join("boot").join(format!("vmlinuz-{release}")), dir.join("vmlinuz"))
        .context("the package has no kernel image")?;
    std::fs::rename(tree.join("boot").join(format!("config-{release}")), dir.join("config"))?;
    let Some(depmod) = host::which("depmod") else {
        bail!("depmod is not here: run `cargo xtask setup vm`");
    };
    host::output(Command::new(depmod).arg("-b").arg(&tree).arg(release))?;
    first_drivers(&modules.join(release), &dir.join("first"))?;
    image::ext4(&modules, &dir.join("modules.img"), 0)?;
    std::fs::remove_dir_all(&downloads)?;
    std::fs::remove_dir_all(&tree)?;
    Ok(())
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
