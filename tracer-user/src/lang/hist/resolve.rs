//! Resolves expressions for an event: names become fields, variables defined by the same command, or variables of other
//! histograms.
//!
//! The order of the checks is the kernel's (`parse_expr()`, `parse_atom()` and their callees).

use rustix::io::Errno;

use super::super::Span;
use super::super::number;
use super::World;
use super::checked::Hist;
use super::dialect::{Dialect, Feature};
use super::error::{ErrorKind, Log};
use super::expr::{Expr, ExprKind, Name, Operator, has_operator};
use super::set::Set;
use super::split::Pieces;
use super::value::{Flags, Function, Value};
use crate::event::dynamic::latin1;
use crate::event::{Field, FieldClass, Format};

/// `HIST_DIV_SHIFT`: a division by a constant up to 2^20 multiplies and shifts instead.
const DIVISION_SHIFT: u32 = 20;

/// A variable that the command defines: its name, and the remaining part of its expression in the kernel.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) name: Vec<u8>,
    pub(super) left: Span,
}

pub(super) struct Resolver<'a> {
    pub(super) set: &'a Set,
    pub(super) world: &'a dyn World,
    /// Text of the command, to which the spans refer.
    pub(super) text: &'a [u8],
    /// Whether a user wrote the command; otherwise the kernel generated it.
    pub(super) given: bool,
    pub(super) definitions: &'a [Definition],
    pub(super) hist: &'a mut Hist,
    pub(super) log: &'a mut Log,
}

