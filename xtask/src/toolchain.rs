//! Finds the eBPF toolchain: a compiler with the sources of its core library, its cargo, and `bpf-linker`.
//!
//! rustup ships no precompiled core for the BPF target, so the build compiles core as well (`-Zbuild-std=core`). That
//! needs the sources that match the compiler, and a compiler that accepts unstable flags: a nightly, or any other
//! with `RUSTC_BOOTSTRAP=1`. If several compilers qualify, the search prefers a compiler with bitcode that
//! `bpf-linker` can read.
//!
//! The same search finds compilers with the standard library of another architecture, for cross builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::host;

/// The LLVM version of the `bpf-linker` that `setup` installs; it reads bitcode up to this version.
pub(crate) const LLVM: u32 = 22;
/// The file with the versions of the toolchain that builds the checked-in eBPF objects: lines `PROGRAM VERSION`.
pub(crate) const PINNED: &str = "tracer-ebpf/toolchain.txt";
/// The name of the linker in [`PINNED`], which is also the program's and the crate's.
pub(crate) const BPF_LINKER: &str = "bpf-linker";
/// The oldest compiler that the workspace supports (`rust-version` in Cargo.toml).
pub(crate) const OLDEST: (u32, u32) = (1, 88);
/// Environment variable with the compiler to use for eBPF instead of the search.
const OVERRIDE: &str = "TRACER_EBPF_RUSTC";

/// The relevant properties of an installed compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rustc {
    /// The compiler itself, not rustup's proxy.
    pub(crate) path: PathBuf,
    /// Directory of its libraries and sources.
    pub(crate) sysroot: PathBuf,
    /// Major and minor release.
    pub(crate) release: (u32, u32),
    /// Accepts unstable flags without `RUSTC_BOOTSTRAP`.
    pub(crate) nightly: bool,
    /// Major version of its LLVM.
    pub(crate) llvm: u32,
    /// Its release and that of its LLVM, as in `rustc -vV`.
    versions: (String, String),
}

impl Rustc {
    /// Queries a compiler's properties; `None` if it does not answer as rustc does.
    fn probe(path: &Path) -> Option<Self> {
        let mut ask = Command::new(path);
        host::strip_cargo_env(&mut ask);
        let version = host::output(ask.args(["-vV"])).ok()?;
        let mut ask = Command::new(path);
        host::strip_cargo_env(&mut ask);
        let sysroot = PathBuf::from(host::output(ask.args(["--print", "sysroot"])).ok()?.trim());
        let (release, nightly, llvm) = parse_version(&version)?;
        let of = |key| value(&version, key).unwrap_or_default().to_owned();
        let versions = (of("release:"), of("LLVM version:"));
        // rustup's proxy answers for a toolchain: use that toolchain's own compiler.
        let own = sysroot.join("bin/rustc");
        let path = if host::is_executable(&own) { own } else { path.to_path_buf() };
        Some(Self { path, sysroot, release, nightly, llvm, versions })
    }

    /// Whether the matching sources of the core library are installed.
    fn has_core_sources(&self) -> bool {
        self.sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
    }

    /// Whether the standard library for `triple` is installed.
    fn has_std(&self, triple: &str) -> bool {
        let dir = self.sysroot.join("lib/rustlib").join(triple).join("lib");
        std::fs::read_dir(dir).is_ok_and(|entries| {
            entries.flatten().any(|e| e.file_name().to_string_lossy().starts_with("libstd-"))
        })
    }

    /// The cargo of this compiler's toolchain, or else the cargo that runs this task.
    fn cargo_path(&self) -> PathBuf {
        let beside = self.path.with_file_name("cargo");
        if host::is_executable(&beside) { beside } else { host::cargo().get_program().into() }
    }

    /// A cargo command that uses this compiler, without the calling toolchain's settings.
    pub(crate) fn cargo(&self) -> Command {
        self.program(&self.cargo_path())
    }

