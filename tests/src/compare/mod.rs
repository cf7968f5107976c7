//! Compares two traces of one run, the kernel's and the tracer's, line by line.
//!
//! Lines are compared per thread, CPU (each CPU has an idle thread 0) and context (task, soft interrupt, hard
//! interrupt). Within one context both sides see the same hits in the same order. Lines of two CPUs may have either
//! order, and an interrupt may occur between the two sides' handling of one hit. The comparison sets aside the
//! following, and nothing else:
//!
//! - timestamps, because each side reads the clock separately: [`Comparison::offsets`] has what their order allows;
//! - the task's name before the pid: the kernel looks it up when the text is read, and shows the last name that it
//!   saved for that pid, or `<...>`;
//! - the characters of the latency field that [`READABLE`] omits: [`Comparison::columns`] has their results;
//! - the parts of a text that depend on the time of printing, not on the record ([`AGES`]);
//! - one tick in the timeout of `timer_start`, because each side reads the jiffies separately;
//! - whether a thread that switches away for the last time is a zombie (`Z`) or already reaped (`X`): its parent may
//!   change that between the two sides' handling of the hit;
//! - fields that the kernel itself leaves unset: each side's buffer shows its previous content ([`UNSET`]);
//! - the order of a hit and of what an interrupt's end does in the task's context ([`Rule::Crossed`]): an interrupt
//!   between the two sides' handling of the hit puts the lines of its end (it wakes `ksoftirqd`, say) after the hit in
//!   one trace and before it in the other. From 7.0 on the thread may also be preempted there;
//! - hits between a switch's tracepoint and the switch itself ([`SWITCHING`]): `set_event_pid` already assigns them
//!   to the next task. The tracer selects by the pid in the record, which is the previous task's.
//!
//! [`Comparison::set_aside`] counts the lines that each rule sets aside. [`Comparison::accounted_for`] checks what each
//! run must show. Shares of lines vary between runs, so [`until_known`] accumulates runs until [`Comparison::unknown`]
//! is empty. One order is compared separately instead of being set aside:
//!
//! - the order of two events that are attached to one tracepoint ([`SHARING`]): the first event is the event whose
//!   kind any tracer on this machine enabled first.

mod align;
pub mod columns;
mod proportion;
mod rules;
pub mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use anyhow::{Result, bail, ensure};
use columns::Columns;
pub use proportion::Proportion;
use rules::differs_by;
pub use rules::{AGES, Rule, UNSET};
use times::{Offsets, RESOLUTION};

use crate::host;
use crate::oracle::{Line, Trace};
use crate::tracer::Counts;

/// Positions of the latency field ([`crate::oracle::Flags::at`]) that a BPF program reads as the kernel does. The
/// tracer shows 0 (interrupts off), 1 (need-resched), 3 (preemption depth) and 4 (migration-disable depth) as
/// precisely as BPF allows. The program's own entry disables preemption and migration, and on some kernels a program
/// cannot read the words; see the module `tracer_ebpf::ctx`.
pub const READABLE: &[usize] = &[2];

/// Events that occur while a CPU switches from one task to another, after `sched_switch`, with the part of their text
/// that tells so. A switch causes each at most once.
pub const SWITCHING: &[(&str, &str)] =
    &[("tlb_flush", "reason:flush on task switch "), ("x86_fpu_regs_deactivated", "")];

/// Events that share a tracepoint with other events: all `syscalls:sys_enter_*` use the tracepoint of
/// `raw_syscalls:sys_enter`.
pub const SHARING: &[&str] = &["sys_enter", "sys_exit"];

/// Number of differences of an event that are kept for the report.
const SHOWN: u64 = 2;

/// Number of runs after which the shares of [`Comparison::unknown`] must be known.
pub const RUNS: u64 = 8;

