//! Names of threads for all instances: the two events that change names, followed while anything is traced.

use tracer_abi::{STAMP_SIZE, control};

use crate::{
    attach::{AttachError, AttachPoint, Attached, Dispatch, HitActions, Request, Session, Threads},
    engine::{
        attachments::session::SessionFactory,
        facts::Facts,
        tasks::{NameEvent, TaskNames},
    },
    event::Format,
    plan::source::ProgramContext,
    sys::bpf::ring::{RingMemory, Seen},
};

/// Bytes of a CPU's ring: some hundred new names between two visits of the reader.
const RING_BYTES: u32 = 64 * 1024;

/// What follows names.
#[derive(Debug)]
pub(in crate::engine) struct Names {
    _session: Session,
    rings: Vec<RingMemory>,
    events: Vec<(Attached, NameEvent)>,
}

impl Names {
    /// Hangs the two events up.
    pub(in crate::engine) fn follow(factory: &SessionFactory, facts: &Facts) -> Result<Self, AttachError> {
        let (mut session, rings) = factory.session(RING_BYTES, 2, facts)?;
        let mut events = Vec::new();
        for name in ["task_newtask", "task_rename"] {
            let Ok(Some(text)) = facts.tracefs.format("task", name) else { continue };
            let Ok(format) = Format::parse("task", &text) else { continue };
            let Some(event) = NameEvent::of(&format) else { continue };
            let attachment = session.attach(
                &Request {
                    format: &format,
                    hook: &ProgramContext::Tracepoint,
                    via: &AttachPoint::Tracepoint(format.id),
                    filter: None,
                    irqs_off: false,
                    kind: control::FIRST + events.len() as u16,
                    threads: Threads::Every,
                    other: None,
                    extras: HitActions::default(),
                },
                Dispatch::Direct,
            )?;
            events.push((attachment, event));
        }
        session.switches().set_tracing(true);
        Ok(Self { _session: session, rings, events })
    }

    /// Learns the names that came up since the last time.
    pub(in crate::engine) fn collect(&mut self, tasks: &mut TaskNames) {
        let Self { rings, events, .. } = self;
        let mut all: Vec<(u64, u16, Vec<u8>)> = Vec::new();
        for ring in rings {
            ring.drain(|record| {
                if let Some((stamp, payload)) = record.split_first_chunk::<STAMP_SIZE>()
                    && let Some(kind) = payload.first_chunk()
                {
                    all.push((u64::from_ne_bytes(*stamp), u16::from_ne_bytes(*kind), payload.to_vec()));
                }
                Seen::Taken
            });
        }
        // A thread may get its first name on one CPU and the next on another.
        all.sort_by_key(|(stamp, ..)| *stamp);
        for (_, kind, payload) in all {
            if let Some((_, event)) = events.get(usize::from(kind.wrapping_sub(control::FIRST))) {
                tasks.learn(*event, &payload);
            }
        }
    }
}
