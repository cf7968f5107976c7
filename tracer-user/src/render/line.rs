//! Lines of a `trace` file: the context before an event's text, and the header.
//!
//! `print_trace_line()` and its callees in kernel/trace/trace.c and trace_output.c, as pure functions of the options,
//! the record and the saved tasks.

use super::env::RenderEnv;
use super::latency::{self, Position};
use super::printer::Printer;
use super::printf::number::{self, decimal, decimal_padded, repeat};
use super::printf::spec::Spec;
use crate::kernel::Change;
use tracer_abi::flags;

/// The trace options that affect a line. The defaults are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Options {
    /// `irq-info`: the five characters of latency flags.
    pub irq_info: bool,
    /// `context-info`: the context before the event, and the header.
    pub context_info: bool,
    /// `record-tgid`: the thread group after the pid.
    pub print_tgid: bool,
    /// `raw`
    pub raw: bool,
    /// `hex`, which overrides `raw`.
    pub hex: bool,
    /// `bin`, which overrides both.
    pub bin: bool,
    /// `fields`
    pub fields: bool,
    /// `verbose`: no column header, and types of syscall arguments.
    pub verbose: bool,
    /// `sym-offset`: the offset of an address from its symbol's start, in stacks and marks.
    pub sym_offset: bool,
    /// `sym-addr`: the address after the symbol.
    pub sym_addr: bool,
    /// `sym-userobj`: the file mapped at a user space address.
    pub sym_userobj: bool,
    /// Whether the trace clock counts nanoseconds; other clocks print as plain counts.
    pub in_ns: bool,
    /// `latency-format`, with the record's position.
    pub latency: Option<Position>,
    /// Whether flag bit 0x02 means a lazy reschedule (6.13 and later) or "irq state unknown".
    pub lazy_flag: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            irq_info: true,
            context_info: true,
            print_tgid: false,
            raw: false,
            hex: false,
            bin: false,
            fields: false,
            verbose: false,
            sym_offset: false,
            sym_addr: false,
            sym_userobj: false,
            in_ns: true,
            latency: None,
            lazy_flag: true,
        }
    }
}

impl Options {
    /// The default options on a kernel of this version.
    pub fn for_kernel(version: (u32, u32)) -> Self {
        Self { lazy_flag: Change::LazyFlag.is_in(version), ..Self::default() }
    }
}

/// Saved names and process ids of tasks: `saved_cmdlines` and `saved_tgids`.
pub trait Tasks {
    /// The saved name of a thread.
    fn comm(&self, pid: i32) -> Option<&[u8]>;

    /// The process of a thread.
    fn tgid(&self, _pid: i32) -> Option<i32> {
        None
    }

    /// A number that changes when a name changes; `None` if names may change without notice.
    fn version(&self) -> Option<u64> {
        None
    }
}

impl Tasks for () {
    fn comm(&self, _pid: i32) -> Option<&[u8]> {
        None
    }
}

/// CPU and time of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// CPU number.
    pub cpu: u32,
    /// Trace clock time; in nanoseconds if [`Options::in_ns`] is set.
    pub time: u64,
}

/// The common fields of a record; a missing byte reads as zero.
pub(super) struct Entry {
    kind: u16,
    pub(super) flags: u8,
    pub(super) preempt_count: u8,
    pub(super) pid: i32,
}

impl Entry {
    #[inline]
    pub(super) fn of(record: &[u8]) -> Self {
        let head: [u8; 8] = super::printf::pointer::take(record);
        Self {
            kind: u16::from_ne_bytes([head[0], head[1]]),
            flags: head[2],
            preempt_count: head[3],
            pid: i32::from_ne_bytes([head[4], head[5], head[6], head[7]]),
        }
    }

    /// The fields that the context shows, in one number.
    #[inline]
    pub(super) fn context(&self) -> u64 {
        u64::from(self.pid.cast_unsigned()) << 16 | u64::from(self.flags) << 8 | u64::from(self.preempt_count)
    }
}

/// Writes one record as the kernel's `trace` shows it, newline included.
pub fn line(
    out: &mut Vec<u8>,
    options: &Options,
    printer: &Printer,
    record: &[u8],
    stamp: Stamp,
    tasks: &dyn Tasks,
    env: &dyn RenderEnv,
) {
    if options.bin || options.hex {
        return plain(out, options, record, stamp);
    }
    lead(out, options, record, stamp, tasks);
    if options.raw {
        return kind(out, record);
    }
    if options.fields {
        printer.event_fields(record, env, out);
    } else {
        printer.event(record, env, options.verbose, out);
    }
    out.push(b'\n');
}

