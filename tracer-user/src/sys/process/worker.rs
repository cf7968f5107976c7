//! A helper process: the same executable, started to do one task for this process over a socket on its standard
//! input.

use std::{
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Lets SIGHUP have no effect on this process.
///
/// # Errors
/// If the kernel refuses the handler.
pub fn ignore_hangup() -> io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default()).map(drop)
}

/// A helper process, as seen by the process that starts it.
#[derive(Debug)]
pub struct Worker {
    socket: OwnedFd,
    child: Child,
}

impl Worker {
    /// Starts this executable with a hidden command and at most one argument. Its standard output is discarded; `errors`
    /// receives its warnings.
    ///
    /// # Errors
    /// If no further process or socket can be created.
    pub fn start(command: &str, argument: Option<&OsStr>, errors: Stdio) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let child = Command::new("/proc/self/exe")
            .arg0("tracer")
            .arg(command)
            .args(argument)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(errors)
            .current_dir("/")
            .spawn()?;
        Ok(Self { socket: ours, child })
    }

    /// This side's end of the socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns this side's end of the socket, and starts a thread that reaps the helper, which may exit before this
    /// process. The thread has the privileges that the caller has at this time.
    ///
    /// # Errors
    /// If no further thread can be created.
    pub fn into_socket(mut self) -> io::Result<OwnedFd> {
        std::thread::Builder::new().stack_size(1 << 16).spawn(move || self.child.wait())?;
        Ok(self.socket)
    }
}
