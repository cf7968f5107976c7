//! An address space of a client, accessed through descriptors that are bound to it.
//!
//! `/proc/TID/mem` is opened first: the descriptor stays bound to the address space that the thread had at that time.
//! `auxv` is opened last. A thread's address space is only ever replaced by a new one, so if `auxv` belongs to the
//! old program, so does each descriptor opened before. Two runs of one program at the same addresses have the same
//! `auxv`. They differ in the 16 random bytes that `AT_RANDOM` points to. The kernel writes these before it publishes
//! `auxv`, and they are read through the descriptor. `auxv` and the random bytes are the identity of an address
//! space. A child process has its parent's identity until it executes another program.
//!
//! `/proc/PID/mem` writes even where the process itself may not (`FOLL_FORCE`). So every access is checked against
//! the mappings of the same address space first, as the kernel's own `pin_user_pages_remote()` does.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Seek},
    os::unix::fs::FileExt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::io::Errno;

use super::message::{Bit, Look, Op, Seen, Text};
use crate::{
    kernel::{ThreadStatus, proc::syscall::CurrentSyscall},
    lang::user::COMMAND_MAX,
    sys::{
        memory::procmap::{Mapping, mapping_at},
        process::privileges::CapabilitySet,
    },
};

/// Maximum size of `auxv` in bytes; the kernel has less than 1,024.
const AUXV_MAX: u64 = 2048;
/// `AT_RANDOM`, and the number of random bytes.
const AT_RANDOM: u64 = 25;
const RANDOM_BYTES: usize = 16;
/// Maximum number of mappings to search if the kernel cannot look one up; `vm.max_map_count` allows 65,530.
const MAPPINGS_MAX: usize = 1 << 16;
/// `CAP_SYS_ADMIN` and `CAP_PERFMON`, include/uapi/linux/capability.h.
const CAPABLE: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::PERFMON);
/// Number of tries, and the time between them, for a caller to fall asleep after its request, on a busy machine.
const ASLEEP_TRIES: u32 = 4000;
const ASLEEP_APART: Duration = Duration::from_micros(500);

#[derive(Debug)]
pub(super) struct Space {
    mem: File,
    maps: Mutex<File>,
    random_at: u64,
    identity: Vec<u8>,
    /// Set once the address space is no longer needed; cancels its writes.
    pub(super) forgotten: AtomicBool,
}

fn errno(error: &std::io::Error) -> Errno {
    match Errno::from_io_error(error) {
        // The error for a process of another user.
        Some(Errno::ACCESS) => Errno::PERM,
        Some(errno) => errno,
        None => Errno::IO,
    }
}

/// The address of the random bytes, from an auxiliary vector.
fn random_bytes_at(auxv: &[u8]) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().map(usize::from_ne_bytes).ok();
    let entries = auxv.chunks_exact(2 * size_of::<usize>());
    entries.into_iter().find_map(|entry| {
        let (key, value) = entry.split_at(size_of::<usize>());
        (word(key)? as u64 == AT_RANDOM).then(|| word(value)).flatten().map(|at| at as u64)
    })
}

impl Space {
    pub(super) fn open(thread: u32) -> Result<Self, Errno> {
        let open = |name: &str| File::open(format!("/proc/{thread}/{name}")).map_err(|error| errno(&error));
        let mem = File::options().read(true).write(true).open(format!("/proc/{thread}/mem"));
        let mem = mem.map_err(|error| errno(&error))?;
        let maps = Mutex::new(open("maps")?);
        let mut identity = Vec::new();
        open("auxv")?.take(AUXV_MAX).read_to_end(&mut identity).map_err(|error| errno(&error))?;
        let random_at = random_bytes_at(&identity).ok_or(Errno::SRCH)?;
        let mut random = [0; RANDOM_BYTES];
        mem.read_exact_at(&mut random, random_at).map_err(|_| Errno::SRCH)?;
        identity.extend(random);
        Ok(Self { mem, maps, random_at, identity, forgotten: AtomicBool::new(false) })
    }

