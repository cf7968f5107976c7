//! A program that holds the lock of its own address space for writing, for tests: whoever wants that lock waits until a file system
//! answers.
//!
//! `tracer-test-stuck HELD MAPPED`: maps the file MAPPED, calls getpgid(2) a few times and says `ready`. At a line on its standard
//! input it begins to hold the lock, and says `stuck` a moment before. HELD is a file of [`tracer_tests::held`].
//!
//! A thread reads HELD, which locks the first page of its cache until the read is answered. Another maps the file by a descriptor
//! with `O_DIRECT`: FUSE throws the cache away first, for which it wants that page, and mmap(2) has the address space locked. What
//! is mapped there before is locked as well, as it is to be replaced: kernels from 6.17 on read `maps` without the lock of all.

use std::{
    fs::File,
    io::{BufRead, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::ExitCode,
    ptr::{null_mut, slice_from_raw_parts},
    time::Duration,
};

use rustix::{
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous},
    process::{getpgid, getpid},
};

const PAGE: usize = 4096;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let (Some(held), Some(mapped)) = (words.next(), words.next()) else { return ExitCode::FAILURE };
    match hold(Path::new(&held), Path::new(&mapped)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn said(text: &str) {
    println!("{text}");
    let _ = std::io::stdout().flush();
}

#[expect(unsafe_code, reason = "memory is mapped, over nothing that is in use")]
fn hold(held: &Path, mapped: &Path) -> std::io::Result<()> {
    let program = File::open(mapped)?;
    let length = usize::try_from(program.metadata()?.len()).unwrap_or(PAGE);
    let private = MapFlags::PRIVATE;
    // SAFETY: A new mapping.
    let code = unsafe { mmap(null_mut(), length, ProtFlags::READ, private, &program, 0)? };
    // SAFETY: A new mapping.
    let place = unsafe { mmap_anonymous(null_mut(), PAGE, ProtFlags::READ, private)? };
    std::hint::black_box(slice_from_raw_parts(code.cast::<u8>(), length));
    for _ in 0..3 {
        getpgid(Some(getpid()))?;
    }
    said("ready");
    let (plain, direct) =
        (File::open(held)?, File::options().read(true).custom_flags(libc::O_DIRECT).open(held)?);
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = rustix::io::pread(&plain, &mut [0_u8; 1], 0);
        });
        std::thread::sleep(Duration::from_millis(200));
        said("stuck");
        // SAFETY: Over a mapping of our own that nothing is in.
        let done = unsafe { mmap(place, PAGE, ProtFlags::READ, private | MapFlags::FIXED, &direct, 0) };
        done.map(drop)?;
        Ok(())
    })
}
