//! Jump threading: redirects jumps to their final targets.
//!
//! An inlined function that returns a boolean sets it in one place, and the caller tests it in the next. A jump whose
//! condition is already known goes straight to its target.

use super::fold::{self, Frozen, State};
use super::program::{Edit, Program};
use crate::code::asm::JA;

/// Maximum number of consecutive jumps that are followed, so that a loop of jumps ends.
const FOLLOWED: usize = 16;

/// Shortens all paths.
pub(super) fn shorten(program: &mut Program, frozen: &[Frozen<'_>]) {
    let states = fold::states(program, frozen);
    let mut appended = vec![None; program.items.len()];
    for (at, appended) in appended.iter_mut().enumerate() {
        let Some(state) = states.before(at) else { continue };
        let item = program.items[at];
        let after = fold::step(&item, *state, frozen);
        if let Some(to) = item.target() {
            program.items[at].to = Some(end(program, to, &after));
        } else if !item.insn.ends_block()
            && at + 1 < program.items.len()
            && !program.starts.contains(&(at + 1))
        {
            let to = end(program, at + 1, &after);
            *appended = (to != at + 1).then_some(to);
        }
    }
    program.edit(|at, _| appended[at].map_or(Edit::Keep, Edit::Then));
}

/// The item where control continues after it reaches `from` with these values.
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
