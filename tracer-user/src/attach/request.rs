//! What is asked of a session: an event, where it is to be had, and what becomes of its hits.

use super::{Extras, Via};
use crate::{
    event::Format,
    plan::{filter::Filter, source::Hook},
};

/// Whose hits a program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// Those of the session: all, or those in the pid table; ours only when asked for.
    #[default]
    Traced,
    /// All, even ours: for bookkeeping.
    Every,
    /// Only those of this process.
    Own,
}

/// Where a hook has the id of the other thread that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// In the context, at this byte offset.
    InRecord(u32),
    /// In the `task_struct` that an argument points to, at this byte offset.
    InTask {
        /// Number of the argument.
        arg: u8,
        /// Byte offset of `pid`.
        offset: u32,
    },
}

/// One event to be traced.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The event.
    pub format: &'a Format,
    /// How its values are had at the hook.
    pub hook: &'a Hook,
    /// The hook.
    pub via: &'a Via,
    /// Hits that do not match are counted and dropped.
    pub filter: Option<&'a Filter>,
    /// The event only ever happens with interrupts off.
    pub irqs_off: bool,
    /// What the records' `common_type` is: the event's id, unless the caller has a use for another.
    pub kind: u16,
    /// Whose hits are taken.
    pub threads: Threads,
    /// Another thread that the event is about: where it is traced, the hit is.
    pub other: Option<Other>,
    /// What a hit does beside being recorded.
    pub extras: Extras<'a>,
}
