//! The rules by which two different lines count as equal, or a line is omitted. Each rule covers exactly the lines
//! that it explains.

use crate::oracle::Line;

/// Events whose texts contain `age=`: the jiffies from the dirtying of the inode to the printing of the line.
pub const AGES: &[&str] = &["writeback_single_inode", "writeback_single_inode_start"];

/// Fields that the kernel does not always set: the event, and the texts before and after the field.
/// `fib_table_lookup` sets no gateway for routes without one (`include/trace/events/fib.h`).
pub const UNSET: &[(&str, &str, &str)] = &[("fib_table_lookup", " gw ", " err ")];

/// The reason why two different texts count as equal, or why a line is omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The text contains an age.
    Age,
    /// A timer's timeout is one tick off.
    Tick,
    /// A thread that ended was reaped between the two sides' handling of the hit.
    Reaped,
    /// The kernel does not set a field.
    Unset,
    /// Hits between a switch's tracepoint and the switch, in either trace.
    Switching,
    /// The two sides have equal lines in another order, and an interrupt occurred between their times.
    Crossed,
    /// One of the two lines may belong to another hit, because a neighbour without a partner is equal; their columns
    /// are not compared.
    Ambiguous,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 7] =
        [Self::Age, Self::Tick, Self::Reaped, Self::Unset, Self::Switching, Self::Crossed, Self::Ambiguous];

    /// The largest number of lines that the rule may set aside in a run. [`super::Comparison::unknown`] limits the
    /// share of [`Rule::Tick`].
    pub fn most(self) -> Option<u64> {
        match self {
            // Measured: 1, once in an emulated machine. From 7.0 on the kernel preempts threads between the two sides.
            Self::Crossed => Some(if super::columns::preempts_programs() { 20 } else { 2 }),
            // The parts of a text, the last switch of a thread, the lines of one switch, and the neighbours of lines
            // without a partner. Their number depends on the workload and on the load, not on the tracer.
            Self::Age | Self::Reaped | Self::Unset | Self::Switching | Self::Ambiguous | Self::Tick => None,
        }
    }
}

/// The rule that explains the difference of two texts; `None` when they are equal or no rule applies.
pub(super) fn differs_by(kernel: &Line, ours: &Line) -> Option<Rule> {
    if kernel.text == ours.text {
        None
    } else if ageless(kernel).is_some_and(|text| Some(text) == ageless(ours)) {
        Some(Rule::Age)
    } else if a_tick_apart(kernel, ours) {
        Some(Rule::Tick)
    } else if kernel.event() == "sched_switch" && unreaped(kernel) == unreaped(ours) {
        Some(Rule::Reaped)
    } else {
        without_unset(kernel).is_some_and(|text| Some(text) == without_unset(ours)).then_some(Rule::Unset)
    }
}

/// Whether two starts of a timer differ by one tick in the timeout and in nothing else.
fn a_tick_apart(kernel: &Line, ours: &Line) -> bool {
    let parts = |line: &Line| -> Option<(String, i64)> {
        let (before, rest) = line.text.split_once(" [timeout=")?;
        let (timeout, after) = rest.split_once(']')?;
        (line.event() == "timer_start").then_some((format!("{before}{after}"), timeout.parse().ok()?))
    };
    match (parts(kernel), parts(ours)) {
        (Some((kernel, theirs)), Some((ours, mine))) => kernel == ours && (theirs - mine).abs() <= 1,
        _ => false,
    }
}

/// The text of a switch with the previous thread's state as before it was reaped.
fn unreaped(line: &Line) -> String {
    line.text.replace(" prev_state=X ", " prev_state=Z ")
}

/// The text of a line with a field that may be unset, without it.
fn without_unset(line: &Line) -> Option<(&str, &str)> {
    let event = line.event();
    let (_, start, end) = UNSET.iter().find(|(name, ..)| *name == event)?;
    let (before, rest) = line.text.split_once(start)?;
    rest.split_once(end).map(|(_, after)| (before, after))
}

/// The text of a line with an age, without the age.
fn ageless(line: &Line) -> Option<(&str, &str)> {
    let (before, rest) = line.text.split_once(" age=")?;
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    AGES.contains(&line.event().as_str()).then_some((before, after))
}
