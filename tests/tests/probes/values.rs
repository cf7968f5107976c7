//! Random valid definitions in the kernel and in the mirror. They must produce the same formats, and exactly the same
//! values for the same calls of this test. `TRACER_SEED` chooses the definitions, and `TRACER_CASES` their number for
//! each target.

use std::ffi::{CStr, c_char};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use tracer_tests::generate::Rng;
use tracer_tests::generate::values::Sources;
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text, write};
use tracer_tests::probes::{Case, Pair, place};

/// Definitions of each target, on the host and in a virtual machine.
const CASES: [u64; 2] = [16, 4];

const ARM: bool = cfg!(target_arch = "aarch64");

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A place to probe.
struct Target<'a> {
    /// `p`, `r`, `f` or `t`.
    letter: &'a str,
    place: String,
    /// Arguments before the generated ones.
    first: &'a str,
    /// A text that only the test's own hits contain.
    mark: &'a str,
    /// Whether both may record the same hit. At returns they may not, because each would see the other's trampoline.
    concurrent: bool,
    sources: Sources,
}

fn words(of: &[&str]) -> Vec<String> {
    of.iter().map(|word| (*word).to_owned()).collect()
}

fn memory(of: &[(&str, u32)]) -> Vec<(String, u32)> {
    of.iter().map(|(word, available)| ((*word).to_owned(), *available)).collect()
}

/// Compares random definitions and returns the number of equal lines.
fn compare(pair: &Pair, target: &Target<'_>, seed: u64, hit: impl Fn()) -> Result<usize> {
    let cases = number("TRACER_CASES").unwrap_or(CASES[usize::from(host::part() > 1)]);
    let (mut lines, mut refused) = (0, 0);
    let mut rng = Rng::new(number("TRACER_SEED").unwrap_or(1) << 8 | seed);
    for case in 0..cases {
        let event = format!("v{seed}x{case}");
        let arguments = target.sources.arguments(&mut rng);
        let Target { letter, place, first, .. } = target;
        let line = format!("{letter}:{}/{event} {place}{first}{arguments}", pair.group());
        let answers = pair.define(Case { file: "dynamic_events", line: &line });
        if answers.0.is_err() {
            // An older kernel has fewer types.
            eprintln!("{line}: {answers:?}");
            refused += 1;
            continue;
        }
        ensure!(answers.1.is_ok(), "{line}: {answers:?}");
        let (kernel, ours) = pair.formats(&event)?;
        ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
        let (kernel, ours) = pair.hits(&event, None, target.concurrent, &hit)?;
        let marked = |all: Vec<String>| -> Vec<String> {
            all.into_iter().filter(|line| line.contains(target.mark)).collect()
        };
        let (kernel, ours) = (marked(kernel), marked(ours));
        ensure!(kernel == ours, "{line}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
        ensure!(!kernel.is_empty(), "{line}: no hit");
        lines += kernel.len();
        pair.clear()?;
    }
    eprintln!("{} {}: {lines} lines, {refused} of {cases} not taken", target.letter, target.place);
    Ok(lines)
}

/// The target of a pointer argument of the first function.
#[repr(C)]
struct Thing {
    name: *const c_char,
    number: u64,
    bytes: [u8; 16],
    next: *const Thing,
}

/// The probed function.
#[inline(never)]
extern "C" fn tracer_test_valued(number: i64, text: *const c_char, thing: *const Thing, small: i8) -> i64 {
    black_box((text, thing, small));
    black_box(number * 3)
}

fn call() {
    let texts: [&CStr; 3] = [c"first", c"last", c"some longer text"];
    for text in texts {
        black_box(black_box(text).to_bytes_with_nul().to_vec());
    }
    let last = Thing {
        name: texts[1].as_ptr(),
        number: u64::MAX - 1,
        bytes: *b"fedcba9876543210",
        next: std::ptr::null(),
    };
    let thing = Thing {
        name: texts[0].as_ptr(),
        number: 0x1234_5678_9abc_def0,
        bytes: [0xff, 0x80, 0x7f, 1, 0, b'a', b'\'', b'\\', b' ', b'z', 9, 2, 3, 0xfe, 0xaa, 0x55],
        next: &raw const last,
    };
    for number in [-5, 1 << 40] {
        black_box(tracer_test_valued(number, texts[2].as_ptr(), &raw const thing, number as i8));
    }
}

#[test]
fn random_arguments_of_uprobes_are_equal() {
    host::as_root(|| {
        let pair = Pair::start("uvalues")?;
        ensure!(pair.kernel_has("uprobe_events"), "the kernel has no uprobe_events");
        let place = place(tracer_test_valued as *const () as u64)?;
        let registers = if ARM { ["%x0", "%x1", "%x2", "%x3"] } else { ["%di", "%si", "%dx", "%cx"] };
        let [number, text, thing, small] = registers;
        let next = format!("+32({thing})");
        let sources = Sources {
            words: words(&[number, text, thing, small, "$stack"]),
            memory: memory(&[(thing, 40), (&next, 32), ("$stack", 64), (text, 16)]),
            texts: vec![
                text.to_owned(),
                format!("+0({thing})"),
                format!("+0({next})"),
                format!("+16({thing})"),
            ],
            user: true,
            ..Sources::default()
        };
        let entry =
            Target { letter: "p", place: place.clone(), first: "", mark: "", concurrent: true, sources };
        let mut lines = compare(&pair, &entry, 1, call)?;
        let sources = Sources {
            words: words(&["$retval", "$stack"]),
            memory: memory(&[("$stack", 64)]),
            user: true,
            ..Sources::default()
        };
        let exit = Target { letter: "r", place, first: "", mark: "", concurrent: true, sources };
        lines += compare(&pair, &exit, 2, call)?;
        ensure!(lines >= 4, "{lines} lines");
        Ok(())
    });
}

/// A file whose name separates the test's hits from others.
struct Probed {
    path: PathBuf,
    file: File,
}

impl Probed {
    fn new(purpose: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("tracer-valued-{purpose}-{}", std::process::id()));
        std::fs::write(&path, b"0123456789abcdef")?;
        Ok(Self { file: File::open(&path)?, path })
    }

    fn read(&self) {
        // Nonzero content for reads before the call fills the buffer.
        let mut buffer = *b"buffer-contents-that-are-32-long";
        for length in 1..=3 {
            let _ = rustix::io::pread(self.file.as_fd(), &mut buffer[..length], 3);
        }
    }

    fn open(&self) {
        drop(File::open(&self.path));
    }
}

