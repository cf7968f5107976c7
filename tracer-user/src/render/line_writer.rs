//! Lines of a `trace` file, for a caller that writes many.
//!
//! The context before the time depends on the thread, the CPU and the flags, and the seconds change rarely. Both are
//! kept as text.

use super::{
    env::RenderEnv,
    latency::Position,
    line::{self, Entry, Options, Stamp, Tasks},
    printer::Printer,
    printf::pointer::take,
    record::RecordView,
    text_buffer::TextBuffer,
};

/// Lines before contexts are kept: the memory for them costs as much as some lines, and many readers want only a few.
const LINES_BEFORE: u32 = 16;
/// Number of kept contexts: one for each value of the high byte of a hash.
const PREFIXES: usize = 256;
/// Maximum length of a kept context. It is 38 bytes unless a number has more digits than its column.
const PREFIX_MAX: usize = 48;

/// The CPU of a [`Prefix`] that is none.
const NO_CPU: u32 = u32::MAX;

/// The context before the time, by what it depends on.
#[derive(Clone, Debug)]
struct Prefix {
    /// [`Entry::context`].
    context: u64,
    cpu: u32,
    length: u8,
    /// [`Tasks::version`] when it was made.
    version: u64,
    text: [u8; PREFIX_MAX],
}

impl Prefix {
    const NONE: Self = Self { context: 0, cpu: NO_CPU, length: 0, version: 0, text: [0; PREFIX_MAX] };
}

/// The seconds of a time, with the space before them and the dot.
#[derive(Clone, Copy, Debug)]
struct Seconds {
    value: u64,
    text: [u8; 24],
    length: u8,
}

impl Seconds {
    fn of(value: u64) -> Self {
        let digits = format!("{value:5}.");
        Self { value, text: take(digits.as_bytes()), length: digits.len() as u8 }
    }
}

/// Writes lines with the same options.
///
/// The names of all lines must come from one [`Tasks`].
#[derive(Clone, Debug)]
pub struct LineWriter {
    options: Options,
    /// Whether the lines have the usual context and the event's usual text.
    is_usual: bool,
    /// Number of lines written while no contexts are kept.
    lines: u32,
    /// The kept contexts; none before [`LINES_BEFORE`] lines.
    prefixes: Vec<Prefix>,
    seconds: Seconds,
}

