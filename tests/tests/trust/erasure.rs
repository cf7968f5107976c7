//! Nothing is erased by a client: the end of a program with a user event, and the deletion of any event, leave all
//! records where they are. The records of the deleted event stay readable, also after others use its name.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use rustix::{
    fs::{Mode, OFlags},
    process::{Signal, getppid, kill_process},
};
use tracer_tests::{
    host,
    mirror::{self, Mounted, bodies, names, set, text},
    probes::place,
};

use crate::{
    timed::{await_true, soon, within},
    user::{Client, USER, open_to_all},
};

/// An event of the kernel that only this test's thread hits, by the filter.
const KERNELS: &str = "events/syscalls/sys_enter_getppid";
/// Number of its hits at a time, and of a client's records.
const HITS: usize = 5;
const RECORDS: usize = 3;

fn hit() {
    for _ in 0..HITS {
        let _ = getppid();
    }
}

/// Records [`KERNELS`] in an instance, for the calling thread.
fn record_own(dir: &Path) -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    set(dir, &format!("{KERNELS}/filter"), &format!("common_pid == {thread}"))?;
    set(dir, &format!("{KERNELS}/enable"), "1")
}

/// The records of a trace without times, and all lines with them.
fn records(dir: &Path, file: &str) -> Result<(Vec<String>, String)> {
    let text = text(dir, file)?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok((bodies(&text), lines.collect::<Vec<_>>().join("\n")))
}

/// The number of records that begin with a text.
fn count(bodies: &[String], start: &str) -> usize {
    bodies.iter().filter(|body| body.starts_with(start)).count()
}

fn append(dir: &Path, file: &str, line: &str) -> Result<()> {
    mirror::write(dir, file, format!("{line}\n").as_bytes(), true)
        .map_err(std::io::Error::from_raw_os_error)
        .with_context(|| format!("{line} to {file}"))
}

/// A client's event, which root records in these instances.
struct ClientEvent {
    client: Client,
    dirs: Vec<PathBuf>,
    name: String,
}

impl ClientEvent {
    /// Starts a client whose event is enabled and has its records.
    fn recorded(mounted: &Mounted, dirs: &[PathBuf], name: &str, field: &str) -> Result<Self> {
        let path = mounted.dir().to_str().context("a path")?;
        let command = format!("{name} u32 {field}");
        let mut client = Client::start(USER, &["leave", path, &command, &RECORDS.to_string()])?;
        ensure!(client.line()? == "registered");
        for dir in dirs {
            set(dir, &format!("events/user_events/{name}/enable"), "1")?;
        }
        client.go_on()?;
        ensure!(client.line()? == "written");
        Ok(Self { client, dirs: dirs.to_vec(), name: name.to_owned() })
    }

    /// Disables the event, and ends the client.
    fn end(mut self, killed: bool) -> Result<()> {
        for dir in &self.dirs {
            set(dir, &format!("events/user_events/{}/enable", self.name), "0")?;
        }
        if killed {
            drop(self.client);
        } else {
            self.client.go_on()?;
            self.client.ended()?;
        }
        let event = self.dirs[0].join("events/user_events").join(&self.name);
        await_true("the event is deleted", || Ok(!event.exists()))
    }
}

/// A mirror where all users may register, and an instance of it.
fn mirrors(purpose: &str) -> Result<(Mounted, Vec<PathBuf>)> {
    let mounted = Mounted::start(purpose)?;
    open_to_all(mounted.dir())?;
    let dirs = vec![mounted.dir().to_owned(), mounted.instance("below")?];
    dirs.iter().try_for_each(|dir| record_own(dir))?;
    Ok((mounted, dirs))
}

