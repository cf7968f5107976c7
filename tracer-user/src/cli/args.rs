//! What the command line looks like.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::fs::Owner;

/// What `--version` says: the version, and the notice that the licence of btf-rs asks for.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nMIT OR Apache-2.0. Uses btf-rs, which is under the GNU LGPL 2.1 or later: THIRD-PARTY.md and LICENSES/LGPL-2.1.txt\n",
    "of the source tell the terms, and how to build this program with a changed btf-rs."
);

/// Linux event tracing with the semantics of tracefs, done by eBPF.
#[derive(Debug, Parser)]
#[command(
    name = "tracer",
    version,
    long_version = LONG_VERSION,
    propagate_version = true,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        tracer record -e 'sched:sched_switch if prev_comm ~ \"ba*\" || next_prio < 100' --for 5s\n  \
        tracer record -e 'syscalls:sys_enter_openat if filename.ustring ~ \"*passwd*\"' -- cat /etc/passwd\n  \
        tracer list 'sched:*'\n  \
        tracer explain sched:sched_switch 'prev_pid == 1'\n\n\
        Events, fields and filters are those of the kernel's tracefs. Tracing needs root, or CAP_BPF and CAP_PERFMON;\n\
        `tracer doctor` tells what this machine allows. TRACER_LOG=debug shows what the program does."
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Record(RecordArgs),
    Hist(HistArgs),
    List(ListArgs),
    Explain(ExplainArgs),
    Doctor(DoctorArgs),
    Mount(MountArgs),
    Exec(ExecArgs),
    /// Close the events that a daemon had on when it ended. Used by `mount`.
    #[command(hide = true, name = crate::fs::CLOSER)]
    CloseEvents,
    /// Reach the memory of programs with user events for a daemon. Used by `mount`.
    #[command(hide = true, name = crate::engine::client_memory::COMMAND)]
    ClientMemory,
    /// Open the files that a daemon is named. Used by `mount`.
    #[command(hide = true, name = crate::fs::OPENER)]
    OpenFiles,
}

/// Count events' hits in tables in the kernel, by keys, and print them at the end.
///
/// HISTOGRAM is what stands behind `hist:` in a `trigger` file; a table is printed as the event's `hist` file would be.
/// Of several histograms, those are printed that no other one takes variables or synthetic events from. With COMMAND, it
/// is started once counting has begun, and counting ends when it does; its exit code is ours.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer hist kmem:kmalloc 'keys=call_site.sym:vals=bytes_req:sort=bytes_req.descending' --for 5s\n  \
    tracer hist raw_syscalls:sys_enter 'keys=id.syscall,common_pid.execname:sort=hitcount.descending' --for 5s\n  \
    tracer hist sched:sched_switch 'keys=prev_comm:vals=hitcount,hitcount.graph' if 'prev_state == 0' --watch 1s\n  \
    tracer hist raw_syscalls:sys_exit 'keys=ret.log2' -- make\n\n\
    How long threads wait for a CPU once they are woken, from one event to another:\n  \
    tracer hist --synth 'wakeup_latency u64 lat; pid_t pid; char comm[16]' \\\n    \
    sched:sched_waking 'keys=pid:ts0=common_timestamp.usecs' \\\n    \
    sched:sched_switch 'keys=next_pid:lat=common_timestamp.usecs-$ts0:\\\n      \
    onmatch(sched.sched_waking).wakeup_latency($lat,next_pid,next_comm)' \\\n    \
    synthetic:wakeup_latency 'keys=comm,lat.log2:sort=comm,lat' --for 5s\n\n\
    The longest wait of each, and who had the CPU before:\n  \
    tracer hist sched:sched_waking 'keys=pid:ts0=common_timestamp.usecs' \\\n    \
    sched:sched_switch 'keys=next_pid:lat=common_timestamp.usecs-$ts0:onmax($lat).save(next_comm,prev_comm)' --watch 1s\n\n\
    Arguments of a function:\n  \
    tracer hist -p 'f:reads vfs_read count' reads 'keys=count.log2' --for 5s")]
