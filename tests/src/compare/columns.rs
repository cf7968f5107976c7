//! Compares the latency fields of paired lines, column by column. [`KNOWN`] lists the columns that a BPF program
//! cannot determine, by kind of event. Each entry limits the lines of one event and of all events that it sets aside.
//! Any other difference is an error.

use std::collections::BTreeMap;
use std::fmt;

use crate::host;
use crate::oracle::{Flags, Line};

/// The meanings of the latency field's characters, by position.
pub const NAMES: [&str; 5] =
    ["irqs-off", "need-resched", "hardirq/softirq", "preempt-depth", "migrate-disable"];

/// The characters of a column in a line: the kernel's and the tracer's.
type Two = (char, char);

/// The result of a column, in lines per event.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Equal lines, by event and character.
    pub equal: BTreeMap<(String, char), u64>,
    /// Unequal lines, by event and characters.
    pub unequal: BTreeMap<(String, Two), u64>,
}

/// All columns of the lines of one comparison.
#[derive(Clone, Debug, Default)]
pub struct Columns([Column; NAMES.len()]);

/// The events that a limit applies to.
#[derive(Clone, Copy, Debug)]
pub enum Class {
    /// `sys_enter`, `sys_exit` and the events of single system calls.
    Calls,
    /// The named events.
    Named(&'static [&'static str]),
    /// All events.
    Any,
}

impl Class {
    fn has(self, event: &str) -> bool {
        match self {
            Self::Calls => event.starts_with("sys_enter") || event.starts_with("sys_exit"),
            Self::Named(names) => names.contains(&event),
            Self::Any => true,
        }
    }
}

/// Largest number of lines that may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Lines of each event, per thousand.
    pub event: u64,
    /// Lines of an event that has few lines; applies where it is larger than [`Most::event`] allows.
    pub few: u64,
    /// Lines of all events, per thousand lines of the comparison.
    pub all: u64,
}

impl Most {
    const fn new(event: u64, few: u64, all: u64) -> Self {
        Self { event, few, all }
    }

    /// The limit for an event with this many lines.
    fn of_event(self, lines: u64) -> u64 {
        self.few.max(lines * self.event / 1000)
    }
}

/// A difference that the tracer cannot avoid.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The column, by position.
    pub column: usize,
    /// The events.
    pub class: Class,
    /// Whether the limit covers these characters, the kernel's and the tracer's.
    pub is: fn(Two) -> bool,
    /// Limit on real machines.
    pub real: Most,
    /// Limit on emulated machines. All code takes 20 times as long there, so more interrupts occur while a program
    /// runs.
    pub emulated: Most,
    /// The reason.
    pub why: &'static str,
}

impl Limit {
    fn here(&self) -> Most {
        if host::part() > 1 { self.emulated } else { self.real }
    }
}

/// An interrupt requests a reschedule between the two tracers' handling of the hit. Two traces of the kernel differ
/// in the same way.
pub const RACE: Limit = Limit {
    column: 1,
    class: Class::Any,
    is: |_| true,
    real: Most::new(10, 3, 2),
    emulated: Most::new(50, 10, 5),
    why: "an interrupt between the two readings",
};

