//! Joins functions and prebuilt parts into one program that contains no template.

use super::asm::{CALL, Function, Insn, PSEUDO_CALL, PSEUDO_FUNC};

/// A self-contained part of a program: its first instruction is its entry, and it refers to nothing outside itself.
pub type Part<'a> = (&'a str, &'a [Insn]);

/// Concatenates functions and parts, and resolves the references by name between them. The entry is the first function.
/// A reference to an unknown name points to the referring instruction itself, which the verifier refuses.
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
    fn calls_and_addresses_are_relocated() {
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
