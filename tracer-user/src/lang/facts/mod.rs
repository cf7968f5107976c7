//! Kernel facts that decide the meaning of a definition: symbols, types, events, files and the features of the
//! language.
//!
//! The parsers read all facts through one trait, [`Facts`], so that their result depends only on the text and the
//! facts. [`Machine`] reads the running kernel; [`Fixed`] reads tables for tests.

mod elf;
mod files;
#[cfg(any(test, feature = "internals"))]
mod fixed;
mod language;
mod machine;
mod registers;
mod types;

use std::sync::Arc;

use rustix::io::Errno;

pub use self::elf::{function_names, symbol_offset};
pub use self::files::{FileQuery, FileRequest, Files, Found};
#[cfg(any(test, feature = "internals"))]
pub use self::fixed::Fixed;
pub use self::language::{Feature, Language};
pub use self::machine::{EventCheck, FilterCheck, Machine, MadeEvents, ProbeCheck, Sites};
pub use self::registers::Arch;
use super::filter::FilterError;
use crate::event::Format;
use crate::kernel::btf::{BitMember, Class, Shape, Signature};
use crate::kernel::opened::OpenedFile;

/// A file at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFact {
    /// Whether it is a regular file.
    pub regular: bool,
    /// Device and inode; two paths with the same identity are one file.
    pub identity: (u64, u64),
    /// Offset of the requested symbol in the file, if the file has it.
    pub symbol: Option<u64>,
    /// The opened file; `None` for a file of [`Fixed`].
    pub opened: Option<Arc<OpenedFile>>,
}

/// Position of an instruction in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// At the start of a function.
    Entry,
    /// Inside a function.
    Inside,
    /// Outside of all symbols.
    Nowhere,
}

/// Facts about a kernel.
pub trait Facts {
    /// The language features of the kernel.
    fn language(&self) -> Language;

    /// The architecture, which decides the registers.
    fn arch(&self) -> Arch;

    /// Number of possible CPUs of the machine.
    fn possible_cpus(&self) -> u32;

    /// Address of the first symbol of this name, with or without a `MODULE:` prefix.
    fn address(&self, symbol: &str) -> Option<u64>;

    /// Number of symbols of this name in the kernel and its modules, or in one module.
    fn count(&self, module: Option<&str>, symbol: &str) -> usize;

    /// Whether a module is loaded.
    fn has_module(&self, name: &str) -> bool;

    /// Position of the instruction at this offset from a symbol.
    fn spot(&self, symbol: &str, offset: u64) -> Spot;

    /// Whether an instruction may be probed.
    ///
    /// # Errors
    /// The kernel's errno: EINVAL for a function that must not be traced, EILSEQ inside an instruction, ENOENT if no
    /// symbol covers the address.
    fn probe(&self, address: u64) -> Result<(), Errno>;

    /// Whether a name or glob matches a function that can be traced at its entry.
    fn is_traceable(&self, pattern: &str) -> bool;

    /// Name of the function whose BTF type describes the arguments of a tracepoint. Its first parameter does not belong
    /// to the tracepoint.
    ///
    /// Returns `None` if the tracepoint does not exist.
    fn tracepoint(&self, name: &str) -> Option<String>;

    /// Parameters and result of a function.
    fn signature(&self, function: &str) -> Option<Signature>;

    /// Id of a struct, of the kernel or else of a module.
    fn structure(&self, name: &str) -> Option<u32>;

    /// Shape of a type.
    fn shape(&self, id: u32) -> Option<Shape>;

    /// Whether `char` is signed in this kernel. Since 6.2 the kernel is built with `-funsigned-char`.
    fn has_signed_chars(&self) -> bool {
        false
    }

    /// A member of the struct or union with this id.
    fn member(&self, id: u32, name: &str) -> Option<BitMember>;

    /// Names of all members of the struct or union with this id; empty if unknown.
    fn members(&self, _id: u32) -> Vec<String> {
        Vec::new()
    }

    /// Id of the struct or union that a type is or points to.
    fn aggregate(&self, ty: u32) -> Option<u32> {
        let mut shape = self.shape(ty)?;
        if shape.class == Class::Pointer {
            shape = self.shape(shape.word)?;
        }
        if let Class::Aggregate(id) = shape.class { Some(id) } else { None }
    }

    /// Offset in bytes of a member of a named struct. The path `a.b` follows an embedded struct.
    fn offset_of(&self, name: &str, path: &str) -> Option<u32>;

    /// An event to which event probes may attach.
    fn event(&self, system: &str, name: &str) -> Option<Format>;

    /// Whether an event of this name exists that was not created by a definition.
    fn has_event(&self, system: &str, name: &str) -> bool;

    /// The file at a path, and the offset of a symbol in it.
    ///
    /// # Errors
    /// If the file does not exist or cannot be opened.
    fn file(&self, path: &[u8], symbol: Option<&str>) -> Result<FileFact, Errno>;

    /// Names of the functions of a file; empty if unknown.
    fn file_symbols(&self, _path: &[u8]) -> Vec<String> {
        Vec::new()
    }

    /// Whether an event accepts this filter.
    ///
    /// # Errors
    /// Why the filter is invalid.
    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError>;
}