impl Drop for Probed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn random_arguments_of_kprobes_are_equal() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("kvalues", "kprobe_events")? else { return Ok(()) };
        if !text(pair.kernel(), "README")?.contains("<argname>") {
            host::skip("own_probe_types", "the kernel's probes know no types");
            return Ok(());
        }
        let probed = Probed::new("k")?;
        let registers: &[&str] =
            if ARM { &["%x0", "%x1", "%x2", "%x3", "%sp"] } else { &["%di", "%si", "%dx", "%cx", "%sp"] };
        let arguments =
            ["$arg1", "$arg2", "$arg3", "$arg4", "$stack", "$stack0", "$stack3", "@vfs_open", "@vfs_open+8"];
        let all: Vec<&str> = registers.iter().chain(&arguments).copied().collect();
        let return_address: &[&str] = if ARM { &["%lr"] } else { &["$stack0"] };
        let sources = Sources {
            words: words(&all),
            memory: memory(&[("$arg1", 96), ("$arg4", 8), ("$stack", 64), (registers[0], 64)]),
            code: words(return_address),
            ..Sources::default()
        };
        let target = |letter, place: &str, concurrent, sources| Target {
            letter,
            place: place.to_owned(),
            first: "",
            mark: "",
            concurrent,
            sources,
        };
        let entry = target("p", "vfs_read", true, sources.clone());
        let mut lines = compare(&pair, &entry, 3, || probed.read())?;
        // Inside the function the arguments are available only in registers, and may have been moved by then.
        let inside =
            Sources { words: words(registers), memory: memory(&[("$stack", 64)]), ..Sources::default() };
        // After the landing pad of indirect branches, or after the function tracer's call site.
        let places: &[&str] = if ARM { &["vfs_read+8"] } else { &["vfs_read+4", "vfs_read+5"] };
        for place in places {
            let line = format!("p:{}/place {place}", pair.group());
            if pair.define(Case { file: "dynamic_events", line: &line }).0.is_ok() {
                pair.clear()?;
                lines += compare(&pair, &target("p", place, true, inside.clone()), 4, || probed.read())?;
            }
        }
        let user = Sources {
            words: words(&["$arg1", "$arg3"]),
            memory: memory(&[("$arg2", 32)]),
            texts: words(&["$arg2"]),
            ask_user: true,
            ..Sources::default()
        };
        lines += compare(&pair, &target("p", "vfs_read", true, user), 5, || probed.read())?;
        let names = Sources {
            words: words(&["$arg1"]),
            texts: words(&["$arg2"]),
            ask_user: true,
            ..Sources::default()
        };
        let opened = Target {
            letter: "p",
            place: "do_sys_openat2".to_owned(),
            first: " name=+0($arg2):ustring",
            mark: "tracer-valued",
            concurrent: true,
            sources: names,
        };
        lines += compare(&pair, &opened, 6, || probed.open())?;
        let exit = Sources { words: words(&["$retval"]), ..Sources::default() };
        lines += compare(&pair, &target("r", "vfs_read", false, exit), 7, || probed.read())?;
        ensure!(lines >= 10, "{lines} lines");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Values of the current task in the language of 7.3.
const OF_TASK: [&str; 7] = [
    "$current->pid",
    "$current->tgid",
    "(task_struct)$current->prio",
    "(task_struct,comm)$comm->pid",
    "$current->in_execve",
    "$current->no_cgroup_migration",
    "(task_struct,group_leader)(task_struct)$current->group_leader->pid",
];

