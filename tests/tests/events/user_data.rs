//! Texts and buffers that arguments of system calls point to: records, filters and histograms, beside the kernel's own.

use std::ffi::CString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, bodies, read, set, text, write};
use tracer_tests::oracle::Oracle;
use tracer_tests::workload::{absent_names, failing_calls};

/// The events of the calls below. The last one has no data.
const EVENTS: [&str; 6] = ["openat", "write", "renameat2", "symlinkat", "mount", "close"];
/// Values of `syscall_user_buf_size`: the usual one, none, short ones, the largest, and a larger one.
const SIZES: [&str; 6] = ["63", "0", "1", "5", "165", "1000"];

/// An instance of the kernel and one of the mirror, both restricted to this thread, with the events enabled.
struct Pair {
    kernel: Oracle,
    mounted: Mounted,
    ours: PathBuf,
}

impl Pair {
    /// `None` if the kernel records no data of system calls.
    fn start(purpose: &str) -> Result<Option<Self>> {
        if !host::offers("own_syscall_data") {
            host::skip("own_syscall_data", "the kernel's events of system calls have no data");
            return Ok(None);
        }
        let (kernel, mounted) = (Oracle::create(purpose)?, Mounted::start(purpose)?);
        let ours = mounted.instance(purpose)?;
        let pair = Self { kernel, mounted, ours };
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        for dir in pair.dirs() {
            set(dir, "trace_clock", "mono")?;
            set(dir, "buffer_size_kb", "512")?;
            set(dir, "set_event_pid", &own)?;
            for event in EVENTS {
                set(dir, &format!("events/syscalls/sys_enter_{event}/enable"), "1")?;
            }
            set(dir, "tracing_on", "0")?;
        }
        Ok(Some(pair))
    }

    /// The instances, the kernel's first.
    fn dirs(&self) -> [&Path; 2] {
        [self.kernel.dir(), &self.ours]
    }

    /// Records calls on both sides, and returns their lines, the kernel's first.
    fn recorded(&self, calls: impl FnOnce()) -> Result<[Vec<String>; 2]> {
        for dir in self.dirs() {
            write(dir, "trace", b"", false).map_err(std::io::Error::from_raw_os_error)?;
            set(dir, "tracing_on", "1")?;
        }
        calls();
        for dir in self.dirs() {
            set(dir, "tracing_on", "0")?;
        }
        let [kernel, ours] = self.dirs().map(|dir| -> Result<Vec<String>> {
            let trace = read(dir, "trace").map_err(std::io::Error::from_raw_os_error)?;
            // Each of these calls has an argument of -1, and those of the switches have none.
            let is_call = |line: &String| {
                [": 0xffffffffffffffff", ": 18446744073709551615"].iter().any(|all| line.contains(all))
            };
            Ok(bodies(&latin1(&trace)).into_iter().filter(is_call).collect())
        });
        Ok([kernel?, ours?])
    }

    /// Requires equal lines among those that are `wanted`, and returns them.
    fn same(
        &self,
        what: &str,
        wanted: impl Fn(&String) -> bool,
        calls: impl FnOnce(),
    ) -> Result<Vec<String>> {
        let [kernel, ours] = self.recorded(calls)?.map(|mut lines| {
            lines.retain(&wanted);
            lines
        });
        for (number, (kernel, ours)) in kernel.iter().zip(&ours).enumerate() {
            ensure!(kernel == ours, "{what}, line {number}:\nthe kernel's {kernel}\nours         {ours}");
        }
        let counts = (kernel.len(), ours.len());
        ensure!(counts.0 == counts.1, "{what}: {} lines of the kernel, {} of ours", counts.0, counts.1);
        Ok(ours)
    }
}

/// A directory that does not exist.
const MARK: &str = "tracer-absent";

/// Each byte as a character.
fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Bytes that look random, without zeroes.
fn bytes(seed: &mut u64, length: usize) -> Vec<u8> {
    let mut byte = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = *seed >> 33;
        // Mostly letters, so that lines are not all dots.
        let byte = if number.is_multiple_of(4) { number >> 8 } else { u64::from(b'a') + (number >> 8) % 26 };
        (byte as u8).max(1)
    };
    (0..length).map(|_| byte()).collect()
}

#[test]
fn data_of_system_calls_are_the_kernels() {
    host::as_root(|| {
        let Some(pair) = Pair::start("user-data")? else { return Ok(()) };
        let mut seed = 1;
        for size in SIZES {
            for dir in pair.dirs() {
                set(dir, "syscall_user_buf_size", size)?;
            }
            let [kernel, ours] = pair.dirs().map(|dir| text(dir, "syscall_user_buf_size"));
            ensure!(kernel? == ours?, "{size}");
            for length in [0, 1, 4, 5, 6, 62, 63, 64, 164, 165, 166, 169, 170, 250] {
                let mut name = |length| {
                    let mut name = bytes(&mut seed, length);
                    // A relative name.
                    name.iter_mut().take(1).for_each(|byte| *byte = b'a');
                    CString::new(name)
                };
                let names = [name(length)?, name(length / 2)?, name(3)?];
                let mut buffer = bytes(&mut seed, length);
                buffer.iter_mut().step_by(7).for_each(|byte| *byte = 0);
                let lines = pair.same(
                    &format!("{size} bytes, length {length}"),
                    |_| true,
                    || failing_calls(&names, &buffer),
                )?;
                ensure!(lines.len() == 11, "{lines:#?}");
            }
        }
        pair.mounted.stop()?.success().map(drop)
    });
}

