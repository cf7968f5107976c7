//! Random histograms and synthetic events, on the mirror and on an instance of the kernel's own tracefs. After the
//! same writes both must have the same errno, `error_log` and `trigger` files, and after the same calls the same
//! `hist` files. The tests are skipped where the kernel has no histograms. `TRACER_SEED` chooses the sequences.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use tracer_tests::generate::Rng;
use tracer_tests::generate::histograms::corners::COMMANDS;
use tracer_tests::generate::histograms::scenes::{self, Scene, Scenes};
use tracer_tests::generate::histograms::{EVENTS, Generator, SYNTHETIC, synthetic};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror::{self, Mounted};
use tracer_tests::oracle::table::{cpu_once, same, tables};
use tracer_tests::oracle::{log_entries, visible};
use tracer_tests::workload::getpgid;

/// Arguments that no other process's calls have.
const OWN: i32 = (1 << 30) + (3 << 26);

/// Numbers of command sequences on events without hits, of scenes with calls, and of sequences of definitions.
const SEQUENCES: u32 = 520;
const SCENES: u32 = 1_300;
const DEFINITIONS: u32 = 3_900;
/// Smallest number of compared cases, of accepted commands or lines, and of refused ones. An emulated machine makes at
/// least 40 cases.
const CASES_MIN: u32 = 20;

/// One side: the directory of an instance, and the root of its mount.
#[derive(Debug)]
struct Side {
    root: PathBuf,
    dir: PathBuf,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    errno: Option<i32>,
    log: Vec<String>,
}

/// Writes to a file and reads the resulting log.
fn write(dir: &Path, file: &str, text: &[u8]) -> Result<Outcome> {
    // Truncating the log empties it.
    fs::File::create(dir.join("error_log"))?;
    let errno = mirror::write(dir, file, text, true).err();
    let log = mirror::read(dir, "error_log").map_err(std::io::Error::from_raw_os_error)?;
    Ok(Outcome { errno, log: log_entries(&log) })
}

impl Side {
    fn hist(&self, event: &str, command: &str) -> Result<Outcome> {
        let bytes: Vec<u8> = command.chars().map(|c| c as u8).collect();
        write(&self.dir, &format!("events/{event}/trigger"), &bytes)
    }

    fn triggers(&self, event: &str) -> Result<Vec<String>> {
        let text = mirror::read(&self.dir, &format!("events/{event}/trigger"));
        let text = cpu_once(&visible(&text.map_err(std::io::Error::from_raw_os_error)?));
        Ok(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
    }

    /// Removes all triggers of the events, first those that refer to other triggers' variables.
    fn forget(&self, events: &[&str]) -> Result<()> {
        for _ in 0..8 {
            let mut left = false;
            for event in events.iter().rev() {
                for line in self.triggers(event)?.iter().rev() {
                    left = true;
                    let command = line.trim_end_matches(" [active]").trim_end_matches(" [paused]");
                    self.hist(event, &format!("!{command}"))?;
                }
                fs::File::create(self.dir.join(format!("events/{event}/trigger")))?;
            }
            if !left {
                return Ok(());
            }
        }
        anyhow::bail!("{}: triggers stay", self.dir.display())
    }
}

/// The mirror and the kernel; `None` where the kernel has no histograms or an older language.
struct Pair {
    mounted: Mounted,
    _tracefs: Tracefs,
    ours: Side,
    theirs: Side,
}

impl Pair {
    fn open(purpose: &str) -> Result<Option<Self>> {
        let tracefs = Tracefs::find_or_mount()?;
        let root = tracefs.root().to_owned();
        let needs = [("own_hist", "events/sched/sched_switch/hist"), ("own_synthetic", "synthetic_events")];
        if let Some((feature, file)) = needs.into_iter().find(|(_, file)| !root.join(file).exists()) {
            host::skip(feature, format_args!("this kernel has no {file}"));
            return Ok(None);
        }
        let dir = root.join("instances").join(format!("tracer-{purpose}"));
        let _ = fs::remove_dir(&dir);
        fs::create_dir(&dir)?;
        let mounted = Mounted::start(purpose)?;
        let ours = Side { root: mounted.dir().to_owned(), dir: mounted.instance(purpose)? };
        let pair = Self { mounted, _tracefs: tracefs, ours, theirs: Side { root, dir } };
        let asked = pair.theirs.hist("sched/sched_process_hang", "hist:keys=pid:vals=pid:nohitcount")?;
        pair.theirs.forget(&["sched/sched_process_hang"])?;
        if asked.errno.is_some() {
            host::skip("own_hist_nohitcount", "this kernel's language of histograms is older");
            return Ok(None);
        }
        Ok(Some(pair))
    }

