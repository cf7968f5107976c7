//! The language of dynamic events against the running kernel. The same lines are written to the kernel's
//! `dynamic_events` and to the mirror's. The test compares errno, `error_log`, the resulting listing and the new
//! event's `format`, byte for byte.
//!
//! No event is ever enabled. The test queries the kernel for the features that it lacks (a kind of probe, a type).
//! All events are in the test's own group and are deleted afterwards.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tracer_tests::generate::Rng;
use tracer_tests::generate::definitions::{GROUP, Kind, definition};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::oracle::{log_entries, visible};
use tracer_user::kernel::{self, Btf};
use tracer_user::lang::define::{File as ControlFile, Line, Set};
use tracer_user::lang::facts::{Feature, Language, Machine};
use tracer_user::plan::resolve;

/// Number of random pairs of lines, for each kind of probe.
const CASES: u32 = 6_000;

/// The result of a line.
#[derive(Clone, PartialEq, Eq)]
struct Outcome {
    errno: Option<i32>,
    /// The entries of `error_log`, without their timestamps.
    log: Vec<String>,
    /// Lines of the test's group in `dynamic_events`.
    listing: String,
    /// `format` of the event that the last line defines, without its id.
    format: Option<String>,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "errno {:?}\n{}{}", self.errno, self.log.concat(), self.listing)?;
        f.write_str(self.format.as_deref().unwrap_or_default())
    }
}

struct Kernel {
    tracefs: Tracefs,
    language: Language,
    file: String,
}

impl Kernel {
    /// Prints a note and returns `None` when the kernel has no dynamic events or this process is not root.
    fn open() -> Option<Self> {
        if !host::is_root() {
            host::skip("cap_sys_admin", "tracefs needs root");
            return None;
        }
        let tracefs = Tracefs::find_or_mount().unwrap();
        if !tracefs.root().join("dynamic_events").exists() {
            host::skip("own_uprobe_events", "this kernel has no dynamic events");
            return None;
        }
        let file = std::env::current_exe().unwrap().display().to_string();
        let mut kernel = Self { tracefs, language: Language::newest(), file };
        kernel.forget().unwrap();
        kernel.language = kernel.probe_features().unwrap();
        Some(kernel)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.tracefs.root().join(file)
    }

    /// Writes a line and returns the kernel's errno and log entries.
    fn write(&self, line: &[u8]) -> Result<(Option<i32>, Vec<String>)> {
        File::create(self.path("error_log")).context("error_log")?;
        let file = OpenOptions::new().append(true).open(self.path("dynamic_events"))?;
        let errno = rustix::io::write(&file, line).err().map(rustix::io::Errno::raw_os_error);
        let entries = log_entries(&fs::read(self.path("error_log"))?);
        Ok((errno, entries))
    }

    /// The listed lines of the test's group.
    fn listing(&self) -> Result<String> {
        let text = visible(&fs::read(self.path("dynamic_events"))?);
        let ours = |line: &&str| {
            let name =
                line.split_once(':').map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
            name.starts_with(&format!("{GROUP}/"))
        };
        Ok(text.lines().filter(ours).map(|line| line.to_owned() + "\n").collect())
    }

    fn format(&self, listing: &str) -> Option<String> {
        let line = listing.lines().last()?;
        let name = line.split_once(':')?.1.split(' ').next()?;
        let text = fs::read_to_string(self.path("events").join(name).join("format")).ok()?;
        Some(crate::without_id(&text))
    }

    /// Deletes all events of the test's group.
    fn forget(&self) -> Result<()> {
        if !self.listing()?.is_empty() {
            let (errno, _) = self.write(format!("-:{GROUP}/").as_bytes())?;
            ensure!(errno.is_none(), "events of {GROUP} stay: errno {errno:?}");
        }
        Ok(())
    }

