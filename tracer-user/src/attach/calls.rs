//! Histograms on system calls: their programs' places behind dispatchers, which all histograms of a process share.
//!
//! A dispatcher has one place for a call. Where several histograms are on a call, each further one takes a place in a dispatcher
//! that hangs behind the others, so that they count in the order in which they came.

use std::{
    collections::BTreeSet,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Cause, syscalls::Dispatcher};
use crate::{
    kernel::{Cast, syscalls::Registers},
    sys::prog::Prog,
};

/// The dispatchers.
#[derive(Clone, Debug)]
pub struct Calls {
    registers: Registers,
    cast: Option<Cast>,
    sides: Arc<Mutex<Sides>>,
}

/// Those of entries and those of exits, each in the order in which they hang.
#[derive(Debug, Default)]
struct Sides {
    enter: Vec<Layer>,
    exit: Vec<Layer>,
    made: u64,
}

#[derive(Debug)]
struct Layer {
    id: u64,
    dispatcher: Dispatcher,
    used: BTreeSet<u32>,
}

/// A place that is taken as long as this lives.
#[derive(Debug)]
pub(super) struct Place {
    sides: Arc<Mutex<Sides>>,
    enter: bool,
    layer: u64,
    number: u32,
}

impl Sides {
    fn side(&mut self, enter: bool) -> &mut Vec<Layer> {
        if enter { &mut self.enter } else { &mut self.exit }
    }
}

impl Calls {
    /// None yet; `cast` as in [`Context`](super::Context).
    pub fn new(registers: Registers, cast: Option<Cast>) -> Self {
        Self { registers, cast, sides: Arc::default() }
    }

    /// How a call is told and where it has its values.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Hangs a program on the entry or the exit of the call with this number, behind those that are there.
    pub(super) fn attach_hook(&self, enter: bool, number: u32, program: &Prog) -> Result<Place, Cause> {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let side = sides.side(enter);
        let behind = side.iter().rposition(|layer| layer.used.contains(&number)).map_or(0, |last| last + 1);
        if behind == side.len() {
            let dispatcher = Dispatcher::new(enter, self.registers.number, self.cast)?;
            sides.made += 1;
            let layer = Layer { id: sides.made, dispatcher, used: BTreeSet::new() };
            sides.side(enter).push(layer);
        }
        let Some(layer) = sides.side(enter).get_mut(behind) else {
            return Err(Cause::Misplaced("no dispatcher of system calls"));
        };
        // One that is new and has nothing goes with the next place that is given back.
        layer.dispatcher.set(number, program.as_fd())?;
        layer.used.insert(number);
        Ok(Place { sides: Arc::clone(&self.sides), enter, layer: layer.id, number })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let side = sides.side(self.enter);
        if let Some(layer) = side.iter_mut().find(|layer| layer.id == self.layer) {
            // The entry is there; were it not, there would be nothing to stop.
            let _ = layer.dispatcher.clear(self.number);
            layer.used.remove(&self.number);
        }
        side.retain(|layer| !layer.used.is_empty());
    }
}
