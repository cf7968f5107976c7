//! Removes functions without references, jumps to the next instruction, and instructions whose result is never read.

use super::{flow, program::Program};
use crate::code::asm::JA;

/// Removes code until nothing changes.
pub(super) fn remove(program: &mut Program) {
    unused_functions(program);
    loop {
        let needed = flow::needed_after_pruning(program);
        let before = program.items.len();
        program.remove(|at, item| {
            let is_empty = item.insn.op == JA && item.to == Some(at + 1);
            is_empty || flow::is_pure(item) && !flow::effect(item).1.meets(needed[at])
        });
        if program.items.len() == before {
            return;
        }
    }
}

/// Removes functions without references, because the verifier refuses unreachable code.
fn unused_functions(program: &mut Program) {
    let extents: Vec<_> = program.starts.iter().map(|start| program.extent(*start)).collect();
    let mut used = vec![false; extents.len()];
    let mut work = vec![0];
    while let Some(n) = work.pop() {
        if std::mem::replace(&mut used[n], true) {
            continue;
        }
        for item in program.items[extents[n].clone()].iter().filter(|item| item.insn.refers_to_function()) {
            work.extend(item.to.and_then(|to| program.starts.binary_search(&to).ok()));
        }
    }
    program.remove(|at, _| extents.iter().zip(&used).any(|(extent, used)| !used && extent.contains(&at)));
}
