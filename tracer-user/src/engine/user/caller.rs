//! Requests to `user_events_data` by ioctl(2), whose arguments lie in the caller's memory.
//!
//! FUSE hands on the first eight bytes of them, and not where they lie; so the caller, who waits for the answer, is looked at as a
//! debugger would: the system call that it is in, and its memory ([`client_memory`](crate::engine::client_memory)). It cannot leave
//! the call before it has its answer, even when it is killed, so that its number is nobody else's. All of that may take as long as
//! somebody else pleases, so nobody waits for it: a request goes on when there is news of it, and is refused at its deadline.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    register::{Layout, Registration},
    spaces::{Asking, Placed},
};
use crate::engine::{
    Engine,
    client_memory::{ClientMemory, Look, Op, Seen, Text},
};

/// Bytes of a structure at most.
const STRUCTURE_MAX: u32 = 4096;
/// Bytes of the structures of both ages: `size`, `name_args`, `status_bit` and `write_index`, packed; or `size`, `enable_bit`,
/// `enable_size`, `flags`, `enable_addr`, `name_args` and `write_index`. And of `struct user_unreg`: `size`, `disable_bit`, two that
/// are reserved, `disable_addr`.
const OLD: usize = 20;
const NEW: usize = 28;
const UNREGISTER: usize = 16;
/// `USER_EVENT_REG_PERSIST` and `USER_EVENT_REG_MULTI_FORMAT`.
const PERSIST: u16 = 1;
const MULTI_FORMAT: u16 = 1 << 1;
/// How long an answer may take; and where the caller's memory is known not to answer.
const PATIENCE: Duration = Duration::from_secs(4);
const PATIENCE_OF_STUCK: Duration = Duration::from_secs(1);

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
    /// Its user.
    pub uid: u32,
    /// The file.
    pub file: u64,
    /// The number of the request.
    pub number: u32,
    /// The first bytes of what it is about.
    pub head: [u8; 8],
}

/// Something to be done with the mirror.
pub(super) type Act = Box<dyn FnOnce(&mut Engine) + Send>;
/// Has it done by whoever owns the mirror, some time later; drops it where everything ends.
pub type Access = Arc<dyn Fn(Act) + Send + Sync>;
/// Takes what a request comes to.
pub type Answer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// What is left to be written before a request is answered, and what undoes it.
#[derive(Debug)]
enum Last {
    /// A registration's bit and index, taken back if they cannot be written.
    Enable { placed: Placed, address: u64, bit: u8 },
    /// A bit that is not used any more.
    Clear(Placed),
    /// What the first interface gives back, whether it can be written or not.
    Words(Op),
}

impl Caller {
    /// Does what is asked for, and answers then.
    pub fn serve(self, request: Request, access: &Access, answer: Answer) {
        let (structure, text) = match self.parts(request) {
            Ok(parts) => parts,
            Err(errno) => return answer(Err(errno)),
        };
        let then = Arc::clone(access);
        access(Box::new(move |mirror| {
            mirror.user_learn();
            let known = mirror.user.spaces.known(self.task);
            let Some(memory) = mirror.user.spaces.memory().cloned() else { return answer(Err(Errno::NOMEM)) };
            let patience = if known.is_some_and(|(_, stuck)| stuck) { PATIENCE_OF_STUCK } else { PATIENCE };
            let deadline = Instant::now() + patience;
            let look = Look {
                thread: self.task,
                uid: self.uid,
                number: self.number,
                known: known.map_or(0, |(space, _)| space),
                structure,
                text,
            };
            let its = memory.clone();
            let then = move |id, seen: Result<Seen, Errno>| match seen {
                Ok(seen) => {
                    let access = Arc::clone(&then);
                    then(Box::new(move |mirror| {
                        self.go_on(request, mirror, &its, (id, &seen), deadline, access, answer);
                    }));
                }
                Err(errno) => {
                    its.forget(id);
                    answer(Err(errno));
                }
            };
            memory.look(look, deadline, Box::new(then));
        }));
    }

