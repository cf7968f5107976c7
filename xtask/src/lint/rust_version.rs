//! The oldest supported Rust, `rust-version` in Cargo.toml, checked in three ways.
//!
//! Clippy's `incompatible_msrv` rejects items that the standard library of that version lacks (`msrv` in
//! clippy.toml). No dependency may declare a newer version. Only a compiler of that version detects newer language
//! features. If one is installed, it checks the workspace; otherwise that check is skipped with its reason.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{host, toolchain};

/// Arguments of cargo: the packages of the workspace, for its platforms.
const METADATA: [&str; 5] = [
    "metadata",
    "--format-version=1",
    "--locked",
    "--filter-platform=x86_64-unknown-linux-gnu",
    "--filter-platform=aarch64-unknown-linux-gnu",
];

/// Reads `1.88` or `1.88.0`.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next().map_or(Some(0), |minor| minor.parse().ok())?))
}

/// The packages of `cargo metadata` that need a newer Rust than `oldest`, each as `NAME VERSION wants RUST`.
fn newer(metadata: &Value, oldest: (u32, u32)) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut found = Vec::new();
    for package in packages {
        let Some(wanted) = package["rust_version"].as_str() else { continue };
        let (name, version) = (&package["name"], &package["version"]);
        let numbers = parse(wanted).with_context(|| format!("rust-version {wanted} of {name}"))?;
        if numbers > oldest {
            found.push(format!(
                "{} {} requires Rust {wanted}",
                name.as_str().unwrap_or_default(),
                version.as_str().unwrap_or_default()
            ));
        }
    }
    Ok(found)
}

/// Checks the versions that the workspace's dependencies declare.
pub(super) fn dependencies() -> Result<()> {
    let text = host::output(host::cargo().args(METADATA))?;
    let found = newer(&serde_json::from_str(&text).context("cargo metadata")?, toolchain::OLDEST)?;
    if found.is_empty() {
        return Ok(());
    }
    for line in &found {
        eprintln!("{line}");
    }
    let (major, minor) = toolchain::OLDEST;
    bail!("{} dependencies are not for Rust {major}.{minor}", found.len())
}

/// Checks the workspace with a compiler of exactly that version; returns the reason if none is installed.
pub(super) fn compile(root: &Path) -> Result<Option<String>> {
    let (major, minor) = toolchain::OLDEST;
    let Some(rustc) = toolchain::of_release(toolchain::OLDEST) else {
        return Ok(Some(format!(
            "no Rust {major}.{minor} is installed: only the standard library's version was checked"
        )));
    };
    let mut check = rustc.cargo();
    check.current_dir(root).args(["check", "--workspace", "--all-targets", "--locked", "--target-dir"]);
    host::run(check.arg(root.join("target/oldest-rust")))?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_for_a_newer_rust_are_named() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "a", "version": "1.0.0", "rust_version": "1.88" },
            { "name": "b", "version": "2.0.0", "rust_version": "1.88.1" },
            { "name": "c", "version": "3.0.0", "rust_version": "1.90.0" },
            { "name": "d", "version": "4.0.0", "rust_version": null },
            { "name": "e", "version": "5.0.0", "rust_version": "2" },
        ]});
        assert_eq!(
            newer(&metadata, (1, 88)).unwrap(),
            ["c 3.0.0 requires Rust 1.90.0", "e 5.0.0 requires Rust 2"]
        );
        assert!(newer(&serde_json::json!({}), (1, 88)).is_err());
        assert!(newer(&serde_json::json!({ "packages": [{ "rust_version": "x" }] }), (1, 88)).is_err());
    }

    #[test]
    fn all_places_name_the_same_version() {
        let text = |path: &str| std::fs::read_to_string(host::root().join(path)).unwrap();
        let (major, minor) = toolchain::OLDEST;
        let manifest = text("Cargo.toml");
        for (place, words) in [
            (&manifest, format!("rust-version = \"{major}.{minor}\"\n")),
            (&manifest, "incompatible_msrv = \"deny\"\n".to_owned()),
            (&text("clippy.toml"), format!("msrv = \"{major}.{minor}\"\n")),
            (&text("x"), format!("install Rust {major}.{minor} or later")),
        ] {
            assert!(place.contains(&words), "{words:?} is missing in {place}");
        }
        let (_, members) = manifest.split_once("members = [").unwrap();
        let members: Vec<&str> = members.split(']').next().unwrap().split('"').skip(1).step_by(2).collect();
        assert!(members.len() >= 6, "{members:?}");
        for member in members {
            let manifest = text(&format!("{member}/Cargo.toml"));
            assert!(manifest.contains("\nrust-version.workspace = true\n"), "{member}");
        }
    }
}
