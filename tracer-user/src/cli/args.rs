//! The arguments of the command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, builder::PossibleValuesParser};

use super::help::topics;
use crate::fs::Owner;

/// Text of `--version`: the version, and the notice that the licence of btf-rs requires.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nMIT OR Apache-2.0. Uses btf-rs, which is under the GNU LGPL 2.1 or later: THIRD-PARTY.md and LICENSES/LGPL-2.1.txt\n",
    "of the source contain the terms and explain how to build this program with a changed btf-rs."
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
        `tracer doctor` reports what this machine allows. TRACER_LOG=debug logs each step. `tracer help filter`, `hist`,\n\
        `probe` and `trigger` explain the languages."
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Record(RecordArgs),
    Hist(HistArgs),
    List(ListArgs),
    Explain(ExplainArgs),
    Doctor(DoctorArgs),
    Mount(MountArgs),
    Exec(ExecArgs),
    Help(HelpArgs),
    /// Close the events that a daemon leaves enabled when it ends. Used by `mount`.
    #[command(hide = true, name = crate::fs::CLOSER)]
    CloseEvents,
    /// Access the memory of programs with user events for a daemon. Used by `mount`.
    #[command(hide = true, name = crate::engine::client_memory::COMMAND)]
    ClientMemory,
    /// Open files for a daemon. Used by `mount`.
    #[command(hide = true, name = crate::fs::OPENER)]
    OpenFiles,
    /// Write the state file of a daemon into a directory. Used by `mount`.
    #[command(hide = true, name = crate::fs::STATE_WRITER)]
    WriteState {
        /// The directory.
        dir: PathBuf,
    },
}

/// Count hits of events in tables in the kernel, by keys, and print the tables at the end.
///
/// HISTOGRAM is the text after `hist:` in a `trigger` file. Each table is printed in the format of the event's `hist`
/// file. Tables that only serve others, by variables or synthetic events, are left out. With COMMAND, the command
/// starts when counting has begun. Counting ends with it, and tracer exits with its code.
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
    /// 'keys=FIELD[.MODIFIER][,...][:vals=...][:sort=...][:size=N][:VAR=EXPR][:HANDLER.ACTION][ if FILTER]'.
    /// Repeatable.
    #[arg(value_names = ["EVENT", "HISTOGRAM"], required = true, num_args = 2..)]
    pub(super) histograms: Vec<String>,
    /// Synthetic event to define for actions, a line of synthetic_events: 'NAME TYPE FIELD[; TYPE FIELD]...'.
    /// Repeatable.
    #[arg(long = "synth", value_name = "DEFINITION")]
    pub(super) synthetic: Vec<String>,
    /// Event to define, in the language of dynamic_events: 'p|r|f|t|e[:[GROUP/]EVENT] WHERE [ARGS]'. Repeatable.
    #[arg(short = 'p', long = "probe", value_name = "DEFINITION")]
    pub(super) probes: Vec<String>,
    /// Print also the tables that only serve others, by variables or synthetic events.
    #[arg(short, long)]
    pub(super) all: bool,
    /// Stop after this long: 500ms, 5s, 2m.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(super) limit: Option<Duration>,
    /// Print the tables each time this has passed. On a terminal they replace the previous ones.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) watch: Option<Duration>,
    /// Print one JSON object per table and line instead of text.
    #[arg(long)]
    pub(super) json: bool,
    /// Attach to perf tracepoints only, never to raw ones.
    #[arg(long)]
    pub(super) tracepoints: bool,
    /// Count hits of tracer too.
    #[arg(long)]
    pub(super) own: bool,
    /// Write a newline to this file descriptor when counting has begun.
    #[arg(long, value_name = "FD", hide = true)]
    pub(super) ready_fd: Option<i32>,
    /// Command to run while counting.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<PathBuf>,
}

