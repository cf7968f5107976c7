//! The flat form of a print fmt: a list of operations for the pieces that most events consist of. These are literals,
//! numbers, strings at fixed places of the record, names of flags and values, and choices between them. The evaluator
//! prints the other pieces.
//!
//! The tree walk, the layout of a conversion and a copy of a variable number of bytes cost more than these pieces
//! themselves. [`super::eval`] remains the definition of every piece: a piece is flat only if both print the same, which
//! the tests of this module check.

mod builder;
mod compile;
mod number;

use super::ctype::CType;
use super::eval::Eval;
use super::program::{Program, Run};
use crate::render::env::RenderEnv;
use crate::render::printf::pointer::take;
use crate::render::text_buffer::{BLOCK, TextBuffer};
pub(crate) use builder::Builder;
use number::{Layout, Number};

/// Writes a literal, then a value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Op {
    /// The literal, and how many of its bytes count.
    literal: [u8; BLOCK],
    length: u8,
    value: Value,
}

/// What an operation writes or does after its literal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Nothing,
    /// `%u`
    Unsigned(Number),
    /// `%d`
    Signed(Number),
    /// `%x`
    Hex(Number),
    /// A number with a width, a sign or a prefix.
    Padded(Number, Layout),
    /// `%c`
    Char(Number),
    /// The string at an offset. If the record has no such place, the evaluator prints the piece.
    Text {
        offset: u32,
        piece: u32,
    },
    /// The string of a `__data_loc` or `__rel_loc` word.
    DataText {
        offset: u32,
        relative: bool,
        piece: u32,
    },
    /// `__print_flags`
    Flags {
        value: Number,
        delimiter: Run,
        table: Run,
    },
    /// `__print_symbolic`
    Symbolic {
        value: Number,
        table: Run,
        other: Option<Run>,
    },
    /// Skips this many operations if the number is 0.
    Unless(Number, u32),
    /// Skips this many operations.
    Skip(u32),
    /// A piece that the evaluator prints, by its index.
    Piece(u32),
    /// The register of a system call's argument. It prints in hexadecimal, with a prefix if it is above this value.
    /// A register that the record lacks is 0.
    Register {
        offset: u32,
        prefix_above: u64,
    },
}

/// The operations of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flat(Vec<Op>);

impl Flat {
    /// Writes the event's text. Returns false if the record lacks data that the text needs; part of the text may then
    /// have been written.
    #[inline]
    pub(crate) fn run(
        &self,
        program: &Program,
        record: &[u8],
        env: &dyn RenderEnv,
        out: &mut TextBuffer,
    ) -> bool {
        let mut pieces = Pieces { program, record, env, eval: None };
        self.write(record, &mut pieces, out).is_some() && pieces.eval.is_none_or(|eval| !eval.has_faulted())
    }

    #[inline]
    fn write(&self, record: &[u8], pieces: &mut Pieces<'_>, out: &mut TextBuffer) -> Option<()> {
        let program = pieces.program;
        let mut rest = self.0.as_slice();
        while let Some((op, after)) = rest.split_first() {
            rest = after;
            out.put(&op.literal, usize::from(op.length));
            match &op.value {
                Value::Nothing => {}
                Value::Unsigned(number) => out.decimal(number.read(record)?),
                Value::Signed(number) => {
                    let value = number.read(record)?.cast_signed();
                    // What follows overwrites the sign of a positive number.
                    out.put(b"-", usize::from(value < 0));
                    out.decimal(value.unsigned_abs());
                }
                Value::Hex(number) => out.hex(number.read(record)?),
                Value::Padded(number, layout) => layout.write(number.read(record)?, out),
                Value::Char(number) => out.byte(number.read(record)? as u8),
                Value::Text { offset, piece } => match record.get(*offset as usize..) {
                    Some(text) => out.until_nul(text),
                    None => pieces.write(*piece, out)?,
                },
                Value::DataText { offset, relative, piece } => {
                    let word = CType::UINT.load(record.get(*offset as usize..)?)? as usize;
                    let base = if *relative { *offset as usize + 4 } else { 0 };
                    match record.get(base + (word & 0xffff)..) {
                        Some(text) => out.until_nul(text),
                        None => pieces.write(*piece, out)?,
                    }
                }
                Value::Flags { value, delimiter, table } => {
                    flags(program, value.read(record)?, *delimiter, *table, out);
                }
                Value::Symbolic { value, table, other } => {
                    symbolic(program, value.read(record)?, *table, *other, out);
                }
                Value::Unless(number, skipped) => {
                    if number.read(record)? == 0 {
                        rest = rest.get(*skipped as usize..)?;
                    }
                }
                Value::Skip(skipped) => rest = rest.get(*skipped as usize..)?,
                Value::Piece(index) => pieces.write(*index, out)?,
                Value::Register { offset, prefix_above } => {
                    let value = u64::from_ne_bytes(take(record.get(*offset as usize..).unwrap_or_default()));
                    out.put(b"0x", if value > *prefix_above { 2 } else { 0 });
                    out.hex(value);
                }
            }
        }
        Some(())
    }
}

/// The evaluator, for the pieces that are not flat.
struct Pieces<'a> {
    program: &'a Program,
    record: &'a [u8],
    env: &'a dyn RenderEnv,
    eval: Option<Eval<'a>>,
}

impl Pieces<'_> {
    #[inline(never)]
    fn write(&mut self, index: u32, out: &mut TextBuffer) -> Option<()> {
        let eval = self.eval.get_or_insert_with(|| Eval::new(self.program, self.record, self.env));
        let seg = self.program.segs.get(index as usize)?;
        out.with(|out| eval.seg(out, seg));
        Some(())
    }
}

#[inline]
fn constant(program: &Program, run: Run, out: &mut TextBuffer) {
    let Run { start, length } = run;
    out.start_of(program.pool.get(start as usize..).unwrap_or_default(), length as usize);
}

/// Writes a number in hexadecimal with its prefix.
fn prefixed(value: u64, out: &mut TextBuffer) {
    out.put(b"0x", 2);
    out.hex(value);
}

/// Writes the name of a value. A value without a name prints in hexadecimal, also if the name is empty.
fn symbolic(program: &Program, value: u64, table: Run, other: Option<Run>, out: &mut TextBuffer) {
    let entry = table.of(&program.entries).iter().find(|entry| entry.value == value);
    match entry.map(|entry| entry.name).or(other).filter(|name| name.length > 0) {
        Some(name) => constant(program, name, out),
        None => prefixed(value, out),
    }
}

/// Writes the names of the set flags, then the remaining bits in hexadecimal.
fn flags(program: &Program, mut value: u64, delimiter: Run, table: Run, out: &mut TextBuffer) {
    let start = out.length();
    let delimit = |out: &mut TextBuffer| {
        if out.length() > start {
            constant(program, delimiter, out);
        }
    };
    for entry in table.of(&program.entries) {
        if value == 0 {
            return;
        }
        if value & entry.value == entry.value {
            value &= !entry.value;
            delimit(out);
            constant(program, entry.name, out);
        }
    }
    if value != 0 {
        delimit(out);
        prefixed(value, out);
    }
}

#[cfg(test)]
mod tests;
