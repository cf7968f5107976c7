//! A handle to a tracefs: the catalogue of events, their formats and ids, and any other file in it.
//!
//! Uses the visible mount if there is one. Otherwise it mounts tracefs detached: invisible to other processes,
//! without cleanup. tracefs is not mounted at boot on every machine, and rarely in a container. All access uses
//! openat(2) from one descriptor, so a test can substitute a frozen directory. Only requested files are read.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, open, openat, statfs};
use rustix::io::Errno;

use super::{Error, proc::mounts::Mount};
use crate::sys::{mount, perf::event_mutex};

/// `TRACEFS_MAGIC`, include/uapi/linux/magic.h.
const TRACEFS_MAGIC: i64 = 0x7472_6163;
/// Where distributions mount tracefs; the second is debugfs's automount.
const USUAL: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Why a kernel has no tracefs at all.
pub(in crate::kernel) const NOT_BUILT: &str = "this kernel is built without it";

/// A tracefs, or a directory that looks like one.
#[derive(Debug)]
pub struct Tracefs {
    root: OwnedFd,
    place: Place,
}

/// Where a [`Tracefs`] comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A mount visible to other processes.
    Mounted(PathBuf),
    /// A detached mount of this process, without a path.
    Detached,
    /// A directory with frozen files.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "only tests freeze a tracefs")
    )]
    Frozen(PathBuf),
}

impl Tracefs {
    /// A second handle to the same tracefs.
    ///
    /// # Errors
    /// If no descriptor is available.
    pub fn try_clone(&self) -> Result<Self, Error> {
        let root = self.root.try_clone().map_err(|error| Error::io("tracefs", error))?;
        Ok(Self { root, place: self.place.clone() })
    }

    /// The running kernel's tracefs: the visible mount, else a detached one.
    ///
    /// # Errors
    /// If there is no mount and none could be made; the message contains both results.
    pub fn open() -> Result<Self, Error> {
        match Self::visible()? {
            Some(found) => Ok(found),
            None => Self::detached(),
        }
    }

