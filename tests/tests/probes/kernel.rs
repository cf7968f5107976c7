//! Compares probes of kernel functions with the kernel's own kprobe and fprobe events, where the kernel has them (the
//! host does not). The same definitions must produce the same texts for the same calls of this test.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use tracer_tests::host;
use tracer_tests::probes::{Case, Pair};
use tracer_tests::tracer::Tracer;

/// A file whose name separates the test's hits from accesses to the tracing files.
struct Target {
    path: PathBuf,
    file: File,
}

impl Target {
    fn new(purpose: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("tracer-probed-{purpose}-{}", std::process::id()));
        std::fs::write(&path, b"0123456789abcdef")?;
        Ok(Self { file: File::open(&path)?, path })
    }

    /// Reads a few bytes, opens the file by its name, and fails to open another.
    fn hit(&self) {
        let mut buffer = [0; 5];
        for length in 1..=5 {
            let _ = rustix::io::pread(self.file.as_fd(), &mut buffer[..length], 3);
        }
        for _ in 0..3 {
            drop(File::open(&self.path));
        }
        let _ = File::open(Path::new("/tracer-probed-nothing"));
        // Pointers to pointers in this process's memory, and its own name.
        if let Ok(sink) = File::options().write(true).open("/dev/null") {
            let texts = [c"tracer-probed-text", c"other"].map(|text| IoSlice::new(text.to_bytes_with_nul()));
            let _ = rustix::io::writev(&sink, &texts);
        }
        let before = rustix::thread::name();
        for name in [c"probed", before.as_deref().unwrap_or(c"test")] {
            let _ = rustix::thread::set_name(name);
        }
    }
}

/// `count` arguments, named by their index.
fn many(count: u32) -> String {
    (0..count).map(|n| format!(" n{n}=$arg3:b8@{}/32", n % 24)).collect::<Vec<_>>().concat()
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Counts of definitions that are not fully compared, and the lines of the others.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    lines: usize,
    /// Neither side records them, because no hook provides the values ([`lacks_a_hook`]).
    unhooked: usize,
    /// Refused for another reason than the kernel's. This happens only on 6.1, whose types do not distinguish
    /// characters from numbers.
    other_reason: usize,
    /// The kernel does not support them, so only the mirror records hits.
    mirror_only: usize,
}

