//! The library's examples and its recordings. Each test starts its own processes, whose system calls are known.

use std::ops::ControlFlow;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_user::api::{
    EventCounts, HistErrorKind, Histograms, Progress, Received, RecordErrorKind, RecordSink, RecordStart,
    RecordView, Recording, Summary,
};

/// A command that reads and writes 4,096 bytes this many times.
const BLOCKS: u64 = 1000;
const DD: [&str; 5] = ["dd", "if=/dev/zero", "of=/dev/null", "bs=4096", "count=1000"];

/// Runs an example, and returns its standard output.
fn example(name: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(host::example(name)?).args(arguments).args(DD).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {errors}");
    eprintln!("{errors}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The numbers in the words of a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn the_latency_of_each_thread_of_a_command() {
    host::as_root(|| {
        let text = example("syscall_latency", &["read"])?;
        ensure!(text.ends_with("dropped: 0\n"), "{text}");
        let line = text.lines().find(|line| line.starts_with("dd ")).with_context(|| text.clone())?;
        let [_, calls, least, median, most] = numbers(line)[..] else { anyhow::bail!("{text}") };
        ensure!(calls >= BLOCKS && 0 < least && least <= median && median <= most, "{text}");
        Ok(())
    });
}

#[test]
fn a_live_histogram_counts_each_read() {
    host::as_root(|| {
        let text = example("live_histogram", &[])?;
        ensure!(text.ends_with("dropped=0\n"), "{text}");
        let line = text.lines().rfind(|line| line.contains(" 4096..8192 ")).with_context(|| text.clone())?;
        ensure!(numbers(line)[..] == [BLOCKS], "{text}");
        Ok(())
    });
}

#[test]
fn a_sink_writes_each_record_with_its_fields() {
    host::as_root(|| {
        let text = example("csv_sink", &["syscalls:sys_enter_write if count == 4096"])?;
        let mut lines = text.lines();
        let header = lines.next().context("no header")?;
        let fields = header.strip_prefix("time_ns,cpu,pid,comm,event,__syscall_nr,fd,buf,count");
        // From 7.2 on, the kernel records the first bytes that are written too.
        let data = fields.with_context(|| header.to_owned())?;
        ensure!(["", ",__buf_val"].contains(&data), "{header}");
        let mut last = 0_u64;
        for line in lines.clone() {
            let words: Vec<&str> = line.split(',').collect();
            let [time, _, _, "dd", "sys_enter_write", _, "1", _, "4096", ref data_words @ ..] = words[..]
            else {
                anyhow::bail!("{line}");
            };
            ensure!(data_words.len() == usize::from(!data.is_empty()), "{line}");
            let time = time.parse()?;
            ensure!(last <= time, "{line}");
            last = time;
        }
        ensure!(lines.count() as u64 == BLOCKS, "{} lines", text.lines().count());
        Ok(())
    });
}

#[test]
fn a_recording_is_read_with_timeouts_and_stopped_from_another_thread() {
    host::as_root(|| {
        let mut recording = Recording::builder().event("syscalls:sys_enter_getppid").own(true).start()?;
        let own = std::process::id();
        ensure!(matches!(recording.next_timeout(Duration::ZERO), Received::Timeout), "nothing happened");
        let _ = rustix::process::getppid();
        let event = recording
            .events_for(host::patience(Duration::from_secs(2)))
            .find(|event| event.pid() == rustix::thread::gettid().as_raw_nonzero().get())
            .context("no event")?;
        ensure!((event.system(), event.name()) == ("syscalls", "sys_enter_getppid"), "{event:?}");
        ensure!(event.field("__syscall_nr").and_then(|nr| nr.as_i64()) == Some(libc::SYS_getppid), "{event}");
        ensure!(event.field("nothing").is_none() && event.text() == "sys_getppid()", "{event}");
        ensure!(event.to_string().ends_with(": sys_getppid()"), "{event}");
        let stopper = recording.stopper()?;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                stopper.stop();
            });
            recording.events().for_each(drop);
        });
        ensure!(matches!(recording.next_timeout(Duration::ZERO), Received::Ended), "it was stopped");
        let counts = &recording.finish().counts[0];
        ensure!(counts.hits == counts.filtered + counts.recorded + counts.dropped, "{counts:?} of {own}");
        Ok(())
    });
}

/// A sink that takes this many records, and checks the order of the calls.
#[derive(Debug, Default)]
struct Limited {
    left: u64,
    events: Vec<String>,
    records: u64,
    last: u64,
    lost: u64,
    counts: Option<Vec<EventCounts>>,
}

