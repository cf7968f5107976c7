//! Compares user events of the mirror with the kernel's own: the same requests, writes and processes must have the
//! same results, files, bits and records.
//!
//! Debian's kernels lack `CONFIG_USER_EVENTS`. `cargo xtask kernel` builds a kernel with it, and `cargo xtask kernel
//! --test` runs this test there.

use std::fmt::{Debug, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mm::ProtFlags;
use tracer_tests::generate::Rng;
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror::{self, Mounted, bodies, set, text};
use tracer_tests::user_events::{Data, MULTI_FORMAT, PERSIST, Page, REGISTER, UNREGISTER, Word, in_child};

/// Time limit for the kernel to remove an event, which happens asynchronously.
const PATIENCE: Duration = Duration::from_secs(60);

/// The results in one of the trees, step by step.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn add(&mut self, what: impl AsRef<str>, came: impl Debug) {
        self.0.push(format!("{}: {came:?}", what.as_ref()));
    }
}

/// Runs the scene in both trees, which must have at least `least` results.
fn compare(purpose: &str, least: usize, scene: impl Fn(&Path, &mut Log) -> Result<()>) {
    if !host::root_or_skip() {
        return;
    }
    let done = || -> Result<()> {
        let kernel = Tracefs::find_or_mount()?;
        if !kernel.root().join("user_events_data").exists() {
            host::skip("own_user_events", "the kernel has no user events");
            return Ok(());
        }
        let mounted = Mounted::start(purpose)?;
        let (mut theirs, mut ours) = (Log::default(), Log::default());
        scene(kernel.root(), &mut theirs).context("the kernel's")?;
        scene(mounted.dir(), &mut ours).context("the mirror's")?;
        let differ: Vec<String> = theirs
            .0
            .iter()
            .zip(&ours.0)
            .filter(|(theirs, ours)| theirs != ours)
            .map(|(theirs, ours)| format!("kernel: {theirs}\nmirror: {ours}"))
            .collect();
        let first = differ.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
        ensure!(differ.is_empty(), "{} of {} differ:\n{first}", differ.len(), ours.0.len());
        ensure!(theirs.0.len() == ours.0.len(), "{} steps and {}", theirs.0.len(), ours.0.len());
        ensure!(ours.0.len() >= least, "only {} answers compared", ours.0.len());
        println!("{purpose}: {} answers alike", ours.0.len());
        mounted.stop()?.success().map(drop)
    };
    done().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Waits until an event is gone.
fn await_gone(dir: &Path, event: &str) -> Result<()> {
    let (start, path) = (Instant::now(), dir.join("events").join(event));
    while path.exists() {
        ensure!(start.elapsed() < PATIENCE, "{event} does not go");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A field's line without the number of array elements: there the kernel shows the previous content of the memory
/// (`user_event_add_field()` does not set `len`).
fn without_length(line: &str) -> String {
    match line.split_once('[').zip(line.split_once(']')) {
        Some(((before, _), (_, behind))) if line.contains("\tfield:") => format!("{before}[]{behind}"),
        _ => line.to_owned(),
    }
}

/// An event's format without its id.
fn format(dir: &Path, event: &str) -> String {
    let text =
        text(dir, &format!("events/user_events/{event}/format")).unwrap_or_else(|error| format!("{error:#}"));
    let lines = text.lines().filter(|line| !line.starts_with("ID: "));
    lines.map(without_length).collect::<Vec<_>>().join("\n")
}

/// The lines of a file that begin with one of these texts.
fn lines(dir: &Path, file: &str, starts: &[&str]) -> Vec<String> {
    let text = text(dir, file).unwrap_or_else(|error| format!("{error:#}"));
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| starts.iter().any(|start| line.starts_with(start)))
        .map(str::to_owned)
        .collect();
    // The kernel lists events in the order of its hash table.
    lines.sort();
    lines
}

/// The definition after an event's name; `~` stands for none.
const FIELDS: &[&str] = &[
    "~",
    "",
    ";",
    ";;",
    "u32 a",
    "u32 a;",
    "u32 a; ",
    " u32 a",
    "u32  a",
    "u32 a ",
    "u32\ta",
    "u32 a;u64 b",
    "u32 a ;u64 b",
    "u32 a; u64 b;",
    "u32 a;; u64 b",
    "u32 a; u32 a",
    "s64 a; s32 b; s16 c; s8 d; u64 e; u32 f; u16 g; u8 h",
    "int a; unsigned int b; short c; unsigned short d; char e; unsigned char f",
    "long a",
    "unsigned long a",
    "unsigned a",
    "unsigned  int a",
    "float a",
    "u32",
    "u32 ",
    "a b c",
    "u32 a 4",
    "char[16] a",
    "char[0] a",
    "char[1] a",
    "char[1024] a",
    "char[1025] a",
    "char[] a",
    "char[ a",
    "char[x] a",
    "char[0x10] a",
    "char[010] a",
    "char[-1] a",
    "char[16]x a",
    "char[000016] a",
    "char[0000016] a",
    "unsigned char[8] a",
    "unsigned char[8 a",
    "u8[4] a",
    "char a[16]",
    "__data_loc char[] a",
    "__data_loc unsigned char[] a",
    "__data_loc u32[] a",
    "__data_loc a",
    "__data_loc  char[] a",
    "__data_loc char[]a",
    "__data_loc x y",
    "__rel_loc char[] a",
    "__rel_loc unsigned char[] a",
    "__rel_loc u64[] a; u8 b",
    "__rel_loc a",
    "struct my a 20",
    "struct my a",
    "struct my a 0",
    "struct my a -1",
    "struct my a 4294967295",
    "struct my a 2147483647",
    "struct my a 0x10",
    "struct my a 20 x",
    "struct my *a 8",
    "struct my a 20; u32 b",
    "struct  my a 20",
    "struct a",
    "struct",
    "unsigned",
    "__data_loc",
    "u32 a; long b",
    "u32 common_pid",
    "u32 a.b",
    "u32 a-b",
    "u32 1",
    "u64 a; u64 b; u64 c; u64 d; u64 e; u64 f; u64 g; u64 h; u64 i; u64 j; u64 k; u64 l; u64 m",
];

/// Names that both sides accept or refuse; the mirror refuses more (`docs/reference/user-events.md`).
const NAMES: &[&str] = &[
    "plain",
    "with_under",
    "with-dash",
    "with.dot",
    "1digit",
    "CAPS",
    "a",
    "flag:",
    "flag:x",
    "flag::",
    "comma,name",
    "semi;colon",
    "star*",
    "quote\"",
    "br[acket]",
    "tab\tname",
    "back\\slash",
    "dollar$",
    "percent%d",
    "a_name_that_is_rather_long_but_not_longer_than_what_a_directory_may_be_called_in_any_file_system_that_is_around",
];

/// A mostly valid definition.
fn random_fields(rng: &mut Rng) -> String {
    let mut text = String::new();
    for at in 0..rng.below(5) {
        let types = [
            "u8",
            "s16",
            "u32",
            "s64",
            "int",
            "char",
            "unsigned int",
            "unsigned char",
            "char[7]",
            "unsigned char[3]",
            "__data_loc char[]",
            "__rel_loc char[]",
            "__data_loc u16[]",
            "struct thing",
            "long",
            "",
        ];
        let ty = types[rng.below(types.len())];
        let blank = [" ", " ", " ", " ", " ", "  ", "\t", ""][rng.below(8)];
        let _ = write!(text, "{ty}{blank}f{at}");
        if ty.starts_with("struct") && rng.below(4) > 0 {
            let _ = write!(text, " {}", rng.below(40));
        }
        text += [";", "; ", " ;", ";;", "; ; ", ""][[0, 0, 0, 1, 1, 1, 2, 3, 4, 5][rng.below(10)]];
    }
    text
}

/// Registers a command through a separate open file and logs the results.
fn register(dir: &Path, log: &mut Log, name: &str, fields: &str) -> Result<()> {
    let command = if fields == "~" { name.to_owned() } else { format!("{name} {fields}") };
    let (data, word) = (Data::open(dir)?, Word::default());
    let done = data.register(&command, &word, 0, 0);
    log.add(&command, done);
    if done.is_err() {
        return Ok(());
    }
    let plain = name.split(':').next().unwrap_or_default();
    log.add(format!("format of {command}"), format(dir, plain));
    log.add(format!("line of {command}"), lines(dir, "dynamic_events", &["u:"]));
    // The same definition with other blanks, and different ones.
    let again = command.split_whitespace().collect::<Vec<_>>().join(" ").replace("; ", ";");
    for other in [again, format!("{command}; u8 more"), plain.to_owned()] {
        let done = data.register(&other, &word, 1, 0);
        log.add(format!("{other} behind {command}"), done);
        log.add("taken back", done.is_ok().then(|| data.unregister(&word, 1)));
    }
    log.add("unregister", data.unregister(&word, 0));
    drop(data);
    await_gone(dir, &format!("user_events/{plain}"))
}

#[test]
fn commands_are_accepted_alike() {
    compare("user-commands", 500, |dir, log| {
        for (number, fields) in FIELDS.iter().enumerate() {
            register(dir, log, &format!("fields{number}"), fields)?;
        }
        for name in NAMES {
            register(dir, log, name, "u32 a")?;
        }
        let mut rng = Rng::new(6);
        for number in 0..host::share(400) {
            let fields = random_fields(&mut rng);
            register(dir, log, &format!("random{number}"), &fields)?;
        }
        Ok(())
    });
}

#[test]
fn structures_are_checked_alike() {
    compare("user-structures", 10, |dir, log| {
        let data = Data::open(dir)?;
        let pages = [
            Page::new(ProtFlags::READ | ProtFlags::WRITE),
            Page::new(ProtFlags::READ),
            Page::new(ProtFlags::empty()),
        ];
        let pages = pages.map(|page| page.map_err(std::io::Error::from_raw_os_error));
        let [good, read_only, none] = pages;
        let (good, read_only, none) = (good?, read_only?, none?);
        let name = b"structure u32 a\0";
        let mut rng = Rng::new(7);
        for number in 0..host::share(1500) {
            let mut pick = |from: &[u64]| rng.pick(from);
            // Mostly valid values, so that each check is reached.
            let size =
                pick(&[28, 28, 28, 28, 28, 28, 0, 4, 19, 21, 27, 29, 32, 40, 64, 4096, 4097, 0xffff_ffff]);
            let bit = pick(&[0, 0, 1, 7, 8, 31, 31, 32, 33, 63, 64, 255]);
            let width = pick(&[4, 4, 4, 4, 8, 8, 0, 1, 2, 3, 16]);
            let flags = pick(&[0, 0, 0, 0, 0, 2, 4, 8, 0x8000]);
            let address = pick(&[0, 0, 0, 8, 1, 2, 4, 12, 4088, 4092]);
            let base = pick(&[0, 0, 0, 0, 0, 1, 2, 3, 4]);
            let text = pick(&[0, 0, 0, 0, 0, 1, 2]);
            let tail = pick(&[0, 0, 0, 1]);
            let mut structure = vec![0_u8; 4200];
            let mut put = |at: usize, bytes: &[u8]| structure[at..at + bytes.len()].copy_from_slice(bytes);
            put(0, &(size as u32).to_ne_bytes());
            put(4, &[bit as u8, width as u8]);
            put(6, &(flags as u16).to_ne_bytes());
            let place = match base {
                0 => good.address() + address,
                1 => read_only.address() + address,
                2 => none.address() + address,
                3 => address,
                _ => 0xffff_8000_0000_0000 + address,
            };
            put(8, &place.to_ne_bytes());
            let command = match text {
                0 => name.as_ptr().expose_provenance() as u64,
                1 => none.address(),
                _ => 0,
            };
            put(16, &command.to_ne_bytes());
            put(24, &u32::MAX.to_ne_bytes());
            put(28, &[tail as u8]);
            let done = data.ioctl(REGISTER, structure.as_ptr().expose_provenance() as u64);
            let what = format!(
                "{number}: size {size} bit {bit} of {width} flags {flags} at {base}+{address} text {text} tail {tail}"
            );
            log.add(&what, (done, &structure[24..28]));
            // Unregisters with a structure that is sometimes invalid, and then with a valid one.
            let mut back = [0_u8; 32];
            back[..4].copy_from_slice(&(pick(&[16, 16, 16, 0, 8, 15, 17, 24, 5000]) as u32).to_ne_bytes());
            back[4] = bit as u8;
            back[5] = pick(&[0, 0, 0, 0, 1]) as u8;
            back[6..8].copy_from_slice(&(pick(&[0, 0, 0, 0, 1]) as u16).to_ne_bytes());
            back[8..16].copy_from_slice(&place.to_ne_bytes());
            let asked = data.ioctl(UNREGISTER, back.as_ptr().expose_provenance() as u64);
            log.add("back", (&back[..8], asked));
            if done.is_ok() && asked.is_err() {
                back[..4].copy_from_slice(&16_u32.to_ne_bytes());
                back[5..8].fill(0);
                log.add("at last", data.ioctl(UNREGISTER, back.as_ptr().expose_provenance() as u64));
            }
        }
        for request in [0_u32, 0xc008_2a01, 0x4008_2a00, 0x4008_2a03, 0x8008_2a00, 0x5401] {
            log.add(format!("{request:#x}"), data.ioctl(request, good.address()));
        }
        for request in [REGISTER, UNREGISTER] {
            log.add(format!("{request:#x} of nowhere"), data.ioctl(request, 0));
            log.add(format!("{request:#x} of no memory"), data.ioctl(request, none.address()));
        }
        drop(data);
        await_gone(dir, "user_events/structure")?;
        await_gone(dir, "user_events_multi")
    });
}

/// Events to write, and the positions of their data words.
const WRITTEN: &[(&str, &[usize])] = &[
    ("w_numbers u32 a; u64 b", &[]),
    ("w_nothing", &[]),
    ("w_text char[4] s; __data_loc char[] t", &[4]),
    ("w_relative __rel_loc char[] t; u8 x", &[0]),
    ("w_bytes __data_loc u8[] t", &[0]),
    ("w_struct struct my m 12; s16 x", &[]),
    ("w_two __data_loc char[] a; __rel_loc char[] b; s8 c", &[0, 4]),
    ("w_signed s8 a; s16 b; s32 c; s64 d; unsigned char e; char f", &[]),
];

#[test]
fn writes_are_answered_and_recorded_alike() {
    compare("user-writes", 10, |dir, log| {
        set(dir, "trace", "")?;
        set(dir, "tracing_on", "1")?;
        let (data, words) = (Data::open(dir)?, [Word::default(), Word::default()]);
        let mut indexes = Vec::new();
        for (bit, (command, _)) in WRITTEN.iter().enumerate() {
            let index = data.register(command, &words[0], bit as u8, 0);
            log.add(command, index);
            indexes.push(index.map_err(std::io::Error::from_raw_os_error)?);
        }
        for (at, (command, _)) in WRITTEN.iter().enumerate() {
            log.add(format!("off: {command}"), data.write(indexes[at], &[0; 16]));
        }
        set(dir, "events/user_events/enable", "1")?;
        log.add("bits", words[0].get());
        for bytes in [&[][..], &[0], &[0, 0, 0], &[0xff; 4], &[9, 0, 0, 0], &9999_u32.to_ne_bytes()] {
            if !bytes.is_empty() {
                log.add(format!("{bytes:?}"), data.write_raw(bytes));
            }
        }
        let mut rng = Rng::new(8);
        for number in 0..host::share(2000) {
            let at = rng.below(WRITTEN.len());
            let length = rng.below(48);
            let mut payload: Vec<u8> = (0..length).map(|_| [0, 0, b'a', b'z', 0x7f][rng.below(5)]).collect();
            for word in WRITTEN[at].1 {
                if word + 4 <= length {
                    // Close to valid, so that both sides of each limit are reached. The offset is after the common
                    // fields, which contain the event's id, because the bytes before a record are unknown.
                    let (offset, size) = (8 + rng.below(40) as u32, rng.below(24) as u32);
                    payload[*word..word + 4].copy_from_slice(&(size << 16 | offset).to_ne_bytes());
                }
            }
            log.add(format!("{number}: {} {payload:?}", WRITTEN[at].0), data.write(indexes[at], &payload));
        }
        // Beyond the longest record.
        for length in [4000, 4060, 4070, 4076, 4080, 4096, 5000, 8192, 65_536] {
            log.add(format!("{length} bytes"), data.write(indexes[0], &vec![1; length]));
        }
        log.add("trace", ());
        for line in bodies(&text(dir, "trace")?).into_iter().filter(|line| line.starts_with("w_")) {
            // Long records end at different lengths, so only the start of the text is compared.
            log.add("record", line.chars().take(400).collect::<String>());
        }
        set(dir, "events/user_events/w_numbers/filter", "a == 1 && b > 5")?;
        set(dir, "trace", "")?;
        for (a, b) in [(1_u32, 5_u64), (1, 6), (2, 6), (1, u64::MAX)] {
            let payload = [&a.to_ne_bytes()[..], &b.to_ne_bytes()].concat();
            log.add(format!("{a} {b}"), data.write(indexes[0], &payload));
        }
        log.add("filtered", bodies(&text(dir, "trace")?));
        set(dir, "events/user_events/w_numbers/filter", "0")?;
        set(dir, "events/user_events/enable", "0")?;
        log.add("bits", words[0].get());
        set(dir, "trace", "")?;
        for bit in 0..WRITTEN.len() {
            log.add("unregister", data.unregister(&words[0], bit as u8));
        }
        drop(data);
        await_gone(dir, "user_events")
    });
}

/// Waits until a word has the wanted value and returns its final value.
fn settles(word: Word, wanted: u32) -> u32 {
    let start = Instant::now();
    while word.get() != wanted && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    word.get()
}

#[test]
fn bits_holders_and_files_are_alike() {
    compare("user-life", 10, |dir, log| {
        let enable = |event: &str, on: &str| {
            mirror::write(dir, &format!("events/{event}/enable"), on.as_bytes(), false)
        };
        let (data, other) = (Data::open(dir)?, Data::open(dir)?);
        let (word, second) = (Word::default(), Word::default());
        log.add("one", data.register("one u32 a", &word, 3, 0));
        log.add("one at another bit", data.register("one u32 a", &word, 31, 0));
        log.add("one at the same bit", data.register("one u32 a", &word, 3, 0));
        log.add("two at the same bit", data.register("two u32 a", &word, 3, 0));
        log.add("two", data.register("two u64 x", &word, 0, 0));
        log.add("two by another file", other.register("two u64 x", &second, 7, 0));
        log.add("other fields", other.register("two u64 y", &second, 8, 0));
        log.add("many formats", other.register("two u64 y", &second, 9, MULTI_FORMAT));
        log.add("the same again", other.register("two u64 y", &second, 10, MULTI_FORMAT));
        log.add("a third", other.register("two u8 z", &second, 11, MULTI_FORMAT));
        log.add("lasting", other.register("lasts u8 z", &second, 12, PERSIST));
        let files = |log: &mut Log| {
            log.add("lines", lines(dir, "dynamic_events", &["u:"]));
            let status = lines(dir, "user_events_status", &["one", "two", "lasts", "Active", "Busy"]);
            // Numbers of formats keep increasing as long as the kernel runs.
            let status = status.into_iter().map(|line| match line.split_once('.') {
                Some((name, rest)) => {
                    format!("{name}.N{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
                }
                None => line,
            });
            log.add("status", status.collect::<Vec<_>>());
        };
        files(log);
        for (event, on) in [("one", "1"), ("two", "1"), ("one", "0"), ("one", "1")] {
            log.add(format!("{event} {on}"), enable(&format!("user_events/{event}"), on));
            log.add("bits", (word.get(), second.get()));
            files(log);
        }
        log.add("busy", (data.delete("one"), data.delete("none"), data.delete("two")));
        // The kernel deletes an event with fields only when the line has the fields; the mirror accepts both
        // (`docs/reference/user-events.md`).
        for line in [
            "-:user_events/one u32 a",
            "-:one u32 a",
            "-:none",
            "!u:one u32 a",
            "u:three u32 a",
            "u:three u64 a",
            "u:four long x",
            "u:none",
            "-:none",
            "-:three u32 a",
        ] {
            log.add(line, mirror::write(dir, "dynamic_events", format!("{line}\n").as_bytes(), true));
        }
        files(log);
        // A child has a copy of the registration and can unregister its own.
        let code = in_child(|| {
            let mut failed = 0;
            let mut check = |number: i32, is: bool| failed |= i32::from(!is) << number;
            check(0, word.get() == (1 << 3 | 1 << 31 | 1) && second.get() == 1 << 7);
            check(1, enable("user_events/two", "0").is_ok());
            check(2, settles(word, 1 << 3 | 1 << 31) == 1 << 3 | 1 << 31);
            check(3, data.unregister(&word, 3) == Ok(()));
            check(4, data.unregister(&word, 3) == Err(libc::ENOENT));
            check(5, word.get() == 1 << 31);
            check(6, enable("user_events/one", "0").is_ok());
            check(7, settles(word, 0) == 0);
            failed
        });
        log.add("child", code);
        log.add("bits", (settles(word, 0), settles(second, 0)));
        log.add("on again", enable("user_events/one", "1"));
        log.add("bits", (word.get(), second.get()));
        // The program has changed other bits of its words.
        log.add("unregister", [3, 31, 0].map(|bit| data.unregister(&word, bit)));
        log.add("bits", word.get());
        log.add("unregister", [7, 8, 9, 10, 11, 12].map(|bit| other.unregister(&second, bit)));
        log.add("held by files", lines(dir, "dynamic_events", &["u:"]));
        log.add("off", enable("user_events", "0"));
        drop((data, other));
        await_gone(dir, "user_events/one")?;
        await_gone(dir, "user_events_multi")?;
        files(log);
        let last = Data::open(dir)?;
        log.add("delete", (last.delete("lasts"), last.delete("lasts")));
        log.add("lines", lines(dir, "dynamic_events", &["u:"]));
        Ok(())
    });
}

/// The files where the kernel's own programs look for tracefs.
#[test]
fn the_files_are_equal_to_the_kernels() {
    compare("user-files", 4, |dir, log| {
        let mode = |path: PathBuf| -> Result<u32> {
            use std::os::unix::fs::PermissionsExt as _;
            Ok(std::fs::metadata(path)?.permissions().mode() & 0o7777)
        };
        // In the mirror `user_events_status` has the mode of 6.1, so it is not compared.
        log.add("user_events_data", mode(dir.join("user_events_data"))?);
        let data = Data::open(dir)?;
        let word = Word::default();
        log.add("register", data.register("files u32 a; char[4] b", &word, 0, 0));
        let mut names: Vec<(String, u32)> = std::fs::read_dir(dir.join("events/user_events/files"))?
            .map(|entry| {
                let entry = entry?;
                Ok((entry.file_name().to_string_lossy().into_owned(), mode(entry.path())?))
            })
            .collect::<Result<_>>()?;
        // Exists with CONFIG_TRACE_EVENT_INJECT.
        names.retain(|(name, _)| name != "inject");
        names.sort();
        log.add("files", names);
        log.add("unregister", data.unregister(&word, 0));
        drop(data);
        await_gone(dir, "user_events")
    });
}
