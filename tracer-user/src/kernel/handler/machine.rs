//! The paths through a handler, and the state on each.

use std::sync::Arc;

use super::{
    memory::Memory,
    text::{Callees, KernelText, Unfollowed},
    value::{Comparison, Condition, OF_FILE, Operation, UNSET, Value},
};

/// No-ops at most this many bytes after the handler's start belong to ftrace.
const ENTRY: u64 = 16;
/// Instructions that are followed at most, on all paths together.
const STEPS: usize = 20_000;
/// Bytes that a function copies or fills, at most.
const COPY_MAX: u64 = 1024;
/// Bytes of `struct trace_event_buffer`.
const BUFFER_SIZE: i64 = 48;
/// Farthest offset on the stack and in the record.
const FARTHEST: i64 = 1 << 20;
/// Paths at most.
const PATHS: usize = 256;

/// The result of the last comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// Whether it may depend on the tracepoint's arguments.
    pub(super) of_arguments: bool,
    /// Whether the result was zero, if that is known.
    pub(super) zero: Option<bool>,
    /// What was compared.
    pub(super) compared: Option<Compared>,
}

/// What the flags are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// Two numbers of so many bytes, of which the second was subtracted from the first.
    Numbers(u8, Value, Value),
    /// A number of so many bytes, with the carry and overflow flags clear.
    Bits(u8, Value),
    /// A number of so many bytes, with unknown carry and overflow flags.
    Result(u8, Value),
}

/// A condition of the flags. Its negation is the second part of an instruction's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The first number compared with the second, or the result with zero.
    Is(Comparison),
    /// The result is negative.
    Negative,
}

impl Flags {
    /// Flags of which nothing is known.
    pub(super) const UNKNOWN: Self = Self { of_arguments: true, zero: None, compared: None };

    /// The flags of a calculation's result.
    pub(super) fn of(result: &Value, compared: Compared) -> Self {
        let zero = match result {
            Value::Const(number) => Some(*number == 0),
            _ => None,
        };
        Self { of_arguments: result.depends(), zero, compared: Some(compared) }
    }

    /// The condition that a test has a result; `None` if it is not known.
    pub(super) fn condition(&self, test: Option<(Test, bool)>) -> Option<Condition> {
        let (test, holds_if) = test?;
        let zero = |number: &Value, comparison, size| {
            Condition::new(comparison, holds_if, size, number.clone(), Value::Const(0))
        };
        match (self.compared.as_ref()?, test) {
            (Compared::Numbers(size, one, two), Test::Negative) => {
                let result = Value::computed(Operation::Subtract, *size, one.clone(), two.clone());
                zero(&result, Comparison::SignedLess, *size)
            }
            (Compared::Numbers(size, one, two), Test::Is(comparison)) => {
                Condition::new(comparison, holds_if, *size, one.clone(), two.clone())
            }
            (Compared::Bits(size, bits) | Compared::Result(size, bits), Test::Negative) => {
                zero(bits, Comparison::SignedLess, *size)
            }
            (Compared::Bits(..), Test::Is(Comparison::Less | Comparison::LessOrEqual)) => None,
            (Compared::Bits(size, bits), Test::Is(comparison))
            | (Compared::Result(size, bits), Test::Is(comparison @ Comparison::Equal)) => {
                zero(bits, comparison, *size)
            }
            (Compared::Result(..), Test::Is(_)) => None,
        }
    }
}

/// A path through a handler: its state.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// Address of the next instruction.
    pub(super) at: u64,
    /// Address of the first instruction.
    start: u64,
    /// The registers, by the architecture's numbers.
    pub(super) registers: [Value; 32],
    pub(super) flags: Flags,
    stack: Memory,
    record: Memory,
    /// Where arguments begin on the stack, and the number of the first.
    stack_arguments: (i64, u8),
    /// Whether the next branch depends on anything but the event's file.
    depends: bool,
    /// The branches that were not certain, from the first on.
    decisions: Vec<Decision>,
}

/// A branch that a path went through.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    /// The condition, if it is known.
    pub(super) condition: Option<Arc<Condition>>,
    /// Whether the path is the one on which it holds.
    pub(super) holds: bool,
    /// Whether it may depend on anything but the event's file.
    depends: bool,
}

/// What comes after an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The instruction at an address.
    At(u64),
    /// One of two instructions. The flags decide: the first if the condition holds.
    Either([u64; 2], Option<Condition>),
    /// The record is committed.
    Committed,
    /// The handler returns, or the kernel stops.
    End,
}