/// Writes a record with the options `bin` or `hex`, for which no event has its own format.
pub fn plain(out: &mut Vec<u8>, options: &Options, record: &[u8], stamp: Stamp) {
    plain_lead(out, options, &Entry::of(record), stamp);
    kind(out, record);
    if !options.bin {
        out.push(b'\n');
    }
}

/// Writes the context with the options `bin` or `hex`.
fn plain_lead(out: &mut Vec<u8>, options: &Options, entry: &Entry, stamp: Stamp) {
    if !options.context_info {
        return;
    }
    if options.bin {
        out.extend_from_slice(&entry.pid.to_ne_bytes());
        out.extend_from_slice(&stamp.cpu.to_ne_bytes());
        out.extend_from_slice(&stamp.time.to_ne_bytes());
    } else {
        out.extend(format!("{:08x} {:08x} {:016x} ", entry.pid, stamp.cpu, stamp.time).bytes());
    }
}

/// Writes a record whose event does not exist (`print_trace_fmt()`, `print_raw_fmt()`, `print_hex_fmt()` and
/// `print_bin_fmt()`, kernel/trace/trace.c).
pub fn unknown(out: &mut Vec<u8>, options: &Options, record: &[u8], stamp: Stamp, tasks: &dyn Tasks) {
    let entry = Entry::of(record);
    if options.bin || options.hex {
        plain_lead(out, options, &entry, stamp);
        if options.hex && !options.bin {
            out.push(b'\n');
        }
        return;
    }
    lead(out, options, record, stamp, tasks);
    let kind = entry.kind;
    let text = if options.raw { format!("{kind} ?\n") } else { format!("Unknown type {kind}\n") };
    out.extend_from_slice(text.as_bytes());
}

/// Writes the context before an event's text, in `raw` or readable form.
pub fn lead(out: &mut Vec<u8>, options: &Options, record: &[u8], stamp: Stamp, tasks: &dyn Tasks) {
    if !options.context_info {
        return;
    }
    let entry = Entry::of(record);
    if !options.raw {
        return match options.latency {
            Some(position) => latency::context(out, options, &entry, stamp, position, tasks),
            None => context(out, options, &entry, stamp, tasks),
        };
    }
    out.extend(format!("{} {} {} ", entry.pid, stamp.cpu, stamp.time).bytes());
}

/// Trace events have no own format for `raw`, `hex` and `bin` (`trace_nop_print()`).
pub(super) fn kind(out: &mut Vec<u8>, record: &[u8]) {
    out.extend(format!("type: {}\n", Entry::of(record).kind).bytes());
}

/// `ns2usecs()`, which rounds to the nearest microsecond.
pub(super) fn micros(ns: u64) -> u64 {
    ns.saturating_add(500) / 1000
}

fn context(out: &mut Vec<u8>, options: &Options, entry: &Entry, stamp: Stamp, tasks: &dyn Tasks) {
    before_time(out, options, entry, stamp.cpu, tasks);
    if options.in_ns {
        let micros = micros(stamp.time);
        decimal_padded(out, micros / 1_000_000, 5, b' ');
        out.push(b'.');
        decimal_padded(out, micros % 1_000_000, 6, b'0');
    } else {
        decimal_padded(out, stamp.time, 12, b' ');
    }
    out.extend_from_slice(b": ");
}

/// Writes the part of the context before the time.
pub(super) fn before_time(out: &mut Vec<u8>, options: &Options, entry: &Entry, cpu: u32, tasks: &dyn Tasks) {
    let comm = comm(entry.pid, tasks);
    repeat(out, b' ', 16usize.saturating_sub(comm.len()));
    out.extend_from_slice(comm);
    out.push(b'-');
    let start = out.len();
    decimal(out, entry.pid);
    number::widen(out, start, Spec { left: true, width: 7, ..Spec::PLAIN });
    out.push(b' ');
    if options.print_tgid {
        match tasks.tgid(entry.pid).filter(|tgid| *tgid != 0) {
            Some(tgid) => {
                out.push(b'(');
                decimal_padded(out, tgid as u64, 7, b' ');
                out.extend_from_slice(b") ");
            }
            None => out.extend_from_slice(b"(-------) "),
        }
    }
    out.push(b'[');
    decimal_padded(out, cpu, 3, b'0');
    out.extend_from_slice(b"] ");
    if options.irq_info {
        out.extend_from_slice(&latency_flags(entry.flags, entry.preempt_count, options.lazy_flag));
    }
    out.push(b' ');
}

