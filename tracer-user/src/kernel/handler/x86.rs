//! The instructions of x86-64.

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, Instruction, MemorySize, Mnemonic as M, OpKind, Register,
};

use super::{
    machine::{Compared, Flags, Next, Path, Test},
    text::{Callees, Unfollowed},
    value::{Comparison, Operation, UNSET, Value, mask},
};

/// Numbers of registers.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;
/// Registers with arguments, in order.
const ARGUMENTS: [usize; 6] = [RDI, RSI, RDX, RCX, 8, 9];
/// Registers that a called function may change.
const CHANGED_BY_CALLS: [usize; 9] = [RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11];
/// Arguments on the stack are above the return address.
const STACK_ARGUMENTS: i64 = 8;
/// How often a repeated instruction stores, at most.
const REPEATS: u64 = 128;

/// The state at a handler's start.
pub(super) fn start(at: u64) -> Path {
    Path::new(at, &ARGUMENTS, RSP, STACK_ARGUMENTS)
}

/// Follows one instruction.
pub(super) fn step(path: &mut Path, bytes: &[u8], callees: &Callees) -> Result<Next, Unfollowed> {
    let mut decoder = Decoder::with_ip(64, bytes, path.at, DecoderOptions::NONE);
    let insn = decoder.decode();
    if insn.is_invalid() {
        return Err(Unfollowed::Invalid(path.at));
    }
    Step { path, insn, callees }.run()
}

struct Step<'a> {
    path: &'a mut Path,
    insn: Instruction,
    callees: &'a Callees,
}

