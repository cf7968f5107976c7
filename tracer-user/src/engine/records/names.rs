//! Names of threads: the two events that change names, followed while anything is traced.

use tracer_abi::control;

use crate::{
    attach::{AttachError, AttachPoint, Attached, Dispatch, HitActions, Request, Session, Threads},
    engine::{
        attachments::session::{Scope, SessionFactory},
        facts::Facts,
        records::common::kind_of,
        tasks::{NameEvent, TaskNames},
    },
    event::{Format, Slot},
    plan::source::ProgramContext,
    ring::Drain,
    sys::bpf::cpu_ring::CpuRing,
};

/// Size of a CPU's ring in bytes: some hundred new names between two reads.
const RING_BYTES: u32 = 64 * 1024;

/// The two events that change names, attached in a session with other events or in a separate session. Their record
/// kinds are control kinds, which no event has.
#[derive(Debug, Default)]
pub(crate) struct NameEvents(Vec<(Attached, NameEvent)>);

impl NameEvents {
    pub(crate) fn attach(session: &mut Session, facts: &Facts) -> Result<Self, AttachError> {
        let mut events = Vec::new();
        for name in ["task_newtask", "task_rename"] {
            let Ok(Some(text)) = facts.tracefs.format("task", name) else { continue };
            let Ok(format) = Format::parse("task", &text) else { continue };
            let Some(event) = NameEvent::of(&format) else { continue };
            let attachment = session.attach(
                &Request {
                    format: &format,
                    context: &ProgramContext::Tracepoint,
                    point: &AttachPoint::Tracepoint(format.id),
                    filter: None,
                    irqs_off: false,
                    kind: control::FIRST + events.len() as u16,
                    threads: Threads::Every,
                    other: None,
                    hit_actions: HitActions::default(),
                },
                Dispatch::Direct,
            )?;
            events.push((attachment, event));
        }
        Ok(Self(events))
    }

    /// Learns a name from a record of this kind. Returns whether one of the two events made the record.
    pub(crate) fn learn(&self, kind: u16, payload: &[u8], tasks: &mut TaskNames) -> bool {
        let event = kind.checked_sub(control::FIRST).and_then(|index| self.0.get(usize::from(index)));
        if let Some((_, event)) = event {
            tasks.learn(*event, payload);
        }
        event.is_some()
    }

    /// The slots that hold their counts.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.0.iter().filter_map(|(attachment, _)| attachment.slot())
    }
}

/// Follows names for all instances of an engine, in a separate session.
#[derive(Debug)]
pub(crate) struct Names {
    _session: Session,
    drain: Drain,
    events: NameEvents,
}

impl Names {
    pub(crate) fn follow(factory: &SessionFactory, facts: &Facts) -> Result<Self, AttachError> {
        let (mut session, rings) = factory.session(RING_BYTES, 2, Scope::Every, facts)?;
        let events = NameEvents::attach(&mut session, facts)?;
        session.switches().set_tracing(true);
        Ok(Self { _session: session, drain: Drain::new(rings), events })
    }

    pub(crate) fn rings(&self) -> &[CpuRing] {
        self.drain.rings()
    }

    /// Reads the names since the last call.
    pub(crate) fn collect(&mut self, tasks: &mut TaskNames) {
        let Self { drain, events, .. } = self;
        // In order of time: a thread may get its first name on one CPU and the next on another.
        drain.finish(|record| {
            events.learn(kind_of(record.payload), record.payload, tasks);
        });
    }
}