/// Lines that may be missing or differ by a tick before their share counts.
const FEW: u64 = 3;

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Number of runs.
    pub runs: u64,
    /// Equal lines, by event name.
    pub equal: BTreeMap<String, u64>,
    /// The latency fields of the equal lines, by column.
    pub columns: Columns,
    /// The offsets of the two clocks that the order of the equal lines allows.
    pub offsets: Offsets,
    /// Lines that only the kernel's trace has.
    pub missing: u64,
    /// Lines that only the kernel's trace has, by event name.
    pub missing_by: BTreeMap<String, u64>,
    /// The missing lines in task context, without interrupts.
    pub missing_of_tasks: u64,
    /// Lines that only the tracer's trace has.
    pub extra: u64,
    /// Lines of the same event at the same position with another text or latency field.
    pub different: u64,
    /// Missing, extra and different lines, by event name.
    pub trouble: BTreeMap<String, u64>,
    /// Lines that were set aside, by rule.
    pub set_aside: BTreeMap<Rule, u64>,
    /// The first differences of each event, for the report.
    pub shown: Vec<String>,
    /// The lines that [`Rule::Crossed`] sets aside, for the report.
    pub crossings: Vec<String>,
}

impl Comparison {
    /// Number of equal lines.
    pub fn lines(&self) -> u64 {
        self.equal.values().sum()
    }

    /// Number of event types with an equal line.
    pub fn types(&self) -> usize {
        self.equal.len()
    }

    /// Whether no line differs and no rule set aside too many.
    pub fn clean(&self) -> bool {
        self.missing + self.extra + self.different == 0 && self.too_often().is_empty()
    }

    /// Rules that set aside more lines than [`Rule::most`] allows.
    pub fn too_often(&self) -> Vec<Rule> {
        let is_over =
            |(rule, lines): &(&Rule, &u64)| rule.most().is_some_and(|most| **lines > most * self.runs);
        self.set_aside.iter().filter(is_over).map(|(rule, _)| *rule).collect()
    }

    /// The number of lines that each rule set aside, for the report.
    pub fn rules(&self) -> String {
        let of = |rule| self.set_aside.get(&rule).copied().unwrap_or(0);
        Rule::ALL.map(|rule| format!("{rule:?} {}", of(rule))).join(", ")
    }

    /// Whether the only differences are hits for which the kernel did not run the tracer's program.
    ///
    /// At perf tracepoints the kernel runs at most one program per CPU at a time, so hits of an interrupt while one
    /// runs are missing. Kernels from 6.7 on count these hits ([`Missed`]). On these kernels the missing lines may
    /// not exceed the counts, per event where an event has its own program. On earlier kernels only hits of
    /// interrupts may be missing. [`Comparison::unknown`] limits the share of the missing lines.
    pub fn accounted_for(&self, missed: &Missed) -> bool {
        let excused = if host::counts_missed() {
            let own = |event: &String| missed.own.get(event).copied().unwrap_or(0);
            let rest = self.missing_by.iter().map(|(event, lines)| lines.saturating_sub(own(event)));
            rest.sum::<u64>() <= missed.shared
        } else {
            self.missing_of_tasks == 0
        };
        excused && self.too_often().is_empty() && self.extra + self.different == 0
    }

    /// The shares of lines that the runs so far do not show to be small enough. A real machine must keep 98 of 100
    /// lines, and a kernel without counts of missed hits 90 of 100. An event must keep most of its lines
    /// ([`Comparison::starved`]). Measured on the host: 14 of 1,000 lines are missing, once; otherwise at most 1.
    pub fn unknown(&self, missed: &Missed) -> Vec<String> {
        let mut unknown = Vec::new();
        let most = match (host::counts_missed(), host::part()) {
            (true, 1) => Some(20),
            (true, _) => None,
            (false, _) => Some(100),
        };
        if let Some(most) = most {
            unknown.extend(self.misses_over(most));
        }
        let ticks = self.set_aside.get(&Rule::Tick).copied().unwrap_or(0);
        unknown.extend(self.not_below("a tick apart", ticks, 1));
        unknown
            .extend(self.starved(missed).iter().map(|event| format!("{event} misses too many of its lines")));
        unknown
    }

    /// A share of lines that is not known to be below a limit in thousandths.
    fn not_below(&self, what: &str, part: u64, most: u64) -> Option<String> {
        let of = self.lines() + self.missing;
        let is_below = part <= FEW || Proportion { part, of }.is_below(most);
        (!is_below).then(|| format!("{part} of {of} lines are {what}; the limit is {most} of 1,000"))
    }