/// Properties of the interrupted context that a BPF program cannot determine (`docs/reference/differences.md`,
/// latency flags). The first matching entry counts. The values were measured in twelve runs of 6,800 to 17,100 lines
/// on a loaded 6.18 host; the limits are about twice the maximum.
pub const KNOWN: &[Limit] = &[
    Limit {
        column: 0,
        class: Class::Named(&["mod_memcg_lruvec_state", "count_memcg_events", "mod_memcg_state"]),
        is: is_off,
        // Measured per thousand: up to 630 of an event's lines. The share of all lines depends on how many pages the
        // jobs touch: 99 to 167 with all jobs, 60 to 75 with the mirror's six. Beside builds and virtual machines:
        // 560 to 838 and 121 to 270, because other control groups empty the CPU's stock of charged pages. The limit
        // is for a quiet host.
        real: Most::new(800, 0, 250),
        emulated: Most::new(900, 8, 250),
        why: "counts of memory control groups, which are made with interrupts on and off",
    },
    Limit {
        column: 0,
        class: Class::Named(&[
            "rcu_utilization",
            "tlb_flush",
            "write_msr",
            "x86_fpu_regs_activated",
            "csd_queue_cpu",
            "ipi_send_cpu",
        ]),
        is: is_off,
        // Measured: all of an event's lines, 24 of all lines.
        real: Most::new(1000, 0, 60),
        emulated: Most::new(1000, 0, 60),
        why: "what a switch, an interrupt's end or a task brings about",
    },
    Limit {
        column: 0,
        class: Class::Any,
        is: is_off,
        // Measured: 21 (kmem_cache_free), 4 of 19 (hrtimer_setup), 3 of all lines.
        real: Most::new(45, 8, 7),
        emulated: Most::new(500, 25, 10),
        why: "all that happens with interrupts on and off",
    },
    Limit {
        column: 1,
        class: Class::Named(&["reschedule_entry"]),
        is: |two| two == ('n', '.'),
        // The waking CPU sets the task's flag and sends this interrupt, which copies the flag into the preempt count
        // only after the event. Measured: 9 of 10 lines of a loaded host, 30 of 30 of a loaded machine with 6.1.
        real: Most::new(1000, 0, 20),
        emulated: Most::new(1000, 0, 20),
        why: "a flag that is not yet in the preempt count",
    },
    Limit {
        column: 1,
        class: Class::Any,
        is: |(theirs, ours)| "nNp".contains(theirs) && "nNp.".contains(ours),
        // Measured: none to 1 of all lines; once 14 of 116 of rcu_utilization, when the interrupt from a waking CPU
        // arrived late.
        real: Most::new(250, 20, 35),
        emulated: Most::new(250, 20, 35),
        why: "one bit that stands for both ways to ask for the CPU",
    },
    RACE,
    Limit {
        column: 3,
        class: Class::Calls,
        is: |two| two == ('1', '.') && host::kernel() < (6, 18),
        real: Most::new(1000, 0, 250),
        emulated: Most::new(1000, 0, 250),
        why: "the kernel's own handler of a system call, which it counts",
    },
    Limit {
        column: 4,
        class: Class::Any,
        is: |two| two == ('1', '.'),
        // Measured: none, or up to 43 lines of interrupts on a loaded host, at most 7 of 45 of an event and 6 of all
        // lines.
        real: Most::new(150, 16, 15),
        emulated: Most::new(500, 25, 40),
        why: "an interrupt that found one of our programs running, which the kernel's record shows and a program cannot",
    },
];

