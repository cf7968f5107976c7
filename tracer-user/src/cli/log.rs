//! Log messages: which ones, and where they go.
//!
//! They go to standard error until a daemon leaves it, then to the file of `--log`, or without one to the system's log
//! (/dev/log, RFC 3164) if it exists. Those of a service of systemd go to the journal, with their fields.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
    os::unix::{fs::OpenOptionsExt, net::UnixDatagram},
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
};

use tracing_subscriber::{
    EnvFilter, Registry, fmt, layer::SubscriberExt as _, registry, reload, util::SubscriberInitExt as _,
};

use super::args::Level;

/// The environment variable with the levels of messages, which has precedence over options.
const VARIABLE: &str = "TRACER_LOG";
/// The environment variable in which systemd names the journal's stream: device and inode.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";
/// Prefix of the names of fields in the journal.
const JOURNAL_PREFIX: &str = "TRACER";

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Where the messages of a command may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogKind {
    /// Standard error, with colours on a terminal.
    Command,
    /// A daemon that stays in the foreground: standard error, or the journal if that is standard error.
    Service,
    /// A daemon that leaves standard error.
    Daemon,
}

/// Starts logging.
pub(super) fn start(kind: LogKind) {
    let (filter, handle) = reload::Layer::new(filter(None));
    let _ = FILTER.set(handle);
    let journal = if kind == LogKind::Service && is_journal(std::env::var(JOURNAL_STREAM).ok().as_deref()) {
        tracing_journald::layer().ok().map(|layer| layer.with_field_prefix(Some(JOURNAL_PREFIX.to_owned())))
    } else {
        None
    };
    let ansi = kind != LogKind::Daemon && io::stderr().is_terminal();
    let text = journal.is_none().then(|| fmt::layer().with_ansi(ansi).with_writer(|| Log));
    registry().with(filter).with(journal).with(text).init();
}

/// Sets the level of messages, unless the environment does.
pub(super) fn set_level(level: Option<Level>) {
    if let Some(handle) = FILTER.get() {
        let _ = handle.modify(|now| *now = filter(level));
    }
}

fn filter(level: Option<Level>) -> EnvFilter {
    EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| {
        // fuser logs each request that the mirror does not have, and each reply to a client that no longer waits. Any
        // client can cause these. A build in which a library forwards `log` to `tracing` would show them.
        EnvFilter::new(format!("{},fuser=off", level.unwrap_or(Level::Warn).directive()))
    })
}

/// Whether standard error is the journal's stream that `given` names.
fn is_journal(given: Option<&str>) -> bool {
    let stream = given.and_then(|given| given.split_once(':'));
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else { return false };
    stream
        .is_some_and(|(device, inode)| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

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
    fn the_journals_stream_is_known_by_its_inode() {
        let stat = rustix::fs::fstat(io::stderr()).unwrap();
        assert!(is_journal(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
        let other = format!("{}:{}", stat.st_dev, stat.st_ino + 1);
        for given in [None, Some(""), Some("1"), Some("x:y"), Some(other.as_str())] {
            assert!(!is_journal(given), "{given:?}");
        }
    }

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