impl Path {
    /// The start of a handler whose arguments are in these registers and then on the stack.
    pub(super) fn new(at: u64, arguments: &[usize], stack: usize, stack_arguments: i64) -> Self {
        let mut registers = [UNSET; 32];
        for (number, register) in (0..).zip(arguments) {
            if let Some(register) = registers.get_mut(*register) {
                *register = Value::Arg(number);
            }
        }
        if let Some(register) = registers.get_mut(stack) {
            *register = Value::Stack(0);
        }
        Self {
            at,
            start: at,
            registers,
            flags: Flags::default(),
            stack: Memory::default(),
            record: Memory::default(),
            stack_arguments: (stack_arguments, arguments.len() as u8),
            depends: false,
            decisions: Vec::new(),
        }
    }

    /// A branch to `taken` if a test of the flags has a result.
    pub(super) fn branch(&mut self, test: Option<(Test, bool)>, taken: u64, next: u64) -> Next {
        if let (Some((Test::Is(Comparison::Equal), holds_if)), Some(zero)) = (test, self.flags.zero) {
            return Next::At(if zero == holds_if { taken } else { next });
        }
        self.depends = self.flags.of_arguments;
        Next::Either([taken, next], self.flags.condition(test))
    }

    /// A branch follows, which may depend on the tracepoint's arguments.
    pub(super) fn depends_on(&mut self, arguments: bool) {
        self.depends = arguments;
    }

    /// Whether this path ends without a record and separates from a recording path at a branch that depends on more than the
    /// event's file.
    fn is_omission(&self, committed: &[Self]) -> bool {
        let parted = |depth: usize, other: &Self| {
            let first =
                |path: &Self| path.decisions.iter().take(depth).map(|one| one.holds).collect::<Vec<_>>();
            other.decisions.len() > depth && first(self) == first(other)
        };
        let mut decisions = self.decisions.iter().enumerate().filter(|(_, decision)| decision.depends);
        decisions.any(|(depth, _)| committed.iter().any(|other| parted(depth, other)))
    }

    /// The branches that were not certain.
    pub(super) fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Whether a condition holds on this path, if that is certain or was decided before.
    fn decided(&self, condition: &Condition) -> Option<bool> {
        condition.known().or_else(|| {
            self.decisions.iter().find_map(|decision| {
                let before = decision.condition.as_ref().filter(|before| before.compares_as(condition))?;
                Some((before.holds_if == condition.holds_if) == decision.holds)
            })
        })
    }

    /// Whether the kernel may later replace an instruction that does nothing by a jump, because it is the place of a static
    /// key. The first ones are the places of ftrace and never become jumps within the handler.
    pub(super) fn may_be_replaced(&self) -> bool {
        self.at.wrapping_sub(self.start) > ENTRY
    }

    /// What was stored in the record.
    pub(super) fn record(&self) -> &Memory {
        &self.record
    }

    /// A register's value.
    pub(super) fn register(&self, number: usize) -> Value {
        self.registers.get(number).cloned().unwrap_or(UNSET)
    }

    /// Sets a register.
    pub(super) fn set(&mut self, number: usize, value: Value) {
        if let Some(register) = self.registers.get_mut(number) {
            *register = value;
        }
    }

    /// The bytes at an address, with zeros above them.
    pub(super) fn load(&self, address: Value, size: u8) -> Value {
        match address {
            Value::Stack(at) | Value::Record(at) if at.unsigned_abs() > FARTHEST.unsigned_abs() => UNSET,
            Value::Stack(at) => self.stack.load(at, size).unwrap_or_else(|| self.stack_argument(at, size)),
            Value::Record(at) => self.record.load(at, size).unwrap_or(UNSET),
            address if address.is_in_task() => UNSET,
            address => address.load(size),
        }
    }

    /// Calls a function, whose first three arguments are in these registers. It may change the registers `changed`, and
    /// returns a value in register 0.
    pub(super) fn call(
        &mut self,
        target: u64,
        arguments: [usize; 3],
        changed: impl IntoIterator<Item = usize>,
        callees: &Callees,
        next: u64,
    ) -> Result<Next, Unfollowed> {
        let [one, two, three] = arguments.map(|number| self.register(number));
        let returned = match target {
            _ if callees.ends.contains(&target) => return Ok(Next::End),
            _ if target == callees.commit => return Ok(Next::Committed),
            _ if target == callees.reserve => {
                self.forget_buffer(&one)?;
                Value::Record(0)
            }
            _ if callees.checks.contains(&target) => OF_FILE,
            _ if callees.copies.contains(&target) => {
                self.copy(&one, &two, &three)?;
                one
            }
            _ if callees.fills.contains(&target) => {
                self.fill(&one, &two, &three)?;
                one
            }
            _ => return Err(Unfollowed::Call(target)),
        };
        self.flags = Flags::UNKNOWN;
        for register in changed {
            self.set(register, UNSET);
        }
        self.set(0, returned);
        Ok(Next::At(next))
    }

