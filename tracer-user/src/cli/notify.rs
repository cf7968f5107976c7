//! Telling the service manager that we are ready, and from then on that we live (sd_notify(3), sd_watchdog_enabled(3)).

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// The service manager, where somebody wants to know.
#[derive(Debug)]
pub(super) struct Manager(UnixDatagram);

impl Manager {
    /// The one that the environment names.
    ///
    /// # Errors
    /// When it names one that is not there.
    pub(super) fn from_env() -> io::Result<Option<Self>> {
        env::var_os("NOTIFY_SOCKET").map(|path| Self::at(&path)).transpose()
    }

    fn at(path: &OsStr) -> io::Result<Self> {
        let address = match path.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A manager that takes nothing must not hold the mirror up.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Says that we serve.
    ///
    /// # Errors
    /// When it cannot be told.
    pub(super) fn ready(&self) -> io::Result<()> {
        self.0.send(b"READY=1").map(drop)
    }

    /// Says that we live.
    pub(super) fn alive(&self) {
        if let Err(error) = self.0.send(b"WATCHDOG=1") {
            tracing::warn!("the service manager's watchdog is not told: {error}");
        }
    }
}

/// How often we are to say that we live: twice in the time that the manager gives us, where it gives one.
pub(super) fn interval() -> Option<Duration> {
    let variable = |name| env::var(name).ok();
    half_of(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref(), std::process::id())
}

/// Half of so many microseconds, if they are meant for this process.
fn half_of(microseconds: Option<&str>, process: Option<&str>, own: u32) -> Option<Duration> {
    let given = microseconds?.parse().ok().filter(|given| *given > 1)?;
    let ours = process.is_none_or(|process| process.parse() == Ok(own));
    ours.then(|| Duration::from_micros(given) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_what_is_said() {
        let path = env::temp_dir().join(format!("tracer-notify-{}", std::process::id()));
        let manager = UnixDatagram::bind(&path).unwrap();
        let ours = Manager::at(path.as_os_str()).unwrap();
        ours.ready().unwrap();
        ours.alive();
        let mut said = [0; 32];
        for expected in [&b"READY=1"[..], b"WATCHDOG=1"] {
            let length = manager.recv(&mut said).unwrap();
            assert_eq!(&said[..length], expected);
        }
        drop(manager);
        // It has gone: told of, and nothing else.
        ours.alive();
        assert!(ours.ready().is_err() && Manager::at(OsStr::new("/no/such/socket")).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_interval_is_half_of_what_this_process_is_given() {
        let half = |given, process| half_of(given, process, 7);
        assert_eq!(half(Some("30000000"), Some("7")), Some(Duration::from_secs(15)));
        assert_eq!(half(Some("30000000"), None), Some(Duration::from_secs(15)));
        for (given, process) in [
            (Some("30000000"), Some("8")),
            (None, None),
            (Some("0"), None),
            (Some("x"), None),
            (Some("1"), None),
        ] {
            assert_eq!(half(given, process), None);
        }
    }
}