    /// Its identity: `auxv` and the random bytes of `AT_RANDOM`.
    pub(super) fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Whether a process still uses it.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.mem.read_at(&mut [0], self.random_at), Ok(0))
    }

    /// The mapping at an address; `EFAULT` if there is none.
    fn mapping(&self, at: u64) -> Result<Mapping, Errno> {
        let maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        match mapping_at(&*maps, at) {
            Ok(mapping) => Ok(mapping),
            Err(Errno::NOTTY | Errno::INVAL) => listed(&maps, at),
            Err(Errno::SRCH) => Err(Errno::SRCH),
            Err(_) => Err(Errno::FAULT),
        }
    }

    /// The number of bytes at an address, at most `length`, that the process itself may read, or write if `writes`.
    fn reach(&self, at: u64, length: usize, writes: bool) -> Result<usize, Errno> {
        let end = at.checked_add(length as u64).ok_or(Errno::FAULT)?;
        let mut upto = at;
        while upto < end {
            match self.mapping(upto) {
                Ok(mapping) if mapping.end <= upto => break,
                Ok(mapping) if (if writes { mapping.writable } else { mapping.readable }) => {
                    upto = mapping.end.min(end);
                }
                Err(Errno::SRCH) => return Err(Errno::SRCH),
                _ => break,
            }
        }
        Ok((upto - at) as usize)
    }

    /// Reads from an address up to the first unreadable byte.
    fn read_some(&self, at: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; self.reach(at, length, false)?];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.mem.read_at(rest, at + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(read) => done += read,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Reads all bytes at an address, or fails with `EFAULT`.
    fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let bytes = self.read_some(at, length)?;
        if bytes.len() == length { Ok(bytes) } else { Err(Errno::FAULT) }
    }

    /// Reads a text, without its NUL; `EINVAL` if it is too long.
    fn text(&self, at: u64) -> Result<Vec<u8>, Errno> {
        // The memory after the text may be unmapped.
        let mut text = self.read_some(at, COMMAND_MAX)?;
        match text.iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.truncate(end);
                Ok(text)
            }
            None if text.len() == COMMAND_MAX => Err(Errno::INVAL),
            None => Err(Errno::FAULT),
        }
    }

    /// Writes, unless the write was cancelled.
    fn write(&self, at: u64, bytes: &[u8], cancelled: &AtomicBool) -> Result<(), Errno> {
        if self.reach(at, bytes.len(), true)? < bytes.len() {
            return Err(Errno::FAULT);
        }
        if cancelled.load(Ordering::Acquire) || self.forgotten.load(Ordering::Acquire) {
            return Err(Errno::CANCELED);
        }
        self.mem.write_all_at(bytes, at).map_err(|_| Errno::FAULT)
    }

    /// Writes a bit by reading and writing its byte. A concurrent change of the other bits by the program may be
    /// lost.
    fn put(&self, bit: Bit, cancelled: &AtomicBool) -> Result<(), Errno> {
        let mut byte = [0];
        if self.reach(bit.at, 1, true)? == 0 {
            return Err(Errno::FAULT);
        }
        match self.mem.read_at(&mut byte, bit.at) {
            Ok(1) => {}
            Ok(_) => return Err(Errno::SRCH),
            Err(_) => return Err(Errno::FAULT),
        }
        let new = if bit.on { byte[0] | bit.mask } else { byte[0] & !bit.mask };
        if new == byte[0] { Ok(()) } else { self.write(bit.at, &[new], cancelled) }
    }

    /// Writes the bit of an operation, then its words; only the bit's result counts.
    pub(super) fn run(&self, op: &Op, cancelled: &AtomicBool) -> Result<(), Errno> {
        if let Some(bit) = op.bit {
            self.put(bit, cancelled)?;
        }
        for (at, word) in &op.words {
            // The kernel also ignores the result of this write.
            let _ = self.write(*at, &word.to_ne_bytes(), cancelled);
        }
        Ok(())
    }

    /// Inspects a thread that waits for the answer to its request. `known` is the address space that the thread had
    /// before; the result states whether it is still in use.
    pub(super) fn look(&self, look: &Look, known: Option<&Self>) -> Result<Seen, Errno> {
        let argument = argument(look.thread, look.number, &self.forgotten)?;
        let structure = self.read(argument, usize::from(look.structure));
        let text = match (look.text, &structure) {
            (Text::None, _) => Ok(Vec::new()),
            (Text::Argument, _) => self.text(argument),
            (Text::At(offset), Ok(structure)) => {
                let pointer = structure.get(usize::from(offset)..).and_then(|rest| rest.first_chunk());
                pointer.map_or(Err(Errno::INVAL), |pointer| self.text(u64::from_ne_bytes(*pointer)))
            }
            (Text::At(_), Err(errno)) => Err(*errno),
        };
        let (process, capable) = process_and_capability(look.thread)?;
        let alive = known.is_none_or(Self::is_alive);
        Ok(Seen { process, capable, alive, identity: self.identity.clone(), argument, structure, text })
    }
}