    /// The missing lines, if their share is not known to be below a limit in thousandths.
    pub fn misses_over(&self, most: u64) -> Option<String> {
        self.not_below("missing", self.missing, most)
    }

    /// Adds another run.
    pub fn add(&mut self, run: Self) {
        self.runs += run.runs;
        add(&mut self.equal, &run.equal);
        self.columns.add(&run.columns);
        self.offsets.add(run.offsets);
        self.missing += run.missing;
        add(&mut self.missing_by, &run.missing_by);
        self.missing_of_tasks += run.missing_of_tasks;
        self.extra += run.extra;
        self.different += run.different;
        add(&mut self.trouble, &run.trouble);
        add(&mut self.set_aside, &run.set_aside);
        self.shown.extend(run.shown);
        self.crossings.extend(run.crossings);
    }

    /// Events that miss more lines than one interrupted program explains: all of three or more lines, or more than
    /// eight lines and over a third of the event's lines.
    ///
    /// Where the event's own program counts its misses, up to half may be missing: callbacks of a soft interrupt that
    /// occurred during a program lost 99 of 242. The check is per event, because a total hides an event without any
    /// line.
    pub fn starved(&self, missed: &Missed) -> Vec<&str> {
        let equal = |event: &String| self.equal.get(event).copied().unwrap_or(0);
        let starves = |event: &String, lines: u64| {
            let counted = host::counts_missed() && missed.own.get(event).is_some_and(|own| lines <= *own);
            let over = if counted { lines > equal(event) } else { lines * 2 > equal(event) };
            (lines >= 3 && equal(event) == 0) || (lines > 8 && over)
        };
        self.missing_by
            .iter()
            .filter(|(event, lines)| starves(event, **lines))
            .map(|(event, _)| &**event)
            .collect()
    }

    /// The lost lines of each event, for the report.
    pub fn losses(&self) -> String {
        let lost = self.missing_by.iter().map(|(event, lines)| {
            format!("{event} {lines} of {}", lines + self.equal.get(event).copied().unwrap_or(0))
        });
        lost.collect::<Vec<_>>().join(", ")
    }

    fn note(&mut self, event: String, what: String) {
        let seen = self.trouble.entry(event).or_default();
        *seen += 1;
        if *seen <= SHOWN {
            self.shown.push(what);
        }
    }

    fn set_aside(&mut self, rule: Rule) {
        *self.set_aside.entry(rule).or_default() += 1;
    }

    fn missing(&mut self, line: &Line) {
        self.missing += 1;
        *self.missing_by.entry(line.event()).or_default() += 1;
        self.missing_of_tasks += u64::from(line.flags.at(2) == '.');
        self.note(line.event(), format!("only the kernel: {}", show(line)));
    }

    fn extra(&mut self, line: &Line) {
        self.extra += 1;
        self.note(line.event(), format!("only ours:       {}", show(line)));
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lines of {} event types equal; {} only the kernel's, {} only ours, {} different",
            self.lines(),
            self.types(),
            self.missing,
            self.extra,
            self.different
        )?;
        for (event, n) in &self.trouble {
            write!(f, "\n  {event}: {n}")?;
        }
        write!(f, "\n  set aside: {}", self.rules())?;
        for rule in self.too_often() {
            write!(f, "\n  set aside too often: {rule:?}")?;
        }
        for line in self.shown.iter().chain(&self.crossings) {
            write!(f, "\n{line}")?;
        }
        Ok(())
    }
}

/// Hits for which the kernel did not run the tracer's programs, by the kernel's own count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Misses of events that have their own program, by the event's name.
    pub own: BTreeMap<String, u64>,
    /// Misses of programs that several events share; they cannot be assigned to one event.
    pub shared: u64,
}

impl Missed {
    /// Adds the misses of another run.
    pub fn add(&mut self, run: &Self) {
        add(&mut self.own, &run.own);
        self.shared += run.shared;
    }

    /// Misses of shared programs only.
    pub fn shared(shared: u64) -> Self {
        Self { own: BTreeMap::new(), shared }
    }

