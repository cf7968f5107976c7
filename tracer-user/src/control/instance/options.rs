//! Trace options: which there are, and how they stand.
//!
//! The names are the running kernel's, taken from its `trace_options`, so that a script finds what it expects; how
//! they stand at first is fixed here.

use crate::render::line;

/// Options that are on at first (`TRACE_DEFAULT_FLAGS`, kernel/trace/trace.c).
const ON: [&str; 12] = [
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
];
/// Options that only the top has a file for (`TOP_LEVEL_TRACE_FLAGS`).
const TOP_ONLY: [&str; 3] = ["trace_printk", "printk-msg-only", "record-cmd"];
/// Options that a new instance does not inherit (`ZEROED_TRACE_FLAGS`).
const ZEROED: [&str; 4] = ["event-fork", "function-fork", "trace_printk_dest", "copy_trace_marker"];
/// The tracer nop's own: the second refuses every change.
const NOP_REFUSES: &str = "test_nop_refuse";
/// Names of options on a kernel that does not tell.
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
    all: Vec<(String, bool)>,
    top: bool,
}

impl TraceOptions {
    /// The options that a kernel's `trace_options` names, as they stand at first.
    pub fn named(trace_options: &str) -> Self {
        let mut names: Vec<&str> =
            // No option's own name begins with `no`.
            trace_options.lines().map(|line| line.strip_prefix("no").unwrap_or(line)).collect();
        if names.is_empty() {
            names = USUAL.to_vec();
        }
        Self { all: names.into_iter().map(|name| (name.to_owned(), ON.contains(&name))).collect(), top: true }
    }

    /// The options of a new instance: those of the top, some of them off.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let all = self.all.iter().map(|(name, on)| (name.clone(), *on && !ZEROED.contains(&name.as_str())));
        Self { all: all.collect(), top: false }
    }

    /// Number of an option.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.all.iter().position(|(known, _)| known == name).map(|index| index as u32)
    }

    /// Name of an option.
    pub fn name(&self, option: u32) -> Option<&str> {
        self.all.get(option as usize).map(|(name, _)| name.as_str())
    }

    /// Numbers of the options that have a file.
    pub fn files(&self) -> impl Iterator<Item = u32> {
        (0..self.all.len() as u32).filter(|option| self.has_file(*option))
    }

    /// Whether an option has a file here.
    pub fn has_file(&self, option: u32) -> bool {
        self.name(option).is_some_and(|name| self.top || !TOP_ONLY.contains(&name))
    }

    /// How an option stands.
    pub fn get(&self, option: u32) -> bool {
        self.all.get(option as usize).is_some_and(|(_, on)| *on)
    }

    /// How an option of a name stands; one that there is not is off.
    pub fn is(&self, name: &str) -> bool {
        self.all.iter().any(|(known, on)| known == name && *on)
    }

    /// Sets an option; false for one that refuses.
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
        self.all.iter().flat_map(|(name, on)| [if *on { "" } else { "no" }, name, "\n"]).collect()
    }

    /// The options that shape a line of text.
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
    fn options_of_the_top_and_of_an_instance() {
        let mut top = TraceOptions::named("noverbose\nrecord-cmd\nnoevent-fork\nnotest_nop_refuse\n");
        assert_eq!(top.text(), "noverbose\nrecord-cmd\nnoevent-fork\nnotest_nop_refuse\n");
        assert!(top.set(top.find("event-fork").unwrap(), true) && top.is("event-fork"));
        assert!(!top.set(top.find("test_nop_refuse").unwrap(), true) && !top.is("test_nop_refuse"));
        assert_eq!(top.files().count(), 4);
        let below = top.inherited();
        assert!(!below.is("event-fork") && below.is("record-cmd"));
        assert_eq!(below.files().count(), 3);
        assert_eq!(TraceOptions::named("").files().count(), USUAL.len());
    }
}
