//! Destination of log messages: standard error until a daemon leaves it, then the file of `--log`, or without one the
//! system's log (/dev/log, RFC 3164) if it exists.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::{fs::OpenOptionsExt, net::UnixDatagram},
    path::Path,
    sync::{Mutex, PoisonError},
};

/// The socket of the system's log.
const SYSTEM: &str = "/dev/log";
/// Facility `daemon`, severity `warning`.
const PRIORITY: u32 = 3 << 3 | 4;

#[derive(Debug)]
enum Target {
    Stderr,
    File(File),
    System(UnixDatagram),
    Nowhere,
}

static TARGET: Mutex<Target> = Mutex::new(Target::Stderr);

fn set(target: Target) {
    *TARGET.lock().unwrap_or_else(PoisonError::into_inner) = target;
}

/// The subscriber's writer. Each write is one message.
#[derive(Debug)]
pub(super) struct Log;

impl Write for Log {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        TARGET.lock().unwrap_or_else(PoisonError::into_inner).write(message)?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Target {
    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().lock().write_all(message),
            Self::File(file) => file.write_all(message),
            Self::System(socket) => {
                let head = format!("<{PRIORITY}>tracer[{}]: ", std::process::id());
                socket.send(&[head.as_bytes(), message.trim_ascii_end()].concat()).map(drop)
            }
            Self::Nowhere => Ok(()),
        }
    }
}

/// Opens a file to append messages. A new file is accessible to its owner only.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

/// Stops writing to standard error. Messages go to `file`, or without one to the system's log.
pub(super) fn leave_stderr(file: Option<File>) {
    set(file.map_or_else(|| system(Path::new(SYSTEM)), Target::File));
}

/// Connects to the system's log. Without a listener, messages are discarded.
fn system(path: &Path) -> Target {
    let connect = || {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A full log loses messages instead of blocking.
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    };
    connect().map_or(Target::Nowhere, Target::System)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_the_systems_log() {
        let path = std::env::temp_dir().join(format!("tracer-log-{}", std::process::id()));
        assert!(matches!(system(&path), Target::Nowhere));
        let log = UnixDatagram::bind(&path).unwrap();
        let mut target = system(&path);
        std::fs::remove_file(&path).unwrap();
        target.write(b"WARN something\n").unwrap();
        let mut message = [0; 100];
        let length = log.recv(&mut message).unwrap();
        let expected = format!("<28>tracer[{}]: WARN something", std::process::id());
        assert_eq!(String::from_utf8_lossy(&message[..length]), expected);
        drop(log);
        assert!(target.write(b"lost").is_err());
    }
}
