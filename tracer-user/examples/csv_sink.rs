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
    process::{Command, Stdio},
};

use tracer_user::api::{Event, Recording};

/// Writes events as lines of CSV.
struct CsvSink<W> {
    out: W,
    /// Whether the header line was written.
    has_header: bool,
}

impl<W: Write> CsvSink<W> {
    fn write(&mut self, event: &Event) -> io::Result<()> {
        if !self.has_header {
            let names: Vec<String> = event.fields().map(|(name, _)| quoted(name)).collect();
            writeln!(self.out, "time_ns,cpu,pid,comm,event,{}", names.join(","))?;
            self.has_header = true;
        }
        let (time, cpu, pid) = (event.time_ns(), event.cpu(), event.pid());
        write!(self.out, "{time},{cpu},{pid},{},{}", quoted(&event.comm()), event.name())?;
        for (_, value) in event.fields() {
            write!(self.out, ",{}", quoted(&value.to_string()))?;
        }
        writeln!(self.out)
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
    let mut sink = CsvSink { out: BufWriter::new(io::stdout().lock()), has_header: false };
    for event in recording.events() {
        sink.write(&event)?;
    }
    sink.out.flush()?;
    for count in recording.finish().counts {
        eprintln!("{}: recorded={} dropped={}", count.event, count.recorded, count.dropped);
    }
    Ok(())
}
