//! The directories in which the workload writes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directories in which a workload may write. Both are empty, and every part leaves them empty.
#[derive(Clone, Debug)]
pub struct Site {
    /// On a disk's file system.
    pub dir: PathBuf,
    /// On a tmpfs.
    pub shm: PathBuf,
}

impl Site {
    /// Creates both directories: one under `TRACER_TESTS_DIR` or the directory for temporary files, the other in
    /// `/dev/shm`.
    ///
    /// # Errors
    /// When a directory cannot be made.
    pub fn create() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tracer-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let disk = std::env::var_os("TRACER_TESTS_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let shm =
            if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let site = Self { dir: disk.join(format!("{name}-disk")), shm: shm.join(format!("{name}-shm")) };
        std::fs::create_dir(&site.dir)?;
        std::fs::create_dir(&site.shm)?;
        Ok(site)
    }

    /// Removes both directories.
    pub fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_dir_all(&self.shm);
    }
}