#[allow(clippy::struct_excessive_bools)]
pub(super) struct HistArgs {
    /// Event to count, 'SYSTEM:EVENT', and how:
    /// 'keys=FIELD[.MODIFIER][,...][:vals=...][:sort=...][:size=N][:VAR=EXPR][:HANDLER.ACTION][ if FILTER]'. Repeatable.
    #[arg(value_names = ["EVENT", "HISTOGRAM"], required = true, num_args = 2..)]
    pub(super) histograms: Vec<String>,
    /// Synthetic event to define for actions, a line of synthetic_events: 'NAME TYPE FIELD[; TYPE FIELD]...'. Repeatable.
    #[arg(long = "synth", value_name = "DEFINITION")]
    pub(super) synthetic: Vec<String>,
    /// Event to define, in the language of dynamic_events: 'p|r|f|t|e[:[GROUP/]EVENT] WHERE [ARGS]'. Repeatable.
    #[arg(short = 'p', long = "probe", value_name = "DEFINITION")]
    pub(super) probes: Vec<String>,
    /// Print the tables too that only keep variables or make synthetic events for others.
    #[arg(short, long)]
    pub(super) all: bool,
    /// Stop after this long: 500ms, 5s, 2m.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(super) limit: Option<Duration>,
    /// Print the tables anew each time this long has passed, in place where that is a terminal.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) watch: Option<Duration>,
    /// Print a JSON object a table, one a line each time, in place of the text.
    #[arg(long)]
    pub(super) json: bool,
    /// Hang on the perf tracepoint even where a raw tracepoint would do.
    #[arg(long)]
    pub(super) tracepoints: bool,
    /// Count tracer's own hits too.
    #[arg(long)]
    pub(super) own: bool,
    /// Write a newline to this file descriptor once counting has begun.
    #[arg(long, value_name = "FD", hide = true)]
    pub(super) ready_fd: Option<i32>,
    /// Command to run meanwhile.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<PathBuf>,
}

/// Trace events and print them as they happen.
///
/// Lines are those of tracefs. With COMMAND, it is started once everything is attached, it and its children are
/// traced (everything with --all), and the recording ends when it does; its exit code is ours. Counts of hits go to
/// standard error at the end: hits = filtered + recorded + dropped.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer record -e sched:sched_switch --for 2s\n  \
    tracer record -e 'sched:sched_switch if prev_comm ~ \"ba*\" || next_prio < 100' --for 5s\n  \
    tracer record -e 'syscalls:sys_enter_openat if filename.ustring ~ \"*passwd*\"' -- cat /etc/passwd\n  \
    tracer record -e 'sched:*' -e 'irq:*' --pid 4711 -o trace.txt\n  \
    tracer record -p 'f vfs_read count if count > 4096' -p 'f vfs_read%return $retval'\n  \
    tracer record -p 't sched_switch comm=next->comm:string' -p 'p /bin/bash:readline'\n  \
    tracer record -e 'kmem:kmalloc if bytes_req > 4096' --comm bash --json")]
