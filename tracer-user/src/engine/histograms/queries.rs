//! Histograms of an instance one by one, for who sets them without files: what is wrong with a command as more than an error
//! number, and each table by itself.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    attach::Counted,
    engine::histograms::commands as hist_commands,
    engine::{Engine, histograms::commands::Around},
    event::{EventId, InstanceId},
    lang::hist::{Change, Flags, Refusal, Trigger, TriggerId},
};

/// Why a histogram does not count.
#[derive(Debug, thiserror::Error)]
pub enum HistFault {
    /// The command is wrong.
    #[error("{0}")]
    Refused(Refusal),
    /// It is right, and something else refuses it.
    #[error("{0}")]
    System(Errno),
}

impl From<Errno> for HistFault {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl Engine {
    /// Puts a histogram on an event, as `hist:` and the command in its `trigger` would.
    ///
    /// # Errors
    /// When the command is wrong, changes one that is there, or the kernel refuses something.
    pub fn add_hist(
        &mut self,
        instance: InstanceId,
        event: EventId,
        command: &[u8],
    ) -> Result<TriggerId, HistFault> {
        let format = Arc::new(self.registry.events().try_format(event, &self.facts)?.clone());
        // Tried on a copy, which gives the new one the same number.
        let mut set = self.histograms.set().clone();
        let taken = set.apply(&format, Some(command), false, &Around { engine: self, instance });
        let Change::Added(id, _) = taken.map_err(HistFault::Refused)?.change else {
            return Err(Errno::EXIST.into());
        };
        hist_commands::set_hist(self, instance, event, Some(command), false)?;
        Ok(id)
    }

    /// A histogram trigger of an instance.
    pub fn hist_trigger(&self, instance: InstanceId, id: TriggerId) -> Option<&Trigger> {
        self.histograms.trigger(id).filter(|trigger| trigger.instance == instance)
    }

    /// What a histogram has counted.
    ///
    /// # Errors
    /// `ENODEV` when it is gone, `EIO` when the kernel does not show its table.
    pub fn hist_counted(&self, instance: InstanceId, id: TriggerId) -> Result<Counted, Errno> {
        let table = self.histograms.table(instance, id).ok_or(Errno::NODEV)?;
        table.counts.read().map_err(|_| Errno::IO)
    }

    /// Whether other histograms look its variables up, or count the synthetic events that it makes.
    pub fn hist_serves(&self, instance: InstanceId, id: TriggerId) -> bool {
        let Some(own) = self.hist_trigger(instance, id) else { return false };
        let made: Vec<String> = own.hist.synthetic_events().collect();
        self.histograms.set().triggers().filter(|other| other.id != id).any(|other| {
            let looks_up = other.hist.references.iter().any(|one| one.slot.hist == own.hist.id);
            let counts = other.event.system == crate::event::synthetic::SYSTEM
                && made.iter().any(|name| *name == other.event.name);
            looks_up || counts
        })
    }

    /// Names of all variables that histograms of an instance have.
    pub fn hist_variables(&self, instance: InstanceId) -> Vec<String> {
        let own = self.histograms.set().triggers().filter(|trigger| trigger.instance == instance);
        let fields = own.flat_map(|trigger| &trigger.hist.fields);
        let names =
            fields.filter(|value| value.flags.has(Flags::VAR)).filter_map(|value| value.variable.as_ref());
        names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }
}
