//! `TRACE_EVENT` for user space: typed events that cost a load and a branch until somebody traces them.
//!
//! An event has a name, fields, statements that fill them and a format that prints them, as the kernel's have. Whoever traces
//! with the kernel's own means then sees it like one of the kernel's: `tracer` and everything that reads tracefs knows its
//! fields, filters by them before anything is recorded, and prints what the event says of itself.
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
//! To see it (the program has nothing to do for that, and may run already):
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
//! | `pub name(a: A, b: B),` | the function `trace_name` that traces it, and its parameters; `trace_name_enabled()` says whether anybody listens |
//! | `system = "demo",` | the directory of events that it is in |
//! | `entry { ... },` | the record's fields, in order, laid out as a C structure |
//! | `assign { ... },` | statements that fill `entry`; they run only when somebody traces the event, and to `return` from them drops it |
//! | `printk("...", ...)` | the format, and the kernel's helpers |
//!
//! | field | in `assign` | in the format file |
//! |---|---|---|
//! | `field(u32, flags)` | `entry.flags = 1` | `unsigned int flags` |
//! | `field(Pid as "pid_t", pid)` | `entry.pid = 1`, of the type `Pid` | `pid_t pid` |
//! | `field_ext(*const c_char, where_, FILTER_PTR_STRING)` | a pointer; filters read the text behind it | `const char * where_` |
//! | `array(char, comm, 16)` | `entry.comm.set("text")` ([`Text`]), or its bytes | `char comm[16]` |
//! | `array(u32, words, 4)` | `entry.words = [1, 2, 3, 4]` | `unsigned int words[4]` |
//! | `string(name, EXPR)` | nothing: it is what `EXPR` says | `__data_loc char[] name` |
//! | `dynamic_array(u64, ips, EXPR)` | `entry.ips().copy_from_slice(..)`, `EXPR` of them | `__data_loc u64[] ips` |
//!
//! Types are `u8` to `u64`, `i8` to `i64`, `usize`, `isize`, `bool`, C's `char` (a `u8`), raw pointers, and names of the
//! program's for these with a name in C behind `as`. A record has room for [4096 bytes](MOST) of texts and arrays; what is
//! longer is cut.
//!
//! The arguments of `printk` are `entry.field`, `entry.array[0]`, numbers, constants by name (their values are in the format file),
//! casts (`as u64`, `as *const ()`), Rust's operators, `if .. { } else { }`, and `__get_str`, `__get_dynamic_array`,
//! `__get_dynamic_array_len`, `__print_flags`, `__print_symbolic` (both also with `_u64`), `__print_hex`, `__print_hex_str`,
//! `__print_array`, `__print_ns_to_secs` and `__print_ns_without_secs`. Each is held against its conversion when the program is
//! compiled:
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
//! So are the types of what is assigned:
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
//! # What it costs
//!
//! An event that nobody traces is one load and one branch behind which the rest lies out of the way. One that is traced builds its
//! record on the stack and hands it to whoever listens: a probe at the event's place copies it if the filter wants it, which
//! takes the kernel's way into a probe; user_events take a `write`. Numbers: `docs/PERFORMANCE.md` of tracer.
//!
//! # Where
//!
//! Linux on x86-64 and arm64; on its other machines of 64 bits programs build, and only user_events trace them.

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
pub use record::ROOM as MOST;
pub use register::{Registered, Transport, events, register, register_at, register_by};
pub use tracer_events_macros::{__event, declare_event_class, define_event, define_event_print, trace_event};
pub use value::{DataLoc, Text, Value};

/// What the macros use.
#[doc(hidden)]
pub mod __private {
    pub use crate::record::{Fields, ROOM, Record, submit};
}
