//! The latency field of lines that pair, column by column. What a program cannot know is listed by column and kind of
//! event ([`KNOWN`]), each with the most lines that it may set aside; any other difference is one too many.

use std::collections::BTreeMap;
use std::fmt;

use crate::host;
use crate::oracle::{Flags, Line};

/// What the characters of the latency field stand for, by their place.
pub const NAMES: [&str; 5] =
    ["irqs-off", "need-resched", "hardirq/softirq", "preempt-depth", "migrate-disable"];

/// A column's two characters in a line, the kernel's and ours.
type Two = (char, char);

/// How a column came out: lines an event.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Equal, by event and character.
    pub equal: BTreeMap<(String, char), u64>,
    /// Unequal, by event and characters.
    pub unequal: BTreeMap<(String, Two), u64>,
}

/// All columns of the lines of one comparison.
#[derive(Clone, Debug, Default)]
pub struct Columns([Column; NAMES.len()]);

/// Events that a limit is about.
#[derive(Clone, Copy, Debug)]
pub enum Class {
    /// `sys_enter`, `sys_exit` and those of single calls.
    Calls,
    /// These.
    Named(&'static [&'static str]),
    /// All.
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

/// Something that our column cannot show.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Which column, by its place.
    pub column: usize,
    /// Whose lines.
    pub class: Class,
    /// The characters, the kernel's and ours.
    pub is: fn(Two) -> bool,
    /// So many of a thousand lines of the comparison may differ so.
    pub most: u64,
    /// Why.
    pub why: &'static str,
}

/// An interrupt between the two looks asks for the CPU: the kernel beside itself differs so.
pub const RACE: Limit =
    Limit { column: 1, class: Class::Any, is: |_| true, most: 5, why: "an interrupt between the two looks" };

/// What a program cannot know of the place that it interrupts (docs/SEMANTICS.md, options). The first that fits counts.
pub const KNOWN: &[Limit] = &[
    Limit {
        column: 0,
        class: Class::Named(&["mod_memcg_lruvec_state", "mod_memcg_state", "count_memcg_events"]),
        is: is_off,
        // Seen: 99 to 167, as these follow the pages that a workload touches.
        most: 250,
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
        most: 60,
        why: "what a switch, an interrupt's end or a task brings about",
    },
    Limit {
        column: 0,
        class: Class::Any,
        is: is_off,
        most: 10,
        why: "all that happens with interrupts on and off",
    },
    Limit {
        column: 1,
        class: Class::Any,
        is: |(theirs, ours)| "nNp".contains(theirs) && "nNp.".contains(ours),
        most: 10,
        why: "one bit that stands for both ways to ask for the CPU",
    },
    RACE,
    Limit {
        column: 3,
        class: Class::Calls,
        is: |two| two == ('1', '.') && host::kernel() < (6, 18),
        most: 250,
        why: "the kernel's own handler of a system call, which it counts",
    },
    Limit {
        column: 4,
        class: Class::Any,
        is: |two| two == ('1', '.'),
        most: 40,
        why: "an interrupt that found one of our programs running, which the kernel's record shows and a program cannot",
    },
];

/// Interrupts are off, and we do not show it; whether soft interrupts are, we do.
fn is_off(two: Two) -> bool {
    matches!(two, ('d', '.') | ('D', 'b'))
}

impl Columns {
    /// Takes in two lines that pair.
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

    /// Lines that differ beyond what is known, told by column; nothing where all is as it must be.
    pub fn wrong(&self, known: &[Limit]) -> Vec<String> {
        let mut wrong = Vec::new();
        for (place, column) in self.0.iter().enumerate() {
            let limits: Vec<&Limit> = known.iter().filter(|limit| limit.column == place).collect();
            let mut used = vec![0; limits.len()];
            for ((event, two), lines) in &column.unequal {
                match limits.iter().position(|limit| limit.class.has(event) && (limit.is)(*two)) {
                    Some(at) => used[at] += lines,
                    None => wrong.push(format!("{}: {event}: {lines} lines with {two:?}", NAMES[place])),
                }
            }
            for (limit, used) in limits.iter().zip(used) {
                let all = column.lines();
                if used * 1000 > all * limit.most {
                    let (name, most, why) = (NAMES[place], limit.most, limit.why);
                    wrong.push(format!("{name}: {used} of {all} lines for {why}, more than {most} of 1000"));
                }
            }
        }
        wrong
    }
}

impl Column {
    fn lines(&self) -> u64 {
        self.equal.values().chain(self.unequal.values()).sum()
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, column) in NAMES.iter().zip(&self.0) {
            let (equal, unequal) = (column.equal.values().sum::<u64>(), column.unequal.values().sum::<u64>());
            writeln!(f, "{name}: {equal} equal, {unequal} unequal")?;
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
        let limit = |most| Limit { column: 0, class: Class::Named(&["a"]), is: is_off, most, why: "a test" };
        assert_eq!(columns.wrong(&[limit(91)]), Vec::<String>::new());
        assert_eq!(columns.wrong(&[limit(90)]).len(), 1, "1 of 11 is more than 90 of 1,000");
        assert_eq!(columns.wrong(&[Limit { column: 1, ..limit(1000) }]).len(), 1, "of another column");
        assert_eq!(columns.wrong(&[Limit { class: Class::Calls, ..limit(1000) }]).len(), 1);
        // What we show and the kernel does not is another difference.
        columns.take(&line("...1.", "a: x"), &line("d..1.", "a: x"));
        assert_eq!(columns.wrong(&[limit(1000)]).len(), 1);
    }
}
