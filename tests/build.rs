//! Writes the eBPF program of `tests/emitter` to `$OUT_DIR/long-wait.o` for the test that loads it. The file is empty
//! if `cargo xtask build` has not built the program in `target/bpf/ARCH/`; the test then reports that.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name| env::var(name).expect("cargo sets it");
    let dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"))
        .join("../target/bpf")
        .join(variable("CARGO_CFG_TARGET_ARCH"));
    let object = dir.join("long-wait.o");
    // Cargo would run this script in every build for an absent file, so it watches the directory until the object
    // exists.
    let _ = fs::create_dir_all(&dir);
    println!("cargo::rerun-if-changed={}", if object.is_file() { &object } else { &dir }.display());
    let content = fs::read(&object).unwrap_or_default();
    fs::write(PathBuf::from(variable("OUT_DIR")).join("long-wait.o"), content)
        .expect("OUT_DIR can be written");
}
