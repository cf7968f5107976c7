//! The compiled form of a print fmt: pieces of text and conversions over an arena of typed expression nodes.
//!
//! Values have 64 bits and are stored extended by their type's sign. The record, constants and text printed by a block
//! are outside of kernel memory. They have addresses in ranges that are not canonical on any 64-bit machine, so
//! pointers of both kinds can be mixed, as in C.

use super::ast::Binary;
use super::ctype::CType;
use crate::render::printf::spec::{Kind, Spec};

/// Address of the record's first byte.
pub(super) const RECORD: u64 = 0x7e00_7200_0000_0000;
/// Address of the pool of constants.
pub(super) const POOL: u64 = 0x7e00_7300_0000_0000;
/// Address of the text that blocks print.
pub(super) const SCRATCH: u64 = 0x7e00_7400_0000_0000;
/// Marks a kernel variable of unknown value; only a hidden pointer can be computed from it.
pub(super) const UNKNOWN: u64 = 0x7e01_0000_0000_0000;

/// Index of a node.
pub(super) type Id = u32;

/// Adjacent elements of one of a program's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) length: u32,
}

impl Run {
    /// Appends elements to a list.
    pub(super) fn append<T>(list: &mut Vec<T>, elements: impl IntoIterator<Item = T>) -> Self {
        let start = list.len();
        list.extend(elements);
        Self { start: start as u32, length: (list.len() - start) as u32 }
    }

    /// The elements of its list.
    #[inline]
    pub(super) fn of<T>(self, list: &[T]) -> &[T] {
        let behind = list.get(self.start as usize..).unwrap_or_default();
        behind.get(..self.length as usize).unwrap_or_default()
    }
}

/// A name of a flag or of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: u64,
    pub(super) name: Run,
}

/// An expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A constant, or an address in the pool.
    Const(u64),
    /// A number at a fixed offset of the record.
    Load { offset: u32, ty: CType },
    /// A number at an address.
    At { address: Id, ty: CType },
    /// Address of the data of a `__data_loc` or `__rel_loc` word.
    Data { offset: u32, relative: bool },
    /// Length of that data in bytes.
    DataLength { offset: u32 },
    /// A value truncated to a type.
    Wrap { value: Id, ty: CType },
    /// `-x` in a type.
    Neg { value: Id, ty: CType },
    /// `~x` in a type.
    Invert { value: Id, ty: CType },
    /// `!x`
    Not(Id),
    /// An operator. Comparisons return 0 or 1 and compare in the type; the other operators have the type as their
    /// result.
    Binary { op: Binary, a: Id, b: Id, ty: CType },
    /// `c ? a : b`
    Cond { condition: Id, then: Id, otherwise: Id },
    /// A number with its bytes swapped.
    Swap { value: Id, size: u8 },
    /// The kernel's tick counter now.
    Jiffies,
    /// A local of a block.
    Local(u32),
    /// Assigns to a local.
    Set { local: u32, value: Id },
    /// Runs nodes for their effect and returns the value of the last one.
    Block { body: Run, value: Id },
    /// A member of an aggregate that is stored as a number.
    Bits { value: Id, offset: u8, bits: u8, signed: bool },
    /// The aggregate with a member replaced.
    WithBits { value: Id, member: Id, offset: u8, bits: u8 },
    /// Address of the next byte that a block prints.
    ScratchEnd,
    /// Adds pieces to the block's text.
    Print(Run),
    /// `__print_flags`
    Flags { value: Id, delimiter: Run, table: Run },
    /// `__print_symbolic`; `other` is the text for unknown values that do not print in hex.
    Symbolic { value: Id, table: Run, other: Option<Run> },
    /// `__get_bitmask`: a bitmap's address and its length in bytes.
    Bitmask { address: Id, length: Id },
    /// `__print_hex`, `__print_hex_str`: joined without spaces.
    Hex { address: Id, length: Id, joined: bool },
    /// `__print_array`
    Array { address: Id, count: Id, size: Id },
    /// `__trace_print_untrusted_str`: a text of this length, with escapes.
    Escaped { address: Id, length: Id },
    /// `__trace_landlock_print_layers`: the flags of each of the masks in an array of `length` bytes.
    Layers { address: Id, length: Id, count: Id, table: Run },
    /// `nvme_trace_disk_name`: a text after `disk=` and before a comma, if it is not empty.
    Disk { address: Id },
    /// `__print_hex_dump`: index into [`Program::dumps`].
    HexDump(u32),
}

