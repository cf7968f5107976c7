//! Fuzzes the tree behind FUSE with file-system requests in any order, with any inode numbers, handles, offsets and
//! sizes.
//!
//! No request panics. A read returns at most the requested size, and a write accepts at most the written size. After
//! all files are closed nothing is in use, and every instance can be removed.

use rustix::io::Errno;
use tracer_user::engine::Client;
use tracer_user::engine::client_memory::Seen;
use tracer_user::engine::user::Caller;
use tracer_user::fs::{Access, Outcome, Tree};

use super::bytes::Bytes;
use super::frozen::tree;

/// Names of files and directories, so that an input reaches them.
const NAMES: [&str; 97] = [
    "README",
    "available_events",
    "available_filter_functions",
    "available_tracers",
    "buffer_percent",
    "buffer_size_kb",
    "buffer_subbuf_size_kb",
    "buffer_total_size_kb",
    "current_tracer",
    "dynamic_events",
    "enabled_functions",
    "error_log",
    "free_buffer",
    "kprobe_events",
    "kprobe_profile",
    "printk_formats",
    "program_events",
    "saved_cmdlines",
    "saved_cmdlines_size",
    "saved_tgids",
    "set_event",
    "set_event_pid",
    "set_event_notrace_pid",
    "snapshot",
    "synthetic_events",
    "timestamp_mode",
    "trace",
    "trace_clock",
    "trace_marker",
    "trace_marker_raw",
    "trace_options",
    "trace_pipe",
    "tracing_cpumask",
    "tracing_on",
    "uprobe_events",
    "uprobe_profile",
    "user_events_data",
    "user_events_status",
    "events",
    "instances",
    "options",
    "per_cpu",
    "cpu0",
    "cpu1",
    "cpu2",
    "stats",
    "trace_pipe_raw",
    "snapshot_raw",
    "header_page",
    "header_event",
    "enable",
    "filter",
    "format",
    "hist",
    "id",
    "inject",
    "trigger",
    "synth_event_trace",
    "sched",
    "sched_switch",
    "sched_wakeup",
    "sched_process_exit",
    "irq",
    "task",
    "signal",
    "kmem",
    "syscalls",
    "sys_enter_openat",
    "ftrace",
    "print",
    "raw_data",
    "bprint",
    "kernel_stack",
    "synthetic",
    "made",
    "user_events",
    "user",
    "kprobes",
    "uprobes",
    "fprobes",
    "eprobes",
    "probe",
    "a",
    "b",
    "c",
    "raw",
    "stacktrace",
    "record-tgid",
    "event-fork",
    "pause-on-trace",
    "overwrite",
    "markers",
    "block",
    "latency-format",
    "copy_trace_marker",
    "trace_printk_dest",
    "..",
];

/// Texts to write, so that an input contains commands that the files accept.
const TEXTS: [&[u8]; 64] = [
    b"0",
    b"1",
    b"2",
    b"50",
    b"100",
    b"4096",
    b"18446744073709551615",
    b"-1",
    b"\n",
    b" ",
    b"",
    b"nop",
    b"local",
    b"global",
    b"counter",
    b"mono",
    b"uptime",
    b"x86-tsc",
    b"boot",
    b"sched:sched_switch",
    b"!sched:*",
    b"*:*",
    b"sched:*:mod:nfs",
    b":mod:x",
    b"prev_pid == 1",
    b"prev_comm ~ \"a*\" && next_pid > 3",
    b"(((prev_pid == 1",
    b"0\n",
    b"traceoff:3 if prev_pid == 1",
    b"!traceoff",
    b"snapshot:1",
    b"stacktrace",
    b"enable_event:sched:sched_wakeup:2",
    b"!enable_event:sched:sched_wakeup",
    b"hist:keys=next_pid:vals=prev_prio:sort=prev_prio.descending:size=128",
    b"hist:keys=pid:ts0=common_timestamp.usecs",
    b"hist:keys=next_pid:lat=common_timestamp.usecs-$ts0:onmatch(sched.sched_wakeup).made($lat,next_pid)",
    b"!hist:keys=pid:ts0=common_timestamp.usecs",
    b"hist:keys=stacktrace",
    b"hist:name=x:keys=pid",
    b"made u64 lat; pid_t pid",
    b"!made",
    b"s:made u64 lat; char comm[16]; char any[]",
    b"u:user u32 a; __data_loc char[] b",
    b"u:user struct x a 2147483647",
    b"-:user_events/user",
    b"e:probe sched.sched_switch a=$prev_comm:string",
    b"-:eprobes/probe",
    b"p:probe vfs_read",
    b"r:probe vfs_read $retval",
    b"f:probe vfs_read%return",
    b"p:probe /bin/true:0x1000",
    b"-:probe",
    b"-:kprobes/probe",
    b"3",
    b"ffffffff,ffffffff",
    b"7",
    b"noraw",
    b"raw",
    b"fields",
    b"pause-on-trace",
    b"record-tgid",
    b"copy_trace_marker",
    b"a=1 b='x' lat=5",
];

