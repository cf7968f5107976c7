//! Records that a user program passes: copied from its memory unchanged, after the common fields.
//!
//! R6 is the registers, R7 the payload or the filter's memory, R8 the common word, R9 the length of a record that
//! varies. A filter reads a copy, which then replaces the context, as for a dynamic event ([`super::probe`]). If the
//! filter reads only numbers near the record's beginning, the copy is on the stack, from the first to the last of them.
//! Otherwise it is in the place where the record will be built, and contains only the fixed part unless the filter
//! reads data after it. Nothing from the program is trusted: bytes that cannot be read are zero, and no length leads
//! outside.

use tracer_abi::{COMMON_SIZE, MAX_PAYLOAD, RECORD_AREA, STAMP_SIZE};

use super::{
    Code, Lower, LowerError, Needs, Uses,
    image::{IMAGE_MAX, Touched},
};
use crate::{
    code::asm::{Alu, Cond, Helper, Reg, Width},
    plan::{
        filter::{CpusSubject, Filter, Test, Text},
        source::{ProgramContext, UserRecord},
    },
};

/// The length of a record is a multiple of this.
const ALIGNMENT: i32 = 4;

/// Lowers the record to `tracer_record`; `size` is the size of a record of fixed length.
pub(super) fn record(handed: UserRecord, size: usize) -> Result<Code, LowerError> {
    if size > MAX_PAYLOAD {
        return Err(LowerError::RecordSize(size));
    }
    let hook = ProgramContext::UserRecord(handed);
    let mut lower = Lower::new(&hook, Uses { calls: true, ..Uses::default() });
    lower.asm.mov(Reg::R6, Reg::R1);
    lower.asm.mov(Reg::R7, Reg::R2);
    if handed.varies {
        lower.copy_handed(handed);
        // Zeroes the last bytes up to the alignment.
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
    /// Copies the bytes that filters read and makes the copy the context.
    pub(super) fn handed_image(&mut self, handed: UserRecord, filter: &Filter) -> Result<(), LowerError> {
        let touched = Touched::by(filter);
        self.uses.flags |= touched.has(2, 4);
        if let Some(size) = short(&touched, filter) {
            return self.on_stack(size, |lower| {
                if let Some((from, to)) = touched.span() {
                    lower.copy_part(handed, from, to);
                }
                Ok(())
            });
        }
        self.use_scratch();
        let into = (RECORD_AREA - STAMP_SIZE) as i32;
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
        Ok(())
    }

    /// R1 = destination of the bytes from `from` on, R3 = their address in the program.
    fn ends(&mut self, handed: UserRecord, from: usize) {
        self.asm.address(Reg::R1, Reg::R7, from as i32);
        self.asm.load(Width::D, Reg::R3, Reg::R6, handed.address as i16);
        self.asm.alu(Alu::Add, Reg::R3, from as i32);
    }

    fn copy_fixed_part(&mut self, handed: UserRecord) {
        self.copy_part(handed, COMMON_SIZE, usize::from(handed.fixed));
    }

    /// Copies some of the fixed part.
    fn copy_part(&mut self, handed: UserRecord, from: usize, to: usize) {
        if from < to {
            self.asm.note(format!("the program's bytes {from} to {to}"));
            self.ends(handed, from);
            self.asm.mov(Reg::R2, (to - from) as i32);
            self.call(Helper::ProbeReadUser);
        }
    }

    /// Copies the whole record; R9 = its length, between the sizes of the fixed part and of the largest record.
    fn copy_handed(&mut self, handed: UserRecord) {
        let [longer, fits] = std::array::from_fn(|_| self.asm.label());
        self.asm.note("the program's record");
        self.asm.load(Width::D, Reg::R9, Reg::R6, handed.length as i16);
        self.jump_if(Cond::Ge, Reg::R9, i32::from(handed.fixed), longer);
        self.asm.mov(Reg::R9, i32::from(handed.fixed));
        self.bind(longer);
        self.jump_if(Cond::Le, Reg::R9, MAX_PAYLOAD as i32, fits);
        self.asm.mov(Reg::R9, MAX_PAYLOAD as i32);
        self.bind(fits);
        self.ends(handed, COMMON_SIZE);
        self.asm.mov(Reg::R2, Reg::R9);
        self.asm.alu(Alu::Sub, Reg::R2, COMMON_SIZE as i32);
        // Changes nothing; older verifiers do not see that the length is more than the common fields.
        self.asm.alu(Alu::And, Reg::R2, MAX_PAYLOAD as i32 - 1);
        self.call(Helper::ProbeReadUser);
    }
}

/// Bytes of the stack that hold everything that a filter reads, if it reads only numbers and they lie near the
/// beginning.
fn short(touched: &Touched, filter: &Filter) -> Option<usize> {
    let fits = |test: &Test| match test {
        // The verifier requires aligned accesses to the stack.
        Test::Number { place, .. }
        | Test::Function { place, .. }
        | Test::Cpus { subject: CpusSubject::Scalar { place }, .. } => {
            place.offset.is_multiple_of(place.size)
        }
        Test::Cpu { .. } => true,
        Test::Cpus { .. } | Test::Text { .. } => false,
    };
    let size = touched.span().map_or(COMMON_SIZE, |(_, to)| to);
    (size <= IMAGE_MAX && filter.tests().into_iter().all(fits)).then_some(size)
}

/// Whether a filter reads data after the fixed part.
fn looks_behind(filter: &Filter) -> bool {
    filter.tests().into_iter().any(|test| match test {
        Test::Text { text, .. } => !matches!(text, Text::Static(_) | Text::Pointer { .. } | Text::Comm),
        Test::Cpus { subject, .. } => !matches!(subject, CpusSubject::Scalar { .. }),
        Test::Number { .. } | Test::Function { .. } | Test::Cpu { .. } => false,
    })
}