impl RecordSink for Limited {
    fn begin(&mut self, start: &RecordStart<'_>) {
        assert!(self.events.is_empty() && self.records == 0 && start.cpus > 0, "{self:?}");
        for event in start.events {
            assert!(!event.hooks().is_empty() && event.fields().any(|name| name == "__syscall_nr"));
            self.events.push(format!("{}:{}", event.system(), event.name()));
        }
    }

    fn record(&mut self, record: &RecordView<'_>) -> ControlFlow<()> {
        assert!(self.left > 0 && self.counts.is_none() && self.events.len() == 1, "{self:?}");
        assert_eq!((record.name(), record.text().as_str()), ("sys_enter_getppid", "sys_getppid()"));
        assert!(self.last <= record.time_ns(), "{record:?}");
        self.last = record.time_ns();
        self.records += 1;
        self.left -= 1;
        if self.left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn lost(&mut self, _cpu: u32, hits: u64) {
        assert!(hits > 0 && self.counts.is_none() && self.events.len() == 1, "{self:?}");
        self.lost += hits;
    }

    fn finish(&mut self, summary: &Summary) {
        assert!(self.counts.replace(summary.counts.clone()).is_none(), "{self:?}");
    }
}

#[test]
fn a_sink_ends_its_recording() {
    host::as_root(|| {
        let mut recording = Recording::builder().event("syscalls:sys_enter_getppid").own(true).start()?;
        let mut sink = Limited { left: 10, ..Limited::default() };
        while recording.poll(&mut sink, Duration::from_millis(10))? == Progress::Running {
            let _ = rustix::process::getppid();
        }
        ensure!(sink.records == 10 && sink.events == ["syscalls:sys_enter_getppid"], "{sink:?}");
        let counts = sink.counts.clone().context("not finished")?;
        ensure!(counts[0].recorded >= 10 && counts == recording.counts(), "{counts:?}");
        // Nothing is called after the end.
        recording.stop_with(&mut sink);
        ensure!(recording.poll(&mut sink, Duration::ZERO)? == Progress::Stopped, "it ended");
        ensure!(matches!(recording.next_timeout(Duration::ZERO), Received::Ended), "it ended");
        Ok(())
    });
}

#[test]
fn lost_hits_are_reported_and_counted() {
    host::as_root(|| {
        let mut recording = Recording::builder()
            .event("syscalls:sys_enter_getppid")
            .own(true)
            .ring_bytes(64 << 10)
            .start()?;
        // More than all rings hold.
        for _ in 0..100_000 {
            let _ = rustix::process::getppid();
        }
        let mut sink = Limited { left: u64::MAX, ..Limited::default() };
        recording.stop_with(&mut sink);
        let counts = &sink.counts.as_ref().context("not finished")?[0];
        ensure!(counts.dropped > 0 && sink.lost == counts.dropped, "{sink:?}");
        ensure!(
            sink.records == counts.recorded && counts.hits == counts.recorded + counts.dropped,
            "{sink:?}"
        );
        Ok(())
    });
}

#[test]
fn errors_of_histograms_have_kinds() {
    host::as_root(|| {
        for (builder, expected) in [
            (Histograms::builder().histogram("sched:no_such_event", "keys=pid"), HistErrorKind::NoEvent),
            (Histograms::builder().histogram("sched:sched_switch", "keys=nothing"), HistErrorKind::Histogram),
            (Histograms::builder().synthetic("x float y"), HistErrorKind::Definition),
            (Histograms::builder().probe("nonsense"), HistErrorKind::Definition),
        ] {
            let error = builder.start().map(drop).err().context("no error")?;
            ensure!(error.kind() == expected, "{error}: {:?}", error.kind());
        }
        Ok(())
    });
}

#[test]
fn errors_have_kinds_and_places() {
    host::as_root(|| {
        let kind = |builder: tracer_user::api::RecordingBuilder| builder.start().unwrap_err();
        for (builder, expected) in [
            (Recording::builder(), RecordErrorKind::Nothing),
            (Recording::builder().event("sched:no_such_event"), RecordErrorKind::NoEvent),
            (Recording::builder().filter("x"), RecordErrorKind::Filter),
            (Recording::builder().probe("nonsense"), RecordErrorKind::Probe),
            (Recording::builder().program("/dev/null"), RecordErrorKind::Program),
            (Recording::builder().event("sched:sched_switch").process(u32::MAX), RecordErrorKind::Process),
            (
                Recording::builder().event("sched:sched_switch").command(Command::new("/no/such/program")),
                RecordErrorKind::Command,
            ),
        ] {
            let error = kind(builder);
            ensure!(error.kind() == expected, "{error}: {:?}", error.kind());
        }
        let wrong = kind(Recording::builder().event("sched:sched_switch").filter("prev_pid == 0 && nex_pid"));
        ensure!(wrong.kind() == RecordErrorKind::Filter && wrong.span().is_some(), "{wrong:?}");
        Ok(())
    });
}
