//! The mirror without FUSE: numbers and names of files, open files, and the operations on them.

pub(in crate::fs) mod attributes;
pub(in crate::fs) mod dispatch;
pub(in crate::fs) mod file_table;
pub(in crate::fs) mod held;
pub(in crate::fs) mod inodes;
pub(in crate::fs) mod lookup;
pub(in crate::fs) mod node;
pub(in crate::fs) mod open;
