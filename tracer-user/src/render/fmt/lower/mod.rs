//! Resolves a print fmt against its event's fields and the kernel's facts, and compiles it to a [`Program`].
//!
//! Types follow C's rules. Constants are folded, so tables and shifts cost nothing when a record is printed. If a
//! name or type cannot be resolved, the error is a text, which `doctor` shows.

use super::ast::{Binary, Expr, PrintFmt, Stmt};
use super::ctype::{CType, Type};
use super::program::{Entry, Id, Node, POOL, Program, RECORD, Run, Seg, UNKNOWN};
use crate::event::{Field, Format};
use crate::render::env::KernelFacts;
use crate::render::printf::pointer::{Extension, until_nul};
use crate::render::printf::spec::{Kind, Piece, pieces};

mod calls;
mod operators;
mod types;

pub(crate) use types::scalar;

/// Signed kernel variables: `memstart_addr` (arch/arm64/include/asm/memory.h) is negative if a kernel for 52 bits of
/// virtual address runs with 48.
const SIGNED: [&str; 1] = ["memstart_addr"];

/// The error is why an event cannot be rendered.
type Result<T> = std::result::Result<T, String>;

pub(crate) fn lower(fmt: &PrintFmt, format: &Format, facts: &dyn KernelFacts) -> Result<Program> {
    let mut lower = Lower {
        format,
        facts,
        program: Program::default(),
        locals: Vec::new(),
        tables: Vec::new(),
        unknown: None,
    };
    let segs = lower.segs(&fmt.format, &fmt.args)?;
    lower.program.main = lower.program.segs.len();
    lower.program.segs.extend(segs);
    lower.program.locals = lower.locals.len();
    Ok(lower.program)
}

struct Local {
    name: String,
    ty: Type,
}

struct Lower<'a> {
    format: &'a Format,
    facts: &'a dyn KernelFacts,
    program: Program,
    locals: Vec<Local>,
    /// Tables of flags that blocks declare, by name.
    tables: Vec<(String, Run)>,
    /// A variable of unknown value that the argument being lowered uses.
    unknown: Option<String>,
}

/// A lowered expression.
#[derive(Clone, Debug)]
struct Value {
    id: Id,
    ty: Type,
}

