//! Requests to `user_events_data` by ioctl(2), whose arguments lie in the caller's memory.
//!
//! FUSE hands on the first eight bytes of them, and not where they lie; so the caller, who waits for the answer, is looked at
//! as a debugger would: the system call that it is in, and its memory. It cannot leave the call before it has its answer, even
//! when it is killed, so that its number is nobody else's. Reading may wait for somebody (memory may be another file
//! system's): whoever calls [`Caller::serve`] must have the time, and nothing else in hand.

use std::time::Duration;

use rustix::io::Errno;

use super::{
    super::mirror::Mirror,
    register::{Layout, Registered, Registration},
    spaces::place,
};
use crate::{lang::user::COMMAND_MAX, sys::memory};

/// Bytes of a structure at most.
const STRUCTURE_MAX: u32 = 4096;
/// `CAP_SYS_ADMIN` and `CAP_PERFMON`, include/uapi/linux/capability.h.
const CAPABLE: u64 = 1 << 21 | 1 << 38;
/// `USER_EVENT_REG_PERSIST` and `USER_EVENT_REG_MULTI_FORMAT`.
const PERSIST: u16 = 1;
const MULTI_FORMAT: u16 = 1 << 1;
/// How long a caller may take from asking to sleeping, on a machine that has other things to do.
const ASLEEP_TRIES: u32 = 4000;
const ASLEEP_APART: Duration = Duration::from_micros(500);

/// What is asked for, by the number of the request (include/uapi/linux/user_events.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `DIAG_IOCSREG`
    Register,
    /// `DIAG_IOCSDEL`
    Delete,
    /// `DIAG_IOCSUNREG`
    Unregister,
}

impl Request {
    /// The request of a number: direction, eight bytes, `*`, and which.
    pub fn of(number: u32) -> Option<Self> {
        match number {
            0xc008_2a00 => Some(Self::Register),
            0x4008_2a01 => Some(Self::Delete),
            0x4008_2a02 => Some(Self::Unregister),
            _ => None,
        }
    }
}

/// A thread that waits for the answer to a request.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its id.
    pub task: u32,
    /// The file.
    pub file: u64,
    /// The number of the request.
    pub number: u32,
    /// The first bytes of what it is about.
    pub head: [u8; 8],
}

/// Gives the mirror to a function; false when nobody wants the answer any more, and the function was not run.
pub type With<'a> = &'a dyn Fn(&mut dyn FnMut(&mut Mirror)) -> bool;

/// What a function makes of the mirror.
fn ask<T>(with: With<'_>, mut act: impl FnMut(&mut Mirror) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut done = Err(Errno::FAULT);
    with(&mut |mirror| done = act(mirror));
    done
}