#[test]
fn the_end_of_a_program_erases_nothing() {
    host::as_root(|| {
        for killed in [false, true] {
            let (mounted, dirs) = mirrors("erase-end")?;
            hit();
            let event = ClientEvent::recorded(&mounted, &dirs, "leaves", "number")?;
            hit();
            let before = dirs.iter().map(|dir| records(dir, "trace")).collect::<Result<Vec<_>>>()?;
            for (bodies, lines) in &before {
                ensure!(count(bodies, "sys_getppid") == 2 * HITS, "{lines}");
                ensure!(count(bodies, "leaves: number=0x") == RECORDS, "{lines}");
            }
            // Readers that are open across the deletion.
            let mut trace = File::open(dirs[0].join("trace"))?;
            let mut first = vec![0; 100];
            trace.read_exact(&mut first)?;
            let mut pipe = File::open(dirs[1].join("trace_pipe"))?;
            event.end(killed)?;
            for (dir, before) in dirs.iter().zip(&before) {
                ensure!(records(dir, "trace")? == *before, "{}", text(dir, "trace")?);
                let gone = mirror::read(dir, "events/user_events/leaves/format");
                ensure!(gone == Err(libc::ENOENT), "{gone:?}");
            }
            trace.read_to_end(&mut first)?;
            let all = String::from_utf8(first)?;
            ensure!(all == text(&dirs[0], "trace")?, "{all}");
            // The records are consumed in order.
            let lines = before[1].1.clone();
            let consumed = within(soon(), move || {
                let mut all = String::new();
                while all.lines().count() < lines.lines().count() {
                    let mut piece = vec![0; 4096];
                    let read = pipe.read(&mut piece)?;
                    all += &String::from_utf8_lossy(&piece[..read]);
                }
                anyhow::Ok((all, lines))
            });
            let (consumed, lines) = consumed.context("the pipe has too few records")??;
            ensure!(consumed.trim_end() == lines, "{consumed}");
            // Recording goes on.
            hit();
            for (dir, left) in dirs.iter().zip([3 * HITS, HITS]) {
                let (bodies, lines) = records(dir, "trace")?;
                ensure!(count(&bodies, "sys_getppid") == left, "{lines}");
            }
            ensure!(text(&dirs[0], "user_events_status")?.contains("Active: 0"));
            mounted.stop()?.success()?;
        }
        Ok(())
    });
}

#[test]
fn snapshots_keep_the_records_of_deleted_events() {
    host::as_root(|| {
        let (mounted, dirs) = mirrors("erase-snapshot")?;
        hit();
        let event = ClientEvent::recorded(&mounted, &dirs, "leaves", "number")?;
        for dir in &dirs {
            set(dir, "snapshot", "1")?;
        }
        hit();
        let before = dirs.iter().map(|dir| records(dir, "snapshot")).collect::<Result<Vec<_>>>()?;
        event.end(false)?;
        // An event of the same name has other fields, and an id of its own.
        let other = ClientEvent::recorded(&mounted, &dirs, "leaves", "size")?;
        for (dir, before) in dirs.iter().zip(&before) {
            ensure!(count(&before.0, "leaves: number=0x") == RECORDS, "{}", before.1);
            ensure!(records(dir, "snapshot")? == *before, "{}", text(dir, "snapshot")?);
            let (bodies, lines) = records(dir, "trace")?;
            ensure!(count(&bodies, "leaves: size=0x") == RECORDS, "{lines}");
            ensure!(count(&bodies, "sys_getppid") == HITS, "{lines}");
        }
        other.end(true)?;
        // The buffers exchange their places once more.
        set(&dirs[0], "snapshot", "1")?;
        ensure!(records(&dirs[0], "trace")? == before[0], "{}", text(&dirs[0], "trace")?);
        ensure!(count(&records(&dirs[0], "snapshot")?.0, "leaves: size=0x") == RECORDS);
        mounted.stop()?.success().map(drop)
    });
}

/// The number of records in the pages of all CPUs with this id and thread. The pages are consumed.
fn in_pages(pages: &[u8], id: &str, thread: u32) -> Result<usize> {
    let (id, thread) = (id.trim().parse::<u16>()?.to_ne_bytes(), thread.to_ne_bytes());
    Ok(pages.windows(8).filter(|head| head[..2] == id && head[4..] == thread).count())
}

