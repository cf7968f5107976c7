//! `cargo xtask facts`: freezes a kernel's event formats for the tests, from the host or from a virtual machine.
//!
//! The program `freeze-facts` of the integration tests does the work; its module `facts` documents the format. Files
//! are `tests/facts/VERSION-ARCH.txt.zst`, so a newer release of the same version replaces the older one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::arch::Arch;
use crate::build;
use crate::setup::{self, Group};
use crate::{host, vm};

/// Options of `cargo xtask facts`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Use the running kernel instead of a virtual machine's
    #[arg(long)]
    host: bool,
    #[command(flatten)]
    machine: vm::Machine,
}

/// Mounts tracefs if necessary, then freezes it into the file `$2` with the program `$1`.
const SCRIPT: &str = "[ -e /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing && \
                      exec \"$1\" /sys/kernel/tracing \"$2\"";

/// The first two numbers of a release.
fn version_of(release: &str) -> String {
    release.split(['.', '-']).take(2).collect::<Vec<_>>().join(".")
}

fn file(version: &str, arch: Arch) -> PathBuf {
    host::root().join("tests/facts").join(format!("{version}-{}.txt.zst", arch.name()))
}

/// Runs the verb `facts`.
pub(crate) fn verb(options: &Options) -> Result<()> {
    let machine = &options.machine;
    let arch = if options.host { Arch::host()? } else { machine.arch };
    setup::ensure(if options.host { &[Group::Build] } else { vm::groups(arch) })?;
    let (mut cargo, dir) = build::user_cargo(arch)?;
    host::run(cargo.args(["build", "--workspace", "--bin", "freeze-facts"]))?;
    let program = dir.join("debug/freeze-facts");
    let frozen = if options.host {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let frozen = file(&version_of(&release), arch);
        host::run(host::as_root("sh")?.args(["-c", SCRIPT, "sh"]).arg(&program).arg(&frozen))?;
        frozen
    } else {
        let frozen = file(&machine.version, arch);
        let job = vm::Job {
            command: ["sh", "-c", SCRIPT, "sh", "freeze-facts", "/tmp/facts"].map(str::to_owned).to_vec(),
            payload: vec![(program, Path::new(vm::BIN).join("freeze-facts"))],
            keep: vec![("/tmp/facts".into(), frozen.clone())],
            ..vm::Job::default()
        };
        host::step(format!("Freezing Linux {} ({})", machine.version, arch.name()));
        let outcome = vm::run(machine, &job, &mut vm::pass_on)?;
        if outcome.code != 0 {
            bail!("freeze-facts ended with {}", outcome.code);
        }
        frozen
    };
    let size = std::fs::metadata(&frozen).with_context(|| format!("no {}", frozen.display()))?.len();
    host::output(Command::new("zstd").args(["-tq"]).arg(&frozen)).context("the file is damaged")?;
    eprintln!("{}: {} KiB", frozen.display(), size / 1024);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_version_and_architecture() {
        assert_eq!(version_of("6.18.44-fc-v657\n"), "6.18");
        assert_eq!(version_of("6.1.0-56-cloud-amd64"), "6.1");
        assert!(file("6.1", Arch::X86_64).ends_with("tests/facts/6.1-x86_64.txt.zst"));
    }
}
