//! An instance of the kernel's tracefs and an instance of the mirror. Both see the same hits of two system calls.
//! Tests write the same text to both and compare all files that triggers change.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::mirror::{self, Mounted, set, text};
use crate::oracle::Oracle;
use crate::oracle::table::{self, tables};
use crate::workload::{getpgid, getsid};

/// The triggers of the event that [`Step::Group`] hits.
pub const TRIGGER: &str = "events/syscalls/sys_enter_getpgid/trigger";
/// The triggers of the event that [`Step::Session`] hits.
pub const OTHER: &str = "events/syscalls/sys_enter_getsid/trigger";
/// Whether the first event is recorded.
pub const ENABLE: &str = "events/syscalls/sys_enter_getpgid/enable";
/// Whether the second event is recorded.
pub const OTHER_ENABLE: &str = "events/syscalls/sys_enter_getsid/enable";
/// The filter of the first event.
pub const FILTER: &str = "events/syscalls/sys_enter_getpgid/filter";
/// The file that turns recording on and off.
pub const ON: &str = "tracing_on";
/// The name of the second event in triggers.
pub const OTHER_NAME: &str = "syscalls:sys_enter_getsid";

/// Directory of the first event. Only the test hits it.
pub const GETPGID: &str = "events/syscalls/sys_enter_getpgid";
/// Directory of the second event.
pub const GETSID: &str = "events/syscalls/sys_enter_getsid";

/// An instance of the kernel's tracefs and an instance of the mirror, both restricted to the calling thread.
#[derive(Debug)]
pub struct Pair {
    /// The kernel's instance.
    pub kernel: Oracle,
    /// The mirror.
    pub mounted: Mounted,
    /// The mirror's instance.
    pub ours: PathBuf,
    /// Whether the kernel has snapshots.
    pub snapshots: bool,
    /// Whether the kernel has histograms.
    pub hists: bool,
    /// Words that the kernel does not support (before 6.3).
    unknown: &'static [&'static str],
}

impl Pair {
    /// Creates both instances.
    ///
    /// # Errors
    /// When one of them cannot be made.
    pub fn new(purpose: &str) -> Result<Self> {
        let kernel = Oracle::create(purpose)?;
        let mounted = Mounted::start(purpose)?;
        let ours = mounted.instance("pair")?;
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        // The oracle has already chosen the setting that its kernel supports.
        let hashed = kernel.get("options/hash-ptr")?;
        for (file, value) in
            [("trace_clock", "mono"), ("options/hash-ptr", hashed.trim()), ("set_event_pid", thread.as_str())]
        {
            set(&ours, file, value)?;
            kernel.set(file, value)?;
        }
        kernel.set("tracing_on", "1")?;
        let available = kernel.get(&format!("{GETPGID}/trigger"))?;
        let snapshots = available.contains(" snapshot");
        let hists = available.contains(" hist\n");
        if snapshots && hists {
            ensure!(text(&ours, &format!("{GETPGID}/trigger"))? == available, "{available}");
        }
        let readme = std::fs::read_to_string(kernel.tracefs().root().join("README"))?;
        let unknown: &[&str] =
            if readme.contains("nohitcount") { &[] } else { &["nohitcount", ".percent", ".graph"] };
        Ok(Self { kernel, mounted, ours, snapshots, hists, unknown })
    }

    /// Writes to both and compares the results.
    ///
    /// # Panics
    /// When they differ.
    pub fn write(&self, file: &str, value: &str) {
        if value.contains("snapshot") && !self.snapshots || value.contains("hist") && !self.hists {
            return;
        }
        if self.unknown.iter().any(|word| value.contains(word)) {
            return;
        }
        let kernel = mirror::write(self.kernel.dir(), file, value.as_bytes(), true);
        let ours = mirror::write(&self.ours, file, value.as_bytes(), true);
        assert_eq!(ours, kernel, "{value:?} to {file}");
    }

    /// Compares a file of both.
    ///
    /// # Panics
    /// When they differ.
    pub fn same(&self, file: &str, after: &str) {
        let read = |dir: &Path| mirror::read(dir, file);
        let (ours, kernel) = (read(&self.ours), read(self.kernel.dir()));
        if let (true, Ok(ours), Ok(kernel)) = (file.ends_with("/hist"), &ours, &kernel) {
            // Rows with equal sort keys may have any order.
            let [ours, kernel] = [ours, kernel].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            let (left, right) = (tables(&ours), tables(&kernel));
            let none = left.is_empty() && right.is_empty() && ours == kernel;
            assert!(
                none || table::same(&left, &right),
                "{file} after {after}\n--- ours\n{ours}\n--- kernel\n{kernel}"
            );
            return;
        }
        let shown = |bytes: Result<Vec<u8>, i32>| bytes.map(|bytes| settled(file, &bytes));
        assert_eq!(shown(ours), shown(kernel), "{file} after {after}");
    }

