//! `TRACE_EVENT` for user space: typed events that cost a load and a branch while they are not traced.
//!
//! An event has a name, fields, statements that fill them and a print format, like the kernel's events. Tracers show it
//! like a kernel event: `tracer` and other readers of tracefs know its fields, filter by them before recording, and
//! print it with its format.
//!
//! ```
//! use tracer_events::trace_event;
//!
//! const TAINT_PROPRIETARY: u32 = 0;
//! const TAINT_OUT_OF_TREE: u32 = 12;
//!
//! trace_event! {
//!     /// A plugin was loaded.
//!     pub plugin_load(name: &str, taints: u32),
//!     system = "demo",
//!     entry {
//!         field(u32, taints),
//!         string(name, name),
//!     },
//!     assign {
//!         entry.taints = taints;
//!     },
//!     printk("%s %s", __get_str(name),
//!         __print_flags(entry.taints, "", { 1 << TAINT_PROPRIETARY, "P" }, { 1 << TAINT_OUT_OF_TREE, "O" })),
//! }
//!
//! trace_plugin_load("zlib", 1 << TAINT_OUT_OF_TREE);
//! assert!(!trace_plugin_load_enabled());
//! ```
//!
//! To trace it (the program needs no preparation and may already run):
//!
//! ```text
//! # tracer record --program target/debug/demo -e demo:plugin_load
//! demo-4711    [001] .....  812.417630: plugin_load: zlib O
//! ```
//!
//! # Parts of an event
//!
//! | part | says |
//! |---|---|
//! | `pub name(a: A, b: B),` | the function `trace_name` that traces it, and its parameters; `trace_name_enabled()` returns whether the event is traced |
//! | `system = "demo",` | the event's directory under `events` |
//! | `entry { ... },` | the record's fields, in order, laid out as a C structure |
//! | `assign { ... },` | statements that fill `entry`; they run only while the event is traced; a `return` in them drops the event |
//! | `printk("...", ...)` | the format, and the kernel's helpers |
//!
//! | field | in `assign` | in the format file |
//! |---|---|---|
//! | `field(u32, flags)` | `entry.flags = 1` | `unsigned int flags` |
//! | `field(Pid as "pid_t", pid)` | `entry.pid = 1`, of the type `Pid` | `pid_t pid` |
//! | `field_ext(*const c_char, where_, FILTER_PTR_STRING)` | a pointer; filters read the text behind it | `const char * where_` |
//! | `array(char, comm, 16)` | `entry.comm.set("text")` ([`Text`]), or its bytes | `char comm[16]` |
//! | `array(u32, words, 4)` | `entry.words = [1, 2, 3, 4]` | `unsigned int words[4]` |
//! | `string(name, EXPR)` | nothing: its value is `EXPR` | `__data_loc char[] name` |
//! | `dynamic_array(u64, ips, EXPR)` | `entry.ips().copy_from_slice(..)`, `EXPR` elements | `__data_loc u64[] ips` |
//!
//! Types are `u8` to `u64`, `i8` to `i64`, `usize`, `isize`, `bool`, C's `char` (a `u8`), raw pointers, and the
//! program's own aliases for these with a C name after `as`. A record has [4096 bytes](DATA_MAX) for
//! strings and dynamic arrays; longer data is truncated.
//!
//! The arguments of `printk` are `entry.field`, `entry.array[0]`, numbers, named constants (the format file contains
//! their values), casts (`as u64`, `as *const ()`), Rust's operators, `if .. { } else { }`, and `__get_str`,
//! `__get_dynamic_array`, `__get_dynamic_array_len`, `__print_flags`, `__print_symbolic` (both also with `_u64`),
//! `__print_hex`, `__print_hex_str`, `__print_array`, `__print_ns_to_secs` and `__print_ns_without_secs`. The compiler
//! checks each argument against its conversion:
//!
//! ```compile_fail
//! tracer_events::trace_event! {
//!     wrong(pid: i32),
//!     system = "demo",
//!     entry { field(i32, pid) },
//!     assign { entry.pid = pid; },
//!     printk("pid=%s", entry.pid), // error: `%s`: `entry.pid` is a number: `%d` or `%u` prints it
//! }
//! ```
//!
//! It also checks the types of assignments:
//!
//! ```compile_fail
//! tracer_events::trace_event! {
//!     wrong(pid: u64),
//!     system = "demo",
//!     entry { field(i32, pid) },
//!     assign { entry.pid = pid; }, // error: expected `i32`, found `u64`
//!     printk("pid=%d", entry.pid),
//! }
//! ```
//!
//! # Classes
//!
//! Events with the same fields share their code, in the program and in the tracer:
//!
//! ```
//! use tracer_events::{declare_event_class, define_event, define_event_print};
//!
//! pub struct Task { comm: String, pid: i32, prio: i32 }
//!
//! declare_event_class! {
//!     pub wakeup_template(task: &Task, cpu: i32),
//!     entry {
//!         array(char, comm, 16),
//!         field(i32 as "pid_t", pid),
//!         field(i32, prio),
//!         field(i32, target_cpu),
//!     },
//!     assign {
//!         entry.comm.set(&task.comm);
//!         entry.pid = task.pid;
//!         entry.prio = task.prio;
//!         entry.target_cpu = cpu;
//!     },
//!     printk("comm=%s pid=%d prio=%d target_cpu=%03d", entry.comm, entry.pid, entry.prio, entry.target_cpu),
//! }
//!
//! define_event! { pub wakeup, class = wakeup_template, system = "demo" }
//! define_event! { pub wakeup_new, class = wakeup_template, system = "demo" }
//! define_event_print! { pub waking, class = wakeup_template, system = "demo", printk("%s", entry.comm) }
//!
//! let task = Task { comm: "worker".into(), pid: 1, prio: 120 };
//! trace_wakeup(&task, 3);
//! trace_waking(&task, 3);
//! ```
//!
//! # Cost
//!
//! An event that is not traced costs one load and one branch; its other code is out of line. A traced event builds its
//! record on the stack and passes it to the tracers. A probe at the event's site copies the record if the filter
//! accepts it, at the cost of the kernel's entry into a probe. user_events need a `write`. Numbers:
//! `docs/reference/performance.md` of tracer.
//!
//! # Platforms
//!
//! Linux on x86-64 and arm64. On other 64-bit Linux machines programs build, and only user_events trace them.

#[allow(unsafe_code, reason = "a section of its own")]
mod event;
#[allow(unsafe_code, reason = "a record is bytes and a structure at once")]
mod record;
mod register;
mod site;
#[allow(unsafe_code, reason = "the one place of ours that the linker and the kernel have to be believed")]
mod sys;
mod user_events;
mod value;

pub use event::{Class, Event, Field, Kind};
pub use record::DATA_MAX;
pub use register::{Registered, Transport, events, register, register_at, register_by};
pub use tracer_events_macros::{__event, declare_event_class, define_event, define_event_print, trace_event};
pub use value::{DataLoc, Text, Value};

/// Items for the macros.
#[doc(hidden)]
pub mod __private {
    pub use crate::record::{DATA_MAX, Fields, Record, submit};
}
