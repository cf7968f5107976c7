//! The mirror's tree in this process, without FUSE.

use std::sync::Arc;

use rustix::io::Errno;
use tracer_user::engine::facts::Facts;
use tracer_user::engine::instance::Mirror;
use tracer_user::fs::{Access, Outcome, Owner, Tree};

use crate::host;

/// As `cat` opens a file.
pub const READ: Access = Access { read: true, write: false, truncate: false, uid: 0 };
/// As `>` does.
pub const TRUNCATE: Access = Access { read: false, write: true, truncate: true, uid: 0 };
/// As `>>` does.
pub const APPEND: Access = Access { read: false, write: true, truncate: false, uid: 0 };

/// A tree over the running kernel; none where this process is not root, which is said.
///
/// # Panics
/// When the kernel cannot be read.
pub fn tree() -> Option<Tree> {
    host::root_or_skip()
        .then(|| Tree::new(Mirror::new(Arc::new(Facts::running().unwrap())).unwrap(), Owner::default()))
}

/// Reads a file whole, in pieces of odd sizes, as a reader may ask for.
///
/// # Errors
/// That of the read that fails; `EAGAIN` when the file has nothing to give yet.
///
/// # Panics
/// When the text is not UTF-8.
pub fn read(tree: &mut Tree, path: &str) -> Result<String, Errno> {
    let number = tree.find(path)?;
    let (handle, _) = tree.open(number, READ, 1)?;
    let mut text = Vec::new();
    let result = loop {
        match tree.read(handle, text.len() as u64, 7 + text.len() % 11) {
            Ok(Outcome::Data(data)) if data.is_empty() => break Ok(()),
            Ok(Outcome::Data(data)) => text.extend(data),
            Ok(Outcome::Wait) => break Err(Errno::AGAIN),
            Err(error) => break Err(error),
        }
    };
    tree.close(handle);
    result.map(|()| String::from_utf8(text).unwrap())
}

/// Opens a file, writes the text at once, unless there is none, and closes it.
///
/// # Errors
/// That of the open or of the write.
pub fn write(tree: &mut Tree, path: &str, text: &str, access: Access) -> Result<usize, Errno> {
    let number = tree.find(path)?;
    let (handle, _) = tree.open(number, access, 1)?;
    let done = if text.is_empty() { Ok(0) } else { tree.write(handle, text.as_bytes(), 1) };
    tree.close(handle);
    done
}
