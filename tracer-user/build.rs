//! Writes the eBPF object to `$OUT_DIR/tracer-ebpf.o`, where the crate embeds it.
//!
//! The object is `$TRACER_EBPF_OBJECT` if that is set, else the output of `cargo xtask build` in
//! `target/bpf/ARCH/tracer-ebpf.o`, else an empty file. With an empty file everything compiles and unit tests run;
//! loading programs fails with a message. The file's length is in `$TRACER_EBPF_OBJECT_LEN`.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TRACER_EBPF_OBJECT");
    let object = object();
    let content = object.as_deref().map(read).unwrap_or_default();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("tracer-ebpf.o"), &content).expect("OUT_DIR can be written");
    println!("cargo::rustc-env=TRACER_EBPF_OBJECT_LEN={}", content.len());
}

/// The object to embed. Cargo watches it from here on.
fn object() -> Option<PathBuf> {
    if let Some(named) = env::var_os("TRACER_EBPF_OBJECT").filter(|v| !v.is_empty()) {
        println!("cargo::rerun-if-changed={}", named.display());
        return Some(named.into());
    }
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let dir = manifest.parent()?.join("target/bpf").join(arch);
    let built = dir.join("tracer-ebpf.o");
    if built.is_file() {
        println!("cargo::rerun-if-changed={}", built.display());
        return Some(built);
    }
    // If the watched file is absent, Cargo runs this script in every build. So it watches the directory until the
    // object exists. Creating the directory may fail in a read-only checkout, and the script then runs every time.
    let _ = fs::create_dir_all(&dir);
    println!("cargo::rerun-if-changed={}", dir.display());
    None
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("cannot read the eBPF object {}: {e}", path.display()))
}
