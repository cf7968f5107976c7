//! Messages to the service manager: readiness and the watchdog's heartbeat (sd_notify(3), sd_watchdog_enabled(3)).

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

/// The socket of the service manager.
#[derive(Debug)]
pub(super) struct Manager(UnixDatagram);

impl Manager {
    /// The manager that the environment names, if any.
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
        // A full socket must not block the mirror.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Reports that the mirror is served.
    pub(super) fn ready(&self) -> io::Result<()> {
        self.0.send(b"READY=1").map(drop)
    }

    /// Reports that the configuration is read again. [`Manager::ready`] ends this state.
    pub(super) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let microseconds = now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000;
        let message = format!("RELOADING=1\nMONOTONIC_USEC={microseconds}");
        if let Err(error) = self.0.send(message.as_bytes()) {
            tracing::warn!("cannot report to the service manager: {error}");
        }
    }

    pub(super) fn alive(&self) {
        if let Err(error) = self.0.send(b"WATCHDOG=1") {
            tracing::warn!("cannot send a heartbeat to the service manager: {error}");
        }
    }
}

/// Interval of heartbeats: half of the time that the manager allows. `None` without a watchdog.
pub(super) fn interval() -> Option<Duration> {
    let variable = |name| env::var(name).ok();
    half_of(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref(), std::process::id())
}

/// Half of this number of microseconds, if `process` is this process or unset.
fn half_of(microseconds: Option<&str>, process: Option<&str>, own: u32) -> Option<Duration> {
    let given = microseconds?.parse().ok().filter(|given| *given > 1)?;
    let ours = process.is_none_or(|process| process.parse() == Ok(own));
    ours.then(|| Duration::from_micros(given) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_receives_the_messages() {
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
        ours.reloading();
        let mut said = [0; 64];
        let length = manager.recv(&mut said).unwrap();
        let said = String::from_utf8_lossy(&said[..length]);
        let time = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.parse::<u64>().unwrap() > 0);
        drop(manager);
        // After the manager has ended, a heartbeat only logs a warning.
        ours.alive();
        assert!(ours.ready().is_err() && Manager::at(OsStr::new("/no/such/socket")).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_interval_is_half_of_the_time_allowed_for_this_process() {
        let half = |given, process| half_of(given, process, 7);
        assert_eq!(half(Some("30000000"), Some("7")), Some(Duration::from_secs(15)));
        assert_eq!(half(Some("30000000"), None), Some(Duration::from_secs(15)));
        assert_eq!(half(Some("30000000"), Some("8")), None);
        for given in [None, Some("0"), Some("x"), Some("1")] {
            assert_eq!(half(given, None), None);
        }
    }
}
