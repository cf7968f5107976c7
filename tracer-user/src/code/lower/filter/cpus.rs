//! Comparisons of CPUs with a set.

use super::{
    compare::{ranges, within},
    text::Texts,
};
use crate::{
    code::{
        asm::{Alu, Cond, Operand, Reg, Width},
        lower::{emitter::Emitter, exits::Exits, output::LowerError, values::Values},
    },
    plan::filter::{CpusOp, CpusSubject, Place},
};

/// Words of the longest cpumask that is compared: 8192 CPUs, the maximum that a kernel can be built for.
const WORDS_MAX: usize = 128;
/// Up to this many ranges are compared one by one; a larger set is tested as bits of a word.
const RANGES_MAX: usize = 3;

pub(super) fn cpus(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    texts: &mut Texts,
    (subject, op, set): (CpusSubject, CpusOp, &[u32]),
    exits: Exits,
) -> Result<(), LowerError> {
    emit.note(format!("CPUs {set:?}"));
    match (subject, op) {
        (CpusSubject::Mask { offset }, _) => cpumask(emit, values, texts, offset, op, set, exits),
        // A number never equals a set of several CPUs.
        (_, CpusOp::Eq | CpusOp::Ne) => {
            exits.go(emit, op == CpusOp::Ne);
            Ok(())
        }
        (CpusSubject::Scalar { place }, CpusOp::And) => {
            values.value(emit, place)?;
            if place.size == 8 {
                emit.truncate(4);
            }
            one_of(emit, set, exits);
            Ok(())
        }
        (CpusSubject::Current, CpusOp::And) => {
            values.current_cpu(emit);
            one_of(emit, set, exits);
            Ok(())
        }
    }
}

/// Tests whether R0 is in the set.
fn one_of(emit: &mut Emitter, set: &[u32], exits: Exits) {
    let ranges = ranges(set.iter().copied());
    match set.last() {
        Some(last @ 0..64) if ranges.len() > RANGES_MAX => {
            emit.jump_if(Cond::Gt, Reg::R0, last.cast_signed(), exits.no);
            emit.constant(Reg::R5, set.iter().fold(0, |word, cpu| word | 1 << cpu));
            emit.alu(Alu::Rsh, Reg::R5, Reg::R0);
            exits.decide(emit, Cond::Set, Reg::R5, Operand::Imm(1));
        }
        _ => {
            within(emit, &ranges, exits.yes, exits.no);
            exits.go(emit, true);
        }
    }
}

/// Compares a cpumask in the record with a set.
fn cpumask(
    emit: &mut Emitter,
    values: &mut Values<'_>,
    texts: &mut Texts,
    offset: u16,
    op: CpusOp,
    set: &[u32],
    exits: Exits,
) -> Result<(), LowerError> {
    if values.sources().is_some() {
        return Err(LowerError::NoData);
    }
    let mut words = [0_u64; WORDS_MAX];
    for cpu in set {
        if let Some(word) = words.get_mut(*cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    let region = texts.transient(emit, 8 * WORDS_MAX);
    emit.use_scratch();
    // R9 = size of the mask in bytes; the mask is copied to scratch memory.
    values.value(emit, Place { offset, size: 4 })?;
    emit.mov(Reg::R9, Reg::R0);
    emit.alu(Alu::Rsh, Reg::R9, 16);
    emit.alu(Alu::And, Reg::R0, 0xffff);
    emit.context_address(Reg::R3, 0);
    emit.alu(Alu::Add, Reg::R3, Reg::R0);
    emit.limit(Reg::R9, 8 * WORDS_MAX);
    emit.read_kernel((Reg::R7, region as i16), Reg::R9);
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
        emit.jump_if(Cond::Le, Reg::R9, start as i32, end);
        if op == CpusOp::And && *word == 0 {
            continue;
        }
        emit.load(Width::D, Reg::R0, Reg::R7, (region + start) as i16);
        emit.constant(Reg::R5, *word);
        match op {
            CpusOp::And => emit.jump_if(Cond::Set, Reg::R0, Reg::R5, exits.yes),
            CpusOp::Eq | CpusOp::Ne => emit.jump_if(Cond::Ne, Reg::R0, Reg::R5, exits.no),
        }
    }
    exits.go(emit, op != CpusOp::And);
    Ok(())
}
