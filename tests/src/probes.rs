//! The same dynamic events in the kernel's tracefs and in a mirror, hit together or one after the other.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::host;
use crate::mirror::{self, Answer, Mounted, set, text};
use crate::oracle::Oracle;

/// The path of this program and the offset in it of a function, as definitions have it.
///
/// # Errors
/// When the function lies in no file.
pub fn place(address: u64) -> Result<String> {
    let path = std::env::current_exe()?;
    let path = path.to_str().context("a path in UTF-8")?;
    // START-END FLAGS OFFSET DEVICE INODE PATH
    let offset = std::fs::read_to_string("/proc/self/maps")?.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let offset = hex(words.nth(1)?)?;
        (hex(start)?..hex(end)?).contains(&address).then(|| address - hex(start).unwrap_or_default() + offset)
    });
    Ok(format!("{path}:{:#x}", offset.context("the function is nowhere")?))
}

/// A definition, the file it is written to, and the event that it makes.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// `dynamic_events`, `kprobe_events` or `uprobe_events`.
    pub file: &'a str,
    /// The line.
    pub line: &'a str,
}

/// Both trees, and an instance of each that records one thread.
#[derive(Debug)]
pub struct Pair {
    oracle: Oracle,
    mounted: Mounted,
    kernel: PathBuf,
    group: String,
}

impl Pair {
    /// Mounts a mirror beside the kernel's tracefs; both record the calling thread only.
    ///
    /// # Errors
    /// When one of them cannot be had.
    pub fn start(purpose: &str) -> Result<Self> {
        let oracle = Oracle::create(purpose)?;
        let mounted = Mounted::start(purpose)?;
        let kernel = oracle.tracefs().root().to_owned();
        let pid = rustix::thread::gettid().as_raw_nonzero().to_string();
        set(mounted.dir(), "set_event_pid", &pid)?;
        set(oracle.dir(), "set_event_pid", &pid)?;
        oracle.tracing(true)?;
        // Tests run beside each other, and the kernel has one set of dynamic events.
        let group = format!("tracer_{}", purpose.replace('-', "_"));
        Ok(Self { oracle, mounted, kernel, group })
    }

    /// The same where the kernel has the file that is compared with, and this is root; None otherwise, which it says.
    ///
    /// # Errors
    /// As [`Pair::start`].
    pub fn where_there_is(purpose: &str, file: &str) -> Result<Option<Self>> {
        if !host::root_or_skip() {
            return Ok(None);
        }
        let pair = Self::start(purpose)?;
        if !pair.kernel_has(file) {
            eprintln!("skipped: the kernel has no {file}");
            return Ok(None);
        }
        Ok(Some(pair))
    }

    /// The group that this pair's events are in.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Whether the kernel has a file.
    pub fn kernel_has(&self, file: &str) -> bool {
        self.kernel.join(file).exists()
    }

    /// The kernel's own tree.
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// The mirror.
    pub fn mirror(&self) -> &Path {
        self.mounted.dir()
    }

    /// Writes a line to both; their answers, the kernel's first.
    pub fn define(&self, case: Case<'_>) -> (Answer, Answer) {
        let line = format!("{}\n", case.line);
        let kernel = mirror::write(&self.kernel, case.file, line.as_bytes(), true);
        (kernel, mirror::write(self.mirror(), case.file, line.as_bytes(), true))
    }

    /// The lines of a file of both that are about this pair's events, the kernel's first.
    ///
    /// # Errors
    /// Those of the file.
    pub fn listings(&self, file: &str) -> Result<(String, String)> {
        let mark = format!(":{}/", self.group);
        let own =
            |text: String| text.split_inclusive('\n').filter(|line| line.contains(&mark)).collect::<String>();
        let (kernel, mirror) = self.read(file)?;
        Ok((own(kernel), own(mirror)))
    }

    /// What a file of both reads, the kernel's first.
    ///
    /// # Errors
    /// Those of the file.
    pub fn read(&self, file: &str) -> Result<(String, String)> {
        Ok((text(&self.kernel, file)?, text(self.mirror(), file)?))
    }

    /// The format files of an event, without the ids, which differ.
    ///
    /// # Errors
    /// Those of the files.
    pub fn formats(&self, event: &str) -> Result<(String, String)> {
        let without = |text: String| {
            text.split_inclusive('\n').filter(|line| !line.starts_with("ID:")).collect::<String>()
        };
        let (kernel, mirror) = self.read(&format!("events/{}/{event}/format", self.group))?;
        Ok((without(kernel), without(mirror)))
    }

