//! Events of a mirror in this process, accessed with the same commands as through its files.

use std::cell::RefCell;

use rustix::io::Errno;

use super::{
    dynevent::DyneventType,
    place::{Held, Place, SynthField, fields, line},
};
use crate::{
    engine::{Command, Engine, InstanceCommand, instances::Selector, records::Writer},
    event::{EventId, InstanceId, synthetic::Value},
    lang::{define::File, facts::Files},
};

/// An event with a reference in the mirror: neither it nor its instance can be removed.
#[derive(Debug)]
struct HeldEvent<'a> {
    engine: &'a RefCell<Engine>,
    instance: InstanceId,
    event: EventId,
}

impl Held for HeldEvent<'_> {
    fn is_on(&self) -> Result<bool, Errno> {
        Ok(self.engine.borrow().status(self.instance).is_some_and(|status| status.takes_hits(self.event)))
    }

    fn is_recording(&self) -> Result<bool, Errno> {
        self.engine.borrow().status(self.instance).map(|status| status.is_on()).ok_or(Errno::NODEV)
    }

    fn fields(&self) -> Result<Vec<SynthField>, Errno> {
        let engine = self.engine.borrow();
        if !engine.registry().synthetic().contains(self.event) {
            return Err(Errno::INVAL);
        }
        engine.registry().events().format(self.event, &engine.facts).map(fields).ok_or(Errno::NODEV)
    }

    fn emit(&self, values: &[Value<'_>]) -> Result<(), Errno> {
        let writer = Writer::of(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        let emit = InstanceCommand::Emit { event: self.event, values, writer };
        execute(&mut self.engine.borrow_mut(), &Command::Instance(self.instance, emit))
    }
}

impl Drop for HeldEvent<'_> {
    fn drop(&mut self) {
        let mut engine = self.engine.borrow_mut();
        engine.release_event(self.event);
        engine.instances_mut().release(self.instance);
    }
}

/// Executes a command. This engine has no other front end, so the effects are discarded.
fn execute(engine: &mut Engine, command: &Command<'_>) -> Result<(), Errno> {
    let done = engine.execute(command);
    drop(engine.take_effects());
    done.map(drop).map_err(Errno::from)
}

fn find(engine: &Engine, instance: Option<&str>) -> Result<InstanceId, Errno> {
    instance.map_or(Ok(InstanceId::TOP), |name| engine.instances().find(name).ok_or(Errno::NOENT))
}

impl Place for RefCell<Engine> {
    fn run(&self, kind: DyneventType, command: &str) -> Result<(), Errno> {
        let line = line(command)?;
        let files = Files::at_once();
        let command = match kind {
            DyneventType::Synth => Command::DefineSynthetic { text: line.as_bytes(), payer: 0 },
            DyneventType::Kprobe => {
                Command::Define { file: File::Kprobe, text: line.as_bytes(), files: &files, payer: 0 }
            }
        };
        execute(&mut self.borrow_mut(), &command)
    }

    fn hold(&self, instance: Option<&str>, system: &str, event: &str) -> Result<Box<dyn Held + '_>, Errno> {
        let mut engine = self.borrow_mut();
        let instance = find(&engine, instance)?;
        let found = engine
            .registry()
            .events()
            .find_system(system)
            .and_then(|system| engine.registry().events().find(system, event));
        let event = found.ok_or(Errno::INVAL)?;
        engine.instances_mut().hold(instance)?;
        engine.hold_event(event);
        Ok(Box::new(HeldEvent { engine: self, instance, event }))
    }

    fn set_events(
        &self,
        instance: Option<&str>,
        system: Option<&str>,
        event: Option<&str>,
        on: bool,
    ) -> Result<(), Errno> {
        let mut engine = self.borrow_mut();
        let instance = find(&engine, instance)?;
        let events = InstanceCommand::Events { which: Selector::of(system, event), on };
        execute(&mut engine, &Command::Instance(instance, events))
    }
}