impl Resolver<'_> {
    pub(super) fn error(&mut self, kind: ErrorKind, span: Span) -> Errno {
        self.log.add(kind, span.of(self.text), self.given.then_some(span))
    }

    /// Resolves an expression; `variable` is the name of the variable that receives it.
    pub(super) fn expression(
        &mut self,
        expr: &Expr,
        flags: Flags,
        variable: Option<&[u8]>,
    ) -> Result<Value, Errno> {
        match &expr.kind {
            ExprKind::Bad(None) => Err(Errno::INVAL),
            ExprKind::Bad(Some((kind, span))) => Err(self.error(*kind, *span)),
            ExprKind::Number => self.number(expr.span, flags, variable),
            ExprKind::Name(name) => self.name(name, flags, variable),
            ExprKind::Negated(operand) => self.negated(operand, flags, variable),
            ExprKind::Binary(operator, a, b) => self.binary(*operator, a, b, flags, variable),
        }
    }

    /// Resolves a part without operators (`parse_atom()`). Also returns the remaining part of its text.
    pub(super) fn atom(&mut self, part: Span, flags: Flags) -> (Result<Value, Errno>, Span) {
        if part.of(self.text).first().is_some_and(u8::is_ascii_digit) {
            return (self.number(part, flags, None), part);
        }
        let (name, left) = Name::read(self.text, part);
        (self.name(&name, flags, None), left)
    }

    fn number(&mut self, span: Span, flags: Flags, variable: Option<&[u8]>) -> Result<Value, Errno> {
        let Some(constant) = number::unsigned(span.of(self.text)) else {
            return Err(self.error(ErrorKind::ExpectNumber, span));
        };
        let mut value = Value::make(None, flags.and(Flags::CONST), variable).ok_or(Errno::INVAL)?;
        value.constant = constant;
        Ok(value)
    }

    fn name(&mut self, name: &Name, flags: Flags, variable: Option<&[u8]>) -> Result<Value, Errno> {
        let text = self.text;
        let event = name.event.map(|(system, event)| (system.of(text).to_vec(), event.of(text).to_vec()));
        let own = self.local_definition(event.as_ref(), name.name);
        if own.is_none() && is_reference(name.name.of(text)) {
            let behind = Span::new(name.name.start + 1, name.name.end);
            let found = self.find_event_variable(event.as_ref(), behind.of(text), Some(behind));
            let reference = found.and_then(|found| self.hist.refer_to(&found, event));
            let value = reference.and_then(|reference| self.hist.references.get(reference)).cloned();
            if let Some(value) = value {
                return Ok(match variable {
                    Some(variable) => alias(value, variable),
                    None => value,
                });
            }
            self.error(ErrorKind::VarNotFound, behind);
        }
        let mut flags = flags;
        let (field, buckets) = self.field(own.unwrap_or(name.name), &mut flags)?;
        let mut value = Value::make(field.as_ref(), flags, variable).ok_or(Errno::NOMEM)?;
        value.buckets = buckets;
        Ok(value)
    }

    /// Text of a variable defined by the same command, if the text is a field (`local_field_var_ref()`).
    fn local_definition(&self, event: Option<&(Vec<u8>, Vec<u8>)>, name: Span) -> Option<Span> {
        if event.is_some_and(|(system, event)| !self.hist.is_on(system, event)) {
            return None;
        }
        let name = name.of(self.text).strip_prefix(b"$").filter(|name| !name.is_empty())?;
        let own = self.definitions.iter().filter(|definition| definition.name == name);
        own.map(|definition| definition.left).find(|left| {
            let text = left.of(self.text);
            !has_operator(text) && !is_reference(text)
        })
    }

    /// `FIELD[.MODIFIER]` (`parse_field()`).
    fn field(&mut self, part: Span, flags: &mut Flags) -> Result<(Option<Field>, u64), Errno> {
        let dialect = self.world.dialect();
        let mut pieces = Pieces::of(self.text, part);
        let name_span = pieces.up_to(b'.').unwrap_or(part);
        let name = name_span.of(self.text);
        let mut buckets = 0;
        if let Some(modifier) = pieces.rest() {
            match modify(self.text, modifier, name, *flags, dialect) {
                Ok((flag, width)) => {
                    *flags = flags.and(flag);
                    buckets = width;
                }
                Err(culprit) => return Err(self.error(ErrorKind::BadFieldModifier, culprit)),
            }
        }
        let has = |feature| dialect.has(feature);
        let (field, flag) = match name {
            b"common_timestamp" => {
                self.hist.timestamps = true;
                self.hist.in_usecs |= flags.has(Flags::USECS);
                (None, Flags::TIMESTAMP)
            }
            b"common_stacktrace" if has(Feature::Stacktraces) => (None, Flags::STACKTRACE),
            b"common_cpu" => (None, Flags::CPU),
            b"common_comm" if has(Feature::Comm) => (None, Flags::COMM.and(Flags::STRING)),
            b"hitcount" if has(Feature::NoHitcount) => (None, Flags::HITCOUNT),
            _ => match find_field(&self.hist.event, &latin1(name), dialect) {
                Some(field) if field.size > 0 => (Some(field), Flags::NONE),
                Some(field) if field.class == FieldClass::Cpu => (Some(field), Flags::CPU),
                Some(field) if field.class == FieldClass::Stacktrace => (Some(field), Flags::STACKTRACE),
                Some(field) if field.class == FieldClass::Comm && has(Feature::Comm) => {
                    (Some(field), Flags::COMM.and(Flags::STRING))
                }
                _ => return Err(self.error(ErrorKind::FieldNotFound, name_span)),
            },
        };
        *flags = flags.and(flag);
        Ok((field, buckets))
    }

    fn negated(&mut self, operand: &Expr, flags: Flags, variable: Option<&[u8]>) -> Result<Value, Errno> {
        let mut value = Value::make(None, flags.and(Flags::EXPR), variable).ok_or(Errno::NOMEM)?;
        let inner = self.expression(operand, Flags::NONE, None)?;
        if inner.flags.has(Flags::STRING) {
            return Err(self.error(ErrorKind::InvalidStrOperand, operand.left));
        }
        value.flags = value.flags.and(inner.flags.only(Flags::TIMESTAMP.and(Flags::USECS)));
        value.function = Function::Negate;
        value.size = inner.size;
        value.signed = inner.signed;
        value.ty = Some(inner.ty.clone().ok_or(Errno::NOMEM)?);
        value.operands.push(inner);
        value.name = value.expression_text();
        Ok(value)
    }

    fn binary(
        &mut self,
        operator: Operator,
        a: &Expr,
        b: &Expr,
        flags: Flags,
        variable: Option<&[u8]>,
    ) -> Result<Value, Errno> {
        let one = |this: &mut Self, expr: &Expr| {
            let value = this.expression(expr, Flags::NONE, None)?;
            if value.flags.has(Flags::STRING) {
                return Err(this.error(ErrorKind::InvalidStrOperand, expr.left));
            }
            Ok(value)
        };
        let left = one(self, a)?;
        let mut right = one(self, b)?;
        let ((left_flags, x), (right_flags, y)) = (self.known(&left)?, self.known(&right)?);
        if left_flags.has(Flags::USECS) != right_flags.has(Flags::USECS) {
            return Err(self.log.add_anywhere(ErrorKind::TimestampMismatch));
        }
        let folds = left_flags.has(Flags::CONST) && right_flags.has(Flags::CONST);
        let flags = flags.and(if folds { Flags::CONST } else { Flags::EXPR });
        let flags = flags.and(left.flags.only(Flags::TIMESTAMP.and(Flags::USECS)));
        let mut value = Value::make(None, flags, variable).ok_or(Errno::NOMEM)?;
        for operand in [&left, &right] {
            if operand.flags.has(Flags::VAR_REF)
                && let Some(read_once) = self.hist.read_once.get_mut(operand.reference)
            {
                *read_once = true;
            }
        }
        value.function = match operator {
            Operator::Plus => Function::Plus,
            Operator::Minus => Function::Minus,
            Operator::Times => Function::Times,
            Operator::Over => Function::Over,
        };
        if operator == Operator::Over && right_flags.has(Flags::CONST) {
            if y == 0 {
                self.error(ErrorKind::DivisionByZero, b.left);
                return Err(Errno::DOM);
            }
            right.constant = y;
            value.function = division_by(y);
        }
        if folds {
            // The kernel stores the multiplier in the reference, but reads it from the variable, where it is 0.
            let function = match value.function {
                Function::OverShift(_) if refers(&right) => Function::OverShift(0),
                function => function,
            };
            value.constant = fold(function, x, y);
            value.function = Function::Constant;
            value.name = value.expression_text();
            return Ok(value);
        }
        value.size = left.size;
        value.signed = left.signed;
        value.operator = Some(operator);
        value.ty = Some(left.ty.clone().ok_or(Errno::NOMEM)?);
        value.operands = vec![left, right];
        value.name = value.expression_text();
        Ok(value)
    }

    /// Returns flags and constant of an operand, or of the variable to which it refers (`check_expr_operands()`).
    fn known(&self, operand: &Value) -> Result<(Flags, u64), Errno> {
        let mut value = operand;
        if refers(operand) {
            let owner = self.set.hist(operand.slot.hist).ok_or(Errno::INVAL)?;
            value = owner.variable(operand.name.as_deref().unwrap_or_default()).ok_or(Errno::INVAL)?;
        }
        Ok((value.flags, value.constant))
    }

    /// Finds a variable by name: in the named event, else in the events of `onmatch()`, else in any event
    /// (`find_event_var()`). `culprit` is the place of the name.
    pub(super) fn find_event_variable(
        &mut self,
        event: Option<&(Vec<u8>, Vec<u8>)>,
        name: &[u8],
        culprit: Option<Span>,
    ) -> Option<Value> {
        let given = culprit.filter(|_| self.given);
        if event.is_none() {
            let (set, world, instance) = (self.set, self.world, self.hist.instance);
            let matched = self.hist.matched_events();
            let existing = matched.iter().filter(|(system, event)| world.has_event(system, event));
            let mut found =
                existing.filter_map(|(system, event)| set.file_variable(instance, system, event, name));
            if let Some(variable) = found.next() {
                if found.next().is_some() {
                    self.log.add(ErrorKind::VarNotUnique, name, given);
                    return None;
                }
                return Some(variable.clone());
            }
        }
        let (system, event) = if let Some((system, event)) = event {
            let (system, event) = (latin1(system), latin1(event));
            self.world.has_event(&system, &event).then_some((system, event))?
        } else if let Ok(only) = self.set.only_event_with(self.hist.instance, name) {
            only?
        } else {
            self.log.add(ErrorKind::VarNotUnique, name, given);
            return None;
        };
        self.set.file_variable(self.hist.instance, &system, &event, name).cloned()
    }
}