    /// Queries the kernel for its language features.
    fn probe_features(&self) -> Result<Language> {
        let mut language = Language::newest();
        let on_file = format!("p:{GROUP}/ask {}:64", self.file);
        let many = repeated(129, " a#=\\1");
        let nested = format!("{on_file} x={}$stack{}", "+0(".repeat(9), ")".repeat(9));
        let big = repeated(7, " a#=@0:x64[64]");
        // Each test has a feature, a line, and the result that shows the feature's absence: the parser logs nothing,
        // or the kernel refuses the line, or it accepts the line.
        let silent = |line: &str, parser: &str| -> Result<bool> {
            Ok(!self.write(line.as_bytes())?.1.iter().any(|entry| entry.starts_with(parser)))
        };
        let refused = |line: &str| -> Result<bool> {
            let (errno, _) = self.write(line.as_bytes())?;
            self.forget()?;
            Ok(errno.is_some())
        };
        let says = |line: &str, words: &str| -> Result<bool> {
            let (_, log) = self.write(line.as_bytes())?;
            self.forget()?;
            Ok(log.iter().any(|entry| entry.contains(words)))
        };
        self.write(format!("t:{GROUP}/first sched_switch").as_bytes())?;
        let absent = [
            (Feature::SharedTracepoints, refused(&format!("t:{GROUP}/ask sched_switch"))?),
            (Feature::Kprobes, silent("p:1/x vfs_read", "trace_kprobe")?),
            (Feature::Fprobes, silent("f:1/x vfs_read", "trace_fprobe")?),
            (Feature::Uprobes, silent("p /no/such/file:1", "trace_uprobe")?),
            (Feature::Eprobes, silent("e:1/x a/b", "event_probe")?),
            (Feature::BtfArgs, says(&format!("{on_file} foo"), "Invalid fetch argument")?),
            (Feature::Typecasts, says(&format!("{on_file} (x)$stack1"), "Invalid fetch argument")?),
            (Feature::ArgsAtReturn, refused(&format!("r:{GROUP}/ask vfs_read $arg1"))?),
            (Feature::Dentry, refused(&format!("p:{GROUP}/ask vfs_read $arg1:%pd"))?),
            (Feature::Casts, refused(&format!("f:{GROUP}/ask vfs_read x=(file)file->f_mode"))?),
            (Feature::Current, refused(&format!("p:{GROUP}/ask vfs_read $current"))?),
            (Feature::ThisCpu, refused(&format!("p:{GROUP}/ask vfs_read this_cpu_ptr($arg1)"))?),
            (Feature::FieldNames, refused(&format!("e:{GROUP}/ask sched/sched_switch prev_pid"))?),
            (Feature::LongArguments, says(&format!("{on_file} x=\\\"{}\"", "n".repeat(90)), "too long")?),
            (Feature::RegistrationErrors, !says(&format!("f5:{GROUP}/ask vfs_read%return"), "maxactive")?),
            (Feature::LatestErrors, !says(&nested, "Too many nested")?),
            (Feature::LaterErrors, says("p5:1/x vfs_read", "not for kprobe")?),
            (Feature::Char, refused(&format!("{on_file} $stack1:char"))?),
            (Feature::StringTypeError, silent(&format!("{on_file} $comm:u8"), "trace_uprobe")?),
            (Feature::SizeLimit, !refused(&format!("{on_file}{big}"))?),
            (Feature::ArgumentCountError, silent(&format!("{on_file}{many}"), "trace_uprobe")?),
        ];
        for (feature, is_absent) in absent {
            if is_absent {
                language = language.without(feature);
            }
        }
        println!(
            "the kernel lacks {:?}",
            absent.iter().filter(|(_, is)| *is).map(|(f, _)| f).collect::<Vec<_>>()
        );
        Ok(language)
    }

    /// Writes lines to both, one after the other, and compares after each.
    fn compare(&self, lines: &[&[u8]], facts: &Machine<'_>) -> Result<Option<(Outcome, Outcome)>> {
        let mut set = Set::default();
        let mut difference = None;
        for line in lines {
            // Applies the line to the mirror's language first, because the kernel's event would already exist
            // afterwards.
            let result = set.apply(&Line::split(line), ControlFile::Dynamic, facts);
            let listing = visible(&set.listing(ControlFile::Dynamic));
            let group = format!(":{GROUP}/");
            let listing: String = listing
                .lines()
                .filter(|line| line.contains(&group))
                .map(|line| line.to_owned() + "\n")
                .collect();
            let last = set.probes().iter().rfind(|defined| defined.probe.event.group == GROUP);
            let format = last.map(|defined| crate::without_id(&defined.probe.event.format(0).text()));
            let (log, astray) = match &result {
                Ok(_) => (Vec::new(), false),
                Err(refusal) => (
                    refusal.log_entries().iter().map(|entry| visible(entry)).collect(),
                    refusal.findings().iter().any(|finding| finding.astray),
                ),
            };
            let errno = result.err().map(|refusal| refusal.errno().raw_os_error());
            let mut ours = Outcome { errno, log, listing, format };
            let (errno, log) = self.write(line)?;
            let listing = self.listing()?;
            let format = self.format(&listing);
            let mut theirs = Outcome { errno, log, listing, format };
            if astray {
                // Compares both without carets.
                for entry in ours.log.iter_mut().chain(&mut theirs.log) {
                    let cut = entry.trim_end_matches(['^', ' ', '\n']).len();
                    entry.truncate(cut);
                }
            }
            if ours != theirs {
                difference = Some((theirs, ours));
                break;
            }
        }
        // Only lines with an invalid name can create events in other groups, and the set contains all of them.
        for defined in set.probes().iter().filter(|defined| defined.probe.event.group != GROUP) {
            let event = &defined.probe.event;
            self.write(format!("-:{}/{}", event.group, event.name).as_bytes())?;
        }
        self.forget()?;
        Ok(difference)
    }

