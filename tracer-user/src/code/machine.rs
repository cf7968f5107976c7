//! An eBPF interpreter over modelled memory: a second opinion on generated code, used by tests only.
//!
//! It is independent of code generation and follows the instruction set standard. It stops at operations that the
//! verifier would refuse or the kernel could not do: reads of stack bytes that were never written, misaligned or
//! out-of-bounds accesses, writes to the context. Addresses are made up; the regions of memory are far apart.

use std::fmt;

use super::asm::{
    CALL, EXIT, Function, Insn, LD_IMM64, PSEUDO_FUNC, PSEUDO_KFUNC, Reg, SOURCE_REG, Width, class,
};

/// Limit of steps; a program that exceeds it counts as endless.
const STEPS_MAX: usize = 20_000_000;
/// Stack of one function, `MAX_BPF_STACK`.
const STACK_SIZE: usize = 512;
/// `-EFAULT`
const FAULT: u64 = (-14_i64).cast_unsigned();
/// Base of function addresses.
const FUNCTIONS: u64 = 0x6600_0000_0000_0000;
/// Offset that a cast adds to an address; it identifies loads through the cast.
const CAST: u64 = 0x4000_0000_0000_0000;

/// Allowed accesses to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A program's context and the number of its loadable bytes. Loads are aligned; helpers read all of it.
    Context(usize),
    /// Loads and stores.
    Memory,
    /// Only `bpf_probe_read_kernel` and its variants.
    Kernel,
    /// Only `bpf_probe_read_user` and its variants.
    User,
    /// A stack frame: aligned accesses.
    Stack,
}

#[derive(Clone, Debug)]
struct Region {
    base: u64,
    access: Access,
    bytes: Vec<u8>,
    /// For a stack, whether each byte was written.
    written: Vec<bool>,
}

/// What a program did that the machine does not allow or does not model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's message says what it is")]
pub enum Reason {
    #[error("endless")]
    Endless,
    #[error("control fell off the end")]
    FellOff,
    #[error("a jump in front of the function")]
    JumpBefore,
    #[error("half a load of 64 bits")]
    HalfLoad,
    #[error("an address of no function")]
    NoFunction,
    #[error("opcode {0:#x} is not modelled")]
    Opcode(u8),
    #[error("atomic operation {0:#x} is not modelled")]
    AtomicOperation(i32),
    #[error("helper {0} is not modelled")]
    Helper(i32),
    #[error("r{0} holds nothing")]
    Unset(u8),
    #[error("load of {size} bytes at {address:#x}")]
    Load { size: usize, address: u64 },
    #[error("load of {size} bytes of the context at {start}")]
    ContextLoad { size: usize, start: usize },
    #[error("load of {size} bytes of the stack at {start}")]
    StackLoad { size: usize, start: i64 },
    #[error("store of {size} bytes at {address:#x}")]
    Store { size: usize, address: u64 },
    #[error("a call of no helper")]
    CallOfNoHelper,
    #[error("bad arguments of bpf_loop")]
    LoopArguments,
    #[error("{0}")]
    InLoop(Box<Trap>),
}

/// Why a program was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Name of the function.
    pub function: String,
    /// Slot of the instruction.
    pub slot: usize,
    /// Reason.
    pub what: Reason,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.function, self.slot, self.what)
    }
}

/// Memory and environment of a run.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    regions: Vec<Region>,
    /// CPU number.
    pub cpu: u32,
    /// Name of the current task.
    pub comm: [u8; 16],
    /// Address of the current `task_struct`.
    pub task: u64,
    /// Address of the value that each look-up in a map finds.
    pub map_value: u64,
    /// Numbers of the helpers called so far.
    pub calls: Vec<i32>,
    /// Number of bytes that may be loaded from a cast address; 0 without casts.
    pub window: u64,
    /// Addresses that were cast.
    casts: Vec<u64>,
    steps: usize,
}

impl Machine {
    /// Creates a machine without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds memory at an address of its own and returns the address.
    pub fn map(&mut self, access: Access, bytes: &[u8]) -> u64 {
        let base = (self.regions.len() as u64 + 1) << 32;
        self.map_at(base, access, bytes);
        base
    }

    /// Adds memory at an address.
    pub fn map_at(&mut self, base: u64, access: Access, bytes: &[u8]) {
        let written = if access == Access::Stack { vec![false; bytes.len()] } else { Vec::new() };
        self.regions.push(Region { base, access, bytes: bytes.to_vec(), written });
    }

