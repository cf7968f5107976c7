//! Values that a histogram computes at a hit. A key, value, variable or operand is a [`Value`], the kernel's
//! `struct hist_field` (`create_hist_field()`).
//!
//! The flags are the kernel's. Their combinations and their precedence show in the text read back, in the comparison of
//! commands, and in the printed rows.

use super::expr::Operator;
use crate::event::{Field, FieldClass};

/// Maximum size in bytes of a text key of unknown length: `MAX_FILTER_STR_VAL`.
pub const TEXT_MAX: u32 = 256;

/// Maximum number of addresses in a stack trace: `HIST_STACKTRACE_DEPTH`.
pub const STACK_DEPTH: u32 = 16;

/// Size in bytes of a stack trace as a key.
pub const STACK_SIZE: u32 = 8 * STACK_DEPTH;

/// Id of a histogram in a [`super::Set`]; never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistId(pub u64);

/// `HIST_FIELD_FL_*`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u32);

#[allow(missing_docs, reason = "the kernel's names")]
impl Flags {
    pub const NONE: Self = Self(0);
    pub const HITCOUNT: Self = Self(1 << 0);
    pub const KEY: Self = Self(1 << 1);
    pub const STRING: Self = Self(1 << 2);
    pub const HEX: Self = Self(1 << 3);
    pub const SYM: Self = Self(1 << 4);
    pub const SYM_OFFSET: Self = Self(1 << 5);
    pub const EXECNAME: Self = Self(1 << 6);
    pub const SYSCALL: Self = Self(1 << 7);
    pub const STACKTRACE: Self = Self(1 << 8);
    pub const LOG2: Self = Self(1 << 9);
    pub const TIMESTAMP: Self = Self(1 << 10);
    pub const USECS: Self = Self(1 << 11);
    pub const VAR: Self = Self(1 << 12);
    pub const EXPR: Self = Self(1 << 13);
    pub const VAR_REF: Self = Self(1 << 14);
    pub const CPU: Self = Self(1 << 15);
    pub const ALIAS: Self = Self(1 << 16);
    pub const BUCKET: Self = Self(1 << 17);
    pub const CONST: Self = Self(1 << 18);
    pub const PERCENT: Self = Self(1 << 19);
    pub const GRAPH: Self = Self(1 << 20);
    pub const COMM: Self = Self(1 << 21);

    /// Whether any of these flags is set.
    pub fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    /// Returns the flags that are also in `of`.
    #[must_use]
    pub fn only(self, of: Self) -> Self {
        Self(self.0 & of.0)
    }

    /// Returns the flags without these.
    #[must_use]
    pub fn without(self, these: Self) -> Self {
        Self(self.0 & !these.0)
    }

    /// Returns the union of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Name of the modifier. If several are set, the kernel's order decides (`get_hist_field_flags()`).
    pub fn modifier(self) -> Option<&'static str> {
        let shown = [
            (Self::HEX, "hex"),
            (Self::SYM, "sym"),
            (Self::SYM_OFFSET, "sym-offset"),
            (Self::EXECNAME, "execname"),
            (Self::SYSCALL, "syscall"),
            (Self::LOG2, "log2"),
            (Self::BUCKET, "buckets"),
            (Self::USECS, "usecs"),
            (Self::PERCENT, "percent"),
            (Self::GRAPH, "graph"),
            (Self::STACKTRACE, "stacktrace"),
        ];
        shown.into_iter().find(|(flag, _)| self.has(*flag)).map(|(_, name)| name)
    }
}

/// The function that computes a value: `enum hist_field_fn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Function {
    /// No function: 0. Stack traces of the hit are recorded separately.
    #[default]
    Nothing,
    /// The variable at [`Value::slot`].
    Reference,
    /// The constant 1.
    Count,
    /// [`Value::constant`]
    Constant,
    /// The exponent of the next power of two of the operand.
    Log2,
    /// The operand rounded down to [`Value::buckets`].
    Bucket,
    /// The time of the clock.
    Timestamp,
    /// The current CPU.
    Cpu,
    /// Name of the current task.
    Comm,
    /// Name of the task that created the entry.
    Execname,
    /// Text in the record: `char[N]`.
    Text,
    /// Text through `__data_loc`.
    DynText,
    /// Text through `__rel_loc`.
    RelText,
    /// Text through a pointer.
    PtrText,
    /// A stack trace through `__data_loc`.
    Stack,
    /// A number with the size and sign of the field.
    Number,
    /// `-a`
    Negate,
    /// `a+b`
    Plus,
    /// `a-b`
    Minus,
    /// `a*b`
    Times,
    /// `a/b`; all bits are set for a division by 0.
    Over,
    /// `a` shifted right by the exponent of the constant `b`.
    OverPower,
    /// `a` divided by the constant `b`.
    OverConstant,
    /// `a` divided by the constant `b` with the kernel's multiplication and shift; the result can be one too large.
    OverShift(u64),
}