impl Node {
    /// Whether the node prints text instead of having a value.
    pub(super) fn prints(self) -> bool {
        matches!(
            self,
            Self::Flags { .. }
                | Self::Symbolic { .. }
                | Self::Bitmask { .. }
                | Self::Hex { .. }
                | Self::Array { .. }
                | Self::Escaped { .. }
                | Self::Layers { .. }
                | Self::Disk { .. }
                | Self::HexDump(_)
        )
    }
}

/// Arguments of `__print_hex_dump`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dump {
    pub(super) prefix: Id,
    pub(super) kind: Id,
    pub(super) row: Id,
    pub(super) group: Id,
    pub(super) address: Id,
    pub(super) length: Id,
    pub(super) ascii: Id,
}

/// A piece of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seg {
    /// Constant bytes.
    Literal(Run),
    /// A conversion whose width and precision are constant.
    Value { arg: Id, spec: Spec, kind: Kind },
    /// A conversion whose width or precision is an argument.
    Starred { arg: Id, spec: Spec, kind: Kind, width: Option<Id>, precision: Option<Id> },
}

/// A compiled print fmt. The default prints nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    pub(super) nodes: Vec<Node>,
    /// Constants: strings, each with a NUL, and arrays of addresses.
    pub(super) pool: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// Bodies of blocks.
    pub(super) lists: Vec<Id>,
    pub(super) dumps: Vec<Dump>,
    pub(super) segs: Vec<Seg>,
    /// Start of the event's own pieces. The pieces that blocks print come before it.
    pub(super) main: usize,
    pub(super) locals: usize,
}

impl Program {
    #[inline]
    pub(super) fn node(&self, id: Id) -> Node {
        self.nodes.get(id as usize).copied().unwrap_or(Node::Const(0))
    }

    pub(super) fn constant(&self, id: Id) -> Option<u64> {
        match self.node(id) {
            Node::Const(value) => Some(value),
            _ => None,
        }
    }
}

/// Computes an operator other than `&&` and `||` on values of a type.
#[inline]
pub(super) fn apply(op: Binary, a: u64, b: u64, ty: CType) -> u64 {
    let less = |a: u64, b: u64| if ty.signed { (a as i64) < (b as i64) } else { a < b };
    let bits = u32::from(ty.size) * 8;
    let value = match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        // C leaves `x / 0` undefined, and the kernel would have crashed.
        Binary::Div | Binary::Rem if b == 0 => 0,
        Binary::Div if ty.signed => (a as i64).wrapping_div(b as i64) as u64,
        Binary::Div => a / b,
        Binary::Rem if ty.signed => (a as i64).wrapping_rem(b as i64) as u64,
        Binary::Rem => a % b,
        Binary::Shl => a.wrapping_shl(b as u32 & (bits - 1)),
        Binary::Shr if ty.signed => ((a as i64) >> (b as u32 & (bits - 1))) as u64,
        Binary::Shr => a >> (b as u32 & (bits - 1)),
        Binary::BitAnd => a & b,
        Binary::BitOr => a | b,
        Binary::BitXor => a ^ b,
        Binary::Lt => return u64::from(less(a, b)),
        Binary::Gt => return u64::from(less(b, a)),
        Binary::Le => return u64::from(!less(b, a)),
        Binary::Ge => return u64::from(!less(a, b)),
        Binary::Eq => return u64::from(a == b),
        Binary::Ne => return u64::from(a != b),
        Binary::And => return u64::from(a != 0 && b != 0),
        Binary::Or => return u64::from(a != 0 || b != 0),
    };
    ty.wrap(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_keep_c_types() {
        for (op, a, b, ty, expected) in [
            (Binary::Add, 0x7fff_ffff, 1, CType::INT, 0xffff_ffff_8000_0000),
            (Binary::Add, 0xffff_ffff, 1, CType::UINT, 0),
            (Binary::Shl, 1, 31, CType::INT, 0xffff_ffff_8000_0000),
            (Binary::Shr, u64::MAX, 4, CType::LONG, u64::MAX),
            (Binary::Shr, u64::MAX, 60, CType::ULONG, 15),
            (Binary::Lt, u64::MAX, 0, CType::LONG, 1),
            (Binary::Lt, u64::MAX, 0, CType::ULONG, 0),
            (Binary::Div, i64::MIN as u64, u64::MAX, CType::LONG, i64::MIN as u64),
            (Binary::Rem, 7, 0, CType::INT, 0),
        ] {
            assert_eq!(apply(op, a, b, ty), expected, "{op:?} {a:#x} {b:#x} {ty:?}");
        }
    }
}