    /// The bytes of the region that starts at this address.
    pub fn bytes(&self, base: u64) -> &[u8] {
        self.regions.iter().find(|region| region.base == base).map_or(&[], |region| &region.bytes)
    }

    /// Number of instructions of the last run.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Runs the first function with these arguments.
    ///
    /// # Errors
    /// If the code performs a forbidden operation.
    pub fn run(&mut self, functions: &[Function], args: &[u64]) -> Result<u64, Trap> {
        self.steps = 0;
        self.calls.clear();
        self.casts.clear();
        self.enter(functions, 0, args)
    }

    fn enter(&mut self, functions: &[Function], number: usize, args: &[u64]) -> Result<u64, Trap> {
        let base = (0x5a00_0000_u64 + self.regions.len() as u64) << 32;
        self.map_at(base, Access::Stack, &[0; STACK_SIZE]);
        let mut frame = Frame { registers: [None; 11], slot: 0 };
        for (register, arg) in frame.registers[1..].iter_mut().zip(args) {
            *register = Some(*arg);
        }
        frame.registers[Reg::R10 as usize] = Some(base + STACK_SIZE as u64);
        let result = loop {
            match self.step(functions, number, &mut frame) {
                Ok(None) => {}
                Ok(Some(value)) => break Ok(value),
                Err(what) => {
                    let function = functions[number].name.clone();
                    break Err(Trap { function, slot: frame.slot, what });
                }
            }
        };
        self.regions.pop();
        result
    }

