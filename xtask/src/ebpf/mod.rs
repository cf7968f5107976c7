//! `cargo xtask ebpf`: builds the eBPF objects, which are checked in.
//!
//! `tracer-user` embeds `tracer-user/ebpf/tracer-ebpf.o`, and a test loads the programs of `tests/emitter`. They are
//! checked in so that building and testing need stable Rust alone. After a change of their sources, this verb
//! builds them again with the toolchain of `tracer-ebpf/toolchain.txt`. The same sources give the same bytes in each directory. The
//! lint compares the digests of the sources ([`digest`]), and `--check` builds the objects and compares the bytes.

mod digest;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::arch::Arch;
use crate::host;
use crate::setup::{self, Group};
use crate::toolchain::{self, BPF_LINKER, Rustc};

/// The BPF target: little-endian, as x86-64 and arm64 are.
const TARGET: &str = "bpfel-unknown-none";
/// The cargo settings of that target.
const SETTINGS: &str = "target.bpfel-unknown-none";

/// Options of `cargo xtask ebpf`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Write nothing; fail if the checked-in objects differ from those of the sources
    #[arg(long)]
    check: bool,
}

/// A crate of eBPF programs whose object is checked in.
#[derive(Debug)]
struct Product {
    /// The crate's directory.
    krate: &'static str,
    binary: &'static str,
    /// The object's file without its extension; the digests are beside it.
    file: &'static str,
    /// Whether each architecture has its own object. Otherwise they are equal, which the build checks.
    by_arch: bool,
    /// Its sources beside those of [`COMMON`]: files, and directories with all their files.
    sources: &'static [&'static str],
}

/// Sources of all products. The digests do not cover the root's Cargo.toml, which changes often, nor the options below;
/// `--check` compares the bytes.
const COMMON: [&str; 3] = ["tracer-abi/Cargo.toml", "tracer-abi/src", toolchain::PINNED];

const TEMPLATES: Product = Product {
    krate: "tracer-ebpf",
    binary: "tracer-ebpf",
    file: "tracer-user/ebpf/tracer-ebpf",
    by_arch: false,
    sources: &[
        "tracer-ebpf/.cargo/config.toml",
        "tracer-ebpf/Cargo.lock",
        "tracer-ebpf/Cargo.toml",
        "tracer-ebpf/src",
    ],
};

/// The programs of `tests/emitter`, which a test uses as an external emitter of synthetic events.
const EMITTER: Product = Product {
    krate: "tests/emitter",
    binary: "long-wait",
    file: "tests/emitter/objects/long-wait",
    by_arch: true,
    sources: &[
        "tests/emitter/.cargo/config.toml",
        "tests/emitter/Cargo.lock",
        "tests/emitter/Cargo.toml",
        "tests/emitter/src",
        "tracer-emit/Cargo.toml",
        "tracer-emit/src",
    ],
};

const PRODUCTS: [&Product; 2] = [&TEMPLATES, &EMITTER];

impl Product {
    /// The checked-in object for `arch`, relative to the tree's root.
    fn object(&self, arch: Arch) -> PathBuf {
        let suffix = if self.by_arch { format!("-{}", arch.name()) } else { String::new() };
        format!("{}{suffix}.o", self.file).into()
    }

    /// The file of the digests, relative to the tree's root.
    fn digests(&self) -> PathBuf {
        format!("{}.sha256", self.file).into()
    }

    /// Sources and objects.
    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = self.sources.iter().chain(&COMMON).map(PathBuf::from).collect();
        files.extend(Arch::ALL.map(|arch| self.object(arch)));
        files.sort();
        files.dedup();
        files
    }

    /// The sources and objects that changed since the digests were written.
    fn changed(&self, root: &Path) -> Result<Vec<String>> {
        let kept = root.join(self.digests());
        let kept = std::fs::read_to_string(&kept).with_context(|| kept.display().to_string())?;
        digest::changed(&kept, &digest::of(root, &self.files())?)
    }
}

/// Compares the digests of the sources with those that are kept beside the objects.
pub(crate) fn compare_digests(root: &Path) -> Result<()> {
    for product in PRODUCTS {
        let changed = product.changed(root)?;
        ensure!(
            changed.is_empty(),
            "changed since the object was built: {}\nrun `./x ebpf`, which builds {}",
            changed.join(", "),
            product.object(Arch::host()?).display()
        );
    }
    Ok(())
}

/// The toolchain of the checked-in objects.
struct Toolchain {
    rustc: Rustc,
    linker: PathBuf,
}

impl Toolchain {
    /// The versions of `tracer-ebpf/toolchain.txt`.
    fn pinned() -> Result<Self> {
        let missing = |program: &str| {
            let version = toolchain::pinned(program);
            format!(
                "{program} {version} of {} is not here: run `cargo xtask setup objects`",
                toolchain::PINNED
            )
        };
        let rustc = toolchain::find_pinned().with_context(|| missing("rustc"))?;
        let linker = toolchain::find_pinned_linker().with_context(|| missing(BPF_LINKER))?;
        Ok(Self { rustc, linker })
    }