/// Trace events and print them as they happen.
///
/// Lines have the format of tracefs. With COMMAND, the command starts when everything is attached. It and its
/// children are traced (everything with --all), the recording ends with it, and tracer exits with its code. Counts of
/// hits go to standard error at the end: hits = filtered + recorded + dropped.
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
    /// Event to trace, with an optional filter: 'SYSTEM:EVENT[ if FILTER]'. A glob names several. Repeatable.
    #[arg(short = 'e', long = "event", value_name = "EVENT", required_unless_present_any = ["probes", "programs"])]
    pub(super) events: Vec<String>,
    /// Event to define and trace, in the language of dynamic_events, with an optional filter:
    /// 'p|r|f|t|e[:[GROUP/]EVENT] WHERE [ARGS][ if FILTER]'. Repeatable.
    #[arg(short = 'p', long = "probe", value_name = "DEFINITION")]
    pub(super) probes: Vec<String>,
    /// Program or library whose own events (crate tracer-events) --event can name. Without --event, all of them.
    /// Repeatable.
    #[arg(long = "program", value_name = "PATH")]
    pub(super) programs: Vec<PathBuf>,
    /// Trace only this process: its threads, and the children it starts from now on. Repeatable.
    #[arg(short = 'P', long, value_name = "PID")]
    pub(super) pid: Vec<u32>,
    /// Trace only threads of this name. The check runs in the kernel.
    #[arg(long, value_name = "NAME")]
    pub(super) comm: Option<String>,
    /// Stop after this long: 500ms, 5s, 2m.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(super) limit: Option<Duration>,
    /// Stop after this many records.
    #[arg(short = 'n', long, value_name = "N")]
    pub(super) count: Option<u64>,
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Print one JSON object per line.
    #[arg(long, conflicts_with_all = ["raw", "hex", "bin", "fields"])]
    pub(super) json: bool,
    /// Ring of each CPU in KiB, rounded up to a power of two.
    #[arg(short = 'b', long, value_name = "KIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(4..=1 << 19))]
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
    /// Print numbers instead of text (trace option `raw`).
    #[arg(long)]
    pub(super) raw: bool,
    /// Print hexadecimal bytes (trace option `hex`).
    #[arg(long)]
    pub(super) hex: bool,
    /// Print bytes (trace option `bin`).
    #[arg(long)]
    pub(super) bin: bool,
    /// Print fields by name and value (trace option `fields`).
    #[arg(long)]
    pub(super) fields: bool,
    /// Print no latency flags (trace option `noirq-info`).
    #[arg(long)]
    pub(super) no_irq_info: bool,
    /// Print the process id after the thread id (trace option `record-tgid`).
    #[arg(long)]
    pub(super) tgid: bool,
    /// Print no header.
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Write a newline to this file descriptor when everything is attached.
    #[arg(long, value_name = "FD", hide = true)]
    pub(super) ready_fd: Option<i32>,
    /// Command to run and trace.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// List events, with their fields on request.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  tracer list\n  tracer list 'sched:*'\n  tracer list -l sched:sched_switch"
)]
pub(super) struct ListArgs {
    /// Which events: SYSTEM, EVENT or SYSTEM:EVENT, each a glob. All by default.
    #[arg(value_name = "GLOB", default_value = "*:*")]
    pub(super) pattern: String,
    /// Show the format file of each event: fields, offsets, print fmt.
    #[arg(short = 'l', long)]
    pub(super) formats: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Show how a filter or a definition is compiled: tokens, tree, plan, hook and eBPF instructions.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer explain sched:sched_switch 'prev_comm ~ \"ba*\" || next_prio < 100'\n  \
    tracer explain -p 'f vfs_read count pos if count > 4096'")]
pub(super) struct ExplainArgs {
    /// SYSTEM:EVENT.
    #[arg(value_name = "EVENT", required_unless_present = "probe")]
    pub(super) event: Option<String>,
    /// Filter. Without one, the output shows how the record is made.
    #[arg(value_name = "FILTER")]
    pub(super) filter: Option<String>,
    /// Explain the definition of a dynamic event. A filter may follow as ` if FILTER`.
    #[arg(short = 'p', long, value_name = "DEFINITION", conflicts_with = "event")]
    pub(super) probe: Option<String>,
    /// Explain the perf tracepoint instead of the raw one.
    #[arg(long)]
    pub(super) tracepoints: bool,
    /// Show the whole linked program, not only the generated part.
    #[arg(long)]
    pub(super) linked: bool,
}

/// Report what this kernel and these privileges allow, and why not where they do not.
#[derive(Debug, ClapArgs)]
pub(super) struct DoctorArgs {
    /// Print one JSON object per line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Explain a language of definitions, or a command.
#[derive(Debug, ClapArgs)]
pub(super) struct HelpArgs {
    /// What to explain. Without it, all commands are listed.
    #[arg(value_name = "TOPIC", value_parser = PossibleValuesParser::new(topics::names()))]
    pub(super) topic: Option<String>,
}

/// Mount a mirror of tracefs: files that behave like the kernel's tracing files.
///
/// Serves the mirror until it receives SIGINT or SIGTERM or is unmounted. It then detaches everything.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer mount &\n  \
    cd /run/tracer/tracing\n  \
    echo 'prev_comm ~ \"ba*\"' > events/sched/sched_switch/filter\n  \
    echo 1 > events/sched/sched_switch/enable\n  \
    cat trace")]
#[allow(clippy::struct_excessive_bools)]
pub(super) struct MountArgs {
    /// Directory to mount on.
    #[arg(value_name = "DIR", default_value = "/run/tracer/tracing")]
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) serving: Serving,
    /// Events to enable at the start: SYSTEM:EVENT,SYSTEM,... as in the kernel's `trace_event=`. Repeatable. If anything
    /// is restored, only what differs from the list of the last daemon is changed.
    #[arg(long, value_name = "LIST")]
    pub(super) trace_event: Vec<String>,
    /// Apply these options of the kernel's command line: trace_event, trace_instance, trace_options, trace_clock,
    /// trace_buf_size.
    #[arg(long)]
    pub(super) boot: bool,
    /// Restore what was set in a daemon that was killed here, or ended with --keep-state. If anything is restored,
    /// --boot does nothing.
    #[arg(long)]
    pub(super) restore: bool,
    /// Keep what is set at a normal end too, for the next daemon with --restore.
    #[arg(long, conflicts_with = "until")]
    pub(super) keep_state: bool,
    /// Directory for the file with what is set.
    #[arg(long, value_name = "DIR", default_value = crate::fs::STATE_DIR)]
    pub(super) state_dir: PathBuf,
    /// Read further options from this file (TOML). SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Only check the options and the file of --config.
    #[arg(long)]
    pub(super) check: bool,
    /// Log messages of this level and above, unless TRACER_LOG is set.
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub(super) log_level: Option<Level>,
    /// Let eBPF programs emit synthetic events through maps pinned in this directory of a BPF file system.
    #[arg(long, value_name = "DIR")]
    pub(super) pin: Option<PathBuf>,
    /// Serve in the background, and return when the mirror is mounted.
    #[arg(long)]
    pub(super) background: bool,
    /// Append messages to this file once the mirror is served. Without it they go to standard error or, in the
    /// background, to the system's log (/dev/log).
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// Mount over whatever is mounted there, another mirror included.
    #[arg(long, hide = true)]
    pub(super) over: bool,
    /// End when this process ends.
    #[arg(long, value_name = "PID")]
    pub(super) until: Option<i32>,
    /// Run as the process in the background.
    #[arg(long, hide = true, conflicts_with = "background")]
    pub(super) detached: bool,
    /// Write a newline to this file descriptor when the mirror is mounted.
    #[arg(long, value_name = "FD", hide = true)]
    pub(super) ready_fd: Option<i32>,
}

impl MountArgs {
    /// The options that a file can set, differ from those of `new`, and are used only at a start.
    pub(super) fn used_at_start(&self, new: &Self) -> Vec<&'static str> {
        let options = [
            ("dir", self.dir != new.dir),
            ("uid", self.serving.uid != new.serving.uid),
            ("gid", self.serving.gid != new.serving.gid),
            ("mode", self.serving.mode != new.serving.mode),
            ("language", self.serving.language != new.serving.language),
            ("boot", self.boot != new.boot),
            ("restore", self.restore != new.restore),
            ("keep-state", self.keep_state != new.keep_state),
            ("state-dir", self.state_dir != new.state_dir),
            ("pin", self.pin != new.pin),
            ("log", self.log != new.log),
        ];
        options.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// A level of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Level {
    /// Errors
    Error,
    /// Warnings too (the default)
    Warn,
    /// Information too
    Info,
    /// Each step too
    Debug,
    /// Everything
    Trace,
}

impl Level {
    /// Its name in the directives of TRACER_LOG.
    pub(super) fn directive(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How to serve a mirror.
#[derive(Clone, Debug, PartialEq, Eq, ClapArgs)]
pub(super) struct Serving {
    /// Owner of the files.
    #[arg(long, value_name = "UID", default_value_t = 0)]
    uid: u32,
    /// Group of the files.
    #[arg(long, value_name = "GID", default_value_t = 0)]
    gid: u32,
    /// Permissions of the top directory, octal.
    #[arg(long, value_name = "MODE", default_value = "700", value_parser = mode)]
    mode: u16,
    /// What definitions of dynamic events may contain, and which later files and options there are.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Language::Kernel)]
    pub(super) language: Language,
}

/// A language of definitions, files and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Language {
    /// What the running kernel's README names, with the errors of such a kernel
    Kernel,
    /// What the newest kernel understands, such as $current, this_cpu_read() and (STRUCT)ARG->FIELD
    Newest,
}

impl Serving {
    pub(super) fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid, mode: self.mode }
    }

