//! Where messages of the program go: standard error, until a daemon has left it behind; then the file that `--log` names, or
//! else the system's log (/dev/log, RFC 3164) where there is one.

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

/// Where a message goes.
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

/// What the subscriber writes to: a message at a time.
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

/// Opens a file to append messages to, its owner's alone where it is new.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

/// From now on nothing goes to standard error: messages go to a file, or else to the system's log.
pub(super) fn leave_stderr(file: Option<File>) {
    set(file.map_or_else(|| system(Path::new(SYSTEM)), Target::File));
}

/// The system's log, where somebody listens.
fn system(path: &Path) -> Target {
    let connect = || {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A log that is full loses messages; nobody waits for it.
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
