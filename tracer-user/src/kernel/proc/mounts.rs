//! Mounts: the lines of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! A path does not identify a mount: several may be stacked at one place, and symlinks and blanks (written as octal
//! escapes) give one place several spellings. The number identifies a mount as long as it exists.

use std::{ffi::OsString, io, os::unix::ffi::OsStringExt, path::PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number.
    pub id: u64,
    /// The number of the mount that it is mounted on.
    pub parent: u64,
    /// The directory of its file system that is mounted: `/` for the whole file system.
    pub root: PathBuf,
    /// The path where it is mounted.
    pub at: PathBuf,
    /// The type of its file system, without a subtype.
    pub fs_type: String,
    /// The source that it reports.
    pub source: OsString,
    /// The options of its file system, with commas between them.
    pub super_options: String,
}

impl Mount {
    /// The mounts in this process's mount namespace, in the kernel's order. Malformed lines are skipped: users choose
    /// names in this file, and no name may hide other mounts.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        Ok(Self::parse_all(&std::fs::read("/proc/self/mountinfo")?).collect())
    }

    /// The mount of this number in this process's mount namespace; None if it no longer exists.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn find(id: u64) -> io::Result<Option<Self>> {
        Ok(Self::parse_all(&std::fs::read("/proc/self/mountinfo")?).find(|mount| mount.id == id))
    }

    /// Whether this mount lies directly above another one, and hides all of it.
    pub fn covers(&self, other: &Self) -> bool {
        self.parent == other.id && self.at == other.at
    }

    /// The mounts in a text in the form of `/proc/PID/mountinfo`.
    pub(in crate::kernel) fn parse_all(text: &[u8]) -> impl Iterator<Item = Self> {
        text.split(|byte| *byte == b'\n').filter_map(Self::parse)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let parent = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let (root, at) = (words.nth(1)?, words.next()?);
        // Skips options and optional fields, which end with a lone dash.
        words.find(|word| *word == b"-")?;
        let (fs_type, source) = (words.next()?, words.next()?);
        let super_options = words.next().unwrap_or_default();
        let fs_type = fs_type.split(|byte| *byte == b'.').next().unwrap_or_default();
        Some(Self {
            id,
            parent,
            root: unescape(root).into(),
            at: unescape(at).into(),
            fs_type: String::from_utf8_lossy(fs_type).into_owned(),
            source: unescape(source),
            super_options: String::from_utf8_lossy(super_options).into_owned(),
        })
    }
}

/// Undoes `mangle_path()`: a backslash and three octal digits encode a byte.
fn unescape(text: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                behind
            }
            [first, behind @ ..] => {
                bytes.push(*first);
                behind
            }
            [] => break,
        };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_into_fields() {
        let line = br"64 63 0:40 / /tmp/a\040b\134c rw,relatime shared:1 master:2 - fuse.x trace\011fs rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.id, mount.parent, mount.root), (64, 63, PathBuf::from("/")));
        assert_eq!((mount.at, mount.source), (PathBuf::from("/tmp/a b\\c"), OsString::from("trace\tfs")));
        assert_eq!((mount.fs_type.as_str(), mount.super_options.as_str()), ("fuse", "rw"));
        for broken in [&b""[..], b"x 1 0:1 / /a rw - t s", b"1 2 0:1 / /a rw", b"1 2 0:1 / /a rw -"] {
            assert_eq!(Mount::parse(broken), None, "{}", String::from_utf8_lossy(broken));
        }
        assert_eq!(unescape(br"\04\400\0"), OsString::from(r"\04\400\0"));
        assert_eq!(unescape(br"\x\134y"), OsString::from(r"\x\y"));
    }

    #[test]
    fn one_mount_does_not_hide_others() {
        let text = b"1 0 0:1 / /proc rw - proc proc rw\n2 1 0:2 / /\xff rw - fuse x rw\nx\n\
            3 1 0:3 / /a\\040b rw - tracefs nodev rw\n";
        let found: Vec<_> = Mount::parse_all(text).map(|mount| (mount.id, mount.fs_type)).collect();
        let found: Vec<_> = found.iter().map(|(id, fs_type)| (*id, fs_type.as_str())).collect();
        assert_eq!(found, [(1, "proc"), (2, "fuse"), (3, "tracefs")]);
        let tracefs = Mount::parse_all(text).find(|mount| mount.fs_type == "tracefs").unwrap();
        assert_eq!(tracefs.at, PathBuf::from("/a b"));
    }

    #[test]
    fn only_the_next_mount_at_a_place_covers_a_mount() {
        let text =
            b"2 1 0:2 / /a rw - t s\n3 2 0:3 / /a rw - t s\n4 3 0:4 / /a rw - t s\n5 2 0:5 / /a/b rw - t s\n";
        let all: Vec<_> = Mount::parse_all(text).collect();
        let covers: Vec<_> = all.iter().map(|mount| mount.covers(&all[0])).collect();
        assert_eq!(covers, [false, true, false, false]);
    }

    #[test]
    fn the_root_is_mounted() {
        let root = rustix::fs::statx(
            rustix::fs::CWD,
            "/proc",
            rustix::fs::AtFlags::empty(),
            rustix::fs::StatxFlags::MNT_ID,
        );
        let proc = Mount::find(root.unwrap().stx_mnt_id).unwrap().unwrap();
        assert_eq!((proc.fs_type.as_str(), proc.at), ("proc", PathBuf::from("/proc")));
        assert_eq!(Mount::find(u64::MAX).unwrap(), None);
    }
}
