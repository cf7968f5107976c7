//! Synthetic events that programs of others emit ([`crate::attach::published`]): their maps have names in a directory of a BPF file
//! system, and are told whenever an event is on otherwise than before.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use tracer_abi::pins;

use crate::{
    attach::published::{KINDS, Pinned},
    engine::{Engine, attachments::session},
    event::EventId,
    sys::bpf::pin::PinDir,
};

/// What is known by name.
#[derive(Debug)]
pub(in crate::engine) struct Published {
    /// Its path, to take it away in the end; everything else goes through `opened`.
    dir: PathBuf,
    opened: PinDir,
    /// By name: the maps, the event's number, and which state of it they were told last.
    events: HashMap<String, (Pinned, Option<(EventId, u64)>)>,
}

impl Published {
    /// Takes over the names that a daemon left that was killed: those events are off until they are made again.
    fn take_over(dir: &Path) -> std::io::Result<Self> {
        let opened = PinDir::make(dir)?;
        let pins = opened.path();
        let mut events = HashMap::new();
        for entry in std::fs::read_dir(&pins)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let Some(event) = name.strip_suffix(pins::STATE) else { continue };
            match Pinned::open(&pins, event).and_then(|pinned| pinned.turn_off(None).map(|()| pinned)) {
                Ok(pinned) => drop(events.insert(event.to_owned(), (pinned, None))),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        Ok(Self { dir: dir.to_owned(), opened, events })
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        for (name, (pinned, _)) in &self.events {
            if let Err(error) = pinned.turn_off(None) {
                tracing::warn!("{error}");
            }
            Pinned::unpin(&self.opened.path(), name);
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}

impl Engine {
    /// From now on programs of others can emit synthetic events, by maps below a directory of a BPF file system.
    ///
    /// # Errors
    /// When the directory cannot be made or read, or is not on a BPF file system.
    pub fn publish_at(&mut self, dir: &Path) -> std::io::Result<()> {
        self.published = Some(Published::take_over(dir)?);
        self.publish();
        Ok(())
    }

    /// Tells the maps of events that are on otherwise than before.
    pub fn publish(&mut self) {
        let Some(mut published) = self.published.take() else { return };
        let names = self.synthetic_names();
        for name in &names {
            if let Err(errno) = self.publish_one(&mut published, name) {
                tracing::warn!("{name}: {errno}");
            }
        }
        // The names stay: programs that have the maps mean the next event of that name as well.
        for (name, (pinned, told)) in &mut published.events {
            if told.is_some() && !names.contains(name) {
                *told = None;
                if let Err(error) = pinned.turn_off(None) {
                    tracing::warn!("{error}");
                }
            }
        }
        self.published = Some(published);
    }

    fn publish_one(&mut self, published: &mut Published, name: &str) -> Result<(), Errno> {
        let number = self.synthetic_number(name).ok_or(Errno::NOENT)?;
        let state = Some((number, self.generation(number)));
        if published.events.get(name).is_some_and(|(_, told)| *told == state) {
            return Ok(());
        }
        if !published.events.contains_key(name) {
            let pinned = Pinned::open(&published.opened.path(), name)
                .map_err(|error| session::log_to_errno(&error))?;
            published.events.insert(name.to_owned(), (pinned, None));
        }
        // One a kind: the memory that a record is built in is a program's own.
        let mut emissions = Vec::new();
        for _ in KINDS {
            emissions.extend(self.emission(name)?);
        }
        let event = self.find_synthetic(name).ok_or(Errno::NOENT)?;
        let (pinned, told) = published.events.get_mut(name).ok_or(Errno::NOENT)?;
        let done = if emissions.is_empty() {
            pinned.turn_off(Some(&event))
        } else {
            pinned.turn_on(&event, emissions)
        };
        *told = state;
        done.map_err(|error| session::log_to_errno(&error))
    }
}