/// Largest text of one write, in bytes.
const WRITE_MAX: usize = 128 * 1024;
/// Largest number of files that are open at once.
const OPEN_MAX: usize = 64;
/// Largest number of requests of one input.
const REQUESTS: usize = 400;

/// A tree and what the input has learned about it.
struct Driven {
    tree: Tree,
    numbers: Vec<u64>,
    handles: Vec<u64>,
    threads: [u32; 3],
    /// Number of opened files, of non-empty reads, and of accepted writes.
    done: [u64; 3],
}

/// Sends the input's requests to a tree.
pub fn run(data: &[u8]) {
    done(data);
}

/// Does the same as [`run`] and returns the numbers of opened files, non-empty reads and accepted writes.
pub fn done(data: &[u8]) -> [u64; 3] {
    let mut input = Bytes(data);
    let mut tree = tree();
    let numbers = ["", "instances", "events", "trace", "dynamic_events"]
        .iter()
        .filter_map(|path| tree.find(path).ok())
        .collect();
    let instances = tree.find("instances").expect("there are instances");
    let _ = tree.make_dir(instances, "c");
    let mut driven = Driven {
        tree,
        numbers,
        handles: Vec::new(),
        threads: [std::process::id(), 1, u32::MAX],
        done: [0; 3],
    };
    for _ in 0..REQUESTS {
        if driven.request(&mut input).is_none() {
            break;
        }
    }
    let done = driven.done;
    driven.end(instances);
    done
}

impl Driven {
    /// An inode number, mostly a known one.
    fn number(&mut self, input: &mut Bytes<'_>) -> u64 {
        let known = input.choose(&self.numbers);
        if input.byte().unwrap_or(0).is_multiple_of(8) { input.number() } else { known.unwrap_or(1) }
    }

    /// A handle, mostly an open one.
    fn handle(&mut self, input: &mut Bytes<'_>) -> u64 {
        let known = input.choose(&self.handles);
        if input.byte().unwrap_or(0).is_multiple_of(8) { input.number() } else { known.unwrap_or(0) }
    }

    /// A name, mostly one from [`NAMES`].
    fn name(input: &mut Bytes<'_>) -> String {
        match input.choose(&NAMES) {
            Some(name) if !input.byte().unwrap_or(0).is_multiple_of(8) => name.to_owned(),
            _ => String::from_utf8_lossy(input.short()).into_owned(),
        }
    }

    /// A text: a known one, bytes of the input, both joined, or a piece of the input repeated.
    fn text(input: &mut Bytes<'_>) -> Vec<u8> {
        let known = input.choose(&TEXTS).unwrap_or_default();
        match input.byte().unwrap_or(0) % 8 {
            0 => input.short().to_vec(),
            1 => [known, input.short()].concat(),
            2 => [input.short(), known].concat(),
            3 => {
                let piece = input.short();
                piece
                    .iter()
                    .copied()
                    .cycle()
                    .take((input.number() as usize).min(WRITE_MAX))
                    .take(WRITE_MAX)
                    .collect()
            }
            _ => known.to_vec(),
        }
    }

