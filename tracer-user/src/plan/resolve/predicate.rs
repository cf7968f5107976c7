//! Resolves one predicate against an event's fields: the part of the kernel's `parse_pred()` that follows reading.
//!
//! Checks are in the kernel's order. A draft whose value could not be read undergoes the checks that the kernel makes
//! before it reads the value. After them, the lexer's fault is the kernel's.

use super::{ResolveEnv, find_field, is_function_event, pattern};
use crate::event::{Field, FieldClass, Format};
use crate::lang::filter::ast::Value;
use crate::lang::filter::{Draft, ErrorKind, Fault, Op, ValueKind};
use crate::lang::{Span, cpulist, ctype, number};
use crate::plan::filter::{CpusOp, CpusSubject, Filter, NumberOp, Place, Test, Text};

/// Resolves a draft; None if it is unfinished and has no other fault.
pub(super) fn resolve(
    text: &[u8],
    draft: &Draft,
    format: &Format,
    env: &dyn ResolveEnv,
) -> Result<Option<Filter>, Fault> {
    let name = &draft.field;
    let Some(field) = find_field(format, &name.text, env.dialect()) else {
        return Err(Fault::at(ErrorKind::FieldNotFound, name.span.end, name.span));
    };
    let Some((op, op_span)) = draft.op else { return Ok(None) };
    let at = ctype::skip_space(text, op_span.end);
    let whole = Subject { field: &field, name: name.span, op, op_span, at };
    let value = draft.value.as_ref().filter(|_| !draft.broken);
    if draft.function {
        return whole.function(value, env);
    }
    if is_function_event(format) {
        return whole.function_event(value);
    }
    match draft.value.as_ref().map(|value| value.kind) {
        Some(ValueKind::Cpus) => whole.cpus(value, env),
        Some(ValueKind::Text(_)) => whole.text(value, draft.user),
        Some(ValueKind::Number) => whole.number(value),
        Some(ValueKind::Symbol | ValueKind::Functions(_)) | None => Ok(None),
    }
}

/// The left side and the operator.
struct Subject<'a> {
    field: &'a Field,
    name: Span,
    op: Op,
    op_span: Span,
    /// Where the value starts.
    at: usize,
}

type Resolved = Result<Option<Filter>, Fault>;

