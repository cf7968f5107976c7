//! The directories of the mirror as tables, whose entries are its files.
//!
//! An entry's position in its table is part of the file's number ([`Node::number`](super::tree::node::Node::number)),
//! and readdir(3) lists the files in the order of the tables.

mod buffers;
mod cpumask;
mod dynamic;
pub(crate) mod entry;
mod events;
mod records;
mod selection;
mod settings;
mod tasks;
mod texts;

use self::entry::Entry;

/// The files of an instance. Entries marked [`Entry::top`] are in the top instance only.
pub(super) const TOP: &[Entry] = &[
    texts::README,
    selection::AVAILABLE_EVENTS,
    texts::AVAILABLE_FILTER_FUNCTIONS,
    texts::AVAILABLE_TRACERS,
    buffers::BUFFER_PERCENT,
    buffers::BUFFER_SIZE_KB,
    buffers::BUFFER_SUBBUF_SIZE_KB,
    buffers::BUFFER_TOTAL_SIZE_KB,
    settings::CURRENT_TRACER,
    dynamic::DYNAMIC_EVENTS,
    texts::ENABLED_FUNCTIONS,
    settings::ERROR_LOG,
    buffers::FREE_BUFFER,
    dynamic::KPROBE_EVENTS,
    dynamic::KPROBE_PROFILE,
    texts::PRINTK_FORMATS,
    dynamic::PROGRAM_EVENTS,
    tasks::SAVED_CMDLINES,
    tasks::SAVED_CMDLINES_SIZE,
    tasks::SAVED_TGIDS,
    selection::SET_EVENT,
    selection::SET_EVENT_PID,
    selection::SET_EVENT_NOTRACE_PID,
    selection::SHOW_EVENT_FILTERS,
    selection::SHOW_EVENT_TRIGGERS,
    records::SNAPSHOT,
    dynamic::SYNTHETIC_EVENTS,
    settings::SYSCALL_USER_BUF_SIZE,
    texts::TIMESTAMP_MODE,
    records::TRACE,
    settings::TRACE_CLOCK,
    records::TRACE_MARKER,
    records::TRACE_MARKER_RAW,
    settings::TRACE_OPTIONS,
    records::TRACE_PIPE,
    cpumask::TRACING_CPUMASK,
    settings::TRACING_ON,
    dynamic::UPROBE_EVENTS,
    dynamic::UPROBE_PROFILE,
    dynamic::USER_EVENTS_DATA,
    dynamic::USER_EVENTS_STATUS,
];

/// The files of `events`.
pub(super) const EVENTS: &[Entry] = &[events::ALL_ENABLE, buffers::HEADER_PAGE, buffers::HEADER_EVENT];

/// The files of `events/SYSTEM`.
pub(super) const SYSTEM: &[Entry] = &[events::SYSTEM_ENABLE, events::SYSTEM_FILTER];

/// The files of `events/SYSTEM/EVENT`.
pub(super) const EVENT: &[Entry] = KERNEL_EVENT.split_at(1).1;

/// The files of an event of the kernel: one more, at the beginning.
pub(super) const KERNEL_EVENT: &[Entry] = ALL_OF_EVENT.split_at(ALL_OF_EVENT.len() - 1).0;

/// The files of a synthetic event: one more, at the end.
pub(super) const SYNTHETIC_EVENT: &[Entry] = ALL_OF_EVENT.split_at(1).1;

const ALL_OF_EVENT: &[Entry] = &[
    events::BTF_IDS,
    events::ENABLE,
    events::FILTER,
    events::FORMAT,
    events::HIST,
    events::ID,
    events::INJECT,
    events::TRIGGER,
    events::SYNTH_EVENT_TRACE,
];

/// The files of an event that cannot be enabled, such as the events of marks and stacks.
pub(super) const SPECIAL_EVENT: &[Entry] = &[events::FORMAT, events::ID];

/// The files of `ftrace/print`, which has triggers (`event_callback()`, kernel/trace/trace_events.c).
pub(super) const PRINT_EVENT: &[Entry] = &[events::FORMAT, events::HIST, events::ID, events::TRIGGER];

/// The files of `per_cpu/cpuN`.
pub(super) const CPU: &[Entry] = &[
    buffers::BUFFER_SIZE_KB,
    records::SNAPSHOT,
    records::SNAPSHOT_RAW,
    buffers::STATS,
    records::TRACE,
    records::TRACE_PIPE,
    records::TRACE_PIPE_RAW,
];

/// The entry of all files of `options`.
pub(super) const OPTION: Entry = settings::OPTION;
