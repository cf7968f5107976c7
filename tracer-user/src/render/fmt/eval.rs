//! Runs a [`Program`] over a record's bytes.
//!
//! The record is untrusted: every access is checked. An access outside of the record marks the run as faulted, and the
//! caller then prints the fields instead.

use super::ast::Binary;
use super::ctype::CType;
use super::program::{Dump, Entry, Id, Node, POOL, Program, RECORD, SCRATCH, Seg, UNKNOWN, apply};
use crate::render::env::RenderEnv;
use crate::render::printf::pointer::{self, Extension, Memory, bad_address, until_nul};
use crate::render::printf::spec::{Kind, LARGEST, Spec};
use crate::render::printf::{
    hex::hex_pair,
    number::{self, hex_bytes, prefixed_hex},
};

/// One run over one record.
pub(crate) struct Eval<'a> {
    program: &'a Program,
    record: &'a [u8],
    env: &'a dyn RenderEnv,
    scratch: Vec<u8>,
    locals: Vec<u64>,
    faulted: bool,
}

impl<'a> Eval<'a> {
    pub(super) fn new(program: &'a Program, record: &'a [u8], env: &'a dyn RenderEnv) -> Self {
        Self { program, record, env, scratch: Vec::new(), locals: vec![0; program.locals], faulted: false }
    }

    /// Whether the record lacks data that a piece needs.
    pub(super) fn has_faulted(&self) -> bool {
        self.faulted
    }

    /// Writes the event's text. Returns false if the record lacks data that the text needs; part of the text may then
    /// have been written.
    #[cfg(test)]
    pub(super) fn run(
        program: &'a Program,
        record: &'a [u8],
        env: &'a dyn RenderEnv,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut eval = Self::new(program, record, env);
        eval.segs(out, program.segs.get(program.main..).unwrap_or_default());
        !eval.faulted
    }

    fn segs(&mut self, out: &mut Vec<u8>, segs: &'a [Seg]) {
        for seg in segs {
            self.seg(out, seg);
        }
    }

    pub(super) fn seg(&mut self, out: &mut Vec<u8>, seg: &Seg) {
        match *seg {
            Seg::Literal(run) => out.extend_from_slice(run.of(&self.program.pool)),
            Seg::Value { arg, spec, kind } => self.conversion(out, arg, spec, kind),
            Seg::Starred { arg, mut spec, kind, width, precision } => {
                if let Some(width) = width {
                    spec.width = (self.value(width) as i32).clamp(-LARGEST, LARGEST);
                    if spec.width < 0 {
                        spec.left = true;
                        spec.width = -spec.width;
                    }
                }
                if let Some(precision) = precision {
                    spec.precision = (self.value(precision) as i32).clamp(0, LARGEST);
                }
                self.conversion(out, arg, spec, kind);
            }
        }
    }

    #[inline]
    fn conversion(&mut self, out: &mut Vec<u8>, arg: Id, spec: Spec, kind: Kind) {
        match kind {
            Kind::Number(conversion) => number::number(out, self.value(arg), conversion, spec),
            Kind::Text => self.text(out, arg, spec),
            Kind::Char => number::char(out, self.value(arg) as u8, spec),
            Kind::Pointer(extension) => {
                let address = self.value(arg);
                if extension == Extension::Plain && address == UNKNOWN {
                    pointer::hidden(out, spec);
                } else {
                    pointer::pointer(out, address, extension, spec, self, self.env);
                }
            }
        }
    }

    /// Writes the string that a node prints or points to.
    fn text(&mut self, out: &mut Vec<u8>, id: Id, spec: Spec) {
        let node = self.program.node(id);
        match node {
            Node::Cond { condition, then, otherwise } => {
                let chosen = if self.value(condition) != 0 { then } else { otherwise };
                self.text(out, chosen, spec);
            }
            node if node.prints() => {
                let start = out.len();
                self.print(out, node);
                if spec != Spec::PLAIN {
                    // A NUL printed by a helper ends its text.
                    let length = until_nul(out.get(start..).unwrap_or_default()).len();
                    out.truncate(start + length);
                    number::fit(out, start, spec);
                }
            }
            _ => {
                let address = self.value(id);
                if let Some(bytes) = self.bytes_at(address) {
                    // Bytes after the precision are not scanned.
                    number::text(out, until_nul(number::cut(bytes, spec.precision)), spec);
                } else if let Some(word) = bad_address(address) {
                    pointer::complain(out, word, spec);
                } else {
                    let text = self.env.kernel_text(address).unwrap_or(b"(efault)");
                    number::text(out, text, spec);
                }
            }
        }
    }

