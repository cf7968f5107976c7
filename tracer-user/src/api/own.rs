//! Events of a mirror in this process, by the commands that its files go through as well.

use std::cell::RefCell;

use rustix::io::Errno;

use super::{
    dynevent::DyneventType,
    place::{Held, Place, SynthField, fields, line},
};
use crate::{
    engine::{Command, Engine, instances::Selector, records::Writer},
    event::{EventId, InstanceId, synthetic::Value},
    lang::{define::File, facts::Files},
};

/// An event that the mirror counts as in use: neither it nor its instance can go.
#[derive(Debug)]
struct HeldEvent<'a> {
    mirror: &'a RefCell<Engine>,
    instance: InstanceId,
    event: EventId,
}

impl Held for HeldEvent<'_> {
    fn is_on(&self) -> Result<bool, Errno> {
        Ok(self.mirror.borrow().status(self.instance).is_some_and(|status| status.takes_hits(self.event)))
    }

    fn is_recording(&self) -> Result<bool, Errno> {
        self.mirror.borrow().status(self.instance).map(|status| status.is_on()).ok_or(Errno::NODEV)
    }

    fn fields(&self) -> Result<Vec<SynthField>, Errno> {
        let mirror = self.mirror.borrow();
        if !mirror.registry().synthetic().contains(self.event) {
            return Err(Errno::INVAL);
        }
        mirror.registry().events().format(self.event, &mirror.facts).map(fields).ok_or(Errno::NODEV)
    }

    fn emit(&self, values: &[Value<'_>]) -> Result<(), Errno> {
        let writer = Writer::of(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        self.mirror.borrow_mut().emit_in(self.instance, self.event, values, writer)
    }
}

impl Drop for HeldEvent<'_> {
    fn drop(&mut self) {
        let mut mirror = self.mirror.borrow_mut();
        mirror.release_event(self.event);
        mirror.release(self.instance);
    }
}

fn find(mirror: &Engine, instance: Option<&str>) -> Result<InstanceId, Errno> {
    instance.map_or(Ok(InstanceId::TOP), |name| mirror.find(name).ok_or(Errno::NOENT))
}

impl Place for RefCell<Engine> {
    fn run(&self, kind: DyneventType, command: &str) -> Result<(), Errno> {
        let line = line(command)?;
        match kind {
            DyneventType::Synth => self.borrow_mut().define_synthetic(line.as_bytes()),
            DyneventType::Kprobe => {
                self.borrow_mut().define(File::Kprobe, line.as_bytes(), &Files::at_once())
            }
        }
    }

    fn hold(&self, instance: Option<&str>, system: &str, event: &str) -> Result<Box<dyn Held + '_>, Errno> {
        let mut mirror = self.borrow_mut();
        let instance = find(&mirror, instance)?;
        let found = mirror
            .registry()
            .events()
            .find_system(system)
            .and_then(|system| mirror.registry().events().find(system, event));
        let event = found.ok_or(Errno::INVAL)?;
        mirror.hold(instance)?;
        mirror.hold_event(event);
        Ok(Box::new(HeldEvent { mirror: self, instance, event }))
    }

    fn set_events(
        &self,
        instance: Option<&str>,
        system: Option<&str>,
        event: Option<&str>,
        on: bool,
    ) -> Result<(), Errno> {
        let mut mirror = self.borrow_mut();
        let instance = find(&mirror, instance)?;
        mirror.apply(instance, &Command::Events { which: Selector::of(system, event), on })
    }
}