    /// Compares all files that triggers change.
    ///
    /// # Panics
    /// When they differ.
    pub fn all_same(&self, after: &str) {
        for file in FILES {
            self.same(file, after);
        }
        if self.snapshots {
            self.same("snapshot", after);
        }
        if self.hists {
            for file in HISTS {
                self.same(file, after);
            }
        }
    }

    /// Removes all triggers.
    ///
    /// # Panics
    /// When they differ.
    pub fn clear(&self) {
        for event in [GETPGID, GETSID] {
            let file = format!("{event}/trigger");
            let listed = self.kernel.get(&file).unwrap();
            if self.hists {
                // Opening the file with `O_TRUNC` removes histograms and no other trigger.
                for dir in [self.ours.as_path(), self.kernel.dir()] {
                    assert_eq!(mirror::write(dir, &file, b"\n", false), Err(libc::EINVAL));
                }
            }
            for line in listed.lines().filter(|line| !line.starts_with('#') && !line.starts_with("hist:")) {
                let command: Vec<&str> = line.splitn(4, ':').collect();
                let takes = if command[0].contains("able_") { 3 } else { 1 };
                self.write(&file, &format!("!{}", command[..takes].join(":")));
            }
            self.write(&format!("{event}/enable"), "0");
        }
        self.write("tracing_on", "1");
        self.write("trace", "\n");
        self.all_same("clearing");
    }
}

/// The files to compare after each step.
const FILES: &[&str] = &[
    "events/syscalls/sys_enter_getpgid/trigger",
    "events/syscalls/sys_enter_getsid/trigger",
    "events/syscalls/sys_enter_getpgid/enable",
    "events/syscalls/sys_enter_getsid/enable",
    "events/syscalls/enable",
    "events/enable",
    "set_event",
    "tracing_on",
    "error_log",
    "trace",
];

/// More files to compare when the kernel has histograms.
const HISTS: &[&str] = &["events/syscalls/sys_enter_getpgid/hist", "events/syscalls/sys_enter_getsid/hist"];

/// A file's text without times and without differences between kernels.
fn settled(file: &str, bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    match file {
        "error_log" => {
            for line in &mut lines {
                *line =
                    line.split_once("] ").filter(|_| line.starts_with('[')).map_or(*line, |(_, rest)| rest);
            }
        }
        "set_event" => lines.sort_unstable(),
        "trace" | "snapshot" => {
            lines.retain(|line| !line.starts_with('#') && !mirror::is_of_the_hook(line));
            for line in &mut lines {
                // `comm-pid [cpu] flags time: text`
                *line = match line.split_once(": ") {
                    Some((_, rest)) if !line.starts_with(" =>") => rest,
                    _ => line.split('+').next().unwrap_or(line),
                };
            }
        }
        _ => {}
    }
    // The list of triggers depends on the configuration of the kernel.
    if lines.first().is_some_and(|line| line.starts_with("# Available triggers")) {
        return "# Available triggers".to_owned();
    }
    lines.join("\n")
}

/// A step of a scenario.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Writes to a file.
    To(&'a str, &'a str),
    /// Hits the first event with this argument.
    Group(i32),
    /// Hits the second event with this argument.
    Session(i32),
}

/// Runs the steps and compares both sides after the last step only.
///
/// # Panics
/// When they differ.
pub fn play_last(pair: &Pair, steps: &[Step<'_>]) {
    for step in steps {
        match step {
            Step::To(file, value) => pair.write(file, value),
            Step::Group(pid) => getpgid(*pid),
            Step::Session(pid) => getsid(*pid),
        }
    }
    pair.all_same(&format!("{:?} and so on", steps.first()));
    pair.clear();
}

/// Runs the steps and compares both sides after each step.
///
/// # Panics
/// When they differ.
pub fn play(pair: &Pair, steps: &[Step<'_>]) {
    let mut done = String::new();
    for step in steps {
        match step {
            Step::To(file, value) => {
                pair.write(file, value);
                done = format!("{done}\n{value:?} to {file}");
            }
            Step::Group(pid) => {
                getpgid(*pid);
                done = format!("{done}\ngetpgid({pid})");
            }
            Step::Session(pid) => {
                getsid(*pid);
                done = format!("{done}\ngetsid({pid})");
            }
        }
        pair.all_same(&done);
    }
    pair.clear();
}
