//! What is known about a number while a handler is followed.

use std::sync::Arc;

/// A number of eight bytes, by its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A fixed number.
    Const(u64),
    /// An argument of the handler. The first, 0, is the event's file; the others are the tracepoint's arguments.
    Arg(u8),
    /// The address this many bytes after the stack pointer at the handler's start.
    Stack(i64),
    /// The address this many bytes after the record's start.
    Record(i64),
    /// The address of the current task (arm64).
    Task,
    /// Another number plus an offset.
    Sum {
        /// The other number.
        of: Arc<Self>,
        /// The offset.
        offset: i64,
    },
    /// This many bytes (1, 2, 4 or 8) in memory, with zeros above them.
    Load {
        /// The address, without the offset.
        from: Arc<Self>,
        /// Byte offset.
        offset: i64,
        /// Bytes that are read.
        size: u8,
    },
    /// The low bytes (1, 2 or 4) of a number, with zeros above them.
    Low {
        /// The number.
        of: Arc<Self>,
        /// How many bytes.
        size: u8,
    },
    /// The low bytes (1, 2 or 4) of a number, whose sign extends to `to` bytes, with zeros above those.
    Signed {
        /// The number.
        of: Arc<Self>,
        /// Width in bytes before the extension.
        size: u8,
        /// To how many bytes the sign extends.
        to: u8,
    },
    /// The result of an operation of so many bytes (1, 2, 4 or 8), with zeros above them.
    Computed {
        /// The operation.
        operation: Operation,
        /// Bytes of the operands and of the result.
        size: u8,
        /// The operands.
        operands: Arc<(Self, Self)>,
    },
    /// One of two numbers.
    Choice {
        /// Decides for the first number if it holds.
        condition: Arc<Condition>,
        /// The numbers.
        numbers: Arc<(Self, Self)>,
    },
    /// A number of which only the low bytes (1 or 2) are known.
    Partial {
        /// A number with these low bytes.
        low: Arc<Self>,
        /// How many bytes.
        size: u8,
    },
    /// Any other number.
    Other {
        /// Whether it may depend on anything but the event's file.
        of_arguments: bool,
    },
}

/// Nodes of a number that is computed or loaded, at most.
const NODES: usize = 48;

/// An operation with two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `&`
    And,
    /// `|`
    Or,
    /// `^`
    Xor,
    /// `<<`. Shift counts are taken modulo 64 for operands of 8 bytes, and modulo 32 for smaller ones.
    ShiftLeft,
    /// `>>` with zeros
    ShiftRight,
    /// `>>` with the sign
    ShiftRightSigned,
}

/// A comparison of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `<`, unsigned
    Less,
    /// `<=`, unsigned
    LessOrEqual,
    /// `<`, signed
    SignedLess,
    /// `<=`, signed
    SignedLessOrEqual,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The comparison.
    pub comparison: Comparison,
    /// The result of the comparison with which the condition holds.
    pub holds_if: bool,
    /// Bytes of the numbers (1, 2, 4 or 8).
    pub size: u8,
    /// The numbers.
    pub operands: (Value, Value),
}

impl Condition {
    /// A condition; `None` if one of the numbers is not known.
    pub(super) fn new(
        comparison: Comparison,
        holds_if: bool,
        size: u8,
        one: Value,
        two: Value,
    ) -> Option<Self> {
        let operands = (one.low(size), two.low(size));
        let are_known = operands.0.is_known() && operands.1.is_known();
        are_known.then_some(Self { comparison, holds_if, size, operands })
    }

    /// Whether the other one compares the same.
    pub(super) fn compares_as(&self, other: &Self) -> bool {
        (self.comparison, self.size, &self.operands) == (other.comparison, other.size, &other.operands)
    }

    /// Whether it holds, if that is certain.
    pub(super) fn known(&self) -> Option<bool> {
        let (one, two) = match &self.operands {
            (Value::Const(one), Value::Const(two)) => (*one, *two),
            (one, two) if one == two => (0, 0),
            _ => return None,
        };
        let signed = |number| sign_extended(number, self.size);
        let result = match self.comparison {
            Comparison::Equal => one == two,
            Comparison::Less => one < two,
            Comparison::LessOrEqual => one <= two,
            Comparison::SignedLess => signed(one) < signed(two),
            Comparison::SignedLessOrEqual => signed(one) <= signed(two),
        };
        Some(result == self.holds_if)
    }

