//! The text of histograms in `hist` files.

use crate::{
    attach::HistContents,
    engine::facts::Facts,
    lang::hist::{Flags, Hist, Trigger},
    plan::hist::Layout,
    render::{
        RenderEnv, Symbol,
        hist::{HistEnv, Table, show},
    },
};

/// The text of a histogram; `number` is its index among the histograms of the event.
pub(crate) fn shown(trigger: &Trigger, contents: HistContents, number: usize, facts: &Facts) -> Vec<u8> {
    let (table, env) = looked_up(trigger, contents, facts);
    let mut out = Vec::new();
    show(&mut out, trigger, &table, number, &env);
    out
}

/// A table with the names for its rows.
pub(crate) fn looked_up<'a>(trigger: &Trigger, contents: HistContents, facts: &'a Facts) -> (Table, Env<'a>) {
    let hist = &trigger.hist;
    let hits = contents.rows.iter().map(|(_, entry)| Layout::sum(entry, 0)).sum();
    let table = Table { rows: contents.rows, hits, drops: contents.drops, snapshot: contents.snapshot };
    let names_calls = names_calls(hist);
    (table, Env { facts, names_calls })
}

/// Names for rows.
pub(crate) struct Env<'a> {
    facts: &'a Facts,
    names_calls: bool,
}

impl RenderEnv for Env<'_> {
    fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
        self.facts.symbols()?.lookup(address)
    }
}

impl HistEnv for Env<'_> {
    fn syscall(&self, number: u64) -> Option<String> {
        if !self.names_calls {
            return None;
        }
        self.facts.call_names().get(&number).cloned()
    }
}

/// Reads the facts that the rows of a histogram need, if reading them takes privileges.
pub(crate) fn prepare(hist: &Hist, facts: &Facts) {
    if names_calls(hist) {
        let _ = facts.call_names();
    }
}

/// Whether keys show system calls by name.
fn names_calls(hist: &Hist) -> bool {
    hist.keys().iter().any(|key| key.flags.has(Flags::SYSCALL))
}
