//! Maps that have a name in a BPF file system, where other processes find them.

use std::{
    ffi::CString,
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use super::{
    Errno,
    bpf::{Block, Command, call, call_fd},
    map::{Map, MapSpec},
};

#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}
// SAFETY: the path points to a string that outlives the call.
unsafe impl Block for Object {}

#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

#[repr(C)]
struct Ask {
    fd: u32,
    length: u32,
    info: u64,
}
// SAFETY: info points to so many bytes, all of which are plain integers.
unsafe impl Block for Ask {}

fn string(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)
}

impl Map {
    /// The map of this name, if there is one and it is as specified; otherwise a new one, which takes the name.
    ///
    /// # Errors
    /// As [`Map::create`]; `EPERM` and `ENOENT` where there is no BPF file system.
    pub fn pinned(path: &Path, spec: &MapSpec<'_>) -> Result<Self, Errno> {
        let name = string(path)?;
        let mut get = Object { path: name.as_ptr() as u64, fd: 0, flags: 0 };
        if let Ok(fd) = call_fd(Command::ObjGet, &mut get) {
            let mut info = Info::default();
            let mut ask = Ask {
                fd: fd.as_raw_fd() as u32,
                length: size_of::<Info>() as u32,
                info: std::ptr::from_mut(&mut info) as u64,
            };
            call(Command::ObjGetInfo, &mut ask)?;
            let found = (info.kind, info.key_size, info.value_size, info.max_entries, info.map_flags);
            if found == (spec.kind as u32, spec.key_size, spec.value_size, spec.max_entries, spec.flags) {
                return Ok(Self::of(fd, spec));
            }
            std::fs::remove_file(path).map_err(|_| Errno::EXIST)?;
        }
        let map = Self::create(spec)?;
        let fd = map.as_fd().as_raw_fd() as u32;
        call(Command::ObjPin, &mut Object { path: name.as_ptr() as u64, fd, flags: 0 })?;
        Ok(map)
    }
}
