//! Parses the lines of `trace`. The kernel and the tracer use one form, so one parser serves both.

use std::collections::BTreeMap;

/// A trace, parsed.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The comment lines on top.
    pub header: Vec<String>,
    /// Records in the order of the text.
    pub lines: Vec<Line>,
    /// Lost hits that the text itself reports (`[LOST n EVENTS]`).
    pub lost: u64,
}

/// The line of one record, with the continuation lines of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Name of the task.
    pub comm: String,
    /// Thread id.
    pub pid: i32,
    /// CPU of the hit.
    pub cpu: u32,
    /// The latency field.
    pub flags: Flags,
    /// Nanoseconds (the text has microseconds).
    pub time: u64,
    /// Everything after the timestamp: the event's name and its text.
    pub text: String,
}

/// The latency field: five characters with `irq-info`, `.` for an unset one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags(pub String);

impl Flags {
    /// The character at a position: 0 interrupts off, 1 need-resched, 2 hard or soft interrupt, 3 preemption depth, 4
    /// migration-disable depth.
    pub fn at(&self, place: usize) -> char {
        self.0.chars().nth(place).unwrap_or(' ')
    }
}

impl Trace {
    /// Reads the text of `trace`.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut trace = Self::default();
        for raw in bytes.split(|byte| *byte == b'\n') {
            if let Some(line) = Line::parse(raw) {
                trace.lines.push(line);
                continue;
            }
            let text = String::from_utf8_lossy(raw);
            if let Some(lost) = lost(&text) {
                trace.lost += lost;
            } else if let Some(last) = trace.lines.last_mut() {
                last.text.push('\n');
                last.text.push_str(&text);
            } else if !text.is_empty() {
                trace.header.push(text.into_owned());
            }
        }
        // Removes the file's last newline.
        if let Some(last) = trace.lines.last_mut()
            && last.text.ends_with('\n')
        {
            last.text.pop();
        }
        trace
    }

    /// Number of lines, by event name.
    pub fn by_event(&self) -> BTreeMap<String, u64> {
        let mut events = BTreeMap::new();
        for line in &self.lines {
            *events.entry(line.event()).or_default() += 1;
        }
        events
    }
}

/// Parses `CPU:1 [LOST 12 EVENTS]`; without a number at least one is lost.
fn lost(text: &str) -> Option<u64> {
    let inside = text.strip_prefix("CPU:")?.split_once("[LOST ")?.1;
    Some(inside.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(1))
}

impl Line {
    /// Parses `%16s-%-7d [%03d] FLAGS SECONDS.MICROS: TEXT`, with an optional thread group id after the pid.
    pub fn parse(raw: &[u8]) -> Option<Self> {
        // The task's name is padded to 16 bytes and has at most 15.
        let (comm, rest) = raw.split_at_checked(16)?;
        let rest = std::str::from_utf8(rest.strip_prefix(b"-")?)
            .map_or_else(|_| String::from_utf8_lossy(&rest[1..]).into_owned(), str::to_owned);
        let (pid, rest) = rest.split_once(' ')?;
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('(') {
            Some(group) => group.split_once(')')?.1.trim_start(),
            None => rest,
        };
        let (cpu, rest) = rest.strip_prefix('[')?.split_once("] ")?;
        let (flags, rest) = rest.split_once(' ')?;
        let (time, text) = rest.trim_start().split_once(": ")?;
        let (seconds, micros) = time.split_once('.')?;
        let nanos = 10_u64.checked_pow(9_u32.checked_sub(u32::try_from(micros.len()).ok()?)?)?;
        Some(Self {
            comm: String::from_utf8_lossy(comm).trim_start().to_owned(),
            pid: pid.parse().ok()?,
            cpu: cpu.parse().ok()?,
            flags: Flags(flags.to_owned()),
            time: seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * nanos,
            text: text.to_owned(),
        })
    }

    /// The event's name. Syscall events print `sys_NAME(` and `sys_NAME -> `, which mean `sys_enter_NAME` and
    /// `sys_exit_NAME`.
    pub fn event(&self) -> String {
        let end = self.text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.text.len());
        let (name, rest) = self.text.split_at(end);
        match name.strip_prefix("sys_") {
            Some(call) if rest.starts_with('(') => format!("sys_enter_{call}"),
            Some(call) if rest.starts_with(" -> ") => format!("sys_exit_{call}"),
            _ => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_line_is_parsed() {
        let text = "# tracer: nop\n#\n\
            \x20         <idle>-0       [001] d..2.  1234.567890: sched_switch: prev_comm=a b ==> next\n\
            CPU:1 [LOST 12 EVENTS]\n\
            \x20   a [0] b: c-1-42      [000] .....    7.000001: sys_lseek(fd: ffffffff)\n\
            \x20           bash-4242    (   4242) [000] d.h1. 7.000001: sys_exit: NR 8 = -9\n\
            second line\n";
        let trace = Trace::parse(text.as_bytes());
        assert_eq!(trace.header, ["# tracer: nop", "#"]);
        assert_eq!(trace.lost, 12);
        let seen: Vec<_> =
            trace.lines.iter().map(|l| (l.comm.as_str(), l.pid, l.cpu, l.time, l.event())).collect();
        assert_eq!(
            seen,
            [
                ("<idle>", 0, 1, 1_234_567_890_000, "sched_switch".to_owned()),
                ("a [0] b: c-1", 42, 0, 7_000_001_000, "sys_enter_lseek".to_owned()),
                ("bash", 4242, 0, 7_000_001_000, "sys_exit".to_owned()),
            ]
        );
        assert_eq!(trace.lines[2].text, "sys_exit: NR 8 = -9\nsecond line");
        assert_eq!((trace.lines[2].flags.at(0), trace.lines[2].flags.at(2)), ('d', 'h'));
    }

    #[test]
    fn exit_lines_and_entry_lines_are_distinguished() {
        let line =
            Line::parse(b"            bash-4242    [000] .....    7.000001: sys_lseek -> 0x1").unwrap();
        assert_eq!(line.event(), "sys_exit_lseek");
        assert_eq!(line.flags, Flags(".....".into()));
    }
}