impl Subject<'_> {
    /// A fault that the kernel places at the value's first byte.
    fn refuse<T>(&self, kind: ErrorKind, span: Span) -> Result<T, Fault> {
        Err(Fault::at(kind, self.at, span))
    }

    fn place(&self) -> Place {
        Place { offset: self.field.offset as u16, size: self.field.size as u16 }
    }

    /// Whether the kernel has a comparison for numbers of the field's size. Otherwise the kernel accepts the predicate,
    /// which never matches.
    fn is_word(&self) -> bool {
        matches!(self.field.size, 1 | 2 | 4 | 8)
    }

    fn function(&self, value: Option<&Value>, env: &dyn ResolveEnv) -> Resolved {
        if self.field.size != size_of::<u64>() {
            return self.refuse(ErrorKind::IllegalFieldOp, self.name);
        }
        if !matches!(self.op, Op::Eq | Op::Ne) {
            return self.refuse(ErrorKind::InvalidOp, self.op_span);
        }
        let Some(value) = value else { return Ok(None) };
        let refuse = |kind| Fault::at(kind, value.span.end, value.span);
        let address = if value.text.first().is_some_and(u8::is_ascii_digit) {
            number::unsigned(&value.text).ok_or(refuse(ErrorKind::InvalidValue))?
        } else {
            let name = std::str::from_utf8(&value.text).ok();
            let address = name.filter(|name| !name.is_empty()).and_then(|name| env.symbol_address(name));
            address.filter(|address| *address != 0).ok_or(refuse(ErrorKind::NoFunction))?
        };
        let (low, high) = env.symbol_extent(address).ok_or(refuse(ErrorKind::NoFunction))?;
        let test = Test::Function { place: self.place(), low, high, not: self.op == Op::Ne };
        Ok(Some(Filter::Test(test)))
    }

    /// perf reads the value; the filter itself has no test for it and never matches.
    fn function_event(&self, value: Option<&Value>) -> Resolved {
        if self.field.name != "ip" {
            return self.refuse(ErrorKind::IpFieldOnly, self.name);
        }
        Ok(value.map(|_| Filter::Const(false)))
    }

    fn cpus(&self, value: Option<&Value>, env: &dyn ResolveEnv) -> Resolved {
        if !matches!(self.field.class, FieldClass::CpuMask | FieldClass::Cpu | FieldClass::Number) {
            return self.refuse(ErrorKind::IllegalFieldOp, self.name);
        }
        let op = match self.op {
            Op::Eq => CpusOp::Eq,
            Op::Ne => CpusOp::Ne,
            Op::And => CpusOp::And,
            _ => return self.refuse(ErrorKind::IllegalFieldOp, self.op_span),
        };
        let Some(value) = value else { return Ok(None) };
        let Some(set) = cpulist::parse(&value.text, env.cpu_ids()) else {
            return Err(Fault::at(ErrorKind::InvalidCpulist, value.span.end - 1, value.span));
        };
        Ok(Some(self.cpu_set(op, &set, env.cpu_ids())))
    }

    /// Compares with a set of CPUs. A mask is compared with the set, a number with a set of one as a number. A number
    /// never equals any other set, and differs from it only if it is a valid CPU.
    fn cpu_set(&self, op: CpusOp, set: &[u32], cpu_ids: u32) -> Filter {
        let cpus = |subject| Filter::Test(Test::Cpus { subject, op, set: set.to_vec() });
        let single = match *set {
            [cpu] => Some(cpu),
            _ => None,
        };
        let equality = if op == CpusOp::Ne { NumberOp::Ne } else { NumberOp::Eq };
        match self.field.class {
            FieldClass::CpuMask => cpus(CpusSubject::Mask { offset: self.place().offset }),
            FieldClass::Cpu => match (single, op) {
                (Some(cpu), _) => Filter::Test(Test::Cpu { op: equality, value: cpu as i32 }),
                (None, CpusOp::Eq) => Filter::Const(false),
                (None, CpusOp::Ne) => Filter::Const(true),
                (None, CpusOp::And) if set.is_empty() => Filter::Const(false),
                (None, CpusOp::And) => cpus(CpusSubject::Current),
            },
            _ if !self.is_word() => Filter::Const(false),
            _ => {
                // The kernel converts the number to `unsigned int`: of eight bytes, it uses the lower four.
                let mut place = self.place();
                place.size = place.size.min(4);
                match (single, op) {
                    (Some(cpu), _) => self.comparison(equality, false, u64::from(cpu)),
                    (None, CpusOp::Eq) => Filter::Const(false),
                    (None, CpusOp::Ne) if place.size == 1 && cpu_ids > 0xff => Filter::Const(true),
                    (None, CpusOp::Ne) => {
                        let value = u64::from(cpu_ids);
                        Filter::Test(Test::Number { place, signed: false, op: NumberOp::Lt, value })
                    }
                    (None, CpusOp::And) if set.is_empty() => Filter::Const(false),
                    (None, CpusOp::And) => cpus(CpusSubject::Scalar { place }),
                }
            }
        }
    }

    fn text(&self, value: Option<&Value>, user: bool) -> Resolved {
        if !matches!(self.op, Op::Eq | Op::Ne | Op::Glob) {
            return self.refuse(ErrorKind::IllegalFieldOp, self.op_span);
        }
        let offset = self.place().offset;
        let text = match self.field.class {
            FieldClass::StaticString if self.field.size == 0 => Text::Open { offset },
            FieldClass::StaticString => Text::Static(self.place()),
            FieldClass::DynString => Text::Dyn { offset },
            FieldClass::RelString => Text::Rel { offset },
            FieldClass::PtrString => Text::Pointer { place: self.place(), user },
            FieldClass::Comm => Text::Comm,
            FieldClass::Number | FieldClass::CpuMask | FieldClass::Cpu | FieldClass::Stacktrace => {
                return self.refuse(ErrorKind::ExpectDigit, self.name);
            }
        };
        Ok(value.map(|value| {
            let (pattern, not) = pattern::build(self.op, &value.text);
            Filter::Test(Test::Text { text, pattern, not })
        }))
    }

    fn number(&self, value: Option<&Value>) -> Resolved {
        if self.field.class.is_string() {
            return self.refuse(ErrorKind::ExpectString, self.name);
        }
        let op = match self.op {
            Op::Glob => return self.refuse(ErrorKind::IllegalFieldOp, self.op_span),
            Op::Ne => NumberOp::Ne,
            Op::Eq => NumberOp::Eq,
            Op::Le => NumberOp::Le,
            Op::Lt => NumberOp::Lt,
            Op::Ge => NumberOp::Ge,
            Op::Gt => NumberOp::Gt,
            Op::And => NumberOp::And,
        };
        let Some(value) = value else { return Ok(None) };
        let bits = if self.field.signed {
            number::signed(&value.text).map(|number| number as u64)
        } else {
            number::unsigned(&value.text)
        };
        let Some(bits) = bits else { return self.refuse(ErrorKind::IllegalNumber, value.span) };
        Ok(Some(match self.field.class {
            // The kernel's comparison of CPUs has no `&`.
            FieldClass::Cpu if op == NumberOp::And => Filter::Const(false),
            FieldClass::Cpu => Filter::Test(Test::Cpu { op, value: bits as i32 }),
            _ if self.is_word() => self.comparison(op, self.field.signed, bits),
            _ => Filter::Const(false),
        }))
    }

    /// Compares the field as a number with `bits`, truncated to the field's size and extended by its sign again.
    fn comparison(&self, op: NumberOp, signed: bool, bits: u64) -> Filter {
        let unused = 64 - 8 * self.field.size as u32;
        let cut = bits << unused;
        let value = if signed { ((cut as i64) >> unused) as u64 } else { cut >> unused };
        Filter::Test(Test::Number { place: self.place(), signed, op, value })
    }
}
