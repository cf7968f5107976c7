//! The text of dynamic events: the part in parentheses, then each argument.

use crate::{
    event::dynamic::{Event, Kind, Target},
    render::{Printer, ProbeHead, ProbeValue},
};

/// Makes the printer for the records of a dynamic event.
pub fn printer(event: &Event, id: u16) -> Printer {
    let head = match (&event.target, event.kind(), event.is_exit()) {
        (Target::Event { system, name, .. }, ..) => ProbeHead::Event(format!("{system}.{name}")),
        (_, Kind::Uprobe, false) => ProbeHead::User,
        (_, Kind::Uprobe, true) => ProbeHead::UserReturn,
        (_, _, false) => ProbeHead::Kernel,
        (_, _, true) => ProbeHead::KernelReturn,
    };
    Printer::probe(&event.format(id), head, probe_texts(event))
}

/// Describes how each argument is printed.
fn probe_texts(event: &Event) -> Vec<ProbeValue> {
    let base = event.head_size();
    let value = |arg: &crate::event::dynamic::Arg| ProbeValue {
        label: format!(" {}=", arg.name),
        ty: arg.ty.name,
        offset: base + arg.offset as usize,
        size: arg.ty.size as usize,
        count: arg.count as usize,
    };
    event.args.iter().map(value).collect()
}
