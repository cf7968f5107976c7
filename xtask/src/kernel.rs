//! `cargo xtask kernel`: builds a kernel to compare the mirror with. The kernel has features that Debian's kernels
//! lack.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, bail, ensure};

use crate::arch::Arch;
use crate::setup::{self, Group};
use crate::{host, sources, test, vm};

/// Configuration of the kernel that [`verb`] builds.
const CONFIG: &str = include_str!("../guest/user_events.config");
/// The module of tests that compares user events with the kernel's implementation.
const USER_EVENTS: &str = "user::differential";
/// Architectures of which only Kconfig files are unpacked.
const OTHERS: [&str; 8] = ["arm", "arm64", "mips", "powerpc", "s390", "sparc", "riscv", "parisc"];

/// Options of `cargo xtask kernel`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Version of Debian's kernel sources
    #[arg(long = "kernel", default_value = "6.12", value_name = "VERSION")]
    version: String,
    /// Run the comparison of user events with the kernel's implementation in a machine with this kernel
    #[arg(long)]
    test: bool,
    /// Number of parallel compilers
    #[arg(long, default_value_t = 2)]
    jobs: u32,
}

/// Builds the kernel once. Prints the path of its image, or runs the comparison of user events on it.
pub(crate) fn verb(options: &Options) -> Result<ExitCode> {
    let image = image(options)?;
    if options.test {
        return test::on_image(&image, USER_EVENTS);
    }
    println!("{}", image.display());
    Ok(ExitCode::SUCCESS)
}

fn image(options: &Options) -> Result<PathBuf> {
    setup::ensure(&[Group::Kernel])?;
    if Arch::host()? != Arch::X86_64 {
        bail!("this is for x86-64 only");
    }
    let version = &options.version;
    let dir = vm::cache_entry(&format!("built-{version}-{:08x}", sum(CONFIG)), |dir| {
        host::step(format!("Building Linux {version} with user_events (some 15 minutes)"));
        build(version, options.jobs, dir)
    })?;
    Ok(dir.join("bzImage"))
}

fn build(version: &str, jobs: u32, dir: &Path) -> Result<()> {
    let (source, out) = (dir.join("source"), dir.join("out"));
    std::fs::create_dir_all(&source)?;
    std::fs::create_dir_all(&out)?;
    let mut arguments = vec!["--wildcards".to_owned()];
    let mut exclude = |what: String| arguments.push(format!("--exclude=linux-source-{version}/{what}"));
    for other in OTHERS {
        for kind in ["[chS]", "dts", "dtsi"] {
            exclude(format!("arch/{other}/*.{kind}"));
        }
    }
    for unused in ["drivers/gpu/*.[ch]", "drivers/media/*.[ch]", "drivers/net/*/*.[ch]", "sound/*.[ch]"] {
        exclude(unused.to_owned());
    }
    sources::unpack(version, &source, &arguments)?;
    let make = |arguments: &[&str]| {
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(&source).arg(format!("O={}", out.display())).args(arguments);
        host::strip_cargo_env(&mut make);
        host::run(&mut make)
    };
    make(&["tinyconfig"])?;
    let config = out.join(".config");
    // The last setting of an option counts.
    let tiny = std::fs::read_to_string(&config)?;
    std::fs::write(&config, tiny + CONFIG)?;
    make(&["olddefconfig"])?;
    let has = std::fs::read_to_string(&config)?;
    for line in CONFIG.lines().filter(|line| line.ends_with("=y")) {
        ensure!(has.lines().any(|own| own == line), "Linux {version} does not take {line}");
    }
    make(&[&format!("-j{jobs}"), "bzImage"])?;
    std::fs::copy(out.join("arch/x86/boot/bzImage"), dir.join("bzImage"))?;
    std::fs::copy(&config, dir.join("config"))?;
    std::fs::remove_dir_all(&source)?;
    std::fs::remove_dir_all(&out)?;
    Ok(())
}

/// A hash to distinguish configurations (FNV-1a).
fn sum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_states_its_purpose() {
        for wanted in
            ["USER_EVENTS", "HIST_TRIGGERS", "SYNTH_EVENTS", "DEBUG_INFO_BTF", "VIRTIO_BLK", "FUSE_FS"]
        {
            assert!(CONFIG.lines().any(|line| line == format!("CONFIG_{wanted}=y")), "{wanted}");
        }
        assert_ne!(sum("a"), sum("b"));
    }
}
