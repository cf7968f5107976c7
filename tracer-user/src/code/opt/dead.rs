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
pub(super) fn unused_functions(program: &mut Program) {
    let extents: Vec<_> = program.starts.iter().map(|start| program.extent(*start)).collect();
    let mut used = vec![false; program.items.len()];
    let mut work = vec![0];
    while let Some(n) = work.pop() {
        let extent = extents[n].clone();
        // A function has at least one item.
        if used[extent.start] {
            continue;
        }
        used[extent.clone()].fill(true);
        for item in program.items[extent].iter().filter(|item| item.insn.refers_to_function()) {
            work.extend(item.to.and_then(|to| program.starts.binary_search(&to).ok()));
        }
    }
    if !used.iter().all(|used| *used) {
        program.remove(|at, _| !used[at]);
    }
}