    /// The value of a node. For a printing node, the address of its text.
    fn value(&mut self, id: Id) -> u64 {
        match self.program.node(id) {
            Node::Const(value) => value,
            Node::Load { offset, ty } => self.load(self.record.get(offset as usize..), ty),
            Node::At { address, ty } => {
                let address = self.value(address);
                let bytes = self.region(address);
                self.load(bytes, ty)
            }
            Node::Data { offset, relative } => {
                let word = self.word(offset);
                let base = if relative { u64::from(offset) + 4 } else { 0 };
                RECORD + base + u64::from(word & 0xffff)
            }
            Node::DataLength { offset } => u64::from(self.word(offset) >> 16),
            Node::Wrap { value, ty } => ty.wrap(self.value(value)),
            Node::Neg { value, ty } => ty.wrap(self.value(value).wrapping_neg()),
            Node::Invert { value, ty } => ty.wrap(!self.value(value)),
            Node::Not(value) => u64::from(self.value(value) == 0),
            Node::Binary { op: Binary::And, a, b, .. } => u64::from(self.value(a) != 0 && self.value(b) != 0),
            Node::Binary { op: Binary::Or, a, b, .. } => u64::from(self.value(a) != 0 || self.value(b) != 0),
            Node::Binary { op, a, b, ty } => apply(op, self.value(a), self.value(b), ty),
            Node::Cond { condition, then, otherwise } => {
                let chosen = if self.value(condition) != 0 { then } else { otherwise };
                self.value(chosen)
            }
            Node::Swap { value, size } => {
                let value = self.value(value);
                match size {
                    2 => u64::from((value as u16).swap_bytes()),
                    4 => u64::from((value as u32).swap_bytes()),
                    _ => value.swap_bytes(),
                }
            }
            Node::Jiffies => self.env.jiffies(),
            Node::Local(local) => self.locals.get(local as usize).copied().unwrap_or_default(),
            Node::Set { local, value } => {
                let value = self.value(value);
                if let Some(local) = self.locals.get_mut(local as usize) {
                    *local = value;
                }
                value
            }
            Node::Block { body, value } => {
                let program = self.program;
                for id in body.of(&program.lists) {
                    self.value(*id);
                }
                self.value(value)
            }
            Node::Bits { value, offset, bits, signed } => {
                let value = self.value(value) << (64 - offset - bits);
                if signed { ((value as i64) >> (64 - bits)) as u64 } else { value >> (64 - bits) }
            }
            Node::WithBits { value, member, offset, bits } => {
                let mask = (u64::MAX >> (64 - bits)) << offset;
                let member = self.value(member) << offset & mask;
                self.value(value) & !mask | member
            }
            Node::ScratchEnd => SCRATCH + self.scratch.len() as u64,
            Node::Print(pieces) => {
                let program = self.program;
                let mut text = Vec::new();
                self.segs(&mut text, pieces.of(&program.segs));
                self.scratch.extend_from_slice(&text);
                0
            }
            node @ (Node::Flags { .. }
            | Node::Symbolic { .. }
            | Node::Bitmask { .. }
            | Node::Hex { .. }
            | Node::Array { .. }
            | Node::Escaped { .. }
            | Node::Layers { .. }
            | Node::Disk { .. }
            | Node::HexDump(_)) => {
                let mut text = Vec::new();
                self.print(&mut text, node);
                let address = SCRATCH + self.scratch.len() as u64;
                self.scratch.extend_from_slice(&text);
                self.scratch.push(0);
                address
            }
        }
    }

