//! Probes of files and of tracepoints, which the host's kernel also supports. The same definitions in the kernel's
//! `uprobe_events` and in the mirror's must produce the same texts for the same calls of this test.

use std::ffi::{CStr, c_char};
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, set, text};
use tracer_tests::probes::{Case, Pair, place};
use tracer_tests::tracer::Tracer;
use tracer_tests::workload::{getpgid, pin_to_cpu};
use tracer_user::sys::memory::mapped_file::MappedFile;

/// The target of a pointer argument of the first function.
#[repr(C)]
struct Thing {
    name: *const c_char,
    names: *const [*const c_char; 3],
    bits: u32,
    bytes: [u8; 4],
    next: *const Thing,
}

/// A probed function.
#[inline(never)]
extern "C" fn tracer_test_target(number: i64, text: *const c_char, thing: *const Thing, small: i8) -> i64 {
    black_box((text, thing, small));
    black_box(number * 2)
}

/// A probed function that only one test calls.
#[inline(never)]
extern "C" fn tracer_test_counted(number: i64) -> i64 {
    black_box(number + 1)
}

/// A probed function with a reference counter.
#[inline(never)]
extern "C" fn tracer_test_referred(number: i64) -> i64 {
    black_box(number + 2)
}

/// The path of this program and the file offset of the function.
fn target() -> Result<String> {
    place(tracer_test_target as *const () as u64)
}

fn hit() {
    let names: [&CStr; 3] = [c"one", c"", c"three"];
    let names = names.map(CStr::as_ptr);
    let last = Thing {
        name: c"last".as_ptr(),
        names: &raw const names,
        bits: 0,
        bytes: [0; 4],
        next: std::ptr::null(),
    };
    let thing = Thing {
        name: c"first".as_ptr(),
        names: &raw const names,
        bits: 0xabcd_1234,
        bytes: *b"wxyz",
        next: &raw const last,
    };
    for number in [-5, 0, 7, 1 << 40] {
        black_box(tracer_test_target(number, c"some text".as_ptr(), &raw const thing, number as i8));
    }
    black_box(tracer_test_target(9, std::ptr::null(), &raw const last, 1));
}

/// Arguments of the probe in the architecture's registers: `%a` to `%d` stand for the first four. No number is read
/// from unreadable memory: the kernel leaves the previous content in the record, and the mirror stores 0.
const ARGS: [&str; 16] = [
    "",
    "%a %b %c %d",
    "n=%a:s64 n8=%a:s8 u16=%a:u16 x32=%a:x32",
    "t=+0(%b):string u=+0(%b):ustring",
    "name=+0(+0(%c)):string next=+0(+0(+24(%c))):string",
    "bits=+16(%c):b4@4/32 b8=+16(%c):b8@8/32 whole=+16(%c):x32",
    "bytes=+20(%c):char[4] hex=+20(%c):x8[4] pair=+20(%c):u16[2]",
    "names=+0(+8(%c)):string[3]",
    "c=$comm top=$stack0:x64 sp=$stack",
    "imm=\\42 neg=\\-3:s32",
    "magic=@+0:x32",
    "s=+0(\\1):string s2=+0(+0(\\1)):string",
    "d=%d:s8 ch=%d:char",
    "same=%a same2=%a:u8",
    "ip=%ip:x64",
    "far=+0(+0(+24(+24(%c)))):string",
];

fn in_registers(args: &str) -> String {
    let names = if cfg!(target_arch = "aarch64") {
        ["x0", "x1", "x2", "x3", "pc"]
    } else {
        ["di", "si", "dx", "cx", "ip"]
    };
    let mut text = args.replace("%ip", &format!("%{}", names[4]));
    for (letter, name) in ["%a", "%b", "%c", "%d"].iter().zip(names) {
        text = text.replace(&format!("{letter} "), &format!("%{name} "));
        text = text.replace(&format!("{letter})"), &format!("%{name})"));
        text = text.replace(&format!("{letter}:"), &format!("%{name}:"));
        if let Some(rest) = text.strip_suffix(letter) {
            text = format!("{rest}%{name}");
        }
    }
    text
}

