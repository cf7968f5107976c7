//! Constant folding: replaces computations at every hit by results that are known at load time.
//!
//! A template reads its parameters from frozen memory. The kernel's verifier knows their values and drops the branches
//! that they rule out, but the loads, the arithmetic and the jumps stay in the program. This pass follows values
//! (constants, and addresses in that memory) along all paths that can be taken, and writes constant results as
//! constants.

use super::program::{Edit, Item, Program};
use crate::code::asm::{Alu, CALL, Cond, EXIT, Insn, JA, PSEUDO_MAP_VALUE, Reg, SOURCE_REG, Width, class};

/// Memory that never changes: its bytes, and the descriptor that instructions name it by.
#[derive(Clone, Copy, Debug)]
pub struct Frozen<'a> {
    /// Descriptor of the map.
    pub fd: i32,
    /// Its only value.
    pub bytes: &'a [u8],
}

/// The value of a register, as far as it is known at load time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A constant.
    Const(u64),
    /// An address at this offset in the frozen memory of this number. The enum has 16 bytes, as states are copied often.
    Data(u32, i32),
    /// An address in the value of a map, which is never 0.
    Address,
    /// Unknown.
    Any,
}

pub(super) type State = [Value; 11];

/// Folds the whole program.
pub(super) fn fold(program: &mut Program, frozen: &[Frozen<'_>]) {
    let states = states(program, frozen);
    program.edit(|at, item| match states.before(at) {
        None => Edit::Replace(Vec::new()),
        Some(state) => folded(item, state, frozen),
    });
}

/// The registers before each item that a path arrives at.
pub(super) struct States {
    /// The number of an item's state, or [`Self::NONE`]. Most of a template's items have none.
    numbers: Vec<u32>,
    states: Vec<State>,
}

impl States {
    const NONE: u32 = u32::MAX;

    fn of(items: usize) -> Self {
        Self { numbers: vec![Self::NONE; items], states: Vec::new() }
    }

    /// The registers before an item; `None` where no path arrives.
    pub(super) fn before(&self, at: usize) -> Option<&State> {
        self.states.get(*self.numbers.get(at)? as usize)
    }

    /// Adds a path that arrives at an item with these registers. Returns whether that changed the item's state.
    fn arrive(&mut self, at: usize, state: &State) -> bool {
        let Some(number) = self.numbers.get_mut(at) else { return false };
        if let Some(known) = self.states.get_mut(*number as usize) {
            let met = meet(known, state);
            return std::mem::replace(known, met) != met;
        }
        *number = self.states.len() as u32;
        self.states.push(*state);
        true
    }
}

/// Follows all paths that can be taken.
pub(super) fn states(program: &Program, frozen: &[Frozen<'_>]) -> States {
    let mut states = States::of(program.items.len());
    // Items are processed in program order. Most jumps go forward, so all paths to a join have usually arrived by then.
    let mut due = vec![false; program.items.len()];
    for start in &program.starts {
        states.arrive(*start, &[Value::Any; 11]);
        due[*start] = true;
    }
    let mut at = 0;
    while at < due.len() {
        if !std::mem::take(&mut due[at]) {
            at += 1;
            continue;
        }
        let Some(before) = states.before(at) else { continue };
        let item = &program.items[at];
        let (next, jump) = exits(item, before);
        let after = step(item, *before, frozen);
        for to in [next.then_some(at + 1), item.to.filter(|_| jump)].into_iter().flatten() {
            if states.arrive(to, &after) {
                due[to] = true;
                at = at.min(to);
            }
        }
    }
    states
}

fn meet(a: &State, b: &State) -> State {
    std::array::from_fn(|n| if a[n] == b[n] { a[n] } else { Value::Any })
}

/// Whether control may continue at the next item, and whether it may jump.
fn exits(item: &Item, state: &State) -> (bool, bool) {
    let insn = item.insn;
    if insn.refers_to_function() || !insn.is_jump() {
        return (insn.op != EXIT, false);
    }
    if insn.op == JA {
        return (false, true);
    }
    match decided(insn, state) {
        Some(taken) => (!taken, taken),
        None => (true, true),
    }
}

/// Whether a conditional jump is taken, if known.
pub(super) fn decided(insn: Insn, state: &State) -> Option<bool> {
    let wide = insn.class() == class::JMP;
    let (mut a, mut b) = match (state[usize::from(insn.dst)], operand(insn, state)) {
        (Value::Const(a), Value::Const(b)) => (a, b),
        (Value::Address, Value::Const(0)) if wide => {
            return match Cond::of_opcode(insn.op)? {
                Cond::Eq => Some(false),
                Cond::Ne => Some(true),
                _ => None,
            };
        }
        _ => return None,
    };
    if !wide {
        (a, b) = (u64::from(a as u32), u64::from(b as u32));
    }
    let signed = |v: u64| if wide { v as i64 } else { i64::from(v as u32 as i32) };
    Some(match Cond::of_opcode(insn.op)? {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Set => a & b != 0,
        Cond::SGt => signed(a) > signed(b),
        Cond::SGe => signed(a) >= signed(b),
        Cond::SLt => signed(a) < signed(b),
        Cond::SLe => signed(a) <= signed(b),
    })
}

/// The second operand of arithmetic or a jump.
fn operand(insn: Insn, state: &State) -> Value {
    if insn.op & SOURCE_REG != 0 {
        state[usize::from(insn.src)]
    } else {
        Value::Const(i64::from(insn.imm).cast_unsigned())
    }
}

/// The registers after an item.
pub(super) fn step(item: &Item, mut state: State, frozen: &[Frozen<'_>]) -> State {
    let insn = item.insn;
    let dst = usize::from(insn.dst);
    match insn.class() {
        class::ALU | class::ALU64 => state[dst] = computed(insn, &state),
        class::LDX => state[dst] = loaded(insn, &state, frozen),
        class::LD => {
            let high = item.second.map_or(0, |second| second.imm);
            let low = u64::from(insn.imm.cast_unsigned());
            state[dst] = match insn.src {
                0 => Value::Const(low | u64::from(high.cast_unsigned()) << 32),
                PSEUDO_MAP_VALUE => match frozen.iter().zip(0..).find(|(memory, _)| memory.fd == insn.imm) {
                    Some((_, number)) => Value::Data(number, high),
                    None => Value::Address,
                },
                _ => Value::Any,
            };
        }
        // An atomic operation may return the old value.
        class::STX if insn.is_atomic() => {
            state[0] = Value::Any;
            state[usize::from(insn.src)] = Value::Any;
        }
        _ if insn.op == CALL => state[..=5].fill(Value::Any),
        _ => {}
    }
    state
}

fn computed(insn: Insn, state: &State) -> Value {
    let wide = insn.class() == class::ALU64;
    let b = operand(insn, state);
    let a = state[usize::from(insn.dst)];
    // A nonzero offset makes a move sign-extending and a division signed.
    let Some(op) = Alu::of_opcode(insn.op).filter(|_| insn.off == 0) else { return Value::Any };
    if op == Alu::Mov {
        return match b {
            Value::Const(b) if !wide => Value::Const(u64::from(b as u32)),
            b if wide => b,
            _ => Value::Any,
        };
    }
    match (a, b) {
        (Value::Data(number, offset), Value::Const(b)) if wide && op == Alu::Add => {
            let sum = i64::from(offset).wrapping_add(b.cast_signed());
            i32::try_from(sum).map_or(Value::Any, |offset| Value::Data(number, offset))
        }
        (_, Value::Const(0)) | (Value::Const(0), _) if op == Alu::And => Value::Const(0),
        (Value::Const(a), Value::Const(b)) => arithmetic(op, a, b, wide).map_or(Value::Any, Value::Const),
        _ => Value::Any,
    }
}

fn arithmetic(op: Alu, a: u64, b: u64, wide: bool) -> Option<u64> {
    let (a, b, bits) = if wide { (a, b, 64) } else { (u64::from(a as u32), u64::from(b as u32), 32) };
    let by = (b % bits) as u32;
    let result = match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Or => a | b,
        Alu::And => a & b,
        Alu::Xor => a ^ b,
        Alu::Neg => a.wrapping_neg(),
        Alu::Lsh => a << by,
        Alu::Rsh => a >> by,
        Alu::Arsh if wide => (a.cast_signed() >> by).cast_unsigned(),
        Alu::Arsh => u64::from(((a as u32).cast_signed() >> by).cast_unsigned()),
        Alu::Div | Alu::Mov => return None,
    };
    Some(if wide { result } else { u64::from(result as u32) })
}

/// A load from frozen memory.
fn loaded(insn: Insn, state: &State, frozen: &[Frozen<'_>]) -> Value {
    let Value::Data(number, offset) = state[usize::from(insn.src)] else { return Value::Any };
    // Only plain loads; loads that sign-extend have another mode.
    if insn.op & 0xe0 != 0x60 {
        return Value::Any;
    }
    let width = Width::of_opcode(insn.op).bytes();
    let bytes = usize::try_from(i64::from(offset) + i64::from(insn.off))
        .ok()
        .and_then(|start| frozen.get(number as usize)?.bytes.get(start..start + width));
    let Some(bytes) = bytes else { return Value::Any };
    let mut word = [0; 8];
    word[..width].copy_from_slice(bytes);
    Value::Const(u64::from_le_bytes(word))
}

/// The item with known values written into it.
fn folded(item: &Item, state: &State, frozen: &[Frozen<'_>]) -> Edit {
    let insn = item.insn;
    match insn.class() {
        class::ALU | class::ALU64 | class::LDX => {
            let result = step(item, *state, frozen)[usize::from(insn.dst)];
            if let Value::Const(value) = result
                && let Some(constant) = small(value)
            {
                let dst = Insn::alu(Alu::Mov, Reg::R0, constant.into());
                return replaced(item, Insn { dst: insn.dst, ..dst });
            }
            if insn.class() == class::LDX { Edit::Keep } else { immediate(item, state) }
        }
        _ if insn.is_jump() && insn.op != JA => match decided(insn, state) {
            Some(true) => Edit::Change(Insn::jump()),
            Some(false) => Edit::Replace(Vec::new()),
            None => immediate(item, state),
        },
        _ => Edit::Keep,
    }
}

/// The item with an immediate instead of a constant register.
fn immediate(item: &Item, state: &State) -> Edit {
    let insn = swapped(item.insn, state);
    let Value::Const(value) = state[usize::from(insn.src)] else { return Edit::Keep };
    // Divisions stay as they are; a negation has no second operand.
    let arithmetic = Alu::of_opcode(insn.op).filter(|op| !matches!(op, Alu::Div | Alu::Neg));
    let takes = insn.is_jump() || insn.off == 0 && arithmetic.is_some();
    let narrow = matches!(insn.class(), class::ALU | class::JMP32);
    let imm = if narrow { Some((value as u32).cast_signed()) } else { small(value) };
    match imm {
        Some(imm) if insn.op & SOURCE_REG != 0 && takes => {
            replaced(item, Insn { op: insn.op & !SOURCE_REG, src: 0, imm, ..insn })
        }
        _ => Edit::Keep,
    }
}

/// Swaps the operands of a symmetric comparison if that puts a constant on the right.
fn swapped(insn: Insn, state: &State) -> Insn {
    let turns = matches!(Cond::of_opcode(insn.op), Some(Cond::Eq | Cond::Ne | Cond::Set));
    let left = matches!(state[usize::from(insn.dst)], Value::Const(_));
    if insn.is_jump() && insn.op & SOURCE_REG != 0 && turns && left {
        Insn { dst: insn.src, src: insn.dst, ..insn }
    } else {
        insn
    }
}

/// The number as an instruction's sign-extended immediate.
fn small(value: u64) -> Option<i32> {
    i32::try_from(value.cast_signed()).ok()
}

fn replaced(item: &Item, insn: Insn) -> Edit {
    if insn == item.insn { Edit::Keep } else { Edit::Change(insn) }
}