    /// Any versions.
    fn any() -> Result<Self> {
        let missing = "is not here: run `cargo xtask setup ebpf`";
        let rustc = toolchain::find_ebpf()?;
        let rustc = rustc.with_context(|| format!("a compiler with its core sources {missing}"))?;
        let linker = toolchain::find_bpf_linker().with_context(|| format!("bpf-linker {missing}"))?;
        Ok(Self { rustc, linker })
    }

    /// Cargo for a crate of eBPF programs. Paths in debug information are relative to the tree or begin with a fixed
    /// name.
    fn cargo(&self, krate: &str, arch: Arch) -> Command {
        let root = host::root();
        let mut command = self.rustc.cargo();
        // Each registry has a directory there, with the address in its name.
        let cargo_home = host::cargo_bin().and_then(|bin| bin.parent().map(|home| home.join("registry/src")));
        let registries = cargo_home.and_then(|registries| std::fs::read_dir(registries).ok());
        let mut remapped: Vec<(PathBuf, &str)> =
            vec![(root.to_owned(), "."), (self.rustc.sysroot.join("lib/rustlib/src/rust"), "rust")];
        remapped.extend(registries.into_iter().flatten().flatten().map(|entry| (entry.path(), "registry")));
        let flags: Vec<String> = remapped
            .iter()
            .map(|(from, to)| format!("\"--remap-path-prefix={}={to}\"", from.display()))
            .collect();
        command
            .current_dir(root.join(krate))
            .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &self.linker)
            .env("AYA_BPF_TARGET_ARCH", arch.name())
            .args(["build", "--release", "--target", TARGET, "-Zbuild-std=core", "--config"])
            .arg(format!("{SETTINGS}.rustflags=[{}]", flags.join(",")));
        if !self.rustc.nightly {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }

    /// Compiles a crate for `arch` and returns the path of its object.
    fn compile(&self, krate: &str, binary: &str, arch: Arch, features: &[&str]) -> Result<PathBuf> {
        // One directory for all architectures, because most of the compiled code is the same.
        let out = host::root().join("target/bpf-build");
        let mut command = self.cargo(krate, arch);
        host::run(command.arg("--target-dir").arg(&out).args(features))?;
        let built = out.join(TARGET).join("release").join(binary);
        let content = std::fs::read(&built).with_context(|| format!("cargo left no {}", built.display()))?;
        ensure!(is_bpf_object(&content), "{} is not an eBPF object", built.display());
        Ok(built)
    }

    /// The object as it is checked in: without debug information except BTF, and with symbols that do not depend on
    /// the directory of the build.
    fn product(&self, product: &Product, arch: Arch) -> Result<Vec<u8>> {
        let built = self.compile(product.krate, product.binary, arch, &[])?;
        let tool = |name: &str| {
            toolchain::find_llvm(name)
                .with_context(|| format!("{name} is not here: run `cargo xtask setup objects`"))
        };
        let symbols = host::output(Command::new(tool("llvm-nm")?).arg("--just-symbol-name").arg(&built))?;
        let made = host::root().join("target/bpf").join(format!("{}-{}.o", product.binary, arch.name()));
        std::fs::create_dir_all(made.parent().context("a directory")?)?;
        let mut objcopy = Command::new(tool("llvm-objcopy")?);
        objcopy.arg("--strip-debug");
        for (symbol, short) in symbols.lines().filter_map(|symbol| Some((symbol, without_hash(symbol)?))) {
            objcopy.arg(format!("--redefine-sym={symbol}={short}"));
        }
        host::run(objcopy.args([&built, &made]))?;
        std::fs::read(&made).with_context(|| made.display().to_string())
    }

    /// The objects of a product with their paths relative to the tree's root.
    fn objects(&self, product: &Product) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut objects: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        for arch in Arch::ALL {
            let (path, object) = (product.object(arch), self.product(product, arch)?);
            match objects.iter().find(|(other, _)| *other == path) {
                None => objects.push((path, object)),
                Some((_, other)) => {
                    ensure!(*other == object, "{} depends on the architecture", product.krate);
                }
            }
        }
        Ok(objects)
    }
}

/// A mangled symbol without the hashes of crates, which depend on the directory of the build: `Cs1a2b_4name` becomes
/// `C4name` (rustc's symbol mangling version v0). `None` if it contains none.
fn without_hash(symbol: &str) -> Option<String> {
    let mut short = String::new();
    let mut rest = symbol.strip_prefix("_R")?;
    while let Some(at) = rest.find("Cs") {
        let (before, hash) = rest.split_at(at);
        let end = hash[2..].find(|c: char| !c.is_ascii_alphanumeric()).map(|end| end + 2);
        let is_hash = |end: &usize| {
            let (underscore, name) = (&hash[*end..=*end], &hash[end + 1..]);
            underscore == "_" && name.starts_with(|c: char| c.is_ascii_digit())
        };
        short.push_str(before);
        if let Some(end) = end.filter(is_hash) {
            short.push('C');
            rest = &hash[end + 1..];
        } else {
            short.push_str("Cs");
            rest = &hash[2..];
        }
    }
    let short = format!("_R{short}{rest}");
    (short != symbol).then_some(short)
}

