//! Compares the same dynamic events in the kernel's tracefs and in a mirror, hit at the same time or one after the
//! other.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::host;
use crate::mirror::{self, Answer, Mounted, set, text};
use crate::oracle::Oracle;

/// The path of this program and a function's file offset, in the syntax of a definition.
///
/// # Errors
/// When no file contains the function.
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

/// A definition, and the file that it is written to.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// `dynamic_events`, `kprobe_events` or `uprobe_events`.
    pub file: &'a str,
    /// The line to write.
    pub line: &'a str,
}

/// The kernel's tracefs and a mirror, each with an instance that records one thread.
#[derive(Debug)]
pub struct Pair {
    oracle: Oracle,
    mounted: Mounted,
    kernel: PathBuf,
    group: String,
}

impl Pair {
    /// Mounts a mirror and creates an instance of the kernel's tracefs. Both record the calling thread only.
    ///
    /// # Errors
    /// When one of them is unavailable.
    pub fn start(purpose: &str) -> Result<Self> {
        let oracle = Oracle::create(purpose)?;
        let mounted = Mounted::start(purpose)?;
        let kernel = oracle.tracefs().root().to_owned();
        let pid = rustix::thread::gettid().as_raw_nonzero().to_string();
        set(mounted.dir(), "set_event_pid", &pid)?;
        set(oracle.dir(), "set_event_pid", &pid)?;
        oracle.tracing(true)?;
        // Tests run in parallel, and the kernel has a single set of dynamic events.
        let group = format!("tracer_{}", purpose.replace('-', "_"));
        Ok(Self { oracle, mounted, kernel, group })
    }

    /// Starts a pair when this process is root and the kernel has the file to compare with. Otherwise it prints the
    /// reason and returns `None`.
    ///
    /// # Errors
    /// As [`Pair::start`].
    pub fn if_available(purpose: &str, file: &str) -> Result<Option<Self>> {
        if !host::root_or_skip() {
            return Ok(None);
        }
        let pair = Self::start(purpose)?;
        if !pair.kernel_has(file) {
            let feature = match file {
                "kprobe_events" => "own_kprobe_events",
                "uprobe_events" => "own_uprobe_events",
                _ => "own_function_tracer",
            };
            host::skip(feature, format_args!("the kernel has no {file}"));
            return Ok(None);
        }
        Ok(Some(pair))
    }

    /// The group of this pair's events.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Whether the kernel's tracefs has a file.
    pub fn kernel_has(&self, file: &str) -> bool {
        self.kernel.join(file).exists()
    }

    /// Directory of the kernel's tracefs.
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// Directory of the instance of the kernel's tracefs.
    pub fn kernel_instance(&self) -> &Path {
        self.oracle.dir()
    }

