//! Compares the latency fields of paired lines, column by column. A BPF program cannot determine some properties of
//! the context that it interrupted ([`Why`]). Each unequal line must be exactly what the tracer shows in such a case.
//! Shares of lines have no limit, because they depend on the kernel's work and on the load, not on the tracer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::host;
use crate::oracle::{Flags, Line};

/// The meanings of the latency field's characters, by position.
pub const NAMES: [&str; 5] =
    ["irqs-off", "need-resched", "hardirq/softirq", "preempt-depth", "migrate-disable"];

/// The characters of a column in a line: the kernel's and the tracer's.
type Two = (char, char);

/// Why a column differs (`docs/reference/differences.md`, latency flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Interrupts are off outside a hard interrupt, and the event also happens with interrupts on. No program can read
    /// the flags register.
    IrqsOff,
    /// The task's flag is not in the preempt count, or only that bit is set. The tracer shows that bit alone.
    OneBit,
    /// Two traces of the kernel: another CPU set the task's flag between the two readings.
    OtherCpu,
    /// An interrupt between the two readings requested a reschedule.
    Interrupted,
    /// The kernel's own handler of a system call, which it counts before 6.18.
    OwnHandler,
    /// An interrupt that found one of the tracer's programs running, or a thread that preempted it or was to be
    /// preempted in it, which the kernel's record shows.
    InProgram,
}

/// The differences between the kernel's line and the tracer's.
pub const KNOWN: &[Why] = &[Why::IrqsOff, Why::OneBit, Why::Interrupted, Why::OwnHandler, Why::InProgram];

/// The differences between two traces of the kernel.
pub const RACES: &[Why] = &[Why::OneBit, Why::OtherCpu, Why::Interrupted];

/// Events that happen with interrupts off in the workload, and with interrupts on elsewhere in the kernel.
const USUALLY_OFF: &[&str] = &[
    "rcu_utilization",
    "tlb_flush",
    "write_msr",
    "x86_fpu_regs_activated",
    "csd_queue_cpu",
    "ipi_send_cpu",
    "mod_memcg_lruvec_state",
    "count_memcg_events",
    "mod_memcg_state",
    "rseq_update",
];

/// Lines with interrupts off that show that an event always happens so, if it has no other lines. An event of fewer
/// lines proves nothing.
fn enough_off() -> u64 {
    if host::part() > 1 { 25 } else { 8 }
}

/// The result of a column, in lines per event.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Equal lines, by event and character.
    pub equal: BTreeMap<(String, char), u64>,
    /// Unequal lines, by event, characters and reason.
    pub unequal: BTreeMap<(String, Two, Option<Why>), u64>,
}

/// All columns of the lines of one comparison.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    columns: [Column; NAMES.len()],
    /// The characters of `irqs-off` outside hard interrupts, by event: the lines of each pair.
    irqs: BTreeMap<String, BTreeMap<(bool, bool), u64>>,
}

