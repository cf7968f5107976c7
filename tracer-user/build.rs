//! Hands the eBPF object to the crate as `$OUT_DIR/tracer-ebpf.o`, for it to embed.
//!
//! The object is `$TRACER_EBPF_OBJECT` if that is set, else what `cargo xtask build` left in
//! `target/bpf/ARCH/tracer-ebpf.o`, else empty: then everything compiles, checks and unit-tests as usual, and
//! loading says at run time that the object is missing. The file's length is in `$TRACER_EBPF_OBJECT_LEN`.

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

/// The object to embed, watched by cargo from here on.
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
    // Cargo runs a script each time if what it watches is absent, so watch the directory until the object comes.
    // In a read-only checkout that fails, which costs only those runs.
    let _ = fs::create_dir_all(&dir);
    println!("cargo::rerun-if-changed={}", dir.display());
    None
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("cannot read the eBPF object {}: {e}", path.display()))
}
