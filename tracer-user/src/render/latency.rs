//! Lines and header of `trace` with the option `latency-format`: times since the buffer was cleared, and a mark for a
//! long delay until the next record.
//!
//! `trace_print_lat_context()` and `print_trace_header()` in kernel/trace, as pure functions.

use super::{
    line::{BufferInfo, Entry, Options, Stamp, Tasks, comm, latency_flags, micros},
    printf::number::{decimal_padded, repeat},
};

/// A record's position in the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Trace clock time when the buffer was last cleared.
    pub start: u64,
    /// Time of the next record; the record's own time if it is the last.
    pub next: u64,
    /// Number of the record.
    pub index: u64,
}

/// Delays in microseconds above which a mark is printed (`trace_find_mark()`).
const MARKS: [(u64, u8); 6] =
    [(1_000_000, b'$'), (100_000, b'@'), (10_000, b'*'), (1000, b'#'), (100, b'!'), (10, b'+')];

/// Writes the context before an event's text.
pub(super) fn context(
    out: &mut Vec<u8>,
    options: &Options,
    entry: &Entry,
    stamp: Stamp,
    position: Position,
    tasks: &dyn Tasks,
) {
    let comm = comm(entry.pid, tasks);
    let since = stamp.time.wrapping_sub(position.start);
    let wait = position.next.wrapping_sub(stamp.time);
    let (since, wait) = if options.in_ns { (micros(since), micros(wait)) } else { (since, wait) };
    if options.verbose {
        let (flags, depth) = (entry.flags, entry.preempt_count & 15);
        repeat(out, b' ', 16usize.saturating_sub(comm.len()));
        out.extend_from_slice(comm);
        let (cpu, index) = (stamp.cpu, position.index);
        out.extend(format!(" {:7} {cpu:3} {flags} {depth:08x} {index:08x} ", entry.pid).bytes());
        let times = if options.in_ns {
            let split = |micros: u64| format!("{}.{:03}ms", micros / 1000, micros % 1000);
            format!("[{:08x}] {} (+{}): ", micros(stamp.time), split(since), split(wait))
        } else {
            format!("[{:016x}] {since} (+{wait}): ", stamp.time)
        };
        return out.extend_from_slice(times.as_bytes());
    }
    let comm = comm.get(..8).unwrap_or(comm);
    repeat(out, b' ', 8 - comm.len());
    out.extend_from_slice(comm);
    out.extend(format!("-{:<7} {:3}", entry.pid, stamp.cpu).bytes());
    out.extend_from_slice(&latency_flags(entry.flags, entry.preempt_count, options.lazy_flag));
    out.push(b' ');
    decimal_padded(out, since, 4, b' ');
    if options.in_ns {
        out.extend_from_slice(b"us");
        out.push(MARKS.iter().find(|(least, _)| wait > *least).map_or(b' ', |(_, mark)| *mark));
    }
    out.extend_from_slice(b": ");
}

/// Writes the header above the lines; without records only its first two lines. `release` is the kernel's release,
/// `preemption` its preemption model in the words of this header.
pub fn header(out: &mut Vec<u8>, options: &Options, info: BufferInfo, release: &str, preemption: &str) {
    out.extend_from_slice(b"# tracer: nop\n#\n");
    if !options.context_info || info.entries == 0 {
        return;
    }
    let line = "-".repeat(68);
    out.extend(format!("# nop latency trace v1.1.5 on {release}\n# {line}\n").bytes());
    let BufferInfo { entries, written, cpus } = info;
    out.extend(format!("# latency: 0 us, #{entries}/{written}, CPU#0 | ").bytes());
    out.extend(format!("(M:{preemption} VP:0, KP:0, SP:0 HP:0 #P:{cpus})\n").bytes());
    let rule = format!("#    {}\n", "-".repeat(17));
    // The task with the latency; the tracer `nop` has none.
    let task = "#    | task: -0 (uid:0 nice:0 policy:0 rt_prio:0)\n";
    out.extend(format!("{rule}{task}{rule}#\n").bytes());
    if options.verbose {
        return;
    }
    // The kernel pads these lines with spaces.
    for text in [
        "                   _------=> CPU#            ",
        "                  / _-----=> irqs-off/BH-disabled",
        "                 | / _----=> need-resched    ",
        "                 || / _---=> hardirq/softirq ",
        "                 ||| / _--=> preempt-depth   ",
        "                 |||| / _-=> migrate-disable ",
        "                 ||||| /     delay           ",
        " cmd     pid     |||||| time  |   caller     ",
        "    \\   /        ||||||  \\    |    /       ",
    ] {
        out.extend(format!("# {text}\n").bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names;

    impl Tasks for Names {
        fn comm(&self, _: i32) -> Option<&[u8]> {
            Some(b"long-name-of-it")
        }
    }

    fn show(options: Options, time: u64, position: Position) -> String {
        let mut record = 313u16.to_ne_bytes().to_vec();
        record.extend([1, 0x12]);
        record.extend(19004_i32.to_ne_bytes());
        let mut out = Vec::new();
        context(&mut out, &options, &Entry::of(&record), Stamp { cpu: 1, time }, position, &Names);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_the_kernels() {
        let base = Options::default();
        let at = |next| Position { start: 1_000_000, next, index: 11 };
        for (wait_us, mark) in [(0, ' '), (10, ' '), (11, '+'), (101, '!'), (1001, '#'), (2_000_000, '$')] {
            let line = show(base, 5_000_400, at(5_000_400 + wait_us * 1000));
            assert_eq!(line, format!("long-nam-19004     1d..21 4000us{mark}: "));
        }
        let verbose = Options { verbose: true, ..base };
        assert_eq!(
            show(verbose, 931_675_298_000, Position { start: 0, next: 931_675_325_000, index: 11 }),
            " long-name-of-it   19004   1 1 00000002 0000000b [37883ca2] 931675.298ms (+0.027ms): "
        );
        let counts = Options { in_ns: false, ..base };
        assert_eq!(
            show(counts, 7, Position { start: 1, next: 8, index: 3 }),
            "long-nam-19004     1d..21    6: "
        );
        assert_eq!(
            show(Options { verbose: true, ..counts }, 7, Position { start: 1, next: 8, index: 3 }),
            " long-name-of-it   19004   1 1 00000002 00000003 [0000000000000007] 6 (+1): "
        );
    }
}
