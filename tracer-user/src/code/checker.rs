//! Structural checker of generated functions: a second opinion that shares no code with lowering.
//!
//! It follows all paths and tracks the kind of value in each register and which bytes of the stack are written. It
//! reports the first instruction that the verifier would refuse for one of these reasons:
//!
//! - a jump to an invalid target or backwards
//! - a path off the end of the function
//! - code that no path reaches
//! - a register or stack byte that is read before it is written
//! - a stack access out of bounds or misaligned
//! - a store to the context, or a context load that is misaligned or at a varying offset
//!
//! It tracks no ranges: it accepts all accesses to other memory.

use std::fmt;

use super::asm::{CALL, EXIT, Function, Insn, LD_IMM64, SOURCE_REG, Width, class};

/// Bytes of a stack frame, `MAX_BPF_STACK`.
const STACK_SIZE: i64 = 512;

/// Kind of a function's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The program's context; this many of its first bytes cannot be loaded.
    Context(u16),
    /// Memory.
    Memory,
    /// A number.
    Number,
}

/// A rule that a function breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's message says what it is")]
pub enum Violation {
    #[error("no path leads here")]
    NoPath,
    #[error("a jump in front of the function")]
    JumpBefore,
    #[error("control leaves the function")]
    ControlLeaves,
    #[error("a jump into an instruction")]
    JumpIntoInstruction,
    #[error("a jump back")]
    JumpBack,
    #[error("opcode {0:#04x}")]
    Opcode(u8),
    #[error("there is no r{0}")]
    NoRegister(u8),
    #[error("r{0} is read before it is written")]
    ReadBeforeWritten(u8),
    #[error("r{0} is written")]
    RegisterWritten(u8),
    #[error("the sum of two addresses")]
    SumOfAddresses,
    #[error("arithmetic on an address")]
    AddressArithmetic,
    #[error("a load of {size} bytes of the context at {at}")]
    ContextLoad { size: i64, at: i64 },
    #[error("a load of stack that is not written")]
    UnwrittenStack,
    #[error("a load of the context at a varying offset")]
    VaryingContextLoad,
    #[error("a load of the stack at a varying offset")]
    VaryingStackLoad,
    #[error("a load from no address")]
    LoadFromNumber,
    #[error("a store to the context")]
    ContextStore,
    #[error("a store to the stack at a varying offset")]
    VaryingStackStore,
    #[error("a store to no address")]
    StoreToNumber,
    #[error("atomic operation {0:#x}")]
    AtomicOperation(i32),
    #[error("an atomic operation on no memory")]
    AtomicOnNoMemory,
    #[error("a call of another function")]
    CallOfFunction,
    #[error("helper {0} is not known")]
    UnknownHelper(i32),
    #[error("a helper writes {size} bytes of the stack at {base}")]
    HelperWrites { size: i64, base: i64 },
    #[error("a helper writes to no known place")]
    HelperWritesNowhere,
    #[error("an access of {size} bytes of the stack at {at}")]
    StackAccess { size: i64, at: i64 },
}

/// A fault and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Slot of the instruction.
    pub slot: usize,
    /// Reason.
    pub what: Violation,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.slot, self.what)
    }
}

/// The kind of value in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Never written, or values of different kinds on different paths.
    Unset,
    /// A number, with its value if that is always the same.
    Number(Option<i64>),
    /// An address in the context, with its offset from the start if that is always the same.
    Context(Option<i64>),
    /// An address in the frame, with its offset from the frame's end if that is always the same.
    Frame(Option<i64>),
    /// An address in other memory.
    Memory,
    /// A value loaded from memory: a number or an address.
    Loaded,
}

/// Registers and stack before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    registers: [Value; 11],
    /// Whether each byte of the stack is written, lowest byte first.
    written: [bool; STACK_SIZE as usize],
}