    /// Writes the text of a printing node.
    fn print(&mut self, out: &mut Vec<u8>, node: Node) {
        match node {
            Node::Flags { value, delimiter, table } => {
                let value = self.value(value);
                let Program { pool, entries, .. } = self.program;
                flags(out, value, pool, delimiter.of(pool), table.of(entries));
            }
            Node::Symbolic { value, table, other } => {
                let value = self.value(value);
                let entry = table.of(&self.program.entries).iter().find(|entry| entry.value == value);
                // The kernel detects "not found" by the empty output.
                match entry.map(|entry| entry.name).or(other).filter(|name| name.length > 0) {
                    Some(name) => out.extend_from_slice(name.of(&self.program.pool)),
                    None => prefixed_hex(out, value),
                }
            }
            Node::Bitmask { address, length } => {
                let (address, length) = (self.value(address), self.value(length));
                let print = if self.env.lists_bitmasks() { pointer::bitmap_list } else { pointer::bitmap };
                if let Some(bytes) = self.region(address) {
                    print(out, bytes, (length as i32).wrapping_mul(8).clamp(0, LARGEST));
                }
            }
            Node::Hex { address, length, joined } => {
                let (address, length) = (self.value(address), self.value(length) as i32);
                let Some(bytes) = self.region(address) else { return };
                let bytes = bytes.get(..length.max(0) as usize).unwrap_or(bytes);
                hex_bytes(out, bytes, (!joined).then_some(b' '));
            }
            Node::Array { address, count, size } => {
                let (address, count, size) = (self.value(address), self.value(count), self.value(size));
                out.push(b'{');
                let bytes = if count as i32 > 0 { self.region(address).unwrap_or(&[]) } else { &[] };
                array(out, bytes, count as i32, size);
                out.push(b'}');
            }
            Node::Escaped { address, length } => {
                let (address, length) = (self.value(address), self.value(length));
                let Some(bytes) = self.region(address) else { return };
                escaped(out, bytes.get(..length as usize).unwrap_or(bytes));
            }
            Node::Layers { address, length, count, table } => {
                let [address, length, count] = [address, length, count].map(|id| self.value(id));
                let Program { pool, entries, .. } = self.program;
                let bytes = self.region(address).unwrap_or_default();
                let bytes = bytes.get(..length as usize).unwrap_or(bytes);
                layers(out, bytes, length.checked_div(count).unwrap_or(0), pool, table.of(entries));
            }
            Node::Disk { address } => {
                let address = self.value(address);
                let name = until_nul(self.region(address).unwrap_or_default());
                if !name.is_empty() {
                    out.extend([b"disk=", name, b", "].concat());
                }
            }
            Node::HexDump(index) => {
                if let Some(dump) = self.program.dumps.get(index as usize) {
                    self.hex_dump(out, *dump);
                }
            }
            _ => {}
        }
    }

    /// `print_hex_dump()` to a trace: a newline first, then one line per row.
    fn hex_dump(&mut self, out: &mut Vec<u8>, dump: Dump) {
        let mut prefix = Vec::new();
        self.text(&mut prefix, dump.prefix, Spec::PLAIN);
        let kind = self.value(dump.kind);
        let row = if self.value(dump.row) as i32 == 32 { 32 } else { 16 };
        let group = self.value(dump.group) as i32;
        let (address, length) = (self.value(dump.address), self.value(dump.length));
        let ascii = self.value(dump.ascii) != 0;
        out.push(b'\n');
        let Some(bytes) = self.region(address) else { return };
        let bytes = usize::try_from(length).ok().and_then(|length| bytes.get(..length)).unwrap_or(bytes);
        for (i, line) in bytes.chunks(row).enumerate() {
            out.extend_from_slice(&prefix);
            match kind {
                // DUMP_PREFIX_ADDRESS
                1 => {
                    pointer::hidden(out, Spec::PLAIN);
                    out.extend_from_slice(b": ");
                }
                // DUMP_PREFIX_OFFSET
                2 => out.extend(format!("{:08x}: ", i * row).bytes()),
                _ => {}
            }
            hex_row(out, line, row, group, ascii);
            out.push(b'\n');
        }
    }

    #[inline]
    fn load(&mut self, bytes: Option<&[u8]>, ty: CType) -> u64 {
        let value = bytes.and_then(|bytes| ty.load(bytes));
        self.faulted |= value.is_none();
        value.unwrap_or(0)
    }

    fn word(&mut self, offset: u32) -> u32 {
        self.load(self.record.get(offset as usize..), CType::UINT) as u32
    }

    /// The bytes from an address on; marks the run as faulted if there are none. They are borrowed from the program or
    /// the record. Text that blocks print is only read as text.
    fn region(&mut self, address: u64) -> Option<&'a [u8]> {
        let offset = (address & 0xffff_ffff) as usize;
        let found = match address & !0xffff_ffff {
            RECORD => self.record.get(offset..),
            POOL => self.program.pool.get(offset..),
            _ => None,
        };
        self.faulted |= found.is_none();
        found
    }
}

impl Memory for Eval<'_> {
    #[inline]
    fn bytes_at(&self, address: u64) -> Option<&[u8]> {
        let offset = (address & 0xffff_ffff) as usize;
        match address & !0xffff_ffff {
            RECORD => self.record.get(offset..),
            POOL => self.program.pool.get(offset..),
            SCRATCH => self.scratch.get(offset..),
            _ => None,
        }
    }
}

/// `trace_print_flags_seq()`: names of the set flags, then the remaining bits in hex.
fn flags(out: &mut Vec<u8>, mut value: u64, pool: &[u8], delimiter: &[u8], table: &[Entry]) {
    let mut first = true;
    for entry in table {
        if value == 0 {
            return;
        }
        if value & entry.value != entry.value {
            continue;
        }
        value &= !entry.value;
        if !first {
            out.extend_from_slice(delimiter);
        }
        first = false;
        out.extend_from_slice(entry.name.of(pool));
    }
    if value != 0 {
        if !first {
            out.extend_from_slice(delimiter);
        }
        prefixed_hex(out, value);
    }
}