    fn depends(&self) -> bool {
        self.operands.0.depends() || self.operands.1.depends()
    }

    fn nodes(&self) -> usize {
        1 + self.operands.0.nodes() + self.operands.1.nodes()
    }
}

/// A number about which nothing is known.
pub(super) const UNSET: Value = Value::Other { of_arguments: true };
/// A number that decides by the event's file.
pub(super) const OF_FILE: Value = Value::Other { of_arguments: false };

impl Value {
    /// The number plus an offset.
    pub(super) fn plus(self, by: i64) -> Self {
        match self {
            Self::Const(number) => Self::Const(number.wrapping_add_signed(by)),
            Self::Stack(at) => Self::Stack(at.wrapping_add(by)),
            Self::Record(at) => Self::Record(at.wrapping_add(by)),
            Self::Sum { of, offset } => match offset.wrapping_add(by) {
                0 => (*of).clone(),
                offset => Self::Sum { of, offset },
            },
            other if by == 0 => other,
            other => Self::Sum { of: Arc::new(other), offset: by },
        }
    }

    /// The result of an operation of so many bytes.
    pub(super) fn computed(operation: Operation, size: u8, one: Self, two: Self) -> Self {
        let (one, two) = (one.low(size), two.low(size));
        match (operation, one, two) {
            (_, Self::Const(one), Self::Const(two)) => {
                Self::Const(constant(operation, size, one, two) & mask(size))
            }
            (Operation::Add, one, Self::Const(by)) => one.plus(sign_extended(by, size)).low(size),
            (Operation::Add, Self::Const(by), two) => two.plus(sign_extended(by, size)).low(size),
            (Operation::Subtract, one, Self::Const(by)) => {
                one.plus(sign_extended(by, size).wrapping_neg()).low(size)
            }
            // Two unknown numbers are equal as values, and may be different numbers.
            (Operation::Subtract | Operation::Xor, one, two) if one == two && one.is_certain() => {
                Self::Const(0)
            }
            (Operation::And | Operation::Or, one, two) if one == two => one,
            (Operation::And, number, Self::Const(bits)) | (Operation::And, Self::Const(bits), number)
                if [1, 2, 4].iter().any(|size| mask(*size) == bits) || bits == mask(size) =>
            {
                number.low((bits.count_ones() / 8) as u8)
            }
            (Operation::And, _, Self::Const(0)) | (Operation::And, Self::Const(0), _) => Self::Const(0),
            (Operation::Or, _, Self::Const(bits)) if bits == mask(size) => Self::Const(bits),
            (Operation::Multiply, one, Self::Const(1)) | (Operation::Multiply, Self::Const(1), one) => one,
            (operation, one, Self::Const(0)) if operation != Operation::Multiply => one,
            (Operation::Or | Operation::Xor, Self::Const(0), two) => two,
            (operation, one, two) => {
                let of_arguments = one.depends() || two.depends();
                if one.is_known() && two.is_known() && one.nodes() + two.nodes() < NODES {
                    Self::Computed { operation, size, operands: Arc::new((one, two)) }
                } else {
                    Self::Other { of_arguments }
                }
            }
        }
    }

    /// The number of two bytes with its bytes in reverse.
    pub(super) fn swapped(self) -> Self {
        let shifted = |operation| Self::computed(operation, 2, self.clone(), Self::Const(8));
        Self::computed(Operation::Or, 2, shifted(Operation::ShiftLeft), shifted(Operation::ShiftRight))
    }

    /// The first number if the condition holds, and otherwise the second.
    pub(super) fn choice(condition: Option<Condition>, one: Self, two: Self, of_arguments: bool) -> Self {
        if one == two {
            return one;
        }
        match condition.as_ref().and_then(Condition::known) {
            Some(true) => return one,
            Some(false) => return two,
            None => {}
        }
        let of_arguments = of_arguments || one.depends() || two.depends();
        match condition {
            Some(condition)
                if one.is_known()
                    && two.is_known()
                    && condition.nodes() + one.nodes() + two.nodes() < NODES =>
            {
                Self::Choice { condition: Arc::new(condition), numbers: Arc::new((one, two)) }
            }
            _ => Self::Other { of_arguments },
        }
    }

    /// Whether equal values are equal numbers.
    fn is_certain(&self) -> bool {
        self.is_known() || matches!(self, Self::Stack(_) | Self::Record(_))
    }