    /// Executes one instruction; returns the value of R0 at an exit.
    fn step(
        &mut self,
        functions: &[Function],
        number: usize,
        frame: &mut Frame,
    ) -> Result<Option<u64>, Reason> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(Reason::Endless);
        }
        let code = &functions[number];
        let insn = *code.insns.get(frame.slot).ok_or(Reason::FellOff)?;
        let mut next = frame.slot as i64 + 1;
        let width = Width::of_opcode(insn.op).bytes();
        match insn.class() {
            class::ALU | class::ALU64 => frame.alu(insn)?,
            class::LD if insn.op == LD_IMM64 => {
                let second = code.insns.get(frame.slot + 1).ok_or(Reason::HalfLoad)?;
                let value = if insn.src == PSEUDO_FUNC {
                    let name = code.addresses.iter().find(|(slot, _)| *slot == frame.slot);
                    let target = name.and_then(|(_, name)| functions.iter().position(|f| f.name == *name));
                    FUNCTIONS + target.ok_or(Reason::NoFunction)? as u64
                } else {
                    u64::from(insn.imm.cast_unsigned()) | u64::from(second.imm.cast_unsigned()) << 32
                };
                frame.set(insn.dst, value);
                next += 1;
            }
            class::LDX => {
                let address = frame.get(insn.src)?.wrapping_add_signed(i64::from(insn.off));
                frame.set(insn.dst, self.load(address, width)?);
            }
            class::STX if insn.is_atomic() => {
                let address = frame.get(insn.dst)?.wrapping_add_signed(i64::from(insn.off));
                let (old, with) = (self.load(address, width)?, frame.get(insn.src)?);
                let new = match insn.imm {
                    0x01 => old.wrapping_add(with),
                    0x41 => old | with,
                    0x51 => old & with,
                    0xe1 => with,
                    other => return Err(Reason::AtomicOperation(other)),
                };
                self.store(address, &new.to_le_bytes()[..width])?;
                frame.set(insn.src, old);
            }
            class::ST | class::STX => {
                let address = frame.get(insn.dst)?.wrapping_add_signed(i64::from(insn.off));
                let value = if insn.class() == class::STX {
                    frame.get(insn.src)?
                } else {
                    i64::from(insn.imm).cast_unsigned()
                };
                self.store(address, &value.to_le_bytes()[..width])?;
            }
            _ if insn.op == EXIT => return Ok(Some(frame.get(0)?)),
            _ if insn.op == CALL => {
                let result = self.call(functions, insn, frame)?;
                for register in &mut frame.registers[1..6] {
                    *register = None;
                }
                frame.set(0, result);
            }
            _ => {
                if frame.jumps(insn)? {
                    next += i64::from(insn.off);
                }
            }
        }
        frame.slot = usize::try_from(next).map_err(|_| Reason::JumpBefore)?;
        Ok(None)
    }

    fn region(&self, address: u64, size: usize, fits: impl Fn(Access) -> bool) -> Option<(usize, usize)> {
        self.regions.iter().enumerate().find_map(|(number, region)| {
            let start = usize::try_from(address.checked_sub(region.base)?).ok()?;
            let inside = start <= region.bytes.len() && size <= region.bytes.len() - start;
            (inside && fits(region.access)).then_some((number, start))
        })
    }

    /// Whether this many bytes at the address are in the window of a cast.
    fn is_cast(&self, address: u64, size: u64) -> bool {
        let inside = |base: &u64| {
            let start = address.wrapping_sub(CAST).wrapping_sub(*base);
            start.checked_add(size).is_some_and(|end| end <= self.window)
        };
        self.casts.iter().any(inside)
    }

    fn load(&self, address: u64, size: usize) -> Result<u64, Reason> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        if self.is_cast(address, size as u64) {
            return Ok(self.peek(address.wrapping_sub(CAST), size, false).map_or(0, word));
        }
        let fits = |access| matches!(access, Access::Context(_) | Access::Memory | Access::Stack);
        let (number, start) = self.region(address, size, fits).ok_or(Reason::Load { size, address })?;
        let region = &self.regions[number];
        let bytes = start..start + size;
        match region.access {
            Access::Context(visible) if bytes.end > visible || !start.is_multiple_of(size) => {
                return Err(Reason::ContextLoad { size, start });
            }
            Access::Stack
                if !start.is_multiple_of(size) || !region.written[bytes.clone()].iter().all(|w| *w) =>
            {
                return Err(Reason::StackLoad { size, start: start as i64 - STACK_SIZE as i64 });
            }
            _ => {}
        }
        Ok(word(&region.bytes[bytes]))
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Reason> {
        let fits = |access| matches!(access, Access::Memory | Access::Stack);
        let (number, start) =
            self.region(address, bytes.len(), fits).ok_or(Reason::Store { size: bytes.len(), address })?;
        let region = &mut self.regions[number];
        region.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        if region.access == Access::Stack {
            region.written[start..start + bytes.len()].fill(true);
        }
        Ok(())
    }

    /// Reads bytes for a helper.
    fn peek(&self, address: u64, size: usize, user: bool) -> Option<&[u8]> {
        let (number, start) = self.region(address, size, |access| (access == Access::User) == user)?;
        Some(&self.regions[number].bytes[start..start + size])
    }

    fn call(&mut self, functions: &[Function], insn: Insn, frame: &Frame) -> Result<u64, Reason> {
        if insn.src == PSEUDO_KFUNC && self.window > 0 {
            frame.get(2)?;
            let given = frame.get(1)?;
            // An address that was cast may be cast again.
            let address = if self.is_cast(given, 0) { given.wrapping_sub(CAST) } else { given };
            self.casts.push(address);
            return Ok(address.wrapping_add(CAST));
        }
        if insn.src != 0 {
            return Err(Reason::CallOfNoHelper);
        }
        self.calls.push(insn.imm);
        let arg = |number: u8| frame.get(number);
        Ok(match insn.imm {
            1 => {
                self.load(arg(2)?, 4)?;
                self.map_value
            }
            8 => u64::from(self.cpu),
            16 => {
                let (to, size) = (arg(1)?, arg(2)? as usize);
                let mut name = self.comm.to_vec();
                name.resize(size, 0);
                self.store(to, &name)?;
                0
            }
            35 => self.task,
            112 | 113 => {
                let (to, size, from) = (arg(1)?, arg(2)? as usize, arg(3)?);
                let read = self.peek(from, size, insn.imm == 112).map(<[u8]>::to_vec);
                self.store(to, read.as_deref().unwrap_or(&vec![0; size]))?;
                if read.is_some() { 0 } else { FAULT }
            }
            114 | 115 => {
                let (to, size, from) = (arg(1)?, arg(2)? as usize, arg(3)?);
                let mut text = Vec::new();
                let mut whole = true;
                while text.len() < size && text.last() != Some(&0) {
                    let next = from.wrapping_add(text.len() as u64);
                    let Some(byte) = self.peek(next, 1, insn.imm == 114) else {
                        whole = false;
                        break;
                    };
                    text.push(byte[0]);
                }
                if whole {
                    if let Some(last) = text.last_mut() {
                        *last = 0;
                    }
                    self.store(to, &text)?;
                    // As on 6.1 and 6.12, the NUL of an empty user string is not counted.
                    if insn.imm == 114 && text == [0] { 0 } else { text.len() as u64 }
                } else {
                    self.store(to, &vec![0; size])?;
                    FAULT
                }
            }
            181 => {
                let (count, callback, context) = (arg(1)? as u32, arg(2)?, arg(3)?);
                let number = callback.wrapping_sub(FUNCTIONS) as usize;
                if number >= functions.len() || arg(4)? != 0 {
                    return Err(Reason::LoopArguments);
                }
                let mut index = 0;
                while index < count {
                    index += 1;
                    match self.enter(functions, number, &[u64::from(index - 1), context]) {
                        Ok(0) => {}
                        Ok(_) => break,
                        Err(trap) => return Err(Reason::InLoop(Box::new(trap))),
                    }
                }
                u64::from(index)
            }
            other => return Err(Reason::Helper(other)),
        })
    }
}

