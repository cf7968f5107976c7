//! The guard: a second process that also holds the descriptors of many perf tracepoints, in case this process is
//! killed.
//!
//! The kernel closes a dead process's descriptors one by one, and for each perf tracepoint it waits for all CPUs twice.
//! A killed tracer with all events on therefore stays for minutes. If the guard holds the descriptors too, the kernel
//! has nothing to close when the tracer ends. The guard then closes links in parallel and events one by one, and pauses
//! while other tracers enable events. While the tracer lives, the guard sleeps.
//!
//! Messages on the socket to the guard begin with a byte that says what they ask ([`Message`]). Numbers follow. The
//! guard answers with one byte once it has released descriptors. Only then this process closes its own: so the guard
//! never closes the last descriptor of a link or event, which takes the kernel long, and a link that was closed has no
//! effect any more. If the guard does not answer in time, this process closes the socket, and the guard ends. Slots
//! whose links it may still hold stay in use.
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
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, Shutdown, recv, recvmsg, send, sendmsg, shutdown,
    },
    time::Timespec,
};

use super::{links::close_links, opening::close};
use crate::sys::Errno;

/// Descriptors per message; the kernel takes up to 253 (`SCM_MAX_FD`).
const BATCH: usize = 128;
/// Numbers per message.
const NUMBERS: usize = 4096;
/// Bit that a link's number has in addition to its event's number.
const LINK: u32 = 1 << 31;
/// Up to this many events are closed in this process. Closing more takes longer than starting another process or
/// passing the events to one.
pub const INLINE_CLOSE_MAX: usize = 16;
/// Up to this many events are detached by a daemon that ends, at some 2 ms each. More are left to the guard.
pub const DETACH_MAX: usize = 256;
/// How long the guard may take to release its descriptors.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a message asks the guard to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Message {
    /// To hold as many descriptors as there are numbers.
    Hold = b'h',
    /// To release the descriptors of these numbers, and to answer.
    Release = b'r',
    /// To release all descriptors, and to answer.
    ReleaseAll = b'a',
}

impl Message {
    const ALL: [Self; 3] = [Self::Hold, Self::Release, Self::ReleaseAll];

    fn bytes(self, numbers: impl Iterator<Item = u32>) -> Vec<u8> {
        std::iter::once(self as u8).chain(numbers.flat_map(u32::to_ne_bytes)).collect()
    }

    fn read(bytes: &[u8]) -> Option<(Self, impl Iterator<Item = u32>)> {
        let (kind, numbers) = bytes.split_first()?;
        let kind = Self::ALL.into_iter().find(|known| *known as u8 == *kind)?;
        Some((kind, numbers.as_chunks().0.iter().map(|number| u32::from_ne_bytes(*number))))
    }
}

/// The socket to the guard process.
#[derive(Debug)]
pub struct Guard {
    socket: OwnedFd,
    next: AtomicU32,
    /// Number of events that the guard holds.
    held: AtomicUsize,
    /// Whether it takes no messages any more. It may still hold descriptors: a process closes its socket first when it
    /// ends.
    gone: AtomicBool,
    dismissed: AtomicBool,
    left: AtomicBool,
    /// Held from a request to its answer.
    request: Mutex<()>,
    patience: Duration,
}

/// The guard holds an event's descriptors until this is dropped. Drop it before this process's descriptors of the
/// event.
#[derive(Debug)]
pub(crate) struct HeldDescriptors {
    guard: Arc<Guard>,
    number: u32,
    /// Whether it also holds the link.
    has_link: bool,
}

impl Guard {
    /// Takes a socket of sequenced packets; the process at its other end calls [`hold`].
    pub fn new(socket: OwnedFd) -> Self {
        Self::with_patience(socket, PATIENCE)
    }

    fn with_patience(socket: OwnedFd, patience: Duration) -> Self {
        Self {
            socket,
            next: AtomicU32::new(0),
            held: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            patience,
            dismissed: AtomicBool::new(false),
            left: AtomicBool::new(false),
            request: Mutex::new(()),
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
            self.end(errno);
        }
        sent.is_ok().then_some(())
    }