    /// The command-line arguments with these values.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        vec![
            format!("--uid={}", self.uid).into(),
            format!("--gid={}", self.gid).into(),
            format!("--mode={:o}", self.mode).into(),
            match self.language {
                Language::Kernel => "--language=kernel".into(),
                Language::Newest => "--language=newest".into(),
            },
        ]
    }
}

/// Run a command that finds a mirror where tools look for tracefs.
///
/// The command runs in its own mount namespace, in which /sys/kernel/tracing and /sys/kernel/debug/tracing are a
/// mirror. The mirror ends with the command and is invisible outside. Exit status and signals are those of the
/// command.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  \
    tracer exec trace-cmd record -e sched:sched_switch sleep 1\n  \
    tracer exec -- sh -c 'echo 1 > /sys/kernel/tracing/events/sched/enable; cat /sys/kernel/tracing/trace'\n  \
    tracer exec --mirror /run/tracer/tracing bash")]
pub(super) struct ExecArgs {
    /// Use the mirror that is mounted here instead of a new one.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["uid", "gid", "mode"])]
    pub(super) mirror: Option<PathBuf>,
    #[command(flatten)]
    pub(super) serving: Serving,
    /// Command to run.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// The error of an option's value that has the wrong form.
#[derive(Debug, PartialEq, thiserror::Error)]
enum ValueError {
    #[error("permissions are octal, such as 755")]
    Mode,
    #[error("a duration is a number and one of us, ms, s, m, h")]
    DurationUnit,
    #[error("a duration starts with a number")]
    DurationNumber,
    #[error(transparent)]
    Duration(#[from] std::time::TryFromFloatSecsError),
}

/// Parses permissions as chmod(1) does.
fn mode(text: &str) -> Result<u16, ValueError> {
    u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777).ok_or(ValueError::Mode)
}

/// Parses `500ms`, `5s`, `2m`, `1h`, or seconds without a unit.
fn duration(text: &str) -> Result<Duration, ValueError> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(ValueError::DurationUnit),
    };
    let number: f64 = number.parse().map_err(|_| ValueError::DurationNumber)?;
    Ok(Duration::try_from_secs_f64(number * scale)?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_command_line() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_service_starts_with_a_valid_command_line() {
        let unit = include_str!("../../../packaging/systemd/tracer.service");
        let mount = |name: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            let args = Args::try_parse_from(line.split(' ')).unwrap();
            let Command::Mount(mount) = args.command else { panic!("{line}") };
            mount
        };
        let (start, reload) = (mount("ExecStart="), mount("ExecReload="));
        assert!(!start.background && !start.check && reload.check);
        assert_eq!(start.config, Some("/etc/tracer/tracer.toml".into()));
        assert_eq!(start.config, reload.config);
        // The service has a directory of its own, which systemd removes at a stop.
        let dir = unit.lines().find_map(|line| line.strip_prefix("RuntimeDirectory=")).unwrap();
        assert_eq!(start.state_dir, std::path::Path::new("/run").join(dir));
    }

    #[test]
    fn durations_are_parsed_with_and_without_a_unit() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert!(duration("fast").is_err());
        assert!(duration("5 parsecs").is_err());
    }
}
