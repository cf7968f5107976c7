//! The control files of a mounted mirror against those of the kernel's tracefs. The same text is written to both, and
//! both must return the same result and the same content afterwards. Nothing is recorded here.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracer_tests::generate::Rng;
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted};
use tracer_tests::oracle::Oracle;

/// An instance of the kernel's tracefs and an instance of the mirror.
struct Pair {
    kernel: Oracle,
    mounted: Mounted,
    ours: PathBuf,
}

impl Pair {
    fn new(purpose: &str) -> Option<Self> {
        if !host::is_root() {
            host::skip("cap_sys_admin", "mounting needs root");
            return None;
        }
        let kernel = Oracle::create(purpose).unwrap();
        // Sets the defaults of a new instance.
        kernel.set("trace_clock", "local").unwrap();
        kernel.set("options/hash-ptr", "1").unwrap();
        kernel.set("buffer_size_kb", "1408").unwrap();
        let mounted = Mounted::start(purpose).unwrap();
        let ours = mounted.instance("pair").unwrap();
        mirror::set(&ours, "tracing_on", "0").unwrap();
        Some(Self { kernel, mounted, ours })
    }

    /// Writes to both and compares the results.
    fn write(&self, file: &str, text: &[u8], append: bool) {
        let kernel = mirror::write(self.kernel.dir(), file, text, append);
        let ours = mirror::write(&self.ours, file, text, append);
        let shown = String::from_utf8_lossy(text);
        assert_eq!(ours, kernel, "{shown:?} {} {file}", if append { ">>" } else { ">" });
    }

    /// Compares a file of both.
    fn same(&self, file: &str, after: &str) {
        let shown = |dir: &Path| mirror::read(dir, file).map(|bytes| settled(file, &bytes));
        assert_eq!(shown(&self.ours), shown(self.kernel.dir()), "{file} after {after}");
    }
}

/// A file's text without times.
fn settled(file: &str, bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    if file == "error_log" {
        for line in &mut lines {
            if let Some((_, rest)) = line.split_once("] ").filter(|_| line.starts_with('[')) {
                *line = rest.to_owned();
            }
        }
    }
    if file == "set_event" {
        // The kernel lists an instance's events from the last to the first.
        lines.sort();
    }
    lines.concat()
}

/// The files to compare after every step.
const STATE: &[&str] = &[
    "set_event",
    "events/enable",
    "events/alarmtimer/enable",
    "events/alarmtimer/alarmtimer_start/enable",
    "events/alarmtimer/alarmtimer_fired/filter",
    "events/alarmtimer/alarmtimer_start/filter",
    "events/alarmtimer/filter",
    "error_log",
    "tracing_on",
    "trace_clock",
    "buffer_size_kb",
    "buffer_total_size_kb",
    "per_cpu/cpu0/buffer_size_kb",
    "trace_options",
    "options/raw",
    "set_event_pid",
    "set_event_notrace_pid",
    "tracing_cpumask",
    "current_tracer",
    "buffer_percent",
];

