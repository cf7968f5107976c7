//! Files whose text does not depend on the instance: fixed texts, and texts of the kernel's own files.

use rustix::io::Errno;

use super::entry::{Entry, ReadKind};
use crate::lang::facts::Feature;

/// `available_tracers`: only `nop`. Events need no other tracer.
pub(super) const AVAILABLE_TRACERS: Entry =
    Entry::read("available_tracers", ReadKind::Seq(|_, _| Ok(b"nop\n".to_vec())));

/// `timestamp_mode`: each record keeps the time since the previous record.
pub(super) const TIMESTAMP_MODE: Entry =
    Entry::read("timestamp_mode", ReadKind::Seq(|_, _| Ok(b"[delta] absolute\n".to_vec())));

/// `printk_formats`: the kernel's list.
pub(super) const PRINTK_FORMATS: Entry = Entry::read(
    "printk_formats",
    ReadKind::Kernel(|text| Ok(text.map_err(|_| Errno::IO)?.unwrap_or_default().into_bytes())),
)
.top();

/// `available_filter_functions`: the kernel's list of functions that can be probed at their entry.
pub(super) const AVAILABLE_FILTER_FUNCTIONS: Entry = functions("available_filter_functions");

/// `enabled_functions`: the kernel's list of functions that something is attached to, our programs among them.
pub(super) const ENABLED_FUNCTIONS: Entry = functions("enabled_functions");

const fn functions(name: &'static str) -> Entry {
    let read = ReadKind::Kernel(|text| match text {
        Ok(Some(text)) => Ok(text.into_bytes()),
        Ok(None) => Err(Errno::NODEV),
        // A security module can refuse the read.
        Err(_) => Err(Errno::PERM),
    });
    Entry::read(name, read).top()
}

pub(super) const README: Entry = Entry::read(
    "README",
    ReadKind::Text(|engine, _| {
        let has = |feature| engine.facts.language().has(feature);
        let later = [(Feature::Current, CURRENT), (Feature::Casts, CASTS), (Feature::ThisCpu, THIS_CPU)];
        let lacking = later.into_iter().filter(|(feature, _)| !has(*feature));
        Ok(lacking.fold(README_TEXT.to_owned(), |text, (_, line)| text.replace(line, "")).into_bytes())
    }),
)
.top();

/// What only the definitions of later kernels have.
const CURRENT: &str = "              $current,\n";
const CASTS: &str = "              [(structname[,field])]<argname>[->field[->field|.field...]],
              [(structname[,field])](fetcharg)->field[->field|.field...],\n";
const THIS_CPU: &str = "              this_cpu_read(<fetcharg>), this_cpu_ptr(<fetcharg>),\n";

