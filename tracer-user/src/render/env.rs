//! What rendering asks of the world outside of a record: names for addresses while it writes, and facts about
//! the kernel's types and constants while it compiles.
//!
//! Both are traits, so that a frozen description serves as well as the running kernel, and `()` serves where
//! nothing is known.

pub use crate::kernel::Symbol;

/// How a pointer printed by plain `%p` looks.
///
/// The kernel prints a hash made with a secret key, unless the trace option `hash-ptr` is off; then it prints the
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pointers {
    /// The address, as with `nohash-ptr`.
    Raw,
    /// The kernel's hash ([`RenderEnv::hash`]) or, where that is not known, `(____ptrval____)`, what the kernel prints while
    /// it has no key yet; null and error values stay readable, as they do there.
    #[default]
    Hidden,
}

/// What rendering looks up while it writes.
pub trait RenderEnv {
    /// The kernel symbol that covers an address.
    fn symbol(&self, _address: u64) -> Option<Symbol<'_>> {
        None
    }

    /// The NUL-less text of a string that lies in the kernel at this address (`printk_formats` lists those that
    /// events may point to).
    fn kernel_text(&self, _address: u64) -> Option<&[u8]> {
        None
    }

    /// How plain `%p` looks.
    fn pointers(&self) -> Pointers {
        Pointers::Hidden
    }

    /// The kernel's hash of a pointer.
    fn hash(&self, _address: u64) -> Option<u64> {
        None
    }

    /// The file that is mapped at an address of a process that still runs, or above it, and how far from the mapping's
    /// start the address lies.
    fn object(&self, _process: u32, _address: u64) -> Option<(Vec<u8>, u64)> {
        None
    }

    /// The kernel's tick counter now, for the few events that print an age.
    fn jiffies(&self) -> u64 {
        0
    }
}

impl RenderEnv for () {}

/// Where a member of a struct or union lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bits from the aggregate's start.
    pub bit_offset: u32,
    /// Width in bits; at most 64.
    pub bits: u32,
    /// Whether its sign extends.
    pub signed: bool,
}

/// What compiling asks about the kernel that made the records.
pub trait KernelFacts {
    /// The value of an enum's constant: names that stand in print fmts of events whose headers do not export
    /// their enums.
    fn constant(&self, _name: &str) -> Option<i64> {
        None
    }

    /// Size in bytes of a type named as in C, without `struct`, `union` or `enum`, and whether it is signed.
    fn type_size(&self, _name: &str) -> Option<(u64, bool)> {
        None
    }

    /// A member of a struct or union.
    fn member(&self, _aggregate: &str, _member: &str) -> Option<Member> {
        None
    }

    /// The value of a variable that does not change once the kernel runs, such as `vmemmap_base`.
    fn variable(&self, _name: &str) -> Option<u64> {
        None
    }

    /// Ticks a second (`CONFIG_HZ`).
    fn hz(&self) -> Option<u32> {
        None
    }

    /// The kernel's version as in `uname -r`: a few texts changed with it.
    fn version(&self) -> (u32, u32) {
        (6, 18)
    }
}

impl KernelFacts for () {}
