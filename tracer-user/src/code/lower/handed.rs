//! A record that a program hands over: copied out of its memory as it is, behind the common fields.
//!
//! R6 is the registers, R7 the payload or the filter's memory, R8 the common word, R9 the length of a record that varies. A filter
//! looks at a copy in the place where the record will be built, which then stands for the context, as for a dynamic event
//! ([`super::probe`]); of a record only its fixed part is copied for that, unless the filter looks behind it. Nothing that
//! the program says is trusted: what cannot be read is zero, and no length leads outside.

use tracer_abi::{COMMON_SIZE, MAX_PAYLOAD, RECORD_AREA, STAMP_SIZE};

use super::{Code, Lower, LowerError, Needs, Uses, image::Touched};
use crate::{
    code::asm::{Alu, Cond, Helper, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Test, Text},
        source::{Handed, Hook},
    },
};

/// Records end at a multiple of this.
const ALIGNMENT: i32 = 4;

/// Lowers the record to `tracer_record`; `size` is that of one of fixed length.
pub(super) fn record(handed: Handed, size: usize) -> Result<Code, LowerError> {
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let hook = Hook::Handed(handed);
    let mut lower = Lower::new(&hook, Uses { calls: true, ..Uses::default() });
    lower.asm.mov(Reg::R6, Reg::R1);
    lower.asm.mov(Reg::R7, Reg::R2);
    if handed.varies {
        lower.copy_handed(handed);
        // The last bytes up to the alignment.
        lower.asm.mov(Reg::R1, Reg::R7);
        lower.asm.alu(Alu::Add, Reg::R1, Reg::R9);
        for byte in 0..ALIGNMENT as i16 - 1 {
            lower.asm.store(Width::B, Reg::R1, byte, 0);
        }
        lower.asm.mov(Reg::R0, Reg::R9);
        lower.asm.alu(Alu::Add, Reg::R0, ALIGNMENT - 1);
        lower.asm.alu(Alu::And, Reg::R0, -ALIGNMENT);
    } else {
        lower.copy_fixed_part(handed);
        for byte in usize::from(handed.fixed)..size {
            lower.asm.store(Width::B, Reg::R7, byte as i16, 0);
        }
        lower.asm.mov(Reg::R0, size as i32);
    }
    lower.asm.exit();
    let function = lower.asm.finish(tracer_abi::RECORD);
    let size = (!handed.varies).then_some(size);
    Ok(Code { functions: vec![function], needs: Needs::default(), size })
}

impl Lower<'_> {
    /// Copies what filters look at to the record's place, and lets that be the context.
    pub(super) fn handed_image(&mut self, handed: Handed, filter: &Filter) {
        let into = (RECORD_AREA - STAMP_SIZE) as i32;
        self.uses.flags |= Touched::by(filter).has(2, 4);
        self.asm.note("the record as far as the filter looks at it");
        self.asm.alu(Alu::Add, Reg::R7, -into);
        self.asm.store(Width::D, Reg::R7, 0, Reg::R8);
        if handed.varies && looks_behind(filter) {
            self.copy_handed(handed);
        } else {
            self.copy_fixed_part(handed);
        }
        self.asm.mov(Reg::R6, Reg::R7);
        self.asm.alu(Alu::Add, Reg::R7, into);
    }

    /// R1 = where the fields go, R3 = where the program has them.
    fn ends(&mut self, handed: Handed) {
        self.asm.address(Reg::R1, Reg::R7, COMMON_SIZE as i32);
        self.asm.load(Width::D, Reg::R3, Reg::R6, handed.address as i16);
        self.asm.alu(Alu::Add, Reg::R3, COMMON_SIZE as i32);
    }

    fn copy_fixed_part(&mut self, handed: Handed) {
        let size = usize::from(handed.fixed).saturating_sub(COMMON_SIZE);
        if size > 0 {
            self.asm.note(format!("the program's bytes {COMMON_SIZE} to {}", handed.fixed));
            self.ends(handed);
            self.asm.mov(Reg::R2, size as i32);
            self.call(Helper::ProbeReadUser);
        }
    }

    /// Copies the whole record; R9 = its length, between that of the fixed part and that of the largest.
    fn copy_handed(&mut self, handed: Handed) {
        let [longer, fits] = std::array::from_fn(|_| self.asm.label());
        self.asm.note("the program's record");
        self.asm.load(Width::D, Reg::R9, Reg::R6, handed.length as i16);
        self.jump_if(Cond::Ge, Reg::R9, i32::from(handed.fixed), longer);
        self.asm.mov(Reg::R9, i32::from(handed.fixed));
        self.bind(longer);
        self.jump_if(Cond::Le, Reg::R9, MAX_PAYLOAD as i32, fits);
        self.asm.mov(Reg::R9, MAX_PAYLOAD as i32);
        self.bind(fits);
        self.ends(handed);
        self.asm.mov(Reg::R2, Reg::R9);
        self.asm.alu(Alu::Sub, Reg::R2, COMMON_SIZE as i32);
        // Changes nothing; older verifiers do not see that the length is more than the common fields.
        self.asm.alu(Alu::And, Reg::R2, MAX_PAYLOAD as i32 - 1);
        self.call(Helper::ProbeReadUser);
    }
}

/// Whether a filter looks at data behind the fixed part.
fn looks_behind(filter: &Filter) -> bool {
    filter.tests().into_iter().any(|test| match test {
        Test::Text { text, .. } => !matches!(text, Text::Static(_) | Text::Pointer { .. } | Text::Comm),
        Test::Cpus { subject, .. } => !matches!(subject, CpusSubject::Scalar { .. }),
        Test::Number { .. } | Test::Function { .. } | Test::Cpu { .. } => false,
    })
}
