//! Comparisons of CPUs with a set.

use super::{
    Exits, Lower, LowerError,
    compare::{ranges, within},
};
use crate::{
    code::asm::{Alu, Cond, Helper, Operand, Reg, Width},
    plan::{
        filter::{CpusOp, CpusSubject, Place},
        source::ProgramContext,
    },
};

/// Words of the longest cpumask that is compared: 8192 CPUs, the maximum that a kernel can be built for.
const WORDS_MAX: usize = 128;
/// Up to this many ranges are compared one by one; a larger set is tested as bits of a word.
const RANGES_MAX: usize = 3;

impl Lower<'_> {
    pub(super) fn cpus(
        &mut self,
        subject: CpusSubject,
        op: CpusOp,
        set: &[u32],
        exits: Exits,
    ) -> Result<(), LowerError> {
        self.asm.note(format!("CPUs {set:?}"));
        match (subject, op) {
            (CpusSubject::Mask { offset }, _) => self.cpumask(offset, op, set, exits),
            // A number never equals a set of several CPUs.
            (_, CpusOp::Eq) => {
                self.go(false, exits);
                Ok(())
            }
            (_, CpusOp::Ne) => {
                self.go(true, exits);
                Ok(())
            }
            (CpusSubject::Scalar { place }, CpusOp::And) => {
                self.value(place)?;
                if place.size == 8 {
                    self.truncate(4);
                }
                self.one_of(set, exits);
                Ok(())
            }
            (CpusSubject::Current, CpusOp::And) => {
                self.current_cpu();
                self.one_of(set, exits);
                Ok(())
            }
        }
    }

    /// Tests whether R0 is in the set.
    fn one_of(&mut self, set: &[u32], exits: Exits) {
        let ranges = ranges(set.iter().copied());
        match set.last() {
            Some(last @ 0..64) if ranges.len() > RANGES_MAX => {
                self.jump_if(Cond::Gt, Reg::R0, last.cast_signed(), exits.no);
                self.asm.constant(Reg::R5, set.iter().fold(0, |word, cpu| word | 1 << cpu));
                self.asm.alu(Alu::Rsh, Reg::R5, Reg::R0);
                self.decide(true, Cond::Set, Reg::R5, Operand::Imm(1), exits);
            }
            _ => {
                within(self, &ranges, exits.yes, exits.no);
                self.go(true, exits);
            }
        }
    }

    /// Compares a cpumask in the record with a set.
    fn cpumask(&mut self, offset: u16, op: CpusOp, set: &[u32], exits: Exits) -> Result<(), LowerError> {
        if matches!(self.hook, ProgramContext::RawTracepoint(_)) {
            return Err(LowerError::NoData);
        }
        let mut words = [0_u64; WORDS_MAX];
        for cpu in set {
            if let Some(word) = words.get_mut(*cpu as usize / 64) {
                *word |= 1 << (cpu % 64);
            }
        }
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let region = self.texts.transient(8 * WORDS_MAX);
        self.use_scratch();
        // R9 = size of the mask in bytes; the mask is copied to scratch memory.
        self.value(Place { offset, size: 4 })?;
        self.asm.mov(Reg::R9, Reg::R0);
        self.asm.alu(Alu::Rsh, Reg::R9, 16);
        self.asm.alu(Alu::And, Reg::R0, 0xffff);
        self.asm.mov(Reg::R3, self.ctx);
        self.asm.alu(Alu::Add, Reg::R3, Reg::R0);
        let fits = self.asm.label();
        self.jump_if(Cond::Le, Reg::R9, (8 * WORDS_MAX) as i32, fits);
        self.asm.mov(Reg::R9, (8 * WORDS_MAX) as i32);
        self.bind(fits);
        self.asm.address(Reg::R1, Reg::R7, region as i32);
        self.asm.mov(Reg::R2, Reg::R9);
        self.call(Helper::ProbeReadKernel);
        let exits = exits.inverted_if(op == CpusOp::Ne);
        for (number, word) in words.iter().enumerate() {
            let start = 8 * number;
            if op == CpusOp::And && number == used {
                break;
            }
            // There are no CPUs beyond the mask's end.
            let end = match op {
                CpusOp::Eq | CpusOp::Ne if number >= used => exits.yes,
                _ => exits.no,
            };
            self.jump_if(Cond::Le, Reg::R9, start as i32, end);
            if op == CpusOp::And && *word == 0 {
                continue;
            }
            self.asm.load(Width::D, Reg::R0, Reg::R7, (region + start) as i16);
            self.asm.constant(Reg::R5, *word);
            match op {
                CpusOp::And => self.jump_if(Cond::Set, Reg::R0, Reg::R5, exits.yes),
                CpusOp::Eq | CpusOp::Ne => self.jump_if(Cond::Ne, Reg::R0, Reg::R5, exits.no),
            }
        }
        self.go(op != CpusOp::And, exits);
        Ok(())
    }
}
