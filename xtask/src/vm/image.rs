//! Builds ext4 images of directories with `mke2fs -d`, without mounting and without root.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::host;

/// Writes an ext4 image of `dir` with at least `free` free bytes. The file is sparse.
pub(super) fn ext4(dir: &Path, image: &Path, free: u64) -> Result<()> {
    let Some(mke2fs) = host::which("mke2fs") else {
        bail!("mke2fs is not here: run `cargo xtask setup vm`");
    };
    let (bytes, files) = measure(dir)?;
    // Metadata takes a few per cent; small files are rounded up to blocks.
    let size = bytes + bytes / 8 + files * 4096 + free + (16 << 20);
    let inodes = (files + files / 4 + 4096).to_string();
    let _ = std::fs::remove_file(image);
    let mut command = Command::new(mke2fs);
    command
        .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal,^resize_inode", "-m", "0", "-N", &inodes])
        .args(["-E", "root_owner=0:0", "-d"])
        .arg(dir)
        .arg(image)
        .arg(format!("{}k", size / 1024));
    host::output(&mut command).map(drop).with_context(|| format!("cannot make {}", image.display()))
}

/// Total size in bytes and number of the files below `dir`.
fn measure(dir: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut files) = (0, 1);
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if meta.is_dir() {
            let (b, f) = measure(&entry.path())?;
            bytes += b;
            files += f;
        } else {
            bytes += meta.size();
            files += 1;
        }
    }
    Ok((bytes, files))
}