    /// Ends the guard, which then closes what it holds.
    fn end(&self, errno: Errno) {
        tracing::warn!("no other process closes the events if this one is killed: {errno}");
        self.gone.store(true, Ordering::Relaxed);
        // Fails if the guard has ended.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    fn hold(&self, numbered: &[(u32, BorrowedFd<'_>)]) -> Option<()> {
        self.await_room()?;
        self.is_sent(send_held(&self.socket, numbered))
    }

    /// Waits until the socket takes a message. It takes none if the guard has read none for a while.
    fn await_room(&self) -> Option<()> {
        let is_ready = self.poll(PollFlags::OUT);
        self.is_sent(if is_ready { Ok(0) } else { Err(Errno::TIMEDOUT) })
    }

    /// Waits with the guard's patience. Returns whether the socket is ready, or broken.
    fn poll(&self, flags: PollFlags) -> bool {
        let timeout = Timespec::try_from(self.patience).ok();
        poll(&mut [PollFd::new(&self.socket, flags)], timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Makes the guard release all descriptors, and waits for that. Afterwards this process closes the last reference
    /// to each.
    pub fn dismiss(&self) {
        if self.request(&Message::ReleaseAll.bytes(std::iter::empty())) {
            self.dismissed.store(true, Ordering::Relaxed);
        }
    }

    /// Makes the guard release the descriptors of these numbers, and waits for that. Returns true only if the guard has
    /// answered.
    fn release(&self, numbers: &[u32]) -> bool {
        if self.dismissed.load(Ordering::Relaxed) {
            return true;
        }
        if self.left.load(Ordering::Relaxed) {
            return false;
        }
        numbers.chunks(NUMBERS).all(|part| self.request(&Message::Release.bytes(part.iter().copied())))
    }

    /// Sends a request and waits for the answer. Returns whether the guard answered.
    fn request(&self, bytes: &[u8]) -> bool {
        let _held = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_gone()
            || self.await_room().is_none()
            || self.is_sent(send(&self.socket, bytes, SendFlags::NOSIGNAL)).is_none()
        {
            return false;
        }
        self.poll(PollFlags::IN);
        match recv(&self.socket, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok((1, _)) => return true,
            Ok(_) => self.end(Errno::PIPE),
            Err(errno) => self.end(errno),
        }
        false
    }

    /// Passes detached perf events to the guard, which closes them when this end of the socket is closed. Returns the
    /// events if the guard did not take them.
    pub fn hand_over(&self, events: Vec<OwnedFd>) -> Vec<OwnedFd> {
        let numbered: Vec<(u32, BorrowedFd<'_>)> =
            events.iter().map(|event| (self.next(), event.as_fd())).collect();
        let taken = !self.is_gone() && numbered.chunks(BATCH).all(|part| self.hold(part).is_some());
        if taken { Vec::new() } else { events }
    }
}

impl HeldDescriptors {
    fn new(guard: &Arc<Guard>, number: u32) -> Self {
        guard.held.fetch_add(1, Ordering::Relaxed);
        Self { guard: Arc::clone(guard), number, has_link: true }
    }

    /// For the event alone, after [`release_links`]. A new link is passed to the guard like that of a new event.
    pub(crate) fn without_link(mut self) -> Self {
        self.has_link = false;
        self
    }

    pub(crate) fn has_link(&self) -> bool {
        self.has_link
    }

    /// Whether the guard closes the event ([`Guard::leave`]).
    pub(crate) fn is_left(&self) -> bool {
        self.guard.left.load(Ordering::Relaxed) && !self.guard.is_gone()
    }

    /// Whether the guard closes the event and its link.
    pub(crate) fn is_left_with_link(&self) -> bool {
        self.has_link && self.is_left()
    }
}

impl Drop for HeldDescriptors {
    fn drop(&mut self) {
        self.guard.held.fetch_sub(1, Ordering::Relaxed);
        self.guard.release(&[self.number, self.number | LINK]);
    }
}

/// Makes the guards release the links of these events, and waits for that. They hold the events until the
/// [`HeldDescriptors`] are dropped. Returns whether no guard holds one of the links any more.
pub(crate) fn release_links<'a>(held: impl Iterator<Item = &'a HeldDescriptors>) -> bool {
    let mut numbers: Vec<(&Guard, Vec<u32>)> = Vec::new();
    for HeldDescriptors { guard, number, .. } in held {
        let link = number | LINK;
        match numbers.iter_mut().find(|(other, _)| std::ptr::eq(*other, &raw const **guard)) {
            Some((_, numbers)) => numbers.push(link),
            None => numbers.push((guard, vec![link])),
        }
    }
    numbers.into_iter().fold(true, |is_released, (guard, numbers)| guard.release(&numbers) && is_released)
}

/// The descriptors of an attached event that the guard process can hold.
pub(crate) struct Unguarded<'a> {
    pub link: BorrowedFd<'a>,
    pub event: BorrowedFd<'a>,
    /// What the guard holds of them.
    pub held: &'a mut Option<HeldDescriptors>,
}

/// Passes the descriptors of these events to the guard, except those that it already holds.
pub(crate) fn guard<'a>(guard: &Arc<Guard>, events: impl Iterator<Item = Unguarded<'a>>) {
    if guard.is_gone() {
        return;
    }
    let is_new = |event: &Unguarded<'_>| event.held.as_ref().is_none_or(|held| !held.has_link);
    let number =
        |event: Unguarded<'a>| (event.held.as_ref().map_or_else(|| guard.next(), |held| held.number), event);
    let mut new: Vec<(u32, Unguarded<'a>)> = events.filter(is_new).map(number).collect();
    for part in new.chunks_mut(BATCH / 2) {
        let numbered: Vec<(u32, BorrowedFd<'_>)> = part
            .iter()
            .flat_map(|(number, Unguarded { link, event, held })| {
                let event = held.is_none().then_some((*number, *event));
                event.into_iter().chain([(*number | LINK, *link)])
            })
            .collect();
        if guard.hold(&numbered).is_none() {
            return;
        }
        for (number, Unguarded { held, .. }) in part {
            held.get_or_insert_with(|| HeldDescriptors::new(guard, *number)).has_link = true;
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
    numbered.chunks(BATCH).try_for_each(|part| send_held(socket, part).map(drop))
}

fn send_held(socket: &OwnedFd, numbered: &[(u32, BorrowedFd<'_>)]) -> Result<usize, Errno> {
    let numbers = Message::Hold.bytes(numbered.iter().map(|(number, _)| *number));
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
    close_links(links);
    close(events.into_iter().map(|(_, event)| event));
    Ok(())
}

/// Receives until the end of the socket. Returns the descriptors to close.
fn receive(socket: BorrowedFd<'_>) -> Result<HashMap<u32, OwnedFd>, Errno> {
    let mut held = HashMap::new();
    let mut bytes = vec![0; 1 + 4 * NUMBERS];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut message = RecvAncillaryBuffer::new(&mut space);
        let came = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut message, RecvFlags::CMSG_CLOEXEC);
        let came = match came {
            Err(Errno::INTR) => continue,
            came => came?.bytes,
        };
        let Some((kind, numbers)) = Message::read(bytes.get(..came).unwrap_or_default()) else {
            return Ok(held);
        };
        match kind {
            Message::Hold => {
                let rights = message.drain().filter_map(|part| match part {
                    RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                    _ => None,
                });
                held.extend(numbers.zip(rights.flatten()));
            }
            Message::Release => {
                for number in numbers {
                    held.remove(&number);
                }
                answer(socket);
            }
            Message::ReleaseAll => {
                held.clear();
                answer(socket);
            }
        }
    }
}

/// Answers a request. Fails if the other side ended, which then waits for no answer.
fn answer(socket: BorrowedFd<'_>) {
    let _ = send(socket, b"\n", SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// A guard, and the thread that receives in place of its process. It returns the descriptors that are left.
    fn start() -> (Arc<Guard>, JoinHandle<HashMap<u32, OwnedFd>>) {
        let (ours, theirs) = pair();
        (Arc::new(Guard::new(ours)), std::thread::spawn(move || receive(theirs.as_fd()).unwrap()))
    }

    /// Whether all write ends of a pipe are closed.
    fn is_closed(read: &OwnedFd) -> bool {
        let mut polled = [PollFd::new(read, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
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
        let (guard, receiver) = start();
        let (_read, sent) = pipes(3);
        let numbered: Vec<_> = [0, LINK, 1].into_iter().zip(sent.iter().map(AsFd::as_fd)).collect();
        guard.hold(&numbered).unwrap();
        drop(HeldDescriptors::new(&guard, 0));
        drop(guard);
        assert_eq!(receiver.join().unwrap().into_keys().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_guard_has_released_a_link_when_it_answers() {
        let (guard, receiver) = start();
        let ((event, event_sent), (link, link_sent)) = (pipes(1), pipes(1));
        guard.hold(&[(5, event_sent[0].as_fd()), (5 | LINK, link_sent[0].as_fd())]).unwrap();
        drop((event_sent, link_sent));
        let held = HeldDescriptors::new(&guard, 5);
        assert!(release_links([&held].into_iter()));
        assert!(is_closed(&link) && !is_closed(&event));
        drop(held);
        assert!(is_closed(&event));
        drop(guard);
        assert!(receiver.join().unwrap().is_empty());
    }

    #[test]
    fn an_event_that_is_used_again_stays_held() {
        let (us, receiver) = start();
        let ((event, event_sent), (old, old_sent), (new, new_sent)) = (pipes(1), pipes(1), pipes(1));
        let mut held = None;
        let pass = |link: &[OwnedFd], held: &mut Option<HeldDescriptors>| {
            let [link, event] = [link, &event_sent].map(|sent| sent[0].as_fd());
            guard(&us, std::iter::once(Unguarded { link, event, held }));
        };
        pass(&old_sent, &mut held);
        assert!(release_links(held.iter()) && us.held() == 1);
        held = held.map(HeldDescriptors::without_link);
        pass(&new_sent, &mut held);
        // It has both, which are not passed again.
        pass(&new_sent, &mut held);
        assert_eq!(us.held(), 1);
        drop((event_sent, old_sent, new_sent));
        // The answer to a request comes after what was passed before.
        assert!(us.request(&Message::Release.bytes(std::iter::empty())));
        assert_eq!([&event, &old, &new].map(is_closed), [false, true, false]);
        drop(held);
        assert_eq!([&event, &new].map(is_closed), [true, true]);
        drop(us);
        assert!(receiver.join().unwrap().is_empty());
    }

    #[test]
    fn a_guard_that_reads_nothing_holds_nobody_up() {
        let (ours, _theirs) = pair();
        let (_read, sent) = pipes(1);
        let guard = Guard::with_patience(ours, Duration::from_millis(1));
        let taken = (0..100_000).take_while(|_| guard.hold(&[(0, sent[0].as_fd())]).is_some()).count();
        assert!(taken > 0 && guard.is_gone(), "{taken}");
    }

    #[test]
    fn a_guard_that_does_not_answer_ends() {
        let (ours, theirs) = pair();
        let (read, sent) = pipes(2);
        let guard = Arc::new(Guard::with_patience(ours, Duration::from_millis(1)));
        guard.hold(&[(0, sent[0].as_fd()), (LINK, sent[1].as_fd())]).unwrap();
        let held = [HeldDescriptors::new(&guard, 0), HeldDescriptors::new(&guard, 1)];
        assert!(!release_links(held.iter()) && guard.is_gone());
        // Nothing is sent any more. When it goes on, it does what it was asked, and finds the end of the socket.
        assert!(!release_links(held.iter()) && guard.hold(&[(2, sent[0].as_fd())]).is_none());
        drop((held, sent));
        let left = receive(theirs.as_fd()).unwrap();
        assert_eq!(left.keys().collect::<Vec<_>>(), [&0]);
        drop(left);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
        // The descriptors of a guard that ended may be open for a moment.
        let (ours, theirs) = pair();
        let guard = Arc::new(Guard::new(ours));
        let held = HeldDescriptors::new(&guard, 0);
        drop(theirs);
        assert!(!release_links([&held].into_iter()) && guard.is_gone());
    }

    #[test]
    fn what_is_left_stays_held_until_the_end() {
        let (guard, receiver) = start();
        let (read, mut sent) = pipes(4);
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
        let (guard, receiver) = start();
        let (read, sent) = pipes(1);
        guard.hold(&[(0, sent[0].as_fd())]).unwrap();
        guard.dismiss();
        assert!(!guard.is_gone());
        drop(sent);
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
        // From here on the guard closes the events that it gets, and drops of [`HeldDescriptors`] have no effect.
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