/// The name shown for a thread (`__trace_find_cmdline()`).
pub fn comm(pid: i32, tasks: &dyn Tasks) -> &[u8] {
    match pid {
        0 => b"<idle>",
        ..0 => b"<XXX>",
        _ => tasks.comm(pid).unwrap_or(b"<...>"),
    }
}

/// The characters for irqs-off, need-resched, hard and soft interrupt, preempt depth and migrate-disable depth.
pub fn latency_flags(bits: u8, preempt_count: u8, lazy_flag: bool) -> [u8; 5] {
    let has = |bit: u8| bits & bit != 0;
    let irqs_off = match (has(flags::IRQS_OFF), has(flags::BH_OFF)) {
        (true, true) => b'D',
        (true, false) => b'd',
        (false, true) => b'b',
        (false, false) if !lazy_flag && has(flags::NEED_RESCHED_LAZY) => b'X',
        (false, false) => b'.',
    };
    let lazy = lazy_flag && has(flags::NEED_RESCHED_LAZY);
    let resched = match (has(flags::NEED_RESCHED), has(flags::PREEMPT_RESCHED), lazy) {
        (true, true, true) => b'B',
        (true, true, false) => b'N',
        (false, true, true) => b'L',
        (true, false, true) => b'b',
        (true, false, false) => b'n',
        (false, true, false) => b'p',
        (false, false, true) => b'l',
        (false, false, false) => b'.',
    };
    let irq = match (has(flags::NMI), has(flags::HARDIRQ), has(flags::SOFTIRQ)) {
        (true, true, _) => b'Z',
        (true, false, _) => b'z',
        (false, true, true) => b'H',
        (false, true, false) => b'h',
        (false, false, true) => b's',
        (false, false, false) => b'.',
    };
    let depth = |nibble: u8| match nibble {
        0 => b'.',
        1..=9 => b'0' + nibble,
        _ => b'a' + (nibble - 10),
    };
    [irqs_off, resched, irq, depth(preempt_count & 15), depth(preempt_count >> 4)]
}

/// Information about the buffer for the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferInfo {
    /// Records in the buffer.
    pub entries: u64,
    /// Records ever written to it.
    pub written: u64,
    /// Online CPUs.
    pub cpus: u32,
}

/// Writes the header of a `trace` file.
pub fn header(out: &mut Vec<u8>, options: &Options, info: BufferInfo) {
    out.extend_from_slice(b"# tracer: nop\n#\n");
    if !options.context_info || options.verbose {
        return;
    }
    let BufferInfo { entries, written, cpus } = info;
    let text = format!("# entries-in-buffer/entries-written: {entries}/{written}   #P:{cpus}\n#\n");
    out.extend_from_slice(text.as_bytes());
    let tgid = options.print_tgid;
    if !options.irq_info {
        let (name, bar) = if tgid { ("   TGID   ", "     |    ") } else { ("", "") };
        let text = format!(
            "#           TASK-PID    {name} CPU#     TIMESTAMP  FUNCTION\n\
             #              | |      {bar}   |         |         |\n"
        );
        return out.extend_from_slice(text.as_bytes());
    }
    let shift = " ".repeat(if tgid { 12 } else { 2 });
    for text in [
        " _-----=> irqs-off/BH-disabled",
        "/ _----=> need-resched",
        "| / _---=> hardirq/softirq",
        "|| / _--=> preempt-depth",
        "||| / _-=> migrate-disable",
        "|||| /     delay",
    ] {
        // The first two lines are indented by one more column.
        let gap = if text.starts_with([' ', '/']) { " " } else { "" };
        out.extend_from_slice(format!("#                            {shift}{gap}{text}\n").as_bytes());
    }
    let (name, bar) = if tgid { ("     TGID   ", "       |    ") } else { ("  ", "  ") };
    let text = format!(
        "#           TASK-PID  {name} CPU#  |||||  TIMESTAMP  FUNCTION\n\
         #              | |    {bar}   |   |||||     |         |\n"
    );
    out.extend_from_slice(text.as_bytes());
}