    /// Whether the daemon has a BPF link of this type, as the kernel names it.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn has_link(&self, kind: &str) -> Result<bool> {
        let line = format!("link_type:\t{kind}");
        let infos = std::fs::read_dir(format!("/proc/{}/fdinfo", self.mounted.pid()))?;
        // A descriptor may be closed meanwhile.
        let mut texts = infos.flatten().filter_map(|info| std::fs::read_to_string(info.path()).ok());
        Ok(texts.any(|text| text.lines().any(|found| found == line)))
    }

    /// Directory of the mirror.
    pub fn mirror(&self) -> &Path {
        self.mounted.dir()
    }

    /// Writes a line to both and returns the results, the kernel's first.
    pub fn define(&self, case: Case<'_>) -> (Answer, Answer) {
        let line = format!("{}\n", case.line);
        let kernel = mirror::write(&self.kernel, case.file, line.as_bytes(), true);
        (kernel, mirror::write(self.mirror(), case.file, line.as_bytes(), true))
    }

    /// The lines of a file about this pair's events in both, the kernel's first.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn listings(&self, file: &str) -> Result<(String, String)> {
        let mark = format!(":{}/", self.group);
        let own =
            |text: String| text.split_inclusive('\n').filter(|line| line.contains(&mark)).collect::<String>();
        let (kernel, mirror) = self.read(file)?;
        Ok((own(kernel), own(mirror)))
    }

    /// The text of a file in both, the kernel's first.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn read(&self, file: &str) -> Result<(String, String)> {
        Ok((text(&self.kernel, file)?, text(self.mirror(), file)?))
    }

    /// The format files of an event, without the ids, which differ.
    ///
    /// # Errors
    /// The errors of the files.
    pub fn formats(&self, event: &str) -> Result<(String, String)> {
        let without = |text: String| {
            text.split_inclusive('\n').filter(|line| !line.starts_with("ID:")).collect::<String>()
        };
        let (kernel, mirror) = self.read(&format!("events/{}/{event}/format", self.group))?;
        Ok((without(kernel), without(mirror)))
    }

    /// Enables or disables an event in both.
    ///
    /// # Errors
    /// The errors of the files.
    pub fn enable(&self, event: &str, on: bool) -> Result<()> {
        let file = format!("events/{}/{event}/enable", self.group);
        let value = if on { "1" } else { "0" };
        set(self.oracle.dir(), &file, value).context("the kernel")?;
        set(self.mirror(), &file, value).context("the mirror")
    }

    /// Creates another instance in both and returns their directories, the kernel's first. Dropping the pair removes
    /// the kernel's instance; the mirror's ends with the mirror.
    ///
    /// # Errors
    /// When one of them cannot be made.
    pub fn instance(&self, name: &str) -> Result<[PathBuf; 2]> {
        let kernel = self.kernel.join("instances").join(format!("{}_{name}", self.group));
        std::fs::create_dir(&kernel)?;
        Ok([kernel, self.mounted.instance(name)?])
    }

    /// Records the children of the calling thread as well.
    ///
    /// # Errors
    /// The errors of the files.
    pub fn follow_children(&self) -> Result<()> {
        [self.oracle.dir(), self.mirror()].iter().try_for_each(|dir| set(dir, "options/event-fork", "1"))
    }

    /// The texts of an event's hits, without the event's name, in the kernel and in the mirror, with an optional
    /// filter. If `concurrent` is false, the two trace one after the other, because probes of two tracers at one
    /// function would see each other.
    ///
    /// # Errors
    /// The errors of the files.
    pub fn hits(
        &self,
        event: &str,
        filter: Option<&str>,
        concurrent: bool,
        mut hit: impl FnMut(),
    ) -> Result<(Vec<String>, Vec<String>)> {
        let dirs = [self.oracle.dir(), self.mirror()];
        for dir in dirs {
            set(dir, "trace", "")?;
            set(dir, &format!("events/{}/{event}/filter", self.group), filter.unwrap_or("0"))?;
        }
        let file = format!("events/{}/{event}/enable", self.group);
        if concurrent {
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

    /// The texts of an event's hits in the mirror only, for definitions that the kernel does not support.
    ///
    /// # Errors
    /// The errors of the files.
    pub fn own_hits(&self, event: &str, mut hit: impl FnMut()) -> Result<Vec<String>> {
        let file = format!("events/{}/{event}/enable", self.group);
        set(self.mirror(), "trace", "")?;
        set(self.mirror(), &file, "1")?;
        hit();
        set(self.mirror(), &file, "0")?;
        Ok(bodies(&text(self.mirror(), "trace")?, event))
    }

    /// The texts of the hits of each of these events while the whole group is enabled, in the kernel and in the
    /// mirror. The two trace one after the other.
    ///
    /// # Errors
    /// The errors of the files.
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

    /// Deletes all events of the pair's group from both.
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

/// The texts after `EVENT: ` in the lines of a trace.
fn bodies(trace: &str, event: &str) -> Vec<String> {
    let mark = format!(": {event}: ");
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once(&mark)?.1.to_owned())).collect()
}
