//! Runs the fuzz targets over a few seeded inputs each, the same in every run of the tests: state files, requests to
//! the tree, program files, and records. They need no root and attach no program.
//!
//! The file also tests a machine whose list of possible CPUs is empty or invalid.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tracer_tests::host;

#[path = "../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "a crate of its own elsewhere")]
#[allow(dead_code, clippy::pedantic, missing_docs)]
mod drive;

/// Runs a target over this many inputs, which are the same every time. It counts the inputs that passed the parser
/// and requires at least `least`, half of the number when the test was written. Without this check the test would
/// pass even if the parser refused all inputs.
fn over<const N: usize>(inputs: u32, longest: usize, least: [u64; N], run: impl Fn(&[u8]) -> [u64; N]) {
    let config = Config { cases: inputs, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let total = Cell::new([0; N]);
    runner
        .run(&vec(any::<u8>(), 0..longest), |input| {
            let (done, before) = (run(&input), total.get());
            total.set(std::array::from_fn(|at| before[at] + done[at]));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let total = total.get();
    println!("{inputs} inputs: {total:?}, at least {least:?}");
    assert!(total.iter().zip(&least).all(|(total, least)| total >= least), "{total:?}, at least {least:?}");
}

/// Changes a seed: each three bytes of the input replace a byte with one of the alphabet, or remove a byte.
fn changed(seed: &[u8], input: &[u8], alphabet: &[u8; 32]) -> Vec<u8> {
    let mut changed = seed.to_vec();
    for change in input.chunks_exact(3) {
        let at = usize::from(change[0]) * 256 + usize::from(change[1]);
        let at = at % changed.len();
        match change[2] {
            0..=63 => drop(changed.remove(at)),
            byte => changed[at] = alphabet[usize::from(byte) % 32],
        }
    }
    changed
}

#[test]
fn requests_in_any_order() {
    // Opened files, reads with data, accepted writes.
    over(400, 3000, [550, 33, 400], drive::tree::done);
}

#[test]
fn records_with_any_content() {
    // Records in buffers.
    over(150, 2000, [250], |input| [drive::wire::pushed(input)]);
}

#[test]
fn programs_with_any_symbols() {
    // Random bytes describe no event; the inputs of `programs_with_any_notes` do.
    over(2000, 600, [], |input| {
        drive::note::run(input);
        []
    });
}

/// Two events in the target's note syntax: place and semaphore, system, name and description each.
fn two_events() -> Vec<u8> {
    let event = |name: &str| {
        let mut seed = Vec::new();
        seed.extend([0x40_u64, 0x48].map(u64::to_le_bytes).as_flattened());
        seed.extend(format!("demo\0{name}\0").bytes());
        seed.extend(
            b"\tfield:u32 a;\toffset:8;\tsize:4;\tsigned:0;\n\
              \tfield:__data_loc char[] b;\toffset:12;\tsize:4;\tsigned:0;\n\n\
              print fmt: \"a=%u b=%s\", REC->a, __get_str(b)\n\0",
        );
        seed
    };
    [vec![2], event("one"), vec![0xff], event("other")].concat()
}

#[test]
fn programs_with_any_notes() {
    let seed = two_events();
    assert_eq!(drive::note::described(&seed), 2, "the seed has two events");
    // Events in files.
    over(1000, 13, [450], |input| {
        [drive::note::described(&changed(&seed, input, b"0123456789,;:_()[]\"%&->\n\t\0\xffasunx"))]
    });
}

/// A state with entries of every kind, some of which can be restored.
const STATE: &str = include_str!("../../fuzz/seeds/state/whole.json");

#[test]
fn state_files() {
    assert_eq!(drive::state::taken(STATE.as_bytes()), 1, "the seed is taken up");
    // Accepted states.
    over(500, 13, [95], |input| {
        let state = changed(STATE.as_bytes(), input, b"0123456789-.eE\",:[]{}truefalsn\\u");
        [drive::state::taken(&state)]
    });
}

/// Runs a `tracer` command on one CPU, in a mount namespace where the kernel's list of possible CPUs has this text.
fn with_possible_cpus(text: &str, command: &[&str]) -> Result<Output> {
    let list: PathBuf = std::env::temp_dir().join(format!("tracer-possible-{}", std::process::id()));
    std::fs::write(&list, text)?;
    let script = "mount --bind \"$0\" /sys/devices/system/cpu/possible && exec taskset -c 0 \"$@\"";
    let limit = host::patience(std::time::Duration::from_secs(10)).as_secs().to_string();
    let output = Command::new("timeout")
        .args(["-s", "INT", "-k", "10", &limit, "unshare", "-m", "sh", "-c", script])
        .arg(&list)
        .arg(host::binary("tracer", "TRACER_BIN")?)
        .args(command)
        .output();
    std::fs::remove_file(&list)?;
    output.context("timeout of coreutils")
}

#[test]
fn an_empty_list_of_possible_cpus_is_an_error() {
    host::as_root(|| {
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        let own = std::process::id().to_string();
        let record = ["record", "-e", "sched:sched_process_exit", "--pid", &own, "--for", "100ms"];
        let hist = ["hist", "sched:sched_process_exit", "keys=common_pid", "--for", "100ms"];
        let place = std::env::temp_dir().join(format!("tracer-possible-mirror-{own}"));
        let mount = ["mount", place.to_str().context("a plain name")?];
        // The kernel's own text in the same setup: a failure below is caused by the text.
        for command in [&record[..], &hist] {
            let output = with_possible_cpus(&possible, command)?;
            ensure!(output.status.success(), "{command:?} with {possible:?}: {output:?}");
        }
        for text in ["", "\n", "none\n", "3-1\n", "0-4294967295\n"] {
            for command in [&record[..], &hist, &mount] {
                let output = with_possible_cpus(text, command)?;
                let said = String::from_utf8_lossy(&output.stderr);
                let expected = "error: /sys/devices/system/cpu/possible: Input/output error (os error 5)\n";
                ensure!(said == expected, "{command:?} with {text:?}: {said}");
                ensure!(output.status.code() == Some(1), "{command:?} with {text:?}: {}", output.status);
            }
        }
        // The daemon makes the mount point before it reads the facts of the machine.
        std::fs::remove_dir(&place).or_else(|error| {
            if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
        })?;
        Ok(())
    });
}