/// The mapping at an address, from the list of all mappings.
fn listed(maps: &File, at: u64) -> Result<Mapping, Errno> {
    let mut maps = maps;
    maps.rewind().map_err(|error| errno(&error))?;
    for line in BufReader::new(maps).split(b'\n').take(MAPPINGS_MAX) {
        // `START-END RIGHTS ...`
        let line = line.map_err(|error| errno(&error))?;
        let head = std::str::from_utf8(line.get(..line.len().min(48)).unwrap_or_default());
        let Some(mapping) = head.ok().and_then(mapping_of) else { return Err(Errno::FAULT) };
        if at < mapping.end {
            return if mapping.start <= at { Ok(mapping) } else { Err(Errno::FAULT) };
        }
    }
    Err(Errno::FAULT)
}

fn mapping_of(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (readable, writable) = (rest.starts_with('r'), rest.as_bytes().get(1) == Some(&b'w'));
    Some(Mapping { start: hex(start)?, end: hex(end)?, readable, writable })
}

/// The argument of the ioctl(2) that a thread is in (proc(5)); `EPERM` if it is in no such call.
fn argument(thread: u32, number: u32, forgotten: &AtomicBool) -> Result<u64, Errno> {
    for _ in 0..ASLEEP_TRIES {
        match CurrentSyscall::of(thread).map_err(|error| errno(&error))? {
            CurrentSyscall::Running if forgotten.load(Ordering::Acquire) => return Err(Errno::CANCELED),
            CurrentSyscall::Running => std::thread::sleep(ASLEEP_APART),
            CurrentSyscall::In(libc::SYS_ioctl, [_file, request, at]) if request as u32 == number => {
                return Ok(at);
            }
            // A thread in another call is not the caller.
            CurrentSyscall::In(..) | CurrentSyscall::Outside => return Err(Errno::PERM),
        }
    }
    Err(Errno::FAULT)
}