impl Lower<'_> {
    fn segs(&mut self, format: &[u8], args: &[Expr]) -> Result<Vec<Seg>> {
        let mut args = args.iter();
        let mut segs = Vec::new();
        for piece in pieces(format) {
            match piece {
                Piece::Literal(text) => segs.push(Seg::Literal(self.text(&text))),
                Piece::Conversion { spec, width_arg, precision_arg, kind } => {
                    let mut next =
                        || args.next().ok_or("the format string has more conversions than arguments");
                    let width = if width_arg { Some(self.known(next()?)?.id) } else { None };
                    let precision = if precision_arg { Some(self.known(next()?)?.id) } else { None };
                    let arg = if kind == Kind::Pointer(Extension::Plain) {
                        let value = self.expr(next()?)?;
                        // A pointer computed from a variable of unknown value prints hidden.
                        self.unknown = None;
                        value.id
                    } else {
                        self.known(next()?)?.id
                    };
                    segs.push(if width.is_some() || precision.is_some() {
                        Seg::Starred { arg, spec, kind, width, precision }
                    } else {
                        Seg::Value { arg, spec, kind }
                    });
                }
            }
        }
        Ok(segs)
    }

    /// Lowers an argument whose value must be known.
    fn known(&mut self, expr: &Expr) -> Result<Value> {
        let value = self.expr(expr)?;
        match self.unknown.take() {
            Some(name) => Err(format!("the value of the kernel's {name} is not known")),
            None => Ok(value),
        }
    }

    fn push(&mut self, node: Node) -> Id {
        self.program.nodes.push(node);
        (self.program.nodes.len() - 1) as Id
    }

    fn value(&mut self, node: Node, ty: Type) -> Value {
        Value { id: self.push(node), ty }
    }

    fn number(&mut self, value: u64, ty: CType) -> Value {
        self.value(Node::Const(ty.wrap(value)), Type::Int(ty))
    }

    /// Adds bytes and a NUL to the pool.
    fn text(&mut self, text: &[u8]) -> Run {
        let run = Run::append(&mut self.program.pool, text.iter().copied());
        self.program.pool.push(0);
        run
    }

    fn expr(&mut self, expr: &Expr) -> Result<Value> {
        Ok(match expr {
            Expr::Number(value, ty) => self.number(*value, *ty),
            Expr::Text(text) => {
                let run = self.text(text);
                self.value(Node::Const(POOL + u64::from(run.start)), Type::text())
            }
            Expr::Name(name) => self.name(name)?,
            Expr::Field(name) => self.field(name)?,
            Expr::Member { base, name, arrow } => self.member(base, name, *arrow)?,
            Expr::Index(base, index) => {
                let address = self.offset(base, index, Binary::Add)?;
                self.deref(&address)?
            }
            Expr::Unary(op, operand) => self.unary(*op, operand)?,
            Expr::Binary(op, a, b) => self.binary(*op, a, b)?,
            Expr::Cond(condition, then, otherwise) => self.cond(condition, then.as_deref(), otherwise)?,
            Expr::Cast(ty, operand) => {
                let ty = self.type_of(ty)?;
                let value = self.expr(operand)?;
                self.convert(&value, ty)
            }
            Expr::SizeofType(ty) => {
                let ty = self.type_of(ty)?;
                let size = self.size_of(&ty)?;
                self.number(size, CType::ULONG)
            }
            Expr::Sizeof(operand) => {
                let size = self.sizeof(operand)?;
                self.number(size, CType::ULONG)
            }
            Expr::Call(name, args) => self.call(name, args)?,
            Expr::Braces(_) => return Err("a braced list where a value belongs".into()),
            Expr::Comma(_, last) => self.expr(last)?,
            Expr::Block(body) => self.block(body)?,
        })
    }

    /// The innermost local with this name, and its number.
    fn local(&self, name: &str) -> Option<(usize, &Local)> {
        self.locals.iter().enumerate().rfind(|(_, local)| local.name == name)
    }

    fn name(&mut self, name: &str) -> Result<Value> {
        if let Some((at, local)) = self.local(name) {
            let ty = local.ty.clone();
            return Ok(self.value(Node::Local(at as u32), ty));
        }
        match name {
            "true" => return Ok(self.number(1, CType::INT)),
            "false" => return Ok(self.number(0, CType::INT)),
            "NULL" => return Ok(self.value(Node::Const(0), Type::Ptr(Box::new(Type::Void)))),
            // The event's own buffer, the first argument of helpers that print.
            "p" => return Ok(self.value(Node::Const(0), Type::Void)),
            "jiffies" | "jiffies_64" => return Ok(self.value(Node::Jiffies, Type::Int(CType::ULONG))),
            "REC" => return Ok(self.value(Node::Const(RECORD), Type::Ptr(Box::new(Type::Void)))),
            _ => {}
        }
        if let Some(value) = self.facts.constant(name) {
            // Enum constants are `int` if they fit, as in the compiler.
            let ty = match value {
                _ if i32::try_from(value).is_ok() => CType::INT,
                _ if u32::try_from(value).is_ok() => CType::UINT,
                _ => CType::LONG,
            };
            return Ok(self.number(value as u64, ty));
        }
        if let Some(value) = self.facts.variable(name) {
            let ty = if SIGNED.contains(&name) { CType::LONG } else { CType::ULONG };
            return Ok(self.number(value, ty));
        }
        // Only variables with pointer-like values have names in lower case.
        if name.starts_with(|c: char| c.is_ascii_lowercase()) {
            self.unknown.get_or_insert_with(|| name.to_owned());
            return Ok(self.value(Node::Const(UNKNOWN), Type::Int(CType::ULONG)));
        }
        Err(format!("the value of {name} is not known"))
    }

    fn find(&self, name: &str) -> Result<Field> {
        let bare = name.strip_prefix("__data_loc_").or_else(|| name.strip_prefix("__rel_loc_"));
        self.format
            .field(name)
            .or_else(|| bare.and_then(|bare| self.format.field(bare)))
            .cloned()
            .ok_or_else(|| format!("the record has no field {name}"))
    }

    fn field(&mut self, name: &str) -> Result<Value> {
        let field = self.find(name)?;
        let is_word = field.is_data_loc() || field.is_rel_loc();
        let ty = if is_word { Type::Int(CType::UINT) } else { Self::field_type(&field) };
        let node = match ty {
            Type::Int(_) | Type::Ptr(_) => Node::Load { offset: field.offset as u32, ty: ty.scalar() },
            _ => Node::Const(RECORD + field.offset as u64),
        };
        Ok(self.value(node, ty))
    }

    fn member(&mut self, base: &Expr, name: &str, arrow: bool) -> Result<Value> {
        // The common fields (`struct trace_entry`).
        if matches!(base, Expr::Field(entry) if entry == "ent")
            && self.format.field("ent").is_none()
            && !arrow
        {
            return self.field(&format!("common_{name}"));
        }
        let base = self.expr(base)?;
        let owner = if arrow { base.ty.target() } else { Some(&base.ty) };
        let Some(Type::Aggregate(aggregate)) = owner else {
            let (operator, expected) = if arrow { ("->", "pointer to a struct") } else { (".", "struct") };
            return Err(format!("{operator}{name} on something that is not a {expected}"));
        };
        let member = self
            .facts
            .member(aggregate, name)
            .ok_or_else(|| format!("the layout of {aggregate}.{name} is not known"))?;
        if !(1..=64).contains(&member.bits) {
            return Err(format!("{aggregate}.{name} is no number"));
        }
        // Bytes of the smallest number with this many bits.
        let bytes = |bits: u32| (bits.next_power_of_two().max(8) / 8) as u8;
        let ty = Type::Int(CType { size: bytes(member.bits), signed: member.signed });
        let part = |value, offset: u32| Node::Bits {
            value,
            offset: offset as u8,
            bits: member.bits as u8,
            signed: member.signed,
        };
        let is_local = matches!(self.program.node(base.id), Node::Local(_));
        if is_local && !arrow {
            if member.bit_offset.saturating_add(member.bits) > 64 {
                return Err(format!("{aggregate} is too large for a local"));
            }
            return Ok(self.value(part(base.id, member.bit_offset), ty));
        }
        let shift = member.bit_offset % 8;
        if shift + member.bits > 64 {
            return Err(format!("{aggregate}.{name} is no number"));
        }
        let from = self.push(Node::Const(u64::from(member.bit_offset / 8)));
        let address = self.push(Node::Binary { op: Binary::Add, a: base.id, b: from, ty: CType::ULONG });
        let size = bytes(shift + member.bits);
        let at = self.push(Node::At { address, ty: CType { size, signed: false } });
        Ok(self.value(part(at, shift), ty))
    }

    /// Reads the target of a pointer; arrays and aggregates stay addresses.
    fn deref(&mut self, pointer: &Value) -> Result<Value> {
        match pointer.ty.target().cloned() {
            Some(ty @ (Type::Int(_) | Type::Ptr(_))) => {
                let node = Node::At { address: pointer.id, ty: ty.scalar() };
                Ok(self.value(node, ty))
            }
            Some(Type::Void) | None => Err("dereferences a pointer of unknown type".into()),
            Some(ty) => Ok(Value { id: pointer.id, ty }),
        }
    }

    fn block(&mut self, body: &[Stmt]) -> Result<Value> {
        let outer = self.locals.len();
        let mut ids = Vec::new();
        let mut last = None;
        for statement in body {
            match statement {
                Stmt::Declare { name, array: true, value: Some(Expr::Braces(items)), .. }
                    if items.iter().all(|item| matches!(item, Expr::Braces(_))) =>
                {
                    let table = self.entries(items)?;
                    self.tables.push((name.clone(), table));
                }
                Stmt::Declare { ty, name, array, value } => {
                    let ty = self.type_of(ty)?;
                    let (ty, value) = match value {
                        Some(Expr::Braces(items)) if *array => {
                            let address = self.pointer_array(items)?;
                            (Type::Array(Box::new(ty)), Some(address))
                        }
                        Some(value) => {
                            let value = self.expr(value)?;
                            let value = self.convert(&value, ty.clone());
                            (ty, Some(value.id))
                        }
                        None => (ty, None),
                    };
                    self.locals.push(Local { name: name.clone(), ty });
                    if let Some(value) = value {
                        let local = (self.locals.len() - 1) as u32;
                        ids.push(self.push(Node::Set { local, value }));
                    }
                }
                Stmt::Assign(place, value) => ids.push(self.assign(place, value)?),
                Stmt::Expr(value) => {
                    let value = self.expr(value)?;
                    ids.push(value.id);
                    last = Some(value);
                }
            }
        }
        // Names end with the block, but their slots stay.
        self.locals.iter_mut().skip(outer).for_each(|local| local.name.clear());
        let Some(last) = last.filter(|last| ids.last() == Some(&last.id)) else {
            return Err("a block without a value".into());
        };
        ids.pop();
        let body = Run::append(&mut self.program.lists, ids);
        Ok(self.value(Node::Block { body, value: last.id }, last.ty))
    }

    fn assign(&mut self, place: &Expr, value: &Expr) -> Result<Id> {
        let value = self.expr(value)?;
        let (whole, member) = match place {
            Expr::Member { base, name, arrow: false } => (base.as_ref(), Some(name)),
            _ => (place, None),
        };
        let Expr::Name(name) = whole else { return Err("assigns to something that is not a local".into()) };
        let Some((at, declared)) = self.local(name) else {
            return Err(format!("assigns to {name}, which is not a local"));
        };
        let (local, ty) = (at as u32, declared.ty.clone());
        let Some(member) = member else {
            let value = self.convert(&value, ty);
            return Ok(self.push(Node::Set { local, value: value.id }));
        };
        let Type::Aggregate(aggregate) = ty else { return Err(format!("{name} has no members")) };
        let layout = self
            .facts
            .member(&aggregate, member)
            .filter(|layout| layout.bits > 0 && layout.bit_offset.saturating_add(layout.bits) <= 64)
            .ok_or_else(|| format!("the layout of {aggregate}.{member} is not known"))?;
        let old = self.push(Node::Local(local));
        let value = self.push(Node::WithBits {
            value: old,
            member: value.id,
            offset: layout.bit_offset as u8,
            bits: layout.bits as u8,
        });
        Ok(self.push(Node::Set { local, value }))
    }

    /// Puts an array of strings into the pool. Returns the node of its address.
    fn pointer_array(&mut self, items: &[Expr]) -> Result<Id> {
        let mut words = Vec::new();
        for item in items {
            let value = self.expr(item)?;
            let known = self.program.constant(value.id).filter(|_| value.ty.target().is_some());
            words.push(known.ok_or("an array of other than strings")?);
        }
        let start = self.program.pool.len() as u64;
        for word in words {
            self.program.pool.extend_from_slice(&word.to_ne_bytes());
        }
        Ok(self.push(Node::Const(POOL + start)))
    }

    fn entries(&mut self, items: &[Expr]) -> Result<Run> {
        let mut entries = Vec::new();
        for item in items {
            let Expr::Braces(pair) = item else { return Err("a table's entry is no pair".into()) };
            let (value, name) = match pair.as_slice() {
                [value, Expr::Text(name)] => (value, name),
                // A null name ends the table; `{ }` is all zeros.
                [] | [_, _] => break,
                _ => return Err("a table's entry is no pair".into()),
            };
            let value = self.known(value)?;
            let value = self.program.constant(value.id).ok_or("a table's value is no constant")?;
            entries.push(Entry { value, name: self.text(until_nul(name)) });
        }
        Ok(Run::append(&mut self.program.entries, entries))
    }
}
