//! Hands the eBPF program of `tests/emitter` to the test that loads it, as `$OUT_DIR/long-wait.o`; empty where `cargo xtask
//! build` has not left it in `target/bpf/ARCH/`, and the test says so then.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name| env::var(name).expect("cargo sets it");
    let dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"))
        .join("../target/bpf")
        .join(variable("CARGO_CFG_TARGET_ARCH"));
    let object = dir.join("long-wait.o");
    // What is absent would be looked for in each build, so the directory is watched until the object comes.
    let _ = fs::create_dir_all(&dir);
    println!("cargo::rerun-if-changed={}", if object.is_file() { &object } else { &dir }.display());
    let content = fs::read(&object).unwrap_or_default();
    fs::write(PathBuf::from(variable("OUT_DIR")).join("long-wait.o"), content)
        .expect("OUT_DIR can be written");
}
