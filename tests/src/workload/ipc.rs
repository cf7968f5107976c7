//! Operations on descriptors that wait for each other: pipes, eventfd, epoll, inotify, unix sockets, futexes.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::fs::inotify;
use rustix::pipe::{PipeFlags, SpliceFlags};
use rustix::thread::futex;

use super::provoked::Count::{AtLeast, Exactly};
use super::provoked::{Provoked, at_least, syscalls};
use super::site::Site;

/// One round.
pub(super) fn run(site: &Site) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (other, target) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    rustix::io::write(&writer, b"through a pipe")?;
    rustix::pipe::tee(&reader, &target, 7, SpliceFlags::empty())?;
    rustix::pipe::splice(&reader, None, &target, None, 4, SpliceFlags::empty())?;
    let mut buffer = [0_u8; 32];
    rustix::io::read(&reader, &mut buffer)?;
    rustix::io::readv(&other, &mut [IoSliceMut::new(&mut buffer)])?;
    rustix::io::writev(&writer, &[IoSlice::new(b"a"), IoSlice::new(b"bc")])?;
    rustix::io::fcntl_getfd(&reader)?;

    let counter = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&waiting, &counter, epoll::EventData::new_u64(7), epoll::EventFlags::IN)?;
    rustix::io::write(&counter, &3_u64.to_ne_bytes())?;
    let mut events = Vec::with_capacity(4);
    epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), None)?;
    epoll::delete(&waiting, &counter)?;
    rustix::io::read(&counter, &mut buffer[..8])?;
    let soon = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&soon))?;

    let watcher = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let watch = inotify::add_watch(&watcher, &site.dir, inotify::WatchFlags::CREATE)?;
    std::fs::write(site.dir.join("watched"), b"x")?;
    rustix::io::read(&watcher, &mut [0_u8; 512])?;
    inotify::remove_watch(&watcher, watch)?;
    std::fs::remove_file(site.dir.join("watched"))?;

    let (mut left, mut right) = UnixStream::pair()?;
    left.write_all(b"through a socket")?;
    right.read_exact(&mut buffer[..16])?;
    drop((left, right));
    let address = site.dir.join("socket");
    let bound = UnixDatagram::bind(&address)?;
    let sender = UnixDatagram::unbound()?;
    sender.send_to(b"datagram", &address)?;
    bound.recv(&mut buffer)?;
    std::fs::remove_file(address)?;

    let word = AtomicU32::new(5);
    // The word holds another value, so the call returns at once.
    let _ = futex::wait(&word, futex::Flags::PRIVATE, 4, None);
    futex::wake(&word, futex::Flags::PRIVATE, 1)?;
    let millisecond = futex::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let _ = futex::wait(&word, futex::Flags::PRIVATE, 5, Some(&millisecond));
    std::thread::sleep(Duration::from_micros(200));
    Ok(())
}

/// The events that [`run`] provokes.
pub(super) fn events() -> Vec<Provoked> {
    let mut events = syscalls(&[
        ("pipe2", Exactly(2)),
        ("tee", Exactly(1)),
        ("splice", Exactly(1)),
        ("readv", Exactly(1)),
        ("writev", Exactly(1)),
        ("eventfd2", Exactly(1)),
        ("epoll_create1", Exactly(1)),
        ("epoll_ctl", Exactly(2)),
        ("inotify_init1", Exactly(1)),
        ("inotify_add_watch", Exactly(1)),
        ("inotify_rm_watch", Exactly(1)),
        ("socketpair", Exactly(1)),
        ("bind", Exactly(1)),
        ("sendto", AtLeast(1)),
        ("recvfrom", AtLeast(1)),
        ("socket", Exactly(2)),
        ("futex", AtLeast(3)),
        ("clock_nanosleep", AtLeast(1)),
    ]);
    events.extend(at_least(&[
        ("sched:sched_switch", 2),
        ("timer:hrtimer_start", 2),
        ("skb:consume_skb", 1),
        ("sock:sock_send_length", 1),
        ("sock:sock_recv_length", 1),
    ]));
    events
}