#[test]
fn uprobes_leave_the_kernels_texts() {
    host::as_root(|| {
        let pair = Pair::start("uprobe")?;
        ensure!(pair.kernel_has("uprobe_events"), "the kernel has no uprobe_events");
        let (target, group) = (target()?, pair.group());
        let mut lines = 0;
        for (number, args) in ARGS.iter().enumerate() {
            let args = in_registers(args);
            for (letter, args) in [("p", args.clone()), ("r", format!("{args} $retval"))] {
                // At the return the registers may hold any value, and the kernel waits for absent pages.
                if letter == "r" && args.contains("(%") {
                    continue;
                }
                let event = format!("{letter}{number}");
                let line = format!("{letter}:{group}/{event} {target} {args}");
                let answers = pair.define(Case { file: "uprobe_events", line: &line });
                if answers.0.is_err() {
                    // An older kernel may lack a type.
                    eprintln!("{line}: {answers:?}");
                    continue;
                }
                ensure!(answers.0 == answers.1, "{line}: {answers:?}");
                let (kernel, ours) = pair.formats(&event)?;
                ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
                let (kernel, ours) = pair.hits(&event, None, true, hit)?;
                ensure!(kernel == ours, "{line}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
                ensure!(kernel.len() == 5, "{line}: {kernel:?}");
                lines += kernel.len();
            }
        }
        ensure!(lines >= 80, "{lines} lines");
        Ok(())
    });
}

#[test]
fn filters_of_uprobes_let_the_same_hits_pass() {
    host::as_root(|| {
        let pair = Pair::start("uprobe-filter")?;
        let args =
            in_registers("n=%a:s64 t=+0(%b):string d=%d:s8 names=+0(+8(%c)):string[3] bytes=+20(%c):x8[4]");
        let line = format!("p:{}/f {} {args}", pair.group(), target()?);
        let answers = pair.define(Case { file: "uprobe_events", line: &line });
        ensure!(answers == (Ok(()), Ok(())), "{answers:?}");
        let mut passed = Vec::new();
        for filter in [
            "n == 7",
            "n < 0 || n > 1000",
            "t == \"some text\"",
            "t ~ \"*text\" && n != 0",
            "t ~ \"some*\" && d < 0",
            "!(n & 1)",
            "d == 7 && common_pid != 0",
            "t == \"none\"",
            "__probe_ip == 0",
        ] {
            let (kernel, ours) = pair.hits("f", Some(filter), true, hit)?;
            ensure!(kernel == ours, "{filter}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
            passed.push(kernel.len());
        }
        ensure!(passed == [1, 2, 4, 3, 1, 2, 1, 0, 0], "{passed:?}");
        Ok(())
    });
}

#[test]
fn events_come_and_go_as_the_kernels() {
    host::as_root(|| {
        let pair = Pair::start("uprobe-life")?;
        let (target, group) = (target()?, pair.group());
        let same = |line: &str| -> Result<Result<(), i32>> {
            let answers = pair.define(Case { file: "uprobe_events", line });
            ensure!(answers.0 == answers.1, "{line}: {answers:?}");
            let (kernel, ours) = pair.listings("uprobe_events")?;
            ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
            let there = |dir: &std::path::Path| dir.join(format!("events/{group}/life")).exists();
            ensure!(there(pair.kernel()) == there(pair.mirror()), "{line}");
            Ok(answers.0)
        };
        let busy = rustix::io::Errno::BUSY.raw_os_error();
        ensure!(same(&format!("p:{group}/life {target} a=$comm"))?.is_ok());
        ensure!(same(&format!("p:{group}/life {target} a=$comm"))?.is_err(), "the same twice");
        ensure!(same(&format!("p:{group}/life {target} a=$stack"))?.is_err(), "another type");
        ensure!(same(&format!("r:{group}/life {target} a=$comm"))?.is_err(), "another kind");
        pair.enable("life", true)?;
        ensure!(same(&format!("-:{group}/life"))? == Err(busy), "it is on");
        hit();
        pair.enable("life", false)?;
        ensure!(same(&format!("-:{group}/other"))?.is_err(), "there is none");
        // After the deletion of the event its open files fail, except `id`, which contains its number.
        let names = ["enable", "filter", "format", "trigger", "id"];
        let reads_only = |name: &str| matches!(name, "format" | "id");
        let open = |dir: &std::path::Path| -> Result<Vec<File>> {
            let file = |name: &str| {
                let path = dir.join(format!("events/{group}/life/{name}"));
                Ok(File::options().read(true).write(!reads_only(name)).open(path)?)
            };
            names.iter().map(|name| file(name)).collect()
        };
        let held = [open(pair.kernel())?, open(pair.mirror())?];
        let id = text(pair.mirror(), &format!("events/{group}/life/id"))?;
        let ours = text(pair.mirror(), "trace")?;
        ensure!(ours.contains(": life: "), "nothing was recorded");
        ensure!(same(&format!("-:{group}/life"))?.is_ok());
        // The kernel empties the whole buffer. The mirror keeps all records, and prints those of the deleted event.
        ensure!(!text(pair.kernel(), "trace")?.contains(": life: "), "the kernel keeps records");
        ensure!(text(pair.mirror(), "trace")? == ours, "{}", text(pair.mirror(), "trace")?);
        for (at, name) in names.into_iter().enumerate() {
            let mut bytes = [0; 64];
            let [kernel, ours] = [&held[0][at], &held[1][at]].map(|file| {
                bytes = [0; 64];
                let read = rustix::io::pread(file, &mut bytes, 0);
                let written = (!reads_only(name)).then(|| rustix::io::write(file, b"0"));
                (read, written)
            });
            if name == "id" {
                ensure!(
                    kernel.0.is_ok() == ours.0.is_ok(),
                    "id of an event that went: {kernel:?} and {ours:?}"
                );
                ensure!(ours.0.is_err() || bytes.starts_with(id.as_bytes()), "{id}{bytes:?}");
                continue;
            }
            // 6.1 continues to use freed memory, except for `enable`; later kernels return ENODEV.
            let alike = kernel == ours || name != "enable" && !host::counts_missed();
            ensure!(alike, "{name} of an event that went: {kernel:?} and {ours:?}");
            let nodev = Err(rustix::io::Errno::NODEV);
            ensure!(name != "enable" || ours.1 == Some(nodev), "{ours:?}");
            ensure!(name == "enable" || ours.0 == nodev, "{name}: {ours:?}");
        }
        drop(held);
        let gone = pair.mirror().join(format!("events/{group}/life/enable"));
        ensure!(File::open(gone).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound));
        // A new definition creates the directory again.
        ensure!(same(&format!("p:{group}/life {target} b=$comm"))?.is_ok());
        let format = text(pair.mirror(), &format!("events/{group}/life/format"))?;
        ensure!(format.contains("field:__data_loc char[] b;"), "{format}");
        Ok(())
    });
}

#[test]
fn profiles_count_hits() {
    host::as_root(|| {
        let pair = Pair::start("uprobe-profile")?;
        let target = place(tracer_test_counted as *const () as u64)?;
        for letter in ["p", "r"] {
            let line = format!("{letter}:{}/{letter}count {target}", pair.group());
            let answers = pair.define(Case { file: "uprobe_events", line: &line });
            ensure!(answers == (Ok(()), Ok(())), "{answers:?}");
        }
        let own = |text: String| -> Vec<String> {
            text.lines().filter(|line| line.contains("count ")).map(str::to_owned).collect()
        };
        let call = |times: i64| {
            (0..times).for_each(|n| {
                black_box(tracer_test_counted(n));
            });
        };
        for (event, times) in [("pcount", 7), ("rcount", 3), ("pcount", 2)] {
            let (kernel, ours) = pair.hits(event, None, true, || {
                call(times);
                // Another thread's hits are not recorded but counted.
                std::thread::scope(|scope| scope.spawn(|| call(5)).join()).expect("a thread that calls");
            })?;
            ensure!(kernel.len() as i64 == times && kernel == ours, "{kernel:?}\n{ours:?}");
        }
        let same = |wanted: [&str; 2]| -> Result<()> {
            let (kernel, ours) = pair.read("uprobe_profile")?;
            ensure!(own(kernel.clone()) == own(ours.clone()), "{kernel}\n{ours}");
            ensure!(wanted.iter().all(|count| ours.contains(&format!(" {count}\n"))), "{wanted:?}\n{ours}");
            Ok(())
        };
        same(["19", "8"])?;
        // In two instances at once, which see the same hits, and in one instance after the other.
        let enable = format!("events/{}/pcount/enable", pair.group());
        let other = pair.instance("second")?;
        pair.enable("pcount", true)?;
        call(1);
        other.iter().try_for_each(|dir| set(dir, &enable, "1"))?;
        call(2);
        same(["22", "8"])?;
        pair.enable("pcount", false)?;
        call(3);
        same(["25", "8"])?;
        other.iter().try_for_each(|dir| set(dir, &enable, "0"))?;
        call(1);
        same(["25", "8"])
    });
}

/// A new mapping of a file, without any page present.
fn unseen(file: &File) -> Result<MappedFile> {
    Ok(MappedFile::map(file)?)
}

/// The kernel's uprobes wait for absent pages, and so must the mirror's.
#[test]
fn probes_wait_for_pages_that_are_not_in_memory() {
    host::as_root(|| {
        let pair = Pair::start("uprobe-pages")?;
        // The text crosses into the second page, and the third page has the numbers.
        let mut bytes = vec![b'.'; 3 * 4096];
        bytes[4090..4103].copy_from_slice(b"over the edge");
        bytes[4103] = 0;
        bytes[8192..8200].copy_from_slice(&0x1122_3344_5566_7788_u64.to_le_bytes());
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("pages", flags)?);
        file.write_all(&bytes)?;
        // A file that may still change would be copied instead of mapped.
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK)?;
        let args = in_registers("t=+4090(%b):string");
        let numbers = in_registers("x=+8192(%b):x64 y=+8190(%b):x32 a=+8192(%b):x8[4]");
        let mut lines = Vec::new();
        for (number, args) in [args, numbers].into_iter().enumerate() {
            let event = format!("pages{number}");
            let line = format!("p:{}/{event} {} {args}", pair.group(), target()?);
            let answers = pair.define(Case { file: "uprobe_events", line: &line });
            ensure!(answers == (Ok(()), Ok(())), "{line}: {answers:?}");
            // Each tracer gets its own mapping, so that neither uses pages that the other faulted in.
            let (kernel, ours) = pair.hits(&event, None, false, || {
                let mapping = unseen(&file).expect("a mapping");
                black_box(tracer_test_target(1, mapping.bytes().as_ptr().cast(), std::ptr::null(), 0));
            })?;
            ensure!(kernel == ours, "{line}\n{kernel:?}\n{ours:?}");
            lines.extend(ours);
        }
        ensure!(lines[0].ends_with("t=\"over the edge\""), "{lines:?}");
        ensure!(lines[1].contains(" x=0x1122334455667788 y=0x77882e2e "), "{lines:?}");
        Ok(())
    });
}

