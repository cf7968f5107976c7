//! Synthetic events that programs outside the engine emit ([`crate::attach::published`]). Their maps are pinned in a
//! directory of a BPF file system, and are updated whenever the event's programs change.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use tracer_abi::pins;

use crate::{
    attach::{Block, published::Pinned},
    engine::{
        command::error::{CommandError, ErrorKind},
        registry::synthetic::SyntheticEvents,
    },
    event::EventId,
    sys::bpf::pin::PinDir,
};

#[derive(Debug)]
pub(crate) struct PublishedEvents {
    /// The path of the directory, which is removed at the end. Everything else uses `opened`.
    dir: PathBuf,
    opened: PinDir,
    /// By name.
    events: HashMap<String, PublishedEvent>,
}

/// The maps of an event.
#[derive(Debug)]
struct PublishedEvent {
    pinned: Pinned,
    /// The event and the generation in the maps; `None` while it is disabled there.
    state: Option<(EventId, u64)>,
}

impl PublishedEvent {
    fn disable(&self) {
        if let Err(error) = self.pinned.turn_off(None) {
            tracing::warn!("{error}");
        }
    }
}

impl PublishedEvents {
    /// Takes over the pinned maps in a directory of a BPF file system. Maps that a killed daemon left are disabled
    /// until their events are defined again.
    ///
    /// # Errors
    /// The directory cannot be created or read, or is not on a BPF file system.
    pub(crate) fn take_over(dir: &Path) -> std::io::Result<Self> {
        let opened = PinDir::make(dir)?;
        let pins = opened.path();
        let mut events = HashMap::new();
        for entry in std::fs::read_dir(&pins)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let Some(event) = name.strip_suffix(pins::STATE) else { continue };
            match Pinned::open(&pins, event).and_then(|pinned| pinned.turn_off(None).map(|()| pinned)) {
                Ok(pinned) => {
                    events.insert(event.to_owned(), PublishedEvent { pinned, state: None });
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
        Ok(Self { dir: dir.to_owned(), opened, events })
    }

    /// Names of the events whose maps are outdated.
    pub(crate) fn stale(&self, synthetic: &SyntheticEvents) -> Vec<String> {
        let published = |name: &str| self.events.get(name).and_then(|event| event.state);
        synthetic.names().into_iter().filter(|name| published(name) != synthetic.state(name)).collect()
    }

    /// Creates the maps of an event, if it has none.
    pub(crate) fn open(&mut self, name: &str) -> Result<(), CommandError> {
        if !self.events.contains_key(name) {
            let pinned = Pinned::open(&self.opened.path(), name)?;
            self.events.insert(name.to_owned(), PublishedEvent { pinned, state: None });
        }
        Ok(())
    }

    /// Writes the emissions of an event, one per kind of program, into its maps. `None` disables the event there.
    pub(crate) fn update(
        &mut self,
        synthetic: &SyntheticEvents,
        name: &str,
        emissions: Vec<Block>,
    ) -> Result<(), CommandError> {
        let event = synthetic.find(name).ok_or(ErrorKind::NotFound)?;
        let known = self.events.get_mut(name).ok_or(ErrorKind::NotFound)?;
        let done = if emissions.is_empty() {
            known.pinned.turn_off(Some(&event))
        } else {
            known.pinned.turn_on(&event, emissions)
        };
        known.state = synthetic.state(name);
        done.map_err(CommandError::from)
    }

    /// Disables the maps of deleted events. The maps stay, because programs that have them also use the next event of
    /// that name.
    pub(crate) fn disable_deleted(&mut self, synthetic: &SyntheticEvents) {
        for (name, event) in &mut self.events {
            if event.state.is_some() && synthetic.number(name).is_none() {
                event.state = None;
                event.disable();
            }
        }
    }
}

impl Drop for PublishedEvents {
    fn drop(&mut self) {
        for (name, event) in &self.events {
            event.disable();
            Pinned::unpin(&self.opened.path(), name);
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}
