//! The processing that an instance wants for the hits of one event, in the terms of the attach layer.
//!
//! [`EventSettings`] is derived from wanted state alone and can be compared: an attached event whose settings are
//! equal to the derived ones needs no new program. [`EventConfig`] adds the event's format.

use crate::{
    attach::{AttachPoint, HitActions, Request, Threads},
    engine::hooks,
    event::{Format, irqs_off},
    plan::{filter::Filter, source::ProgramContext, trigger::Trigger},
};

/// The processing of a hit by an event's program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventSettings {
    pub(crate) filter: Option<Filter>,
    /// The triggers, the newest first.
    pub(crate) triggers: Vec<Trigger>,
    /// Whether triggers enable and disable the event.
    pub(crate) soft: bool,
    /// Whether histograms run after the triggers.
    pub(crate) counted: bool,
    /// Whether records of the kernel stack and of the user stack follow each record.
    pub(crate) stacks: [bool; 2],
    /// Kinds of the records of these stacks.
    pub(crate) stack_kinds: [u16; 2],
}

/// Settings of an event with its format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventConfig<'a> {
    pub(crate) format: &'a Format,
    pub(crate) settings: &'a EventSettings,
    /// Whether the event is soft-disabled when it is attached.
    pub(crate) begins_off: bool,
}

impl<'a> EventConfig<'a> {
    /// The request for a program with a hook.
    pub(crate) fn request<'b>(&self, point: &'b AttachPoint, context: &'b ProgramContext) -> Request<'b>
    where
        'a: 'b,
    {
        let EventSettings { filter, triggers, soft, counted, stacks, stack_kinds } = self.settings;
        Request {
            format: self.format,
            context,
            point,
            filter: filter.as_ref(),
            irqs_off: irqs_off::holds_at_event(self.format),
            kind: self.format.id,
            threads: Threads::Traced,
            other: hooks::other(self.format, context),
            hit_actions: HitActions {
                triggers,
                soft: *soft,
                begins_off: self.begins_off,
                kernel_stack: stacks[0],
                user_stack: stacks[1],
                stacks: *stack_kinds,
                counted: *counted,
                ..HitActions::default()
            },
        }
    }

    /// The request for a program that gets complete records instead of hits.
    pub(crate) fn emitted_request(&self, point: &'a AttachPoint, context: &'a ProgramContext) -> Request<'a> {
        let mut request = self.request(point, context);
        request.other = None;
        request.hit_actions.shared_row = true;
        request
    }
}