/// A semaphore, which tells programs with SDT probes whether they are traced.
static LISTENERS: AtomicU16 = AtomicU16::new(1000);

#[test]
fn a_reference_counter_is_raised_while_the_probe_is_attached() {
    host::as_root(|| {
        let pair = Pair::start("uprobe-reference")?;
        let (counter, place) =
            (place((&raw const LISTENERS) as u64)?, place(tracer_test_referred as *const () as u64)?);
        let counter = counter.rsplit_once(':').context("an offset")?.1.to_owned();
        let reads = |wanted: u16| -> Result<()> {
            // Removing probes may wait until all CPUs have passed a grace period.
            let end = Instant::now() + Duration::from_secs(30);
            loop {
                let found = LISTENERS.load(Ordering::SeqCst);
                if found == wanted {
                    return Ok(());
                }
                ensure!(Instant::now() < end, "{found} in place of {wanted}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let line = format!("p:{}/referred {place}({counter})", pair.group());
        let answers = pair.define(Case { file: "uprobe_events", line: &line });
        ensure!(answers == (Ok(()), Ok(())), "{line}: {answers:?}");
        let (kernel, ours) = pair.listings("uprobe_events")?;
        ensure!(kernel == ours && ours.contains(&format!("({counter})")), "{kernel}\n{ours}");
        let (kernel, ours) = pair.hits("referred", None, false, || {
            reads(1001).expect("the counter");
            black_box(tracer_test_referred(1));
        })?;
        ensure!(kernel == ours && ours.len() == 1, "{kernel:?}\n{ours:?}");
        reads(1000)
    });
}

/// An event that [`switch_often`] hits before and after its switches. Programs are attached and detached one after the
/// other, so that before and after these hits some events may be on and others not.
const MARK: &str = "syscalls:sys_enter_getpgid";

/// Sleeps several times on one CPU, with a hit of [`MARK`] before and after.
fn switch_often() -> Result<()> {
    pin_to_cpu(0)?;
    getpgid(0);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
    }
    getpgid(0);
    Ok(())
}

/// The lines of this thread between its hits of [`MARK`].
fn between_marks(text: &str) -> Result<Vec<&str>> {
    let own = format!("-{} ", rustix::thread::gettid().as_raw_nonzero());
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(&own)).collect();
    let is_mark = |line: &&str| line.contains(": sys_getpgid(");
    let first = lines.iter().position(is_mark).context("no mark")?;
    let last = lines.iter().rposition(is_mark).context("no mark")?;
    lines.get(first + 1..last).map(<[&str]>::to_vec).with_context(|| format!("one mark: {text}"))
}

/// A tracepoint's probe has the same values as the trace event, line by line.
#[test]
fn a_tracepoints_probe_agrees_with_its_event() {
    host::as_root(|| {
        let definition = "t:tracer_test/switch sched_switch pc=prev->comm:string pp=prev->pid pr=prev->prio:s32 \
                          nc=next->comm:string np=next->pid nr=next->prio:s32 st=next->start_time";
        let outcome = Tracer::new([
            "record",
            "-q",
            "--no-irq-info",
            "--pid",
            &std::process::id().to_string(),
            "-p",
            definition,
            "-e",
            "sched:sched_switch",
            "-e",
            MARK,
        ])?
        .start()?;
        switch_often()?;
        let text = String::from_utf8_lossy(&outcome.stop()?.stdout).into_owned();
        let between = between_marks(&text)?;
        let lines = |mark: &str| -> Vec<String> {
            between.iter().filter_map(|line| Some(line.split_once(mark)?.1.to_owned())).collect()
        };
        let value = |line: &str, key: &str, ends: &[&str]| -> Option<String> {
            let rest = line.split_once(&format!("{key}="))?.1;
            let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            Some(rest[..end].trim_matches('"').to_owned())
        };
        // The event also appears for the next task, so a thread that ends has a last one. Threads of other tests end, but
        // this one does not.
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        let mut probes = lines(": switch: ");
        probes.retain(|line| line.contains(&format!(" pp={own} ")));
        let mut events = lines(": sched_switch: ");
        events.retain(|line| value(line, "prev_pid", &[" "]).is_some_and(|pid| pid == own));
        ensure!(events.len() >= 20, "{text}");
        ensure!(events.len() == probes.len(), "{} and {}", events.len(), probes.len());
        for (event, probe) in events.iter().zip(&probes) {
            // The kernel probes a stub; before 6.7 it probed the function that calls the probes.
            let places = ["(__probestub_sched_switch+0x", "(__traceiter_sched_switch+0x"];
            ensure!(places.iter().any(|place| probe.starts_with(place)), "{probe}");
            for (theirs, ours) in [
                ("prev_comm", "pc"),
                ("prev_pid", "pp"),
                ("prev_prio", "pr"),
                ("next_comm", "nc"),
                ("next_pid", "np"),
                ("next_prio", "nr"),
            ] {
                let ends = [" prev_", " next_", " ==>"];
                let a = value(event, theirs, &ends).context("a field")?;
                let b = value(probe, ours, &[" pp=", " pr=", " nc=", " np=", " nr=", " st="])
                    .context("an argument")?;
                ensure!(a == b, "{theirs}\n{event}\n{probe}");
            }
        }
        Ok(())
    });
}

/// An event probe on a tracepoint's dynamic event has the hits, fields and filter of that event.
#[test]
fn an_event_probe_sees_its_target_event() {
    host::as_root(|| {
        let outcome = Tracer::new([
            "record",
            "-q",
            "--pid",
            &std::process::id().to_string(),
            "-p",
            "t:tracer_test/base sched_switch np=next->pid nc=next->comm:string",
            "-p",
            "e:tracer_test/all tracer_test.base next=$np:s32 name=$nc:string",
            "-p",
            "e:tracer_test/odd tracer_test/base next=$np:s32 if np & 1",
            "-e",
            MARK,
        ])?
        .start()?;
        switch_often()?;
        let text = String::from_utf8_lossy(&outcome.stop()?.stdout).into_owned();
        // Only one thread, because the hits of several threads have no order.
        let between = between_marks(&text)?;
        let lines = |event: &str| -> Vec<String> {
            let mark = format!(": {event}: ");
            between.iter().filter_map(|line| Some(line.split_once(&mark)?.1.to_owned())).collect()
        };
        // `sched_switch` happens with interrupts off.
        let flags = |line: &str| line.split_once("] ").is_some_and(|(_, rest)| rest.starts_with('d'));
        ensure!(between.iter().all(|line| flags(line)), "{text}");
        let number = |line: &String, key: &str| -> Option<u32> {
            line.split_once(key)?.1.split(' ').next()?.parse().ok()
        };
        let next: Vec<_> = lines("base").iter().map(|line| number(line, "np=")).collect();
        let seen: Vec<_> = lines("all").iter().map(|line| number(line, "next=")).collect();
        ensure!(next.len() >= 20 && next.iter().all(Option::is_some), "{text}");
        ensure!(next == seen, "{text}");
        ensure!(lines("all").iter().all(|line| line.starts_with("(tracer_test.base) next=")), "{text}");
        let odd: Vec<_> = lines("odd").iter().map(|line| number(line, "next=")).collect();
        let wanted: Vec<_> = seen.into_iter().filter(|next| next.is_some_and(|next| next % 2 == 1)).collect();
        ensure!(odd == wanted, "{text}");
        Ok(())
    });
}

/// Errors in a definition are reported with a caret. The message names the hooks that the kernel refuses.
#[test]
fn refusals_name_the_place_and_the_hooks() {
    if !host::root_or_skip() {
        return;
    }
    let said = |definition: &str| -> Result<String> {
        let outcome = Tracer::new(["record", "-p", definition, "--for", "10ms"])?.run()?;
        ensure!(!outcome.status.success(), "{definition}");
        Ok(outcome.stderr)
    };
    let run = || -> Result<()> {
        let text = said("t sched_swich $arg*")?;
        ensure!(text.contains("did you mean `sched_switch`?"), "{text}");
        let text = said("p:x /bin/sh:0x10 a=%nothing")?;
        ensure!(text.contains("a=%nothing") && text.contains('^'), "{text}");
        let text = said("t sched_switch next_pid=next->nothing")?;
        ensure!(text.contains('^'), "{text}");
        let text = said("t sched_switch p=next->pid if q == 1")?;
        ensure!(text.contains("q == 1"), "{text}");
        // For each refused hook the message names the missing kernel feature, or the command that shows the reason.
        let outcome = Tracer::new(["record", "-p", "f:none vfs_read count", "--for", "10ms"])?.run()?;
        if !outcome.status.success() {
            let text = outcome.stderr;
            for (hook, reasons) in [
                ("fentry", ["tracer doctor", "CONFIG_"]),
                ("kprobe.multi", ["CONFIG_FPROBE", "5.18"]),
                ("kprobe:", ["CONFIG_KPROBE_EVENTS", "tracer doctor"]),
            ] {
                let (_, said) = text.split_once(hook).with_context(|| format!("{hook}\n{text}"))?;
                ensure!(reasons.iter().any(|reason| said.contains(reason)), "{hook}\n{text}");
            }
            // The mirror accepts the definition and reports the same when the event is enabled.
            let mounted = Mounted::start("refusals")?;
            set(mounted.dir(), "dynamic_events", "f:refused/none vfs_read count")?;
            let enabled = mirror::write(mounted.dir(), "events/refused/none/enable", b"1", true);
            ensure!(enabled.is_err(), "it is on");
            let log = self::text(mounted.dir(), "error_log")?;
            ensure!(log.contains("no hook: fentry: ") && log.contains("Command: refused:none"), "{log}");
            let doctor = Tracer::new(["doctor"])?.run()?;
            let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
            let line = |name: &str| {
                doctor.lines().skip_while(|line| !line.contains(name)).nth(1).unwrap_or("").to_owned()
            };
            ensure!(
                doctor.contains("no      prog_tracing") || doctor.contains("no      perf_kprobe"),
                "{doctor}"
            );
            ensure!(
                line("perf_kprobe").contains("CONFIG_") || line("prog_tracing").contains("refused"),
                "{doctor}"
            );
        }
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}