#[test]
fn values_of_the_newest_language_are_right_on_every_kernel() {
    host::as_root(|| {
        if !host::hooks_functions() {
            host::skip(host::FUNCTION_HOOKS, "no hook for functions");
            return Ok(());
        }
        let dir = std::env::temp_dir().join(format!("tracer-newest-{}", std::process::id()));
        let mounted = Mounted::with(dir, &["--language=newest"])?;
        let dir = mounted.dir();
        let (own, process) = (rustix::thread::gettid(), rustix::process::getpid());
        set(dir, "set_event_pid", &own.as_raw_nonzero().to_string())?;
        let probed = Probed::new("n")?;
        let prefix = if ARM { "__arm64" } else { "__x64" };
        let arguments = "pid=$current->pid:s32 group=(task_struct)$current->tgid:s32 \
            same=(task_struct,comm)$comm->pid:s32 no=$current->in_execve \
            leader=(task_struct)$current->group_leader->pid:s32";
        let per_cpu = " cpu=this_cpu_read(@cpu_number):u32";
        let has_number =
            std::fs::read_to_string("/proc/kallsyms")?.lines().any(|line| line.ends_with(" cpu_number"));
        let line = format!(
            "p:tracer_newest/read {prefix}_sys_pread64 {arguments}{}\n",
            if has_number { per_cpu } else { "" }
        );
        let defined = write(dir, "dynamic_events", line.as_bytes(), true);
        ensure!(defined.is_ok(), "{line}: {defined:?}: {}", text(dir, "error_log")?);
        set(dir, "events/tracer_newest/read/enable", "1")?;
        probed.read();
        set(dir, "tracing_on", "0")?;
        let lines = text(dir, "trace")?;
        let (own, process) = (own.as_raw_nonzero(), process.as_raw_nonzero());
        let wanted = format!("pid={own} group={process} same={own} no=0 leader={process}");
        let hits: Vec<&str> = lines.lines().filter(|line| line.contains(": read: ")).collect();
        ensure!(!hits.is_empty() && hits.iter().all(|line| line.contains(&wanted)), "{wanted}: {lines}");
        if has_number {
            // COMM-PID [CPU] FLAGS TIME: read: (PLACE) VALUES
            let cpu = |line: &str| line.split_once('[')?.1.split_once(']')?.0.parse::<u32>().ok();
            let read = |line: &str| line.rsplit_once("cpu=")?.1.trim().parse().ok();
            ensure!(hits.iter().all(|line| cpu(line).is_some() && cpu(line) == read(line)), "{lines}");
        }
        Ok(())
    });
}

#[test]
fn random_arguments_of_fprobes_are_equal() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("fvalues", "dynamic_events")? else { return Ok(()) };
        if !text(pair.kernel(), "README")?.contains("<argname>") {
            host::skip("own_probe_types", "the kernel's probes know no types");
            return Ok(());
        }
        let probed = Probed::new("f")?;
        let mut typed = words(&[
            "file",
            "buf",
            "count",
            "pos",
            "file->f_mode",
            "file->f_flags",
            "file->f_inode",
            "file->f_inode->i_mode",
            "file->f_inode->i_size",
            "file->f_inode->i_sb->s_magic",
            "file->f_path.dentry->d_name.hash",
            "file->f_inode->i_sb->s_blocksize_bits",
        ]);
        if text(pair.kernel(), "README")?.contains("$current") {
            typed.extend(words(&OF_TASK));
        }
        let name = "file->f_path.dentry->d_name.name".to_owned();
        let entry = Sources {
            words: words(&["$arg1", "$arg3", "count", "file", "file->f_inode"]),
            memory: memory(&[("$arg1", 96), ("file", 96), ("pos", 8), ("$arg4", 8), ("file->f_inode", 16)]),
            texts: vec![name.clone()],
            code: words(&["file->f_op->llseek"]),
            typed: typed.clone(),
            ..Sources::default()
        };
        let target = |place: &str, first, mark, concurrent, sources| Target {
            letter: "f",
            place: place.to_owned(),
            first,
            mark,
            concurrent,
            sources,
        };
        compare(&pair, &target("vfs_read", "", "", true, entry), 8, || probed.read())?;
        let exit = Sources {
            words: words(&["$retval", "$arg3", "count", "file"]),
            texts: vec![name],
            typed: typed
                .into_iter()
                .filter(|name| name != "buf" && name != "pos")
                .chain(["$retval".to_owned()])
                .collect(),
            ..Sources::default()
        };
        compare(&pair, &target("vfs_read%return", "", "", false, exit), 9, || probed.read())?;
        let call = if ARM { 67 } else { 17 };
        let mark = format!(" id={call} ");
        let enter = Sources {
            words: words(&["id", "$arg2"]),
            memory: memory(&[("regs", 120)]),
            typed: words(&["id", "regs", if ARM { "regs->pc" } else { "regs->di" }]),
            ..Sources::default()
        };
        let tracepoint = Target { letter: "t", ..target("sys_enter", " id", &mark, true, enter) };
        compare(&pair, &tracepoint, 10, || probed.read())?;
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}
