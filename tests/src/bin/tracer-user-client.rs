//! A test program with user events: one of many short-lived clients, or a malicious client.

use std::{
    os::fd::AsFd,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    mm::ProtFlags,
    process::{Signal, getpid, kill_process},
};
use tracer_tests::user_events::{DELETE, Data, Page, REGISTER, Tally, UNREGISTER, Word, in_child};

/// Number of event names that the crowd shares.
const NAMES: u64 = 7;
/// Records of each process of the crowd, and of each child.
const RECORDS: u32 = 20;
const RECORDS_OF_CHILD: u32 = 5;
/// First number of the children's records.
const CHILD: u32 = 1000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["crowd", dir, tally, who] => crowd(Path::new(dir), Path::new(tally), who.parse().unwrap_or(0)),
        ["harm", dir, seed, times] => {
            harm(Path::new(dir), seed.parse().unwrap_or(1), times.parse().unwrap_or(0))
        }
        ["forks", dir, addresses, forks] => {
            fork_often(Path::new(dir), addresses.parse().unwrap_or(0), forks.parse().unwrap_or(0))
        }
        ["touch", file, offset, delay] => {
            touch(Path::new(file), offset.parse().unwrap_or(0), delay.parse().unwrap_or(0))
        }
        _ => Err(anyhow!(
            "tracer-user-client crowd DIR TALLY WHO | harm DIR SEED TIMES | forks DIR ADDRESSES FORKS | \
                  touch FILE OFFSET MILLISECONDS"
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

/// Maps a page of a file privately and touches it after a delay.
fn touch(file: &Path, offset: u64, delay: u64) -> anyhow::Result<()> {
    let file = std::fs::File::open(file)?;
    let page = Page::part(&file, offset).map_err(std::io::Error::from_raw_os_error)?;
    println!("mapped");
    std::thread::sleep(std::time::Duration::from_millis(delay));
    println!("{}", page.bit(0));
    Ok(())
}

/// Registers at this many addresses, then forks children that do nothing: at least this many, and until standard input
/// ends.
fn fork_often(dir: &Path, addresses: u64, forks: u64) -> anyhow::Result<()> {
    let failed = |what: &'static str| {
        move |error: i32| anyhow!("{what}: {}", std::io::Error::from_raw_os_error(error))
    };
    let data = Data::open(dir)?;
    let page = Page::new(ProtFlags::READ | ProtFlags::WRITE).map_err(failed("memory"))?;
    for number in 0..addresses {
        let address = page.address() + number / 32 * 4;
        data.register_at("forked u32 a", address, (number % 32) as u8, 4, 0).map_err(failed("register"))?;
    }
    println!("registered");
    let mut forked = 0;
    while forked < forks || !has_ended(&std::io::stdin())? {
        in_child(|| 0).map_err(failed("fork"))?;
        forked += 1;
    }
    println!("forked {forked}");
    // The mirror still updates the enable bits.
    let seen = page.bit(0);
    let end = Instant::now() + Duration::from_secs(60);
    while page.bit(0) == seen || page.bit(addresses as u32 - 1) == seen {
        if Instant::now() > end {
            bail!("its bit is not updated any more");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Whether the writers of a pipe have closed it.
fn has_ended(pipe: &impl AsFd) -> anyhow::Result<bool> {
    let mut polled = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default()))?;
    Ok(polled[0].revents().contains(PollFlags::HUP))
}

/// One process of the crowd. It registers an event that other processes register too, writes records, stores the
/// number of accepted records, and ends in one of three ways.
fn crowd(dir: &Path, tally: &Path, who: u64) -> anyhow::Result<()> {
    let failed = |what: &'static str| {
        move |error: i32| anyhow!("{what}: {}", std::io::Error::from_raw_os_error(error))
    };
    let tally = Tally::open(tally)?;
    let data = Data::open(dir)?;
    let (word, bit) = (Word::default(), (who % 32) as u8);
    let command = format!("crowd_{} u32 who; u32 number", who % NAMES);
    let index = data.register(&command, &word, bit, 0).map_err(failed("register"))?;
    if word.get() != 1 << bit {
        bail!("an event that is on, and a word of {:#x}", word.get());
    }
    let record = |number: u32| [(who as u32).to_ne_bytes(), number.to_ne_bytes()].concat();
    for number in 0..RECORDS {
        data.write(index, &record(number)).map_err(failed("write"))?;
        tally.set(who, u64::from(number) + 1)?;
    }
    if who % 2 == 1 {
        let code = in_child(|| {
            let all = (0..RECORDS_OF_CHILD).all(|number| data.write(index, &record(CHILD + number)).is_ok());
            // The child inherits its parent's registration and can unregister its own copy.
            i32::from(!all)
                + 2 * i32::from(data.unregister(&word, bit).is_err())
                + 4 * i32::from(word.get() != 0)
        })
        .map_err(failed("fork"))?;
        if code != 0 || word.get() != 1 << bit {
            bail!("a child that left {code}, and a word of {:#x}", word.get());
        }
    }
    match who % 3 {
        0 => {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        1 => {
            data.unregister(&word, bit).map_err(failed("unregister"))?;
            if word.get() != 0 {
                bail!("an unexpected write of {:#x} to a word", word.get());
            }
        }
        _ => {}
    }
    Ok(())
}

/// A generator of pseudo-random numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Sends invalid requests and records.
fn harm(dir: &Path, seed: u64, times: u64) -> anyhow::Result<()> {
    let failed = |error: i32| anyhow!("memory: {}", std::io::Error::from_raw_os_error(error));
    let data = Data::open(dir)?;
    let mut numbers = Numbers(seed | 1);
    let good = Page::new(ProtFlags::READ | ProtFlags::WRITE).map_err(failed)?;
    let read_only = Page::new(ProtFlags::READ).map_err(failed)?;
    let none = Page::new(ProtFlags::empty()).map_err(failed)?;
    // A mapping of a mirror's file, whose page faults the mirror itself answers.
    let mirrored = std::fs::File::open(dir.join("README"))?;
    let mirrored = Page::of(&mirrored).map_err(failed)?;
    let places = [
        good.address(),
        good.address() + 64,
        good.address() + 4092,
        good.address() + 4090,
        read_only.address(),
        none.address(),
        mirrored.address(),
        0,
        1,
        0x7fff_ffff_f000,
        0xffff_8000_0000_0000,
        u64::MAX,
        u64::MAX - 7,
    ];
    let commands: [&[u8]; 14] = [
        b"harm u32 n\0",
        b"harm u32 other\0",
        b"victim u32 n\0",
        b"victim\0",
        b"\0",
        b" \0",
        b"../x u8 a\0",
        b"harm_b struct s x 2000000000\0",
        b"harm_c __rel_loc char[] s; __data_loc char[] t\0",
        b"harm_d:flags u8 a\0",
        b"harm_e char[1024] a;char[1024] b;char[1024] c;char[1024] d;char[1024] e\0",
        b"\xff\xfe\0",
        b"harm_f u8 \x01;u8 %s%n;u8 \0",
        &[b'x'; 600],
    ];
    let end = Instant::now() + Duration::from_secs(60);
    for _ in 0..times {
        if Instant::now() > end {
            break;
        }
        match numbers.below(8) {
            0..=2 => {
                let mut structure = [0; 40];
                let size =
                    numbers.of(&[28, 28, 28, 28, 20, 0, 19, 21, 27, 29, 40, 4096, 4097, u64::from(u32::MAX)]);
                structure[..4].copy_from_slice(&(size as u32).to_ne_bytes());
                let (bit, width) =
                    (numbers.of(&[0, 3, 31, 32, 63, 64, 255]), numbers.of(&[4, 4, 4, 8, 0, 1, 255]));
                (structure[4], structure[5]) = (bit, width);
                structure[6] = numbers.of(&[0, 0, 0, 1, 2, 3, 4, 128]);
                let text = numbers.of(&commands);
                good.put(1024, text);
                let name = numbers.of(&[
                    good.address() + 1024,
                    good.address() + 1024,
                    good.address() + 1024,
                    numbers_place(&places, seed),
                ]);
                let address = numbers.of(&places);
                structure[8..16].copy_from_slice(&address.to_ne_bytes());
                structure[16..24].copy_from_slice(&name.to_ne_bytes());
                if size == 20 {
                    structure[4..12].copy_from_slice(&name.to_ne_bytes());
                    structure[12..].fill(0);
                }
                if numbers.below(10) == 0 {
                    structure[28] = 1;
                }
                good.put(2048, &structure);
                let at = numbers.of(&[
                    good.address() + 2048,
                    good.address() + 2048,
                    good.address() + 2048,
                    numbers_place(&places, seed >> 3),
                ]);
                let _ = data.ioctl(REGISTER, at);
            }
            3 => {
                let mut structure = [0; 16];
                structure[0] = numbers.of(&[16, 16, 16, 8, 255]);
                structure[4] = numbers.of(&[0, 3, 31, 63]);
                structure[8..].copy_from_slice(&numbers.of(&places).to_ne_bytes());
                good.put(2048, &structure);
                let _ = data.ioctl(UNREGISTER, good.address() + 2048);
            }
            4 => {
                good.put(1024, numbers.of(&[&b"harm\0"[..], b"victim\0", b"harm_c\0", b"nobody\0"]));
                let at =
                    numbers.of(&[good.address() + 1024, good.address() + 1024, none.address(), u64::MAX]);
                let _ = data.ioctl(DELETE, at);
            }
            5 => {
                let request = numbers.of(&[0, 1, 0x5401, REGISTER + 1, DELETE | 1 << 31, u32::MAX]);
                let _ = data.ioctl(request, numbers.of(&places));
            }
            _ => {
                let length = numbers.of(&[0, 1, 3, 4, 5, 8, 12, 100, 4000, 5000, 9000, 70_000]);
                let mut bytes: Vec<u8> = (0..length).map(|_| numbers.next() as u8).collect();
                if bytes.len() >= 4 && numbers.below(8) > 0 {
                    bytes[..4].copy_from_slice(&(numbers.below(6) as u32).to_ne_bytes());
                }
                let _ = data.write_raw(&bytes);
            }
        }
    }
    Ok(())
}

fn numbers_place(places: &[u64], seed: u64) -> u64 {
    places[(seed % places.len() as u64) as usize]
}
