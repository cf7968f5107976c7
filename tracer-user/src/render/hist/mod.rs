//! An event's `hist` file: each histogram's command, its entries in their order, and totals (`hist_show()`).

pub mod json;
mod order;

use crate::lang::hist::action::{ActionKind, Handler, Tracked};
use crate::lang::hist::{Flags, Hist, Trigger, Value};
use crate::plan::hist::{Layout, word};

use super::RenderEnv;
use super::printf::number;
use super::printf::pointer;
use super::printf::spec::Spec;

/// A histogram's table at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Keys and entries in the format of [`Layout`], in any order.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Hits counted in the entries.
    pub hits: u64,
    /// Hits that found the table full.
    pub drops: u64,
    /// The last snapshot of an action: the value, the key, and the name of the key's task.
    pub snapshot: Option<(u64, Vec<u8>, Vec<u8>)>,
}

/// Lookups for a `hist` file.
pub trait HistEnv: RenderEnv {
    /// The name of a system call (`sys_openat`).
    fn syscall(&self, _number: u64) -> Option<String> {
        None
    }
}

impl HistEnv for () {}

/// Writes one histogram; `number` is the number of histograms of the same event before it.
pub fn show(out: &mut Vec<u8>, trigger: &Trigger, table: &Table, number: usize, env: &dyn HistEnv) {
    if number > 0 {
        out.extend(b"\n\n");
    }
    out.extend(b"# event histogram\n#\n# trigger info: ");
    out.extend(trigger.read_back());
    out.extend(b"#\n\n");
    let shower = Shower::new(&trigger.hist, table, env);
    for row in order::sorted(&trigger.hist, &shower.layout, &table.rows) {
        shower.row(out, row);
    }
    shower.snapshot(out);
    let Table { hits, drops, rows, .. } = table;
    let totals = format!("\nTotals:\n    Hits: {hits}\n    Entries: {}\n    Dropped: {drops}\n", rows.len());
    out.extend(totals.bytes());
}

/// The maximum and the total of a sum over all entries.
#[derive(Clone, Copy, Default)]
struct Extent {
    max: u64,
    total: u64,
}

struct Shower<'a> {
    hist: &'a Hist,
    layout: Layout,
    table: &'a Table,
    extents: Vec<Extent>,
    env: &'a dyn HistEnv,
}

impl<'a> Shower<'a> {
    fn new(hist: &'a Hist, table: &'a Table, env: &'a dyn HistEnv) -> Self {
        let layout = Layout::of(hist);
        let extent = |sum| {
            table.rows.iter().fold(Extent::default(), |extent, (_, entry)| {
                let value = Layout::sum(entry, sum);
                Extent { max: extent.max.max(value), total: extent.total.wrapping_add(value) }
            })
        };
        let extents = (0..layout.sums).map(extent).collect();
        Self { hist, layout, table, extents, env }
    }

    fn row(&self, out: &mut Vec<u8>, (key, entry): &(Vec<u8>, Vec<u8>)) {
        self.key(out, key, self.layout.comm_of(entry));
        if !self.hist.no_hitcount {
            self.sum(out, 0, b"hitcount", Flags::NONE, entry);
        }
        let values = self.hist.fields.iter().take(self.layout.sums).enumerate().skip(1);
        for (at, value) in values.filter(|(_, value)| !value.flags.has(Flags::EXPR)) {
            out.push(b' ');
            self.sum(out, at, &value.shown_name(), value.flags, entry);
        }
        self.saved(out, entry);
        out.push(b'\n');
    }

    fn key(&self, out: &mut Vec<u8>, key: &[u8], comm: &[u8]) {
        out.extend(b"{ ");
        let mut multiline = false;
        for (at, (value, part)) in self.hist.keys().iter().zip(&self.layout.keys).enumerate() {
            if at > 0 {
                out.extend(b", ");
            }
            multiline |= value.flags.has(Flags::STACKTRACE);
            self.key_part(out, value, part.of_key(key), comm);
        }
        out.extend(if multiline { &b"}"[..] } else { b" }" });
    }

    fn key_part(&self, out: &mut Vec<u8>, value: &Value, part: &[u8], comm: &[u8]) {
        let is = |flags| value.flags.has(flags);
        let shown = word(part, 0);
        if is(Flags::STACKTRACE) && !is(SHOWN_BEFORE_STACKS) {
            self.stack(out, value, part);
            return;
        }
        out.extend(value.shown_name());
        out.extend(b": ");
        if is(Flags::HEX) {
            out.extend(format!("{shown:x}").bytes());
        } else if is(Flags::SYM) {
            self.symbol(out, shown, 45, false);
        } else if is(Flags::SYM_OFFSET) {
            self.symbol(out, shown, 55, true);
        } else if is(Flags::EXECNAME) {
            padded(out, comm, COMM_WIDTH);
            out.extend(format!("[{shown:10}]").bytes());
        } else if is(Flags::SYSCALL) {
            let name = self.env.syscall(shown);
            padded(out, name.as_deref().unwrap_or("unknown_syscall").as_bytes(), 30);
            out.extend(format!("[{shown:3}]").bytes());
        } else if is(Flags::LOG2) {
            out.extend(format!("~ 2^{shown:<2}").bytes());
        } else if is(Flags::BUCKET) {
            let last = shown.wrapping_add(value.buckets).wrapping_sub(1);
            out.extend(format!("~ {shown}-{last}").bytes());
        } else if is(Flags::STRING) {
            padded(out, pointer::until_nul(part), 50);
        } else {
            out.extend(format!("{shown:10}").bytes());
        }
    }