    /// Sends one request; `None` at the end of the input.
    fn request(&mut self, input: &mut Bytes<'_>) -> Option<()> {
        let what = input.byte()?;
        let who = self.threads[usize::from(what >> 6) % self.threads.len()];
        match what % 16 {
            0 | 1 => {
                let (parent, name) = (self.number(input), Self::name(input));
                if let Ok(found) = self.tree.lookup(parent, &name) {
                    assert_eq!(self.tree.attributes(found.number), Ok(found), "{name}");
                    self.learn(found.number);
                }
            }
            2 => {
                let number = self.number(input);
                if let Ok(all) = self.tree.list(number) {
                    assert!(all.len() >= 2 && all[0].0 == number);
                    if let Some((child, ..)) = all.get(input.byte().unwrap_or(0) as usize) {
                        self.learn(*child);
                    }
                }
            }
            3 => {
                let number = self.number(input);
                let _ = self.tree.attributes(number);
                let _ =
                    self.tree.change(number, Some(input.number() as u16), Some(input.number() as u32), None);
            }
            4..=6 => {
                let number = self.number(input);
                let payer = if what & 128 == 0 { 0 } else { 1000 };
                let access =
                    Access { read: what & 16 == 0, write: what & 32 != 0, truncate: what & 64 != 0, payer };
                if self.handles.len() < OPEN_MAX
                    && let Ok((handle, _)) = self.tree.open(number, access, who)
                {
                    assert!(!self.handles.contains(&handle), "a handle is given once");
                    self.handles.push(handle);
                    self.done[0] += 1;
                }
            }
            7 | 8 => {
                let (handle, offset) = (self.handle(input), input.number());
                let size = (input.number() as usize).min(WRITE_MAX);
                if let Ok(Outcome::Data(data)) = self.tree.read(handle, offset, size) {
                    assert!(data.len() <= size, "more than was asked for");
                    self.done[1] += u64::from(!data.is_empty());
                }
            }
            9..=11 => {
                let (handle, text) = (self.handle(input), Self::text(input));
                if let Ok(taken) = self.tree.write(handle, &text, Client { thread: who, payer: 0 }) {
                    assert!(taken <= text.len(), "more than was written");
                    self.done[2] += u64::from(taken > 0);
                }
            }
            12 => {
                let handle = self.handle(input);
                let _ = self.tree.poll(handle, what & 32 != 0);
                let _ = (self.tree.is_awaited(handle), self.tree.needs_looking_at(handle));
                let _ = (self.tree.has_pages(handle), self.tree.user_file(handle), self.tree.page(handle));
            }
            13 if what & 16 != 0 => self.ioctl(input, who),
            13 => {
                let handle = self.handle(input);
                self.tree.close(handle);
                self.handles.retain(|open| *open != handle);
            }
            14 => {
                let (parent, name) = (self.number(input), Self::name(input));
                if let Ok(made) = self.tree.make_dir(parent, &name) {
                    self.learn(made.number);
                }
            }
            _ => {
                let (parent, name) = (self.number(input), Self::name(input));
                let _ = self.tree.remove_dir(parent, &name);
            }
        }
        Some(())
    }

    /// Sends an ioctl(2) request on a file, with any state of the caller's memory.
    fn ioctl(&mut self, input: &mut Bytes<'_>, task: u32) {
        let handle = self.handle(input);
        let file = self.tree.user_file(handle).unwrap_or(handle);
        let number = input.choose(&[0xc008_2a00, 0x4008_2a01, 0x4008_2a02, 7]).unwrap_or(0);
        let structure = input.short().to_vec();
        let (head, text) = (structure.first_chunk().copied().unwrap_or_default(), Self::text(input));
        let what = input.byte().unwrap_or(0);
        let seen = Seen {
            process: task,
            capable: what & 1 != 0,
            alive: what & 2 != 0,
            identity: vec![what; 4],
            argument: input.number(),
            structure: if what & 4 == 0 { Ok(structure) } else { Err(Errno::FAULT) },
            text: if what & 8 == 0 { Ok(text) } else { Err(Errno::FAULT) },
        };
        let caller = Caller { task, payer: if what & 16 == 0 { 0 } else { 1000 }, file, number, head };
        let _ = caller.try_on(self.tree.engine(), &seen);
    }

    fn learn(&mut self, number: u64) {
        if !self.numbers.contains(&number) {
            self.numbers.push(number);
        }
    }

    /// Closes all files and checks that every instance can be removed.
    fn end(mut self, instances: u64) {
        for handle in std::mem::take(&mut self.handles) {
            self.tree.close(handle);
        }
        let all = self.tree.list(instances).expect("there are instances");
        for (_, name, _) in all.into_iter().skip(2) {
            assert_eq!(self.tree.remove_dir(instances, &name), Ok(()), "{name} is held by nobody");
        }
        assert_eq!(self.tree.list(instances).map(|all| all.len()), Ok(2));
        drop(self.tree.engine().end());
    }
}
