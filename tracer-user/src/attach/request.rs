//! A request to a session: an event, its hook, and the processing of its hits.

use tracer_abi::{Params, params};

use super::{AttachError, AttachPoint, Cause, HitActions, hooks::uprobe, program::object::Functions};
use crate::{
    event::{Format, Slot},
    plan::{
        filter::Filter,
        source::{Other, ProgramContext, Source},
    },
    sys::bpf::prog::Purpose,
};

/// The threads whose hits a program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// The session's threads: all, or those in the pid table; threads of this process only if requested.
    #[default]
    Traced,
    /// All threads, including those of this process, for bookkeeping.
    Every,
    /// Only threads of this process.
    Own,
}

/// One event to be traced.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The event.
    pub format: &'a Format,
    /// How the program reads the event's values at the hook.
    pub context: &'a ProgramContext,
    /// The hook.
    pub point: &'a AttachPoint,
    /// Hits that do not match are counted and dropped.
    pub filter: Option<&'a Filter>,
    /// The event only ever happens with interrupts off.
    pub irqs_off: bool,
    /// The `common_type` of the records: the event's id, unless the caller needs another number.
    pub kind: u16,
    /// The threads whose hits are taken.
    pub threads: Threads,
    /// Another thread that the event concerns: if that thread is traced, the hit is taken.
    pub other: Option<Other>,
    /// Actions of a hit in addition to its record.
    pub hit_actions: HitActions<'a>,
}

impl Request<'_> {
    pub(super) fn failed(&self, cause: Cause) -> AttachError {
        AttachError::new(self.format.full_name(), cause)
    }

    /// The expected attach type: programs at files use uprobe.multi links.
    pub(super) fn purpose(&self) -> Purpose<'_> {
        match (self.point, self.context) {
            (
                AttachPoint::Uprobe(_) | AttachPoint::Uretprobe(_),
                ProgramContext::Probe(_) | ProgramContext::UserRecord(_),
            ) => uprobe::purpose(),
            _ => self.point.purpose(),
        }
    }

    pub(super) fn functions(&self) -> Result<Functions, AttachError> {
        Functions::generate(self.format, self.context, self.filter, self.hit_actions.triggers)
            .map_err(|cause| self.failed(cause))
    }

    /// Sets the location of the other thread that the event concerns.
    pub(super) fn set_other(&self, fixed: &mut Params) {
        match self.other {
            None => {}
            Some(Other::InRecord(offset)) => {
                fixed.bits |= params::OTHER_IN_RECORD;
                fixed.other_offset = offset;
            }
            Some(Other::InTask { arg, offset }) => {
                fixed.bits |= params::OTHER_IN_TASK;
                fixed.other_arg = u32::from(arg);
                fixed.other_offset = offset;
            }
        }
    }

    /// How a shared program learns at the hit which event it records: [`params::COOKIE`] or [`params::BY_CALL`]. 0 if
    /// each event has its own program, for example a system call whose number is a constant in the program.
    pub(super) fn reported_at_hit(&self) -> u32 {
        match (self.point, self.context) {
            (
                AttachPoint::Tracepoint(_)
                | AttachPoint::CallTracepoint(_)
                | AttachPoint::Shared { .. }
                | AttachPoint::SharedExit(_),
                _,
            )
            | (_, ProgramContext::UserRecord(_)) => params::COOKIE,
            (AttachPoint::SysEnter(_) | AttachPoint::SysExit(_), ProgramContext::RawTracepoint(fields))
                if !fields.iter().any(|field| matches!(field.source, Source::Const(_))) =>
            {
                params::BY_CALL
            }
            _ => 0,
        }
    }

    /// The attach cookie: slot and kind.
    pub(super) fn cookie(&self, slot: Slot) -> u64 {
        tracer_abi::cookie(slot.get(), self.kind)
    }
}