#[test]
fn control_files_answer_as_the_kernels() {
    let Some(pair) = Pair::new("control") else { return };
    let steps: &[(&str, &[&str])] = &[
        (
            "set_event",
            &[
                "alarmtimer:alarmtimer_start",
                "!alarmtimer:alarmtimer_start",
                "alarmtimer:",
                "!alarmtimer:*",
                "alarmtimer",
                ":alarmtimer_fired",
                "*:alarmtimer_fired",
                "!*:alarmtimer_fired",
                "alarmtimer:alarmtimer_start nonsense alarmtimer:alarmtimer_fired",
                "alarmtimer:alarm*",
                "alarmtimer:alarmtimer_start:x",
                "!",
                "",
                " ",
                "\n",
                "*",
                "alarmtimer:alarmtimer_start\0alarmtimer:alarmtimer_fired",
                "  alarmtimer:alarmtimer_start\talarmtimer:alarmtimer_cancel\n",
                "ftrace:print",
                "nonsense",
                "nonsense:",
                ":nonsense",
                "alarmtimer: alarmtimer_start",
            ],
        ),
        (
            "events/alarmtimer/enable",
            &[
                "1",
                "0",
                "1\n",
                "0\n",
                "2",
                "",
                "x",
                "-1",
                " 1",
                "+1",
                "00",
                "0x1",
                "1 ",
                "99999999999999999999",
            ],
        ),
        (
            "events/alarmtimer/alarmtimer_start/enable",
            &["1", "1", "0", "0", "2", "", "\n", "x", "01", "1\n\n"],
        ),
        (
            "events/alarmtimer/alarmtimer_fired/filter",
            &["expires > 5", "foo == 1", "0", "expires ==", "common_pid == 1 || CPU == 0\n", "(", "0\n"],
        ),
        (
            "events/alarmtimer/filter",
            &["expires > 5", "common_pid == 7", "foo == 1", "now == 1", "0", ")(", "0"],
        ),
        ("tracing_on", &["1", "0", "7", "x", "", "0\n"]),
        ("trace_clock", &["global", "mono\n", " boot ", "nonsense", "", "MONO", "local"]),
        ("buffer_size_kb", &["64", "0", "x", "-1", "1", "17\n", ""]),
        ("per_cpu/cpu0/buffer_size_kb", &["33", "0", "x", "17"]),
        ("buffer_size_kb", &["1408"]),
        (
            "trace_options",
            &[
                "raw",
                "noraw",
                "hex\n",
                "nohex",
                " bin ",
                "nobin",
                "nonsense",
                "no",
                "",
                "nooverwrite",
                "overwrite",
            ],
        ),
        ("options/raw", &["1", "0", "2", "", "x", "1\n", "0"]),
        ("options/overwrite", &["0", "1"]),
        ("current_tracer", &["nop", "nonsense", "", " nop \n"]),
        ("buffer_percent", &["0", "100", "101", "x", "50"]),
        ("tracing_cpumask", &["1", "3", "x", "", "100000000000000000", "1,00000001", "2\n", "3"]),
        (
            "set_event_pid",
            &[
                "1",
                "1 2\n3",
                "x",
                "1 x",
                "0x10",
                "010",
                "-1",
                "4194304",
                "1073741823",
                "1073741824",
                " ",
                "\n",
                "",
            ],
        ),
        ("set_event_notrace_pid", &["1", "9 8 7", "", "x"]),
        ("error_log", &["", "x"]),
        ("trace", &["", "x\n"]),
    ];
    let mut count = 0;
    for (file, texts) in steps {
        for append in [false, true] {
            for text in *texts {
                pair.write(file, text.as_bytes(), append);
                count += 1;
                for state in STATE {
                    pair.same(state, &format!("{text:?} to {file}"));
                }
            }
        }
    }
    println!("{count} writes, {} files read after each", STATE.len());
}

