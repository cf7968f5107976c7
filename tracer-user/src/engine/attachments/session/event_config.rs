//! The processing that an instance wants for the hits of one event, in the terms of the attach layer.
//!
//! [`EventSettings`] is derived from wanted state alone and can be compared: an attached event whose settings are
//! equal to the derived ones needs no new program. [`EventConfig`] adds the event's format.

use crate::{
    attach::{AttachPoint, HitActions, Request, Threads},
    engine::hooks,
    event::Format,
    plan::{filter::Filter, source::ProgramContext, trigger::Trigger},
};

/// The processing of a hit by an event's program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct EventSettings {
    pub(in crate::engine) filter: Option<Filter>,
    /// The triggers, the newest first.
    pub(in crate::engine) triggers: Vec<Trigger>,
    /// Whether triggers enable and disable the event.
    pub(in crate::engine) soft: bool,
    /// Whether histograms run after the triggers.
    pub(in crate::engine) counted: bool,
    /// Whether records of the kernel stack and of the user stack follow each record.
    pub(in crate::engine) stacks: [bool; 2],
    /// Kinds of the records of these stacks.
    pub(in crate::engine) stack_kinds: [u16; 2],
}

/// Settings of an event with its format.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct EventConfig<'a> {
    pub(in crate::engine) format: &'a Format,
    pub(in crate::engine) settings: &'a EventSettings,
    /// Whether the event is soft-disabled when it is attached.
    pub(in crate::engine) begins_off: bool,
}

impl<'a> EventConfig<'a> {
    /// The request for a program with a hook.
    pub(in crate::engine) fn request<'b>(&self, via: &'b AttachPoint, hook: &'b ProgramContext) -> Request<'b>
    where
        'a: 'b,
    {
        let EventSettings { filter, triggers, soft, counted, stacks, stack_kinds } = self.settings;
        Request {
            format: self.format,
            hook,
            via,
            filter: filter.as_ref(),
            irqs_off: hooks::irqs_off(self.format),
            kind: self.format.id,
            threads: Threads::Traced,
            other: hooks::other(self.format, hook),
            hit_actions: HitActions {
                triggers,
                soft: *soft,
                soft_slot: None,
                begins_off: self.begins_off,
                kernel_stack: stacks[0],
                user_stack: stacks[1],
                stacks: *stack_kinds,
                no_record: false,
                shared_row: false,
                counted: *counted,
            },
        }
    }

    /// The request for a program that gets complete records instead of hits.
    pub(in crate::engine) fn emitted_request(
        &self,
        via: &'a AttachPoint,
        hook: &'a ProgramContext,
    ) -> Request<'a> {
        let mut request = self.request(via, hook);
        request.other = None;
        request.hit_actions.shared_row = true;
        request
    }
}
