//! The instructions of arm64.
//!
//! Every instruction has four bytes. Field names and encodings are those of the Arm Architecture Reference Manual for
//! A-profile, chapter C4.

mod memory;

use super::{
    machine::{Compared, Flags, Next, Path, Test},
    text::{Callees, Unfollowed},
    value::{Comparison, Condition, Operation, UNSET, Value, mask},
};

/// Registers with arguments, in order.
const ARGUMENTS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Number of the stack pointer here. As an operand, 31 is the stack pointer or zero, depending on the instruction.
const SP: usize = 31;
/// Registers up to this one may be changed by a called function.
const LAST_CHANGED_BY_CALLS: usize = 18;
/// NOP
const NOP: u32 = 0xd503_201f;
/// `mrs x0, sp_el0`
const CURRENT: u32 = 0xd538_4100;
/// The return address.
const LINK: usize = 30;
/// Arguments on the stack begin at the stack pointer.
const STACK_ARGUMENTS: i64 = 0;

/// The state at a handler's start.
pub(super) fn start(at: u64) -> Path {
    Path::new(at, &ARGUMENTS, SP, STACK_ARGUMENTS)
}

/// Follows one instruction.
pub(super) fn step(path: &mut Path, bytes: &[u8], callees: &Callees) -> Result<Next, Unfollowed> {
    let word = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let word = word.filter(|word| *word != 0).ok_or(Unfollowed::Invalid(path.at))?;
    let next = Next::At(path.at.wrapping_add(4));
    let mut step = Step { path, word, callees };
    match step.bits(28, 25) {
        0b1000 | 0b1001 => step.immediate()?,
        0b1010 | 0b1011 => return step.branch(),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => step.memory()?,
        0b0101 | 0b1101 => step.registers()?,
        _ => return Err(step.unknown()),
    }
    Ok(next)
}

struct Step<'a> {
    path: &'a mut Path,
    word: u32,
    callees: &'a Callees,
}