impl Step<'_> {
    fn run(mut self) -> Result<Next, Unfollowed> {
        let next = Next::At(self.insn.next_ip());
        match self.insn.mnemonic() {
            // The sizes of jumps
            M::Nop if matches!(self.insn.len(), 2 | 5) && self.path.may_be_replaced() => {
                return Err(Unfollowed::StaticKey);
            }
            M::Endbr64 | M::Nop | M::Pause | M::Lfence | M::Ud2 | M::Clac => {}
            M::Mov | M::Movzx => {
                let value = self.operand(1)?;
                self.put(0, value)?;
            }
            M::Movsx | M::Movsxd => {
                let value = self.operand(1)?.signed(self.size(1)?, self.size(0)?);
                self.put(0, value)?;
            }
            M::Cdqe => {
                let value = self.path.register(RAX).signed(4, 8);
                self.path.set(RAX, value);
            }
            M::Lea => {
                let value = self.address()?.low(self.size(0)?);
                self.put(0, value)?;
            }
            M::Push => {
                let value = self.operand(0)?;
                let top = self.path.register(RSP).plus(-8);
                self.path.set(RSP, top.clone());
                self.path.store(&top, 8, value)?;
            }
            M::Pop => {
                let top = self.path.register(RSP);
                let value = self.path.load(top.clone(), 8);
                self.path.set(RSP, top.plus(8));
                self.put(0, value)?;
            }
            M::Leave => {
                let frame = self.path.register(5);
                let value = self.path.load(frame.clone(), 8);
                self.path.set(5, value);
                self.path.set(RSP, frame.plus(8));
            }
            // The preempt count, which handlers change themselves from 7.0 on. The record does not depend on it.
            M::Add | M::Sub | M::Inc | M::Dec if self.is_count_of_cpu() => self.path.flags = Flags::default(),
            M::Add | M::Sub | M::Inc | M::Dec => self.sum()?,
            M::And
            | M::Or
            | M::Xor
            | M::Shl
            | M::Shr
            | M::Sar
            | M::Rol
            | M::Ror
            | M::Imul
            | M::Not
            | M::Neg => {
                self.compute()?;
            }
            M::Bswap => {
                let of_arguments = self.operand(0)?.depends();
                self.put(0, Value::Other { of_arguments })?;
            }
            M::Sbb | M::Adc => self.result_without_flags(UNSET)?,
            M::Cmp | M::Test => self.compare()?,
            M::Bt => {
                let of_arguments = self.operand(0)?.depends() || self.operand(1)?.depends();
                self.path.flags = Flags { of_arguments, ..Flags::default() };
            }
            M::Stosb | M::Stosd | M::Stosq | M::Movsb | M::Movsd | M::Movsq if self.insn.op_count() > 0 => {
                self.string()?;
            }
            M::Jmp => {
                let target = self.target()?;
                return Ok(if self.callees.ends.contains(&target) { Next::End } else { Next::At(target) });
            }
            M::Call => {
                let (target, next) = (self.target()?, self.insn.next_ip());
                return self.path.call(target, [RDI, RSI, RDX], CHANGED_BY_CALLS, self.callees, next);
            }
            M::Ret => return Ok(Next::End),
            _ if self.insn.is_jcc_short_or_near() => {
                let (taken, next) = (self.insn.near_branch_target(), self.insn.next_ip());
                return Ok(self.path.branch(self.test(), taken, next));
            }
            other => match (self.test(), self.insn.op_count(), self.insn.op_kind(0)) {
                // SETcc
                (Some(_), 1, OpKind::Register | OpKind::Memory) => {
                    let value = self.chosen(Value::Const(1), Value::Const(0));
                    self.put(0, value)?;
                }
                // CMOVcc
                (Some(_), 2, _) => {
                    let (old, new) = (self.operand(0)?, self.operand(1)?);
                    let value = self.chosen(new, old);
                    self.put(0, value)?;
                }
                _ => return Err(Unfollowed::Instruction(format!("{other:?}").to_lowercase())),
            },
        }
        Ok(next)
    }

    /// Whether the first operand is in the CPU's memory, and the second one, if any, is a fixed number.
    fn is_count_of_cpu(&self) -> bool {
        let is_fixed = |operand| !matches!(self.insn.op_kind(operand), OpKind::Register | OpKind::Memory);
        self.insn.op_kind(0) == OpKind::Memory
            && self.insn.memory_segment() == Register::GS
            && (1..self.insn.op_count()).all(is_fixed)
    }

    /// An instruction that is not followed.
    fn unknown(&self) -> Unfollowed {
        Unfollowed::Instruction(format!("{:?}", self.insn.code()).to_lowercase())
    }

    /// The size of an operand in bytes.
    fn size(&self, operand: u32) -> Result<u8, Unfollowed> {
        let size = match self.insn.op_kind(operand) {
            OpKind::Register => self.insn.op_register(operand).size(),
            OpKind::Memory if self.insn.memory_size() != MemorySize::Unknown => {
                self.insn.memory_size().size()
            }
            _ => return Err(self.unknown()),
        };
        u8::try_from(size).ok().filter(|size| matches!(size, 1 | 2 | 4 | 8)).ok_or_else(|| self.unknown())
    }

    /// The number of a general register.
    fn number(&self, register: Register) -> Result<usize, Unfollowed> {
        if register.is_gpr() { Ok(register.full_register().number()) } else { Err(self.unknown()) }
    }

    /// An operand's value, with zeros above its size.
    fn operand(&self, operand: u32) -> Result<Value, Unfollowed> {
        match self.insn.op_kind(operand) {
            OpKind::Register => {
                let register = self.insn.op_register(operand);
                let value = self.path.register(self.number(register)?);
                if matches!(register, Register::AH | Register::BH | Register::CH | Register::DH) {
                    return Ok(Value::Other { of_arguments: value.depends() });
                }
                Ok(value.low(self.size(operand)?))
            }
            OpKind::Memory => {
                let size = self.size(operand)?;
                if matches!(self.insn.memory_segment(), Register::GS | Register::FS) {
                    return Ok(UNSET);
                }
                Ok(self.path.load(self.address()?, size))
            }
            _ => self.insn.try_immediate(operand).map(Value::Const).map_err(|_| self.unknown()),
        }
    }

    /// The address of the operand in memory.
    fn address(&self) -> Result<Value, Unfollowed> {
        if self.insn.is_ip_rel_memory_operand() {
            return Ok(Value::Const(self.insn.ip_rel_memory_address()));
        }
        let part = |register: Register| match register {
            Register::None => Ok(Value::Const(0)),
            register if register.size() != 8 => Err(self.unknown()),
            register => Ok(self.path.register(self.number(register)?)),
        };
        let (base, index) = (part(self.insn.memory_base())?, part(self.insn.memory_index())?);
        let scale = u64::from(self.insn.memory_index_scale());
        let offset = self.insn.memory_displacement64().cast_signed();
        let sum = match (base, index) {
            (base, Value::Const(index)) => base.plus(index.wrapping_mul(scale).cast_signed()),
            (base, index) => {
                let index = Value::computed(Operation::Multiply, 8, index, Value::Const(scale));
                Value::computed(Operation::Add, 8, base, index)
            }
        };
        Ok(sum.plus(offset))
    }

    /// Stores a value in an operand.
    fn put(&mut self, operand: u32, value: Value) -> Result<(), Unfollowed> {
        let size = self.size(operand)?;
        match self.insn.op_kind(operand) {
            OpKind::Register => {
                let register = self.insn.op_register(operand);
                let number = self.number(register)?;
                let old = self.path.register(number);
                let value = match size {
                    _ if matches!(register, Register::AH | Register::BH | Register::CH | Register::DH) => {
                        Value::Other { of_arguments: value.depends() || old.depends() }
                    }
                    // A write of four bytes clears the upper half.
                    4 | 8 => value.low(size),
                    _ => old.with_low(value, size),
                };
                self.path.set(number, value);
                Ok(())
            }
            OpKind::Memory if matches!(self.insn.memory_segment(), Register::GS | Register::FS) => {
                Err(Unfollowed::Store)
            }
            _ => {
                let address = self.address()?;
                self.path.store(&address, size, value)
            }
        }
    }

    /// Whether both operands are the same register: `xor` and `sub` then give zero.
    fn is_same_register(&self) -> bool {
        let is_register = |operand| self.insn.op_kind(operand) == OpKind::Register;
        self.insn.op_count() == 2
            && is_register(0)
            && is_register(1)
            && self.insn.op_register(0) == self.insn.op_register(1)
    }

    /// Stores a result that leaves flags that are not followed.
    fn result_without_flags(&mut self, value: Value) -> Result<(), Unfollowed> {
        self.path.flags = Flags::UNKNOWN;
        self.put(0, value)
    }

    /// One of two numbers, by the condition of the instruction.
    fn chosen(&self, one: Value, two: Value) -> Value {
        let flags = &self.path.flags;
        Value::choice(flags.condition(self.test()), one, two, flags.of_arguments)
    }

    /// The test of the instruction, and the result with which its condition holds.
    fn test(&self) -> Option<(Test, bool)> {
        match self.insn.condition_code() {
            ConditionCode::e => Some((Test::Is(Comparison::Equal), true)),
            ConditionCode::ne => Some((Test::Is(Comparison::Equal), false)),
            ConditionCode::b => Some((Test::Is(Comparison::Less), true)),
            ConditionCode::ae => Some((Test::Is(Comparison::Less), false)),
            ConditionCode::be => Some((Test::Is(Comparison::LessOrEqual), true)),
            ConditionCode::a => Some((Test::Is(Comparison::LessOrEqual), false)),
            ConditionCode::l => Some((Test::Is(Comparison::SignedLess), true)),
            ConditionCode::ge => Some((Test::Is(Comparison::SignedLess), false)),
            ConditionCode::le => Some((Test::Is(Comparison::SignedLessOrEqual), true)),
            ConditionCode::g => Some((Test::Is(Comparison::SignedLessOrEqual), false)),
            ConditionCode::s => Some((Test::Negative, true)),
            ConditionCode::ns => Some((Test::Negative, false)),
            _ => None,
        }
    }

    /// Stores the result of a calculation, which also sets the flags.
    fn result(
        &mut self,
        value: Value,
        compared: impl FnOnce(u8, Value) -> Compared,
    ) -> Result<(), Unfollowed> {
        let size = self.size(0)?;
        let value = value.low(size);
        self.path.flags = Flags::of(&value, compared(size, value.clone()));
        self.put(0, value)
    }

    /// An addition or a subtraction.
    fn sum(&mut self) -> Result<(), Unfollowed> {
        let (old, size) = (self.operand(0)?, self.size(0)?);
        let (by, negative) = match self.insn.mnemonic() {
            M::Inc => (Value::Const(1), false),
            M::Dec => (Value::Const(1), true),
            mnemonic => (self.operand(1)?, mnemonic == M::Sub),
        };
        if negative && self.is_same_register() {
            return self.result(Value::Const(0), Compared::Bits);
        }
        if negative {
            let value = Value::computed(Operation::Subtract, size, old.clone(), by.clone());
            // INC and DEC leave the carry.
            let keeps_carry = self.insn.mnemonic() == M::Dec;
            return self.result(value, |size, value| {
                if keeps_carry { Compared::Result(size, value) } else { Compared::Numbers(size, old, by) }
            });
        }
        self.result(Value::computed(Operation::Add, size, old, by), Compared::Result)
    }

    /// Another calculation.
    fn compute(&mut self) -> Result<(), Unfollowed> {
        let (mnemonic, size) = (self.insn.mnemonic(), self.size(0)?);
        match mnemonic {
            M::Not => {
                let value = Value::computed(Operation::Xor, size, self.operand(0)?, Value::Const(mask(size)));
                return self.put(0, value);
            }
            M::Neg => {
                let old = self.operand(0)?;
                let value = Value::computed(Operation::Subtract, size, Value::Const(0), old.clone());
                return self.result(value, |size, _| Compared::Numbers(size, Value::Const(0), old));
            }
            M::Imul if self.insn.op_count() == 1 => {
                let of_arguments = self.operand(0)?.depends() || self.path.register(RAX).depends();
                self.path.set(RAX, Value::Other { of_arguments });
                self.path.set(RDX, Value::Other { of_arguments });
                self.path.flags = Flags { of_arguments, ..Flags::default() };
                return Ok(());
            }
            M::Xor if self.is_same_register() => return self.result(Value::Const(0), Compared::Bits),
            _ => {}
        }
        // A shift by one may have one operand.
        let last = self.insn.op_count() - 1;
        let (one, two) = match last {
            0 => (self.operand(0)?, Value::Const(1)),
            last => (self.operand(last - 1)?, self.operand(last)?),
        };
        let operation = match mnemonic {
            M::Rol | M::Ror if size == 2 && two == Value::Const(8) => {
                return self.result_without_flags(one.swapped());
            }
            M::And => Operation::And,
            M::Or => Operation::Or,
            M::Xor => Operation::Xor,
            M::Shl => Operation::ShiftLeft,
            M::Shr => Operation::ShiftRight,
            M::Sar => Operation::ShiftRightSigned,
            M::Imul => Operation::Multiply,
            _ => {
                let of_arguments = one.depends() || two.depends();
                return self.result_without_flags(Value::Other { of_arguments });
            }
        };
        // A shift by zero leaves the flags of an earlier instruction.
        let shifts = matches!(&two, Value::Const(by) if by & if size == 8 { 63 } else { 31 } != 0);
        let value = Value::computed(operation, size, one, two);
        match operation {
            Operation::And | Operation::Or | Operation::Xor => self.result(value, Compared::Bits),
            Operation::ShiftLeft | Operation::ShiftRight | Operation::ShiftRightSigned if shifts => {
                self.result(value, Compared::Result)
            }
            _ => self.result_without_flags(value),
        }
    }

    /// A comparison, of which only the flags are used.
    fn compare(&mut self) -> Result<(), Unfollowed> {
        let (one, two) = (self.operand(0)?, self.operand(1)?);
        let is_test = self.insn.mnemonic() == M::Test;
        let bits = mask(self.size(0)?);
        let zero = match (&one, &two) {
            (Value::Const(a), Value::Const(b)) if is_test => Some(a & b & bits == 0),
            (Value::Const(a), Value::Const(b)) => Some((a ^ b) & bits == 0),
            // There is a record: paths on which none could be reserved are left out.
            (Value::Record(_) | Value::Stack(_), same) if is_test && one == *same => Some(false),
            (Value::Record(_) | Value::Stack(_), Value::Const(0)) if !is_test => Some(false),
            _ => None,
        };
        let (of_arguments, size) = (one.depends() || two.depends(), self.size(0)?);
        let compared = if is_test {
            Compared::Bits(size, Value::computed(Operation::And, size, one, two))
        } else {
            Compared::Numbers(size, one, two)
        };
        self.path.flags = Flags { of_arguments, zero, compared: Some(compared) };
        Ok(())
    }

    /// An instruction that stores or copies, perhaps repeated.
    fn string(&mut self) -> Result<(), Unfollowed> {
        // `movsd` is the name of an instruction for numbers with a fraction too.
        if self.insn.op_kind(0) != OpKind::MemoryESRDI || self.insn.has_repne_prefix() {
            return Err(self.unknown());
        }
        let size = self.insn.memory_size().size() as u8;
        let copies = matches!(self.insn.mnemonic(), M::Movsb | M::Movsd | M::Movsq);
        let count = if self.insn.has_rep_prefix() {
            let Value::Const(count) = self.path.register(RCX) else { return Err(Unfollowed::Size) };
            self.path.set(RCX, Value::Const(0));
            count
        } else {
            1
        };
        if count > REPEATS {
            return Err(Unfollowed::Size);
        }
        for _ in 0..count {
            let to = self.path.register(RDI);
            let value = if copies {
                let from = self.path.register(RSI);
                self.path.set(RSI, from.clone().plus(i64::from(size)));
                self.path.load(from, size)
            } else {
                self.path.register(RAX)
            };
            self.path.store(&to, size, value)?;
            self.path.set(RDI, to.plus(i64::from(size)));
        }
        Ok(())
    }

    /// The target of a jump or call.
    fn target(&self) -> Result<u64, Unfollowed> {
        match self.insn.op_kind(0) {
            OpKind::NearBranch64 => Ok(self.insn.near_branch_target()),
            _ => Err(Unfollowed::Indirect),
        }
    }
}
