//! The process that writes the state file for a daemon.
//!
//! The daemon is a process of root, and a part of it that a client took over could write any file of root. So its system
//! call filter allows no open for writing, and no change of names. This process writes instead. It knows one file name,
//! which the daemon sends before it serves clients. By Landlock it reaches no directory but that of the state files.
//!
//! Each message is one packet: a letter and, for [`NAME`], the name. The content of [`WRITE`] is a file in memory, whose
//! descriptor is sent along. The answer is an error number, 0 for success.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, Mode, OFlags, open, openat, renameat, unlinkat},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use super::process::{begin, in_memory, receive, send_with};
use crate::{
    engine::{
        confine::{self, Role},
        saved::SAVED_MAX,
    },
    sys::process::landlock::FileAccess,
};

/// The hidden command of this program that runs as the process.
pub const COMMAND: &str = "write-state";

/// The directory of the files of all mirrors, unless one has its own. It is in memory, because the mirrors do not survive
/// a reboot.
pub const DIR: &str = "/run/tracer/state";

/// The letters of the messages: sets the name, once; replaces the file; removes it.
const NAME: u8 = b'n';
const WRITE: u8 = b'w';
const REMOVE: u8 = b'r';

/// Maximum length of a file name (`NAME_MAX`).
const NAME_MAX: usize = 255;
/// How long the daemon waits for an answer. The files are in memory, so only a stopped process takes longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the settings of a daemon are kept, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateLifetime {
    /// They end with the daemon.
    Daemon,
    /// They survive an end that is not regular, in a file of this directory.
    Crash(PathBuf),
    /// They survive a regular end too.
    Restart(PathBuf),
}

impl StateLifetime {
    /// The directory of the file, if there is one.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Self::Daemon => None,
            Self::Crash(dir) | Self::Restart(dir) => Some(dir),
        }
    }
}

/// The daemon's side. Requests go to the first process that still answers.
#[derive(Debug, Default)]
pub(crate) struct StateWriter {
    processes: Vec<OwnedFd>,
}

impl StateWriter {
    /// Creates the daemon's side of the processes that run [`run`] at the other ends of the sockets.
    pub(crate) fn new(processes: Vec<OwnedFd>) -> Self {
        Self { processes }
    }

    pub(crate) fn set_name(&mut self, name: &str) {
        let message = [&[NAME], name.as_bytes()].concat();
        self.processes.retain(|socket| match request(socket.as_fd(), &message, None) {
            Ok(()) => true,
            Err(errno) => {
                tracing::warn!("a process that writes state files does not work: {errno}");
                false
            }
        });
    }

    /// Replaces the file; `EIO` if no process is left.
    pub(crate) fn write(&mut self, content: &[u8]) -> Result<(), Errno> {
        self.send(WRITE, Some(in_memory(content)?.as_fd()))
    }

    /// Removes the file, if it exists; `EIO` if no process is left.
    pub(crate) fn remove(&mut self) -> Result<(), Errno> {
        self.send(REMOVE, None)
    }

    fn send(&mut self, letter: u8, content: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        while let Some(socket) = self.processes.first() {
            match request(socket.as_fd(), &[letter], content) {
                // It is gone, or its late answer would be taken for that to the next request.
                Err(Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT) => drop(self.processes.remove(0)),
                answer => return answer,
            }
        }
        Err(Errno::IO)
    }
}

/// Sends a request and waits for its answer.
fn request(socket: BorrowedFd<'_>, message: &[u8], content: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    send_with(socket, message, content.as_slice(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    let patience = Timespec::try_from(PATIENCE).map_err(|_| Errno::INVAL)?;
    let answered = loop {
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience)) {
            Err(Errno::INTR) => {}
            answered => break answered?,
        }
    };
    if answered == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let mut answer = [0; 4];
    match recv(socket, &mut answer[..], RecvFlags::DONTWAIT)? {
        (4, _) => match u32::from_le_bytes(answer) {
            0 => Ok(()),
            number => Err(Errno::from_raw_os_error(number.cast_signed())),
        },
        _ => Err(Errno::PIPE),
    }
}

/// Runs in the process: writes the file into a directory until the other end of the socket is closed.
///
/// # Errors
/// When standard input is not a socket, or the directory cannot be created.
pub fn run(dir: &Path) -> io::Result<()> {
    begin(c"tracer-state");
    // The daemon still needs this process when a signal ends all processes of a group.
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::default())?;
    }
    let dir = make(dir)?;
    confine::confine_to(Role::StateWriter, &[(dir.as_fd(), FileAccess::Replace)]);
    Ok(serve(io::stdin().as_fd(), dir.as_fd())?)
}

