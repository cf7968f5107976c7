//! Compiles the pieces of a program to operations.

use super::number::{Layout, Number};
use super::{Builder, Flat, Value};
use crate::render::fmt::ast::Binary;
use crate::render::fmt::ctype::CType;
use crate::render::fmt::program::{Id, Node, POOL, Program, RECORD, Seg, apply};
use crate::render::printf;
use crate::render::printf::pointer::until_nul;
use crate::render::printf::spec::{Kind, Spec};

impl Flat {
    /// The operations that write a text and then a program's text.
    pub(crate) fn of(before: &[u8], program: &Program) -> Self {
        let mut compiler = Compiler { program, builder: Builder::default(), piece: 0 };
        compiler.builder.literal(before);
        for (piece, seg) in (0..).zip(&program.segs).skip(program.main) {
            compiler.piece = piece;
            match *seg {
                Seg::Literal(run) => compiler.builder.literal(run.of(&program.pool)),
                Seg::Value { arg, spec, kind } => compiler.conversion(arg, spec, kind),
                Seg::Starred { .. } => compiler.evaluated(),
            }
        }
        compiler.builder.finish()
    }
}

struct Compiler<'a> {
    program: &'a Program,
    builder: Builder,
    /// The index of the piece that is compiled.
    piece: u32,
}

impl Compiler<'_> {
    /// Lets the evaluator print the piece. In a branch of a choice, it takes the same branch.
    fn evaluated(&mut self) {
        self.builder.value(Value::Piece(self.piece));
    }

    fn conversion(&mut self, arg: Id, spec: Spec, kind: Kind) {
        if let Node::Cond { condition, then, otherwise } = self.program.node(arg) {
            return match number(self.program, condition) {
                Some(condition) => self.choice(condition, [then, otherwise], spec, kind),
                None => self.evaluated(),
            };
        }
        let literal = match kind {
            Kind::Number(conversion) => self.known_number(arg, spec, conversion),
            Kind::Text if is_unlimited(spec) => self.known_text(arg),
            Kind::Text | Kind::Char | Kind::Pointer(_) => None,
        };
        if let Some(literal) = literal {
            return self.builder.literal(&literal);
        }
        let value = match kind {
            Kind::Number(conversion) => self.number(arg, spec, conversion),
            Kind::Char if spec.width <= 1 => number(self.program, arg).map(Value::Char),
            Kind::Text if is_unlimited(spec) => self.text(arg, spec),
            Kind::Char | Kind::Text | Kind::Pointer(_) => None,
        };
        self.builder.value(value.unwrap_or(Value::Piece(self.piece)));
    }

    /// `condition ? then : otherwise`
    fn choice(&mut self, condition: Number, [then, otherwise]: [Id; 2], spec: Spec, kind: Kind) {
        let unless = self.builder.value(Value::Nothing);
        self.conversion(then, spec, kind);
        let skip = self.builder.value(Value::Nothing);
        self.conversion(otherwise, spec, kind);
        let end = self.builder.flush();
        self.builder.replace(unless, Value::Unless(condition, (skip - unless) as u32));
        self.builder.replace(skip, Value::Skip((end - skip - 1) as u32));
    }

    fn known_number(&self, arg: Id, spec: Spec, conversion: printf::spec::Number) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        printf::number::number(&mut text, constant(self.program, arg)?, conversion, spec);
        Some(text)
    }

    fn number(&self, arg: Id, spec: Spec, conversion: printf::spec::Number) -> Option<Value> {
        let number = number(self.program, arg)?;
        let number = number.converted(CType { size: conversion.size, signed: conversion.signed });
        Some(match conversion.base {
            10 if spec.is_plain() && conversion.signed => Value::Signed(number),
            10 if spec.is_plain() => Value::Unsigned(number),
            16 if spec.is_plain() && conversion.lower && !conversion.signed => Value::Hex(number),
            _ => Value::Padded(number, Layout::of(conversion, spec)?),
        })
    }

    fn known_text(&self, arg: Id) -> Option<Vec<u8>> {
        let start = offset(constant(self.program, arg)?, POOL)?;
        Some(until_nul(self.program.pool.get(start as usize..)?).to_vec())
    }

    fn text(&self, arg: Id, spec: Spec) -> Option<Value> {
        let (program, piece) = (self.program, self.piece);
        Some(match program.node(arg) {
            Node::Data { offset, relative } => Value::DataText { offset, relative, piece },
            // With flags, a NUL ends the text.
            Node::Flags { value, delimiter, table } if spec == Spec::PLAIN => {
                Value::Flags { value: number(program, value)?, delimiter, table }
            }
            Node::Symbolic { value, table, other } if spec == Spec::PLAIN => {
                Value::Symbolic { value: number(program, value)?, table, other }
            }
            _ => Value::Text { offset: offset(constant(program, arg)?, RECORD)?, piece },
        })
    }
}

/// Whether a string has no width and no precision.
fn is_unlimited(spec: Spec) -> bool {
    spec.width <= 0 && spec.precision < 0
}

/// The number that a node computes from one number of the record; `None` if it has another form.
fn number(program: &Program, id: Id) -> Option<Number> {
    match program.node(id) {
        Node::Load { offset, ty } => Some(Number::at(offset, ty)),
        Node::At { address, ty } => Some(Number::at(offset(constant(program, address)?, RECORD)?, ty)),
        Node::DataLength { offset } => {
            Some(Number::at(offset, CType::UINT).then(Binary::Shr, 16, CType::UINT))
        }
        Node::Wrap { value, ty } => Some(number(program, value)?.converted(ty)),
        Node::Not(value) => Some(number(program, value)?.then(Binary::Eq, 0, CType::ULONG)),
        Node::Binary { op: Binary::And | Binary::Or, .. } => None,
        Node::Binary { op, a, b, ty } => match constant(program, b) {
            Some(constant) => Some(number(program, a)?.then(op, constant, ty)),
            None if matches!(op, Binary::Add | Binary::Mul | Binary::BitAnd | Binary::BitOr) => {
                Some(number(program, b)?.then(op, constant(program, a)?, ty))
            }
            None => None,
        },
        _ => None,
    }
}

/// The value of a node that has no input.
fn constant(program: &Program, id: Id) -> Option<u64> {
    match program.node(id) {
        Node::Const(value) => Some(value),
        Node::Wrap { value, ty } => Some(ty.wrap(constant(program, value)?)),
        Node::Binary { op, a, b, ty } => Some(apply(op, constant(program, a)?, constant(program, b)?, ty)),
        _ => None,
    }
}

/// The offset of an address in the memory that begins at `base`.
fn offset(address: u64, base: u64) -> Option<u32> {
    (address & !0xffff_ffff == base).then_some(address as u32)
}