/// A thread's process, and whether it may have persistent events: `perfmon_capable()`, checked in this process's user
/// namespace; the kernel checks in the initial one.
fn process_and_capability(thread: u32) -> Result<(u32, bool), Errno> {
    let status = ThreadStatus::read(thread).map_err(|error| errno(&error))?;
    let process = status.process().ok_or(Errno::SRCH)?;
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let capable = status.effective().intersects(CAPABLE)
        && namespace("self").is_some_and(|own| namespace(&thread.to_string()).as_ref() == Some(&own));
    Ok((process, capable))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::start_cat, *};

    fn own() -> Space {
        Space::open(std::process::id()).unwrap()
    }

    fn at<T>(place: &T) -> u64 {
        std::ptr::from_ref(place).expose_provenance() as u64
    }

    #[test]
    fn texts_and_structures_are_read_up_to_unreadable_memory() {
        let space = own();
        let long = Box::new([b'x'; COMMAND_MAX + 1]);
        assert_eq!(space.text(at(&*long)), Err(Errno::INVAL));
        assert_eq!(space.text(at(b"name u32 a\0")), Ok(b"name u32 a".to_vec()));
        assert_eq!(space.text(16), Err(Errno::FAULT));
        assert_eq!(space.read(at(&*long), 3), Ok(b"xxx".to_vec()));
        assert_eq!(space.read(16, 16), Err(Errno::FAULT));
        assert_eq!(space.read(u64::MAX, 16), Err(Errno::FAULT));
        assert!(space.is_alive());
    }

    #[test]
    fn only_memory_that_the_process_may_write_is_written() {
        static CONSTANT: [u8; 8] = [1; 8];
        let (space, wanted) = (own(), AtomicBool::new(false));
        let mut word = Box::new([0_u8; 8]);
        let op = |at, on| Op { space: 1, key: 1, bit: Some(Bit { at, mask: 4, on }), words: Vec::new() };
        let place = word.as_mut_ptr().expose_provenance() as u64;
        let with_word = Op { words: vec![(place + 4, 77)], ..op(place, true) };
        assert_eq!(space.run(&with_word, &wanted), Ok(()));
        assert_eq!(space.read(place, 8), Ok([&[4, 0, 0, 0][..], &77_u32.to_ne_bytes()].concat()));
        assert_eq!(space.run(&op(at(&CONSTANT), true), &wanted), Err(Errno::FAULT));
        assert_eq!(space.run(&op(16, true), &wanted), Err(Errno::FAULT));
        let cancelled = AtomicBool::new(true);
        assert_eq!(space.run(&op(place, false), &cancelled), Err(Errno::CANCELED));
        space.forgotten.store(true, Ordering::Release);
        assert_eq!(space.run(&op(place, false), &wanted), Err(Errno::CANCELED));
        assert_eq!(space.read(place, 1), Ok(vec![4]));
        drop(word);
    }

    #[test]
    fn the_list_of_mappings_agrees_with_the_kernels_query() {
        let space = own();
        let place = Box::new(0_u8);
        let code = the_list_of_mappings_agrees_with_the_kernels_query as fn() as usize as u64;
        for at in [at(&*place), code, 8, u64::MAX] {
            let maps = File::open("/proc/self/maps").unwrap();
            let (asked, listed) = (space.mapping(at), listed(&maps, at));
            // A neighbouring mapping may have grown meanwhile.
            let part = |mapping: Mapping| (mapping.readable, mapping.writable);
            assert_eq!(asked.map(part), listed.map(part), "{at:#x}");
        }
        assert_eq!(mapping_of("nothing"), None);
        assert_eq!(mapping_of("10-20"), None);
    }

    #[test]
    fn a_thread_outside_of_ioctl_is_refused() {
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ended.recv();
        });
        let (task, forgotten) = (receive.recv().unwrap(), AtomicBool::new(false));
        assert_eq!(argument(task, 0xc008_2a00, &forgotten), Err(Errno::PERM));
        assert_eq!(process_and_capability(task).map(|(process, _)| process), Ok(std::process::id()));
        drop(end);
        thread.join().unwrap();
        assert!(argument(task, 0xc008_2a00, &forgotten).is_err());
    }

    #[test]
    fn two_runs_of_one_program_have_different_identities() {
        let run = || start_cat(std::process::Command::new("setarch").args(["-R", "cat"]));
        let Ok(mut first) = run() else { return eprintln!("skipped: setarch: not installed") };
        let mut second = run().unwrap();
        let (one, other) = (Space::open(first.id()).unwrap(), Space::open(second.id()).unwrap());
        let auxv = |space: &Space| space.identity()[..space.identity().len() - RANDOM_BYTES].to_vec();
        assert_eq!(auxv(&one), auxv(&other), "addresses are not random");
        assert_ne!(one.identity(), other.identity());
        assert_eq!(Space::open(first.id()).unwrap().identity(), one.identity());
        drop((first.stdin.take(), second.stdin.take()));
        first.wait().unwrap();
        second.wait().unwrap();
        assert!(!one.is_alive());
        assert!(matches!(one.read(one.random_at, 1), Err(Errno::SRCH | Errno::FAULT)));
    }
}
