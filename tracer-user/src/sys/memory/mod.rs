//! Memory: files mapped into this process, the allocator's heaps, and the mappings of other processes.

pub mod heap;
pub mod mapped_file;
pub mod procmap;
