//! Histograms on system calls: entries in dispatchers, which the histograms of a session share.
//!
//! A dispatcher has one entry per call. Each further histogram on the same call takes an entry in another dispatcher,
//! attached after the existing ones. So histograms of one sort count in the order of their creation.
//!
//! A dispatcher is a consumer of the chain of raw `sys_enter` or `sys_exit`. A histogram with stacks in its key must
//! know the number of program frames in a stack, so it takes a dispatcher with a link of its own. A histogram
//! that reads a variable of a histogram with its own link must run after it, so it gets its own link too.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    call_pages::CallPages,
    syscalls::{Dispatcher, DispatcherLink},
};
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
    pages: Option<Arc<CallPages>>,
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
    /// The session whose chains it joined; `None` with a link of its own.
    session: Option<u64>,
    dispatcher: Dispatcher,
    used: BTreeSet<u32>,
}

/// The use of a dispatcher's entry. It is dropped after the entry is cleared.
#[derive(Debug)]
pub(crate) struct Place {
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
    /// No dispatcher yet; `cast` and `pages` as in [`Context`](crate::attach::Context).
    pub fn new(registers: Registers, cast: Option<Cast>, pages: Option<Arc<CallPages>>) -> Self {
        Self { registers, cast, pages, sides: Arc::default() }
    }

    /// The program that makes user memory present.
    pub(crate) fn pages(&self) -> Option<&Arc<CallPages>> {
        self.pages.as_ref()
    }

    /// Where the registers have a call's number and values.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Attaches a program to the entry or the exit of the call with this number, after the programs already there.
    /// `link` is how a new dispatcher is attached. The caller clears the entry before it drops the place.
    pub(crate) fn attach_hook(
        &self,
        enter: bool,
        number: u32,
        program: &Prog,
        link: &DispatcherLink,
    ) -> Result<(Place, Entry), Cause> {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let side = sides.side(enter);
        let session = link.session();
        let own = side.iter().enumerate().filter(|(_, layer)| layer.session == session);
        // The first dispatcher after the last one in which the call has an entry.
        let mut free = None;
        for (index, layer) in own {
            let is_used = layer.used.contains(&number);
            free = if is_used { None } else { free.or(Some(index)) };
        }
        if free.is_none() {
            let dispatcher = Dispatcher::new(enter, self.registers.number, self.cast, link)?;
            sides.made += 1;
            let layer = Layer { id: sides.made, session, dispatcher, used: BTreeSet::new() };
            sides.side(enter).push(layer);
        }
        let side = sides.side(enter);
        let free = free.unwrap_or(side.len().saturating_sub(1));
        let Some(layer) = side.get_mut(free) else {
            return Err(Cause::Misplaced("no dispatcher of system calls"));
        };
        // If this fails, an unused new dispatcher stays until the next `Place` is dropped.
        let mut entry = layer.dispatcher.entry(number);
        entry.set(program)?;
        layer.used.insert(number);
        Ok((Place { sides: Arc::clone(&self.sides), enter, layer: layer.id, number }, entry))
    }
}

impl Place {
    /// Hits for which the kernel did not run the dispatcher.
    pub(crate) fn missed(&self) -> u64 {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let layer = sides.side(self.enter).iter().find(|layer| layer.id == self.layer);
        layer.map_or(0, |layer| layer.dispatcher.missed())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let side = sides.side(self.enter);
        if let Some(layer) = side.iter_mut().find(|layer| layer.id == self.layer) {
            layer.used.remove(&self.number);
        }
        side.retain(|layer| !layer.used.is_empty());
    }
}