/// Whether a text is `$` followed by a name.
pub(super) fn is_reference(text: &[u8]) -> bool {
    matches!(text, [b'$', _, ..])
}

/// Whether a value refers to a variable.
fn refers(value: &Value) -> bool {
    value.flags.has(Flags::VAR_REF.and(Flags::ALIAS))
}

/// Creates a variable that is an alias of another one (`create_alias()`).
fn alias(reference: Value, variable: &[u8]) -> Value {
    let flags = reference.flags.only(Flags::TIMESTAMP.and(Flags::USECS));
    Value {
        flags: Flags::ALIAS.and(Flags::VAR).and(flags),
        variable: Some(variable.to_vec()),
        operands: vec![reference.clone()],
        ..reference
    }
}

/// Returns the flag and the bucket width of a modifier. The error is the place of the invalid text.
fn modify(
    text: &[u8],
    modifier: Span,
    field: &[u8],
    flags: Flags,
    dialect: Dialect,
) -> Result<(Flags, u64), Span> {
    let has = |feature| dialect.has(feature);
    let bytes = modifier.of(text);
    let flag = match bytes {
        b"hex" => Flags::HEX,
        b"sym" => Flags::SYM,
        b"symXoffset" => Flags::SYM_OFFSET,
        b"execname" if field == b"common_pid" => Flags::EXECNAME,
        b"syscall" => Flags::SYSCALL,
        b"stacktrace" if has(Feature::Stacktraces) => Flags::STACKTRACE,
        b"log2" => Flags::LOG2,
        b"usecs" => Flags::USECS,
        _ if bytes.starts_with(b"bucket") => {
            let mut rest = Span::new(modifier.start + 6, modifier.end);
            if rest.of(text).first() == Some(&b's') {
                rest.start += 1;
            }
            if rest.of(text).first() != Some(&b'=') {
                return Err(rest);
            }
            rest.start += 1;
            let width = number::unsigned(rest.of(text)).filter(|width| *width > 0);
            return width.map(|width| (Flags::BUCKET, width)).ok_or(rest);
        }
        _ if has(Feature::Bars) && bytes.starts_with(b"percent") => Flags::PERCENT,
        _ if has(Feature::Bars) && bytes.starts_with(b"graph") => Flags::GRAPH,
        _ => return Err(modifier),
    };
    let bars = Flags::PERCENT.and(Flags::GRAPH);
    if flag.has(bars) && flags.has(Flags::VAR.and(Flags::KEY)) { Err(modifier) } else { Ok((flag, 0)) }
}