/// Location of a variable: its histogram, and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Histogram of the variable.
    pub hist: HistId,
    /// `var.idx`
    pub at: usize,
}

/// A value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Flags.
    pub flags: Flags,
    /// The function that computes the value.
    pub function: Function,
    /// The field of the event.
    pub field: Option<Field>,
    /// C type; `None` if the kernel has no type for it.
    pub ty: Option<String>,
    /// Size in bytes; for a key, the space in the key.
    pub size: u32,
    /// Offset in the key, in bytes.
    pub offset: u32,
    /// Whether the value is signed.
    pub signed: bool,
    /// Width of the buckets.
    pub buckets: u64,
    /// Operands, at most two.
    pub operands: Vec<Value>,
    /// The operator; `None` with fewer than two operands.
    pub operator: Option<Operator>,
    /// For a reference: the event named with it.
    pub event: Option<(Vec<u8>, Vec<u8>)>,
    /// Name of a reference, or text of an expression.
    pub name: Option<Vec<u8>>,
    /// Name of the variable.
    pub variable: Option<Vec<u8>>,
    /// Location of the variable, own or referenced.
    pub slot: Slot,
    /// Number of the reference in its histogram.
    pub reference: usize,
    /// A constant, or a known divisor.
    pub constant: u64,
}

impl Value {
    pub(super) fn new(flags: Flags, function: Function) -> Self {
        Self { flags, function, ..Self::default() }
    }

    /// Creates a value for a field or for the source that the flags name. Returns `None` where the kernel fails, which
    /// it reports as lack of memory.
    pub(super) fn make(field: Option<&Field>, flags: Flags, variable: Option<&[u8]>) -> Option<Self> {
        let mut value = Self::of(field, flags)?;
        value.field = field.cloned();
        value.variable = variable.map(<[u8]>::to_vec);
        Some(value)
    }

    fn of(field: Option<&Field>, flags: Flags) -> Option<Self> {
        let is = |any| flags.has(any);
        let sized = |function, size, ty: &str| {
            let ty = Some(ty.to_owned());
            Self { ty, size, ..Self::new(flags, function) }
        };
        let rounded = Flags::LOG2.and(Flags::BUCKET);
        Some(match field {
            _ if is(Flags::EXPR.and(Flags::ALIAS)) => Self::new(flags, Function::Nothing),
            _ if is(Flags::VAR_REF) => Self::new(flags, Function::Reference),
            _ if is(Flags::HITCOUNT) => sized(Function::Count, 8, "u64"),
            _ if is(Flags::CONST) => sized(Function::Constant, 8, "u64"),
            Some(_) if is(Flags::STACKTRACE) => sized(Function::Stack, STACK_SIZE, "unsigned long[]"),
            None if is(Flags::STACKTRACE) => sized(Function::Nothing, STACK_SIZE, "unsigned long[]"),
            _ if is(rounded) => {
                let operand = Self::make(field, flags.without(rounded), None)?;
                let function = if is(Flags::LOG2) { Function::Log2 } else { Function::Bucket };
                let value = sized(function, operand.size, operand.ty.as_deref()?);
                Self { operands: vec![operand], ..value }
            }
            _ if is(Flags::TIMESTAMP) => sized(Function::Timestamp, 8, "u64"),
            _ if is(Flags::CPU) => sized(Function::Cpu, 4, "unsigned int"),
            _ if is(Flags::COMM) => sized(Function::Comm, TEXT_MAX, "char[]"),
            None => Self::new(flags, Function::Nothing),
            Some(field) => return Self::of_field(field, flags),
        })
    }

    fn of_field(field: &Field, flags: Flags) -> Option<Self> {
        let size = field.size as u32;
        let (flag, function, size) = match field.class {
            FieldClass::StaticString => (Flags::STRING, Function::Text, size),
            FieldClass::DynString => (Flags::STRING, Function::DynText, TEXT_MAX),
            FieldClass::RelString => (Flags::STRING, Function::RelText, TEXT_MAX),
            FieldClass::Comm => (Flags::STRING, Function::PtrText, TEXT_MAX),
            FieldClass::Stacktrace => (Flags::STACKTRACE, Function::Stack, TEXT_MAX),
            FieldClass::Number | FieldClass::PtrString | FieldClass::CpuMask | FieldClass::Cpu => {
                matches!(field.size, 1 | 2 | 4 | 8).then_some((Flags::NONE, Function::Number, size))?
            }
        };
        let (ty, signed) = (Some(field.ty.clone()), function == Function::Number && field.signed);
        Some(Self { ty, size, signed, ..Self::new(flags.and(flag), function) })
    }

