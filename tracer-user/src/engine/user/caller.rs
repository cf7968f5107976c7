//! Requests to `user_events_data` by ioctl(2), whose arguments are in the caller's memory.
//!
//! FUSE passes on the first eight bytes of the argument, but not its address. The caller waits for the answer, so its
//! system call and memory are inspected as a debugger would do it ([`client_memory`](crate::engine::client_memory)).
//! The caller cannot leave the call before it has its answer, even if it is killed, so its thread id is not reused.
//! The inspection can take as long as the client wants. No thread therefore waits for it: a request continues when
//! the inspection reports, and is refused at its deadline.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    UserChange,
    register::{Layout, Registered, Registration},
    spaces::{BitWrite, Requester},
};
use crate::engine::{
    Engine,
    client_memory::{ClientMemory, Look, Op, Seen, Text},
};

/// Maximum size of a structure in bytes.
const STRUCTURE_MAX: u32 = 4096;
/// Sizes in bytes of the structures. The old `struct user_reg` has `size`, `name_args`, `status_bit` and
/// `write_index`, packed. The new one has `size`, `enable_bit`, `enable_size`, `flags`, `enable_addr`, `name_args`
/// and `write_index`. `struct user_unreg` has `size`, `disable_bit`, two reserved fields and `disable_addr`.
const OLD: usize = 20;
const NEW: usize = 28;
const UNREGISTER: usize = 16;
/// `USER_EVENT_REG_PERSIST` and `USER_EVENT_REG_MULTI_FORMAT`.
const PERSIST: u16 = 1;
const MULTI_FORMAT: u16 = 1 << 1;
/// Deadline of an answer, and the deadline if the caller's memory did not answer before.
const PATIENCE: Duration = Duration::from_secs(4);
const PATIENCE_OF_STUCK: Duration = Duration::from_secs(1);

/// The kinds of request (include/uapi/linux/user_events.h).
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
    /// The request of an ioctl number: direction, size of eight bytes, `*`, and the request's number.
    pub fn of(number: u32) -> Option<Self> {
        match number {
            0xc008_2a00 => Some(Self::Register),
            0x4008_2a01 => Some(Self::Delete),
            0x4008_2a02 => Some(Self::Unregister),
            _ => None,
        }
    }
}

/// A thread that waits for the answer to its request.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Thread id.
    pub task: u32,
    /// The payer of the request.
    pub payer: u32,
    /// The file.
    pub file: u64,
    /// The number of the request.
    pub number: u32,
    /// The first bytes of the argument.
    pub head: [u8; 8],
}

pub(super) type OwnerJob = Box<dyn FnOnce(&mut Engine) + Send>;
/// Queues a job for the owner of the engine. At the daemon's end the job is dropped.
pub type Access = Arc<dyn Fn(OwnerJob) + Send + Sync>;
/// Receives the result of a request.
pub type Answer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// The write that remains before a request is answered, and how to undo the request if it fails.
#[derive(Debug)]
enum PendingWrite {
    /// Writes a registration's bit and index. If that fails, the registration is undone.
    Enable { bit_write: BitWrite, address: u64, bit: u8 },
    /// Clears a bit that is no longer in use.
    Clear(BitWrite),
    /// Writes the results of the first interface. A failure is ignored.
    Words(Op),
}

impl Caller {
    /// Serves the request, then calls `answer`.
    pub fn serve(self, request: Request, access: &Access, answer: Answer) {
        let (structure, text) = match self.parts(request) {
            Ok(parts) => parts,
            Err(errno) => return answer(Err(errno)),
        };
        let then = Arc::clone(access);
        access(Box::new(move |engine| {
            UserChange::of(engine).learn();
            let known = engine.user.spaces.known(self.task);
            let Some(memory) = engine.user.spaces.memory().cloned() else { return answer(Err(Errno::NOMEM)) };
            let patience = if known.is_some_and(|(_, stuck)| stuck) { PATIENCE_OF_STUCK } else { PATIENCE };
            let look = Look {
                thread: self.task,
                payer: self.payer,
                number: self.number,
                known: known.map_or(0, |(space, _)| space),
                structure,
                text,
            };
            let deadline = Instant::now() + patience;
            let (caller, access) = (self, then);
            let pending =
                PendingRequest { caller, request, memory: memory.clone(), deadline, access, answer };
            memory.look(look, deadline, Box::new(move |id, seen| pending.resume(id, seen)));
        }));
    }

