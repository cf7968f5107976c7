//! Writes cpio archives of the "newc" format, which the kernel unpacks as its initramfs.
//!
//! This module replaces the `cpio` program, so that owners and modes do not depend on the user. The kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst describes the format. Archives can be concatenated: the
//! cached part and the job of one run form one initramfs.

/// Type bits of a mode (`S_IFDIR`, `S_IFREG` in sys/stat.h).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// An archive under construction.
#[derive(Debug, Default)]
pub(super) struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
}

impl Cpio {
    /// Adds a directory.
    pub(super) fn dir(&mut self, path: &str) {
        self.entry(path, DIRECTORY | 0o755, &[]);
    }

    /// Adds a file with these permissions.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, REGULAR | mode, content);
    }

    /// Ends the archive, padded so that another may follow it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let header: [u32; 13] = [
            self.inode,
            mode,
            0, // uid
            0, // gid
            links,
            0, // mtime
            content.len() as u32,
            0,
            0, // device
            0,
            0, // rdev
            path.len() as u32 + 1,
            0, // checksum
        ];
        self.bytes.extend(b"070701");
        for field in header {
            self.bytes.extend(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_layout_that_the_kernel_reads() {
        let mut cpio = Cpio::default();
        cpio.dir("job");
        cpio.file("job/x", 0o755, b"hello");
        let bytes = cpio.finish();
        assert_eq!(bytes.len(), 512);
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000041ED", "mode of the directory");
        assert_eq!(&bytes[110..114], b"job\0");
        // The header and the name take 114 bytes, so the next entry starts at 116.
        let file = &bytes[116..];
        assert_eq!(&file[..6], b"070701");
        assert_eq!(&file[14..22], b"000081ED");
        assert_eq!(&file[54..62], b"00000005", "size");
        assert_eq!(&file[94..102], b"00000006", "name with its end");
        assert_eq!(&file[110..116], b"job/x\0");
        assert_eq!(&file[116..124], b"hello\0\0\0");
        assert!(file[124 + 110..].starts_with(b"TRAILER!!!\0"));
    }
}
