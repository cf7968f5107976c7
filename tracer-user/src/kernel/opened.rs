//! A user's file, opened once and used through its descriptor: a path looked up again may lead to another file.
//!
//! The descriptor is `O_PATH` and cannot be used for reading, so opening it has no effect on devices and FIFOs. Only
//! regular files are read, through `/proc/self/fd` and up to a limit.

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, makedev, open, statx},
    io::Errno,
};
use serde::{Deserialize, Serialize};

/// Maximum size in bytes of a file that may be read.
const SIZE_MAX: u64 = 512 << 20;
/// Maximum number of bytes read from it: headers, symbols and names; not code and data.
const READ_MAX: u64 = 256 << 20;

/// Identity and version of a file: while all of it is unchanged, offsets in the file stay valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Device (`dev_t`).
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Time of the last modification: seconds and nanoseconds since the epoch.
    pub modified: (i64, u32),
}

/// An open file.
#[derive(Debug)]
pub struct OpenedFile {
    path: OwnedFd,
    identity: Identity,
    regular: bool,
}

/// Two values are equal if they are the same file with the same content.
impl PartialEq for OpenedFile {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for OpenedFile {}

/// The file's current state; `how` determines whether its file system is queried.
fn look(path: BorrowedFd<'_>, how: AtFlags) -> Result<(Identity, bool), Errno> {
    let found = statx(path, c"", AtFlags::EMPTY_PATH | how, StatxFlags::BASIC_STATS)?;
    let identity = Identity {
        device: makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        size: found.stx_size,
        modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
    };
    Ok((identity, FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile))
}

impl OpenedFile {
    /// Opens a path, following symlinks. May block for as long as the file system takes.
    ///
    /// # Errors
    /// The errors of the path lookup; `EINVAL` for a path with a NUL.
    pub fn open(path: &[u8]) -> Result<Self, Errno> {
        let path = open(OsStr::from_bytes(path), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let (identity, regular) = look(path.as_fd(), AtFlags::empty())?;
        Ok(Self { path, identity, regular })
    }

    /// Wraps a descriptor that was opened elsewhere, with the identity that the file had then. Does not query the
    /// file system.
    ///
    /// # Errors
    /// The errors of statx(2); `ESTALE` for another file.
    pub fn received(path: OwnedFd, identity: Identity) -> Result<Self, Errno> {
        let (found, regular) = look(path.as_fd(), AtFlags::STATX_DONT_SYNC)?;
        if (found.device, found.inode) != (identity.device, identity.inode) {
            return Err(Errno::STALE);
        }
        Ok(Self { path, identity, regular })
    }

    /// The file's identity and version when it was opened.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.regular
    }

    /// Checks that the file is unchanged, as far as known without querying a file system that may not answer.
    ///
    /// # Errors
    /// `ESTALE` if its size or modification time differs: an offset may point to something else now.
    pub fn check(&self) -> Result<(), Errno> {
        let (now, _) = look(self.path.as_fd(), AtFlags::STATX_DONT_SYNC)?;
        if now == self.identity { Ok(()) } else { Err(Errno::STALE) }
    }

    /// A path to this file for calls that take no descriptor, valid in this process while this value lives.
    pub fn path(&self) -> CString {
        // A number contains no NUL.
        CString::new(format!("/proc/self/fd/{}", self.path.as_raw_fd())).unwrap_or_default()
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// `EINVAL` if the file is not regular, `EFBIG` if it is too large, and the errors of opening it.
    pub fn content(&self) -> Result<Content, Errno> {
        if !self.regular {
            return Err(Errno::INVAL);
        }
        if self.identity.size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(Content { file: open(self.path(), flags, Mode::empty())?.into(), left: READ_MAX })
    }
}

impl AsFd for OpenedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }
}

/// The bytes of a regular file, up to a limit.
#[derive(Debug)]
pub struct Content {
    file: File,
    left: u64,
}

impl Read for Content {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        if most == 0 && !into.is_empty() {
            return Err(io::Error::from(Errno::FBIG));
        }
        let read = self.file.read(into.get_mut(..most).unwrap_or_default())?;
        self.left -= read as u64;
        Ok(read)
    }
}

impl Seek for Content {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tracer-opened-{name}-{}", std::process::id()))
    }

    fn opened(path: &std::path::Path) -> OpenedFile {
        OpenedFile::open(path.as_os_str().as_bytes()).unwrap()
    }

    #[test]
    fn an_opened_file_is_independent_of_its_path() {
        let (path, other) = (place("one"), place("other"));
        fs::write(&path, "old").unwrap();
        fs::write(&other, "new content").unwrap();
        let file = opened(&path);
        fs::rename(&other, &path).unwrap();
        assert_eq!(file.check(), Ok(()));
        let mut text = String::new();
        file.content().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "old");
        assert_ne!(opened(&path), file);
        let through = fs::read(file.path().to_str().unwrap()).unwrap();
        assert_eq!(through, b"old");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn changed_content_is_detected() {
        let path = place("content");
        fs::write(&path, "one").unwrap();
        let file = opened(&path);
        fs::write(&path, "longer").unwrap();
        assert_eq!(file.check(), Err(Errno::STALE));
        // The same size with another modification time.
        let file = opened(&path);
        let stale = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
        File::options().write(true).open(&path).unwrap().set_modified(stale).unwrap();
        assert_eq!(file.check(), Err(Errno::STALE));
        // Other names and permissions leave the content unchanged.
        let file = opened(&path);
        let link = place("link");
        fs::hard_link(&path, &link).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(file.check(), Ok(()));
        let identity = file.identity();
        let again = OpenedFile::received(file.path.try_clone().unwrap(), identity);
        assert_eq!(again.unwrap(), file);
        let other = Identity { inode: identity.inode + 1, ..identity };
        assert_eq!(OpenedFile::received(file.path.try_clone().unwrap(), other).unwrap_err(), Errno::STALE);
        fs::remove_file(&link).unwrap();
    }

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        for path in ["/dev/zero", "/proc", "/dev/ptmx"] {
            let file = OpenedFile::open(path.as_bytes()).unwrap();
            assert_eq!((file.is_regular(), file.content().unwrap_err()), (false, Errno::INVAL), "{path}");
        }
        let path = place("large");
        File::create(&path).unwrap().set_len(SIZE_MAX + 1).unwrap();
        assert_eq!(opened(&path).content().unwrap_err(), Errno::FBIG);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let mut content = opened(&path).content().unwrap();
        content.left = 1000;
        let mut read = Vec::new();
        assert_eq!(content.read_to_end(&mut read).unwrap_err().raw_os_error(), Some(libc::EFBIG));
        assert_eq!(read.len(), 1000);
        fs::remove_file(&path).unwrap();
        assert_eq!(OpenedFile::open(b"/no/such/file").unwrap_err(), Errno::NOENT);
        assert_eq!(OpenedFile::open(b"a\0b").unwrap_err(), Errno::INVAL);
    }
}