    /// Turns an event on or off in both.
    ///
    /// # Errors
    /// Those of the files.
    pub fn enable(&self, event: &str, on: bool) -> Result<()> {
        let file = format!("events/{}/{event}/enable", self.group);
        let value = if on { "1" } else { "0" };
        set(self.oracle.dir(), &file, value).context("the kernel")?;
        set(self.mirror(), &file, value).context("the mirror")
    }

    /// Another instance of both, the kernel's first. The mirror's goes with the mirror, the kernel's with the pair.
    ///
    /// # Errors
    /// When one of them cannot be had.
    pub fn instance(&self, name: &str) -> Result<[PathBuf; 2]> {
        let kernel = self.kernel.join("instances").join(format!("{}_{name}", self.group));
        std::fs::create_dir(&kernel)?;
        Ok([kernel, self.mounted.instance(name)?])
    }

    /// Records what the calling thread starts as well.
    ///
    /// # Errors
    /// Those of the files.
    pub fn follow_children(&self) -> Result<()> {
        [self.oracle.dir(), self.mirror()].iter().try_for_each(|dir| set(dir, "options/event-fork", "1"))
    }

    /// The texts that an event's hits leave behind its name, with the filter, if any: in the kernel, in the mirror. Where
    /// probes of two tracers on one function see each other, they are hung up one after the other.
    ///
    /// # Errors
    /// Those of the files.
    pub fn hits(
        &self,
        event: &str,
        filter: Option<&str>,
        together: bool,
        mut hit: impl FnMut(),
    ) -> Result<(Vec<String>, Vec<String>)> {
        let dirs = [self.oracle.dir(), self.mirror()];
        for dir in dirs {
            set(dir, "trace", "")?;
            set(dir, &format!("events/{}/{event}/filter", self.group), filter.unwrap_or("0"))?;
        }
        let file = format!("events/{}/{event}/enable", self.group);
        if together {
            self.enable(event, true)?;
            hit();
            self.enable(event, false)?;
        } else {
            for dir in dirs {
                set(dir, &file, "1")?;
                hit();
                set(dir, &file, "0")?;
            }
        }
        let read = |dir| Ok::<_, anyhow::Error>(bodies(&text(dir, "trace")?, event));
        Ok((read(dirs[0])?, read(dirs[1])?))
    }

    /// The texts that an event's hits leave in the mirror alone, where the kernel does not know such a definition.
    ///
    /// # Errors
    /// Those of the files.
    pub fn own_hits(&self, event: &str, mut hit: impl FnMut()) -> Result<Vec<String>> {
        let file = format!("events/{}/{event}/enable", self.group);
        set(self.mirror(), "trace", "")?;
        set(self.mirror(), &file, "1")?;
        hit();
        set(self.mirror(), &file, "0")?;
        Ok(bodies(&text(self.mirror(), "trace")?, event))
    }

    /// The texts that hits leave of each of these events while the whole group is on: in the kernel, in the mirror, one after the
    /// other.
    ///
    /// # Errors
    /// Those of the files.
    pub fn group_hits(
        &self,
        events: &[&str],
        mut hit: impl FnMut(),
    ) -> Result<Vec<(Vec<String>, Vec<String>)>> {
        let file = format!("events/{}/enable", self.group);
        let mut trace = |dir| {
            set(dir, "trace", "")?;
            set(dir, &file, "1")?;
            hit();
            set(dir, &file, "0")?;
            text(dir, "trace")
        };
        let (kernel, ours) = (trace(self.oracle.dir())?, trace(self.mirror())?);
        Ok(events.iter().map(|event| (bodies(&kernel, event), bodies(&ours, event))).collect())
    }

    /// Takes all events of the tests' group away from both.
    ///
    /// # Errors
    /// When one of them refuses.
    pub fn clear(&self) -> Result<()> {
        let line = format!("-:{}/", self.group);
        for dir in [&self.kernel, self.mirror()] {
            let listed = text(dir, "dynamic_events")?;
            if listed.contains(&format!(":{}/", self.group)) {
                let done = mirror::write(dir, "dynamic_events", line.as_bytes(), true);
                ensure!(done.is_ok(), "{}: {done:?}", dir.display());
            }
        }
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let instances = std::fs::read_dir(self.kernel.join("instances")).into_iter().flatten().flatten();
        let mark = format!("{}_", self.group);
        for instance in instances.filter(|entry| entry.file_name().to_string_lossy().starts_with(&mark)) {
            let _ = std::fs::remove_dir(instance.path());
        }
        if let Err(error) = self.clear() {
            eprintln!("{error:#}");
        }
    }
}

/// What stands behind `EVENT: ` in the lines of a trace.
fn bodies(trace: &str, event: &str) -> Vec<String> {
    let mark = format!(": {event}: ");
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once(&mark)?.1.to_owned())).collect()
}
