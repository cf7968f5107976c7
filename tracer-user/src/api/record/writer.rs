//! A sink that writes records as lines or JSON objects.

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use crate::render::{
    LineWriter, RecordSink, RecordStart, RecordView, Summary, TextBuffer, json,
    line::{self, BufferInfo, Options},
};

/// Bytes of text after which they are written.
const BATCH: usize = 64 * 1024;

/// The form of lines. Each option is the trace option of that name (Documentation/trace/ftrace.rst).
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)]
pub struct LineOptions {
    /// Whether the header with the names of the columns comes first. `bin` has none.
    pub header: bool,
    /// `irq-info`: the five characters of latency flags.
    pub irq_info: bool,
    /// `record-tgid`: the process of the thread. The recording must look it up
    /// ([`RecordingBuilder::tgid`](super::RecordingBuilder::tgid)).
    pub tgid: bool,
    /// `raw`
    pub raw: bool,
    /// `hex`, which overrides `raw`.
    pub hex: bool,
    /// `bin`, which overrides both.
    pub bin: bool,
    /// `fields`
    pub fields: bool,
}

impl Default for LineOptions {
    /// The defaults of the kernel, with a header.
    fn default() -> Self {
        Self { header: true, irq_info: true, tgid: false, raw: false, hex: false, bin: false, fields: false }
    }
}

/// Writes records as the lines of tracefs, or as JSON objects.
///
/// It writes when it has 64 KiB of text, when it is [flushed](Self::flush), and at the end of the recording. After an
/// error it takes no more records.
#[derive(Debug)]
pub struct RecordWriter<W> {
    to: W,
    text: TextBuffer,
    writer: LineWriter,
    is_json: bool,
    header: bool,
    /// Whether the output failed.
    is_broken: bool,
    /// Its error, until [`RecordWriter::flush`] returns it.
    error: Option<io::Error>,
}

impl<W: Write> RecordWriter<W> {
    /// Writes a line for each record, as a `trace` file has it.
    pub fn lines(to: W, options: LineOptions) -> Self {
        let LineOptions { header, irq_info, tgid, raw, hex, bin, fields } = options;
        let options = Options { irq_info, print_tgid: tgid, raw, hex, bin, fields, ..Options::default() };
        Self::new(to, options, header && !bin)
    }

    /// Writes a JSON object on one line for each record, with its time, CPU, thread, typed fields and text.
    pub fn json(to: W) -> Self {
        Self { is_json: true, ..Self::new(to, Options::default(), false) }
    }

    fn new(to: W, options: Options, header: bool) -> Self {
        let (text, writer) = (TextBuffer::default(), LineWriter::new(options));
        Self { to, text, writer, is_json: false, header, is_broken: false, error: None }
    }

    /// Writes all records that came so far.
    ///
    /// # Errors
    /// The error of the output, at the first call after it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write(W::flush);
        self.error.take().map_or(Ok(()), Err)
    }

    /// Writes the text and then calls a function, unless the output failed before.
    fn write(&mut self, then: impl FnOnce(&mut W) -> io::Result<()>) {
        if !self.is_broken {
            self.error = self.to.write_all(self.text.text()).and_then(|()| then(&mut self.to)).err();
            self.is_broken = self.error.is_some();
        }
        self.text.truncate(0);
    }
}

impl<W: Write> RecordSink for RecordWriter<W> {
    fn begin(&mut self, start: &RecordStart<'_>) {
        let Options { lazy_flag, .. } = Options::for_kernel(start.kernel);
        let options = Options { lazy_flag, ..*self.writer.options() };
        self.writer = LineWriter::new(options);
        if self.header {
            let mut header = Vec::new();
            let info = BufferInfo { entries: 0, written: 0, cpus: start.cpus };
            line::header(&mut header, &options, info);
            // A stream has no count of entries.
            for line in header.split_inclusive(|byte| *byte == b'\n') {
                if !line.starts_with(b"# entries-in-buffer") {
                    self.text.bytes(line);
                }
            }
        }
    }

    #[inline]
    fn record(&mut self, record: &RecordView<'_>) -> ControlFlow<()> {
        if self.is_broken {
            return ControlFlow::Break(());
        }
        if self.is_json {
            let RecordView { stamp, payload, printer, tasks, env } = *record;
            let lazy_flag = self.writer.options().lazy_flag;
            self.text.with(|text| json::object(text, printer, payload, stamp, lazy_flag, tasks, env));
        } else {
            self.writer.record(&mut self.text, record);
        }
        if self.text.length() >= BATCH {
            self.write(|_| Ok(()));
        }
        if self.is_broken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(&mut self, _summary: &Summary) {
        self.write(W::flush);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        event::Format,
        render::{Printer, line::Stamp},
    };

    const FORMAT: &str = "name: ev\nID: 313\nformat:\n\
        \tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n\nprint fmt: \"a=%d\", REC->a\n";

    /// Passes one record of a kernel without lazy preemption to a sink.
    fn pass_one(sink: &mut impl RecordSink) -> ControlFlow<()> {
        let printer = Arc::new(Printer::compile(&Format::parse("sched", FORMAT).unwrap(), &()));
        let mut payload = 313_u16.to_ne_bytes().to_vec();
        // The flag means that the state of interrupts is unknown, or else a lazy reschedule.
        payload.extend([tracer_abi::flags::NEED_RESCHED_LAZY, 0]);
        payload.extend([42_i32, 7].iter().flat_map(|word| word.to_ne_bytes()));
        let stamp = Stamp { cpu: 1, time: 1_500_000_000 };
        sink.begin(&RecordStart { events: &[], cpus: 4, kernel: (6, 1) });
        let flow =
            sink.record(&RecordView { stamp, payload: &payload, printer: &printer, tasks: &(), env: &() });
        sink.finish(&Summary::default());
        flow
    }

    #[test]
    fn records_are_written_as_lines_and_objects() {
        let mut out = Vec::new();
        let flow = pass_one(&mut RecordWriter::lines(&mut out, LineOptions::default()));
        let text = String::from_utf8(out).unwrap();
        let (header, line) = text.trim_end().rsplit_once('\n').unwrap();
        assert!(flow.is_continue() && header.starts_with("# tracer: nop\n#\n#") && !header.contains("#P:"));
        assert_eq!(line, "           <...>-42      [001] X....     1.500000: ev: a=7");

        let mut out = Vec::new();
        let options = LineOptions { header: false, ..LineOptions::default() };
        let _ = pass_one(&mut RecordWriter::lines(&mut out, options));
        assert_eq!(String::from_utf8(out).unwrap(), format!("{line}\n"));

        let mut out = Vec::new();
        let _ = pass_one(&mut RecordWriter::json(&mut out));
        let object: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&object["flags"], &object["fields"]["a"]), (&"X....".into(), &7.into()));
    }

    /// An output that is closed.
    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_error_of_the_output_is_reported_once_and_ends_it() {
        let mut writer = RecordWriter::json(Closed);
        assert!(pass_one(&mut writer).is_continue());
        assert_eq!(writer.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        writer.flush().unwrap();
        assert!(pass_one(&mut writer).is_break() && writer.text.length() == 0);
    }
}