    /// Applies a request with an inspection of its caller, without writing to the caller's memory. For tests.
    ///
    /// # Errors
    /// The errors of the request.
    #[cfg(any(test, feature = "internals"))]
    pub fn try_on(self, engine: &mut Engine, seen: &Seen) -> Result<(), Errno> {
        let request = Request::of(self.number).ok_or(Errno::NOTTY)?;
        self.parts(request)?;
        let requester = Requester { task: self.task, payer: self.payer, look: 0, seen };
        engine.user.spaces.identify(requester);
        self.apply(request, engine, requester).map(drop)
    }

    /// The parts of the caller's memory to read: the size of the structure, which states its size itself, and the
    /// location of a text.
    fn parts(&self, request: Request) -> Result<(u16, Text), Errno> {
        let size = u32::from_ne_bytes([self.head[0], self.head[1], self.head[2], self.head[3]]);
        let (known, text) = match request {
            Request::Delete => return Ok((0, Text::Argument)),
            Request::Register if size as usize == OLD => (OLD, Text::At(4)),
            Request::Register => (NEW, Text::At(16)),
            Request::Unregister => (UNREGISTER, Text::None),
        };
        if size > STRUCTURE_MAX {
            return Err(Errno::TOOBIG);
        }
        if (size as usize) < known {
            return Err(Errno::INVAL);
        }
        Ok((size as u16, text))
    }

    /// Applies the request in the engine. Returns the remaining write.
    fn apply(
        &self,
        request: Request,
        engine: &mut Engine,
        requester: Requester<'_>,
    ) -> Result<Option<PendingWrite>, Errno> {
        match request {
            Request::Register => self.register(engine, requester).map(Some),
            Request::Delete => {
                let name = requester.seen.text.as_ref().map_err(|errno| *errno)?;
                UserChange::of(engine).delete(name, requester.payer, requester.seen.capable)?;
                Ok(None)
            }
            Request::Unregister => {
                let words = structure(requester.seen, UNREGISTER)?;
                let &[_, _, _, _, bit, 0, 0, 0, ..] = words else { return Err(Errno::INVAL) };
                let address = long(words, 8);
                Ok(Some(PendingWrite::Clear(UserChange::of(engine).forget(self.task, address, bit)?)))
            }
        }
    }

    fn register(&self, engine: &mut Engine, requester: Requester<'_>) -> Result<PendingWrite, Errno> {
        let seen = requester.seen;
        let register = |engine: &mut Engine, layout, kind| -> Result<Registered, Errno> {
            let text = seen.text.as_ref().map_err(|errno| *errno)?;
            let file = (self.file, self.payer);
            Ok(UserChange::of(engine).register_event(file, text, layout, kind, seen.capable)?)
        };
        if seen.structure.as_ref().is_ok_and(|bytes| bytes.len() == OLD) {
            let done = register(engine, Layout::StatusPage, Registration::default())?;
            let words = vec![
                (seen.argument.wrapping_add(12), done.bit),
                (seen.argument.wrapping_add(16), done.index),
            ];
            return Ok(PendingWrite::Words(Op { space: requester.look, key: 0, bit: None, words }));
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
        // An address in the kernel's half of the address space.
        if address.cast_signed() < 0 {
            return Err(Errno::FAULT);
        }
        if engine.user.spaces.has(self.task, address, bit) {
            return Err(Errno::ADDRINUSE);
        }
        let kind = Registration { persists: flags & PERSIST != 0, multi: flags & MULTI_FORMAT != 0 };
        let done = register(engine, Layout::Address, kind)?;
        let mut bit_write = UserChange::of(engine).register_bit(requester, &done, address, bit)?;
        bit_write.op.words = vec![(seen.argument.wrapping_add(24), done.index)];
        Ok(PendingWrite::Enable { bit_write, address, bit })
    }
}

/// A request whose caller is inspected.
struct PendingRequest {
    caller: Caller,
    request: Request,
    memory: ClientMemory,
    deadline: Instant,
    access: Access,
    answer: Answer,
}

impl PendingRequest {
    /// Continues after the inspection, which has this number.
    fn resume(self, id: u64, seen: Result<Seen, Errno>) {
        let access = Arc::clone(&self.access);
        match seen {
            Ok(seen) => access(Box::new(move |engine| self.apply(engine, id, &seen))),
            Err(errno) => {
                self.memory.forget(id);
                (self.answer)(Err(errno));
            }
        }
    }