/// Checks a function that is called with these arguments.
///
/// # Errors
/// Returns the first fault.
pub fn check(function: &Function, arguments: &[Argument]) -> Result<(), Fault> {
    let hidden = arguments.iter().find_map(|argument| match argument {
        Argument::Context(hidden) => Some(i64::from(*hidden)),
        _ => None,
    });
    let checker = Checker { insns: &function.insns, second: second_slots(&function.insns), hidden };
    let mut registers = [Value::Unset; 11];
    for (register, argument) in registers[1..=5].iter_mut().zip(arguments) {
        *register = match argument {
            Argument::Context(_) => Value::Context(Some(0)),
            Argument::Memory => Value::Memory,
            Argument::Number => Value::Number(None),
        };
    }
    registers[10] = Value::Frame(Some(0));
    let mut states: Vec<Option<State>> = vec![None; function.insns.len()];
    // Jumps only go forward, so one pass in program order covers every path.
    let start = State { registers, written: [false; STACK_SIZE as usize] };
    checker.arrive(&mut states, 0, start).map_err(|what| Fault { slot: 0, what })?;
    for slot in 0..function.insns.len() {
        if checker.second[slot] {
            continue;
        }
        let state = states[slot].clone().ok_or(Fault { slot, what: Violation::NoPath })?;
        checker.step(&mut states, slot, state).map_err(|what| Fault { slot, what })?;
    }
    Ok(())
}

/// For each slot, whether it is the second half of a 64-bit immediate.
fn second_slots(insns: &[Insn]) -> Vec<bool> {
    let mut second = vec![false; insns.len()];
    for slot in 1..insns.len() {
        second[slot] = insns[slot - 1].op == LD_IMM64 && !second[slot - 1];
    }
    second
}

struct Checker<'a> {
    insns: &'a [Insn],
    second: Vec<bool>,
    /// Number of bytes at the start of the context that cannot be loaded.
    hidden: Option<i64>,
}

impl Checker<'_> {
    /// Merges a state into the state of a slot.
    fn arrive(&self, states: &mut [Option<State>], to: i64, state: State) -> Result<(), Violation> {
        let to = usize::try_from(to).map_err(|_| Violation::JumpBefore)?;
        if to >= self.insns.len() {
            return Err(Violation::ControlLeaves);
        }
        if self.second[to] {
            return Err(Violation::JumpIntoInstruction);
        }
        match &mut states[to] {
            Some(known) => {
                for (known, new) in known.registers.iter_mut().zip(state.registers) {
                    *known = merged(*known, new);
                }
                for (known, new) in known.written.iter_mut().zip(state.written) {
                    *known &= new;
                }
            }
            empty => *empty = Some(state),
        }
        Ok(())
    }

    fn step(&self, states: &mut [Option<State>], slot: usize, mut state: State) -> Result<(), Violation> {
        let insn = self.insns[slot];
        let mut next = slot as i64 + 1;
        match insn.class() {
            class::ALU | class::ALU64 => state.alu(insn)?,
            class::LD if insn.op == LD_IMM64 => {
                state.set(insn.dst, Value::Number(None))?;
                next += 1;
            }
            class::LDX => {
                let width = Width::of_opcode(insn.op).bytes() as i64;
                let value = state.load(insn, width, self.hidden.unwrap_or(0))?;
                state.set(insn.dst, value)?;
            }
            class::STX if insn.is_atomic() => state.atomic(insn)?,
            class::ST | class::STX => {
                if insn.class() == class::STX {
                    state.get(insn.src)?;
                }
                state.store(insn, Width::of_opcode(insn.op).bytes() as i64)?;
            }
            _ if insn.op == EXIT => {
                state.get(0)?;
                return Ok(());
            }
            _ if insn.op == CALL => state.call(insn)?,
            class::JMP | class::JMP32 => {
                if insn.off < 0 {
                    return Err(Violation::JumpBack);
                }
                let target = next + i64::from(insn.off);
                let always = insn.op & 0xf0 == 0;
                if !always {
                    state.get(insn.dst)?;
                    if insn.op & SOURCE_REG != 0 {
                        state.get(insn.src)?;
                    }
                }
                self.arrive(states, target, state.clone())?;
                if always {
                    return Ok(());
                }
            }
            _ => return Err(Violation::Opcode(insn.op)),
        }
        self.arrive(states, next, state)
    }
}

fn merged(one: Value, other: Value) -> Value {
    use Value::{Context, Frame, Loaded, Number};
    match (one, other) {
        _ if one == other => one,
        (Number(_), Number(_)) => Number(None),
        (Number(_), Loaded) | (Loaded, Number(_)) => Loaded,
        (Context(_), Context(_)) => Context(None),
        (Frame(_), Frame(_)) => Frame(None),
        _ => Value::Unset,
    }
}

impl State {
    fn get(&self, register: u8) -> Result<Value, Violation> {
        match self.registers.get(usize::from(register)) {
            None => Err(Violation::NoRegister(register)),
            Some(Value::Unset) => Err(Violation::ReadBeforeWritten(register)),
            Some(value) => Ok(*value),
        }
    }

