//! What a definition's text means depends on the kernel it is for: symbols, types, events, files, and how much of
//! the language that kernel has. All of it is asked through one trait, [`Facts`], so that the language stays a
//! function of text and answers: [`Machine`] answers for the running kernel, [`Fixed`] from tables for tests.

mod elf;
mod files;
mod fixed;
mod language;
mod machine;
mod registers;
mod types;

use std::sync::Arc;

use rustix::io::Errno;

pub use self::elf::{function_names, symbol_offset};
pub use self::files::{FileRequest, Files, Found, What};
pub use self::fixed::Fixed;
pub use self::language::{Feature, Language};
pub use self::machine::{EventCheck, FilterCheck, Machine, MadeEvents, ProbeCheck, Sites};
pub use self::registers::Arch;
use super::filter::FilterError;
use crate::event::Format;
use crate::kernel::btf::{BitMember, Class, Shape, Signature};
use crate::kernel::opened::OpenedFile;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFact {
    /// Whether it is a regular file.
    pub regular: bool,
    /// Device and inode: two paths with the same are one file.
    pub identity: (u64, u64),
    /// Offset in the file of the symbol that was asked for, where it has one.
    pub symbol: Option<u64>,
    /// The file itself; none of a file that is made up.
    pub opened: Option<Arc<OpenedFile>>,
}

/// Where an instruction lies in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// A function starts there.
    Entry,
    /// It lies inside a function.
    Inside,
    /// No symbol covers it.
    Nowhere,
}

/// Answers about a kernel.
pub trait Facts {
    /// How much of the language it has.
    fn language(&self) -> Language;

    /// Whose registers it has.
    fn arch(&self) -> Arch;

    /// How many CPUs the machine can ever have.
    fn possible_cpus(&self) -> u32;

    /// The address of a symbol, `MODULE:` in front of it or not: the first of that name.
    fn address(&self, symbol: &str) -> Option<u64>;

    /// How many symbols of this name there are: in the kernel and its modules, or in one module.
    fn count(&self, module: Option<&str>, symbol: &str) -> usize;

    /// Whether a module is loaded.
    fn has_module(&self, name: &str) -> bool;

    /// Where the instruction at this distance from a symbol lies.
    fn spot(&self, symbol: &str, offset: u64) -> Spot;

    /// Whether an instruction may be probed; the error is the one the kernel has for it: EINVAL for functions that
    /// must not be traced, EILSEQ inside an instruction, ENOENT where nothing lies.
    ///
    /// # Errors
    /// When it may not.
    fn probe(&self, address: u64) -> Result<(), Errno>;

    /// Whether a name or glob names at least one function that can be traced at its entry.
    fn is_traceable(&self, pattern: &str) -> bool;

    /// The function that has the types of a tracepoint's arguments, behind a first one that is not the
    /// tracepoint's. None when there is no such tracepoint.
    fn tracepoint(&self, name: &str) -> Option<String>;

    /// A function's parameters and result.
    fn signature(&self, function: &str) -> Option<Signature>;

    /// What a type is.
    fn shape(&self, id: u32) -> Option<Shape>;

    /// Whether `char` has a sign there: the kernel is built with `-funsigned-char` since 6.2.
    fn has_signed_chars(&self) -> bool {
        false
    }

    /// A member of the struct or union of this id.
    fn member(&self, id: u32, name: &str) -> Option<BitMember>;

    /// The names of all members of the struct or union of this id; none where that is not known.
    fn members(&self, _id: u32) -> Vec<String> {
        Vec::new()
    }

    /// The struct or union that a type is or points to.
    fn aggregate(&self, ty: u32) -> Option<u32> {
        let shape = self.shape(ty)?;
        match shape.class {
            Class::Aggregate(id) => Some(id),
            Class::Pointer => match self.shape(shape.word)?.class {
                Class::Aggregate(id) => Some(id),
                _ => None,
            },
            _ => None,
        }
    }

    /// Bytes from the start of a struct, by its name, to a member (`a.b` goes into a struct by value).
    fn offset_of(&self, name: &str, path: &str) -> Option<u32>;

    /// An event that event probes may sit on.
    fn event(&self, system: &str, name: &str) -> Option<Format>;

    /// Whether there is an event of this name already, one that no definition made.
    fn has_event(&self, system: &str, name: &str) -> bool;

    /// What stands at a path, and where a symbol of it is.
    ///
    /// # Errors
    /// When nothing does, or it cannot be reached.
    fn file(&self, path: &[u8], symbol: Option<&str>) -> Result<FileFact, Errno>;

    /// The functions of a file, by name; none where that is not known.
    fn file_symbols(&self, _path: &[u8]) -> Vec<String> {
        Vec::new()
    }

    /// Whether an event's filter may be this one.
    ///
    /// # Errors
    /// When not, and why.
    fn filter(&self, event: &Format, text: &[u8]) -> Result<(), FilterError>;
}
