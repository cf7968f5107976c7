//! The mapping at an address of another process: `PROCMAP_QUERY` on an open `/proc/PID/maps` (Linux 6.11).

use std::os::fd::{AsFd, AsRawFd};

use crate::sys::{Errno, check};

/// `PROCMAP_QUERY`, include/uapi/linux/fs.h: `_IOWR('f', 17, struct procmap_query)`.
pub const PROCMAP_QUERY: u32 = 3 << 30 | (size_of::<ProcmapQuery>() as u32) << 16 | (b'f' as u32) << 8 | 0x11;
/// `PROCMAP_QUERY_VMA_READABLE` and `PROCMAP_QUERY_VMA_WRITABLE`.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// `struct procmap_query`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// Whether the process may read it.
    pub readable: bool,
    /// Whether the process may write it.
    pub writable: bool,
}

/// The mapping at an address of the address space that `/proc/PID/maps` was opened for.
///
/// # Errors
/// `ENOENT` if nothing is mapped there, `ESRCH` if the address space no longer exists, `ENOTTY` on kernels without
/// the request.
pub fn mapping_at(maps: impl AsFd, address: u64) -> Result<Mapping, Errno> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_addr: address,
        ..ProcmapQuery::default()
    };
    // SAFETY: the request reads and writes one structure of the size stated in it; it writes no names, as none are
    // requested.
    check(unsafe {
        libc::ioctl(maps.as_fd().as_raw_fd(), libc::c_ulong::from(PROCMAP_QUERY) as _, &raw mut query)
    })?;
    Ok(Mapping {
        start: query.vma_start,
        end: query.vma_end,
        readable: query.vma_flags & READABLE != 0,
        writable: query.vma_flags & WRITABLE != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_found_by_any_of_its_addresses() {
        let maps = std::fs::File::open("/proc/self/maps").unwrap();
        let place = Box::new(1_u8);
        let at = (&raw const *place).expose_provenance() as u64;
        match mapping_at(&maps, at) {
            Ok(found) => {
                assert!(found.start <= at && at < found.end && found.readable && found.writable);
                assert_eq!(mapping_at(&maps, found.start), Ok(found));
            }
            Err(Errno::NOTTY) => return eprintln!("skipped: linux-6.11: PROCMAP_QUERY"),
            Err(errno) => panic!("{errno}"),
        }
        assert_eq!(mapping_at(&maps, 8), Err(Errno::NOENT));
        let code = a_mapping_is_found_by_any_of_its_addresses as fn() as usize as u64;
        assert!(mapping_at(&maps, code).is_ok_and(|found| found.readable && !found.writable));
    }
}
