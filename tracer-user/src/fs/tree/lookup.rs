//! A lookup: the facts of the kernel that a request needs and that may take long to read.

use std::sync::Arc;

use crate::{
    engine::{facts::Facts, registry::Events},
    event::EventId,
    kernel::Error,
};

/// The facts that a request needs. [`Lookup::run`] stores them where the request looks for them.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) facts: Arc<Facts>,
    pub(crate) events: Arc<Events>,
    /// The event whose format is to be read.
    pub(crate) format: Option<EventId>,
    /// The kernel's file whose text is to be read.
    pub(crate) file: Option<String>,
    /// Whether to read the facts that printing records needs.
    pub(crate) prints: bool,
}

/// The text of the kernel's file, if the lookup named one.
pub(crate) type Text = Option<Result<Option<String>, Error>>;

impl Lookup {
    /// Reads the facts. This can take long.
    pub(crate) fn run(&self) -> Text {
        if let Some(event) = self.format {
            // The request finds the error again and returns it.
            let _ = self.events.try_format(event, &self.facts);
        }
        if self.prints {
            self.facts.prepare_print();
        }
        self.file.as_ref().map(|file| self.facts.tracefs.read(file))
    }
}
