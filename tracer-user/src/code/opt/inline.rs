//! Replaces calls by the bodies of the called functions.
//!
//! The function's frame is placed below its caller's. Registers R6 to R9 that the function writes and the caller still
//! needs are saved around it. Its exits become jumps to its end. A function is not inlined if it calls others, if its
//! address is taken, or if it uses its frame in a way that [`frame`] does not support.

use std::collections::HashMap;

use super::{
    flow, frame,
    program::{Edit, Item, Program},
};
use crate::code::asm::{EXIT, Insn};

/// Stack of a program, `MAX_BPF_STACK`.
const STACK: i32 = 512;
/// Number of instructions above which a function with several calls is not inlined.
const LARGE: usize = 400;

/// A function that can be inlined.
struct Body {
    items: Vec<Item>,
    depth: i32,
    /// Registers among R6 to R9 that it writes.
    writes: flow::Regs,
    uses: Vec<(usize, frame::Use)>,
    start: usize,
}

/// Inlines the functions that the program's entry function calls, where possible.
pub(super) fn inline(program: &mut Program) {
    let landings = program.landings();
    let Some(caller) = frame::uses(program, &landings, program.extent(0)) else { return };
    let depth = frame::depth(&caller);
    let needed = flow::needed_after(program);
    let main = program.extent(0);
    let bodies: HashMap<usize, Body> = program
        .starts
        .iter()
        .skip(1)
        .filter_map(|start| Some((*start, body(program, &landings, *start)?)))
        .collect();
    program.edit(|at, item| {
        let callee = item.to.filter(|_| item.insn.calls_function() && main.contains(&at));
        let body = callee.and_then(|to| bodies.get(&to));
        match body.and_then(|body| placed(body, depth, needed[at])) {
            Some(items) => Edit::Replace(items),
            None => Edit::Keep,
        }
    });
}

/// The function that starts at `start`, if it can be inlined.
fn body(program: &Program, landings: &[bool], start: usize) -> Option<Body> {
    let extent = program.extent(start);
    let items = &program.items[extent.clone()];
    let references: Vec<_> = program.items.iter().filter(|item| item.to == Some(start)).collect();
    let called = references.iter().filter(|item| item.insn.calls_function()).count();
    let addressed =
        references.iter().any(|item| item.insn.refers_to_function() && !item.insn.calls_function());
    let calls = items.iter().any(|item| item.insn.calls_function());
    if addressed || called > 1 && items.len() > LARGE || calls {
        return None;
    }
    let uses = frame::uses(program, landings, extent)?;
    let writes = items.iter().map(|item| flow::effect(item).1).fold(flow::Regs::NONE, flow::Regs::with);
    Some(Body {
        items: items.to_vec(),
        depth: frame::depth(&uses),
        writes: writes.both(flow::SAVED),
        uses,
        start,
    })
}

/// The function's items for one call. The caller's frame has this depth, and the caller needs these registers
/// afterwards.
fn placed(body: &Body, above: i32, needed: flow::Regs) -> Option<Vec<Item>> {
    let saved: Vec<_> = body
        .writes
        .both(needed)
        .iter()
        .zip(1..)
        .map(|(register, n)| frame::spill(register, -(above + body.depth + 8 * n)))
        .collect();
    if above + body.depth + 8 * saved.len() as i32 > STACK {
        return None;
    }
    let shift = saved.len();
    let end = shift + body.items.len();
    let mut items: Vec<Item> = saved.iter().map(|[save, _]| Item::plain(*save)).collect();
    for item in &body.items {
        let mut item = *item;
        if item.insn.op == EXIT {
            item = Item { insn: Insn::jump(), second: None, to: Some(end) };
        } else if let Some(to) = item.target() {
            item.to = Some(to - body.start + shift);
        }
        items.push(item);
    }
    for (at, one) in &body.uses {
        let item = &mut items[at - body.start + shift];
        item.insn = frame::lowered(item.insn, *one, above);
    }
    items.extend(saved.iter().map(|[_, back]| Item::plain(*back)));
    Some(items)
}