    fn apply(self, engine: &mut Engine, id: u64, seen: &Seen) {
        UserChange::of(engine).learn();
        let Caller { task, payer, .. } = self.caller;
        let requester = Requester { task, payer, look: id, seen };
        engine.user.spaces.identify(requester);
        let last = self.caller.apply(self.request, engine, requester);
        if !(engine.user.spaces.has_space(id) || matches!(last, Ok(Some(PendingWrite::Words(_))))) {
            self.memory.forget(id);
        }
        match last {
            // The owner queues the write, so that writes have the order of the requests.
            Ok(Some(last)) => self.write(last),
            Ok(None) => (self.answer)(Ok(())),
            Err(errno) => (self.answer)(Err(errno)),
        }
    }

    /// Performs the remaining write, then answers.
    fn write(self, last: PendingWrite) {
        let Self { caller, memory, deadline, access, answer, .. } = self;
        match last {
            PendingWrite::Enable { bit_write: BitWrite { lane, op }, address, bit } => {
                let (space, key) = (op.space, op.key);
                let then = move |done: Result<(), Errno>| {
                    if done.is_err() {
                        access(Box::new(move |engine| engine.user.spaces.withdraw(space, address, bit, key)));
                    }
                    // The kernel's errors for memory that it cannot write (`user_events_ioctl_reg()`).
                    let error = |errno| if errno == Errno::TIMEDOUT { Errno::FAULT } else { Errno::NOMEM };
                    answer(done.map_err(error));
                };
                memory.request(lane, op, deadline, Box::new(then));
            }
            PendingWrite::Clear(BitWrite { lane, op }) => {
                let then = move |done: Result<(), Errno>| answer(done.map_err(|_| Errno::FAULT));
                memory.request(lane, op, deadline, Box::new(then));
            }
            PendingWrite::Words(op) => {
                let (lane, its, space) = (memory.lane(caller.payer), memory.clone(), op.space);
                let then = move |_| {
                    its.forget(space);
                    answer(Ok(()));
                };
                memory.request(lane, op, deadline, Box::new(then));
                memory.close_lane(lane);
            }
        }
    }
}

/// The known part of a structure, if all bytes after it are zero (`copy_struct_from_user()`).
fn structure(seen: &Seen, known: usize) -> Result<&[u8], Errno> {
    let bytes = seen.structure.as_ref().map_err(|errno| *errno)?;
    let (bytes, rest) = bytes.split_at_checked(known).ok_or(Errno::FAULT)?;
    if rest.iter().any(|byte| *byte != 0) { Err(Errno::TOOBIG) } else { Ok(bytes) }
}

/// The eight bytes at an offset of a structure.
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
    fn structures_state_their_size() {
        let caller = |size: u32| {
            let mut head = [0; 8];
            head[..4].copy_from_slice(&size.to_ne_bytes());
            Caller { task: 1, payer: 0, file: 1, number: 0, head }
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
    fn bytes_after_a_known_structure_must_be_zero() {
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