#[allow(clippy::struct_excessive_bools)]
pub(super) struct RecordArgs {
    /// Event to trace, with an optional filter: 'SYSTEM:EVENT[ if FILTER]'. Globs name several; repeatable.
    #[arg(short = 'e', long = "event", value_name = "EVENT", required_unless_present_any = ["probes", "programs"])]
    pub(super) events: Vec<String>,
    /// Event to define and trace, in the language of dynamic_events, with an optional filter:
    /// 'p|r|f|t|e[:[GROUP/]EVENT] WHERE [ARGS][ if FILTER]'. Repeatable.
    #[arg(short = 'p', long = "probe", value_name = "DEFINITION")]
    pub(super) probes: Vec<String>,
    /// Program or library whose own events (crate tracer-events) --event names too; all of them without any. Repeatable.
    #[arg(long = "program", value_name = "PATH")]
    pub(super) programs: Vec<PathBuf>,
    /// Trace only this process: its threads, and the children it starts from now on. Repeatable.
    #[arg(short = 'P', long, value_name = "PID")]
    pub(super) pid: Vec<u32>,
    /// Trace only threads of this name (in the kernel, before anything is recorded).
    #[arg(long, value_name = "NAME")]
    pub(super) comm: Option<String>,
    /// Stop after this long: 500ms, 5s, 2m.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(super) limit: Option<Duration>,
    /// Stop after this many records.
    #[arg(short = 'n', long, value_name = "N")]
    pub(super) count: Option<u64>,
    /// Write to a file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// One JSON object a line.
    #[arg(long, conflicts_with_all = ["raw", "hex", "bin", "fields"])]
    pub(super) json: bool,
    /// Ring buffer of each CPU in KiB; rounded up to a power of two.
    #[arg(short = 'b', long, value_name = "KIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(4..=1 << 21))]
    pub(super) buffer_size_kb: u32,
    /// With COMMAND: trace everything, not only the command.
    #[arg(short, long)]
    pub(super) all: bool,
    /// Trace this program's own threads too.
    #[arg(long)]
    pub(super) own: bool,
    /// Attach to perf tracepoints only, never to raw ones.
    #[arg(long)]
    pub(super) tracepoints: bool,
    /// Numbers instead of text (trace option `raw`).
    #[arg(long)]
    pub(super) raw: bool,
    /// Hexadecimal bytes (trace option `hex`).
    #[arg(long)]
    pub(super) hex: bool,
    /// Bytes (trace option `bin`).
    #[arg(long)]
    pub(super) bin: bool,
    /// Fields by name and value (trace option `fields`).
    #[arg(long)]
    pub(super) fields: bool,
    /// No latency flags (trace option `noirq-info`).
    #[arg(long)]
    pub(super) no_irq_info: bool,
    /// Process id behind the thread id (trace option `record-tgid`).
    #[arg(long)]
    pub(super) tgid: bool,
    /// No header.
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Write a newline to this file descriptor once everything is attached.
    #[arg(long, value_name = "FD", hide = true)]
    pub(super) ready_fd: Option<i32>,
    /// Command to run and trace.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// List events, with their fields when asked.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  tracer list\n  tracer list 'sched:*'\n  tracer list -l sched:sched_switch"
)]
pub(super) struct ListArgs {
    /// Which events: SYSTEM, EVENT or SYSTEM:EVENT, each a glob. All by default.
    #[arg(value_name = "GLOB", default_value = "*:*")]
    pub(super) pattern: String,
    /// Show the format file of each: fields, offsets, print fmt.
    #[arg(short = 'l', long)]
    pub(super) formats: bool,
    /// One JSON object a line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Show what becomes of a filter: tokens, tree, plan, hook and eBPF instructions; or of a definition.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer explain sched:sched_switch 'prev_comm ~ \"ba*\" || next_prio < 100'\n  \
    tracer explain -p 'f vfs_read count pos if count > 4096'")]
pub(super) struct ExplainArgs {
    /// SYSTEM:EVENT.
    #[arg(value_name = "EVENT", required_unless_present = "probe")]
    pub(super) event: Option<String>,
    /// The filter; without one, how the record is made.
    #[arg(value_name = "FILTER")]
    pub(super) filter: Option<String>,
    /// Explain a definition of a dynamic event, which a filter may follow as ` if FILTER`.
    #[arg(short = 'p', long, value_name = "DEFINITION", conflicts_with = "event")]
    pub(super) probe: Option<String>,
    /// Explain the perf tracepoint, not the raw one.
    #[arg(long)]
    pub(super) tracepoints: bool,
    /// Show the whole linked program, not only what was generated.
    #[arg(long)]
    pub(super) linked: bool,
}

/// Tell what this kernel and these privileges allow, each no with its reason.
#[derive(Debug, ClapArgs)]
pub(super) struct DoctorArgs {
    /// One JSON object a line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Mount a tracefs of our own: files that behave as the kernel's tracing files do.
///
/// Serves it until it is interrupted or somebody unmounts it; then nothing stays behind.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer mount &\n  \
    cd /run/tracer/tracing\n  \
    echo 'prev_comm ~ \"ba*\"' > events/sched/sched_switch/filter\n  \
    echo 1 > events/sched/sched_switch/enable\n  \
    cat trace")]
#[allow(clippy::struct_excessive_bools)]
pub(super) struct MountArgs {
    /// Where.
    #[arg(value_name = "DIR", default_value = "/run/tracer/tracing")]
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) serving: Serving,
    /// Events to turn on at once: SYSTEM:EVENT,SYSTEM,... as the kernel's `trace_event=`. Repeatable.
    #[arg(long, value_name = "LIST")]
    pub(super) trace_event: Vec<String>,
    /// Do what the kernel's command line says: trace_event, trace_instance, trace_options, trace_clock, trace_buf_size.
    #[arg(long)]
    pub(super) boot: bool,
    /// Take up events, filters, instances and options of a daemon that was killed here; then nothing else is done first.
    #[arg(long)]
    pub(super) restore: bool,
    /// Let programs of others emit synthetic events, by maps with names below this directory of a BPF file system.
    #[arg(long, value_name = "DIR")]
    pub(super) pin: Option<PathBuf>,
    /// Serve in the background: return once it is mounted.
    #[arg(long)]
    pub(super) background: bool,
    /// Append messages to this file once it serves. Without it they go to standard error, and of a mirror in the background to
    /// the system's log (/dev/log).
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// Mount over whatever is there, another mirror included.
    #[arg(long, hide = true)]
    pub(super) over: bool,
    /// End when this process does.
    #[arg(long, value_name = "PID")]
    pub(super) until: Option<i32>,
    /// This is the process in the background.
    #[arg(long, hide = true, conflicts_with = "background")]
    pub(super) detached: bool,
    /// Write a newline to this file descriptor once it is mounted.
    #[arg(long, value_name = "FD", hide = true)]
    pub(super) ready_fd: Option<i32>,
}

/// How a mirror is served.
#[derive(Debug, ClapArgs)]
pub(super) struct Serving {
    /// User that the files belong to.
    #[arg(long, value_name = "UID", default_value_t = 0)]
    uid: u32,
    /// Group that the files belong to.
    #[arg(long, value_name = "GID", default_value_t = 0)]
    gid: u32,
    /// Permissions of the top directory, octal.
    #[arg(long, value_name = "MODE", default_value = "700", value_parser = mode)]
    mode: u16,
}

impl Serving {
    /// Whose the files are.
    pub(super) fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid, mode: self.mode }
    }

    /// The same as arguments.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        vec![
            format!("--uid={}", self.uid).into(),
            format!("--gid={}", self.gid).into(),
            format!("--mode={:o}", self.mode).into(),
        ]
    }
}