/// Column position, characters other than `.`, and the smallest number of equal lines with one of them. A column that
/// is always `.` proves nothing. `n`, `N` and `p` need an interrupt that requests a reschedule at the right time.
pub type Least = [(usize, &'static str, u64)];

/// For all jobs under `tracer record` on a real machine; the smallest measured numbers were 1,142, 134, 149 and
/// 2,066.
pub const LEAST: &Least = &[(0, "d", 400), (1, "nNp", 40), (2, "hs", 50), (3, "1", 700)];

/// For six jobs under the mirror; the smallest measured numbers were 370, 77 and 752. Interrupts are not required,
/// because some runs had none.
pub const LEAST_OF_SIX: &Least = &[(0, "d", 130), (1, "nNp", 25), (3, "1", 250)];

/// Whether the kernel shows disabled interrupts and the tracer does not, while both agree on disabled soft
/// interrupts.
fn is_off(two: Two) -> bool {
    matches!(two, ('d', '.') | ('D', 'b'))
}

impl Columns {
    /// Adds two paired lines.
    pub fn take(&mut self, kernel: &Line, ours: &Line) {
        let event = kernel.event();
        for (place, column) in self.0.iter_mut().enumerate() {
            let of = |flags: &Flags| flags.at(place);
            match (of(&kernel.flags), of(&ours.flags)) {
                (theirs, mine) if theirs == mine => {
                    *column.equal.entry((event.clone(), theirs)).or_default() += 1;
                }
                two => *column.unequal.entry((event.clone(), two)).or_default() += 1,
            }
        }
    }

    /// One column.
    pub fn column(&self, place: usize) -> &Column {
        &self.0[place]
    }

    /// Differences beyond the known limits, by column; empty when there are none.
    pub fn wrong(&self, known: &[Limit]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (place, column) in self.0.iter().enumerate() {
            let limits: Vec<&Limit> = known.iter().filter(|limit| limit.column == place).collect();
            let mut used = vec![BTreeMap::<&str, u64>::new(); limits.len()];
            for ((event, two), lines) in &column.unequal {
                match limits.iter().position(|limit| limit.class.has(event) && (limit.is)(*two)) {
                    Some(at) => *used[at].entry(event).or_default() += lines,
                    None => wrong.push(format!("{}: {event}: {lines} lines with {two:?}", NAMES[place])),
                }
            }
            for (limit, used) in limits.iter().zip(used) {
                let (name, most, why) = (NAMES[place], limit.here(), limit.why);
                for (event, lines) in &used {
                    let all = column.lines_of(event);
                    if *lines > most.of_event(all) {
                        wrong
                            .push(format!("{name}: {event}: {lines} of its {all} lines for {why}: {most:?}"));
                    }
                }
                let (all, used) = (column.lines(), used.values().sum::<u64>());
                if used * 1000 > all * most.all {
                    wrong.push(format!("{name}: {used} of {all} lines for {why}: {most:?}"));
                }
            }
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
            let equal = self.0[*place].equal.iter();
            let of = equal.filter(|((_, is), _)| chars.contains(*is));
            let lines = of.map(|(_, lines)| lines).sum::<u64>();
            let name = NAMES[*place];
            (lines < *least)
                .then(|| format!("{name}: {lines} equal lines with one of `{chars}`, not {least}"))
        });
        few.collect()
    }
}

impl Column {
    fn lines(&self) -> u64 {
        self.equal.values().chain(self.unequal.values()).sum()
    }

    fn lines_of(&self, event: &str) -> u64 {
        let equal = self.equal.iter().filter(|((name, _), _)| name == event).map(|(_, lines)| lines);
        let unequal = self.unequal.iter().filter(|((name, _), _)| name == event).map(|(_, lines)| lines);
        equal.chain(unequal).sum()
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, column) in NAMES.iter().zip(&self.0) {
            let (equal, unequal) = (column.equal.values().sum::<u64>(), column.unequal.values().sum::<u64>());
            let mut by_char: BTreeMap<char, u64> = BTreeMap::new();
            for ((_, is), lines) in &column.equal {
                *by_char.entry(*is).or_default() += lines;
            }
            writeln!(f, "{name}: {equal} equal, {unequal} unequal; equal are {by_char:?}")?;
            let mut events: Vec<_> = column.unequal.iter().collect();
            events.sort_by_key(|(_, lines)| std::cmp::Reverse(**lines));
            for ((event, (theirs, mine)), lines) in events {
                let same = |is: char| column.equal.get(&(event.clone(), is)).copied().unwrap_or(0);
                let equal = column.equal.iter().filter(|((name, _), _)| name == event);
                let others = equal.map(|(_, lines)| lines).sum::<u64>() - same(*theirs) - same(*mine);
                writeln!(
                    f,
                    "  {event}: {lines} `{mine}` for the kernel's `{theirs}`; equal: {} `{theirs}`, {} `{mine}`, {others} others",
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

    #[test]
    fn columns_are_counted_by_event_and_limited() {
        let mut columns = Columns::default();
        for _ in 0..9 {
            columns.take(&line("d..1.", "a: x"), &line("d..1.", "a: x"));
        }
        columns.take(&line("d..1.", "a: x"), &line("...1.", "a: x"));
        columns.take(&line(".n...", "b: x"), &line(".n...", "b: x"));
        assert_eq!(columns.column(0).equal[&("a".to_owned(), 'd')], 9);
        assert_eq!(columns.column(0).unequal[&("a".to_owned(), ('d', '.'))], 1);
        assert_eq!(columns.column(1).equal.values().sum::<u64>(), 11);
        assert_eq!(columns.wrong(&[]).len(), 1);
        let limit = |event, few, all| {
            let most = Most::new(event, few, all);
            let (class, why) = (Class::Named(&["a"]), "a test");
            Limit { column: 0, class, is: is_off, real: most, emulated: most, why }
        };
        let enough = limit(100, 0, 91);
        assert_eq!(columns.wrong(&[enough]), Vec::<String>::new());
        assert_eq!(columns.wrong(&[limit(100, 0, 90)]).len(), 1, "1 of 11 is more than 90 of 1,000");
        assert_eq!(
            columns.wrong(&[limit(99, 0, 91)]).len(),
            1,
            "1 of the event's 10 is more than 99 of 1,000"
        );
        assert_eq!(columns.wrong(&[limit(0, 1, 91)]).len(), 0, "the event has few");
        assert_eq!(columns.wrong(&[Limit { column: 1, ..enough }]).len(), 1, "of another column");
        assert_eq!(columns.wrong(&[Limit { class: Class::Calls, ..enough }]).len(), 1);
        assert_eq!(columns.fewer_than(&[(0, "d", 9), (1, "nN", 1)]), Vec::<String>::new());
        assert_eq!(columns.fewer_than(&[(0, "d", 10), (1, "N", 1), (4, "1", 1)]).len(), 3);
        // A character that only the tracer shows is a separate difference.
        columns.take(&line("...1.", "a: x"), &line("d..1.", "a: x"));
        assert_eq!(columns.wrong(&[limit(1000, 0, 1000)]).len(), 1);
    }

    #[test]
    fn only_named_events_are_set_aside() {
        for limit in KNOWN.iter().filter(|limit| matches!(limit.class, Class::Any)) {
            for most in [limit.real, limit.emulated] {
                assert!(most.event <= 500 && most.few <= 25 && most.all <= 40, "{limit:?}");
            }
        }
    }
}