    /// The visible mount, if there is one: the usual places first, then all other mounts.
    ///
    /// # Errors
    /// If a mount exists and may not be opened.
    pub fn visible() -> Result<Option<Self>, Error> {
        for path in USUAL {
            if let Some(found) = Self::at_mount(Path::new(path))? {
                return Ok(Some(found));
            }
        }
        let mounts = Mount::all().unwrap_or_default();
        for mount in mounts.iter().filter(|mount| mount.fs_type == "tracefs") {
            if let Some(found) = Self::at_mount(&mount.at)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A detached mount, invisible to other processes.
    ///
    /// # Errors
    /// If the kernel has no tracefs (`ENODEV`) or refuses the mount.
    pub fn detached() -> Result<Self, Error> {
        let root = mount::detached("tracefs").map_err(|source| {
            if source.raw_os_error() == Some(Errno::NODEV.raw_os_error()) {
                return Error::Withheld { fact: "tracefs", why: NOT_BUILT.into() };
            }
            Error::io("tracefs (not mounted, and a detached mount failed)", source)
        })?;
        Ok(Self { root, place: Place::Detached })
    }

    /// A directory that holds files of a tracefs, frozen for a test.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    #[cfg(any(test, feature = "internals"))]
    pub fn frozen(dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let dir = dir.into();
        let root = open_dir(&dir).map_err(|error| Error::io(dir.display().to_string(), error))?;
        Ok(Self { root, place: Place::Frozen(dir) })
    }

    /// Whether the file system mounted at a path is a tracefs.
    pub fn is_at(path: &Path) -> bool {
        // The width and sign of `f_type` differ between architectures.
        #[allow(clippy::unnecessary_cast)]
        statfs(path).is_ok_and(|stat| stat.f_type as i64 == TRACEFS_MAGIC)
    }

    /// The tracefs mounted at exactly this path; None if there is none.
    fn at_mount(path: &Path) -> Result<Option<Self>, Error> {
        if !Self::is_at(path) {
            return Ok(None);
        }
        match open_dir(path) {
            Ok(root) => Ok(Some(Self { root, place: Place::Mounted(path.to_owned()) })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Error::io(path.display().to_string(), error)),
        }
    }

    /// Where this tracefs comes from.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A path to a file in it for this process, valid only while this handle lives. A mount is reached through
    /// `/proc/self/fd`, so that later mounts over it do not matter.
    pub fn path(&self, relative: &str) -> PathBuf {
        match &self.place {
            Place::Frozen(root) => root.join(relative),
            Place::Mounted(_) | Place::Detached => {
                PathBuf::from(format!("/proc/self/fd/{}/{relative}", self.root.as_raw_fd()))
            }
        }
    }

    /// The text of a file, by its path from the root; None if it does not exist.
    ///
    /// # Errors
    /// If it exists but cannot be read.
    pub fn read(&self, relative: &str) -> Result<Option<String>, Error> {
        // The kernel takes `event_mutex` for nearly all of these files.
        let _entered = event_mutex::enter().map_err(|errno| Error::io(self.shown(relative), errno))?;
        let Some(file) = self.open_file(relative, OFlags::RDONLY)? else {
            return Ok(None);
        };
        // These files report no size. Many texts are kept in memory, so each is stored without spare capacity.
        let (mut bytes, mut piece) = (Vec::new(), [0; 16384]);
        loop {
            match rustix::io::read(&file, &mut piece) {
                Ok(0) => break,
                Ok(length) => {
                    bytes.reserve_exact(length);
                    bytes.extend_from_slice(piece.get(..length).unwrap_or_default());
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io(self.shown(relative), errno)),
            }
        }
        String::from_utf8(bytes).map(Some).map_err(|_| Error::form(self.shown(relative), "not text in UTF-8"))
    }

    /// Opens a file by its path from the root, close-on-exec; None if it does not exist.
    ///
    /// # Errors
    /// If it exists but may not be opened with these flags.
    pub fn open_file(&self, relative: &str, flags: OFlags) -> Result<Option<File>, Error> {
        match openat(&self.root, relative, flags | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(File::from(fd))),
            // ENODEV: the event or instance is being removed.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV) => Ok(None),
            Err(error) => Err(Error::io(self.shown(relative), error)),
        }
    }

    /// The files in `options`, and whether each option is on.
    ///
    /// # Errors
    /// If a file exists but cannot be read.
    pub fn options(&self) -> Result<Vec<(String, bool)>, Error> {
        let Some(dir) = self.open_file("options", OFlags::DIRECTORY)? else { return Ok(Vec::new()) };
        let failed = |errno| Error::io(self.shown("options"), errno);
        let mut found = Vec::new();
        for entry in Dir::new(dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.')
                && let Some(text) = self.read(&format!("options/{name}"))?
            {
                found.push((name, text.starts_with('1')));
            }
        }
        found.sort();
        Ok(found)
    }

    /// The text of `available_events`: every event as a line `system:name`, in the kernel's order.
    ///
    /// # Errors
    /// If the file cannot be read or does not exist.
    pub fn available_events(&self) -> Result<String, Error> {
        self.read("available_events")?
            .ok_or_else(|| Error::form(self.shown("available_events"), "this tracefs has no events"))
    }

    /// The text of an event's `format`; None if there is no such event.
    ///
    /// # Errors
    /// If it exists but cannot be read.
    pub fn format(&self, system: &str, name: &str) -> Result<Option<String>, Error> {
        if !is_name(system) || !is_name(name) {
            return Ok(None);
        }
        self.read(&format!("events/{system}/{name}/format"))
    }

    /// An event's id, the `common_type` of its records; None if there is no such event.
    ///
    /// # Errors
    /// If it exists but cannot be read.
    pub fn id(&self, system: &str, name: &str) -> Result<Option<u16>, Error> {
        if !is_name(system) || !is_name(name) {
            return Ok(None);
        }
        let path = format!("events/{system}/{name}/id");
        let Some(text) = self.read(&path)? else { return Ok(None) };
        let id = text.trim().parse().map_err(|_| Error::form(self.shown(&path), "not an event id"))?;
        Ok(Some(id))
    }

    /// A file's name for messages.
    fn shown(&self, relative: &str) -> String {
        match &self.place {
            Place::Mounted(root) | Place::Frozen(root) => root.join(relative).display().to_string(),
            Place::Detached => format!("tracefs:/{relative}"),
        }
    }
}

impl AsFd for Tracefs {
    /// The root directory, for openat(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether this is a valid name of one directory, so that no event name leads out of `events/`.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_directory_serves_as_a_tracefs() {
        let dir = std::env::temp_dir().join(format!("tracer-tracefs-{}", std::process::id()));
        let event = dir.join("events/sched/sched_switch");
        std::fs::create_dir_all(&event).unwrap();
        std::fs::write(event.join("format"), "name: sched_switch\n").unwrap();
        std::fs::write(event.join("id"), "312\n").unwrap();
        std::fs::write(dir.join("available_events"), "sched:sched_switch\n").unwrap();
        let tracefs = Tracefs::frozen(&dir).unwrap();
        assert_eq!(tracefs.available_events().unwrap(), "sched:sched_switch\n");
        assert_eq!(tracefs.format("sched", "sched_switch").unwrap().unwrap(), "name: sched_switch\n");
        assert_eq!(tracefs.id("sched", "sched_switch").unwrap(), Some(312));
        assert_eq!(tracefs.format("sched", "nothing").unwrap(), None);
        assert_eq!(tracefs.id("..", "id").unwrap(), None);
        assert_eq!(tracefs.read("trace_clock").unwrap(), None);
        std::fs::write(event.join("id"), "x\n").unwrap();
        let error = tracefs.id("sched", "sched_switch").unwrap_err().to_string();
        assert!(error.ends_with("events/sched/sched_switch/id: not an event id"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// The running kernel as the oracle; None without root, because only root may read tracefs.
    fn running() -> Option<Tracefs> {
        rustix::process::geteuid().is_root().then(|| Tracefs::open().unwrap())
    }

    #[test]
    fn a_detached_mount_is_the_same_tracefs() {
        let Some(visible) = running() else { return };
        let detached = Tracefs::detached().unwrap();
        assert_eq!(detached.place(), &Place::Detached);
        assert_eq!(detached.available_events().unwrap(), visible.available_events().unwrap());
        assert_eq!(
            detached.format("sched", "sched_switch").unwrap(),
            visible.format("sched", "sched_switch").unwrap()
        );
        let by_path = std::fs::read_to_string(detached.path("events/sched/sched_switch/id")).unwrap();
        assert_eq!(by_path.trim().parse().ok(), visible.id("sched", "sched_switch").unwrap());
    }
}