    /// Name of the value: in rows for a key, and for `sort=` (`hist_field_name()`).
    pub fn shown_name(&self) -> Vec<u8> {
        self.name_at(0)
    }

    fn name_at(&self, level: u32) -> Vec<u8> {
        let is = |flags| self.flags.has(flags);
        if level > 1 {
            return Vec::new();
        }
        if let Some(field) = &self.field {
            return crate::event::dynamic::raw(&field.name);
        }
        if is(Flags::LOG2.and(Flags::ALIAS).and(Flags::BUCKET)) {
            return self.operands.first().map_or_else(Vec::new, |operand| operand.name_at(level + 1));
        }
        if is(Flags::EXPR.and(Flags::VAR_REF)) {
            let name = self.name.clone().unwrap_or_default();
            let dot = if is(Flags::VAR_REF) { &b".$"[..] } else { b"." };
            return match &self.event {
                Some((system, event)) => [&system[..], b".", event, dot, &name].concat(),
                None => name,
            };
        }
        let sources = [
            (Flags::CPU, "common_cpu"),
            (Flags::COMM, "common_comm"),
            (Flags::TIMESTAMP, "common_timestamp"),
            (Flags::STACKTRACE, "common_stacktrace"),
            (Flags::HITCOUNT, "hitcount"),
        ];
        sources.into_iter().find(|(flag, _)| is(*flag)).map_or_else(Vec::new, |(_, name)| name.into())
    }

    /// Text of the value as an operand (`expr_field_str()`).
    fn operand_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if self.flags.has(Flags::VAR_REF) {
            if self.event.is_none() {
                text.push(b'$');
            }
        } else if self.flags.has(Flags::CONST) {
            text.extend(self.constant.to_string().bytes());
        }
        text.extend(self.shown_name());
        text.extend(self.modifier(Flags::VAR_REF).bytes());
        text
    }

    /// Text of the modifier, which values with one of these flags lack.
    fn modifier(&self, without: Flags) -> String {
        let modifier = self.flags.modifier().filter(|_| !self.flags.has(without));
        modifier.map(|modifier| format!(".{modifier}")).unwrap_or_default()
    }

    /// Text of an expression, which becomes its name; `None` below the second level (`expr_str()`).
    pub(super) fn expression_text(&self) -> Option<Vec<u8>> {
        self.expression_text_at(0)
    }

    fn expression_text_at(&self, level: u32) -> Option<Vec<u8>> {
        if level > 1 {
            return None;
        }
        match (&self.operands[..], self.operator) {
            ([], _) => Some(self.operand_text()),
            ([operand], None) if self.function == Function::Negate => {
                Some([b"-(", &operand.expression_text_at(level + 1)?[..], b")"].concat())
            }
            ([a, b], Some(operator)) => {
                Some([&a.operand_text()[..], &[operator.sign() as u8], &b.operand_text()].concat())
            }
            _ => None,
        }
    }

    /// Whether the value is a variable or a reference, or contains one (`field_has_hist_vars()`).
    pub(super) fn has_variables(&self) -> bool {
        fn look_up(value: &Value, level: u32) -> bool {
            level <= 3
                && (value.flags.has(Flags::VAR.and(Flags::VAR_REF))
                    || value.operands.iter().any(|operand| look_up(operand, level + 1)))
        }
        look_up(self, 0)
    }

    /// Text of the value when read back (`hist_field_print()`).
    pub(super) fn read_back(&self) -> Vec<u8> {
        let is = |flags| self.flags.has(flags);
        let mut text = Vec::new();
        if let Some(variable) = &self.variable {
            text.extend(variable);
            text.push(b'=');
        }
        if is(Flags::CPU) {
            text.extend(b"common_cpu");
        } else if is(Flags::COMM) {
            text.extend(b"common_comm");
        } else if is(Flags::CONST) {
            text.extend(self.constant.to_string().bytes());
        } else {
            if is(Flags::VAR_REF.and(Flags::ALIAS)) && self.event.is_none() {
                text.push(b'$');
            }
            text.extend(self.shown_name());
        }
        text.extend(self.modifier(Flags::VAR_REF.and(Flags::EXPR).and(Flags::STACKTRACE)).bytes());
        if self.buckets != 0 {
            text.extend(format!("={}", self.buckets as i64).bytes());
        }
        text
    }
}
