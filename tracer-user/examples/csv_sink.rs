//! Writes the records of an event as CSV, with a column for each field.
//!
//! Run as root; the event may have a filter:
//!
//! ```text
//! cargo run --release -p tracer-user --example csv_sink -- \
//!     'syscalls:sys_enter_write if count > 100' dd if=/dev/zero of=/dev/null bs=4096 count=1000
//! ```

use std::{
    error::Error,
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    process::{Command, Stdio},
    time::Duration,
};

use tracer_user::api::{Progress, RecordSink, RecordStart, RecordView, RecordedEvent, Recording, Summary};

/// Writes records as lines of CSV.
struct CsvSink<W> {
    out: W,
    /// The first error of `out`.
    result: io::Result<()>,
}

impl<W: Write> CsvSink<W> {
    fn header(&mut self, start: &RecordStart<'_>) -> io::Result<()> {
        let names = start.events.iter().take(1).flat_map(RecordedEvent::fields);
        let names: Vec<String> = names.map(quoted).collect();
        writeln!(self.out, "time_ns,cpu,pid,comm,event,{}", names.join(","))
    }

    fn line(&mut self, record: &RecordView<'_>) -> io::Result<()> {
        let (time, cpu, pid) = (record.time_ns(), record.cpu(), record.pid());
        write!(self.out, "{time},{cpu},{pid},{},{}", quoted(&record.comm()), record.name())?;
        for (_, value) in record.fields() {
            write!(self.out, ",{}", quoted(&value.to_string()))?;
        }
        writeln!(self.out)
    }
}

impl<W: Write> RecordSink for CsvSink<W> {
    fn begin(&mut self, start: &RecordStart<'_>) {
        self.result = self.header(start);
    }

    fn record(&mut self, record: &RecordView<'_>) -> ControlFlow<()> {
        if self.result.is_ok() {
            self.result = self.line(record);
        }
        if self.result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn lost(&mut self, cpu: u32, hits: u64) {
        eprintln!("CPU {cpu} lost {hits} records");
    }

    fn finish(&mut self, summary: &Summary) {
        for count in &summary.counts {
            eprintln!("{}: recorded={} dropped={}", count.event, count.recorded, count.dropped);
        }
    }
}

/// A value with quotes where CSV needs them (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let event = arguments.next().and_then(|event| event.into_string().ok()).ok_or("name an event")?;
    let mut command = Command::new(arguments.next().ok_or("name a command")?);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());

    let mut recording = Recording::builder().event(event).command(command).start()?;
    let mut sink = CsvSink { out: BufWriter::new(io::stdout().lock()), result: Ok(()) };
    while recording.poll(&mut sink, Duration::MAX)? == Progress::Running {}
    sink.result?;
    Ok(sink.out.flush()?)
}