impl LineWriter {
    /// A writer with these options.
    pub fn new(options: Options) -> Self {
        let is_usual = options.context_info && options.in_ns && options.latency.is_none();
        let is_other = options.bin || options.hex || options.raw || options.fields || options.print_tgid;
        Self {
            options,
            is_usual: is_usual && !is_other,
            lines: 0,
            prefixes: Vec::new(),
            seconds: Seconds::of(0),
        }
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Sets the position of the next record, for `latency-format`.
    pub fn set_position(&mut self, position: Position) {
        self.options.latency = Some(position);
        self.is_usual = false;
    }

    /// Writes the line of a recording's record.
    pub fn record(&mut self, out: &mut TextBuffer, record: &RecordView<'_>) {
        let RecordView { stamp, payload, printer, tasks, env } = *record;
        self.line(out, printer, payload, stamp, tasks, env);
    }

    /// Writes one record as [`line::line`] does.
    pub fn line(
        &mut self,
        out: &mut TextBuffer,
        printer: &Printer,
        record: &[u8],
        stamp: Stamp,
        tasks: &dyn Tasks,
        env: &dyn RenderEnv,
    ) {
        let Some(version) = tasks.version().filter(|_| self.is_usual) else {
            return out.with(|out| line::line(out, &self.options, printer, record, stamp, tasks, env));
        };
        self.before_time(out, &Entry::of(record), stamp.cpu, tasks, version);
        self.time(out, stamp.time);
        printer.write_event(record, env, self.options.verbose, out);
        out.byte(b'\n');
    }

    #[inline]
    fn before_time(
        &mut self,
        out: &mut TextBuffer,
        entry: &Entry,
        cpu: u32,
        tasks: &dyn Tasks,
        version: u64,
    ) {
        let context = entry.context();
        // The high bits of the product depend on all bits.
        let hash = (context ^ u64::from(cpu) << 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let Some(prefix) = self.prefixes.get_mut((hash >> 56) as usize) else {
            return self.first_lines(out, entry, cpu, tasks);
        };
        if (prefix.context, prefix.cpu, prefix.version) != (context, cpu, version) {
            let mut made = Vec::with_capacity(PREFIX_MAX);
            line::before_time(&mut made, &self.options, entry, cpu, tasks);
            if made.len() > PREFIX_MAX {
                return out.bytes(&made);
            }
            *prefix = Prefix { context, cpu, length: made.len() as u8, version, text: take(&made) };
        }
        out.put(&prefix.text, usize::from(prefix.length));
    }

    /// Writes the context while none are kept.
    #[cold]
    fn first_lines(&mut self, out: &mut TextBuffer, entry: &Entry, cpu: u32, tasks: &dyn Tasks) {
        self.lines += 1;
        if self.lines >= LINES_BEFORE {
            self.prefixes.resize(PREFIXES, Prefix::NONE);
        }
        out.with(|out| line::before_time(out, &self.options, entry, cpu, tasks));
    }

    #[inline]
    fn time(&mut self, out: &mut TextBuffer, time: u64) {
        let micros = line::micros(time);
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        if self.seconds.value != seconds {
            self.seconds = Seconds::of(seconds);
        }
        out.put(&self.seconds.text, usize::from(self.seconds.length));
        out.micros(micros);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Format;

    /// Names that change with the version.
    struct Names(u64);

    impl Tasks for Names {
        fn comm(&self, pid: i32) -> Option<&[u8]> {
            let names: [&[u8]; 3] =
                [b"sh", b"kworker/u8:2-ev", b"a name that is longer than the kernel's are today"];
            names.get((pid as u64).wrapping_add(self.0) as usize % 4).copied()
        }

        fn tgid(&self, pid: i32) -> Option<i32> {
            (pid % 2 == 0).then_some(pid / 2)
        }

        fn version(&self) -> Option<u64> {
            Some(self.0)
        }
    }

    const FORMAT: &str = "name: ev\nID: 313\nformat:\n\
        \tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n\nprint fmt: \"a=%d\", REC->a\n";

    fn options() -> impl Strategy<Value = Options> {
        (any::<[bool; 8]>(), any::<bool>()).prop_map(|([a, b, c, d, e, f, g, h], is_usual)| {
            let all = Options { irq_info: a, lazy_flag: b, verbose: c, ..Options::default() };
            if is_usual {
                return all;
            }
            Options { context_info: d, print_tgid: e, raw: f, fields: g, in_ns: h, ..all }
        })
    }

    proptest! {
        #[test]
        fn lines_are_those_without_memory(
            options in options(),
            lines in prop::collection::vec(
                (-2..6_i32, 0..3_u32, prop_oneof![0..4_u8, any::<u8>()], any::<u8>(), 0..3_u64, any::<(u32, bool)>()),
                1..60,
            ),
        ) {
            let printer = Printer::compile(&Format::parse("sched", FORMAT).unwrap(), &());
            let mut writer = LineWriter::new(options);
            let (mut written, mut expected) = (TextBuffer::default(), Vec::new());
            for (pid, cpu, flags, preempt_count, version, (time, is_late)) in lines {
                let mut record = 313_u16.to_ne_bytes().to_vec();
                record.extend([flags, preempt_count]);
                record.extend(pid.to_ne_bytes());
                record.extend(time.to_ne_bytes());
                let time = if is_late { u64::MAX - u64::from(time) } else { u64::from(time) * 1000 };
                let stamp = Stamp { cpu: cpu * 700, time };
                let names = Names(version);
                writer.line(&mut written, &printer, &record, stamp, &names, &());
                line::line(&mut expected, &options, &printer, &record, stamp, &names, &());
            }
            prop_assert_eq!(String::from_utf8_lossy(written.text()), String::from_utf8_lossy(&expected));
        }
    }
}