/// Writes the line that reports records that a reader lost on a CPU.
pub fn lost(out: &mut Vec<u8>, cpu: u32, records: u64) {
    out.extend_from_slice(format!("CPU:{cpu} [LOST {records} EVENTS]\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Format;

    struct Names;

    impl Tasks for Names {
        fn comm(&self, pid: i32) -> Option<&[u8]> {
            (pid == 14928).then_some(b"sh")
        }

        fn tgid(&self, pid: i32) -> Option<i32> {
            (pid == 14928).then_some(77)
        }
    }

    fn show(options: Options, pid: i32, bits: u8) -> String {
        let format = Format::parse(
            "sched",
            "name: ev\nID: 313\nformat:\n\tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n\nprint fmt: \"a=%d\", REC->a\n",
        )
        .unwrap();
        let mut record = 313u16.to_ne_bytes().to_vec();
        record.extend([bits, 0x12]);
        record.extend(pid.to_ne_bytes());
        record.extend(5i32.to_ne_bytes());
        let mut out = Vec::new();
        let stamp = Stamp { cpu: 1, time: 1_526_933_272_500 };
        line(&mut out, &options, &Printer::compile(&format, &()), &record, stamp, &Names, &());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn contexts() {
        let base = Options::default();
        insta::assert_snapshot!([
            show(base, 14928, 0),
            show(base, 0, flags::IRQS_OFF | flags::NEED_RESCHED | flags::PREEMPT_RESCHED | flags::SOFTIRQ),
            show(base, 7, flags::BH_OFF | flags::NEED_RESCHED_LAZY),
            show(Options::for_kernel((6, 12)), -1, flags::NEED_RESCHED_LAZY | flags::NMI | flags::HARDIRQ),
            show(Options { print_tgid: true, ..base }, 14928, 0),
            show(Options { print_tgid: true, irq_info: false, ..base }, 1_000_000, 0),
            show(Options { in_ns: false, fields: true, ..base }, 14928, 0),
            show(Options { context_info: false, ..base }, 14928, 0),
            show(Options { raw: true, ..base }, 14928, 0),
            show(Options { hex: true, ..base }, 14928, 0),
        ]
        .concat(), @"
                      sh-14928   [001] ...21  1526.933273: ev: a=5
                  <idle>-0       [001] dNs21  1526.933273: ev: a=5
                   <...>-7       [001] bl.21  1526.933273: ev: a=5
                   <XXX>--1      [001] X.Z21  1526.933273: ev: a=5
                      sh-14928   (     77) [001] ...21  1526.933273: ev: a=5
                   <...>-1000000 (-------) [001]   1526.933273: ev: a=5
                      sh-14928   [001] ...21 1526933272500: ev: a=0x5 (5)
        ev: a=5
        14928 1 1526933272500 type: 313
        00003a50 00000001 000001638450b7b4 type: 313
        ");
    }

    #[test]
    fn records_without_an_event() {
        let base = Options::default();
        let show = |options: Options| {
            let record = [0x39, 1, 0, 0x12, 0x50, 0x3a, 0, 0, 5, 0, 0, 0];
            let mut out = Vec::new();
            unknown(&mut out, &options, &record, Stamp { cpu: 1, time: 1_526_933_272_500 }, &Names);
            out
        };
        let texts = [
            base,
            Options { fields: true, context_info: false, ..base },
            Options { raw: true, ..base },
            Options { hex: true, ..base },
        ];
        insta::assert_snapshot!(String::from_utf8(texts.map(show).concat()).unwrap(), @"
                      sh-14928   [001] ...21  1526.933273: Unknown type 313
        Unknown type 313
        14928 1 1526933272500 313 ?
        00003a50 00000001 000001638450b7b4
        ");
        assert_eq!(show(Options { bin: true, ..base }).len(), 16);
        assert!(show(Options { bin: true, context_info: false, ..base }).is_empty());
    }

    #[test]
    fn headers() {
        let show = |options| {
            let mut out = Vec::new();
            header(&mut out, &options, BufferInfo { entries: 10, written: 12, cpus: 2 });
            String::from_utf8(out).unwrap()
        };
        let base = Options::default();
        insta::assert_snapshot!(show(base), @"
        # tracer: nop
        #
        # entries-in-buffer/entries-written: 10/12   #P:2
        #
        #                                _-----=> irqs-off/BH-disabled
        #                               / _----=> need-resched
        #                              | / _---=> hardirq/softirq
        #                              || / _--=> preempt-depth
        #                              ||| / _-=> migrate-disable
        #                              |||| /     delay
        #           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
        #              | |         |   |||||     |         |
        ");
        insta::assert_snapshot!(show(Options { irq_info: false, print_tgid: true, ..base }), @"
        # tracer: nop
        #
        # entries-in-buffer/entries-written: 10/12   #P:2
        #
        #           TASK-PID       TGID    CPU#     TIMESTAMP  FUNCTION
        #              | |           |       |         |         |
        ");
        insta::assert_snapshot!(show(Options { context_info: false, ..base }), @"
        # tracer: nop
        #
        ");
    }
}