    /// Whether every part of it is known, and it is no address of the stack or of the record.
    pub(super) fn is_known(&self) -> bool {
        match self {
            Self::Const(_) | Self::Arg(_) | Self::Computed { .. } | Self::Choice { .. } => true,
            Self::Stack(_) | Self::Record(_) | Self::Task | Self::Partial { .. } | Self::Other { .. } => {
                false
            }
            Self::Sum { of, .. } | Self::Low { of, .. } | Self::Signed { of, .. } => of.is_known(),
            Self::Load { from, .. } => from.is_known(),
        }
    }

    /// Number of values of which it consists.
    fn nodes(&self) -> usize {
        1 + match self {
            Self::Sum { of, .. } | Self::Low { of, .. } | Self::Signed { of, .. } => of.nodes(),
            Self::Load { from, .. } => from.nodes(),
            Self::Partial { low, .. } => low.nodes(),
            Self::Computed { operands, .. } => operands.0.nodes() + operands.1.nodes(),
            Self::Choice { condition, numbers } => condition.nodes() + numbers.0.nodes() + numbers.1.nodes(),
            _ => 0,
        }
    }

    /// The low bytes of the number, with zeros above them.
    pub(super) fn low(self, size: u8) -> Self {
        match self {
            _ if size >= 8 => self,
            Self::Const(number) => Self::Const(number & mask(size)),
            Self::Load { size: read, .. }
            | Self::Low { size: read, .. }
            | Self::Computed { size: read, .. }
                if read <= size =>
            {
                self
            }
            // The kernel is little-endian.
            Self::Load { from, offset, .. } => Self::Load { from, offset, size },
            Self::Low { of, .. } => (*of).clone().low(size),
            Self::Signed { ref of, size: from, .. } if size <= from => (**of).clone().low(size),
            Self::Partial { ref low, size: known } if size <= known => (**low).clone().low(size),
            Self::Partial { low, .. } => Self::Other { of_arguments: low.depends() },
            Self::Other { .. } => self,
            other => Self::Low { of: Arc::new(other), size },
        }
    }

    /// The low `size` bytes, with their sign extended to `to` bytes.
    pub(super) fn signed(self, size: u8, to: u8) -> Self {
        match self.low(size) {
            Self::Const(number) => Self::Const(sign_extended(number, size).cast_unsigned() & mask(to)),
            other @ Self::Other { .. } => other,
            low => Self::Signed { of: Arc::new(low), size, to },
        }
    }

    /// This number with the low bytes of another one. What is above them is forgotten.
    pub(super) fn with_low(&self, low: Self, size: u8) -> Self {
        // Zeros above the low bytes stay.
        if matches!(self, Self::Const(number) if number & !mask(size) == 0) {
            return low.low(size);
        }
        if self.depends() && !low.depends() {
            return Self::Other { of_arguments: true };
        }
        Self::Partial { low: Arc::new(low), size }
    }

    /// Whether it may depend on the tracepoint's arguments, or on anything else but the event's file.
    pub(super) fn depends(&self) -> bool {
        match self {
            Self::Const(_) | Self::Stack(_) | Self::Record(_) => false,
            Self::Task => true,
            Self::Arg(number) => *number > 0,
            Self::Sum { of, .. } | Self::Low { of, .. } | Self::Signed { of, .. } => of.depends(),
            Self::Load { from, .. } => from.depends() || !from.is_address_of_file(),
            Self::Partial { low, .. } => low.depends(),
            Self::Computed { operands, .. } => operands.0.depends() || operands.1.depends(),
            Self::Choice { condition, numbers } => {
                condition.depends() || numbers.0.depends() || numbers.1.depends()
            }
            Self::Other { of_arguments } => *of_arguments,
        }
    }

    /// Whether it is an address in the current task.
    pub(super) fn is_in_task(&self) -> bool {
        match self {
            Self::Task => true,
            Self::Sum { of, .. } => **of == Self::Task,
            _ => false,
        }
    }

    /// Whether it is the address of the event's file, or comes from there.
    fn is_address_of_file(&self) -> bool {
        match self {
            Self::Arg(number) => *number == 0,
            Self::Sum { of, .. } => of.is_address_of_file(),
            Self::Load { from, .. } => from.is_address_of_file(),
            _ => false,
        }
    }