    /// What a request comes to in the mirror with what was seen of its caller, where nothing can be written: for tests.
    ///
    /// # Errors
    /// As the request's.
    #[cfg(any(test, feature = "internals"))]
    pub fn try_on(self, mirror: &mut Engine, seen: &Seen) -> Result<(), Errno> {
        let request = Request::of(self.number).ok_or(Errno::NOTTY)?;
        self.parts(request)?;
        let asking = Asking { task: self.task, uid: self.uid, look: 0, seen };
        mirror.user.spaces.meet(asking);
        self.apply(request, mirror, asking).map(drop)
    }

    /// What of the caller's memory a request is about: bytes of a structure that says its size itself, and where a text lies.
    fn parts(&self, request: Request) -> Result<(u16, Text), Errno> {
        let size = u32::from_ne_bytes([self.head[0], self.head[1], self.head[2], self.head[3]]);
        let known = match request {
            Request::Delete => return Ok((0, Text::Argument)),
            Request::Register if size as usize == OLD => OLD,
            Request::Register => NEW,
            Request::Unregister => UNREGISTER,
        };
        if size > STRUCTURE_MAX {
            return Err(Errno::TOOBIG);
        }
        if (size as usize) < known {
            return Err(Errno::INVAL);
        }
        let text = match known {
            OLD => Text::At(4),
            NEW => Text::At(16),
            _ => Text::None,
        };
        Ok((size as u16, text))
    }

    /// Goes on with what was seen.
    #[expect(clippy::too_many_arguments, reason = "what a request has, once, and where it goes on")]
    fn go_on(
        self,
        request: Request,
        mirror: &mut Engine,
        memory: &ClientMemory,
        (id, seen): (u64, &Seen),
        deadline: Instant,
        access: Access,
        answer: Answer,
    ) {
        mirror.user_learn();
        let asking = Asking { task: self.task, uid: self.uid, look: id, seen };
        mirror.user.spaces.meet(asking);
        let last = self.apply(request, mirror, asking);
        if !(mirror.user.spaces.has_space(id) || matches!(last, Ok(Some(Last::Words(_))))) {
            memory.forget(id);
        }
        match last {
            // By the mirror's owner, so that what is written follows the order of what happened.
            Ok(Some(last)) => self.write(last, memory, deadline, access, answer),
            Ok(None) => answer(Ok(())),
            Err(errno) => answer(Err(errno)),
        }
    }

    /// Writes what is left to be written, and answers then.
    fn write(self, last: Last, memory: &ClientMemory, deadline: Instant, access: Access, answer: Answer) {
        match last {
            Last::Enable { placed, address, bit } => {
                let (space, key) = (placed.op.space, placed.op.key);
                let then =
                    move |done: Result<(), Errno>| {
                        if done.is_err() {
                            access(Box::new(move |mirror| {
                                mirror.user.spaces.withdraw(space, address, bit, key);
                            }));
                        }
                        // As the kernel has it, where it cannot write (`user_events_ioctl_reg()`).
                        answer(done.map_err(|errno| {
                            if errno == Errno::TIMEDOUT { Errno::FAULT } else { Errno::NOMEM }
                        }));
                    };
                memory.request(placed.lane, placed.op, deadline, Box::new(then));
            }
            Last::Clear(placed) => {
                let then = move |done: Result<(), Errno>| answer(done.map_err(|_| Errno::FAULT));
                memory.request(placed.lane, placed.op, deadline, Box::new(then));
            }
            Last::Words(op) => {
                let (lane, its, space) = (memory.lane(self.uid), memory.clone(), op.space);
                let then = move |_| {
                    its.forget(space);
                    answer(Ok(()));
                };
                memory.request(lane, op, deadline, Box::new(then));
                memory.close_lane(lane);
            }
        }
    }

    /// Does what is asked for in the mirror; what is left to be written.
    fn apply(
        &self,
        request: Request,
        mirror: &mut Engine,
        asking: Asking<'_>,
    ) -> Result<Option<Last>, Errno> {
        match request {
            Request::Register => self.register(mirror, asking).map(Some),
            Request::Delete => {
                let name = asking.seen.text.as_ref().map_err(|errno| *errno)?;
                mirror.user_delete(name, asking.seen.capable).map(|()| None)
            }
            Request::Unregister => {
                let words = structure(asking.seen, UNREGISTER)?;
                let &[_, _, _, _, bit, 0, 0, 0, ..] = words else { return Err(Errno::INVAL) };
                let address = long(words, 8);
                mirror.user_forget(self.task, address, bit).map(|placed| Some(Last::Clear(placed)))
            }
        }
    }