impl Step<'_> {
    /// A field of the instruction.
    fn bits(&self, high: u32, low: u32) -> u32 {
        self.word >> low & ((1 << (high - low + 1)) - 1)
    }

    /// A field of the instruction that has a sign.
    fn signed_bits(&self, high: u32, low: u32) -> i64 {
        let above = 63 - (high - low);
        (u64::from(self.bits(high, low)) << above).cast_signed() >> above
    }

    fn is_set(&self, bit: u32) -> bool {
        self.word >> bit & 1 == 1
    }

    /// An instruction that is not followed.
    fn unknown(&self) -> Unfollowed {
        Unfollowed::Instruction(format!("{:08x}", self.word))
    }

    /// The register that a field names, where 31 is zero.
    fn value(&self, low: u32) -> Value {
        match self.bits(low + 4, low) {
            31 => Value::Const(0),
            number => self.path.register(number as usize),
        }
    }

    /// The register that a field names, where 31 is the stack pointer.
    fn base(&self, low: u32) -> Value {
        self.path.register(self.bits(low + 4, low) as usize)
    }

    /// The operands' size in bytes.
    fn width(&self) -> u8 {
        if self.is_set(31) { 8 } else { 4 }
    }

    /// Sets the register that a field names, where 31 stands for none.
    fn set(&mut self, low: u32, value: Value) {
        let number = self.bits(low + 4, low) as usize;
        if number != SP {
            self.path.set(number, value);
        }
    }

    /// Sets the destination register to a result of the operands' size.
    fn result(&mut self, value: Value) {
        let value = value.low(self.width());
        self.set(0, value);
    }

    /// A register's value, shifted as an instruction says.
    fn shifted(&self, value: Value) -> Value {
        let (by, width) = (Value::Const(u64::from(self.bits(15, 10))), self.width());
        let operation = match self.bits(23, 22) {
            0b00 => Operation::ShiftLeft,
            0b01 => Operation::ShiftRight,
            0b10 => Operation::ShiftRightSigned,
            _ if by == Value::Const(0) => return value,
            _ => return Value::Other { of_arguments: value.depends() },
        };
        Value::computed(operation, width, value, by)
    }

    /// Data processing with an immediate operand.
    fn immediate(&mut self) -> Result<(), Unfollowed> {
        match self.bits(25, 23) {
            // ADR and ADRP
            0b000 | 0b001 => {
                let distance = self.signed_bits(23, 5) << 2 | i64::from(self.bits(30, 29));
                let at = if self.is_set(31) {
                    (self.path.at & !0xfff).wrapping_add_signed(distance << 12)
                } else {
                    self.path.at.wrapping_add_signed(distance)
                };
                self.set(0, Value::Const(at));
            }
            // ADD and SUB
            0b010 => {
                let by = i64::from(self.bits(21, 10)) << if self.is_set(22) { 12 } else { 0 };
                self.add_or_subtract(self.base(5), Value::Const(by.cast_unsigned()))?;
            }
            // AND, ORR, EOR, ANDS
            0b100 => {
                let bits = self.bitmask().ok_or_else(|| self.unknown())?;
                self.logical(self.value(5), Value::Const(bits), true);
            }
            // MOVN, MOVZ, MOVK
            0b101 => {
                let shift = 16 * self.bits(22, 21);
                let number = u64::from(self.bits(20, 5)) << shift;
                let value = match (self.bits(30, 29), self.value(0)) {
                    (0b00, _) => Value::Const(!number),
                    (0b10, _) => Value::Const(number),
                    (0b11, Value::Const(old)) => Value::Const(old & !(0xffff << shift) | number),
                    (0b11, old) => Value::Other { of_arguments: old.depends() },
                    _ => return Err(self.unknown()),
                };
                self.result(value);
            }
            0b110 => self.bitfield()?,
            _ => {
                let of_arguments = self.value(5).depends() || self.value(16).depends();
                self.result(Value::Other { of_arguments });
            }
        }
        Ok(())
    }

    /// SBFM, BFM, UBFM: bits of a register, moved to the lowest place, or from there to a higher one.
    fn bitfield(&mut self) -> Result<(), Unfollowed> {
        let (first, last, width) = (self.bits(21, 16), self.bits(15, 10), self.width());
        let bits = 8 * u32::from(width);
        if first >= bits || last >= bits {
            return Err(self.unknown());
        }
        let value = self.value(5).low(width);
        let of_arguments = value.depends() || self.value(0).depends();
        let shift =
            |operation, value, by: u32| Value::computed(operation, width, value, Value::Const(u64::from(by)));
        let size = match (first, last) {
            (0, 7) => Some(1),
            (0, 15) => Some(2),
            (0, 31) => Some(4),
            _ => None,
        };
        let value = match (self.bits(30, 29), size) {
            (0b10, Some(size)) => value.low(size),
            (0b00, Some(size)) => value.signed(size, width),
            (0b10, None) if first <= last => {
                let mask = if last - first >= 63 { u64::MAX } else { (1 << (last - first + 1)) - 1 };
                let moved = shift(Operation::ShiftRight, value, first);
                // A shift to the right leaves no other bits.
                if last == bits - 1 {
                    moved
                } else {
                    Value::computed(Operation::And, width, moved, Value::Const(mask))
                }
            }
            (0b10, None) => {
                let mask = (1 << (last + 1)) - 1;
                let low = Value::computed(Operation::And, width, value, Value::Const(mask));
                shift(Operation::ShiftLeft, low, bits - first)
            }
            (0b00, None) if first <= last => {
                let above = bits - 1 - last;
                let moved = if above == 0 { value } else { shift(Operation::ShiftLeft, value, above) };
                shift(Operation::ShiftRightSigned, moved, above + first)
            }
            _ => Value::Other { of_arguments },
        };
        self.result(value);
        Ok(())
    }

    /// An addition or a subtraction. The destination 31 is the stack pointer if no flags are set and the second operand is
    /// an immediate.
    fn add_or_subtract(&mut self, one: Value, two: Value) -> Result<(), Unfollowed> {
        let (negative, sets_flags, width) = (self.is_set(30), self.is_set(29), self.width());
        let is_address = matches!(one, Value::Record(_) | Value::Stack(_))
            && (negative, width, &two) == (true, 8, &Value::Const(0));
        let operation = if negative { Operation::Subtract } else { Operation::Add };
        let value = Value::computed(operation, width, one.clone(), two.clone());
        if sets_flags {
            let compared = if negative {
                Compared::Numbers(width, one.low(width), two.low(width))
            } else {
                Compared::Result(width, value.clone())
            };
            let of_arguments = match &compared {
                Compared::Numbers(_, one, two) => one.depends() || two.depends(),
                _ => value.depends(),
            };
            self.path.flags = Flags { of_arguments, ..Flags::of(&value, compared) };
            // A comparison of an address with zero.
            if is_address && value != Value::Const(0) {
                self.path.flags.zero = Some(false);
            }
            self.set(0, value);
        } else if self.bits(4, 0) as usize == SP && self.bits(28, 24) == 0b1_0001 {
            if !self.is_set(31) {
                return Err(self.unknown());
            }
            self.path.set(SP, value);
        } else {
            self.set(0, value);
        }
        Ok(())
    }

    /// AND, ORR, EOR, ANDS. Only with an immediate operand, the destination 31 is the stack pointer.
    fn logical(&mut self, one: Value, two: Value, is_immediate: bool) {
        let width = self.width();
        let (operation, sets_flags) = match self.bits(30, 29) {
            0b01 => (Operation::Or, false),
            0b10 => (Operation::Xor, false),
            bits => (Operation::And, bits == 0b11),
        };
        let value = Value::computed(operation, width, one, two);
        if sets_flags {
            self.path.flags = Flags::of(&value, Compared::Bits(width, value.clone()));
        }
        if is_immediate && !sets_flags && self.bits(4, 0) as usize == SP {
            self.path.set(SP, value);
        } else {
            self.set(0, value);
        }
    }

    /// The immediate operand of a logical instruction (`DecodeBitMasks()`).
    fn bitmask(&self) -> Option<u64> {
        let (n, rotate, ones) = (self.bits(22, 22), self.bits(21, 16), self.bits(15, 10));
        let length = (n << 6 | (!ones & 0x3f)).checked_ilog2()?;
        if length == 0 {
            return None;
        }
        let size = 1_u32 << length;
        let (rotate, ones) = (rotate & (size - 1), (ones & (size - 1)) + 1);
        if ones == size {
            return None;
        }
        let element = (1_u64 << ones) - 1;
        let element = if rotate == 0 {
            element
        } else {
            (element >> rotate | element << (size - rotate)) & (u64::MAX >> (64 - size))
        };
        let mut bits = element;
        let mut filled = size;
        while filled < 64 {
            bits |= bits << filled;
            filled *= 2;
        }
        Some(bits & mask(self.width()))
    }

    /// Data processing with registers.
    fn registers(&mut self) -> Result<(), Unfollowed> {
        let of_arguments = self.value(5).depends() || self.value(16).depends();
        match (self.bits(28, 24), self.is_set(21)) {
            // Logical, with a shifted register
            (0b0_1010, negated) => {
                let (two, width) = (self.shifted(self.value(16)), self.width());
                let two = if negated {
                    Value::computed(Operation::Xor, width, two, Value::Const(mask(width)))
                } else {
                    two
                };
                self.logical(self.value(5), two, false);
            }
            // ADD and SUB with a shifted register
            (0b0_1011, false) => {
                let two = self.shifted(self.value(16));
                self.add_or_subtract(self.value(5), two)?;
            }
            // ADD and SUB with an extended register
            (0b0_1011, true) => {
                // The stack pointer grows by a number that is computed.
                if self.bits(4, 0) as usize == SP && !self.is_set(29) {
                    return Err(self.unknown());
                }
                let two = self.extended();
                self.add_or_subtract(self.base(5), two)?;
            }
            // CSEL and its relatives
            (0b1_1010, false) if self.bits(23, 21) == 0b100 => {
                let (one, two, width) = (self.value(5), self.value(16), self.width());
                let two = match (self.is_set(30), self.bits(11, 10)) {
                    (false, 0) => two,
                    (false, 1) => Value::computed(Operation::Add, width, two, Value::Const(1)),
                    (true, 0) => Value::computed(Operation::Xor, width, two, Value::Const(mask(width))),
                    (true, 1) => Value::computed(Operation::Subtract, width, Value::Const(0), two),
                    _ => return Err(self.unknown()),
                };
                let condition = self.path.flags.condition(test(self.bits(15, 12)));
                let of_arguments = self.path.flags.of_arguments;
                self.result(Value::choice(condition, one.low(width), two.low(width), of_arguments));
            }
            // CCMP and CCMN
            (0b1_1010, false) if self.bits(23, 21) == 0b010 => {
                let of_arguments = of_arguments || self.path.flags.of_arguments;
                self.path.flags = Flags { of_arguments, ..Flags::default() };
            }
            // Shifts by a register
            (0b1_1010, _) if self.bits(30, 21) == 0b00_1101_0110 && self.bits(15, 12) == 0b0010 => {
                let operation = match self.bits(11, 10) {
                    0b00 => Operation::ShiftLeft,
                    0b01 => Operation::ShiftRight,
                    0b10 => Operation::ShiftRightSigned,
                    _ => return Err(self.unknown()),
                };
                self.result(Value::computed(operation, self.width(), self.value(5), self.value(16)));
            }
            // REV16 of two bytes
            (0b1_1010, _) if self.bits(30, 21) == 0b10_1101_0110 && self.bits(20, 10) == 1 => {
                let value = self.value(5);
                let is_short = value == value.clone().low(2);
                self.result(if is_short { value.swapped() } else { Value::Other { of_arguments } });
            }
            // Other calculations with one and two sources
            (0b1_1010, _) if self.bits(23, 21) == 0b110 => {
                self.result(Value::Other { of_arguments });
            }
            // MADD and MSUB
            (0b1_1011, _) if self.bits(30, 29) == 0 && self.bits(23, 21) == 0 => {
                let width = self.width();
                let product = Value::computed(Operation::Multiply, width, self.value(5), self.value(16));
                let operation = if self.is_set(15) { Operation::Subtract } else { Operation::Add };
                self.result(Value::computed(operation, width, self.value(10), product));
            }
            (0b1_1011, _) => {
                let of_arguments = of_arguments || self.value(10).depends();
                self.result(Value::Other { of_arguments });
            }
            _ => return Err(self.unknown()),
        }
        Ok(())
    }

    /// The second operand, extended and shifted.
    fn extended(&self) -> Value {
        let (option, shift) = (self.bits(15, 13), self.bits(12, 10));
        let value = self.value(16);
        let value = match option {
            0b000 => value.low(1),
            0b001 => value.low(2),
            0b010 => value.low(4),
            0b011 | 0b111 => value,
            0b100 => value.signed(1, 8),
            0b101 => value.signed(2, 8),
            _ => value.signed(4, 8),
        };
        Value::computed(Operation::ShiftLeft, 8, value, Value::Const(u64::from(shift)))
    }

    /// The target of a branch, whose distance in instructions is in a field.
    fn target(&self, high: u32, low: u32) -> u64 {
        self.path.at.wrapping_add_signed(self.signed_bits(high, low) << 2)
    }

    /// Branches, and instructions for the system.
    fn branch(&mut self) -> Result<Next, Unfollowed> {
        let next = self.path.at.wrapping_add(4);
        match self.bits(31, 24) {
            // B
            0x14..=0x17 => {
                let target = self.target(25, 0);
                Ok(if self.callees.ends.contains(&target) { Next::End } else { Next::At(target) })
            }
            // BL
            0x94..=0x97 => {
                let changed = (0..=LAST_CHANGED_BY_CALLS).chain([LINK]);
                self.path.call(self.target(25, 0), [0, 1, 2], changed, self.callees, next)
            }
            // B.cond
            0x54 => {
                let (taken, code) = (self.target(23, 5), self.bits(3, 0));
                Ok(if code >= 0b1110 { Next::At(taken) } else { self.path.branch(test(code), taken, next) })
            }
            // CBZ and CBNZ
            0x34 | 0x35 | 0xb4 | 0xb5 => {
                let (width, taken) = (self.width(), self.target(23, 5));
                Ok(self.branch_by(self.value(0).low(width), width, taken))
            }
            // TBZ and TBNZ
            0x36 | 0x37 | 0xb6 | 0xb7 => {
                let bit = 1 << (self.bits(31, 31) << 5 | self.bits(23, 19));
                let bit = Value::computed(Operation::And, 8, self.value(0), Value::Const(bit));
                Ok(self.branch_by(bit, 8, self.target(18, 5)))
            }
            // RET, with and without authentication of the return address
            0xd6 if self.bits(24, 21) == 0b0010 => Ok(Next::End),
            0xd6 | 0xd7 => Err(Unfollowed::Indirect),
            // BRK: a warning, after which the kernel goes on
            0xd4 if self.bits(23, 21) == 0b001 => Ok(Next::At(next)),
            0xd5 => self.system(next),
            _ => Err(self.unknown()),
        }
    }

    /// A branch to `taken` if a number of so many bytes is zero, or if it is not, as bit 24 says.
    fn branch_by(&mut self, number: Value, width: u8, taken: u64) -> Next {
        let (nonzero, next) = (self.is_set(24), self.path.at.wrapping_add(4));
        match number {
            Value::Const(number) => Next::At(if (number != 0) == nonzero { taken } else { next }),
            // There is a record: paths on which none could be reserved are left out.
            Value::Record(_) | Value::Stack(_) => Next::At(if nonzero { taken } else { next }),
            number => {
                self.path.depends_on(number.depends());
                let condition = Condition::new(Comparison::Equal, !nonzero, width, number, Value::Const(0));
                Next::Either([taken, next], condition)
            }
        }
    }

    fn system(&mut self, next: u64) -> Result<Next, Unfollowed> {
        match self.bits(23, 20) {
            0b0000 if self.word == NOP && self.path.may_be_replaced() => Err(Unfollowed::StaticKey),
            // Changes of the flags and of the state
            0b0000 if self.bits(15, 12) == 4 => {
                self.path.flags = Flags::UNKNOWN;
                Ok(Next::At(next))
            }
            // Hints (NOP, BTI, authentication of the return address), barriers, and changes of the state
            0b0000 => Ok(Next::At(next)),
            // MRS: the current task (SP_EL0), the CPU's offset
            0b0011 => {
                let value = if self.word & !0x1f == CURRENT { Value::Task } else { UNSET };
                self.set(0, value);
                Ok(Next::At(next))
            }
            _ => Err(self.unknown()),
        }
    }
}

/// The test with this code, and the result with which the condition holds (`ConditionHolds()`).
fn test(code: u32) -> Option<(Test, bool)> {
    let negated = code & 1 == 1;
    match code >> 1 {
        0b000 => Some((Test::Is(Comparison::Equal), !negated)),
        // The carry is the opposite of a borrow.
        0b001 => Some((Test::Is(Comparison::Less), negated)),
        0b010 => Some((Test::Negative, !negated)),
        0b100 => Some((Test::Is(Comparison::LessOrEqual), negated)),
        0b101 => Some((Test::Is(Comparison::SignedLess), negated)),
        0b110 => Some((Test::Is(Comparison::SignedLessOrEqual), negated)),
        _ => None,
    }
}
