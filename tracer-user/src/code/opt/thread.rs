//! Leads jumps to where they end.
//!
//! A function that answers yes or no has, once it is put in the place of its call, its answer made in one place and asked
//! for in the next. Whoever comes with a known answer goes to the end of the question at once.

use super::fold::{self, Frozen, State};
use super::{Edit, Program};
use crate::code::asm::JA;

/// Jumps that are followed behind one another; more would be a loop.
const FOLLOWED: usize = 16;

/// Shortens all ways.
pub(super) fn shorten(program: &mut Program, frozen: &[Frozen<'_>]) {
    let states = fold::states(program, frozen);
    let mut appended = vec![None; program.items.len()];
    for at in 0..program.items.len() {
        let Some(state) = &states[at] else { continue };
        let item = program.items[at];
        let after = fold::step(&item, *state, frozen);
        if let (Some(to), false) = (item.to, item.refers_to_function()) {
            program.items[at].to = Some(end(program, to, &after));
        } else if !item.insn.ends_block()
            && at + 1 < program.items.len()
            && !program.starts.contains(&(at + 1))
        {
            let to = end(program, at + 1, &after);
            appended[at] = (to != at + 1).then_some(to);
        }
    }
    program.edit(|at, _| appended[at].map_or(Edit::Keep, Edit::Then));
}

/// Where whoever comes to an item with these values goes on.
fn end(program: &Program, from: usize, state: &State) -> usize {
    let mut at = from;
    for _ in 0..FOLLOWED {
        let Some(item) = program.items.get(at).filter(|item| item.insn.is_jump()) else { break };
        let taken = if item.insn.op == JA { Some(true) } else { fold::decided(item.insn, state) };
        at = match (taken, item.to) {
            (Some(true), Some(to)) => to,
            (Some(false), _) => at + 1,
            _ => break,
        };
    }
    at
}
