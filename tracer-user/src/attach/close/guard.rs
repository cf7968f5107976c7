//! The guard: a second process that also holds the descriptors of many perf tracepoints, in case this process is
//! killed.
//!
//! The kernel closes a dead process's descriptors one by one, and for each perf tracepoint it waits for all CPUs twice.
//! A killed tracer with all events on therefore stays for minutes. If the guard holds the descriptors too, the kernel
//! has nothing to close when the tracer ends. The guard then closes links in parallel and events one by one, and pauses
//! while other tracers enable events. While the tracer lives, the guard sleeps.
//!
//! Messages on the socket between the two processes:
//!
//! - Numbers with as many descriptors: the guard holds the descriptors.
//! - Numbers alone: the guard releases their descriptors.
//! - One byte: the guard releases all descriptors and answers with one byte.
//!
//! The end of the socket means that the other process has ended.
//!
//! A daemon starts the guard before it drops its privileges, because it can start no process later. At its own end it
//! leaves many descriptors to the guard ([`Guard::leave`]), or passes its events to the guard ([`Guard::hand_over`]).

use std::{
    collections::HashMap,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recv, recvmsg, send, sendmsg,
    },
    time::Timespec,
};

use super::opening::{close, close_links};
use crate::sys::Errno;

/// Descriptors per message; the kernel takes up to 253 (`SCM_MAX_FD`).
const BATCH: usize = 128;
/// Bit that a link's number has in addition to its event's number.
const LINK: u32 = 1 << 31;
/// Up to this many events are closed in this process. Closing more takes longer than starting another process or
/// passing the events to one.
pub const INLINE_CLOSE_MAX: usize = 16;
/// Up to this many events are detached by a daemon that ends, at some 2 ms each. More are left to the guard.
pub const DETACH_MAX: usize = 256;
/// How long the guard may take to release its descriptors.
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket to the guard process.
#[derive(Debug)]
pub struct Guard {
    socket: OwnedFd,
    next: AtomicU32,
    /// Number of events that the guard holds.
    held: AtomicUsize,
    gone: AtomicBool,
    dismissed: AtomicBool,
    left: AtomicBool,
}

/// The guard holds an event's descriptors until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldDescriptors {
    guard: Arc<Guard>,
    number: u32,
}