    /// Compares, and describes the difference. Another process may have written into the log, so a second comparison
    /// decides.
    fn difference(&self, lines: &[&[u8]], facts: &Machine<'_>) -> Option<String> {
        self.compare(lines, facts).unwrap()?;
        let (theirs, ours) = self.compare(lines, facts).unwrap()?;
        let shown: Vec<_> = lines.iter().map(|line| line.escape_ascii().to_string()).collect();
        Some(format!("{}\n--- kernel: {theirs:?}--- ours: {ours:?}", shown.join("\n")))
    }

    fn kinds(&self) -> Vec<Kind> {
        let all = [
            (Feature::Fprobes, Kind::Fprobe),
            (Feature::Fprobes, Kind::Tracepoint),
            (Feature::Kprobes, Kind::Kprobe),
            (Feature::Uprobes, Kind::Uprobe),
            (Feature::Eprobes, Kind::Eprobe),
        ];
        let (has, lacks): (Vec<_>, Vec<_>) = all.into_iter().partition(|(f, _)| self.language.has(*f));
        for (feature, kind) in lacks {
            eprintln!("not compared: {kind:?}, as this kernel has no {feature:?}");
        }
        has.into_iter().map(|(_, kind)| kind).collect()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.forget();
    }
}

/// Runs a test with the running kernel's facts while no other test runs.
fn with_kernel(test: impl FnOnce(&Kernel, &Machine<'_>)) {
    let _turn = crate::turn();
    let Some(kernel) = Kernel::open() else { return };
    let (btf, tracefs) = (Btf::running().unwrap(), kernel::Tracefs::open().unwrap());
    let filters = resolve::Machine::running(btf.as_ref());
    let check = move |event: &_, text: &_| resolve::filter(text, event, &filters).map(|_| ());
    let facts = Machine::running(btf.as_ref(), Some(&tracefs))
        .with_language(kernel.language)
        .with_filter_check(Box::new(check));
    test(&kernel, &facts);
}

/// Repeats a text and replaces `#` with the index.
fn repeated(count: usize, text: &str) -> String {
    (0..count).map(|n| text.replace('#', &n.to_string())).collect()
}

#[test]
fn random_lines_define_alike() {
    with_kernel(|kernel, facts| {
        let mut differences = Vec::new();
        for kind in kernel.kinds() {
            let start = Instant::now();
            let mut rng = Rng::new(kind as u64 + 1);
            let (mut taken, mut refused) = (0, BTreeMap::<String, u32>::new());
            let cases = host::share(CASES);
            for _ in 0..cases {
                // Two lines, so that some refer to an existing event.
                let lines = [(); 2].map(|()| definition(kind, &kernel.file, &mut rng));
                differences.extend(kernel.difference(&[&lines[0], &lines[1]], facts));
                let mut set = Set::default();
                for line in &lines {
                    match set.apply(&Line::split(line), ControlFile::Dynamic, facts) {
                        Ok(_) => taken += 1,
                        Err(refusal) => *refused.entry(format!("{:?}", refusal.kind())).or_default() += 1,
                    }
                }
            }
            let total: u32 = refused.values().sum();
            println!("{kind:?}: {taken} taken, {total} refused in {:?}: {refused:?}", start.elapsed());
            assert!(taken >= cases / 10 && refused.len() >= 10, "{kind:?}: {taken} taken, {refused:?}");
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

/// The cases of the language's own tests whose names exist in a real kernel.
#[test]
fn corners_define_alike() {
    let long = |n: usize| "n".repeat(n);
    let mut lines: Vec<String> = Vec::new();
    let (on_entry, on_exit) = ("f:tracerdef/a vfs_read", "f:tracerdef/a vfs_read%return");
    for args in [
        "",
        "count pos",
        "$arg*",
        "$arg* x=\\1",
        "$arg1 $arg2:string",
        "x=$arg1 $arg1",
        "buf:string",
        "buf:ustring",
        "count:string",
        "file->f_inode:string",
        "$arg1:%pd",
        "n=file:%pD",
        "file->f_path.dentry->d_name.name:string",
        "file->f_mode:x32 inode=file->f_inode:x64",
        "$arg* $arg*",
        "$arg9",
        "$arg0",
        "$arg1x",
        "x=$arg9999",
        "file->f_mode->x",
        "file-x",
        "file.f_mode",
        "file->f_path-x",
        "pos->x",
        "file->f_path.dentry.x",
        "buf->x",
        "x=+0(file->f_mode) y=+0(file->nope)",
        "$comm $stack $stack2",
        "x=\\\"hi\" y=\\5:u8 z=\\-5",
        "a=+0(buf):u8[4] b=+8(+u0(buf)):string[2] c=+4(buf):b3@2/32",
        "%ax",
        "x=+0(%ax)",
        "x=+0($comm)",
        "x=@jiffies:u64",
        "x=@nosuch",
        "x=@jiffies+x",
        "x=$current y=$current->comm:string z=$current->mm->total_vm",
        "x=this_cpu_read(@runqueues) y=this_cpu_ptr(@runqueues):x64 z=this_cpu_read(+8(@runqueues)):u32",
        "x=(file)buf->f_mode y=(file)(pos)->f_inode->i_ino",
        "x=(task_struct,tasks)buf->comm:string",
        "x=(task_struct)((file)buf->f_inode)->pid",
        "x=(task_struct)$current->comm",
        "x=+-8(buf)junk y=-u8(+u4(buf))",
        "x=+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(buf))))))))))))))",
    ] {
        lines.push(format!("{on_entry} {args}"));
        lines.push(format!("{on_exit} {args}"));
        lines.push(format!("{on_exit} $retval {args}"));
        lines.push(format!("p:tracerdef/a vfs_read {args}"));
        lines.push(format!("r5:tracerdef/a vfs_read {args}"));
        lines.push(format!("r:tracerdef/a vfs_read {args}"));
        lines.push(format!("p:tracerdef/a vfs_read+9 {args}"));
        lines.push(format!("t:tracerdef/a sched_switch {args}"));
        lines.push(format!("t:tracerdef/a vfs_read {args}"));
        lines.push(format!("p:tracerdef/a FILE:64 {args}"));
        lines.push(format!("r:tracerdef/a FILE:64(8) {args}"));
        lines.push(format!("e:tracerdef/a sched.sched_switch {args}"));
    }
    for args in
        ["comm=next->comm:string next->start_time", "prev->in_execve next->sched_reset_on_fork", "$arg*"]
    {
        lines.push(format!("t:tracerdef/a sched_switch {args}"));
    }
    for args in
        ["c=$next_comm:string $prev_pid:s32 $comm", "$prev_comm", "$prev_pid if prev_pid == 1", "if", "$none"]
    {
        lines.push(format!("e:tracerdef/a sched.sched_switch {args}"));
    }
    for head in ["f", "p", "r", "t", "e"] {
        let place = match head {
            "e" => "sched/sched_switch",
            "t" => "sched_switch",
            _ => "vfs_read",
        };
        for name in
            ["", ":", ":/", ":tracerdef/", ":tracerdef.x", ":1/a", ":a-b/1", "5:tracerdef/a", "x:tracerdef/a"]
        {
            // All processes share the default groups: only lines that are refused, or that use the test's group.
            if name.contains(GROUP) || matches!(name, ":" | ":/" | ":1/a" | ":a-b/1") {
                lines.push(format!("{head}{name} {place}"));
            }
        }
        lines.push(format!("{head}:{}/a {place}", long(64)));
        lines.push(format!("{head}:tracerdef/{} {place}", long(63)));
        lines.push(format!("{head}:tracerdef/{} {place}", long(64)));
        lines.push(format!("{head}:tracerdef/a {place} {}=\\1", long(32)));
        lines.push(format!("{head}:tracerdef/a {place} {}=\\1", long(33)));
        lines.push(format!("{head}:tracerdef/a {place} x=\\\"{}\"", long(60)));
        lines.push(format!("{head}:tracerdef/a {place} x=\\\"{}\"", long(61)));
        for count in [128, 129] {
            let args = repeated(count, " a#=\\1:u8");
            lines.push(format!("{head}:tracerdef/a {place}{args}"));
            lines.push(format!("p:tracerdef/a FILE:64{args}"));
        }
        for count in [6, 7] {
            let args = repeated(count, " a#=@0:x64[64]");
            lines.push(format!("{head}:tracerdef/a {place}{args}"));
        }
    }
    lines.extend(
        ["", " ", "# f vfs_read", "x", "f", "p", "-", "-:", "-x", "-:tracerdef/", "!f:tracerdef/a"]
            .map(str::to_owned),
    );
    with_kernel(|kernel, facts| {
        let kinds = kernel.kinds();
        let part = host::part() as usize;
        let (mut count, mut differences) = (0, Vec::new());
        for line in lines.iter().enumerate().filter(|(at, _)| at % part.min(3) == 0).map(|(_, line)| line) {
            let has = match line.chars().next() {
                Some('f') => kinds.contains(&Kind::Fprobe),
                Some('t') => kinds.contains(&Kind::Tracepoint),
                Some('e') => kinds.contains(&Kind::Eprobe),
                Some('p' | 'r') if !line.contains("FILE") => kinds.contains(&Kind::Kprobe),
                _ => true,
            };
            if has {
                let line = line.replace("FILE", &kernel.file);
                differences.extend(kernel.difference(&[line.as_bytes()], facts));
                count += 1;
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        println!("{count} lines agree");
        assert!(count > 30);
    });
}

/// Several probes of one event, and deletions.
#[test]
fn sequences_define_alike() {
    with_kernel(|kernel, facts| {
        let (a, b) = if kernel.language.has(Feature::Kprobes) {
            ("vfs_read".to_owned(), "vfs_open".to_owned())
        } else {
            (format!("{}:64", kernel.file), format!("{}:72", kernel.file))
        };
        let sequences: Vec<Vec<String>> = vec![
            vec![
                format!("p:tracerdef/x {a} y=$stack1"),
                format!("p:tracerdef/x {b} y=$stack2"),
                format!("p:tracerdef/x {a} y=$stack1"),
                format!("p:tracerdef/x {a} y=$stack3"),
                format!("p:tracerdef/x {a} z=$stack1"),
                format!("p:tracerdef/x {a}"),
                format!("p:tracerdef/x {a} y=$stack1 z=$stack1"),
                format!("p:tracerdef/x {a} y=$stack1:u8"),
                format!("r:tracerdef/x {a} y=$stack1"),
                format!("-:tracerdef/x {a}"),
                "-:tracerdef/x".to_owned(),
            ],
            vec![
                format!("p:tracerdef/x {a} $stack1"),
                format!("p:tracerdef/y {a} b=$stack1"),
                format!("-:x {a} arg1=$stack2"),
                format!("-:x {a} arg1=$stack1"),
                format!("-:tracerdef/x"),
                format!("-:tracerdef/y {b}"),
                format!("-:tracerdef/y {} b=$stack1", a.replace(":64", ":0x40")),
                format!("!p:tracerdef/y"),
            ],
            vec![
                format!("p:tracerdef/x {}:64(8)", kernel.file),
                format!("p:tracerdef/y {}:64", kernel.file),
                format!("p:tracerdef/x {}:64(16)", kernel.file),
                format!("r:tracerdef/y {}:72(8)", kernel.file),
                format!("-:tracerdef/x {}:0x0000000000000040(0x8)", kernel.file),
                format!("-:tracerdef/x {}:0x0000000000000040", kernel.file),
                "-:tracerdef/".to_owned(),
            ],
            vec![
                format!("p:sched/sched_switch {a}"),
                format!("p:tracerdef/x {a}"),
                "-:x".to_owned(),
                "-:x".to_owned(),
            ],
        ];
        for sequence in &sequences {
            let lines: Vec<&[u8]> = sequence.iter().map(String::as_bytes).collect();
            let difference = kernel.difference(&lines, facts);
            assert!(difference.is_none(), "{}", difference.unwrap_or_default());
        }
    });
}