#[test]
fn random_writes_leave_the_same_state() {
    let steps = host::share(1500);
    let Some(pair) = Pair::new("random") else { return };
    let files = [
        "set_event",
        "events/alarmtimer/enable",
        "events/alarmtimer/alarmtimer_start/enable",
        "events/alarmtimer/alarmtimer_start/filter",
        "events/alarmtimer/alarmtimer_fired/filter",
        "events/alarmtimer/filter",
        "options/raw",
        "trace_options",
        "tracing_on",
        "set_event_pid",
        "error_log",
    ];
    let words = [
        "0",
        "1",
        "\n",
        "alarmtimer:alarmtimer_start",
        "!alarmtimer:alarmtimer_start",
        "alarmtimer",
        "!alarmtimer:",
        ":alarmtimer_fired",
        "bogus:bogus",
        "expires > 5",
        "now < 100",
        "expires == x",
        "foo",
        "common_pid == 1 && CPU == 0",
        "(CPU == 0",
        "raw",
        "noraw",
        "verbose",
        "12",
        "13 14",
        "14x",
    ];
    let seed = std::env::var("TRACER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut rng = Rng::new(seed);
    let mut pick = |n: usize| (rng.bits() % n as u64) as usize;
    for step in 0..steps {
        let (file, append) = (files[pick(files.len())], pick(3) > 0);
        let mut text = words[pick(words.len())].to_owned();
        if pick(4) == 0 {
            text = format!("{text} {}", words[pick(words.len())]);
        }
        if pick(2) == 0 {
            text.push('\n');
        }
        let step = format!("seed {seed}, step {step}: {text:?} to {file}");
        let kernel = mirror::write(pair.kernel.dir(), file, text.as_bytes(), append);
        let ours = mirror::write(&pair.ours, file, text.as_bytes(), append);
        assert_eq!(ours, kernel, "{step}");
        let state = STATE[pick(STATE.len())];
        pair.same(state, &step);
        pair.same(file, &step);
    }
}

#[test]
fn files_of_an_instance_are_the_kernels() {
    /// Files of the kernel that the mirror lacks.
    const MISSING: &[&str] = &[
        "inject",
        "buffer_meta",
        "last_boot_info",
        "set_ftrace_filter",
        "set_ftrace_notrace",
        "set_ftrace_pid",
        "set_ftrace_notrace_pid",
        "tracing_max_latency",
    ];
    /// Files that only some kernels have.
    const NEW: &[&str] = &[
        "available_tracers",
        "buffer_subbuf_size_kb",
        "fields",
        "hist",
        "inject",
        "program_events",
        "snapshot",
        "snapshot_raw",
        "trace_printk_dest",
    ];
    /// Directories whose entries are compared.
    const DIRS: &[&str] = &[
        "",
        "events",
        "events/alarmtimer",
        "events/alarmtimer/alarmtimer_start",
        "events/ftrace/print",
        "options",
        "per_cpu",
        "per_cpu/cpu0",
    ];
    let Some(pair) = Pair::new("files") else { return };
    // Before 6.6 (eventfs) the directories of events had no permissions for others, like all directories.
    let events = std::fs::metadata(pair.kernel.dir().join("events")).unwrap().mode();
    let others = 0o7;
    let dirs = if events & others == 0 { !others } else { !0 };
    for dir in DIRS {
        let (kernel, ours) = (pair.kernel.dir().join(dir), pair.ours.join(dir));
        let mut expected = mirror::names(&kernel).unwrap();
        expected.retain(|name| !MISSING.contains(&name.as_str()));
        let mut found = mirror::names(&ours).unwrap();
        found.retain(|name| !NEW.contains(&name.as_str()) || expected.contains(name));
        assert_eq!(found, expected, "{dir}");
        for name in found {
            let (kernel, ours) = (kernel.join(&name), ours.join(&name));
            let stat = |path: &Path| {
                let stat = std::fs::metadata(path).unwrap();
                let mode = if stat.is_dir() { stat.mode() & dirs } else { stat.mode() };
                (format!("{mode:o}"), stat.uid(), stat.gid(), stat.size(), stat.is_dir())
            };
            assert_eq!(stat(&ours), stat(&kernel), "{}", ours.display());
        }
    }
    for file in [
        "events/header_page",
        "events/header_event",
        "events/sched/sched_switch/format",
        "events/sched/sched_switch/id",
        "events/ftrace/print/format",
        "events/ftrace/print/id",
        "timestamp_mode",
        "trace",
    ] {
        pair.same(file, "nothing");
    }
    let top = pair.kernel.tracefs().root();
    let available = |dir: &Path| mirror::text(dir, "available_events").unwrap();
    assert_eq!(available(pair.mounted.dir()), available(top));
}

#[test]
fn directories_can_be_made_and_removed_where_the_kernel_lets_them() {
    let Some(pair) = Pair::new("dirs") else { return };
    let number = |done: std::io::Result<()>| done.map_err(|error| error.raw_os_error().unwrap_or(-1));
    let top = pair.kernel.tracefs().root().to_owned();
    let own = pair.kernel.dir().file_name().unwrap().to_str().unwrap().to_owned();
    for (make, name) in [
        (true, "instances/tracer-mirror-a"),
        (true, "instances/tracer-mirror-a"),
        (false, "instances/tracer-mirror-a"),
        (false, "instances/tracer-mirror-a"),
        (true, "tracer-mirror-b"),
        (true, "events/tracer-mirror-c"),
        (false, "events"),
        (false, "events/sched"),
        (false, "per_cpu/cpu0"),
        (false, "instances"),
        (false, "README"),
    ] {
        let act = |top: &Path| {
            let path = top.join(name);
            number(if make { std::fs::create_dir(path) } else { std::fs::remove_dir(path) })
        };
        assert_eq!(act(pair.mounted.dir()), act(&top), "{} {name}", if make { "mkdir" } else { "rmdir" });
    }
    // An instance in use cannot be removed.
    for (top, name) in [(pair.mounted.dir(), "pair"), (top.as_path(), own.as_str())] {
        let dir = top.join("instances").join(name);
        let held = std::fs::File::open(dir.join("trace")).unwrap();
        assert_eq!(number(std::fs::remove_dir(&dir)), Err(libc::EBUSY), "{}", dir.display());
        drop(held);
    }
    let create = |top: &Path| number(std::fs::write(top.join("new"), "x"));
    assert_eq!(create(pair.mounted.dir()), create(&top));
    let remove = |top: &Path| number(std::fs::remove_file(top.join("trace")));
    assert_eq!(remove(pair.mounted.dir()), remove(&top));
}