/// Builds the templates with aya-log for `arch` and returns the object's path. Any toolchain serves.
pub(crate) fn debug_object(arch: Arch) -> Result<PathBuf> {
    setup::ensure(&[Group::Ebpf])?;
    host::step(format!("Building the eBPF object that logs ({})", arch.name()));
    let toolchain = Toolchain::any()?;
    let built = toolchain.compile(TEMPLATES.krate, TEMPLATES.binary, arch, &["--features", "log"])?;
    let object = host::root().join("target/bpf").join(format!("tracer-ebpf-debug-{}.o", arch.name()));
    host::write_if_changed(&object, &std::fs::read(&built)?)?;
    Ok(object)
}

/// Whether the bytes are a 64-bit little-endian ELF file for the machine `EM_BPF` (elf.h).
fn is_bpf_object(bytes: &[u8]) -> bool {
    const EM_BPF: u16 = 247;
    bytes.starts_with(b"\x7fELF\x02\x01") && bytes.get(18..20) == Some(&EM_BPF.to_le_bytes()[..])
}

/// Clippy of the templates. The workspace's clippy cannot check them, because they compile for BPF only.
fn clippy(rustc: &Rustc) -> Result<()> {
    let root = host::root();
    let mut clippy = rustc.clippy();
    clippy
        .current_dir(root.join(TEMPLATES.krate))
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["--release", "--target", TARGET, "-Zbuild-std=core"])
        // A separate directory: because of different flags, lint and build would discard each other's core.
        .args(["--features", "log", "--target-dir"])
        .arg(root.join("target/bpf-lint"))
        .args(["--", "-D", "warnings"]);
    host::run(&mut clippy)
}

/// Runs the verb `ebpf`.
pub(crate) fn verb(options: &Options) -> Result<()> {
    setup::ensure(&[Group::Objects])?;
    check_or_write(options.check)
}

/// Builds all objects. Compares them with the checked-in ones if `check`, else replaces these.
pub(crate) fn check_or_write(check: bool) -> Result<()> {
    let (root, toolchain) = (host::root(), Toolchain::pinned()?);
    host::step("Clippy of tracer-ebpf");
    clippy(&toolchain.rustc)?;
    for product in PRODUCTS {
        host::step(format!("Building the eBPF object of {}", product.krate));
        let objects = toolchain.objects(product)?;
        for (path, object) in &objects {
            if check {
                let kept = std::fs::read(root.join(path)).with_context(|| path.display().to_string())?;
                if kept != *object {
                    bail!("{} is not what its sources give: run `./x ebpf`", path.display());
                }
            } else {
                let is_new = host::write_if_changed(&root.join(path), object)?;
                eprintln!("{} is {}", path.display(), if is_new { "new" } else { "the same" });
            }
        }
        if !check {
            let digests = digest::of(root, &product.files())?;
            host::write_if_changed(&root.join(product.digests()), digests.as_bytes())?;
        }
    }
    compare_digests(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bpf_objects_pass() {
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0".to_vec();
        assert!(is_bpf_object(&elf));
        elf[18] = 62;
        assert!(!is_bpf_object(&elf), "x86-64 code");
        assert!(!is_bpf_object(b"\x7fELF"));
        assert!(!is_bpf_object(&std::fs::read("/proc/self/exe").unwrap()));
    }

    #[test]
    fn hashes_of_crates_are_cut_out() {
        let short = "_RNvNtC11tracer_ebpf4ring7control";
        for hash in ["s1lMdYRR3IZo_", "sdbXDeyCtyAM_", "s_"] {
            let symbol = format!("_RNvNtC{hash}11tracer_ebpf4ring7control");
            assert_eq!(without_hash(&symbol).as_deref(), Some(short), "{symbol}");
        }
        let two = "_RINvNtCs1a_4core3mem4swapNtCs2b_3own1TE";
        assert_eq!(without_hash(two).as_deref(), Some("_RINvNtC4core3mem4swapNtC3own1TE"));
        for other in ["trace_event", "memcpy", short, "_RNvC3own5Css_x", "_RNvCs1a"] {
            assert_eq!(without_hash(other), None, "{other}");
        }
    }

    #[test]
    fn objects_are_checked_in() {
        for product in PRODUCTS {
            for arch in Arch::ALL {
                let object = std::fs::read(host::root().join(product.object(arch))).unwrap();
                assert!(is_bpf_object(&object), "{}", product.krate);
            }
            let digests = std::fs::read_to_string(host::root().join(product.digests())).unwrap();
            for source in ["tracer-abi/src/lib.rs", toolchain::PINNED, "src/main.rs"] {
                assert!(digests.contains(source), "{source} of {}", product.krate);
            }
        }
    }
}
