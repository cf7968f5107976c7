//! The tables of the tree, one file below for each file of tracefs.

use super::entry::Entry;

mod available_events;
mod available_filter_functions;
mod available_tracers;
mod buffer_percent;
mod buffer_size_kb;
mod buffer_subbuf_size_kb;
mod buffer_total_size_kb;
mod current_tracer;
mod dynamic_events;
mod error_log;
mod event_enable;
mod event_filter;
mod event_format;
mod event_hist;
mod event_id;
mod event_inject;
mod event_trigger;
mod event_values;
mod free_buffer;
mod header_event;
mod header_page;
mod kprobe_events;
mod kprobe_profile;
mod option;
mod printk_formats;
mod program_events;
mod readme;
mod saved_cmdlines;
mod saved_cmdlines_size;
mod saved_tgids;
mod set_event;
mod set_event_pid;
mod snapshot;
mod stats;
mod synthetic_events;
mod system_enable;
mod system_filter;
mod timestamp_mode;
mod trace;
mod trace_clock;
mod trace_marker;
mod trace_options;
mod trace_pipe;
mod tracing_cpumask;
mod tracing_on;
mod uprobe_events;
mod uprobe_profile;
mod user_events_data;
mod user_events_status;

/// Files of an instance; those marked so are the top's alone.
pub(super) const TOP: &[Entry] = &[
    readme::FILE,
    available_events::FILE,
    available_filter_functions::FILE,
    available_tracers::FILE,
    buffer_percent::FILE,
    buffer_size_kb::FILE,
    buffer_subbuf_size_kb::FILE,
    buffer_total_size_kb::FILE,
    current_tracer::FILE,
    dynamic_events::FILE,
    error_log::FILE,
    free_buffer::FILE,
    kprobe_events::FILE,
    kprobe_profile::FILE,
    printk_formats::FILE,
    program_events::FILE,
    saved_cmdlines::FILE,
    saved_cmdlines_size::FILE,
    saved_tgids::FILE,
    set_event::FILE,
    set_event_pid::TRACED,
    set_event_pid::UNTRACED,
    snapshot::FILE,
    synthetic_events::FILE,
    timestamp_mode::FILE,
    trace::FILE,
    trace_clock::FILE,
    trace_marker::TEXT,
    trace_marker::RAW,
    trace_options::FILE,
    trace_pipe::FILE,
    tracing_cpumask::FILE,
    tracing_on::FILE,
    uprobe_events::FILE,
    uprobe_profile::FILE,
    user_events_data::FILE,
    user_events_status::FILE,
];

/// Files of `events`.
pub(super) const EVENTS: &[Entry] = &[system_enable::ALL, header_page::FILE, header_event::FILE];

/// Files of a system.
pub(super) const SYSTEM: &[Entry] = &[system_enable::FILE, system_filter::FILE];

/// Files of an event.
pub(super) const EVENT: &[Entry] = &[
    event_enable::FILE,
    event_filter::FILE,
    event_format::FILE,
    event_hist::FILE,
    event_id::FILE,
    event_inject::FILE,
    event_trigger::FILE,
];

/// Files of a synthetic event.
pub(super) const SYNTHETIC_EVENT: &[Entry] = &[
    event_enable::FILE,
    event_filter::FILE,
    event_format::FILE,
    event_hist::FILE,
    event_id::FILE,
    event_inject::FILE,
    event_trigger::FILE,
    event_values::FILE,
];

/// Files of an event that is recorded by itself.
pub(super) const SPECIAL_EVENT: &[Entry] = &[event_format::FILE, event_id::FILE];

/// Files of the one among them that has triggers (`event_callback()`, kernel/trace/trace_events.c).
pub(super) const PRINT_EVENT: &[Entry] =
    &[event_format::FILE, event_hist::FILE, event_id::FILE, event_trigger::FILE];

/// Files of a CPU.
pub(super) const CPU: &[Entry] = &[
    buffer_size_kb::FILE,
    snapshot::FILE,
    snapshot::RAW,
    stats::FILE,
    trace::FILE,
    trace_pipe::FILE,
    trace_pipe::RAW,
];

/// An option; its name is its own.
pub(super) const OPTION: Entry = option::FILE;
