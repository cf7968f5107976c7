//! Compares the compiler's errors for invalid events, lines and positions, with each file's `.stderr` in `tests/ui`.
//! `BLESS=1` rewrites the files. Paths are relative to the package's directory, where cargo starts its tests.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the crate. Returns its library file and the directory of its dependencies.
fn built() -> (PathBuf, PathBuf) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--lib", "--offline", "--message-format=json", "--manifest-path"]);
    cargo.arg("Cargo.toml");
    let output = cargo.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let rlib = text.split('"').map(PathBuf::from).rfind(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libtracer_events")
            && !name.contains("macros")
            && path.extension().is_some_and(|ext| ext == "rlib")
    });
    let rlib = rlib.expect("cargo tells where the library is");
    let dir = rlib.parent().unwrap();
    let deps = if dir.ends_with("deps") { dir.to_owned() } else { dir.join("deps") };
    (rlib, deps)
}

/// Error lines with their places.
fn errors(text: &str) -> String {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("error: aborting") && !line.starts_with("error: could not"));
    let mut kept = String::new();
    let mut place = false;
    for line in lines {
        if line.starts_with("error") {
            kept += line;
            kept += "\n";
            place = true;
        } else if let (true, Some(at)) = (place, line.find("--> ")) {
            kept += &line[at..];
            kept += "\n";
            place = false;
        }
    }
    kept
}

#[test]
fn wrong_events() {
    let (rlib, deps) = built();
    let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir("tests/ui").unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    assert!(files.len() >= 15);
    let mut wrong = String::new();
    for file in files {
        let output = Command::new(&rustc)
            .args(["--edition=2024", "--emit=metadata", "--crate-name=ui", "-o", "/dev/null"])
            .arg(format!("--extern=tracer_events={}", rlib.display()))
            .arg(format!("-Ldependency={}", deps.display()))
            .arg(&file)
            .output()
            .unwrap();
        let found = errors(&String::from_utf8_lossy(&output.stderr));
        let expected = file.with_extension("stderr");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&expected, &found).unwrap();
        }
        let known = std::fs::read_to_string(&expected).unwrap_or_default();
        if output.status.success() || found != known {
            writeln!(wrong, "{}:\nfound\n{found}expected\n{known}", file.display()).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
