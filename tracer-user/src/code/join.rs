//! Functions and ready-made parts put one behind the other, into a program that no template is part of.

use super::asm::{CALL, Function, Insn, PSEUDO_CALL, PSEUDO_FUNC};

/// A part of a program that stands by itself: its first instruction is its entry, and it refers to nothing outside.
pub type Part<'a> = (&'a str, &'a [Insn]);

/// Joins functions, the first of which is entered first, with parts that they call by name. References to what is not there
/// lead to themselves, which the verifier refuses.
pub fn join(functions: &[Function], parts: &[Part<'_>]) -> Vec<Insn> {
    let mut starts: Vec<(&str, usize)> = Vec::new();
    let mut insns: Vec<Insn> = Vec::new();
    let all = functions.iter().map(|function| (function.name.as_str(), function.insns.as_slice()));
    for (name, code) in all.chain(parts.iter().copied()) {
        starts.push((name, insns.len()));
        insns.extend(code);
    }
    for (function, (_, start)) in functions.iter().zip(&starts) {
        for (slot, name) in &function.addresses {
            let at = start + slot;
            let target = starts.iter().find(|(known, _)| known == name).map_or(at, |(_, start)| *start);
            insns[at].src = if insns[at].op == CALL { PSEUDO_CALL } else { PSEUDO_FUNC };
            insns[at].imm = target as i32 - at as i32 - 1;
        }
    }
    insns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::asm::{Assembler, Reg};

    #[test]
    fn calls_and_addresses_lead_to_where_things_lie() {
        let mut main = Assembler::new();
        main.call_function("part");
        main.function(Reg::R1, "second");
        main.exit();
        let mut second = Assembler::new();
        second.mov(Reg::R0, 0);
        second.exit();
        let second = second.finish("second");
        let insns = join(&[main.finish("main"), second.clone()], &[("part", &second.insns)]);
        assert_eq!(insns.len(), 4 + 2 + 2);
        assert_eq!((insns[0].src, insns[0].imm), (PSEUDO_CALL, 5));
        assert_eq!((insns[1].src, insns[1].imm), (PSEUDO_FUNC, 2));
    }
}
