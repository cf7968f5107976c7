//! Loading linked objects and attaching them to hooks.
//!
//! A [`Session`] owns the maps that all of its programs share, and the memory that kernel and user space share. Each
//! program is a template of `tracer-ebpf` with generated functions linked in. An attached program is an [`Attached`]:
//! events, probes, relays and histograms have one life cycle (`attached/lifecycle.rs`). Everything in the kernel is
//! held by descriptors. When they close, with the value or with the process, the kernel removes everything.
//!
//! aya's object layer parses and relocates. Maps and programs are created through `sys`, because aya 0.14's loader does
//! not support maps shared among objects, cookies and `BPF_PROG_TYPE_SYSCALL`.

mod attach_point;
mod attached;
mod close;
mod context;
mod error;
mod hooks;
pub mod ids;
mod link;
mod maps;
mod program;
pub mod published;
mod request;
mod session;
mod slots;
mod tasks;

pub use attach_point::AttachPoint;
pub use attached::chain::Chains;
pub use attached::emission::{Block, emission};
pub use attached::functions::{FunctionLinks, LinkedFunctions};
pub use attached::hist::{
    Counts, HistContents, HistContext, attach as attach_hist, part as hist_part, replace as replace_hist,
};
pub use attached::lifecycle::{Attached, Dispatch, Parked, Planned, detach_all, detach_late, detach_parked};
pub use attached::relay::{Relayed, relayed};
pub use close::guard::{DETACH_MAX, Guard, INLINE_CLOSE_MAX, hand_over, hold};
pub use close::links::Pace;
pub use close::opening::{CloseThrottle, LOCK_FILE, Opening, close};
pub use close::perf_event::{PerfEvent, take_unused};
pub use close::unlink::{Moment, close_files, closed_since, now as moment};
pub use context::{Bias, Context, CountLayout, Preempt, PreemptLocation, TaskIds, locate_preempt};
pub use error::{AttachError, Cause};
pub use hooks::call_pages::CallPages;
pub use hooks::calls::Calls;
pub use hooks::fentry::{Function, ModuleTypes, has_exits};
pub use hooks::kprobe::{KernelPlace, try_kprobe};
pub use hooks::open_perf_event;
pub use hooks::opened::{Ahead, OpenedEvents};
pub use hooks::uprobe::{FilePlace, Hooks, Job};
pub use maps::{CounterTable, Options, Switches, ThreadTable};
pub use program::builder::{Built, BulkBuilder};
pub use program::hit_actions::HitActions;
pub use program::inject::Writer;
pub use program::kernel_read::{Hashes, kernel_word};
pub use program::kernel_text::TextReader;
pub use request::{Request, Threads};
pub use session::{Session, TracingSwitch, listing};
pub use tasks::{TaskOffsets, Tasks};