    /// `cargo clippy` of this compiler. The program is called by its path, because cargo prefers rustup's program in
    /// its own bin directory.
    pub(crate) fn clippy(&self) -> Command {
        let mut command = self.program(&self.path.with_file_name("cargo-clippy"));
        command.env("CARGO", self.cargo_path()).arg("clippy");
        command
    }

    fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        host::strip_cargo_env(&mut command);
        command.env("RUSTC", &self.path).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
        command.env_remove("RUSTC_WRAPPER").env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        let rustdoc = self.path.with_file_name("rustdoc");
        if host::is_executable(&rustdoc) {
            command.env("RUSTDOC", rustdoc);
        }
        command
    }
}

/// The value of a line `KEY VALUE`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// Parses `rustc -vV`: release, whether it is a nightly (or a developer's build), LLVM's major version.
fn parse_version(text: &str) -> Option<((u32, u32), bool, u32)> {
    let release = value(text, "release:")?;
    let mut numbers = release.split(['.', '-']);
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    let nightly = release.ends_with("-nightly") || release.ends_with("-dev");
    let llvm = value(text, "LLVM version:").and_then(|v| v.split('.').next()?.parse().ok()).unwrap_or(0);
    Some(((major, minor), nightly, llvm))
}

/// All compilers on this machine without duplicates, rustup's nightlies first.
fn installed() -> Vec<Rustc> {
    let mut paths: Vec<PathBuf> = Vec::new();
    let rustup = std::env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".rustup")));
    if let Some(Ok(entries)) = rustup.map(|r| std::fs::read_dir(r.join("toolchains"))) {
        let mut toolchains: Vec<PathBuf> = entries.flatten().map(|e| e.path().join("bin/rustc")).collect();
        toolchains.sort_by_key(|p| (!p.to_string_lossy().contains("nightly"), p.clone()));
        paths.extend(toolchains);
    }
    paths.extend(std::env::var_os("RUSTC").map(PathBuf::from));
    paths.extend(host::which("rustc"));
    paths.extend(["/usr/bin/rustc", "/usr/local/bin/rustc"].map(PathBuf::from));
    let mut seen: Vec<PathBuf> = Vec::new();
    paths.retain(|p| {
        let real = p.canonicalize().unwrap_or_else(|_| p.clone());
        let fresh = host::is_executable(p) && !seen.contains(&real);
        seen.push(real);
        fresh
    });
    let mut found: Vec<Rustc> = Vec::new();
    for rustc in paths.iter().filter_map(|p| Rustc::probe(p)) {
        if !found.contains(&rustc) {
            found.push(rustc);
        }
    }
    found
}

/// Chooses among compilers that can build for BPF. It returns the first compiler with an LLVM no newer than [`LLVM`].
/// Otherwise it returns the first compiler, if a linker is installed, which may be newer.
fn choose(candidates: &[Rustc], linker: bool) -> Option<Rustc> {
    let fits = |r: &&Rustc| r.llvm <= LLVM;
    candidates.iter().find(fits).or(candidates.first().filter(|_| linker)).cloned()
}

/// The compiler for eBPF, or `None` if no compiler on this machine has its core sources.
pub(crate) fn find_ebpf() -> Result<Option<Rustc>> {
    if let Some(path) = std::env::var_os(OVERRIDE) {
        let Some(rustc) = Rustc::probe(Path::new(&path)) else {
            bail!("{OVERRIDE}={} is not a rustc that runs", path.display());
        };
        if !rustc.has_core_sources() {
            bail!("{OVERRIDE}={} has no core sources under {}", path.display(), rustc.sysroot.display());
        }
        return Ok(Some(rustc));
    }
    let able = |r: &Rustc| r.release >= OLDEST && r.has_core_sources();
    let candidates: Vec<Rustc> = installed().into_iter().filter(able).collect();
    Ok(choose(&candidates, find_bpf_linker().is_some()))
}

/// The version of a program in [`PINNED`].
pub(crate) fn pinned(program: &str) -> &'static str {
    const TEXT: &str = include_str!("../../tracer-ebpf/toolchain.txt");
    value(TEXT, &format!("{program} ")).expect("the file names each program of the toolchain")
}

