//! Histograms on system calls: entries in dispatchers, which all histograms of a process share.
//!
//! A dispatcher has one entry per call. Each further histogram on the same call takes an entry in another dispatcher,
//! attached after the existing ones. So histograms count in the order of their creation.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use super::syscalls::Dispatcher;
use crate::{
    attach::{Cause, attached::entry::Entry},
    kernel::{Cast, syscalls::Registers},
    sys::bpf::prog::Prog,
};

/// The dispatchers of a process.
#[derive(Clone, Debug)]
pub struct Calls {
    registers: Registers,
    cast: Option<Cast>,
    sides: Arc<Mutex<Sides>>,
}

/// Dispatchers of entries and of exits, each in the order of attachment.
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

/// An entry in a dispatcher, cleared on drop.
#[derive(Debug)]
pub(in crate::attach) struct Place {
    sides: Arc<Mutex<Sides>>,
    enter: bool,
    layer: u64,
    number: u32,
    entry: Entry,
}

impl Sides {
    fn side(&mut self, enter: bool) -> &mut Vec<Layer> {
        if enter { &mut self.enter } else { &mut self.exit }
    }
}

impl Calls {
    /// No dispatcher yet; `cast` as in [`Context`](crate::attach::Context).
    pub fn new(registers: Registers, cast: Option<Cast>) -> Self {
        Self { registers, cast, sides: Arc::default() }
    }

    /// Where the registers have a call's number and values.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Attaches a program to the entry or the exit of the call with this number, after the programs already there.
    pub(in crate::attach) fn attach_hook(
        &self,
        enter: bool,
        number: u32,
        program: &Prog,
    ) -> Result<Place, Cause> {
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
        // If this fails, an unused new dispatcher stays until the next `Place` is dropped.
        let mut entry = layer.dispatcher.entry(number);
        entry.set(program)?;
        layer.used.insert(number);
        Ok(Place { sides: Arc::clone(&self.sides), enter, layer: layer.id, number, entry })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        self.entry.clear();
        let side = sides.side(self.enter);
        if let Some(layer) = side.iter_mut().find(|layer| layer.id == self.layer) {
            layer.used.remove(&self.number);
        }
        side.retain(|layer| !layer.used.is_empty());
    }
}
