//! Maps pinned in a BPF file system, where other processes find them by name.

use std::{
    ffi::CString,
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
};

use aya_obj::generated::{bpf_cmd, bpf_map_info};
use rustix::fs::{Mode, OFlags, fstatfs, open, statfs};

use super::{
    arguments, call, call_fd, info,
    map::{Map, MapSpec},
};
use crate::sys::Errno;

/// `BPF_FS_MAGIC`, include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// A directory of a BPF file system, opened once: pins are made and found in it even if its path later leads
/// elsewhere.
#[derive(Debug)]
pub struct PinDir {
    dir: OwnedFd,
}

impl PinDir {
    /// Opens the directory. Creates missing directories on its path, accessible by their owner only.
    ///
    /// # Errors
    /// `InvalidInput` if the directory is not, or would not be, on a BPF file system; then nothing is created.
    pub fn make(path: &Path) -> io::Result<Self> {
        let wrong = || {
            let what = "not on a BPF file system (mount -t bpf bpf /sys/fs/bpf)";
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        // For a missing directory, check the nearest existing ancestor.
        let mut above = path;
        let found = loop {
            match (statfs(above), above.parent()) {
                (Err(Errno::NOENT), Some(parent)) if parent != Path::new("") => above = parent,
                (found, _) => break found?,
            }
        };
        if found.f_type as u64 != BPF_FS_MAGIC {
            return Err(wrong());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let dir = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        if fstatfs(&dir)?.f_type as u64 != BPF_FS_MAGIC {
            return Err(wrong());
        }
        Ok(Self { dir })
    }

    /// A path to the directory, valid in this process while this value lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.dir.as_raw_fd()).into()
    }
}

impl Map {
    /// Opens the map pinned under this name if it matches the specification; otherwise creates one and pins it there,
    /// replacing a map that does not match.
    ///
    /// # Errors
    /// As [`Map::create`]; `EPERM` and `ENOENT` without a BPF file system.
    pub fn pinned(path: &Path, spec: &MapSpec<'_>) -> Result<Self, Errno> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let mut pinned = arguments();
        pinned.__bindgen_anon_4.pathname = name.as_ptr() as u64;
        // SAFETY: the command returns a descriptor, and the path is a string that outlives the call.
        if let Ok(fd) = unsafe { call_fd(bpf_cmd::BPF_OBJ_GET, &mut pinned) } {
            let info: bpf_map_info = info::of(fd.as_fd())?;
            let found = (info.type_, info.key_size, info.value_size, info.max_entries, info.map_flags);
            if found == (spec.kind as u32, spec.key_size, spec.value_size, spec.max_entries, spec.flags) {
                return Self::of(fd, spec);
            }
            std::fs::remove_file(path).map_err(|_| Errno::EXIST)?;
        }
        let map = Self::create(spec)?;
        let mut pin = arguments();
        pin.__bindgen_anon_4.pathname = name.as_ptr() as u64;
        pin.__bindgen_anon_4.bpf_fd = map.as_fd().as_raw_fd().cast_unsigned();
        // SAFETY: the path is a string that outlives the call.
        unsafe { call(bpf_cmd::BPF_OBJ_PIN, &mut pin) }?;
        Ok(map)
    }
}
