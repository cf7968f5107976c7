//! Trace options: their names and values.
//!
//! The names are those of the running kernel's `trace_options`, so scripts find the options that they expect. The
//! initial values are fixed here. Options of tracers that are not current have files only. Options of tracers that
//! this program lacks can be set and have no effect.

use crate::kernel::Change;
use crate::render::line;

/// Options that are on initially (`TRACE_DEFAULT_FLAGS`, kernel/trace/trace.c).
const ON: [&str; 13] = [
    "print-parent",
    "trace_printk",
    "annotate",
    "context-info",
    "record-cmd",
    "overwrite",
    "irq-info",
    "markers",
    "hash-ptr",
    "trace_printk_dest",
    "copy_trace_marker",
    "function-trace",
    "graph-time",
];
/// Options of `trace_options` with a file in the top instance only (`TOP_LEVEL_TRACE_FLAGS`). The last two are there in
/// 7.2.
const TOP_ONLY: [&str; 5] =
    ["trace_printk", "printk-msg-only", "record-cmd", "prof-text-offset", "graph-time"];
/// Options of tracers that no other instance can have (`allow_instances` in struct tracer): those of blk and, before
/// 6.11, of the graph tracer.
const TOP_TRACERS: &str = "blk_";
const GRAPH: [&str; 3] = ["funcgraph-", "sleep-time", "graph-time"];
/// Options that a new instance does not inherit (`ZEROED_TRACE_FLAGS`).
const ZEROED: [&str; 4] = ["event-fork", "function-fork", "trace_printk_dest", "copy_trace_marker"];
/// An option of the tracer nop, which refuses every change.
const NOP_REFUSES: &str = "test_nop_refuse";
/// Names of options for a kernel that does not show them.
const USUAL: [&str; 26] = [
    "print-parent",
    "sym-offset",
    "sym-addr",
    "verbose",
    "raw",
    "hex",
    "bin",
    "block",
    "fields",
    "trace_printk",
    "annotate",
    "userstacktrace",
    "sym-userobj",
    "printk-msg-only",
    "context-info",
    "latency-format",
    "record-cmd",
    "record-tgid",
    "overwrite",
    "disable_on_free",
    "irq-info",
    "markers",
    "event-fork",
    "trace_printk_dest",
    "pause-on-trace",
    "hash-ptr",
];

/// The options of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// The options of `trace_options` come first.
    all: Vec<(String, bool)>,
    named: usize,
    top: bool,
}

impl TraceOptions {
    /// The options in a kernel's `trace_options`, with their initial values.
    pub fn named(trace_options: &str) -> Self {
        let mut names: Vec<&str> =
            // No option has a name that begins with `no`.
            trace_options.lines().map(|line| line.strip_prefix("no").unwrap_or(line)).collect();
        if names.is_empty() {
            names = USUAL.to_vec();
        }
        let all: Vec<_> = names.into_iter().map(|name| (name.to_owned(), ON.contains(&name))).collect();
        Self { named: all.len(), all, top: true }
    }

    /// Adds an option that is off, if the kernel does not have it.
    #[must_use]
    pub fn and(mut self, name: &str) -> Self {
        if self.find(name).is_none() {
            self.all.insert(self.named, (name.to_owned(), false));
            self.named += 1;
        }
        self
    }

    /// Adds the options of tracers that are not current.
    #[must_use]
    pub fn and_of_tracers(mut self, others: impl IntoIterator<Item = (String, bool)>) -> Self {
        for (name, on) in others {
            if self.find(&name).is_none() {
                self.all.push((name, on));
            }
        }
        self
    }

    /// The options of a new instance: the top instance's values, except for some that are off.
    #[must_use]
    pub fn inherited(&self, version: (u32, u32)) -> Self {
        let old = !Change::GraphInInstances.is_in(version);
        let is_here = |name: &str| {
            !(name.starts_with(TOP_TRACERS) || old && GRAPH.iter().any(|graph| name.starts_with(graph)))
        };
        let (named, others) = self.all.split_at(self.named);
        let named = named.iter().map(|(name, on)| (name, *on && !ZEROED.contains(&name.as_str())));
        let others = others.iter().filter(|(name, _)| is_here(name)).map(|(name, on)| (name, *on));
        let all = named.chain(others).map(|(name, on)| (name.clone(), on)).collect();
        Self { all, named: self.named, top: false }
    }

