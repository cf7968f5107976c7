//! The two exits of a test. A test's result is the exit that control takes; it is not stored as a number.

use super::emitter::Emitter;
use crate::code::asm::{Cond, Label, Operand, Reg};

/// The exit that follows a test without a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Yes,
    No,
}

/// Where control continues if a test holds, and if it does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exits {
    pub(super) yes: Label,
    pub(super) no: Label,
    pub(super) next: Next,
}

impl Exits {
    pub(super) fn inverted(self) -> Self {
        let next = match self.next {
            Next::Yes => Next::No,
            Next::No => Next::Yes,
        };
        Self { yes: self.no, no: self.yes, next }
    }

    pub(super) fn inverted_if(self, not: bool) -> Self {
        if not { self.inverted() } else { self }
    }

    /// Ends a test whose result is known: continues at one of the exits.
    pub(super) fn go(self, emit: &mut Emitter, holds: bool) {
        let (to, next) = if holds { (self.yes, Next::Yes) } else { (self.no, Next::No) };
        if self.next != next {
            emit.jump(to);
        }
    }

    /// Ends a test with a comparison of 64 bits.
    pub(super) fn decide(self, emit: &mut Emitter, cond: Cond, reg: Reg, value: Operand) {
        let (cond, to, other) = self.branches(cond);
        emit.jump_if(cond, reg, value, to);
        if let Some(other) = other {
            emit.jump(other);
        }
    }

    /// Ends a test with a comparison of the low 32 bits.
    pub(super) fn decide32(self, emit: &mut Emitter, cond: Cond, reg: Reg, value: Operand) {
        let (cond, to, other) = self.branches(cond);
        emit.jump32_if(cond, reg, value, to);
        if let Some(other) = other {
            emit.jump(other);
        }
    }

    /// The conditional jump for a comparison, and the target of a second jump if the condition has no inverse.
    fn branches(self, cond: Cond) -> (Cond, Label, Option<Label>) {
        match (self.next, cond.inverse()) {
            (Next::Yes, Some(inverse)) => (inverse, self.no, None),
            (Next::Yes, None) => (cond, self.yes, Some(self.no)),
            (Next::No, _) => (cond, self.yes, None),
        }
    }
}
