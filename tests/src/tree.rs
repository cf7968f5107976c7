//! The mirror's tree inside this process, without FUSE.

use std::sync::Arc;

use rustix::io::Errno;
use tracer_user::engine::facts::Facts;
use tracer_user::engine::{Client, Engine};
use tracer_user::fs::{Access, Outcome, Owner, Tree};

use crate::host;

/// Opens a file as `cat` does.
pub const READ: Access = Access { read: true, write: false, truncate: false, payer: 0 };
/// Opens a file as `>` does.
pub const TRUNCATE: Access = Access { read: false, write: true, truncate: true, payer: 0 };
/// Opens a file as `>>` does.
pub const APPEND: Access = Access { read: false, write: true, truncate: false, payer: 0 };

/// A tree over the running kernel; prints a note and returns `None` when this process is not root.
///
/// # Panics
/// When the kernel cannot be read.
pub fn tree() -> Option<Tree> {
    host::root_or_skip()
        .then(|| Tree::new(Engine::new(Arc::new(Facts::running().unwrap())).unwrap(), Owner::default()))
}

/// Reads a whole file in pieces of odd sizes.
///
/// # Errors
/// The errno of the read that fails; `EAGAIN` when the file has no data yet.
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

/// Opens a file, writes a non-empty text with one write, and closes the file.
///
/// # Errors
/// The errno of the open or of the write.
pub fn write(tree: &mut Tree, path: &str, text: &str, access: Access) -> Result<usize, Errno> {
    let number = tree.find(path)?;
    let (handle, _) = tree.open(number, access, 1)?;
    let done = if text.is_empty() {
        Ok(0)
    } else {
        tree.write(handle, text.as_bytes(), Client { thread: 1, payer: 0 })
    };
    tree.close(handle);
    done
}