    /// Number of an option.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.all.iter().position(|(known, _)| known == name).map(|index| index as u32)
    }

    /// Number of an option in `trace_options`.
    pub fn find_named(&self, name: &str) -> Option<u32> {
        self.find(name).filter(|option| (*option as usize) < self.named)
    }

    /// Name of an option.
    pub fn name(&self, option: u32) -> Option<&str> {
        self.all.get(option as usize).map(|(name, _)| name.as_str())
    }

    /// Numbers of the options that have a file.
    pub fn files(&self) -> impl Iterator<Item = u32> {
        (0..self.all.len() as u32).filter(|option| self.has_file(*option))
    }

    /// Whether an option has a file in this instance.
    pub fn has_file(&self, option: u32) -> bool {
        let is_top_only = |name| TOP_ONLY.contains(&name) && (option as usize) < self.named;
        self.name(option).is_some_and(|name| self.top || !is_top_only(name))
    }

    /// Whether an option is on.
    pub fn get(&self, option: u32) -> bool {
        self.all.get(option as usize).is_some_and(|(_, on)| *on)
    }

    /// Whether the option of this name exists and is on.
    pub fn is(&self, name: &str) -> bool {
        self.all.iter().any(|(known, on)| known == name && *on)
    }

    /// Sets an option; returns false if the option refuses the change.
    pub fn set(&mut self, option: u32, on: bool) -> bool {
        let Some((name, state)) = self.all.get_mut(option as usize) else { return false };
        if name == NOP_REFUSES && *state != on {
            return false;
        }
        *state = on;
        true
    }

    /// The text of `trace_options`.
    pub fn text(&self) -> String {
        self.words(self.named)
    }

    /// All options in the form of `trace_options`.
    pub fn all_words(&self) -> String {
        self.words(self.all.len())
    }

    fn words(&self, count: usize) -> String {
        self.all.iter().take(count).flat_map(|(name, on)| [if *on { "" } else { "no" }, name, "\n"]).collect()
    }

    /// The options for the text of a line.
    pub fn line(&self, in_ns: bool, version: (u32, u32)) -> line::Options {
        line::Options {
            irq_info: self.is("irq-info"),
            context_info: self.is("context-info"),
            print_tgid: self.is("record-tgid"),
            raw: self.is("raw"),
            hex: self.is("hex"),
            bin: self.is("bin"),
            fields: self.is("fields"),
            verbose: self.is("verbose"),
            sym_offset: self.is("sym-offset"),
            sym_addr: self.is("sym-addr"),
            sym_userobj: self.is("sym-userobj"),
            in_ns,
            ..line::Options::for_kernel(version)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_top_instance_and_of_others() {
        let mut top = TraceOptions::named("noverbose\nrecord-cmd\nnoevent-fork\nnotest_nop_refuse\n");
        assert_eq!(top.text(), "noverbose\nrecord-cmd\nnoevent-fork\nnotest_nop_refuse\n");
        assert!(top.set(top.find("event-fork").unwrap(), true) && top.is("event-fork"));
        assert!(!top.set(top.find("test_nop_refuse").unwrap(), true) && !top.is("test_nop_refuse"));
        assert_eq!(top.files().count(), 4);
        let below = top.inherited((6, 12));
        assert!(!below.is("event-fork") && below.is("record-cmd"));
        assert_eq!(below.files().count(), 3);
        assert_eq!(TraceOptions::named("").files().count(), USUAL.len());
        let newest = TraceOptions::named("nohash-ptr\n").and("bitmask-list").and("hash-ptr");
        assert_eq!(newest.text(), "hash-ptr\nnobitmask-list\n");
        let others = ["blk_classic", "funcgraph-cpu", "func_stack_trace", "verbose"];
        let top = top.and_of_tracers(others.map(|name| (name.to_owned(), name == "funcgraph-cpu")));
        let names = |options: &TraceOptions| {
            options.files().filter_map(|option| Some(options.name(option)?.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(names(&top)[4..], ["blk_classic", "funcgraph-cpu", "func_stack_trace"]);
        assert_eq!(names(&top.inherited((6, 12)))[3..], ["funcgraph-cpu", "func_stack_trace"]);
        assert_eq!(names(&top.inherited((6, 1)))[3..], ["func_stack_trace"]);
        assert!(top.text().lines().count() == 4 && top.find_named("func_stack_trace").is_none());
        assert!(top.all_words().ends_with("\nnoblk_classic\nfuncgraph-cpu\nnofunc_stack_trace\n"));
    }
}