/// Run a command that finds the mirror where tools look for tracefs.
///
/// The command has mounts of its own, in which /sys/kernel/tracing and /sys/kernel/debug/tracing are a mirror that
/// lives as long as it. Exit status and signals are the command's own; nothing stays behind, and nothing is seen
/// outside.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer exec trace-cmd record -e sched:sched_switch sleep 1\n  \
    tracer exec -- sh -c 'echo 1 > /sys/kernel/tracing/events/sched/enable; cat /sys/kernel/tracing/trace'\n  \
    tracer exec --mirror /run/tracer/tracing bash")]
pub(super) struct ExecArgs {
    /// Use the mirror that is mounted here, in place of one for the command alone.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["uid", "gid", "mode"])]
    pub(super) mirror: Option<PathBuf>,
    #[command(flatten)]
    pub(super) serving: Serving,
    /// The command.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Reads permissions as chmod(1) takes them.
fn mode(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "permissions are octal, such as 755".to_owned())
}

/// Reads `500ms`, `5s`, `2m`, `1h`, or seconds without a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("a duration is a number and one of us, ms, s, m, h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "a duration starts with a number".to_owned())?;
    Duration::try_from_secs_f64(number * scale).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_service_starts_with_a_command_line_that_is_one() {
        let unit = include_str!("../../../packaging/systemd/tracer.service");
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let args = Args::try_parse_from(start.split(' ')).unwrap();
        let Command::Mount(mount) = args.command else { panic!("{start}") };
        assert!(mount.boot && mount.restore && !mount.background);
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert!(duration("fast").is_err());
        assert!(duration("5 parsecs").is_err());
    }
}