    /// The kernel's counts of the programs that a process holds. A link names its attach point: at raw tracepoints
    /// always, at perf tracepoints from 6.16 on. `total` is the process's own count of all misses.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn of_process(pid: u32, total: u64) -> std::io::Result<Self> {
        let (mut misses, mut names) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, BTreeSet<String>>::new());
        for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            // The process may close a descriptor during the loop.
            let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
            let value = |key: &str| text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim()));
            let number = |key: &str| value(key).and_then(|number| number.parse::<u64>().ok());
            let Some(id) = number("prog_id:") else { continue };
            if let Some(count) = number("recursion_misses:") {
                misses.insert(id, count);
            } else if value("link_type:").is_some() {
                let name = value("tp_name:").unwrap_or_default();
                names.entry(id).or_default().insert(name.to_owned());
            }
        }
        let mut own = BTreeMap::<String, u64>::new();
        for (id, count) in misses {
            let Some(names) = names.get(&id) else { continue };
            // The program of all system calls serves many events.
            let mut only = names.iter().filter(|_| names.len() == 1);
            if let Some(name) = only.next().filter(|name| !name.is_empty() && !SHARING.contains(&&***name)) {
                *own.entry(name.clone()).or_default() += count;
            }
        }
        Ok(Self { shared: total.saturating_sub(own.values().sum()), own })
    }

    /// The misses in the closing counts of a recording: per event, and the remainder of the total.
    pub fn of(counts: &BTreeMap<String, Counts>) -> Self {
        let name = |full: &String| full.split_once(':').map(|(_, name)| name.to_owned());
        let own: BTreeMap<String, u64> =
            counts.iter().filter_map(|(full, counts)| Some((name(full)?, counts.missed))).collect();
        let total = counts.get("total").map_or(0, |counts| counts.missed);
        Self { shared: total.saturating_sub(own.values().sum()), own }
    }
}

/// Adds the numbers of a map to those of another one.
fn add<K: Ord + Clone>(sums: &mut BTreeMap<K, u64>, more: &BTreeMap<K, u64>) {
    for (key, number) in more {
        *sums.entry(key.clone()).or_default() += number;
    }
}

/// Accumulates runs until all shares of lines are known ([`Comparison::unknown`]). `run` compares one run, and each
/// run must be accounted for. `more` returns what else the runs so far do not show.
///
/// # Errors
/// If a run fails, has unexplained differences, or [`RUNS`] runs do not suffice.
pub fn until_known(
    mut run: impl FnMut() -> Result<(Comparison, Missed)>,
    more: impl Fn(&Comparison) -> Vec<String>,
) -> Result<Comparison> {
    let (mut all, mut all_missed) = (Comparison::default(), Missed::default());
    loop {
        let (result, missed) = run()?;
        ensure!(result.accounted_for(&missed), "{missed:?}: {result}");
        all.add(result);
        all_missed.add(&missed);
        let mut unknown = all.unknown(&all_missed);
        unknown.extend(more(&all));
        if unknown.is_empty() {
            return Ok(all);
        }
        println!("after {} runs: {}", all.runs, unknown.join("; "));
        if all.runs >= RUNS {
            bail!("not known after {} runs: {}\n{all_missed:?}: {all}", all.runs, unknown.join("; "));
        }
    }
}

/// A process and all processes that it forked, according to the trace.
pub fn family(root: u32, trace: &Trace) -> BTreeSet<i32> {
    let mut pids = BTreeSet::from([root as i32]);
    for line in &trace.lines {
        if line.event() == "sched_process_fork"
            && pids.contains(&line.pid)
            && let Some((_, child)) = line.text.rsplit_once("child_pid=")
            && let Ok(child) = child.trim().parse()
        {
            pids.insert(child);
        }
    }
    pids
}