/// Registers and current slot of one function's run; `None` is a register without a value.
struct Frame {
    registers: [Option<u64>; 11],
    slot: usize,
}

impl Frame {
    fn get(&self, register: u8) -> Result<u64, Reason> {
        self.registers.get(usize::from(register)).copied().flatten().ok_or(Reason::Unset(register))
    }

    fn set(&mut self, register: u8, value: u64) {
        if let Some(register) = self.registers.get_mut(usize::from(register)) {
            *register = Some(value);
        }
    }

    fn operand(&self, insn: Insn) -> Result<u64, Reason> {
        if insn.op & SOURCE_REG != 0 { self.get(insn.src) } else { Ok(i64::from(insn.imm).cast_unsigned()) }
    }

    fn alu(&mut self, insn: Insn) -> Result<(), Reason> {
        let wide = insn.class() == class::ALU64;
        let right = self.operand(insn)?;
        let left = if insn.op & 0xf0 == 0xb0 { 0 } else { self.get(insn.dst)? };
        let shift = right as u32 & if wide { 63 } else { 31 };
        let (left, right) = if wide { (left, right) } else { (left & 0xffff_ffff, right & 0xffff_ffff) };
        let value = match insn.op & 0xf0 {
            0x00 => left.wrapping_add(right),
            0x10 => left.wrapping_sub(right),
            0x20 => left.wrapping_mul(right),
            0x40 => left | right,
            0x50 => left & right,
            0x60 => left << shift,
            0x70 => left >> shift,
            0x80 => left.wrapping_neg(),
            0xa0 => left ^ right,
            0xb0 => right,
            0xc0 if wide => (left.cast_signed() >> shift).cast_unsigned(),
            0xc0 => u64::from(((left as u32).cast_signed() >> shift).cast_unsigned()),
            _ => return Err(Reason::Opcode(insn.op)),
        };
        self.set(insn.dst, if wide { value } else { value & 0xffff_ffff });
        Ok(())
    }

    fn jumps(&self, insn: Insn) -> Result<bool, Reason> {
        if insn.op & 0xf0 == 0 {
            return Ok(true);
        }
        let (mut left, mut right) = (self.get(insn.dst)?, self.operand(insn)?);
        if insn.class() == class::JMP32 {
            let sign = |value: u64| i64::from((value as u32).cast_signed()).cast_unsigned();
            if insn.op & 0xf0 >= 0x60 && !matches!(insn.op & 0xf0, 0xa0 | 0xb0) {
                (left, right) = (sign(left), sign(right));
            } else {
                (left, right) = (left & 0xffff_ffff, right & 0xffff_ffff);
            }
        }
        let (sleft, sright) = (left.cast_signed(), right.cast_signed());
        Ok(match insn.op & 0xf0 {
            0x10 => left == right,
            0x20 => left > right,
            0x30 => left >= right,
            0x40 => left & right != 0,
            0x50 => left != right,
            0x60 => sleft > sright,
            0x70 => sleft >= sright,
            0xa0 => left < right,
            0xb0 => left <= right,
            0xc0 => sleft < sright,
            0xd0 => sleft <= sright,
            _ => return Err(Reason::Opcode(insn.op)),
        })
    }
}
