//! A process of this very program that does one thing for another one, over a socket that is its standard input.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, Stdio},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// The process, from the side of the one that starts it.
#[derive(Debug)]
pub struct Worker {
    socket: OwnedFd,
    child: Child,
}

impl Worker {
    /// Starts this program with a hidden command. Its output goes nowhere; what it warns of goes to `errors`.
    ///
    /// # Errors
    /// When there can be no further process.
    pub fn start(command: &str, errors: Stdio) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let child = Command::new("/proc/self/exe")
            .arg0("tracer")
            .arg(command)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(errors)
            .current_dir("/")
            .spawn()?;
        Ok(Self { socket: ours, child })
    }

    /// Our end of the socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Our end of the socket. A thread waits for the process's end from now on, as it may come before ours; the thread has the
    /// privileges that the caller has by now.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub fn into_socket(mut self) -> io::Result<OwnedFd> {
        std::thread::Builder::new().stack_size(1 << 16).spawn(move || self.child.wait())?;
        Ok(self.socket)
    }
}
