//! The kernel's sample modules, which parts of its test suite load, built for a machine's kernel.
//!
//! Debian does not build them. Its headers and build tools are downloaded and unpacked, never installed. The samples'
//! sources come from [`sources::tests_of`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Machine, cache, kernel, packages};
use crate::{host, sources};

/// Directories of the kernel's `samples`, the options that enable them, and the resulting modules.
const SAMPLES: [(&str, &str, &str); 2] = [
    ("trace_events", "CONFIG_SAMPLE_TRACE_EVENTS=m", "trace-events-sample.ko"),
    ("trace_printk", "CONFIG_SAMPLE_TRACE_PRINTK=m", "trace-printk.ko"),
];

/// The modules for a machine's kernel, built once.
pub(crate) fn get(machine: &Machine) -> Result<Vec<PathBuf>> {
    ensure!(!machine.arch.is_foreign(), "sample modules are built for this machine's architecture only");
    let release = kernel::get(&machine.version, machine.arch, machine.fresh)?.release;
    let dir = cache::entry(&format!("samples-{release}"), |dir| {
        host::step(format!("Building sample modules for Linux {release}"));
        make(&release, machine, dir)
    })?;
    Ok(SAMPLES.iter().map(|(_, _, module)| dir.join(module)).collect())
}

fn make(release: &str, machine: &Machine, dir: &Path) -> Result<()> {
    let (downloads, tree, samples) = (dir.join("packages"), dir.join("tree"), dir.join("samples"));
    for sub in [&downloads, &tree, &samples] {
        std::fs::create_dir_all(sub)?;
    }
    let flavour = format!("-cloud-{}", machine.arch.debian());
    let Some(base) = release.strip_suffix(&flavour) else {
        bail!("{release} is not a Debian kernel for the cloud")
    };
    // Packages before 6.12 have only the version in their name.
    let tools = format!("linux-kbuild-{base}");
    let archive = kernel::archive(&machine.version)?;
    let is_there = archive.names(&tools, machine.arch)?.contains(&tools);
    let tools = if is_there { tools } else { format!("linux-kbuild-{}", machine.version) };
    let (headers, common) = (format!("linux-headers-{release}"), format!("linux-headers-{base}-common"));
    for file in archive.download(&[&headers, &common, &tools], machine.arch, false, &downloads)? {
        packages::unpack(&file, &tree)?;
    }
    let sources = sources::tests_of(&machine.version)?;
    for (sample, ..) in SAMPLES {
        host::output(Command::new("cp").arg("-r").arg(sources.join("samples").join(sample)).arg(&samples))?;
    }
    let common = tree.join("usr/src").join(common);
    for (sample, switch, module) in SAMPLES {
        let mut make = Command::new("make");
        make.current_dir(tree.join("usr/src").join(&headers)).arg("-f").arg(common.join("Makefile"));
        make.arg(format!("srctree={}", common.display()));
        // Without it, make of 6.13 and later searches the configuration in the directory of the sources.
        make.arg(format!("KBUILD_OUTPUT={}", tree.join("usr/src").join(&headers).display()));
        make.arg(format!("M={}", samples.join(sample).display())).args([switch, "modules"]);
        host::output(&mut make)?;
        std::fs::rename(samples.join(sample).join(module), dir.join(module))
            .with_context(|| format!("make left no {module}"))?;
    }
    for sub in [&downloads, &tree, &samples] {
        std::fs::remove_dir_all(sub)?;
    }
    Ok(())
}