    fn sides(&self) -> [&Side; 2] {
        [&self.ours, &self.theirs]
    }

    /// Does the same on both sides and returns both results, the mirror's first.
    fn both(&self, act: impl Fn(&Side) -> Result<Outcome>) -> Result<(Outcome, Outcome)> {
        Ok((act(&self.ours)?, act(&self.theirs)?))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.theirs.dir);
    }
}

fn run(purpose: &str, test: impl FnOnce(&Pair) -> Result<()>) {
    let _turn = crate::turn();
    if !host::root_or_skip() {
        return;
    }
    let done = Pair::open(purpose).and_then(|pair| pair.map_or(Ok(()), |pair| test(&pair)));
    done.unwrap_or_else(|error| panic!("{error:#}"));
}

fn seed() -> u64 {
    std::env::var("TRACER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn define(pair: &Pair, lines: &[&str]) -> Result<()> {
    for side in pair.sides() {
        for line in lines {
            let done = write(&side.root, "synthetic_events", line.as_bytes())?;
            ensure!(done.errno.is_none(), "{line}: {done:?}");
        }
    }
    Ok(())
}

fn undefine(pair: &Pair, lines: &[&str]) {
    for side in pair.sides() {
        for line in lines {
            let name = line.split(' ').next().unwrap_or_default();
            let _ = write(&side.root, "synthetic_events", format!("!{name}").as_bytes());
        }
    }
}

/// Fails with the number of differences and the first of them.
fn report(differences: &[String]) -> Result<()> {
    let shown = &differences[..differences.len().min(12)];
    ensure!(differences.is_empty(), "{} differences\n{}", differences.len(), shown.join("\n\n"));
    Ok(())
}

/// A command as a line of a `trigger`.
fn after_hist(text: &str) -> String {
    match text.strip_prefix('!') {
        Some(text) => format!("!hist:{text}"),
        None => format!("hist:{text}"),
    }
}

/// Whether a command uses words that this kernel does not support yet, or names that the kernel shows but does not
/// accept.
fn is_apart(commands: &[(usize, String)]) -> bool {
    commands.iter().any(|(event, text)| {
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        // The last event has its own field `comm`.
        let is_newer =
            |word: &str| word == "common_comm" || (*event < 2 && word.eq_ignore_ascii_case("comm"));
        text.contains("cgroup_mkdir.$") || text.contains("cgroup_mkdir.comm") || words.any(is_newer)
    })
}

/// Whether the kernel would crash: see `tracer_tests::generate::histograms`.
fn is_deadly(log: &[String]) -> bool {
    let wording = |entry: &String| entry.lines().next().unwrap_or_default().to_owned();
    let Some(at) =
        log.iter().position(|entry| wording(entry).contains("Couldn't create histogram for field"))
    else {
        return false;
    };
    let before = at.checked_sub(1).map(|before| wording(&log[before]));
    before.is_none_or(|text| {
        text.contains("Couldn't parse field variable") || text.contains("Couldn't create or find variable")
    })
}

/// Commands of all kinds, valid and invalid, on events without hits.
#[test]
fn commands_are_answered_alike() {
    run("histcommands", |pair| {
        define(pair, &SYNTHETIC)?;
        let events: Vec<String> = EVENTS.iter().map(|(event, _)| event.replace(':', "/")).collect();
        let names: Vec<&str> = events.iter().map(String::as_str).collect();
        let corners = COMMANDS.iter().step_by(host::part().min(3) as usize);
        let mut sequences: VecDeque<Vec<(usize, String)>> =
            corners.map(|command| vec![(2, (*command).to_owned())]).collect();
        let mut generator = Generator::new(seed() + 77);
        let made = host::share(SEQUENCES) as usize + sequences.len();
        let (start, mut cases, mut taken, mut refused, mut differences) =
            (Instant::now(), 0, 0, 0, Vec::new());
        for _ in 0..made {
            let commands = sequences.pop_front().unwrap_or_else(|| {
                let commands = generator.sequence();
                commands.into_iter().map(|(event, text)| (event, after_hist(&text))).collect()
            });
            if is_apart(&commands) {
                continue;
            }
            cases += 1;
            for (at, (event, text)) in commands.iter().enumerate() {
                let ours = pair.ours.hist(names[*event], text)?;
                if is_deadly(&ours.log) {
                    break;
                }
                let theirs = pair.theirs.hist(names[*event], text)?;
                *(if theirs.errno.is_some() { &mut refused } else { &mut taken }) += 1;
                let mut states = Vec::new();
                for side in pair.sides() {
                    states.push(names.iter().map(|event| side.triggers(event)).collect::<Result<Vec<_>>>()?);
                }
                if ours != theirs || states[0] != states[1] {
                    let shown: Vec<String> = commands[..=at]
                        .iter()
                        .map(|(event, text)| format!("{event} {}", text.escape_debug()))
                        .collect();
                    differences.push(format!(
                        "{}\n--- ours: {ours:#?} {:#?}\n--- kernel: {theirs:#?} {:#?}",
                        shown.join("\n"),
                        states[0],
                        states[1]
                    ));
                    break;
                }
            }
            for side in pair.sides() {
                side.forget(&names)?;
            }
        }
        undefine(pair, &SYNTHETIC);
        println!("{cases} sequences, {taken} commands taken, {refused} refused, in {:?}", start.elapsed());
        report(&differences)?;
        ensure!(cases >= CASES_MIN, "only {cases} sequences");
        ensure!(taken >= CASES_MIN && refused >= CASES_MIN, "{taken} taken, {refused} refused");
        Ok(())
    });
}

/// Plays a scene on both sides and returns the difference.
fn differs(pair: &Pair, scene: &Scene, counts: &mut [u32; 3]) -> Result<Option<String>> {
    for (at, (event, command)) in scene.commands.iter().enumerate() {
        let (ours, theirs) = pair.both(|side| side.hist(event, &format!("hist:{command}")))?;
        counts[usize::from(theirs.errno.is_some())] += 1;
        if ours != theirs {
            return Ok(Some(format!("command {at}\n--- ours: {ours:#?}\n--- kernel: {theirs:#?}")));
        }
    }
    scene.play();
    for event in scene.events() {
        let (ours, theirs) = (pair.ours.triggers(event)?, pair.theirs.triggers(event)?);
        if ours != theirs {
            return Ok(Some(format!("{event}\n--- ours: {ours:#?}\n--- kernel: {theirs:#?}")));
        }
        let file = format!("events/{event}/hist");
        let (ours, theirs) =
            (mirror::text(&pair.ours.dir, &file)?, cpu_once(&mirror::text(&pair.theirs.dir, &file)?));
        let (left, right) = (tables(&ours), tables(&theirs));
        counts[2] += right.iter().map(|table| table.rows.len() as u32).sum::<u32>();
        // A refused command leaves no table on either side.
        let none = left.is_empty() && right.is_empty() && ours == theirs;
        if !none && !same(&left, &right) {
            return Ok(Some(format!("{event}\n--- ours\n{ours}\n--- kernel\n{theirs}")));
        }
    }
    Ok(None)
}

/// Mostly valid commands with calls: the tables equal the kernel's.
#[test]
fn scenes_show_the_same() {
    run("histscenes", |pair| {
        let definitions = scenes::SYNTHETIC.map(|(_, line, _)| line);
        define(pair, &definitions)?;
        let thread = gettid();
        let mut one = CpuSet::new();
        one.set(0);
        sched_setaffinity(None, &one)?;
        let mut made = Scenes::new(seed() + 5, OWN, thread.as_raw_nonzero().get());
        let (start, mut cases, mut counts, mut differences) = (Instant::now(), 0, [0; 3], Vec::new());
        for _ in 0..host::share(SCENES) {
            let scene = made.scene();
            cases += 1;
            if let Some(difference) = differs(pair, &scene, &mut counts)? {
                let commands: Vec<String> =
                    scene.commands.iter().map(|(event, command)| format!("{event} hist:{command}")).collect();
                differences.push(format!("{}\n{difference}", commands.join("\n")));
            }
            // Triggers that others refer to are removed last.
            let events: Vec<&str> = scene.commands.iter().map(|(event, _)| event.as_str()).collect();
            for side in pair.sides() {
                side.forget(&events)?;
            }
        }
        undefine(pair, &definitions);
        let [taken, refused, rows] = counts;
        println!(
            "{cases} scenes, {taken} commands taken, {refused} refused, {rows} rows in {:?}",
            start.elapsed()
        );
        report(&differences)?;
        ensure!(cases >= CASES_MIN, "only {cases} scenes");
        ensure!(taken >= CASES_MIN && rows >= CASES_MIN, "{taken} taken, {refused} refused, {rows} rows");
        Ok(())
    });
}

/// A thread that does the same work on every request and is otherwise idle.
struct Worker {
    thread: Pid,
    ask: Option<SyncSender<()>>,
    done: Receiver<()>,
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    fn start() -> Result<Self> {
        let (ask, asked) = sync_channel::<()>(0);
        let (tell, done) = sync_channel(0);
        let (name, named) = sync_channel(1);
        let handle = std::thread::Builder::new().name("histdworker".to_owned()).spawn(move || {
            let _ = name.send(gettid());
            while asked.recv().is_ok() {
                work();
                let _ = tell.send(());
            }
        })?;
        Ok(Self { thread: named.recv()?, ask: Some(ask), done, handle: Some(handle) })
    }

    fn work(&self) -> Result<()> {
        if let Some(ask) = &self.ask {
            ask.send(())?;
        }
        self.done.recv()?;
        // The system calls with which the worker goes to sleep are counted too.
        let status = format!("/proc/self/task/{}/status", self.thread.as_raw_nonzero());
        let (mut quiet, mut last, deadline) = (0, String::new(), Instant::now() + Duration::from_secs(20));
        while quiet < 3 {
            ensure!(Instant::now() < deadline, "the worker does not go to sleep: {last}");
            std::thread::sleep(Duration::from_millis(1));
            let now = fs::read_to_string(&status)?;
            let sleeps = now.lines().any(|line| line.starts_with("State:\tS"));
            let switches = now.lines().filter(|line| line.contains("ctxt_switches")).collect::<String>();
            quiet = if sleeps && switches == last { quiet + 1 } else { 0 };
            last = switches;
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.ask.take());
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// Allocates memory of some sizes, uses files, makes system calls, and sleeps.
fn work() {
    for length in [1_usize, 17, 100, 999, 4000] {
        let Ok((read, write)) = rustix::pipe::pipe() else { return };
        let mut bytes = vec![7; length];
        for _ in 0..5 {
            let _ = rustix::io::write(&write, &bytes);
            let _ = rustix::io::read(&read, &mut bytes[..]);
            getpgid(OWN + length as i32);
        }
        let _ = fs::read("/proc/self/limits");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Histograms with various modifiers: the event, the text after `hist:`, and the field with the task of a hit.
const SHOWN: [(&str, &str, &str); 24] = [
    ("kmem/kmalloc", "keys=call_site.sym:vals=bytes_req:sort=bytes_req.descending", "common_pid"),
    (
        "kmem/kmalloc",
        "keys=call_site.sym-offset:vals=bytes_req,bytes_alloc:sort=call_site,hitcount",
        "common_pid",
    ),
    ("kmem/kmalloc", "keys=call_site.hex,bytes_req.log2:size=100", "common_pid"),
    (
        "kmem/kmalloc",
        "keys=bytes_req:vals=hitcount,bytes_alloc.percent,hitcount.graph:sort=bytes_req",
        "common_pid",
    ),
    (
        "kmem/kmalloc",
        "keys=bytes_alloc.buckets=64:vals=bytes_req.hex:sort=bytes_alloc.descending:nohitcount",
        "common_pid",
    ),
    ("kmem/kmalloc", "keys=common_stacktrace:vals=bytes_req", "common_pid"),
    ("kmem/kmalloc", "keys=gfp_flags,bytes_req:size=129:sort=gfp_flags,bytes_req.descending", "common_pid"),
    ("raw_syscalls/sys_enter", "keys=id.syscall:sort=id", "common_pid"),
    (
        "raw_syscalls/sys_enter",
        "keys=id.syscall,common_pid.execname:vals=hitcount.percent:sort=hitcount.descending,id",
        "common_pid",
    ),
    ("raw_syscalls/sys_enter", "keys=id.hex:vals=id.hex,id", "common_pid"),
    ("raw_syscalls/sys_exit", "keys=ret.log2:sort=ret", "common_pid"),
    ("raw_syscalls/sys_exit", "keys=id,ret.buckets=1000:sort=ret,id", "common_pid"),
    (
        "syscalls/sys_enter_write",
        "keys=count.log2:vals=count.graph,count.percent:sort=count.descending",
        "common_pid",
    ),
    ("syscalls/sys_enter_getpgid", "keys=pid/7,pid%7", "common_pid"),
    ("syscalls/sys_enter_getpgid", "keys=pid-1000:vals=pid:size=1", "common_pid"),
    ("syscalls/sys_enter_getpgid", "keys=-(pid):size=131072", "common_pid"),
    ("syscalls/sys_enter_getpgid", "keys=common_pid:a=pid*2,b=pid/$a:vals=hitcount,$a,$b", "common_pid"),
    ("syscalls/sys_enter_getpgid", "keys=common_stacktrace,pid", "common_pid"),
    ("syscalls/sys_exit_getpgid", "keys=ret,__syscall_nr:vals=ret", "common_pid"),
    ("sched/sched_switch", "keys=prev_comm,prev_state:vals=prev_prio:sort=prev_state", "prev_pid"),
    ("sched/sched_switch", "keys=prev_pid.execname:vals=hitcount", "prev_pid"),
    ("sched/sched_switch", "keys=common_stacktrace,prev_comm", "prev_pid"),
    ("sched/sched_switch", "keys=prev_comm.execname", "prev_pid"),
    ("sched/sched_waking", "keys=pid,comm:vals=prio:sort=comm.descending,pid", "pid"),
];

/// A table without the functions through which the kernel calls a tracer: they differ between tracers. The kernel
/// skips a fixed number of addresses. On arm64 it skips one too many, which is the entry of a switch or of a system
/// call.
fn without_hooks(text: &str) -> String {
    let called =
        ["__traceiter_", "trace_event_", "ftrace_syscall_", "perf_trace_", "perf_syscall_", "event_", "bpf_"];
    let left_out = ["__schedule+", "syscall_trace_enter+"];
    let hooks = called.iter().chain(left_out.iter().filter(|_| cfg!(target_arch = "aarch64")));
    let hooks: Vec<&str> = hooks.copied().collect();
    let keep = |line: &&str| {
        !hooks.iter().any(|hook| line.strip_prefix("         ").is_some_and(|at| at.starts_with(hook)))
    };
    text.lines().filter(keep).map(|line| line.to_owned() + "\n").collect()
}

/// Modifiers, sorting, sizes, stacks: the same hits of one thread give the same text as in the kernel.
#[test]
fn modifiers_show_the_same() {
    run("histmodifiers", |pair| {
        let worker = Worker::start()?;
        let (mut taken, mut rows, mut refused, mut differences) = (0, 0, 0, Vec::new());
        for (event, command, whose) in SHOWN {
            let command = format!("{command} if {whose} == {}", worker.thread.as_raw_nonzero());
            let file = format!("events/{event}/hist");
            let mut last: Option<String> = None;
            // A hit of an interrupt is missed while another program runs on that CPU.
            for attempt in 1..=3 {
                let (ours, theirs) = pair.both(|side| side.hist(event, &format!("hist:{command}")))?;
                if ours != theirs {
                    last = Some(format!("--- ours: {ours:#?}\n--- kernel: {theirs:#?}"));
                } else if theirs.errno.is_none() {
                    worker.work()?;
                    let texts = [
                        mirror::text(&pair.ours.dir, &file)?,
                        cpu_once(&mirror::text(&pair.theirs.dir, &file)?),
                    ];
                    let [left, right] = texts.map(|text| without_hooks(&text));
                    let shown = tables(&right).first().map_or(0, |table| table.rows.len());
                    let same = same(&tables(&left), &tables(&right));
                    (taken, rows) = (taken + 1, rows + shown);
                    last = (!same).then(|| format!("--- ours\n{left}--- kernel\n{right}"));
                } else {
                    refused += 1;
                    last = None;
                }
                for side in pair.sides() {
                    side.forget(&[event])?;
                }
                match &last {
                    Some(what) => println!("try {attempt} of {event} {command} differs\n{what}"),
                    None => break,
                }
            }
            differences.extend(last.map(|last| format!("{event} {command}\n{last}")));
        }
        println!("{taken} tables, {rows} rows, {refused} refused");
        report(&differences)?;
        // Each command is compared, or both sides refuse it; most kernels accept all.
        ensure!(
            taken + refused >= SHOWN.len() && taken * 2 > SHOWN.len(),
            "{taken} tables, {refused} refused"
        );
        ensure!(rows >= 2 * taken, "{rows} rows of {taken} tables");
        Ok(())
    });
}

/// The synthetic events in the listings, without their ids and without events that existed before.
fn state(side: &Side) -> Result<Vec<String>> {
    let mut state = Vec::new();
    for file in ["synthetic_events", "dynamic_events"] {
        let text = mirror::read(&side.root, file).map_err(std::io::Error::from_raw_os_error)?;
        let text = visible(&text);
        state.extend(text.lines().filter(|line| line.contains("synth")).map(|line| format!("{file} {line}")));
    }
    let dir = side.root.join("events/synthetic");
    for name in mirror::names(&dir).unwrap_or_default() {
        if !["enable", "filter"].contains(&name.as_str()) {
            let format = mirror::text(&side.root, &format!("events/synthetic/{name}/format"))?;
            state.extend(
                format.lines().filter(|line| !line.starts_with("ID: ")).map(|line| format!("{name} {line}")),
            );
        }
    }
    Ok(state)
}

/// Definitions of synthetic events, valid and invalid, in both files.
#[test]
fn definitions_are_answered_alike() {
    run("histdefinitions", |pair| {
        let mut rng = Rng::new(seed() + 3);
        let (start, mut cases, mut taken, mut differences) = (Instant::now(), 0, 0, Vec::new());
        for _ in 0..host::share(DEFINITIONS) {
            cases += 1;
            let mut lines = Vec::new();
            for _ in 0..3 {
                let dynamic = rng.once_in(2);
                let text = if rng.once_in(8) {
                    let name = rng.pick(&["tracersynth", "tracersynth2", "nosuchsynth"]);
                    if dynamic {
                        format!("-:{}{name}", rng.pick(&["", "synthetic/", "other/"]))
                    } else {
                        format!("!{name}")
                    }
                } else {
                    synthetic(dynamic, &mut rng)
                };
                let file = if dynamic { "dynamic_events" } else { "synthetic_events" };
                let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
                lines.push(format!("{file} {}", text.escape_debug()));
                let (ours, theirs) = pair.both(|side| write(&side.root, file, &bytes))?;
                taken += u32::from(theirs.errno.is_none());
                let (left, right) = (state(&pair.ours)?, state(&pair.theirs)?);
                if ours != theirs || left != right {
                    differences.push(format!(
                        "{}\n--- ours: {ours:#?} {left:#?}\n--- kernel: {theirs:#?} {right:#?}",
                        lines.join("\n")
                    ));
                    break;
                }
            }
            for side in pair.sides() {
                for name in mirror::names(&side.root.join("events/synthetic")).unwrap_or_default() {
                    if name.contains("synth") {
                        write(&side.root, "synthetic_events", format!("!{name}").as_bytes())?;
                    }
                }
            }
        }
        println!("{cases} sequences, {taken} lines taken, in {:?}", start.elapsed());
        report(&differences)?;
        ensure!(cases >= CASES_MIN && taken >= CASES_MIN, "{cases} sequences, {taken} lines taken");
        let _ = pair.mounted.pid();
        Ok(())
    });
}
