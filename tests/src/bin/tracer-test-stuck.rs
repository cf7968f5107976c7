//! A test program that holds the lock of its own address space for writing until a file system answers.
//!
//! `tracer-test-stuck HELD MAPPED` maps the file MAPPED, calls getpgid(2) a few times and prints `ready`. When a line
//! arrives on its standard input, it prints `stuck` and then takes the lock. HELD is a file of
//! [`tracer_tests::blocked_fs`].
//!
//! One thread reads HELD, which locks the first page of its page cache until the read is answered. Another thread
//! maps HELD with `O_DIRECT`: FUSE invalidates the page cache first and waits for that page, while mmap(2) holds the
//! lock of the address space. The new mapping replaces an existing one, so its VMA is locked as well: kernels from
//! 6.17 on read `maps` without the lock of the address space.
//!
//! `tracer-test-stuck dirty HELD` writes to a shared mapping of HELD, prints `ready`, and waits until its standard input
//! is closed. The kernel writes the page back when it tears down the address space.

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
    let done =
        if held == "dirty" { dirty(Path::new(&mapped)) } else { hold(Path::new(&held), Path::new(&mapped)) };
    match done {
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

#[expect(unsafe_code, reason = "memory is mapped, and this program alone writes to it")]
fn dirty(held: &Path) -> std::io::Result<()> {
    let file = File::options().read(true).write(true).open(held)?;
    // SAFETY: The kernel chooses the address of the new mapping, so it overlaps nothing.
    let page =
        unsafe { mmap(null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)? };
    // SAFETY: The mapping has this byte, and nothing else uses it.
    unsafe { page.cast::<u8>().write_volatile(1) };
    said("ready");
    std::io::stdin().lock().read_line(&mut String::new()).map(drop)
}

#[expect(unsafe_code, reason = "memory is mapped, over nothing that is in use")]
fn hold(held: &Path, mapped: &Path) -> std::io::Result<()> {
    // The name that filters know, also where this program was executed by a descriptor.
    rustix::thread::set_name(c"tracer-test-stu")?;
    let program = File::open(mapped)?;
    let length = usize::try_from(program.metadata()?.len()).unwrap_or(PAGE);
    let private = MapFlags::PRIVATE;
    // SAFETY: The kernel chooses the address of the new mapping, so it overlaps nothing.
    let code = unsafe { mmap(null_mut(), length, ProtFlags::READ, private, &program, 0)? };
    // SAFETY: The kernel chooses the address of the new mapping, so it overlaps nothing.
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
        // SAFETY: It replaces this program's own mapping, which holds no data.
        let done = unsafe { mmap(place, PAGE, ProtFlags::READ, private | MapFlags::FIXED, &direct, 0) };
        done.map(drop)?;
        Ok(())
    })
}