/// Compares definitions of a letter, the place with arguments, and a text. The group and a name are inserted before
/// the place. Only lines that contain the text must be equal.
fn compare(pair: &Pair, definitions: &[(&str, &str, &str)]) -> Result<Tally> {
    let target = Target::new(pair.group())?;
    // A kernel without BTF arguments (before 6.5) names arguments differently and supports fewer.
    let typed = tracer_tests::mirror::text(pair.kernel(), "README")?.contains("<argname>");
    let mut tally = Tally::default();
    for (number, (letter, rest, mark)) in definitions.iter().enumerate() {
        let event = format!("e{number}");
        let line = format!("{letter}:{}/{event} {rest}", pair.group());
        let answers = pair.define(Case { file: "dynamic_events", line: &line });
        let by_types = rest.contains("$arg") || (rest.contains("$retval") && !rest.contains("$retval:"));
        if answers.0.is_err() || (!typed && by_types) {
            // The mirror accepts definitions that the kernel does not support yet.
            println!("{line}: {answers:?}");
            if answers.1.is_ok() {
                let hits = match pair.own_hits(&event, || target.hit()) {
                    Err(error) if lacks_a_hook() && format!("{error:#}").contains("os error 95") => {
                        println!("{line}: {error:#}");
                        tally.unhooked += 1;
                        continue;
                    }
                    hits => hits?,
                };
                let hits: Vec<String> = hits.into_iter().filter(|hit| hit.contains(mark)).collect();
                ensure!(!hits.is_empty(), "{line}: no hit");
                tally.lines += hits.len();
                tally.mirror_only += 1;
            } else {
                // The types of 6.1 distinguish characters from numbers no better than its probes do.
                let other_reason = !host::counts_missed() && rest.contains("name:string");
                ensure!(
                    other_reason || answers.0 == answers.1,
                    "{line}: refused, and the kernel has the hooks for it: {answers:?}"
                );
                tally.other_reason += usize::from(answers.0 != answers.1);
            }
            continue;
        }
        ensure!(answers.0 == answers.1, "{line}: {answers:?}");
        let (kernel, ours) = pair.formats(&event)?;
        ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
        // At an entry both see the same call, including its stack; at a return each would see the other's trampoline.
        let concurrent = !letter.starts_with('r') && !rest.contains("%return");
        let (kernel, ours) = pair.hits(&event, None, concurrent, || target.hit())?;
        let marked =
            |all: Vec<String>| all.into_iter().filter(|line| line.contains(mark)).collect::<Vec<_>>();
        let (kernel, ours) = (marked(kernel), marked(ours));
        ensure!(kernel == ours, "{line}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
        ensure!(!kernel.is_empty(), "{line}: no hit");
        tally.lines += kernel.len();
    }
    println!("{tally:?} of {} definitions", definitions.len());
    Ok(tally)
}

#[test]
fn kprobes_leave_the_kernels_texts() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("kprobe", "kprobe_events")? else { return Ok(()) };
        let registers =
            if cfg!(target_arch = "aarch64") { "%x0 b=%x2:u32 c=%x3:x8" } else { "%di b=%dx:u32 c=%cx:x8" };
        let result = if cfg!(target_arch = "aarch64") { "%x0" } else { "%ax" };
        let inside = if cfg!(target_arch = "aarch64") { "vfs_read+8" } else { "vfs_read+4" };
        // A system call's function receives the registers; `second` is the offset of the call's second argument.
        let (writev, second) =
            if cfg!(target_arch = "aarch64") { ("__arm64_sys_writev", 8) } else { ("__x64_sys_writev", 104) };
        let vec = format!("+{second}($arg1)");
        let tally = compare(
            &pair,
            &[
                ("p", "vfs_read", ""),
                ("p", "vfs_read $arg*", ""),
                ("p", &format!("vfs_read{}", many(128)), ""),
                ("p", "vfs_read a=$arg3 t=\\\"some\" n=\\-1:s8 m=\\0x10", ""),
                (
                    "p",
                    &format!(
                        "{writev} base=+u0({vec}):x64 long=+u8({vec}):u64 text=+u0(+u0({vec})):string \
                         same=+0(+u0({vec})):ustring both=+u0({vec}):ustring[1] bytes=+u0(+u0({vec})):x8[4] \
                         next=+u0(+u16({vec})):string"
                    ),
                    "tracer-probed",
                ),
                ("p", "vfs_open name=+8($arg1):%pd same=$arg1:x64", "tracer-probed"),
                ("r", "vfs_open name=$arg2:%pD ret=$retval:s32", "tracer-probed"),
                ("p", "vfs_read $arg1 $arg3 n=$arg3:s32 $comm", ""),
                ("p", "vfs_read file count pos", ""),
                ("p", "vfs_read mode=file->f_mode:x32 inode=file->f_inode", ""),
                ("p", &format!("vfs_read a={registers}"), ""),
                ("p", inside, ""),
                ("p", "vfs_read st=+0($stack):x64 top=$stack0", ""),
                ("p", "vfs_read ip=$stack0:symbol name=$stack0:symstr", ""),
                ("p", "vfs_read at=@vfs_read:x32 imm=\\5 back=\\-5:s64", ""),
                ("p", "vfs_read name=$arg1:%pD inode=+32($arg1):x64", "tracer-probed"),
                (
                    "p",
                    "do_sys_openat2 fd=$arg1:s32 name=+0($arg2):ustring same=+0($arg2):string",
                    "tracer-probed",
                ),
                ("p", "do_sys_openat2 name=+0(+0($arg2)):string c=+0($arg2):char[4]", "'t','r','a'"),
                ("r", "vfs_read $retval", ""),
                ("r", "vfs_read ret=$retval:s32 $comm", ""),
                ("r", "do_sys_openat2 ret=$retval:s32", "ret=-2"),
                ("r", "vfs_read n=$arg3 ret=$retval", ""),
                ("r3", "vfs_read $retval:u8", ""),
                // A return has no saved registers, so the entry must keep the function's arguments.
                ("r", &format!("vfs_read n=$arg3 file=$arg1 at={result}:u64 ret=$retval"), ""),
                (
                    "r",
                    &format!("do_sys_openat2 name=+0($arg2):ustring at={result}:s32 fd=$arg1:s32"),
                    "tracer-probed",
                ),
            ],
        )?;
        ensure!(tally.lines >= 20, "{tally:?}");
        // On all kernels every definition has a hook and the same error.
        ensure!((tally.unhooked, tally.other_reason) == (0, 0), "{tally:?}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn fprobes_leave_the_kernels_texts() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("fprobe", "dynamic_events")? else { return Ok(()) };
        let long = format!("vfs_read{}", many(128));
        let definitions = [
            ("f", "vfs_read", ""),
            ("f", "vfs_read count pos", ""),
            ("f", "vfs_read $arg*", ""),
            ("f", "vfs_read%return $retval", ""),
            ("f", "vfs_read%return file count ret=$retval", ""),
            ("f", "vfs_open mode=file->f_mode:x32 name=path->dentry->d_name.name:string", "tracer-probed"),
            (
                "f",
                "vfs_open%return mode=file->f_mode:x32 name=path->dentry->d_name.name:string ret=$retval",
                "tracer-probed",
            ),
            // One link for many functions, which provides no arguments at returns.
            ("f", "vfs_rea[d]%return n=$arg3 file=$arg1 ret=$retval", ""),
            ("f", "vfs_read name=file:%pD inode=file->f_inode:x64", "tracer-probed"),
            ("f", "vfs_open name=path->dentry:%pd", "tracer-probed"),
            ("f", "vfs_open%return name=path->dentry:%pd file:%pD", "tracer-probed"),
            ("f", "do_filp_open%return name=$retval->f_path.dentry->d_name.name:string", "tracer-probed"),
            ("f", &long, ""),
            ("f", "vfs_read t=\\\"some\" n=\\-1:s8", ""),
            ("f", "vfs_read $stack0 c=$comm", ""),
            ("f", "vfs_read n=$arg3:b4@0/8 q=$arg3:u8", ""),
        ];
        if !host::hooks_functions() {
            ensure!(is_built_without_hooks(), "the doctor finds no hook for functions");
            host::skip(host::FUNCTION_HOOKS, "no hook for functions");
            return Ok(());
        }
        let tally = compare(&pair, &definitions)?;
        // One call of the test makes five reads.
        ensure!(tally.lines >= 40, "{tally:?}");
        // Unhooked: the return of a pattern with arguments. Other reason: on 6.1, the three definitions with a member
        // `name` of a text type.
        let most = (usize::from(lacks_a_hook()), if host::counts_missed() { 0 } else { 3 });
        ensure!(tally.unhooked <= most.0 && tally.other_reason <= most.1, "{tally:?}, not {most:?}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// The configuration of the running kernel, if available.
fn config() -> Option<String> {
    let output = std::process::Command::new("zcat").arg("/proc/config.gz").output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|text| !text.is_empty());
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    text.or_else(|| std::fs::read_to_string(format!("/boot/config-{release}")).ok())
}

/// Whether no hook supports both a pattern of names and a function's arguments at its return. kprobe.multi supports
/// both if fprobes keep the arguments. 6.1 lacks that, and so does arm64 before 6.14.
fn lacks_a_hook() -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    !host::counts_missed() || !symbols.contains(" register_fprobe_ips\n")
}

/// Whether the kernel is built without both mechanisms for function hooks. It may also refuse programs of type
/// Tracing.
fn is_built_without_hooks() -> bool {
    let config = config().unwrap_or_default();
    let lacks = |option| config.contains(&format!("# {option} is not set\n"));
    lacks("CONFIG_KPROBES") && lacks("CONFIG_FPROBE")
}

#[test]
fn probes_of_tracepoints_leave_the_kernels_texts() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("tprobe", "dynamic_events")? else { return Ok(()) };
        let definitions = [
            // Bit-field members, and texts in a struct.
            (
                "t",
                "task_rename io=task->in_iowait reset=task->sched_reset_on_fork:u8 old=task->comm:string name=comm:string",
                "name=\"probed\"",
            ),
            ("t", "sys_enter id", if cfg!(target_arch = "aarch64") { " id=67" } else { " id=17" }),
        ];
        let tally = compare(&pair, &definitions)?;
        ensure!(tally.lines >= 2, "{tally:?}");
        ensure!((tally.unhooked, tally.other_reason) == (0, 0), "{tally:?}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn profiles_and_filters_of_kprobes() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("kfilter", "kprobe_events")? else { return Ok(()) };
        let target = Target::new("filter")?;
        let line = format!("p:{}/f vfs_read n=$arg3 c=$comm name=+0($arg2):string", pair.group());
        let answers = pair.define(Case { file: "kprobe_events", line: &line });
        ensure!(answers == (Ok(()), Ok(())), "{answers:?}");
        for (filter, hits) in [("n == 3", 1), ("n > 2 && c ~ \"*\"", 3), ("n < 0", 0), ("c == \"nobody\"", 0)]
        {
            let (kernel, ours) = pair.hits("f", Some(filter), false, || target.hit())?;
            ensure!(kernel == ours && ours.len() == hits, "{filter}\n{kernel:?}\n{ours:?}");
        }
        let (_, ours) = pair.read("kprobe_profile")?;
        let line = ours.lines().find(|line| line.starts_with("  f ")).unwrap_or_default();
        let counts: Vec<&str> = line.split_ascii_whitespace().skip(1).collect();
        // Hits of other threads are counted too.
        let hits: u64 = counts.first().unwrap_or(&"").parse()?;
        ensure!(hits >= 20 && counts.len() == 2, "{ours}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// The introductory examples, on any kernel that allows one of the hooks. Entries and returns match each other and
/// the calls.
#[test]
fn function_events_record_calls() {
    host::as_root(|| {
        let target = Target::new("calls")?;
        let pid = std::process::id().to_string();
        let mut arguments = vec!["record", "-q", "--no-irq-info", "--pid", &pid];
        // The types of 6.1 distinguish characters from numbers no better than its probes do.
        let opened = if host::counts_missed() {
            "f:opened vfs_open mode=file->f_mode:x32 name=path->dentry->d_name.name:string"
        } else {
            "f:opened vfs_open mode=file->f_mode:x32 name=+0(path->dentry->d_name.name):string"
        };
        let definitions = [
            "f:myprobe vfs_read count pos if count < 6",
            "f:entry vfs_read $arg*",
            "f:exit vfs_read%return $retval",
            "f:both vfs_read%return count ret=$retval",
            opened,
            "f:open vfs_open%return mode=file->f_mode:x32 inode=file->f_inode:x64",
        ];
        for definition in &definitions {
            arguments.extend(["-p", definition]);
        }
        let running = match Tracer::new(arguments)?.start() {
            Ok(running) => running,
            Err(error) if error.to_string().contains("no hook") && is_built_without_hooks() => {
                host::skip(host::FUNCTION_HOOKS, error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        target.hit();
        let outcome = running.stop()?;
        // Other threads of the test also read, and may be inside a read when the recording ends.
        let own = format!("-{} ", rustix::thread::gettid().as_raw_nonzero());
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let text: String = text
            .lines()
            .filter(|line| line.contains(&own))
            .fold(String::new(), |all, line| all + line + "\n");
        let of = |event: &str| -> Vec<&str> {
            let mark = format!(": {event}: ");
            text.lines().filter_map(|line| Some(line.split_once(&mark)?.1)).collect()
        };
        let numbers = |event: &str, key: &str| -> Vec<u64> {
            let key = format!(" {key}=");
            let number = |line: &str| line.split_once(&key)?.1.split(' ').next()?.parse().ok();
            of(event).into_iter().filter_map(number).collect()
        };
        let wanted: Vec<u64> = (1..=5).collect();
        for (event, key) in [("myprobe", "count"), ("entry", "count"), ("both", "ret"), ("both", "count")] {
            // Reads of the test harness may precede or follow.
            ensure!(numbers(event, key).windows(5).any(|part| part == wanted), "{event}\n{text}");
        }
        ensure!(of("exit").len() == of("entry").len() && of("exit").len() >= 5, "{text}");
        for line in of("myprobe") {
            ensure!(line.starts_with("(vfs_read+0x") && line.contains(" pos=0x"), "{line}");
        }
        for line in of("exit") {
            ensure!(line.contains("read") && line.contains(" <- vfs_read) arg1="), "{line}");
        }
        let opened = of("opened").iter().filter(|line| line.contains("tracer-probed-calls")).count();
        ensure!(opened == 3, "{text}");
        ensure!(of("open").len() >= 3, "{text}");
        ensure!(of("open").iter().all(|line| line.contains(" <- vfs_open) mode=0x")), "{text}");
        Ok(())
    });
}

/// More concurrent calls than the kernel's kretprobes follow by default. A definition with MAXACTIVE follows all of
/// them, and every miss is counted.
#[test]
fn returns_of_many_calls_at_once() {
    const CALLS: usize = 40;
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("maxactive", "kprobe_events")? else { return Ok(()) };
        let sleep = || {
            let concurrent = std::sync::Barrier::new(CALLS);
            std::thread::scope(|scope| {
                for _ in 0..CALLS {
                    scope.spawn(|| {
                        concurrent.wait();
                        std::thread::sleep(std::time::Duration::from_millis(1500));
                    });
                }
            });
        };
        pair.follow_children()?;
        for (event, head) in [("usual", "r"), ("more", "r64")] {
            let line = format!("{head}:{}/{event} hrtimer_nanosleep ret=$retval:s32", pair.group());
            let answers = pair.define(Case { file: "kprobe_events", line: &line });
            ensure!(answers == (Ok(()), Ok(())), "{line}: {answers:?}");
            let (kernel, ours) = pair.hits(event, None, false, sleep)?;
            println!("{line}: {} in the kernel, {} in the mirror", kernel.len(), ours.len());
            if event == "more" {
                ensure!(ours.len() == CALLS && kernel == ours, "{} and {}", kernel.len(), ours.len());
            }
            let (kernel, ours) = pair.read("kprobe_profile")?;
            for profile in [&kernel, &ours] {
                let line = profile.lines().find(|line| line.contains(&format!("  {event} ")));
                let counts = line.unwrap_or_default().split_ascii_whitespace().skip(1);
                let counts: Vec<usize> = counts.filter_map(|count| count.parse().ok()).collect();
                // Other processes may sleep as well. Before 6.7 a program does not learn the misses of its kretprobe.
                let reported = event == "more" || host::counts_missed();
                ensure!(!reported || counts.iter().sum::<usize>() >= CALLS, "{event}: {counts:?}\n{profile}");
            }
        }
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Thousands of functions through one link, where the kernel supports it.
#[test]
fn a_glob_names_many_functions() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("glob", "available_filter_functions")? else { return Ok(()) };
        let target = Target::new("glob")?;
        let line = format!("f:{}/many vfs_re*", pair.group());
        let answers = pair.define(Case { file: "dynamic_events", line: &line });
        if answers.0.is_err() {
            host::skip("own_fprobe_events", format_args!("the kernel does not take {line}"));
            return Ok(());
        }
        ensure!(answers.1.is_ok(), "{answers:?}");
        let (kernel, ours) = pair.hits("many", None, false, || target.hit())?;
        ensure!(kernel == ours && ours.len() >= 5, "{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// One write enables events of many functions, which share links. Each event has its own hits, and can be filtered
/// and disabled while the others continue.
#[test]
fn many_functions_are_enabled_at_once() {
    const OWN: [(&str, &str); 5] = [
        ("count", "vfs_read count flags=file->f_flags:x32"),
        ("same", "vfs_read n=$arg3:u8 name=file:%pD"),
        ("ret", "vfs_read%return ret=$retval:s32"),
        ("open", "vfs_open name=path->dentry->d_name.name:string"),
        // Such returns share another link where the kernel has one for them (7.2), and else have links of their own.
        ("opened", "vfs_open%return name=path->dentry->d_name.name:string ret=$retval"),
    ];
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("together", "dynamic_events")? else { return Ok(()) };
        let target = Target::new("together")?;
        let group = pair.group();
        let define = |event: &str, what: &str| {
            pair.define(Case { file: "dynamic_events", line: &format!("f:{group}/{event} {what}") })
        };
        for (event, what) in OWN {
            let answers = define(event, what);
            if answers.0.is_err() {
                host::skip("own_fprobe_events", format_args!("the kernel does not take f {what}"));
                return Ok(());
            }
            ensure!(answers.1.is_ok(), "{what}: {answers:?}");
        }
        // The name of this function has changed.
        let listed = tracer_tests::mirror::text(pair.kernel(), "available_filter_functions")?;
        let is_function = |name: &&str| listed.lines().any(|line| line == *name);
        let opener = ["do_filp_open", "do_file_open"].into_iter().find(is_function);
        let opener = opener.context("no function opens files")?;
        let answers =
            define("name", &format!("{opener}%return name=$retval->f_path.dentry->d_name.name:string"));
        ensure!(answers == (Ok(()), Ok(())), "{opener}: {answers:?}");
        let events: Vec<&str> = OWN.iter().map(|(event, _)| *event).chain(["name"]).collect();
        let others = listed.lines().filter(|name| name.starts_with("vfs_") && !name.contains([' ', '.']));
        let taken = others.enumerate().filter(|(number, name)| {
            let exit = match number % 6 {
                0 => "%return",
                3 => "%return first=$arg1 ret=$retval",
                _ => "",
            };
            let answers = define(&format!("other{number}"), &format!("{name}{exit}"));
            answers == (Ok(()), Ok(()))
        });
        let taken = taken.take(32).count();
        ensure!(taken == 32, "{taken} functions");

        let marked = |lines: &[String]| -> Vec<String> {
            lines
                .iter()
                .filter(|line| !line.contains("name=") || line.contains("tracer-probed"))
                .cloned()
                .collect()
        };
        let hits = pair.group_hits(&events, || target.hit())?;
        for (event, (kernel, ours)) in events.iter().zip(&hits) {
            // Other threads also open files; the reads are this thread's.
            let (kernel, ours) = (marked(kernel), marked(ours));
            ensure!(kernel == ours, "{event}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
            ensure!(!kernel.is_empty(), "{event}: no hit");
        }

        // One event is filtered, and one is disabled and enabled again, while the others continue. Recording is off
        // while the trace is read, because reading it makes hits.
        let hits_of = |event: &str, trace: &str| {
            trace.lines().filter(|line| line.contains(&format!(": {event}: "))).count()
        };
        let write = |file: &str, text: &str| {
            tracer_tests::mirror::write(pair.mirror(), file, text.as_bytes(), false)
                .map_err(|errno| anyhow::anyhow!("{file}: {errno}"))
        };
        let trace = || -> Result<String> {
            write("trace", "")?;
            target.hit();
            write("tracing_on", "0")?;
            let trace = tracer_tests::mirror::text(pair.mirror(), "trace")?;
            write("tracing_on", "1")?;
            Ok(trace)
        };
        let before: Vec<usize> = hits.iter().map(|(_, ours)| ours.len()).collect();
        let set = |file: &str, text: &str| write(&format!("events/{group}/{file}"), text);
        set("enable", "1")?;
        if host::offers("fexit_multi") {
            ensure!(pair.has_link("tracing_multi")?, "no link of many exits");
        }
        set("count/filter", "count == 3")?;
        set("same/enable", "0")?;
        for same in [0, before[1]] {
            let trace = trace()?;
            let found = ["count", "same", "ret"].map(|event| hits_of(event, &trace));
            ensure!(found == [1, same, before[2]], "{found:?}\n{trace}");
            set("same/enable", "1")?;
        }
        // One event's trigger disables another event at the first entry, before the first return.
        set("count/trigger", &format!("disable_event:{group}:ret"))?;
        let acted = trace()?;
        ensure!(hits_of("count", &acted) == 1 && hits_of("ret", &acted) == 0, "trigger\n{acted}");
        set("count/trigger", &format!("!disable_event:{group}:ret"))?;
        set("enable", "0")?;
        let trace = trace()?;
        ensure!(OWN.iter().all(|(event, _)| hits_of(event, &trace) == 0), "off\n{trace}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}
