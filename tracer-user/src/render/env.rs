//! Interfaces for data outside of a record: names of addresses while rendering, and the kernel's types and constants
//! while compiling.
//!
//! Both are traits, so a frozen description can replace the running kernel, and `()` can be used where nothing is
//! known.

pub use crate::kernel::Symbol;

/// How plain `%p` prints a pointer.
///
/// The kernel prints a hash with a secret key. With the trace option `hash-ptr` off, it prints the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pointers {
    /// The address, as with `nohash-ptr`.
    Raw,
    /// The kernel's hash ([`RenderEnv::hash`]). If it is unknown, `(____ptrval____)`, which the kernel prints while it
    /// has no key. Null and error values stay readable, as in the kernel.
    #[default]
    Hidden,
}

/// Lookups during rendering.
pub trait RenderEnv {
    /// The kernel symbol that covers an address.
    fn symbol(&self, _address: u64) -> Option<Symbol<'_>> {
        None
    }

    /// The text, without its NUL, of a kernel string at this address (`printk_formats` lists the strings that events
    /// may point to).
    fn kernel_text(&self, _address: u64) -> Option<&[u8]> {
        None
    }

    /// How plain `%p` prints pointers.
    fn pointers(&self) -> Pointers {
        Pointers::Hidden
    }

    /// Whether `__get_bitmask` prints a list of bits (trace option `bitmask-list`).
    fn lists_bitmasks(&self) -> bool {
        false
    }

    /// The kernel's hash of a pointer.
    fn hash(&self, _address: u64) -> Option<u64> {
        None
    }

    /// The file mapped at or above an address of a running process, and the distance of the address from the
    /// mapping's start.
    fn object(&self, _process: u32, _address: u64) -> Option<(Vec<u8>, u64)> {
        None
    }

    /// The kernel's tick counter now, for the few events that print an age.
    fn jiffies(&self) -> u64 {
        0
    }
}

impl RenderEnv for () {}

/// Location of a struct or union member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bits from the start of the aggregate.
    pub bit_offset: u32,
    /// Width in bits; at most 64.
    pub bits: u32,
    /// Whether its sign extends.
    pub signed: bool,
}

/// Facts that compiling needs about the kernel that made the records.
pub trait KernelFacts {
    /// The value of an enum constant, for names in print fmts of events whose headers do not export their enums.
    fn constant(&self, _name: &str) -> Option<i64> {
        None
    }

    /// Size in bytes of a C type, named without `struct`, `union` or `enum`, and whether it is signed.
    fn type_size(&self, _name: &str) -> Option<(u64, bool)> {
        None
    }

    /// A member of a struct or union.
    fn member(&self, _aggregate: &str, _member: &str) -> Option<Member> {
        None
    }

    /// The value of a variable that is constant in a running kernel, such as `vmemmap_base`.
    fn variable(&self, _name: &str) -> Option<u64> {
        None
    }

    /// Ticks per second (`CONFIG_HZ`).
    fn hz(&self) -> Option<u32> {
        None
    }

    /// The kernel's version as in `uname -r`; a few texts depend on it.
    fn version(&self) -> (u32, u32) {
        (6, 18)
    }
}

impl KernelFacts for () {}