/// Most bytes of an escaped text, with its NUL (`TRACE_UNTRUSTED_STR_OUTPUT_SIZE` on 64-bit kernels).
const ESCAPED_MAX: usize = 6117;

/// `string_escape_mem()` as events call it for texts of unknown origin: printable ASCII stays, except for blanks,
/// quotes, backslashes and `=`. A text that becomes too long ends with an ellipsis.
fn escaped(out: &mut Vec<u8>, text: &[u8]) {
    const ELLIPSIS: &[u8] = "\u{2026}".as_bytes();
    let one = |byte: u8| match byte {
        b'\n' => b"\\n".to_vec(),
        b'\r' => b"\\r".to_vec(),
        b'\t' => b"\\t".to_vec(),
        0x0b => b"\\v".to_vec(),
        0x0c => b"\\f".to_vec(),
        b'\\' => b"\\\\".to_vec(),
        0x07 => b"\\a".to_vec(),
        0x1b => b"\\e".to_vec(),
        b'"' => b"\\\"".to_vec(),
        b' ' | b'=' | b'\'' => format!("\\{byte:03o}").into_bytes(),
        0x21..=0x7e => vec![byte],
        _ => format!("\\{byte:03o}").into_bytes(),
    };
    let whole: Vec<Vec<u8>> = text.iter().copied().map(one).collect();
    let length = whole.iter().map(Vec::len).sum::<usize>();
    if length < ESCAPED_MAX {
        return out.extend(whole.concat());
    }
    let mut left = ESCAPED_MAX - ELLIPSIS.len() - 1;
    for part in whole {
        let Some(rest) = left.checked_sub(part.len()) else { break };
        left = rest;
        out.extend(part);
    }
    out.extend_from_slice(ELLIPSIS);
}

/// The names of the flags in each mask of `size` bytes, in braces.
fn layers(out: &mut Vec<u8>, bytes: &[u8], size: u64, pool: &[u8], table: &[Entry]) {
    out.push(b'{');
    let size = size as usize;
    let masks = if matches!(size, 1 | 2 | 4 | 8) { bytes.chunks_exact(size) } else { [].chunks_exact(1) };
    for (at, mask) in masks.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let mut mask = CType { size: size as u8, signed: false }.load(mask).unwrap_or_default();
        let mut first = true;
        for entry in table {
            if mask == 0 || mask & entry.value != entry.value {
                continue;
            }
            if !first {
                out.push(b'|');
            }
            first = false;
            out.extend_from_slice(entry.name.of(pool));
            mask &= !entry.value;
        }
    }
    out.push(b'}');
}

/// `trace_print_array_seq()`: elements in hex. With an invalid element size it prints the first byte and continues in
/// bytes.
fn array(out: &mut Vec<u8>, bytes: &[u8], count: i32, mut size: u64) {
    let total = (count.max(0) as u64).saturating_mul(size);
    let mut at = 0u64;
    while at < total {
        let Some(rest) = usize::try_from(at).ok().and_then(|at| bytes.get(at..)) else { return };
        let Some(&byte) = rest.first() else { return };
        let value = match size {
            1 | 2 | 4 | 8 => CType { size: size as u8, signed: false }.load(rest),
            _ => {
                out.extend(format!("BAD SIZE:{size} {byte:#x}").bytes());
                size = 1;
                at += 1;
                continue;
            }
        };
        let Some(value) = value else { return };
        if at > 0 {
            out.push(b',');
        }
        prefixed_hex(out, value);
        at += size;
    }
}

/// `hex_dump_to_buffer()`: one row in groups, then the same bytes as characters.
fn hex_row(out: &mut Vec<u8>, line: &[u8], row: usize, group: i32, ascii: bool) {
    let mut group = match group {
        2 | 4 | 8 => group as usize,
        _ => 1,
    };
    if !line.len().is_multiple_of(group) {
        group = 1;
    }
    let start = out.len();
    for (i, bytes) in line.chunks(group).enumerate() {
        if i > 0 {
            out.push(b' ');
        }
        // Groups print as numbers in native byte order.
        bytes.iter().rev().for_each(|byte| out.extend(hex_pair(*byte)));
    }
    if ascii {
        let column = row * 2 + row / group + 1;
        number::repeat(out, b' ', column.saturating_sub(out.len() - start));
        out.extend(line.iter().map(|byte| if matches!(byte, 0x20..=0x7e) { *byte } else { b'.' }));
    }
}
