//! The mirror without FUSE: numbers and names of files, open files, and the operations on them.

pub(crate) mod attributes;
pub(crate) mod dispatch;
pub(crate) mod file_table;
pub(crate) mod held;
pub(crate) mod inodes;
pub(crate) mod lookup;
pub(crate) mod node;
pub(crate) mod open;