impl Caller {
    /// Does what is asked for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn serve(&self, request: Request, with: With<'_>) -> Result<(), Errno> {
        let at = self.argument()?;
        match request {
            Request::Register => self.register(at, with),
            Request::Delete => {
                let name = self.text(at)?;
                let capable = self.is_capable();
                ask(with, |mirror| mirror.user_delete(&name, capable))
            }
            Request::Unregister => self.unregister(at, with),
        }
    }

    /// The argument of the call that the thread is in (proc(5)).
    fn argument(&self) -> Result<u64, Errno> {
        for _ in 0..ASLEEP_TRIES {
            let text = std::fs::read_to_string(format!("/proc/{}/syscall", self.task));
            let text = text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PERM))?;
            if text.starts_with("running") {
                std::thread::sleep(ASLEEP_APART);
                continue;
            }
            let mut words = text.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<i64>().ok());
            let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
            let (_file, request, at) = (hex(), hex(), hex());
            // Whoever is in another call is no caller of ours.
            return match (number, request, at) {
                (Some(libc::SYS_ioctl), Some(request), Some(at)) if request as u32 == self.number => Ok(at),
                _ => Err(Errno::PERM),
            };
        }
        Err(Errno::FAULT)
    }

    /// Memory of the caller's, all or none.
    fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        match memory::read(self.task, at, &mut bytes) {
            Ok(read) if read == length => Ok(bytes),
            Ok(_) => Err(Errno::FAULT),
            Err(errno) => Err(errno),
        }
    }

    /// A text, without its NUL: `EINVAL` for one that is too long.
    fn text(&self, at: u64) -> Result<Vec<u8>, Errno> {
        let mut text = vec![0; COMMAND_MAX];
        // What lies behind the text may be nobody's.
        let read = memory::read(self.task, at, &mut text)?;
        match text[..read].iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.truncate(end);
                Ok(text)
            }
            None if read == COMMAND_MAX => Err(Errno::INVAL),
            None => Err(Errno::FAULT),
        }
    }

    /// A structure that says its size itself: so much of it as is known, if what follows is zeroes (`copy_struct_from_user()`).
    fn structure(&self, at: u64, known: usize) -> Result<Vec<u8>, Errno> {
        let size = self.size();
        if size > STRUCTURE_MAX {
            return Err(Errno::TOOBIG);
        }
        if (size as usize) < known {
            return Err(Errno::INVAL);
        }
        let mut bytes = self.read(at, size as usize)?;
        if bytes[known..].iter().any(|byte| *byte != 0) {
            return Err(Errno::TOOBIG);
        }
        bytes.truncate(known);
        Ok(bytes)
    }

    fn size(&self) -> u32 {
        u32::from_ne_bytes([self.head[0], self.head[1], self.head[2], self.head[3]])
    }

    fn register(&self, at: u64, with: With<'_>) -> Result<(), Errno> {
        // `size`, `name_args`, `status_bit` and `write_index`, packed; or `size`, `enable_bit`, `enable_size`, `flags`,
        // `enable_addr`, `name_args` and `write_index`.
        const OLD: usize = 20;
        const NEW: usize = 28;
        if self.size() as usize == OLD {
            let words = self.structure(at, OLD)?;
            let text = self.text(long(&words, 4))?;
            let kind = Registration { persists: false, multi: false };
            let done =
                ask(with, |mirror| mirror.user_register(self.file, &text, Layout::StatusPage, kind, true))?;
            // As the kernel, which does not mind whether this succeeds.
            let _ = memory::write(self.task, at + 12, &done.bit.to_ne_bytes());
            let _ = memory::write(self.task, at + 16, &done.index.to_ne_bytes());
            return Ok(());
        }
        let words = self.structure(at, NEW)?;
        let (bit, size, flags) = (words[4], words[5], u16::from_ne_bytes([words[6], words[7]]));
        let (address, name) = (long(&words, 8), long(&words, 16));
        if flags & !(PERSIST | MULTI_FORMAT) != 0
            || !matches!(size, 4 | 8)
            || !address.is_multiple_of(u64::from(size))
            || bit > size * 8 - 1
        {
            return Err(Errno::INVAL);
        }
        // The kernel's half of the address space.
        if address.cast_signed() < 0 {
            return Err(Errno::FAULT);
        }
        let asked = ask(with, |mirror| Ok(mirror.user_has_asked(self.task, address, bit)))?;
        if asked {
            return Err(Errno::ADDRINUSE);
        }
        let text = self.text(name)?;
        let kind = Registration { persists: flags & PERSIST != 0, multi: flags & MULTI_FORMAT != 0 };
        let capable = !kind.persists || self.is_capable();
        let done: Registered =
            ask(with, |mirror| mirror.user_register(self.file, &text, Layout::Address, kind, capable))?;
        // As the kernel has it, where it cannot write (`user_events_ioctl_reg()`).
        self.put(address, bit, done.on).map_err(|_| Errno::NOMEM)?;
        ask(with, |mirror| mirror.user_ask(self.task, &done, address, bit))?;
        let _ = memory::write(self.task, at + 24, &done.index.to_ne_bytes());
        Ok(())
    }

    fn unregister(&self, at: u64, with: With<'_>) -> Result<(), Errno> {
        // `size`, `disable_bit`, two that are reserved, `disable_addr`.
        let words = self.structure(at, 16)?;
        let (bit, reserved, address) = (words[4], &words[5..8], long(&words, 8));
        if reserved != [0; 3] {
            return Err(Errno::INVAL);
        }
        let memory = ask(with, |mirror| mirror.user_forget(self.task, address, bit))?;
        let _taken = memory.take();
        self.put(address, bit, false)
    }

    /// Writes a bit into the caller's memory.
    fn put(&self, address: u64, bit: u8, on: bool) -> Result<(), Errno> {
        let (at, mask) = place(address, bit);
        let byte = self.read(at, 1)?[0];
        let byte = if on { byte | mask } else { byte & !mask };
        memory::write(self.task, at, &[byte]).map(drop)
    }

    /// Whether the caller may have events that persist: `perfmon_capable()`, which asks in the first user namespace; here in ours.
    fn is_capable(&self) -> bool {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
        let own = namespace("self");
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.task)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let has = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        has & CAPABLE != 0 && own.is_some() && own == namespace(&self.task.to_string())
    }
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_numbers() {
        let pointer = 8;
        let number =
            |direction: u32, which: u32| direction << 30 | pointer << 16 | u32::from(b'*') << 8 | which;
        assert_eq!(Request::of(number(3, 0)), Some(Request::Register));
        assert_eq!(Request::of(number(1, 1)), Some(Request::Delete));
        assert_eq!(Request::of(number(1, 2)), Some(Request::Unregister));
        assert_eq!(Request::of(number(3, 1)), None);
    }

    #[test]
    fn who_does_not_wait_is_no_caller() {
        let own = std::process::id();
        let caller = Caller { task: own, file: 1, number: 0xc008_2a00, head: [0; 8] };
        // A thread that sleeps in another call; our own first one may run.
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = ended.recv();
        });
        let caller = Caller { task: receive.recv().unwrap(), ..caller };
        assert_eq!(caller.argument(), Err(Errno::PERM));
        drop(end);
        thread.join().unwrap();
        assert!(caller.argument().is_err());
    }

    #[test]
    fn texts_and_structures_are_read_as_far_as_they_are() {
        let own = std::process::id();
        let at = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64;
        let caller = Caller { task: own, file: 1, number: 0, head: [16, 0, 0, 0, 0, 0, 0, 0] };
        let long = [b'x'; COMMAND_MAX + 1];
        assert_eq!(caller.text(at(&long)), Err(Errno::INVAL));
        assert_eq!(caller.text(at(b"name u32 a\0")), Ok(b"name u32 a".to_vec()));
        assert_eq!(caller.text(16), Err(Errno::FAULT));
        let mut structure = [0; 20];
        structure[3] = 7;
        assert_eq!(caller.structure(at(&structure), 16).map(|bytes| bytes[3]), Ok(7));
        assert_eq!(caller.structure(at(&structure), 17), Err(Errno::INVAL));
        assert_eq!(caller.structure(at(&structure), 3), Err(Errno::TOOBIG));
        let huge = Caller { head: [1, 16, 0, 0, 0, 0, 0, 0], ..caller };
        assert_eq!(huge.structure(at(&structure), 16), Err(Errno::TOOBIG));
        assert_eq!(caller.structure(16, 16), Err(Errno::FAULT));
    }
}