/// Opens a directory for root alone, and creates it if it does not exist.
fn make(dir: &Path) -> io::Result<OwnedFd> {
    // Others may have to pass its parent, in which mirrors are mounted.
    if let Some(parent) = dir.parent().filter(|parent| !parent.exists()) {
        fs::create_dir_all(parent)?;
        fs::set_permissions(parent, fs::Permissions::from_mode(0o755))?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    Ok(open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Answers the requests from a socket until its other end is closed.
fn serve(socket: BorrowedFd<'_>, dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut name = None;
    while let Some((message, fds)) = receive(socket, NAME_MAX + 2)? {
        let done = match (message.split_first(), &name, fds.into_iter().next()) {
            (Some((&NAME, rest)), None, _) => plain(rest).map(|plain| name = Some(plain)),
            (Some((&WRITE, _)), Some(name), Some(content)) => replace(socket, dir, name, content),
            (Some((&REMOVE, _)), Some(name), _) => is_asked(socket).and_then(|()| remove(dir, name)),
            _ => Err(Errno::INVAL),
        };
        let number = done.map_or_else(|errno| errno.raw_os_error().cast_unsigned(), |()| 0);
        send(socket, &number.to_le_bytes(), SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// A name in the directory itself.
fn plain(name: &[u8]) -> Result<String, Errno> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::INVAL)?;
    let fits = (1..=NAME_MAX).contains(&name.len()) && !name.contains(['/', '\0']) && !name.starts_with('.');
    if fits { Ok(name.to_owned()) } else { Err(Errno::INVAL) }
}

/// The name of the file while it is being written.
fn unfinished(name: &str) -> PathBuf {
    Path::new(name).with_extension("new")
}

/// Whether the daemon still waits for the answer. It gives up a process that was stopped for long, and another one has
/// done the work then. The error is `EPIPE`.
fn is_asked(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut hung_up = [PollFd::new(&socket, PollFlags::empty())];
    poll(&mut hung_up, Some(&Timespec::default()))?;
    if hung_up[0].revents().is_empty() { Ok(()) } else { Err(Errno::PIPE) }
}

fn replace(socket: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &str, content: OwnedFd) -> Result<(), Errno> {
    let new = unfinished(name);
    is_asked(socket)?;
    // A process that was given up may still have the old one open.
    unlink(dir, &new)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(dir, &new, flags, Mode::RUSR | Mode::WUSR)?);
    let mut content = File::from(content).take(SAVED_MAX as u64 + 1);
    io::copy(&mut content, &mut file).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    is_asked(socket)?;
    renameat(dir, &new, dir, name)
}

fn remove(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    unlink(dir, Path::new(name))?;
    unlink(dir, &unfinished(name))
}

/// Removes a file, if it exists.
fn unlink(dir: BorrowedFd<'_>, name: &Path) -> Result<(), Errno> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn only_the_named_file_is_written() {
        let dir = std::env::temp_dir().join(format!("tracer-state-writer-{}", std::process::id()));
        let opened = make(&dir).unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let thread = std::thread::spawn(move || serve(theirs.as_fd(), opened.as_fd()));
        let mut writer = StateWriter::new(vec![ours]);
        assert_eq!(writer.write(b"text"), Err(Errno::INVAL), "it has no name");
        for name in ["../x", "/etc/x", ".", "..", "", "a\0b", &"x".repeat(300)] {
            let message = [&[NAME], name.as_bytes()].concat();
            assert_eq!(request(writer.processes[0].as_fd(), &message, None), Err(Errno::INVAL), "{name}");
        }
        writer.set_name("mirror.json");
        let other = request(writer.processes[0].as_fd(), b"nother.json", None);
        assert_eq!(other, Err(Errno::INVAL), "the name is set once");
        let large = vec![b'x'; 1 << 20];
        for content in [&b"first"[..], b"", &large] {
            writer.write(content).unwrap();
            assert_eq!(fs::read(dir.join("mirror.json")).unwrap(), content);
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        // A process that was given up does nothing.
        let (gone, late) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        drop(gone);
        let (opened, text) = (make(&dir).unwrap(), in_memory(b"").unwrap());
        assert_eq!(replace(late.as_fd(), opened.as_fd(), "mirror.json", text), Err(Errno::PIPE));
        assert_eq!(fs::read(dir.join("mirror.json")).unwrap(), large);
        fs::write(dir.join("mirror.new"), "left").unwrap();
        writer.remove().unwrap();
        writer.remove().unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        assert_eq!(request(writer.processes[0].as_fd(), b"x", None), Err(Errno::INVAL));
        writer.processes.clear();
        thread.join().unwrap().unwrap();
        assert_eq!(writer.write(b"text"), Err(Errno::IO), "no process is left");
        fs::remove_dir_all(&dir).unwrap();
    }
}
