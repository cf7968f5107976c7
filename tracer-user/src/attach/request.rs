//! What is asked of a session: an event, where it is to be had, and what becomes of its hits.

use tracer_abi::{Params, params};

use super::{AttachError, AttachPoint, Cause, HitActions, object::Functions, uprobe};
use crate::{
    event::Format,
    plan::{
        filter::Filter,
        source::{Other, ProgramContext, Source},
    },
    sys::prog::Purpose,
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

impl Request<'_> {
    /// What its program is loaded for: what hangs on files hangs on uprobe.multi links.
    pub(super) fn purpose(&self) -> Purpose<'_> {
        match (self.via, self.hook) {
            (
                AttachPoint::Uprobe(_) | AttachPoint::Uretprobe(_),
                ProgramContext::Probe(_) | ProgramContext::UserRecord(_),
            ) => uprobe::purpose(),
            _ => self.via.purpose(),
        }
    }
}

/// One event to be traced.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The event.
    pub format: &'a Format,
    /// How its values are had at the hook.
    pub hook: &'a ProgramContext,
    /// The hook.
    pub via: &'a AttachPoint,
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
    pub extras: HitActions<'a>,
}

impl Request<'_> {
    /// That what it is for hangs at this hook.
    pub(super) fn must_be_at(&self, via: &AttachPoint) -> Result<(), AttachError> {
        if self.via == via {
            return Ok(());
        }
        Err(AttachError::new(self.format.full_name(), Cause::Misplaced("a request for another hook")))
    }

    /// Generates what its program does.
    pub(super) fn functions(&self) -> Result<Functions, AttachError> {
        Functions::generate(self.format, self.hook, self.filter, self.extras.triggers)
            .map_err(|cause| AttachError::new(self.format.full_name(), cause))
    }

    /// Says where the hook has the other thread that the event is about.
    pub(super) fn tell_other(&self, fixed: &mut Params) {
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

    /// What tells a program at the hit which event it is, so that events share it: [`params::COOKIE`] or
    /// [`params::BY_CALL`]. 0 where each event has a program of its own, as a system call's has whose number is a
    /// constant in it.
    pub(super) fn reported_at_hit(&self) -> u32 {
        match (self.via, self.hook) {
            (AttachPoint::Tracepoint(_) | AttachPoint::Shared { .. }, _)
            | (_, ProgramContext::UserRecord(_)) => params::COOKIE,
            (AttachPoint::SysEnter(_) | AttachPoint::SysExit(_), ProgramContext::RawTracepoint(fields))
                if !fields.iter().any(|field| matches!(field.source, Source::Const(_))) =>
            {
                params::BY_CALL
            }
            _ => 0,
        }
    }

    /// What it tells: slot and kind.
    pub(super) fn cookie(&self, slot: u32) -> u64 {
        tracer_abi::cookie(slot, self.kind)
    }
}