    fn set(&mut self, register: u8, value: Value) -> Result<(), Violation> {
        match self.registers[..10].get_mut(usize::from(register)) {
            None => Err(Violation::RegisterWritten(register)),
            Some(known) => {
                *known = value;
                Ok(())
            }
        }
    }

    fn alu(&mut self, insn: Insn) -> Result<(), Violation> {
        let wide = insn.class() == class::ALU64;
        let right = if insn.op & SOURCE_REG != 0 {
            self.get(insn.src)?
        } else {
            Value::Number(Some(insn.imm.into()))
        };
        let is_number = |value| matches!(value, Value::Number(_) | Value::Loaded);
        let value = match (insn.op & 0xf0, wide) {
            (0xb0, true) => right,
            (0xb0, false) if is_number(right) => Value::Number(None),
            (0x00, true) => match (self.get(insn.dst)?, right) {
                (Value::Number(Some(a)), Value::Number(Some(b))) => Value::Number(a.checked_add(b)),
                (Value::Context(Some(a)), Value::Number(Some(b))) => Value::Context(Some(a + b)),
                (Value::Frame(Some(a)), Value::Number(Some(b))) => Value::Frame(Some(a + b)),
                (Value::Context(_), right) if is_number(right) => Value::Context(None),
                (Value::Frame(_), right) if is_number(right) => Value::Frame(None),
                (Value::Memory, right) if is_number(right) => Value::Memory,
                (Value::Loaded, right) if is_number(right) => Value::Loaded,
                (Value::Number(_), Value::Number(_)) => Value::Number(None),
                (Value::Number(_), Value::Loaded) => Value::Loaded,
                _ => return Err(Violation::SumOfAddresses),
            },
            _ => {
                if !is_number(self.get(insn.dst)?) || !is_number(right) {
                    return Err(Violation::AddressArithmetic);
                }
                Value::Number(None)
            }
        };
        self.set(insn.dst, value)
    }

    fn load(&self, insn: Insn, size: i64, hidden: i64) -> Result<Value, Violation> {
        match self.get(insn.src)? {
            Value::Context(Some(base)) => {
                let at = base + i64::from(insn.off);
                if at < hidden || at % size != 0 {
                    return Err(Violation::ContextLoad { size, at });
                }
                Ok(Value::Number(None))
            }
            Value::Frame(Some(base)) => {
                let range = frame_bytes(base + i64::from(insn.off), size)?;
                if !self.written[range].iter().all(|written| *written) {
                    return Err(Violation::UnwrittenStack);
                }
                Ok(if size == 8 { Value::Loaded } else { Value::Number(None) })
            }
            Value::Memory | Value::Loaded => Ok(if size == 8 { Value::Loaded } else { Value::Number(None) }),
            Value::Context(None) => Err(Violation::VaryingContextLoad),
            Value::Frame(None) => Err(Violation::VaryingStackLoad),
            Value::Number(_) | Value::Unset => Err(Violation::LoadFromNumber),
        }
    }

    fn store(&mut self, insn: Insn, size: i64) -> Result<(), Violation> {
        match self.get(insn.dst)? {
            Value::Frame(Some(base)) => {
                let range = frame_bytes(base + i64::from(insn.off), size)?;
                self.written[range].fill(true);
                Ok(())
            }
            Value::Memory | Value::Loaded => Ok(()),
            Value::Context(_) => Err(Violation::ContextStore),
            Value::Frame(None) => Err(Violation::VaryingStackStore),
            Value::Number(_) | Value::Unset => Err(Violation::StoreToNumber),
        }
    }

    /// An atomic operation on shared memory; the source register receives the old value.
    fn atomic(&mut self, insn: Insn) -> Result<(), Violation> {
        self.get(insn.src)?;
        if !matches!(insn.imm, 0x01 | 0x41 | 0x51 | 0xe1) || !matches!(insn.op & 0x18, 0x00 | 0x18) {
            return Err(Violation::AtomicOperation(insn.imm));
        }
        match self.get(insn.dst)? {
            Value::Memory | Value::Loaded => self.set(insn.src, Value::Number(None)),
            _ => Err(Violation::AtomicOnNoMemory),
        }
    }