/// Calls with absent names, of which a part runs in a machine.
const ABSENT: u32 = 100_000;

#[test]
fn names_on_pages_that_are_not_in_memory_are_recorded() {
    host::as_root(|| {
        if !host::offers("sleepable_calls") {
            host::skip("sleepable_calls", "programs at system calls do not wait for pages");
            return Ok(());
        }
        let Some(pair) = Pair::start("user-data-absent")? else { return Ok(()) };
        for dir in pair.dirs() {
            set(dir, "buffer_size_kb", "32768")?;
        }
        let enable = |dir: &Path, on: &str| {
            EVENTS
                .iter()
                .try_for_each(|event| set(dir, &format!("events/syscalls/sys_enter_{event}/enable"), on))
        };
        // Inside a page, and at its end, where the bytes after the name are no memory.
        let name = format!("{MARK}/page");
        for offset in [0, 100, 4096 - name.len() - 1] {
            let mut page = vec![0_u8; 4096];
            page[offset..offset + name.len()].copy_from_slice(name.as_bytes());
            let mut file = File::from(memfd_create("tracer-page", MemfdFlags::CLOEXEC)?);
            file.write_all(&page)?;
            let calls = host::share(ABSENT) as usize;
            // One side after the other: the first one that reads a page makes it present.
            let mut counts = Vec::new();
            for side in 0..2 {
                for (number, dir) in pair.dirs().into_iter().enumerate() {
                    enable(dir, if number == side { "1" } else { "0" })?;
                }
                let mut done = Ok(());
                let lines = pair.recorded(|| done = absent_names(&file, offset, calls as u32))?;
                done?;
                let named = |line: &&String| line.contains(&format!("\"{name}\""));
                counts.push((lines[side].len(), lines[side].iter().filter(named).count()));
            }
            println!(
                "offset {offset}: {calls} calls; lines and names of the kernel, and of ours: {counts:?}"
            );
            ensure!(counts == [(calls, calls); 2], "{counts:?} of {calls}");
        }
        pair.mounted.stop()?.success().map(drop)
    });
}

/// Whether the data of a line were read. Of others the kernel's filters see what an older record left at that place.
fn has_data(line: &str) -> bool {
    !line.contains("filename: 0 ") && !line.contains("buf: 0 ")
}

#[test]
fn filters_and_histograms_read_data_of_system_calls() {
    host::as_root(|| {
        let Some(pair) = Pair::start("user-data-filter")? else { return Ok(()) };
        let names = [["one", "two"], ["three", "on"], ["", "one-two"]];
        let run = || {
            for [a, b] in names {
                let of = |name: &str| CString::new(format!("{MARK}/{name}")).unwrap_or_default();
                failing_calls(&[of(a), of(b), of(a)], b.as_bytes());
            }
        };
        for (event, filter) in [
            ("openat", "__filename_val ~ \"*one*\""),
            ("openat", "__filename_val == \"tracer-absent/three\" && flags > 5"),
            ("renameat2", "__oldname_val ~ \"*three\" || __newname_val ~ \"*-two\""),
            ("write", "__buf_val != \"two\""),
        ] {
            let file = format!("events/syscalls/sys_enter_{event}/filter");
            for dir in pair.dirs() {
                set(dir, &file, filter)?;
            }
            let lines = pair.same(filter, |line| has_data(line), run)?;
            let hits = lines.iter().filter(|line| line.starts_with(&format!("sys_{event}("))).count();
            let all = if event == "openat" { 12 } else { 3 };
            ensure!(hits > 0 && hits < all, "{filter}: {hits}");
            for dir in pair.dirs() {
                set(dir, &file, "0")?;
            }
        }
        if !host::offers("own_hist") {
            return pair.mounted.stop()?.success().map(drop);
        }
        let trigger = "hist:keys=__filename_val,flags:sort=__filename_val,flags if mode != 0 && __filename_val ~ \"*absent*\"";
        let dir = "events/syscalls/sys_enter_openat";
        for side in pair.dirs() {
            set(side, &format!("{dir}/trigger"), trigger)?;
        }
        pair.recorded(run)?;
        let [kernel, ours] = pair.dirs().map(|side| text(side, &format!("{dir}/hist")));
        let (kernel, ours) = (kernel?, ours?);
        ensure!(kernel == ours, "the kernel's\n{kernel}\nours\n{ours}");
        ensure!(ours.contains("Hits: 12"), "{ours}");
        pair.mounted.stop()?.success().map(drop)
    });
}