/// Compares the lines of these threads.
pub fn compare(kernel: &Trace, ours: &Trace, pids: &BTreeSet<i32>) -> Comparison {
    let mut result = Comparison { runs: 1, ..Comparison::default() };
    let interrupts = Interrupts::of([kernel, ours]);
    let (theirs, mine) = (contexts(kernel, pids, &mut result), contexts(ours, pids, &mut result));
    let keys: BTreeSet<_> = theirs.keys().chain(mine.keys()).collect();
    for key in keys {
        let empty = Vec::new();
        let (theirs, mine) = (theirs.get(key).unwrap_or(&empty), mine.get(key).unwrap_or(&empty));
        walk(theirs, mine, &interrupts, &mut result);
    }
    result
}

/// The times of the lines of hard interrupts, by CPU.
struct Interrupts(BTreeMap<u32, BTreeSet<u64>>);

impl Interrupts {
    fn of(traces: [&Trace; 2]) -> Self {
        let mut times = BTreeMap::<u32, BTreeSet<u64>>::new();
        for line in traces.iter().flat_map(|trace| &trace.lines) {
            if "hHzZ".contains(line.flags.at(2)) {
                times.entry(line.cpu).or_default().insert(line.time);
            }
        }
        Self(times)
    }

    /// Whether the CPU has such a line between two times.
    fn any(&self, cpu: u32, from: u64, to: u64) -> bool {
        let resolution = RESOLUTION.unsigned_abs();
        let range = from.saturating_sub(resolution)..=to.saturating_add(resolution);
        self.0.get(&cpu).is_some_and(|times| times.range(range).next().is_some())
    }
}

/// The key within which lines have an order: thread, CPU, context, and whether the event shares its tracepoint.
type Context = (i32, u32, char, bool);

/// The lines of each thread on each CPU in each context.
fn contexts<'a>(
    trace: &'a Trace,
    pids: &BTreeSet<i32>,
    result: &mut Comparison,
) -> BTreeMap<Context, Vec<&'a Line>> {
    let mut contexts: BTreeMap<_, Vec<&Line>> = BTreeMap::new();
    // The events of the last switch of each context.
    let mut switching = BTreeMap::<Context, BTreeSet<&str>>::new();
    for line in trace.lines.iter().filter(|line| pids.contains(&line.pid)) {
        let event = line.event();
        let key = (line.pid, line.cpu, line.flags.at(2), SHARING.contains(&event.as_str()));
        let lines = contexts.entry(key).or_default();
        let aside = switching.entry(key).or_default();
        let is_switching = SWITCHING.iter().find(|(name, text)| *name == event && line.text.contains(text));
        if let Some((name, _)) = is_switching
            && lines.last().is_some_and(|line| line.event() == "sched_switch")
            && aside.insert(name)
        {
            result.set_aside(Rule::Switching);
            continue;
        }
        aside.clear();
        lines.push(line);
    }
    contexts
}