/// Written anew for this program. Scripts search the kernel's text for features, so the same key phrases are here.
const README_TEXT: &str = "\
Linux event tracing with the semantics of tracefs, done by eBPF: a mirror of the kernel's tracing files.

  echo 1 > events/sched/sched_switch/enable           enable an event
  echo 'traceoff:1 if prev_pid == 0' > events/sched/sched_switch/trigger
  echo 'prev_comm ~ \"ba*\"' > events/sched/sched_switch/filter
  cat trace                                           what was recorded
  cat trace_pipe                                      what is being recorded; reading removes it
  echo > trace                                        forget what was recorded

 Events
  available_events      events that can be enabled
  set_event             events that are on; write SYSTEM:EVENT, !SYSTEM:EVENT, SYSTEM:, :EVENT, *:*
                        Can enable module events via: :mod:<module>
  set_event_pid         record only these threads
  set_event_notrace_pid record all but these threads
  events/enable         all events; 0, 1, or X for some
  events/SYSTEM/enable, events/SYSTEM/EVENT/enable
  events/SYSTEM/filter, events/SYSTEM/EVENT/filter    record only hits for which this holds; 0 removes it
  events/SYSTEM/EVENT/format                          fields of a record
  events/SYSTEM/EVENT/trigger                         what else a hit does; `!` in front removes a trigger
                        traceon, traceoff, snapshot, stacktrace, each with [:N] and [if FILTER]
                        enable_event:<system>:<event> and disable_event:<system>:<event>, likewise
                        hist:keys=<field1[,field2,...]>, counts hits in a table, with
                            [:values=<field1[,field2,...]>] [:sort=<field1[.descending][,field2...]>]
                            [:<var1>=<field|var_ref|numeric_literal>[,...]] [:size=#entries] [:name=histname]
                            [:nohitcount] [:pause|continue|clear] [:<handler>.<action>] [if FILTER]
                        handlers: onmatch(matching.event) for a hit whose key that event had, onmax(var) and
                            onchange(var) for one whose variable is greater than ever, or another one
                        actions: <synthetic_event>(param list), trace(<synthetic_event>,param list),
                            save(field,...), snapshot()
                        keys can be any field, or the special string 'common_stacktrace'
                        fields with .hex .sym .sym-offset .execname .syscall .log2 .buckets=size .usecs .percent .graph
  events/SYSTEM/EVENT/hist                            the tables
  error_log             what was wrong with the last filters

 Recording
  tracing_on            1 while records are taken
  trace_clock           clock of the time stamps
  trace_options, options/                             how records are taken and shown
  tracing_cpumask       CPUs whose records are taken
  trace_marker          text written here is recorded
  trace_marker_raw      a number and bytes written here are recorded

 Dynamic events
  dynamic_events        Create/append/remove/show the events that definitions make, a line a probe
  kprobe_events         the same, for probes of the kernel's text
  uprobe_events         the same, for probes of files
  synthetic_events      Create/append/remove/show synthetic events, a line an event; `!NAME` removes one
                        example: echo 'myevent u64 lat; char name[]; long[] stack' >> synthetic_events
  kprobe_profile        hits and misses of each kprobe
  uprobe_profile        hits of each uprobe
  program_events        Create/append/remove/show the programs whose own events (crate tracer-events) are events here

    p[:[<group>/][<event>]] <place> [<args>]
    r[maxactive][:[<group>/][<event>]] <place> [<args>]
    f[:[<group>/][<event>]] <func-name>[%return] [<args>]
    t[:[<group>/][<event>]] <tracepoint> [<args>]
    e[:[<group>/][<event>]] <attached-group>.<attached-event> [<args>] [if <filter>]
    s:[synthetic/]<event> <field> [<field>]
    -:[<group>/][<event>]

    place: [<module>:]<symbol>[+<offset>]|<memaddr>
    place (kretprobe): [<module>:]<symbol>[+<offset>]%return|<memaddr>
    place (uprobe): <path>:<offset>[%return][(ref_ctr_offset)]
    place (uprobe), only in this mirror: <path>:<function>
    args: <name>=fetcharg[:type]
    fetcharg: (%<register>|$<efield>), @<address>, @<symbol>[+|-<offset>], $stack<index>, $stack, $retval, $comm,
              $current,
              [(structname[,field])]<argname>[->field[->field|.field...]],
              [(structname[,field])](fetcharg)->field[->field|.field...],
              this_cpu_read(<fetcharg>), this_cpu_ptr(<fetcharg>),
              $arg<N>, <argname>[->field[->field|.field...]], +|-[u]<offset>(<fetcharg>), \\imm-value, \\\"imm-string\"
    type: s8/16/32/64, u8/16/32/64, x8/16/32/64, char, string, symbol, symstr, %pd/%pD, ustring,
          b<bit-width>@<bit-offset>/<container-size>, <type>\\[<array-size>\\]
    kernel return probes support: %return suffix (<symbol>[+<offset>]%return)

 Buffers
  buffer_size_kb        KiB of each CPU's buffer
  buffer_total_size_kb  KiB of all of them
  buffer_subbuf_size_kb KiB of a page of a buffer
  snapshot              1 exchanges the buffers for spare ones, to be read here; 0 frees these, 2 empties them
  free_buffer           gives the buffers back when it is closed
  per_cpu/cpuN/         trace, trace_pipe, trace_pipe_raw, stats and size of one CPU's buffer

 Instances
  instances/            mkdir makes an instance with events, filters, options and buffers of its own
";