/// Finds a field by name: the event's own fields, the generic fields of all events, then the common fields
/// (`trace_find_event_field()`).
fn find_field(event: &Format, name: &str, dialect: Dialect) -> Option<Field> {
    let hidden = |ty: &str, class| Field {
        name: name.to_owned(),
        ty: ty.to_owned(),
        offset: 0,
        size: 0,
        signed: class == FieldClass::Cpu,
        array: None,
        class,
    };
    if let Some(own) = event.fields.iter().find(|field| field.name == name) {
        return Some(own.clone());
    }
    match name {
        "CPU" | "cpu" | "common_cpu" => return Some(hidden("int", FieldClass::Cpu)),
        "COMM" | "comm" | "common_comm" => return Some(hidden("char *", FieldClass::Comm)),
        "STACKTRACE" | "stacktrace" | "common_stacktrace" if dialect.has(Feature::Stacktraces) => {
            return Some(hidden("char *", FieldClass::Stacktrace));
        }
        _ => {}
    }
    event.common.iter().find(|field| field.name == name).cloned()
}

/// Selects the function for a division by a constant (`hist_field_get_div_fn()`).
fn division_by(divisor: u64) -> Function {
    if divisor.is_power_of_two() {
        Function::OverPower
    } else if divisor > 1 << DIVISION_SHIFT {
        Function::OverConstant
    } else {
        Function::OverShift((1 << DIVISION_SHIFT) / divisor)
    }
}

/// Applies a function to two numbers.
pub fn fold(function: Function, a: u64, b: u64) -> u64 {
    match function {
        Function::Plus => a.wrapping_add(b),
        Function::Minus => a.wrapping_sub(b),
        Function::Times => a.wrapping_mul(b),
        Function::OverShift(multiplier) if a < 1 << DIVISION_SHIFT => {
            a.wrapping_mul(multiplier).wrapping_add((1 << DIVISION_SHIFT) - 1) >> DIVISION_SHIFT
        }
        _ => a.checked_div(b).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_are_the_kernels() {
        // 3 * (2^20 / 3) is less than 2^20, so the sum rounds up.
        assert_eq!(fold(division_by(3), 10, 3), 4);
        assert_eq!(fold(division_by(3), 9, 3), 3);
        assert_eq!(fold(division_by(8), 17, 8), 2);
        assert_eq!(fold(division_by(3), 1 << 21, 3), (1 << 21) / 3);
        assert_eq!(fold(Function::Over, 5, 0), u64::MAX);
    }
}
