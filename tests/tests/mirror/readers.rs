//! Several concurrent readers of the text of records: of one open file, and of files that are closed during a read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, read, set, text};

/// The number of marks that are written, each with its number. An emulated machine makes a twentieth of the text in the
/// same time.
fn marks() -> usize {
    if host::part() > 1 { 2_000 } else { 12_000 }
}

/// Makes an instance whose `trace` has this many lines.
fn filled(mounted: &Mounted, name: &str, marks: usize) -> Result<std::path::PathBuf> {
    let instance = mounted.instance(name)?;
    set(&instance, "buffer_size_kb", "4096")?;
    let marker = File::options().write(true).open(instance.join("trace_marker"))?;
    for number in 0..marks {
        marker.write_at(format!("mark {number}").as_bytes(), 0)?;
    }
    set(&instance, "tracing_on", "0")?;
    Ok(instance)
}

/// The whole text of a file.
fn whole(instance: &Path, file: &str) -> Result<Vec<u8>> {
    read(instance, file).map_err(std::io::Error::from_raw_os_error).context(file.to_owned())
}

#[test]
fn threads_that_share_an_open_trace_read_the_same_text() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        let mounted = Mounted::start("readers-shared")?;
        // Even a slow machine needs several steps to reach a place, so that the threads take turns.
        let marks = marks().max(6000);
        let instance = filled(&mounted, "shared", marks)?;
        let expected = whole(&instance, "trace")?;
        ensure!(expected.split(|byte| *byte == b'\n').count() > marks, "all marks are there");
        let file = File::open(instance.join("trace"))?;
        let reads: Vec<Result<usize>> = std::thread::scope(|scope| {
            let thread = |number: usize| {
                let (file, expected) = (&file, &expected);
                move || {
                    let mut part = vec![0; 4096 * (1 + number)];
                    let mut reads = 0;
                    // Each thread reads at its own offsets, forwards and backwards.
                    for step in 0..10 {
                        let at = (step * 7919 + number * 104_729) * 13 % expected.len();
                        let taken = file.read_at(&mut part, at as u64)?;
                        let (got, wanted) = (part.get(..taken), expected.get(at..at + taken));
                        ensure!(taken > 0 && got == wanted, "{taken} bytes at {at} differ");
                        reads += 1;
                    }
                    Ok(reads)
                }
            };
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(thread(number))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for read in reads {
            ensure!(read? == 10, "every read returned");
        }
        Ok(())
    };
    test().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn readers_that_are_killed_leave_nothing_open() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        let mounted = Mounted::start("readers-killed")?;
        let instance = filled(&mounted, "killed", marks())?;
        for round in 0..30_u64 {
            let readers: Vec<_> = (0..3)
                .map(|_| Command::new("cat").arg(instance.join("trace")).stdout(Stdio::null()).spawn())
                .collect::<Result<_, _>>()?;
            std::thread::sleep(Duration::from_millis(round % 6));
            for mut reader in readers {
                reader.kill()?;
                reader.wait()?;
            }
        }
        // A file that still counts as open would prevent the removal of the instance.
        let since = Instant::now();
        while let Err(error) = std::fs::remove_dir(&instance) {
            ensure!(since.elapsed() < Duration::from_secs(5), "the instance stays: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        ensure!(text(mounted.dir(), "tracing_on")? == "1\n", "the daemon answers");
        Ok(())
    };
    test().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn long_texts_delay_nobody() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        let mounted = Mounted::start("readers-long")?;
        let instance = filled(&mounted, "long", marks())?;
        let length = whole(&instance, "trace")?.len() as u64;
        let mut readers = Vec::new();
        for _ in 0..8 {
            let path = instance.join("trace");
            readers.push(std::thread::spawn(move || -> std::io::Result<usize> {
                let (mut reads, mut last) = (0, [0; 64]);
                for _ in 0..20 {
                    // The mirror must render all lines before this offset for a few bytes.
                    reads += File::open(&path)?.read_at(&mut last, length - 64)?.min(1);
                }
                Ok(reads)
            }));
        }
        let mut longest = Duration::ZERO;
        let mut looks = 0;
        while readers.iter().any(|reader| !reader.is_finished()) {
            let since = Instant::now();
            ensure!(text(mounted.dir(), "tracing_on")? == "1\n", "the daemon answers");
            longest = longest.max(since.elapsed());
            looks += 1;
        }
        for reader in readers {
            ensure!(reader.join().expect("no panic")? == 20, "every read returned its bytes");
        }
        eprintln!("{looks} other requests meanwhile, {longest:?} at most");
        // A request that waits for the readers takes longer than this; `./x bench --only delays` measures it.
        let limit = host::patience(Duration::from_secs(10));
        ensure!(looks > 20 && longest < limit, "{looks} requests, {longest:?} at most");
        Ok(())
    };
    test().unwrap_or_else(|error| panic!("{error:#}"));
}
