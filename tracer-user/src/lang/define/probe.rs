//! A probe that a definition creates, and the result of a probe parser.

use super::error::Log;
use crate::{
    event::dynamic::Event,
    lang::{
        facts::FileFact,
        fetch::{At, Checked},
    },
};

/// A checked definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The event that the definition creates.
    pub event: Event,
    /// Location of the probe, as seen by its arguments.
    pub at: At,
    /// The checked arguments, in the order of [`Event::args`].
    pub args: Vec<Checked>,
    /// Arguments of the function, counted from 0, that the probe saves at entry for use at return.
    pub saved_args: Vec<u32>,
    /// The function whose types describe the arguments.
    pub function: Option<String>,
    /// The probed file.
    pub file: Option<FileFact>,
}

impl Probe {
    /// Device and inode of the probed file.
    pub(super) fn file_identity(&self) -> Option<(u64, u64)> {
        self.file.as_ref().map(|file| file.identity)
    }
}

/// A parsed probe, with the state of the kernel's log for later errors.
pub(super) struct Read {
    pub(super) probe: Probe,
    pub(super) log: Log,
}
