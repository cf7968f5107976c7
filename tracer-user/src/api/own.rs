//! Events of a mirror in this process, accessed with the same commands as through its files.

use std::cell::RefCell;

use rustix::io::Errno;

use super::{
    dynevent::DyneventType,
    place::{Held, Place, SynthField, fields, line},
};
use crate::{
    engine::{
        Client, Command, Engine, HoldCommand, InstanceCommand, RecordCommand, Request, instances::Selector,
    },
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
        if !engine.registry.synthetic().contains(self.event) {
            return Err(Errno::INVAL);
        }
        engine.registry.events().format(self.event, &engine.facts).map(fields).ok_or(Errno::NODEV)
    }

    fn emit(&self, values: &[Value<'_>]) -> Result<(), Errno> {
        let emit = RecordCommand::Emit { event: self.event, values };
        execute(&mut self.engine.borrow_mut(), self.instance, emit)
    }
}

impl Drop for HeldEvent<'_> {
    fn drop(&mut self) {
        let mut engine = self.engine.borrow_mut();
        for command in [HoldCommand::ReleaseEvent(self.event), HoldCommand::ReleaseInstance] {
            // Both were taken.
            let _ = execute(&mut engine, self.instance, command);
        }
    }
}

/// Executes a command. This engine has no other front end, so the effects are discarded.
fn execute<'a>(
    engine: &mut Engine,
    instance: InstanceId,
    command: impl Into<Command<'a>>,
) -> Result<(), Errno> {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    let client = Client { thread, ..Client::OWN };
    let done = engine.execute(&Request { client, instance, command: command.into() });
    drop(engine.take_effects());
    done.map(drop).map_err(Errno::from)
}

fn find(engine: &Engine, instance: Option<&str>) -> Result<InstanceId, Errno> {
    instance.map_or(Ok(InstanceId::TOP), |name| engine.instances.find(name).ok_or(Errno::NOENT))
}

impl Place for RefCell<Engine> {
    fn run(&self, kind: DyneventType, command: &str) -> Result<(), Errno> {
        let line = line(command)?;
        let files = Files::at_once();
        let command = match kind {
            DyneventType::Synth => Command::DefineSynthetic(line.as_bytes()),
            DyneventType::Kprobe => {
                Command::Define { file: File::Kprobe, text: line.as_bytes(), files: &files }
            }
        };
        execute(&mut self.borrow_mut(), InstanceId::TOP, command)
    }

    fn hold(&self, instance: Option<&str>, system: &str, event: &str) -> Result<Box<dyn Held + '_>, Errno> {
        let mut engine = self.borrow_mut();
        let instance = find(&engine, instance)?;
        let found = engine
            .registry
            .events()
            .find_system(system)
            .and_then(|system| engine.registry.events().find(system, event));
        let event = found.ok_or(Errno::INVAL)?;
        execute(&mut engine, instance, HoldCommand::Instance)?;
        execute(&mut engine, instance, HoldCommand::Event(event))?;
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
        execute(&mut engine, instance, events)
    }
}