/// Pairs two sequences. A line between two pairs is missing, extra, or the same event at the same position with
/// another text.
fn walk<'a>(kernel: &[&'a Line], ours: &[&'a Line], interrupts: &Interrupts, result: &mut Comparison) {
    let mut numbers = BTreeMap::new();
    let mut number = |line: &&Line| {
        let next = numbers.len();
        *numbers.entry(line.event()).or_insert(next)
    };
    // Event numbers are cheaper to compare than texts, and most lines differ in their event.
    let events: [Vec<usize>; 2] =
        [kernel.iter().map(&mut number).collect(), ours.iter().map(number).collect()];
    let same = |k: usize, o: usize| events[0][k] == events[1][o] && same(kernel[k], ours[o]);
    let mut pairs = align::pairs(kernel.len(), ours.len(), same);
    let apart = |k: usize, o: usize| kernel[k].time.abs_diff(ours[o].time);
    align::nearer(&mut pairs, (kernel.len(), ours.len()), same, apart);
    // An interrupt between the two sides' handling of a hit changes the order.
    let is_crossed = |k: usize, o: usize| {
        let jumped = pairs.iter().filter(|(other_k, other_o)| (*other_k < k) != (*other_o < o));
        let times = jumped.copied().chain([(k, o)]).flat_map(|(k, o)| [kernel[k].time, ours[o].time]);
        let (from, to) = times.fold((u64::MAX, 0), |(from, to), time| (from.min(time), to.max(time)));
        same(k, o) && (columns::preempts_programs() || interrupts.any(kernel[k].cpu, from, to))
    };
    let crossed = crossed(&pairs, (kernel.len(), ours.len()), is_crossed);
    for (k, o) in &crossed {
        result.set_aside(Rule::Crossed);
        result.crossings.push(format!("kernel: {}\nours:   {}", show(kernel[*k]), show(ours[*o])));
    }
    let left = |lines: &[&'a Line],
                range: Range<usize>,
                is_crossed: &dyn Fn(usize) -> bool|
     -> Vec<&'a Line> { range.filter(|at| !is_crossed(*at)).map(|at| lines[at]).collect() };
    let (mut k, mut o, mut before) = (0, 0, None);
    for (at, (next_k, next_o)) in pairs.iter().copied().chain([(kernel.len(), ours.len())]).enumerate() {
        let theirs = left(kernel, k..next_k, &|at| crossed.iter().any(|(k, _)| *k == at));
        let mine = left(ours, o..next_o, &|at| crossed.iter().any(|(_, o)| *o == at));
        gap(&theirs, &mine, result);
        if let (Some(theirs), Some(mine)) = (kernel.get(next_k), ours.get(next_o)) {
            *result.equal.entry(theirs.event()).or_default() += 1;
            if let Some(rule) = differs_by(theirs, mine) {
                result.set_aside(rule);
            }
            let times = (theirs.time, mine.time);
            if let Some(before) = before.replace(times) {
                result.offsets.take(before, times);
            }
            let after = pairs.get(at + 1).map_or((kernel.len(), ours.len()), |after| *after);
            // The other side may have lost this hit, and another equal hit was paired instead. The columns of two
            // hits may differ.
            let others = (k..next_k).chain(next_k + 1..after.0).any(|k| same(k, next_o))
                || (o..next_o).chain(next_o + 1..after.1).any(|o| same(next_k, o));
            if others {
                result.set_aside(Rule::Ambiguous);
            } else {
                // Interrupts since the previous pair and until the next one.
                let from =
                    at.checked_sub(1).map_or(0, |at| kernel[pairs[at].0].time.max(ours[pairs[at].1].time));
                let to = pairs.get(at + 1).map_or(u64::MAX, |(k, o)| kernel[*k].time.min(ours[*o].time));
                result.columns.take(theirs, mine, interrupts.any(theirs.cpu, from, to));
            }
        }
        (k, o) = (next_k + 1, next_o + 1);
    }
}

/// The unpaired elements that are equal but in another order, by index; each is in one of these pairs at most. Equal
/// elements between the same two pairs would be a pair.
fn crossed(
    pairs: &[(usize, usize)],
    lengths: (usize, usize),
    is_crossed: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let paired: (BTreeSet<usize>, BTreeSet<usize>) = pairs.iter().copied().unzip();
    let mut others: Vec<usize> = (0..lengths.1).filter(|o| !paired.1.contains(o)).collect();
    let mut crossed = Vec::new();
    for k in (0..lengths.0).filter(|k| !paired.0.contains(k)) {
        if let Some(at) = others.iter().position(|o| is_crossed(k, *o)) {
            crossed.push((k, others.remove(at)));
        }
    }
    crossed
}

/// Handles the lines between two pairs.
fn gap(kernel: &[&Line], ours: &[&Line], result: &mut Comparison) {
    let mut ours = ours.iter().peekable();
    for theirs in kernel {
        match ours.next_if(|mine| mine.event() == theirs.event()) {
            Some(mine) => {
                result.different += 1;
                result.note(theirs.event(), format!("kernel: {}\nours:   {}", show(theirs), show(mine)));
            }
            None => result.missing(theirs),
        }
    }
    ours.for_each(|line| result.extra(line));
}

fn same(kernel: &Line, ours: &Line) -> bool {
    kernel.cpu == ours.cpu
        && (kernel.text == ours.text || differs_by(kernel, ours).is_some())
        && READABLE.iter().all(|place| kernel.flags.at(*place) == ours.flags.at(*place))
}

fn show(line: &Line) -> String {
    format!("{}-{} [{:03}] {} {}", line.comm, line.pid, line.cpu, line.flags.0, line.text)
}

#[cfg(test)]
mod tests;