    /// The number at an address. Unknown past a limit of addresses that were loaded themselves, because functions of
    /// values call themselves for their parts.
    pub(super) fn load(self, size: u8) -> Self {
        let load = match self {
            Self::Sum { of, offset } => Self::Load { from: of, offset, size },
            Self::Other { .. } => return self,
            from => Self::Load { from: Arc::new(from), offset: 0, size },
        };
        if load.nodes() > NODES { Self::Other { of_arguments: load.depends() } } else { load }
    }
}

/// The result of an operation with fixed numbers.
fn constant(operation: Operation, size: u8, one: u64, two: u64) -> u64 {
    let by = two as u32 & if size == 8 { 63 } else { 31 };
    match operation {
        Operation::Add => one.wrapping_add(two),
        Operation::Subtract => one.wrapping_sub(two),
        Operation::Multiply => one.wrapping_mul(two),
        Operation::And => one & two,
        Operation::Or => one | two,
        Operation::Xor => one ^ two,
        Operation::ShiftLeft => one << by,
        Operation::ShiftRight => one >> by,
        Operation::ShiftRightSigned => (sign_extended(one, size) >> by).cast_unsigned(),
    }
}

/// A number of so many bytes with its sign.
fn sign_extended(number: u64, size: u8) -> i64 {
    let above = 64 - 8 * u32::from(size.clamp(1, 8));
    (number << above).cast_signed() >> above
}

/// The bits of this many low bytes.
pub(super) fn mask(size: u8) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * u32::from(size))) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arg() -> Value {
        Value::Arg(1)
    }

    #[test]
    fn long_chains_of_loads_are_unknown() {
        let chain = |count: usize, start: Value| (0..count).fold(start, |address, _| address.plus(8).load(8));
        assert!(chain(20, arg()).is_known());
        for count in [NODES, 10_000] {
            let long = chain(count, arg());
            assert!(!long.is_known() && long.depends() && long.nodes() <= NODES, "{long:?}");
        }
    }

    #[test]
    fn sums_are_kept_short() {
        assert_eq!(arg().plus(8).plus(-8), arg());
        assert_eq!(Value::Record(8).plus(-12), Value::Record(-4));
        assert_eq!(Value::Const(1).plus(-2), Value::Const(u64::MAX));
        let load = Value::Load { from: Arc::new(arg()), offset: 24, size: 4 };
        assert_eq!(arg().plus(24).load(4), load);
    }

    #[test]
    fn two_unknown_numbers_may_differ() {
        for operation in [Operation::Subtract, Operation::Xor] {
            assert_eq!(Value::computed(operation, 8, UNSET, UNSET), UNSET);
            let part = arg().with_low(Value::Const(1), 1);
            assert_eq!(Value::computed(operation, 8, part.clone(), part), UNSET);
            assert_eq!(Value::computed(operation, 8, arg(), arg()), Value::Const(0));
            assert_eq!(Value::computed(operation, 8, Value::Stack(8), Value::Stack(8)), Value::Const(0));
        }
    }

    #[test]
    fn only_the_file_is_no_reason_to_depend() {
        let file = Value::Arg(0).plus(72).load(8);
        assert!(!file.depends() && !file.clone().plus(8).load(4).depends());
        assert!(file.with_low(arg(), 1).depends());
        assert!(Value::Const(0xffff_8000_0000_0000).load(8).depends(), "a variable of the kernel");
    }

    #[test]
    fn low_bytes_of_memory_are_a_shorter_load() {
        let load = arg().plus(8).load(8);
        assert_eq!(load.clone().low(4), arg().plus(8).load(4));
        assert_eq!(load.clone().low(4).low(8), arg().plus(8).load(4), "they are extended with zeros");
        assert_eq!(load.clone().low(2).signed(2, 4).low(1), arg().plus(8).load(1));
        assert_eq!(load.signed(4, 8), Value::Signed { of: Arc::new(arg().plus(8).load(4)), size: 4, to: 8 });
        assert_eq!(Value::Const(0xfff0).signed(1, 4), Value::Const(0xffff_fff0));
        assert_eq!(arg().low(4).low(4), Value::Low { of: Arc::new(arg()), size: 4 });
    }

    #[test]
    fn bytes_above_a_partial_write_are_unknown() {
        let part = UNSET.with_low(arg(), 1);
        assert_eq!(part.clone().low(1), Value::Low { of: Arc::new(arg()), size: 1 });
        assert_eq!(part.low(4), Value::Other { of_arguments: true });
        assert!(arg().with_low(Value::Const(0), 1).depends());
    }
}