    /// Forgets the memory of `struct trace_event_buffer`, which `trace_event_buffer_reserve()` fills.
    fn forget_buffer(&mut self, at: &Value) -> Result<(), Unfollowed> {
        (0..BUFFER_SIZE).step_by(8).try_for_each(|offset| self.store(&at.clone().plus(offset), 8, UNSET))
    }

    /// Copies memory.
    fn copy(&mut self, to: &Value, from: &Value, bytes: &Value) -> Result<(), Unfollowed> {
        // The two may overlap, so all is loaded first.
        let load = |(offset, size)| (offset, size, self.load(from.clone().plus(offset), size));
        let loaded: Vec<_> = pieces(bytes)?.map(load).collect();
        for (offset, size, value) in loaded {
            self.store(&to.clone().plus(offset), size, value)?;
        }
        Ok(())
    }

    /// Fills memory with a byte.
    fn fill(&mut self, to: &Value, byte: &Value, bytes: &Value) -> Result<(), Unfollowed> {
        let Value::Const(byte) = byte else { return Err(Unfollowed::Size) };
        let number = (byte & 0xff) * 0x0101_0101_0101_0101;
        for (offset, size) in pieces(bytes)? {
            self.store(&to.clone().plus(offset), size, Value::Const(number))?;
        }
        Ok(())
    }

    fn stack_argument(&self, at: i64, size: u8) -> Value {
        let (start, first) = self.stack_arguments;
        match at.checked_sub(start).filter(|distance| *distance >= 0 && distance % 8 == 0) {
            Some(distance) => Value::Arg(first.saturating_add((distance / 8).min(64) as u8)).low(size),
            None => UNSET,
        }
    }

    /// Stores the low bytes of a value at an address.
    pub(super) fn store(&mut self, address: &Value, size: u8, value: Value) -> Result<(), Unfollowed> {
        match address {
            Value::Stack(at) | Value::Record(at) if at.unsigned_abs() > FARTHEST.unsigned_abs() => {
                return Err(Unfollowed::Store);
            }
            Value::Stack(at) => self.stack.store(*at, size, value),
            Value::Record(at) => self.record.store(*at, size, value),
            // The preempt count, which handlers change themselves from 7.0 on.
            address if address.is_in_task() => {}
            _ => return Err(Unfollowed::Store),
        }
        Ok(())
    }
}

/// The numbers that cover so many bytes of memory: offsets and sizes.
fn pieces(bytes: &Value) -> Result<impl Iterator<Item = (i64, u8)> + use<>, Unfollowed> {
    let Value::Const(bytes @ 0..=COPY_MAX) = *bytes else { return Err(Unfollowed::Size) };
    let mut at = 0;
    Ok(std::iter::from_fn(move || {
        let size = [8_u8, 4, 2, 1].into_iter().find(|size| at + u64::from(*size) <= bytes)?;
        let piece = (at.cast_signed(), size);
        at += u64::from(size);
        Some(piece)
    }))
}

/// Follows all paths from a state, and returns those that commit a record.
pub(super) fn paths(
    start: Path,
    callees: &Callees,
    text: &mut dyn KernelText,
    step: impl Fn(&mut Path, &[u8], &Callees) -> Result<Next, Unfollowed>,
) -> Result<Vec<Path>, Unfollowed> {
    let (mut open, mut committed, mut steps, mut ended) = (vec![start], Vec::new(), 0, Vec::new());
    while let Some(mut path) = open.pop() {
        loop {
            steps += 1;
            if steps > STEPS || open.len() + committed.len() + ended.len() > PATHS {
                return Err(Unfollowed::TooLong);
            }
            let bytes = text.at(path.at).ok_or(Unfollowed::Unreadable(path.at))?;
            match step(&mut path, bytes, callees)? {
                Next::At(address) => path.at = address,
                Next::Either([one, other], condition) => {
                    if let Some(holds) = condition.as_ref().and_then(|condition| path.decided(condition)) {
                        path.at = if holds { one } else { other };
                        continue;
                    }
                    let depends = path.depends;
                    let condition = condition.map(Arc::new);
                    let mut second = Path { at: other, ..path.clone() };
                    second.decisions.push(Decision { condition: condition.clone(), holds: false, depends });
                    open.push(second);
                    path.decisions.push(Decision { condition, holds: true, depends });
                    path.at = one;
                }
                Next::Committed => {
                    committed.push(path);
                    break;
                }
                Next::End => {
                    ended.push(path);
                    break;
                }
            }
        }
    }
    let omits = ended.iter().any(|path| path.is_omission(&committed));
    if omits { Err(Unfollowed::Conditional) } else { Ok(committed) }
}