/// Column position, characters other than `.`, and the smallest number of equal lines with one of them. A column that
/// is always `.` proves nothing. `n`, `N` and `p` need an interrupt that requests a reschedule at the right time.
pub type Least = [(usize, &'static str, u64)];

/// For all jobs under `tracer record` on a real machine; the smallest measured numbers were 1,142, 134, 149 and
/// 2,066.
pub const LEAST: &Least = &[(0, "d", 400), (1, "nNp", 40), (2, "hs", 50), (3, "1", 700)];

/// For six jobs under the mirror; the smallest measured numbers were 370, 77 and 752. Interrupts are not required,
/// because some runs had none.
pub const LEAST_OF_SIX: &Least = &[(0, "d", 130), (1, "nNp", 25), (3, "1", 250)];

/// The reason of a difference in this column; `is_interrupted` is whether an interrupt occurred around the hit.
fn why(place: usize, kernel: &Line, two: Two, is_interrupted: bool) -> Option<Why> {
    let in_interrupt = kernel.flags.at(2);
    match place {
        0 if matches!(two, ('d', '.') | ('D', 'b')) && ".s".contains(in_interrupt) => Some(Why::IrqsOff),
        1 if folded(two.0) == two.1 => Some(Why::OneBit),
        1 if folded(two.0) == folded(two.1) => Some(Why::OtherCpu),
        1 if is_interrupted => Some(Why::Interrupted),
        3 if two == ('1', '.') && host::kernel() < (6, 18) && is_call(&kernel.event()) => {
            Some(Why::OwnHandler)
        }
        4 if two == ('1', '.') && (in_interrupt != '.' || preempts_programs()) => Some(Why::InProgram),
        _ => None,
    }
}

/// Whether the kernel preempts programs at raw tracepoints.
pub(super) fn preempts_programs() -> bool {
    host::kernel() >= (7, 0)
}

/// What the preempt count's bit alone shows.
fn folded(need_resched: char) -> char {
    match need_resched {
        'N' | 'p' | 'B' | 'L' => 'N',
        'n' | 'b' | 'l' => '.',
        other => other,
    }
}

/// Whether this is `sys_enter`, `sys_exit` or an event of a single system call.
fn is_call(event: &str) -> bool {
    event.starts_with("sys_enter") || event.starts_with("sys_exit")
}

impl Columns {
    /// Adds two paired lines.
    pub fn take(&mut self, kernel: &Line, ours: &Line, is_interrupted: bool) {
        let event = kernel.event();
        for (place, column) in self.columns.iter_mut().enumerate() {
            let of = |flags: &Flags| flags.at(place);
            match (of(&kernel.flags), of(&ours.flags)) {
                (theirs, mine) if theirs == mine => {
                    *column.equal.entry((event.clone(), theirs)).or_default() += 1;
                }
                two => {
                    let why = why(place, kernel, two, is_interrupted);
                    *column.unequal.entry((event.clone(), two, why)).or_default() += 1;
                }
            }
        }
        if ".s".contains(kernel.flags.at(2)) {
            let is_off = |line: &Line| matches!(line.flags.at(0), 'd' | 'D');
            let seen = self.irqs.entry(event).or_default();
            *seen.entry((is_off(kernel), is_off(ours))).or_default() += 1;
        }
    }

    /// Adds the lines of another comparison.
    pub fn add(&mut self, other: &Self) {
        for (column, other) in self.columns.iter_mut().zip(&other.columns) {
            super::add(&mut column.equal, &other.equal);
            super::add(&mut column.unequal, &other.unequal);
        }
        for (event, seen) in &other.irqs {
            super::add(self.irqs.entry(event.clone()).or_default(), seen);
        }
    }

    /// One column.
    pub fn column(&self, place: usize) -> &Column {
        &self.columns[place]
    }

    /// Differences that have none of these reasons, and events whose lines show that the tracer takes them for another
    /// kind; empty when there are none.
    pub fn wrong(&self, known: &[Why]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, column) in NAMES.iter().zip(&self.columns) {
            for ((event, two, why), lines) in &column.unequal {
                if why.is_none_or(|why| !known.contains(&why)) {
                    wrong.push(format!("{name}: {event}: {lines} lines with {two:?}, {why:?}"));
                }
            }
        }
        if known.contains(&Why::IrqsOff) {
            wrong.extend(self.irqs.iter().filter_map(|(event, seen)| wrong_kind(event, seen)));
        }
        wrong
    }

    /// Columns with too few equal lines, on a real machine. An emulated machine may run only some of the jobs, so it
    /// has no minimum.
    pub fn too_few(&self, least: &Least) -> Vec<String> {
        if host::part() > 1 { Vec::new() } else { self.fewer_than(least) }
    }

    fn fewer_than(&self, least: &Least) -> Vec<String> {
        let few = least.iter().filter_map(|(place, chars, least)| {
            let equal = self.columns[*place].equal.iter();
            let of = equal.filter(|((_, is), _)| chars.contains(*is));
            let lines = of.map(|(_, lines)| lines).sum::<u64>();
            let name = NAMES[*place];
            (lines < *least)
                .then(|| format!("{name}: {lines} equal lines with one of `{chars}`, not {least}"))
        });
        few.collect()
    }
}

/// The tracer shows interrupts off for all lines of an event outside hard interrupts, or for none. An event that the
/// kernel always shows with interrupts off belongs to the first kind.
fn wrong_kind(event: &str, seen: &BTreeMap<(bool, bool), u64>) -> Option<String> {
    let ours: BTreeSet<bool> = seen.keys().map(|(_, ours)| *ours).collect();
    let off = seen.get(&(true, false)).copied().unwrap_or(0);
    let name = NAMES[0];
    if ours.len() > 1 {
        Some(format!("{name}: {event} has lines of both kinds: {seen:?}"))
    } else if seen.len() == 1 && off > enough_off() && !USUALLY_OFF.contains(&event) {
        Some(format!("{name}: {event}: all {off} lines have interrupts off, and ours show none"))
    } else {
        None
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, column) in NAMES.iter().zip(&self.columns) {
            let (equal, unequal) = (column.equal.values().sum::<u64>(), column.unequal.values().sum::<u64>());
            let mut by_char: BTreeMap<char, u64> = BTreeMap::new();
            for ((_, is), lines) in &column.equal {
                *by_char.entry(*is).or_default() += lines;
            }
            writeln!(f, "{name}: {equal} equal, {unequal} unequal; equal are {by_char:?}")?;
            let mut events: Vec<_> = column.unequal.iter().collect();
            events.sort_by_key(|(_, lines)| std::cmp::Reverse(**lines));
            for ((event, (theirs, mine), why), lines) in events {
                let same = |is: char| column.equal.get(&(event.clone(), is)).copied().unwrap_or(0);
                writeln!(
                    f,
                    "  {event}: {lines} `{mine}` for the kernel's `{theirs}`, {why:?}; equal: {} `{theirs}`, {} `{mine}`",
                    same(*theirs),
                    same(*mine)
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(flags: &str, text: &str) -> Line {
        let flags = Flags(flags.to_owned());
        Line { comm: "a".into(), pid: 7, cpu: 0, flags, time: 1, text: text.into() }
    }

    /// The columns of lines of one event.
    fn of(lines: &[(&str, &str)], is_interrupted: bool) -> Columns {
        let mut columns = Columns::default();
        for (theirs, ours) in lines {
            columns.take(&line(theirs, "a: x"), &line(ours, "a: x"), is_interrupted);
        }
        columns
    }

    #[test]
    fn columns_are_counted_by_event() {
        let mut columns = of(&[("d..1.", "d..1."); 9], false);
        columns.add(&of(&[("...1.", "d..1.")], false));
        columns.take(&line(".n...", "b: x"), &line(".n...", "b: x"), false);
        assert_eq!(columns.column(0).equal[&("a".to_owned(), 'd')], 9);
        assert_eq!(columns.column(0).unequal[&("a".to_owned(), ('.', 'd'), None)], 1);
        assert_eq!(columns.column(1).equal.values().sum::<u64>(), 11);
        assert_eq!(columns.wrong(KNOWN).len(), 1, "the kernel had interrupts on");
        assert_eq!(columns.fewer_than(&[(0, "d", 9), (1, "nN", 1)]), Vec::<String>::new());
        assert_eq!(columns.fewer_than(&[(0, "d", 10), (1, "N", 1), (4, "1", 1)]).len(), 3);
    }

    #[test]
    fn each_difference_needs_its_reason() {
        for (theirs, ours, is_interrupted, is_known, is_race) in [
            (".....", ".....", false, true, true),
            ("d....", ".....", false, true, false),
            ("D.s..", "b.s..", false, true, false),
            ("d.h..", "..h..", false, false, false),
            (".n...", ".....", false, true, true),
            (".p...", ".N...", false, true, true),
            (".....", ".n...", false, false, true),
            (".N...", ".....", false, false, false),
            (".N...", ".....", true, true, true),
            ("...1.", "...2.", true, false, false),
            ("d.h.1", "d.h..", false, true, false),
            ("....1", ".....", true, preempts_programs(), false),
            ("d.h..", "d.h.1", true, false, false),
        ] {
            let columns = of(&[(theirs, ours)], is_interrupted);
            assert_eq!(columns.wrong(KNOWN).is_empty(), is_known, "{theirs} {ours}");
            assert_eq!(columns.wrong(RACES).is_empty(), is_race, "{theirs} {ours}");
        }
        let mut call = Columns::default();
        call.take(&line("...1.", "sys_close(fd: 1)"), &line(".....", "sys_close(fd: 1)"), false);
        assert_eq!(call.wrong(KNOWN).is_empty(), host::kernel() < (6, 18));
    }

    #[test]
    fn an_event_is_always_off_or_unknown() {
        let enough = enough_off() as usize;
        let off = ("d....", ".....");
        assert!(of(&vec![off; enough], false).wrong(KNOWN).is_empty(), "too few");
        assert_eq!(of(&vec![off; enough + 1], false).wrong(KNOWN).len(), 1);
        let mut mixed = vec![off; enough + 1];
        mixed.push((".....", "....."));
        assert!(of(&mixed, false).wrong(KNOWN).is_empty());
        assert_eq!(of(&[off, ("d....", "d....")], false).wrong(KNOWN).len(), 1, "both kinds");
        assert!(of(&[off, ("d.h..", "d.h..")], false).wrong(KNOWN).is_empty(), "a hard interrupt");
    }
}