    /// A helper call: checks its arguments, marks the memory that it writes, and clears the registers that it clobbers.
    fn call(&mut self, insn: Insn) -> Result<(), Violation> {
        if insn.src != 0 {
            return Err(Violation::CallOfFunction);
        }
        // Number of arguments of each helper, and whether it writes to memory: address and size are the first two
        // arguments.
        let (arguments, writes) = match insn.imm {
            1 => (2, false),
            8 | 14 | 35 => (0, false),
            16 => (2, true),
            112..=115 => (3, true),
            181 => (4, false),
            other => return Err(Violation::UnknownHelper(other)),
        };
        for register in 1..=arguments {
            self.get(register)?;
        }
        if writes {
            match (self.get(1)?, self.get(2)?) {
                (Value::Memory | Value::Loaded, _) => {}
                (Value::Frame(Some(base)), Value::Number(Some(size))) => {
                    if size <= 0 || base < -STACK_SIZE || base + size > 0 {
                        return Err(Violation::HelperWrites { size, base });
                    }
                    let start = (base + STACK_SIZE) as usize;
                    self.written[start..start + size as usize].fill(true);
                }
                _ => return Err(Violation::HelperWritesNowhere),
            }
        }
        self.registers[1..=5].fill(Value::Unset);
        let finds_memory = insn.imm == 1;
        self.registers[0] = if finds_memory { Value::Loaded } else { Value::Number(None) };
        Ok(())
    }
}

/// The bytes of an aligned frame access, numbered from the frame's lowest byte.
fn frame_bytes(at: i64, size: i64) -> Result<std::ops::Range<usize>, Violation> {
    if at < -STACK_SIZE || at + size > 0 || at % size != 0 {
        return Err(Violation::StackAccess { size, at });
    }
    let start = (at + STACK_SIZE) as usize;
    Ok(start..start + size as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::asm::{Alu, Assembler, Cond, Helper, Reg};

    fn fault(build: impl FnOnce(&mut Assembler)) -> String {
        let mut asm = Assembler::new();
        build(&mut asm);
        let function = asm.finish("f");
        match check(&function, &[Argument::Context(8), Argument::Memory, Argument::Number]) {
            Ok(()) => "none".to_owned(),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn faults_are_found() {
        let end = |asm: &mut Assembler| {
            asm.mov(Reg::R0, 0);
            asm.exit();
        };
        assert_eq!(fault(end), "none");
        assert_eq!(fault(Assembler::exit), "instruction 0: r0 is read before it is written");
        assert_eq!(
            fault(|asm| {
                asm.load(Width::D, Reg::R0, Reg::R1, 0);
                asm.exit();
            }),
            "instruction 0: a load of 8 bytes of the context at 0"
        );
        assert_eq!(
            fault(|asm| {
                asm.alu(Alu::Add, Reg::R1, Reg::R3);
                asm.load(Width::B, Reg::R0, Reg::R1, 0);
                asm.exit();
            }),
            "instruction 1: a load of the context at a varying offset"
        );
        assert_eq!(
            fault(|asm| {
                asm.load(Width::W, Reg::R0, Reg::R10, -4);
                asm.exit();
            }),
            "instruction 0: a load of stack that is not written"
        );
        assert_eq!(
            fault(|asm| {
                asm.store(Width::W, Reg::R10, -6, 0);
                end(asm);
            }),
            "instruction 0: an access of 4 bytes of the stack at -6"
        );
        assert_eq!(
            fault(|asm| {
                let join = asm.label();
                asm.jump_if(Cond::Eq, Reg::R3, 0, join);
                asm.mov(Reg::R4, 1);
                asm.bind(join);
                asm.mov(Reg::R0, Reg::R4);
                asm.exit();
            }),
            "instruction 2: r4 is read before it is written"
        );
        assert_eq!(
            fault(|asm| {
                asm.call(Helper::GetSmpProcessorId);
                asm.mov(Reg::R0, Reg::R1);
                asm.exit();
            }),
            "instruction 1: r1 is read before it is written"
        );
        assert_eq!(
            fault(|asm| {
                let back = asm.label();
                asm.bind(back);
                asm.jump_if(Cond::Eq, Reg::R3, 0, back);
                end(asm);
            }),
            "instruction 0: a jump back"
        );
    }

    #[test]
    fn jumps_land_on_instructions() {
        let wide = Insn::imm64(Reg::R0, 1 << 40);
        let mut into = Insn::jump();
        into.off = 1;
        let insns = vec![into, wide[0], wide[1], Insn::exit()];
        let function = Function { name: "f".to_owned(), insns, ..Function::default() };
        assert_eq!(
            check(&function, &[]).unwrap_err().to_string(),
            "instruction 0: a jump into an instruction"
        );
        let function = Function { insns: vec![wide[0], wide[1]], ..function };
        assert_eq!(
            check(&function, &[]).unwrap_err().to_string(),
            "instruction 0: control leaves the function"
        );
    }
}