#[test]
fn pages_keep_the_records_of_deleted_events() {
    host::as_root(|| {
        let (mounted, dirs) = mirrors("erase-pages")?;
        hit();
        let event = ClientEvent::recorded(&mounted, &dirs, "leaves", "number")?;
        let pid = event.client.pid();
        let ids =
            [text(&dirs[0], "events/user_events/leaves/id")?, text(&dirs[0], &format!("{KERNELS}/id"))?];
        event.end(true)?;
        for dir in &dirs {
            let mut pages = Vec::new();
            for cpu in names(&dir.join("per_cpu"))? {
                let path = dir.join("per_cpu").join(cpu).join("trace_pipe_raw");
                let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
                let read = File::from(file).read_to_end(&mut pages);
                ensure!(read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
            }
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            let counts = (in_pages(&pages, &ids[0], pid)?, in_pages(&pages, &ids[1], own)?);
            ensure!(counts == (RECORDS, HITS), "{counts:?}");
            ensure!(records(dir, "trace")?.0.is_empty());
        }
        mounted.stop()?.success().map(drop)
    });
}

/// Number of events of one name, one after the other.
const LIVES: usize = 20;

#[test]
fn an_id_with_records_is_given_to_no_other_event() {
    host::as_root(|| {
        let (mounted, dirs) = mirrors("erase-ids")?;
        let mut ids = Vec::new();
        for life in 0..LIVES {
            hit();
            let event = ClientEvent::recorded(&mounted, &dirs, "again", &format!("field_{life}"))?;
            ids.push(text(&dirs[0], "events/user_events/again/id")?);
            event.end(life % 2 == 0)?;
        }
        ids.sort();
        ids.dedup();
        ensure!(ids.len() == LIVES, "{ids:?}");
        for dir in &dirs {
            let (bodies, lines) = records(dir, "trace")?;
            ensure!(count(&bodies, "sys_getppid") == LIVES * HITS, "{lines}");
            for life in 0..LIVES {
                for number in 0..RECORDS {
                    let line = format!("again: field_{life}=0x{number:x} ({number})");
                    ensure!(count(&bodies, &line) == 1, "{line}: {lines}");
                }
            }
        }
        // Emptying one instance leaves the records of the other.
        set(&dirs[0], "trace", "")?;
        ensure!(count(&records(&dirs[1], "trace")?.0, "again: ") == LIVES * RECORDS);
        mounted.stop()?.success().map(drop)
    });
}

/// The target of the uprobe.
#[inline(never)]
extern "C" fn probed(number: u64) -> u64 {
    std::hint::black_box(number)
}

/// An event, with the file and line that define it, a record for its `inject`, and ways to delete it.
struct Deleted {
    event: &'static str,
    file: &'static str,
    line: String,
    record: &'static str,
    deletions: &'static [(&'static str, &'static str)],
}

#[test]
fn the_deletion_of_an_event_erases_nothing() {
    host::as_root(|| {
        let mounted = Mounted::start("erase-deletion")?;
        let dirs = [mounted.dir().to_owned(), mounted.instance("below")?];
        dirs.iter().try_for_each(|dir| record_own(dir))?;
        let mut kinds = vec![
            Deleted {
                event: "erased/uprobe",
                file: "uprobe_events",
                line: format!("p:erased/uprobe {}", place(probed as *const () as u64)?),
                record: "__probe_ip=1",
                deletions: &[
                    ("uprobe_events", "-:erased/uprobe"),
                    ("dynamic_events", "-:erased/uprobe"),
                    ("uprobe_events", ""),
                ],
            },
            Deleted {
                event: "erased/eprobe",
                file: "dynamic_events",
                line: "e:erased/eprobe syscalls.sys_enter_getsid n=$__syscall_nr:u32".to_owned(),
                record: "n=7",
                deletions: &[("dynamic_events", "-:erased/eprobe"), ("dynamic_events", "")],
            },
            Deleted {
                event: "synthetic/erased",
                file: "synthetic_events",
                line: "erased u32 number".to_owned(),
                record: "number=7",
                deletions: &[
                    ("synthetic_events", "!erased"),
                    ("dynamic_events", "-:synthetic/erased"),
                    ("synthetic_events", ""),
                    ("dynamic_events", ""),
                ],
            },
        ];
        if host::hooks_functions() {
            kinds.push(Deleted {
                event: "erased/kprobe",
                file: "kprobe_events",
                line: "p:erased/kprobe vfs_read".to_owned(),
                record: "__probe_ip=1",
                deletions: &[
                    ("kprobe_events", "-:erased/kprobe"),
                    ("dynamic_events", "-:erased/kprobe"),
                    ("kprobe_events", ""),
                ],
            });
            kinds.push(Deleted {
                event: "erased/fprobe",
                file: "dynamic_events",
                line: "f:erased/fprobe vfs_read".to_owned(),
                record: "__probe_ip=1",
                deletions: &[("dynamic_events", "-:erased/fprobe")],
            });
        }
        for Deleted { event, file, line, record, deletions } in kinds {
            let (_, name) = event.split_once('/').context("a system")?;
            for (at, with) in deletions {
                let what = format!("{event} by {with:?} to {at}");
                append(&dirs[0], file, &line)?;
                for dir in &dirs {
                    set(dir, "trace", "")?;
                    set(dir, &format!("events/{event}/enable"), "1")?;
                    hit();
                    probed(1);
                    append(dir, &format!("events/{event}/inject"), record)?;
                    set(dir, &format!("events/{event}/enable"), "0")?;
                }
                let before = dirs.iter().map(|dir| records(dir, "trace")).collect::<Result<Vec<_>>>()?;
                match *with {
                    "" => set(&dirs[0], at, "")?,
                    with => append(&dirs[0], at, with)?,
                }
                ensure!(!names(&dirs[0].join("events"))?.iter().any(|name| name == "erased"), "{what}");
                for (dir, before) in dirs.iter().zip(&before) {
                    ensure!(count(&before.0, "sys_getppid") >= HITS, "{what}: {}", before.1);
                    ensure!(count(&before.0, &format!("{name}: ")) >= 1, "{what}: {}", before.1);
                    ensure!(records(dir, "trace")? == *before, "{what}: {}", text(dir, "trace")?);
                }
            }
        }
        mounted.stop()?.success().map(drop)
    });
}

#[test]
fn a_deleted_event_leaves_triggers_and_histograms_of_others() {
    host::as_root(|| {
        let (mounted, dirs) = mirrors("erase-actions")?;
        let dir = &dirs[0];
        append(dir, &format!("{KERNELS}/trigger"), "hist:keys=common_pid")?;
        let event = ClientEvent::recorded(&mounted, &dirs, "acts", "number")?;
        append(dir, "events/user_events/acts/trigger", "hist:keys=number")?;
        append(dir, "events/user_events/acts/trigger", "traceoff if number == 77")?;
        hit();
        let hist = text(dir, &format!("{KERNELS}/hist"))?;
        ensure!(hist.contains(&format!("Hits: {HITS}\n")), "{hist}");
        let before = records(dir, "trace")?;
        append(dir, "events/user_events/acts/trigger", "!hist:keys=number")?;
        append(dir, "events/user_events/acts/trigger", "!traceoff if number == 77")?;
        event.end(true)?;
        ensure!(records(dir, "trace")? == before, "{}", text(dir, "trace")?);
        ensure!(text(dir, &format!("{KERNELS}/hist"))? == hist);
        mounted.stop()?.success().map(drop)
    });
}

#[test]
fn a_killed_daemon_restores_no_deleted_event() {
    host::as_root(|| {
        let dir = std::env::temp_dir().join(format!("tracer-erase-restore-{}", std::process::id()));
        let mounted = Mounted::at(dir.clone())?;
        append(&dir, "synthetic_events", "kept u32 number")?;
        append(&dir, "synthetic_events", "erased u32 number")?;
        set(&dir, "events/synthetic/erased/enable", "1")?;
        append(&dir, "events/synthetic/erased/inject", "number=7")?;
        set(&dir, "events/synthetic/erased/enable", "0")?;
        append(&dir, "synthetic_events", "!erased")?;
        ensure!(count(&records(&dir, "trace")?.0, "erased: number=7") == 1);
        let daemon = rustix::process::Pid::from_raw(mounted.pid().cast_signed()).context("a process")?;
        kill_process(daemon, Signal::KILL)?;
        drop(mounted);
        let mounted = Mounted::with(dir.clone(), &["--restore"])?;
        ensure!(text(&dir, "synthetic_events")? == "kept\tu32 number\n");
        ensure!(records(&dir, "trace")?.0.is_empty());
        mounted.stop()?.success().map(drop)
    });
}