    fn symbol(&self, out: &mut Vec<u8>, address: u64, width: i32, offset: bool) {
        out.extend(format!("[{address:x}] ").bytes());
        let spec = Spec { left: true, width, ..Spec::PLAIN };
        pointer::symbol(out, address, offset, false, spec, self.env);
    }

    fn stack(&self, out: &mut Vec<u8>, value: &Value, part: &[u8]) {
        match &value.field {
            Some(_) => {
                out.extend(value.shown_name());
                out.extend(b".stacktrace");
            }
            None => out.extend(b"common_stacktrace:\n"),
        }
        for at in (0..part.len()).step_by(8) {
            let address = word(part, at);
            if address == 0 {
                break;
            }
            out.extend(b"         ");
            pointer::symbol(out, address, true, false, Spec::PLAIN, self.env);
            out.push(b'\n');
        }
    }

    fn sum(&self, out: &mut Vec<u8>, at: usize, name: &[u8], flags: Flags, entry: &[u8]) {
        let value = Layout::sum(entry, at);
        let Extent { max, total } = self.extents.get(at).copied().unwrap_or_default();
        out.push(b' ');
        out.extend(name);
        if flags.has(Flags::PERCENT) {
            match percentage(value, total) {
                Some(share) => {
                    out.extend(format!(" (%): {:3}.{:02}", share / 100, share % 100).bytes());
                }
                None => out.extend(b" (%):[ERROR]"),
            }
        } else if flags.has(Flags::GRAPH) {
            out.extend(format!(": {:>20}", bar(value, max)).bytes());
        } else if flags.has(Flags::HEX) {
            out.extend(format!(": {value:10x}").bytes());
        } else {
            out.extend(format!(": {value:10}").bytes());
        }
    }

    /// The variables that actions track in each entry, and the words for them.
    fn tracked(&self) -> impl Iterator<Item = (&'static str, &Tracked)> {
        let of_entries = self.hist.actions.iter().filter(|action| action.kind != ActionKind::Snapshot);
        of_entries.filter_map(|action| match &action.handler {
            Handler::Max(tracked) => Some(("max", tracked)),
            Handler::Change(tracked) => Some(("changed", tracked)),
            Handler::Match { .. } => None,
        })
    }

    /// Writes the values that `onmax()` and `onchange()` save.
    fn saved(&self, out: &mut Vec<u8>, entry: &[u8]) {
        for (word, tracked) in self.tracked() {
            out.extend(format!("\n\t{word}: {:10}", self.layout.variable(entry, tracked.slot)).bytes());
            for (variable, value) in &self.hist.saved {
                out.extend(b"  ");
                out.extend(variable.variable.as_deref().unwrap_or_default());
                out.extend(b": ");
                if value.flags.has(Flags::STRING) {
                    let text = self.layout.text(entry, variable.slot.at).unwrap_or_default();
                    // Nothing was saved yet.
                    let unset = self.layout.variable(entry, variable.slot.at) == 0;
                    padded(out, if unset { b"(null)" } else { text }, 32);
                } else {
                    out.extend(format!("{:10}", self.layout.variable(entry, variable.slot.at)).bytes());
                }
            }
        }
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        let Some((value, key, comm)) = &self.table.snapshot else { return };
        let Some(action) = self.hist.actions.iter().find(|action| action.kind == ActionKind::Snapshot) else {
            return;
        };
        let (word, variable) = match &action.handler {
            Handler::Max(tracked) => ("onmax", &tracked.text),
            Handler::Change(tracked) => ("onchange", &tracked.text),
            Handler::Match { .. } => return,
        };
        out.extend(b"\nSnapshot taken (see tracing/snapshot).  Details:\n");
        out.extend(format!("\ttriggering value {{ {word}(").bytes());
        out.extend(variable);
        out.extend(format!(") }}: {value:10}\ttriggered by event with key: ").bytes());
        self.key(out, key, comm);
        out.push(b'\n');
    }
}

/// Modifiers that also format a key that is a stack.
const SHOWN_BEFORE_STACKS: Flags =
    Flags::HEX.and(Flags::SYM).and(Flags::SYM_OFFSET).and(Flags::EXECNAME).and(Flags::SYSCALL);

const COMM_WIDTH: i32 = 16;

/// Writes a text padded with spaces on the right.
fn padded(out: &mut Vec<u8>, text: &[u8], width: i32) {
    number::text(out, text, Spec { left: true, width, ..Spec::PLAIN });
}

/// The share in hundredths of a percent; `None` for a division by zero (`__get_percentage()`).
fn percentage(value: u64, total: u64) -> Option<u32> {
    if value == 0 && total == 0 {
        return Some(0);
    }
    let share = if value < u64::MAX / 10_000 {
        (value * 10_000).checked_div(total)
    } else {
        value.checked_div(total / 10_000)
    };
    match share {
        Some(share) => Some(share as u32).filter(|share| *share != u32::MAX),
        None if value == 0 => Some(0),
        None => None,
    }
}

/// A bar of `#` in twenty columns (`__fill_bar_str()`).
fn bar(value: u64, max: u64) -> String {
    const WIDTH: usize = 20;
    match percentage(value, max) {
        None => "[ERROR]".to_owned(),
        Some(share) => format!("{:<WIDTH$}", "#".repeat((share as usize * WIDTH / 10_000).min(WIDTH))),
    }
}

#[cfg(test)]
mod tests;