impl Guard {
    /// Takes a socket of sequenced packets; the process at its other end calls [`hold`].
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            next: AtomicU32::new(0),
            held: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            dismissed: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    fn next(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed) & !LINK
    }

    /// Number of events that the guard process holds.
    pub fn held(&self) -> usize {
        if self.is_gone() { 0 } else { self.held.load(Ordering::Relaxed) }
    }

    /// Leaves the held descriptors to the guard. It closes them after this process has ended, including those that
    /// this process has closed. Releasing many at the end would take this process minutes.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Whether the guard process has ended or does not answer.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn is_sent(&self, sent: Result<usize, Errno>) -> Option<()> {
        if let Err(errno) = sent {
            tracing::warn!("nobody closes events if this process is killed: {errno}");
            self.gone.store(true, Ordering::Relaxed);
        }
        sent.is_ok().then_some(())
    }

    fn hold(&self, numbered: &[(u32, BorrowedFd<'_>)]) -> Option<()> {
        self.is_sent(send_held(&self.socket, numbered))
    }

    /// Makes the guard release all descriptors, and waits for that. Afterwards this process closes the last reference
    /// to each.
    pub fn dismiss(&self) {
        if self.is_gone() || self.is_sent(send(&self.socket, b"\n", SendFlags::NOSIGNAL)).is_none() {
            return;
        }
        self.dismissed.store(true, Ordering::Relaxed);
        let timeout = Timespec::try_from(PATIENCE).ok();
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref());
        let answered = recv(&self.socket, &mut [0; 1], RecvFlags::DONTWAIT);
        if !matches!(answered, Ok((1, _))) {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Passes detached perf events to the guard, which closes them when this end of the socket is closed. Returns the
    /// events if the guard did not take them.
    pub fn hand_over(&self, events: Vec<OwnedFd>) -> Vec<OwnedFd> {
        let numbered: Vec<(u32, BorrowedFd<'_>)> =
            events.iter().map(|event| (self.next(), event.as_fd())).collect();
        let taken = !self.is_gone() && self.is_sent(send_all(&self.socket, &numbered).map(|()| 0)).is_some();
        if taken { Vec::new() } else { events }
    }
}

impl HeldDescriptors {
    fn new(guard: &Arc<Guard>, number: u32) -> Self {
        guard.held.fetch_add(1, Ordering::Relaxed);
        Self { guard: Arc::clone(guard), number }
    }

    /// Whether the guard closes the descriptors ([`Guard::leave`]).
    pub(crate) fn is_left(&self) -> bool {
        self.guard.left.load(Ordering::Relaxed) && !self.guard.is_gone()
    }
}

impl Drop for HeldDescriptors {
    fn drop(&mut self) {
        self.guard.held.fetch_sub(1, Ordering::Relaxed);
        if !self.guard.is_gone() && !self.guard.dismissed.load(Ordering::Relaxed) && !self.is_left() {
            let numbers = [self.number, self.number | LINK].map(u32::to_ne_bytes).concat();
            self.guard.is_sent(send(&self.guard.socket, &numbers, SendFlags::NOSIGNAL));
        }
    }
}

/// An attached event whose descriptors the guard process can hold.
pub(crate) trait Guarded {
    /// Its link and perf event, if the guard process can hold them and does not hold them yet.
    fn unguarded(&self) -> Option<[BorrowedFd<'_>; 2]>;

    /// Records that the guard process holds the descriptors now.
    fn set_held(&mut self, by: HeldDescriptors);
}

/// Passes the descriptors of these events to the guard, except those that it already holds.
pub(crate) fn guard<'a, T: Guarded + 'a>(guard: &Arc<Guard>, events: impl Iterator<Item = &'a mut T>) {
    let mut new: Vec<(u32, &mut T)> =
        events.filter(|event| event.unguarded().is_some()).map(|event| (guard.next(), event)).collect();
    for part in new.chunks_mut(BATCH / 2) {
        let numbered: Vec<(u32, BorrowedFd<'_>)> = part
            .iter()
            .filter_map(|(number, event)| Some((number, event.unguarded()?)))
            .flat_map(|(number, [link, event])| [(*number, event), (*number | LINK, link)])
            .collect();
        if guard.hold(&numbered).is_none() {
            return;
        }
        for (number, event) in part {
            event.set_held(HeldDescriptors::new(guard, *number));
        }
    }
}

/// Passes detached perf events to a process that calls [`hold`]. It closes them once this end of the socket is
/// closed.
///
/// # Errors
/// When the socket's other end is closed.
pub fn hand_over(socket: &OwnedFd, events: &[OwnedFd]) -> Result<(), Errno> {
    let numbered: Vec<(u32, BorrowedFd<'_>)> = (0..).zip(events.iter().map(AsFd::as_fd)).collect();
    send_all(socket, &numbered)
}

fn send_all(socket: &OwnedFd, numbered: &[(u32, BorrowedFd<'_>)]) -> Result<(), Errno> {
    numbered.chunks(BATCH).try_for_each(|part| send_held(socket, part).map(drop))
}

fn send_held(socket: &OwnedFd, numbered: &[(u32, BorrowedFd<'_>)]) -> Result<usize, Errno> {
    let numbers: Vec<u8> = numbered.iter().flat_map(|(number, _)| number.to_ne_bytes()).collect();
    let fds: Vec<BorrowedFd<'_>> = numbered.iter().map(|(_, fd)| *fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(&numbers)], &mut message, SendFlags::NOSIGNAL)
}

/// Runs in the guard process: holds descriptors until the other end of the socket is closed, and then closes them.
///
/// # Errors
/// When reading from the socket fails.
pub fn hold(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let held = receive(socket)?;
    let (links, events): (Vec<_>, Vec<_>) = held.into_iter().partition(|(number, _)| number & LINK != 0);
    close_links(links.into_iter().map(|(_, link)| link).collect());
    close(events.into_iter().map(|(_, event)| event));
    Ok(())
}

/// Receives until the end of the socket. Returns the descriptors to close.
fn receive(socket: BorrowedFd<'_>) -> Result<HashMap<u32, OwnedFd>, Errno> {
    let mut held = HashMap::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut message = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4 * BATCH];
        let came = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut message, RecvFlags::CMSG_CLOEXEC);
        let came = match came {
            Err(Errno::INTR) => continue,
            came => came?.bytes,
        };
        match came {
            0 => return Ok(held),
            1 => {
                held.clear();
                // Fails if the other side ended, which then waits for no answer.
                let _ = send(socket, b"\n", SendFlags::NOSIGNAL);
                continue;
            }
            _ => {}
        }
        let (numbers, _) = bytes.get(..came).unwrap_or_default().as_chunks();
        let mut fds = Vec::new();
        for part in message.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        if fds.is_empty() {
            for number in numbers {
                held.remove(&u32::from_ne_bytes(*number));
            }
        } else {
            held.extend(numbers.iter().map(|number| u32::from_ne_bytes(*number)).zip(fds));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// Clones of a pipe's write end; the read end shows when all are closed.
    fn pipes(count: usize) -> (OwnedFd, Vec<OwnedFd>) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (read, (0..count).map(|_| write.try_clone().unwrap()).collect())
    }

    #[test]
    fn every_descriptor_comes_through_the_socket() {
        let (ours, theirs) = pair();
        let count = 3 * BATCH / 2;
        let (read, sent) = pipes(count);
        let receiver = std::thread::spawn(move || receive(theirs.as_fd()).unwrap());
        hand_over(&ours, &sent).unwrap();
        drop((ours, sent));
        let came = receiver.join().unwrap();
        assert_eq!(came.len(), count);
        // The read end sees the end of the pipe only after all clones are closed.
        drop(came);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
    }

    #[test]
    fn what_is_let_go_is_not_held() {
        let (ours, theirs) = pair();
        let (_read, sent) = pipes(3);
        let receiver = std::thread::spawn(move || receive(theirs.as_fd()).unwrap());
        let guard = Arc::new(Guard::new(ours));
        let numbered: Vec<_> = [0, LINK, 1].into_iter().zip(sent.iter().map(AsFd::as_fd)).collect();
        guard.hold(&numbered).unwrap();
        drop(HeldDescriptors::new(&guard, 0));
        drop(guard);
        assert_eq!(receiver.join().unwrap().into_keys().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_is_left_stays_held_until_the_end() {
        let (ours, theirs) = pair();
        let (read, mut sent) = pipes(4);
        let receiver = std::thread::spawn(move || receive(theirs.as_fd()).unwrap());
        let guard = Arc::new(Guard::new(ours));
        guard.hold(&[(guard.next(), sent[0].as_fd()), (LINK, sent[1].as_fd())]).unwrap();
        let held = HeldDescriptors::new(&guard, 0);
        assert_eq!(guard.held(), 1);
        guard.leave();
        assert!(held.is_left());
        drop(held);
        // Events that are passed afterwards replace no held event.
        assert!(guard.hand_over(sent.split_off(2)).is_empty());
        drop((guard, sent));
        let held = receiver.join().unwrap();
        assert_eq!(held.len(), 4);
        drop(held);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
    }

    #[test]
    fn who_is_dismissed_holds_nothing_and_takes_what_is_to_be_closed() {
        let (ours, theirs) = pair();
        let (read, sent) = pipes(1);
        let receiver = std::thread::spawn(move || receive(theirs.as_fd()).unwrap());
        let guard = Arc::new(Guard::new(ours));
        guard.hold(&[(0, sent[0].as_fd())]).unwrap();
        guard.dismiss();
        assert!(!guard.is_gone());
        drop(sent);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
        // From here on the guard closes the events that it gets, and drops of `Kept` have no effect.
        let (read, sent) = pipes(3);
        drop(HeldDescriptors::new(&guard, 0));
        assert!(guard.hand_over(sent).is_empty());
        drop(guard);
        let held = receiver.join().unwrap();
        assert_eq!(held.len(), 3);
        drop(held);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
    }

    #[test]
    fn who_is_gone_takes_nothing() {
        let (ours, theirs) = pair();
        drop(theirs);
        let guard = Guard::new(ours);
        let (_read, sent) = pipes(2);
        assert_eq!(guard.hand_over(sent).len(), 2);
        assert!(guard.is_gone());
        guard.dismiss();
    }
}