/// The compiler of the checked-in eBPF objects: exactly the version of [`PINNED`], with its core sources.
pub(crate) fn find_pinned() -> Option<Rustc> {
    let is_pinned = |rustc: &Rustc| rustc.versions == (pinned("rustc").to_owned(), pinned("llvm").to_owned());
    installed().into_iter().find(|rustc| rustc.has_core_sources() && is_pinned(rustc))
}

/// A program of LLVM, such as `llvm-nm`.
pub(crate) fn find_llvm(program: &str) -> Option<PathBuf> {
    let debian = PathBuf::from(format!("/usr/lib/llvm-{LLVM}/bin")).join(program);
    let versioned = || host::which(&format!("{program}-{LLVM}")).or_else(|| host::which(program));
    Some(debian).filter(|path| host::is_executable(path)).or_else(versioned)
}

/// A compiler with the standard library for `triple`.
pub(crate) fn find_cross(triple: &str) -> Option<Rustc> {
    installed().into_iter().find(|r| r.release >= OLDEST && r.has_std(triple))
}

/// A stable compiler of exactly this release, with its own standard library.
pub(crate) fn of_release(release: (u32, u32)) -> Option<Rustc> {
    let host = format!("{}-unknown-linux-gnu", host::arch());
    installed().into_iter().find(|r| r.release == release && !r.nightly && r.has_std(&host))
}

/// `bpf-linker`, on `PATH` or in the directory of `cargo install`.
pub(crate) fn find_bpf_linker() -> Option<PathBuf> {
    host::cargo_program(BPF_LINKER)
}

/// `bpf-linker` in the version of [`PINNED`].
pub(crate) fn find_pinned_linker() -> Option<PathBuf> {
    let installed =
        host::cargo_bin().map(|bin| bin.join(BPF_LINKER)).filter(|path| host::is_executable(path));
    let is_pinned = |linker: &PathBuf| {
        host::output(Command::new(linker).arg("--version"))
            .is_ok_and(|version| version.split_whitespace().nth(1) == Some(pinned(BPF_LINKER)))
    };
    host::which(BPF_LINKER).into_iter().chain(installed).find(is_pinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rustc(name: &str, llvm: u32) -> Rustc {
        let versions = Default::default();
        Rustc { path: name.into(), sysroot: "/".into(), release: (1, 96), nightly: false, llvm, versions }
    }

    #[test]
    fn versions_are_read_from_rustcs_output() {
        let stable =
            "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
        assert_eq!(parse_version(stable), Some(((1, 96), false, 22)));
        let nightly = "rustc 1.97.0-nightly\nrelease: 1.97.0-nightly\nLLVM version: 22.1.4\n";
        assert_eq!(parse_version(nightly), Some(((1, 97), true, 22)));
        assert_eq!(parse_version("cargo 1.96.0\n"), None);
    }

    #[test]
    fn pinned_versions_agree() {
        assert_eq!(pinned("llvm").split('.').next(), Some(&*LLVM.to_string()));
        assert_eq!(pinned("rustc").split('.').count(), 3);
        assert!(!pinned("bpf-linker").is_empty());
    }

    #[test]
    fn the_first_compiler_that_the_linker_can_read_is_chosen() {
        let all = [rustc("new", LLVM + 1), rustc("a", LLVM), rustc("b", LLVM)];
        assert_eq!(choose(&all, true).unwrap().path, Path::new("a"));
        assert_eq!(choose(&all[..1], true).unwrap().path, Path::new("new"), "somebody's own, newer linker");
        assert_eq!(choose(&all[..1], false), None, "the linker we would install cannot read it");
        assert_eq!(choose(&[], true), None);
    }

    #[test]
    fn the_compiler_of_this_build_is_found_and_has_its_own_std() {
        let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        assert!(find_cross(&host).is_some());
        assert_eq!(find_cross("no-such-triple"), None);
    }
}
