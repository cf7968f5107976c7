//! Single histograms of an instance, for callers without files: the full error of a command, and each table by
//! itself.

use std::sync::Arc;

use crate::{
    attach::HistContents,
    engine::{
        command::error::{CommandError, ErrorKind},
        histograms::{HistCommands, tables::Histograms},
    },
    event::{EventId, InstanceId},
    lang::hist::{Change, Flags, TriggerId},
};

impl HistCommands<'_> {
    /// Creates a histogram on an event, like a write of `hist:` and the command to its `trigger`.
    ///
    /// # Errors
    /// The command is invalid or changes an existing histogram, or the kernel refuses something.
    pub(crate) fn add_hist(&mut self, event: EventId, command: &[u8]) -> Result<TriggerId, CommandError> {
        let format = Arc::new(self.engine.registry.events().try_format(event, &self.engine.facts)?.clone());
        // A trial on a copy, which gives the new histogram the same number.
        let mut set = self.engine.histograms.set().clone();
        let taken = set.apply(&format, Some(command), false, &self.scope());
        let Change::Added(id, _) = taken?.change else {
            return Err(ErrorKind::Exists.into());
        };
        self.set_hist(event, Some(command), false)?;
        Ok(id)
    }
}

impl Histograms {
    /// The counts of a histogram.
    ///
    /// # Errors
    /// `ENODEV` if it was removed, `EIO` if the kernel does not show its table.
    pub(crate) fn contents(&self, instance: InstanceId, id: TriggerId) -> Result<HistContents, CommandError> {
        let table = self.table(instance, id).ok_or(ErrorKind::Gone)?;
        table.counts.read().map_err(|_| ErrorKind::Io.into())
    }

    /// Whether other histograms use its variables, or count the synthetic events that it produces.
    pub(crate) fn serves(&self, id: TriggerId) -> bool {
        let Some(own) = self.trigger(id) else { return false };
        let made: Vec<String> = own.hist.synthetic_events().collect();
        self.set().triggers().filter(|other| other.id != id).any(|other| {
            let looks_up = other.hist.references.iter().any(|one| one.slot.hist == own.hist.id);
            let counts = other.event.system == crate::event::synthetic::SYSTEM
                && made.iter().any(|name| *name == other.event.name);
            looks_up || counts
        })
    }

    /// Names of all variables of an instance's histograms.
    pub(crate) fn variables(&self, instance: InstanceId) -> Vec<String> {
        let own = self.set().triggers().filter(|trigger| trigger.instance == instance);
        let fields = own.flat_map(|trigger| &trigger.hist.fields);
        let names =
            fields.filter(|value| value.flags.has(Flags::VAR)).filter_map(|value| value.variable.as_ref());
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }
}