    fn register(&self, mirror: &mut Engine, asking: Asking<'_>) -> Result<Last, Errno> {
        let seen = asking.seen;
        let text = || seen.text.as_ref().map_err(|errno| *errno);
        if seen.structure.as_ref().is_ok_and(|bytes| bytes.len() == OLD) {
            let kind = Registration { persists: false, multi: false };
            let done = mirror.user_register(
                (self.file, self.uid),
                text()?,
                Layout::StatusPage,
                kind,
                seen.capable,
            )?;
            let words = vec![
                (seen.argument.wrapping_add(12), done.bit),
                (seen.argument.wrapping_add(16), done.index),
            ];
            return Ok(Last::Words(Op { space: asking.look, key: 0, bit: None, words }));
        }
        let words = structure(seen, NEW)?;
        let &[_, _, _, _, bit, size, first, second, ..] = words else { return Err(Errno::INVAL) };
        let (flags, address) = (u16::from_ne_bytes([first, second]), long(words, 8));
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
        if mirror.user.spaces.has(self.task, address, bit) {
            return Err(Errno::ADDRINUSE);
        }
        let kind = Registration { persists: flags & PERSIST != 0, multi: flags & MULTI_FORMAT != 0 };
        let done =
            mirror.user_register((self.file, self.uid), text()?, Layout::Address, kind, seen.capable)?;
        let mut placed = mirror.user_ask(asking, &done, address, bit)?;
        placed.op.words = vec![(seen.argument.wrapping_add(24), done.index)];
        Ok(Last::Enable { placed, address, bit })
    }
}

/// As much of a structure as is known, if what follows is zeroes (`copy_struct_from_user()`).
fn structure(seen: &Seen, known: usize) -> Result<&[u8], Errno> {
    let bytes = seen.structure.as_ref().map_err(|errno| *errno)?;
    let (bytes, rest) = bytes.split_at_checked(known).ok_or(Errno::FAULT)?;
    if rest.iter().any(|byte| *byte != 0) { Err(Errno::TOOBIG) } else { Ok(bytes) }
}

/// The eight bytes at a place of a structure that has them.
fn long(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..).and_then(|rest| rest.first_chunk());
    eight.map_or(0, |eight| u64::from_ne_bytes(*eight))
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
    fn structures_say_how_long_they_are() {
        let caller = |size: u32| {
            let mut head = [0; 8];
            head[..4].copy_from_slice(&size.to_ne_bytes());
            Caller { task: 1, uid: 0, file: 1, number: 0, head }
        };
        let parts = |size, request| caller(size).parts(request);
        assert_eq!(parts(20, Request::Register), Ok((20, Text::At(4))));
        assert_eq!(parts(28, Request::Register), Ok((28, Text::At(16))));
        assert_eq!(parts(4096, Request::Register), Ok((4096, Text::At(16))));
        assert_eq!(parts(4097, Request::Register), Err(Errno::TOOBIG));
        assert_eq!(parts(27, Request::Register), Err(Errno::INVAL));
        assert_eq!(parts(16, Request::Unregister), Ok((16, Text::None)));
        assert_eq!(parts(15, Request::Unregister), Err(Errno::INVAL));
        assert_eq!(parts(u32::MAX, Request::Delete), Ok((0, Text::Argument)));
    }

    #[test]
    fn what_follows_a_structure_must_be_zeroes() {
        let mut seen = Seen {
            process: 1,
            capable: false,
            alive: true,
            identity: Vec::new(),
            argument: 0,
            structure: Ok(vec![1; 20]),
            text: Ok(Vec::new()),
        };
        assert_eq!(structure(&seen, 20), Ok(&[1; 20][..]));
        assert_eq!(structure(&seen, 16), Err(Errno::TOOBIG));
        assert_eq!(structure(&seen, 28), Err(Errno::FAULT));
        seen.structure = Ok([vec![1; 16], vec![0; 9]].concat());
        assert_eq!(structure(&seen, 16), Ok(&[1; 16][..]));
        seen.structure = Err(Errno::FAULT);
        assert_eq!(structure(&seen, 16), Err(Errno::FAULT));
        assert_eq!((long(&[1, 0, 0, 0, 0, 0, 0, 0], 0), long(&[1; 8], 1)), (1, 0));
    }
}
