//! Synthetic events that programs outside of the engine emit ([`crate::attach::published`]): their maps have names in a directory of
//! a BPF file system, and are updated whenever the event's programs change.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use tracer_abi::pins;

use crate::{
    attach::{Block, published::Pinned},
    engine::{attachments::session, registry::synthetic::SyntheticEvents},
    event::EventId,
    sys::bpf::pin::PinDir,
};

/// The published events.
#[derive(Debug)]
pub(in crate::engine) struct PublishedEvents {
    /// Its path, to remove it in the end; everything else goes through `opened`.
    dir: PathBuf,
    opened: PinDir,
    /// By name.
    events: HashMap<String, PublishedEvent>,
}

/// The maps of an event.
#[derive(Debug)]
struct PublishedEvent {
    pinned: Pinned,
    /// The event and its generation that the maps have; none while they are off.
    state: Option<(EventId, u64)>,
}

impl PublishedEvents {
    /// Takes over the names in a directory of a BPF file system. Names that a killed daemon left are off until their events are
    /// defined again.
    ///
    /// # Errors
    /// When the directory cannot be made or read, or is not on a BPF file system.
    pub(in crate::engine) fn take_over(dir: &Path) -> std::io::Result<Self> {
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

    /// Names of the events that the maps do not have as they are.
    pub(in crate::engine) fn stale(&self, synthetic: &SyntheticEvents) -> Vec<String> {
        let state = |name: &str| synthetic.number(name).map(|number| (number, synthetic.generation(number)));
        let published = |name: &str| self.events.get(name).and_then(|event| event.state);
        synthetic.names().into_iter().filter(|name| published(name) != state(name)).collect()
    }

    /// Makes the maps of an event, if it has none.
    pub(in crate::engine) fn open(&mut self, name: &str) -> Result<(), Errno> {
        if !self.events.contains_key(name) {
            let pinned =
                Pinned::open(&self.opened.path(), name).map_err(|error| session::log_to_errno(&error))?;
            self.events.insert(name.to_owned(), PublishedEvent { pinned, state: None });
        }
        Ok(())
    }

    /// Puts the emissions of an event into its maps, one a kind; none disables it.
    pub(in crate::engine) fn update(
        &mut self,
        synthetic: &SyntheticEvents,
        name: &str,
        emissions: Vec<Block>,
    ) -> Result<(), Errno> {
        let event = synthetic.find(name).ok_or(Errno::NOENT)?;
        let known = self.events.get_mut(name).ok_or(Errno::NOENT)?;
        let done = if emissions.is_empty() {
            known.pinned.turn_off(Some(&event))
        } else {
            known.pinned.turn_on(&event, emissions)
        };
        known.state = synthetic.number(name).map(|number| (number, synthetic.generation(number)));
        done.map_err(|error| session::log_to_errno(&error))
    }

    /// Disables the names whose events were deleted. The names stay: programs that have the maps mean the next event of that
    /// name as well.
    pub(in crate::engine) fn disable_deleted(&mut self, synthetic: &SyntheticEvents) {
        for (name, event) in &mut self.events {
            if event.state.is_some() && synthetic.number(name).is_none() {
                event.state = None;
                if let Err(error) = event.pinned.turn_off(None) {
                    tracing::warn!("{error}");
                }
            }
        }
    }
}

impl Drop for PublishedEvents {
    fn drop(&mut self) {
        for (name, PublishedEvent { pinned, .. }) in &self.events {
            if let Err(error) = pinned.turn_off(None) {
                tracing::warn!("{error}");
            }
            Pinned::unpin(&self.opened.path(), name);
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}
